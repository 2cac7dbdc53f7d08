"""Files in a helper's place, in bulk and whatever their names."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import hashlib
import os
import random
import secrets
import socket
import stat
import struct
import tempfile
import threading
from dataclasses import replace
from pathlib import Path, PurePosixPath

import psutil
import pytest

from agent_env.errors import TransferError
from agent_env.places import Command, Entry, FileKind, Missing, Upload
from tests.helper.living import helper, needs_root

ODD = [b"-rf", b"a b", b"n\nl", b"$(id)", b"it's", b"\xffx", b'"q"', b"\\", b"*", b"#c", "ü".encode()]


def pure(path: Path | str | bytes) -> PurePosixPath:
    return PurePosixPath(os.fsdecode(path))


def open_up(folder: Path) -> None:
    """Lets other users reach a test's folder, which its owner alone may enter by default."""
    for parent in (folder, *folder.parents):
        if parent.is_relative_to(tempfile.gettempdir()) and parent != Path(tempfile.gettempdir()):
            parent.chmod(0o755)


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def deepen(folder: Path, levels: int) -> None:
    """Makes a tree that is deeper than a path may be long."""
    here = os.open(".", os.O_PATH)
    os.chdir(folder)
    for _ in range(levels):
        Path("deep").mkdir()
        os.chdir("deep")
    os.fchdir(here)
    os.close(here)


def kept(found: Path | Missing) -> bytes:
    assert isinstance(found, Path), found
    return found.read_bytes()


async def test_fi09_odd_names_are_data(tmp_path: Path) -> None:
    async with helper() as (_, place):
        root = tmp_path / "odd"
        names = [pure(os.fsencode(root) + b"/" + name) for name in ODD]
        await place.put([Upload(name, name.name.encode("utf-8", "surrogateescape")) for name in names])
        assert {os.fsencode(name) for name in names_in(root)} == set(ODD)
        listed = [entry.path async for entry in place.walk(pure(root))]
        assert listed == sorted(names, key=lambda name: os.fsencode(name.name))
        (into := tmp_path / "into").mkdir()
        copies = await place.get(names, into)
        assert [kept(copies[name]) for name in names] == ODD
        assert all(isinstance(entry, Entry) for entry in (await place.stat(names)).values())
        assert (await place.run(Command(["cat", "--", *names]))).stdout == b"".join(ODD)  # type: ignore[list-item]
        await place.remove(names)
        assert names_in(root) == []


async def test_fi04_links_to_files_are_read_and_everything_else_has_its_own_reason(tmp_path: Path) -> None:
    async with helper() as (_, place):
        (tmp_path / "file").write_text("content")
        (tmp_path / "absolute").symlink_to(tmp_path / "file")
        (tmp_path / "relative").symlink_to("file")
        (tmp_path / "folder").symlink_to(".")
        (tmp_path / "dangling").symlink_to("nowhere")
        (tmp_path / "loop").symlink_to("loop")
        (tmp_path / "magic").symlink_to("/proc/self/fd/0")
        os.mkfifo(tmp_path / "fifo")
        (tmp_path / "device").symlink_to("/dev/null")
        socket.socket(socket.AF_UNIX).bind(str(tmp_path / "socket"))
        (tmp_path / "big").write_bytes(b"x" * 1001)
        (tmp_path / "exact").write_bytes(b"x" * 1000)
        expected = {
            "absolute": b"content", "relative": b"content", "exact": b"x" * 1000, "folder": "EISDIR", "dangling": "ENOENT", "loop": "ELOOP",
            "fifo": "EINVAL", "device": "EINVAL", "socket": "EINVAL", "big": "EFBIG", "magic": ("EINVAL", "ELOOP"), "file/below": "ENOTDIR",
        }  # fmt: skip
        (into := tmp_path / "into").mkdir()
        paths = [pure(tmp_path / name) for name in expected]
        copies = await place.get(paths, into, limit_bytes=1000)
        assert list(copies) == paths
        for name, right in expected.items():
            for found in (copies[pure(tmp_path / name)], await place.read(pure(tmp_path / name), limit_bytes=1000)):
                if isinstance(right, bytes):
                    assert (found if isinstance(found, bytes) else kept(found)) == right
                else:
                    assert isinstance(found, Missing)
                    assert found.reason in right
        assert len(names_in(into)) == 3
        looked = await place.stat([pure(tmp_path / "loop"), pure(tmp_path / "relative")], follow=False)
        assert [(entry.kind, entry.target) for entry in looked.values() if isinstance(entry, Entry)] == [
            (FileKind.LINK, "loop"),
            (FileKind.LINK, "file"),
        ]


@needs_root
async def test_fi07_a_file_of_the_kernel_that_goes_on_for_ever_is_refused_and_the_others_are_read(tmp_path: Path) -> None:
    async with helper() as (_, place):
        endless, version = PurePosixPath("/proc/self/pagemap"), PurePosixPath("/proc/version")
        found = await place.get([endless, version], tmp_path)
        assert isinstance(found[endless], Missing)
        assert found[endless].reason == "EFBIG"
        assert isinstance(found[version], Path)
        assert b"Linux" in found[version].read_bytes()
        looked = await place.stat([endless, version], digest=True)
        assert [getattr(looked[path], "sha256", None) is None for path in (endless, version)] == [True, False]
        assert sum(file.stat().st_size for file in os.scandir(tmp_path)) < 1 << 16


async def test_fi06_fi07_nothing_in_the_place_chooses_where_a_copy_goes(tmp_path: Path) -> None:
    async with helper() as (_, place):
        hostile = tmp_path / "hostile"
        hostile.mkdir()
        (hostile / "up").symlink_to("../../../../../etc")
        (hostile / "passwd").symlink_to("/etc/passwd")
        (hostile / "set").write_text("x")
        (hostile / "set").chmod(0o6755)
        os.mkfifo(hostile / "pipe")
        os.link(hostile / "set", hostile / "hard")
        (hostile / "dangling").symlink_to("nowhere")
        entries = {entry.path.name: entry async for entry in place.walk(pure(hostile), digest=True)}
        assert {name: entry.kind.value for name, entry in entries.items()} == {
            "dangling": "link", "hard": "file", "passwd": "link", "pipe": "other", "set": "file", "up": "link",
        }  # fmt: skip
        assert entries["up"].target == "../../../../../etc"
        assert entries["set"].sha256 == hashlib.sha256(b"x").hexdigest()
        (into := tmp_path / "into").mkdir()
        paths = [pure(f"{hostile}/{name}") for name in ("a/..", "a/.", ".", "up/../x", "passwd", "set", "/")]
        copies = await place.get(paths, into)
        local = [found for found in copies.values() if isinstance(found, Path)]
        assert {found.parent for found in local} == {into}
        assert set(local) == set(into.iterdir())
        assert all(not found.is_symlink() and not found.stat().st_mode & 0o7000 for found in local)


@pytest.mark.parametrize("size", [0, 1, 65_526, 65_527, 65_536, (2 << 20) + 1, 50 << 20])
async def test_fi10_files_of_every_size_arrive_whole(size: int, tmp_path: Path) -> None:
    async with helper() as (_, place):
        local, there, as_bytes = tmp_path / "local", pure(tmp_path / "deep/er/there"), pure(tmp_path / "bytes")
        data = random.Random(size).randbytes(size)
        local.write_bytes(data)
        local.chmod(0o640)
        await place.put([Upload(there, local), Upload(as_bytes, data)])
        found = await place.stat([there, as_bytes], digest=True)
        assert {entry.sha256 for entry in found.values() if isinstance(entry, Entry)} == {hashlib.sha256(data).hexdigest()}
        assert [entry.mode for entry in found.values() if isinstance(entry, Entry)] == [0o640, 0o644]
        (into := tmp_path / "into").mkdir()
        assert kept((await place.get([there], into))[there]) == data
        if size <= 4 << 20:
            assert await place.read(as_bytes) == data
        assert names_in(tmp_path / "deep/er") == ["there"]


async def test_fi10_many_transfers_at_once(tmp_path: Path) -> None:
    async with helper() as (_, place):
        data = {pure(tmp_path / f"{i}"): random.Random(i).randbytes(200_000 + i) for i in range(32)}
        await asyncio.gather(*(place.put([Upload(path, content)]) for path, content in data.items()))
        assert await asyncio.gather(*(place.read(path) for path in data)) == list(data.values())


async def test_fi10_a_stuck_or_cancelled_copy_leaves_no_half_file(tmp_path: Path) -> None:
    async with helper() as (_, place):
        stuck = tmp_path / "stuck"
        stuck.mkdir()
        source = tmp_path / "large"
        with source.open("wb") as file:
            file.truncate(4 << 30)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await place.put([Upload(pure(stuck / "file"), source)])
        assert names_in(stuck) == []
        with pytest.raises(TransferError, match="absent can't be read here"):
            await place.put([Upload(pure(stuck / "x"), b"1"), Upload(pure(stuck / "file"), tmp_path / "absent")])
        assert [name for name in names_in(stuck) if name != "x"] == []


@needs_root
async def test_fi01_owner_applies_to_files_and_to_the_folders_that_are_made(tmp_path: Path) -> None:
    open_up(tmp_path)
    async with helper() as (_, place):
        target = pure(tmp_path / "made/deep/secret")
        await place.put([Upload(target, b"x", mode=0o4600), Upload(pure(tmp_path / "made/folder"), None)], owner="1234:1235")
        found = await place.stat([target, target.parent, target.parent.parent, pure(tmp_path / "made/folder")])
        assert {(entry.uid, entry.gid) for entry in found.values() if isinstance(entry, Entry)} == {(1234, 1235)}
        assert [entry.mode for entry in found.values() if isinstance(entry, Entry)] == [0o600, 0o755, 0o755, 0o755]
        script = f"cd {target.parent} && cat secret && echo y > secret && rm secret && touch sibling"
        assert (await place.run(Command(["sh", "-c", script], user="1234:1235"))).ok
        await place.put([Upload(target, b"x")], owner="www-data")
        (entry,) = (await place.stat([target])).values()
        assert isinstance(entry, Entry)
        assert entry.uid == 33
        with pytest.raises(TransferError, match="no user"):
            await place.put([Upload(target, b"x")], owner="nobody-of-that-name")


async def test_fi08_a_link_at_the_last_component_is_replaced_and_a_folder_is_an_error(tmp_path: Path) -> None:
    async with helper() as (_, place):
        victim = tmp_path / "victim"
        victim.write_text("mine")
        (tmp_path / "link").symlink_to(victim)
        (tmp_path / "folder").mkdir()
        await place.put([Upload(pure(tmp_path / "link"), b"new")])
        assert victim.read_text() == "mine"
        assert not (tmp_path / "link").is_symlink()
        with pytest.raises(TransferError, match="EISDIR"):
            await place.put([Upload(pure(tmp_path / "folder"), b"new"), Upload(pure(tmp_path / "after"), b"written")])
        assert (tmp_path / "after").read_text() == "written"
        with pytest.raises(TransferError, match="ENOTDIR"):
            await place.put([Upload(pure(victim / "below"), b"new")])


async def test_fi11_a_full_disk_names_the_file_and_leaves_nothing_half_written(tmp_path: Path) -> None:
    alone = ("unshare", "--mount", *(["--map-root-user"] if os.geteuid() else []))
    mount = (*alone, "sh", "-c", f'mount -t tmpfs -o size=1m none {tmp_path} && exec "$@"', "sh")
    async with helper(prefix=mount) as (_, place):
        with pytest.raises(TransferError, match=r"large could not be written.*ENOSPC"):
            await place.put([Upload(pure(tmp_path / "large"), b"x" * (3 << 20)), Upload(pure(tmp_path / "small"), b"x")])
        assert [entry.path.name async for entry in place.walk(pure(tmp_path))] == ["small"]
        with pytest.raises(TransferError, match="/dev/null/x could not be written"):
            await place.put([Upload(pure("/dev/null/x"), b"new")])


async def test_fi12_a_written_file_is_what_a_command_sees(tmp_path: Path) -> None:
    async with helper() as (_, place):
        real = tmp_path / "real"
        real.mkdir()
        (tmp_path / "link").symlink_to(real)
        path = pure(tmp_path / "link/file")
        await place.put([Upload(path, b"same")])
        assert (await place.run(Command(["cat", str(path)]))).stdout == b"same"
        assert [entry.path async for entry in place.walk(path.parent)] == [path]


async def test_remove_follows_no_link_and_takes_any_depth(tmp_path: Path) -> None:
    async with helper() as (_, place):
        outside = tmp_path / "outside"
        outside.mkdir()
        (outside / "kept").write_text("x")
        tree = tmp_path / "tree"
        tree.mkdir()
        (tree / "link").symlink_to(outside)
        (tmp_path / "direct").symlink_to(outside)
        (tree / "guarded").mkdir()
        (tree / "guarded/file").write_text("x")
        (tree / "guarded").chmod(0o500)
        deepen(tree, 1500)
        await place.remove([pure(tree), pure(f"{tmp_path}/direct/"), pure(tmp_path / "never")])
        assert names_in(tmp_path) == ["outside"]
        assert names_in(outside) == ["kept"]


async def test_walk_is_sorted_parents_first_and_says_what_it_cannot_list(tmp_path: Path) -> None:
    async with helper() as (_, place):
        for name in ("b/2", "b/1/z", "a", "b.x", "c/d/e"):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(name)
        listed = [str(entry.path.relative_to(tmp_path)) async for entry in place.walk(pure(tmp_path))]
        assert listed == ["a", "b", "b/1", "b/1/z", "b/2", "b.x", "c", "c/d", "c/d/e"]
        for wrong, reason in ((tmp_path / "absent", "ENOENT"), (tmp_path / "a", "ENOTDIR")):
            with pytest.raises(TransferError, match=reason):
                [entry async for entry in place.walk(pure(wrong))]
        async for _ in place.walk(pure("/usr")):
            break  # a walk that is left early leaves nothing behind
        assert (await place.run(Command(["true"]))).ok


async def test_hundreds_of_paths_are_one_round_trip(tmp_path: Path) -> None:
    async with helper() as (_, place):
        names = [pure(tmp_path / f"{i % 37}/{i}") for i in range(600)]
        await place.put([Upload(name, str(i).encode()) for i, name in enumerate(names)])
        found = await place.stat([*names, pure(tmp_path / "x")], digest=True)
        assert len(found) == 601
        assert isinstance(found[pure(tmp_path / "x")], Missing)
        assert sum(isinstance(entry, Entry) and entry.sha256 is not None for entry in found.values()) == 600
        assert len([entry async for entry in place.walk(pure(tmp_path))]) == 637
        (into := tmp_path / "into").mkdir()
        assert [kept(copy) for copy in (await place.get(names, into)).values()] == [str(i).encode() for i in range(600)]
        await place.remove([pure(tmp_path)])
        assert tmp_path.name not in names_in(tmp_path.parent)


async def test_altered_bytes_are_refused(tmp_path: Path) -> None:
    """Speaks the records itself: a sum that does not fit must leave the old file in place."""
    from agent_env.places.helper import files, protocol

    async with helper() as (_, place):
        target = tmp_path / "file"
        target.write_text("old")

        async def feed(work: files.FileWork) -> None:
            await work.send(protocol.frame(protocol.Record.FILE, 0, struct.pack("<II", 0o644, 0xFFFFFFFF) + os.fsencode(target)))
            await work.send(
                protocol.frame(protocol.Record.DATA, 0, b"new") + protocol.frame(protocol.Record.END, 0, secrets.token_bytes(32))
            )

        async with files._working(place._connection, protocol.Operation.WRITE, place._limits, feed) as work:
            answers = [(kind, int.from_bytes(payload, "little")) async for kind, _, payload in work.answers()]
        assert answers == [(protocol.Record.ERROR, 74)]
        assert target.read_text() == "old"
        assert names_in(tmp_path) == ["file"]


async def test_fi10_a_writer_that_is_killed_leaves_no_name(tmp_path: Path) -> None:
    target = tmp_path / "place"
    target.mkdir()
    source = tmp_path / "source"
    source.write_bytes(bytes(64 << 20))
    async with helper() as (living, place):
        work = asyncio.ensure_future(place.put([Upload(pure(target / "f"), source)]))
        parent = psutil.Process(living.process.pid)
        while not work.done() and not parent.children():
            await place.ping()
        for writer in parent.children():
            writer.kill()
        with pytest.raises(TransferError):
            await work
        assert names_in(target) == []


async def test_fi07_no_link_that_is_put_on_its_way_meanwhile_leads_a_file_out_of_its_folder(tmp_path: Path) -> None:
    box, outside, stopped = tmp_path / "box", tmp_path / "outside", threading.Event()
    (box / "d").mkdir(parents=True)
    outside.mkdir()
    (box / "l").symlink_to(outside)
    exchange = ctypes.CDLL(None, use_errno=True).renameat2

    def keeps_exchanging() -> None:
        while not stopped.is_set():
            assert exchange(-100, bytes(box / "d"), -100, bytes(box / "l"), 2) == 0

    async with helper() as (_, place):

        async def put_many(beneath: Path | None) -> None:
            folder, below = PurePosixPath(box / "d"), None if beneath is None else PurePosixPath(beneath)
            uploads = [Upload(folder / name / secrets.token_hex(8), b"data", beneath=below) for name in ("", "new") for _ in range(50)]
            with contextlib.suppress(TransferError):
                await place.put([*uploads, Upload(folder / secrets.token_hex(8), None, beneath=below)])

        exchanging = asyncio.ensure_future(asyncio.to_thread(keeps_exchanging))
        try:
            for _ in range(10):
                await put_many(box)
            assert not list(outside.iterdir())
            async with asyncio.timeout(60):
                while not list(outside.iterdir()):
                    await put_many(None)
        finally:
            stopped.set()
            await exchanging


async def test_what_is_beneath_a_folder_is_written_as_anything_else(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "named").symlink_to("real")
    named = PurePosixPath(tmp_path / "named")
    async with helper() as (_, place):
        uploads = [Upload(named / "a/b/file", b"1", 0o600), Upload(named / "a/c", None, 0o700), Upload(named / "top", b"2")]
        await place.put([replace(upload, beneath=named) for upload in uploads])
        assert (tmp_path / "real/a/b/file").read_bytes() == b"1"
        assert stat.S_IMODE((tmp_path / "real/a/c").stat().st_mode) == 0o700
        assert (tmp_path / "real/top").read_bytes() == b"2"
        (tmp_path / "real/a/b/within").symlink_to("../c")
        with pytest.raises(TransferError, match=f"below {named}"):
            await place.put([Upload(named / "a/b/within/file", b"3", beneath=named)])
        with pytest.raises(TransferError):
            await place.put([Upload(named / "a/../../file", b"4", beneath=named)])

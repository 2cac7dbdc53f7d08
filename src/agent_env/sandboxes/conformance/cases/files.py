"""Files: bytes that go in come out, to the right owner, whole or not at all, and a link never leads a write astray."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import tempfile
from pathlib import Path, PurePosixPath

from agent_env.defaults import KIB, MIB
from agent_env.errors import TransferError
from agent_env.places import Command, FileKind, Missing, Upload
from agent_env.sandboxes.conformance.bench import Bench, Room
from agent_env.sandboxes.conformance.case import Area, equal, holds, raises

AREA = Area("files")
case = AREA.case

_SIZES = (0, 1, 64 * KIB, 2 * MIB + 1)
ODD_NAMES = ("-rf", "a b", "n\nl", "$(touch pwned)", "it's", '"', "ünï→", "\udcffx", ".hidden", "a" * 255)
"""Names that shells, tars and decoders lose. The one with a surrogate is the byte 0xff, which is no UTF-8."""


def _names(folder: str) -> list[str]:
    return sorted(entry.name for entry in Path(folder).iterdir())


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


async def _back(room: Room, path: PurePosixPath, data: bytes, what: str) -> None:
    found = await room.place.read(path)
    holds(isinstance(found, bytes), f"{what} can be read: {found!r}")
    equal(_digest(found) if isinstance(found, bytes) else None, _digest(data), f"the digest of {what}")


@case("A7", "FI-10")
async def files_of_every_size_come_back(bench: Bench) -> None:
    """Empty, small, and large files come back byte for byte."""
    async with bench.shared() as room:
        files = {room.folder / f"{size}": secrets.token_bytes(size) for size in _SIZES}
        await room.place.put([Upload(path, data) for path, data in files.items()])
        for path, data in files.items():
            await _back(room, path, data, f"the file of {path.name} bytes")


@case("A7", patience=3)
async def twenty_mebibytes_come_back(bench: Bench) -> None:
    """A file of 20 MiB of random bytes, sent from disk and received to disk, is the same."""
    data = secrets.token_bytes(20 * MIB)
    with tempfile.TemporaryDirectory() as folder:
        source, into = Path(folder) / "source", Path(folder) / "into"
        source.write_bytes(data)
        into.mkdir()
        async with bench.shared() as room:
            path = room.folder / "large"
            await room.place.put([Upload(path, source)])
            found = (await room.place.get([path], into))[path]
            holds(isinstance(found, Path), f"it can be received: {found}")
            if isinstance(found, Path):
                equal(_digest(found.read_bytes()), _digest(data), "the digest")


@case("A7", patience=2)
async def many_files_travel_in_one_go(bench: Bench) -> None:
    """Three hundred files in nested folders are written and received by one call each."""
    with tempfile.TemporaryDirectory() as into:
        async with bench.shared() as room:
            files = {room.folder / f"d{n % 7}/e{n % 3}/f{n}": str(n).encode() * n for n in range(300)}
            await room.place.put([Upload(path, data) for path, data in files.items()])
            found = await room.place.get(list(files), Path(into))
            got = {path: where.read_bytes() for path, where in found.items() if isinstance(where, Path)}
            equal(got == files, True, f"all files are the same ({len(got)} of {len(files)} were received)")


@case("FI-09", "A7")
async def odd_names_are_data(bench: Bench) -> None:
    """Names with newlines, dashes, quotes, spaces, `$()`, and bytes that are no UTF-8 are written, listed, read and removed."""
    async with bench.shared() as room:
        paths = [room.folder / name for name in ODD_NAMES]
        await room.place.put([Upload(path, path.name.encode("utf-8", "surrogateescape")) for path in paths])
        listed = sorted(entry.path.name for entry in [entry async for entry in room.place.walk(room.folder)])
        equal(listed, sorted(ODD_NAMES), "what is listed")
        for path in paths:
            await _back(room, path, path.name.encode("utf-8", "surrogateescape"), f"the file {path.name!r}")
        await room.place.remove(paths)
        equal(await room.text("ls -A"), "", "what is left")


@case("FI-12")
async def commands_and_transfers_see_the_same_files(bench: Bench) -> None:
    """A written file is what a command reads, and a command's file is what is read."""
    async with bench.shared() as room:
        await room.place.put([Upload(room.folder / "in", b"written\n")])
        equal(await room.text("cat in; printf made > out"), "written", "what the command read")
        await _back(room, room.folder / "out", b"made", "the command's file")


@case("B2")
async def missing_parents_are_made(bench: Bench) -> None:
    """Folders above a file are made."""
    async with bench.shared() as room:
        await room.place.put([Upload(room.folder / "a/b/c/file", b"x")])
        equal(await room.text("cat a/b/c/file"), "x", "the file")


@case()
async def a_folder_can_be_written(bench: Bench) -> None:
    """An upload without content is a folder; one that exists is kept as it is."""
    async with bench.shared() as room:
        await room.place.put([Upload(room.folder / "d", None, mode=0o750), Upload(room.folder / "d/f", b"x")])
        await room.place.put([Upload(room.folder / "d", None)])
        equal(await room.text("cat d/f"), "x", "the file in the folder")


@case("FI-07")
async def permissions_are_kept_and_set_id_bits_never_pass(bench: Bench) -> None:
    """A mode that is given is the file's; set-id bits are dropped."""
    async with bench.shared() as room:
        await room.place.put(
            [Upload(room.folder / "run", b"#!/bin/sh\necho ran\n", mode=0o750), Upload(room.folder / "id", b"", mode=0o6755)]
        )
        found = await room.place.stat([room.folder / "run", room.folder / "id"])
        modes = [oct(entry.mode) for entry in found.values() if not isinstance(entry, Missing)]
        equal(modes, ["0o750", "0o755"], "the modes")
        equal(await room.text("./run"), "ran", "what the written program says")


@case("FI-07")
async def a_link_is_replaced_not_followed(bench: Bench) -> None:
    """Writing to a path where a link stands replaces the link; what it leads to is untouched."""
    async with bench.shared() as room:
        await room.text("printf kept > target; ln -s target link")
        await room.place.put([Upload(room.folder / "link", b"new")])
        equal(await room.text("cat target; echo; cat link; test -L link && echo ' is a link'; true"), "kept\nnew", "target and link")


@case("FI-10")
async def an_existing_file_is_replaced(bench: Bench) -> None:
    """Writing again leaves the new content alone, also where the old one was longer."""
    async with bench.shared() as room:
        for data in (b"a long first content", b"short"):
            await room.place.put([Upload(room.folder / "f", data)])
        await _back(room, room.folder / "f", b"short", "the file")


@case("FI-10", patience=2)
async def a_cancelled_write_leaves_nothing_half_done(bench: Bench) -> None:
    """After a cancellation the old content stands, and no temporary file is left."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "source"
        source.write_bytes(bytes(64 * MIB))
        async with bench.shared() as room:
            path = room.folder / "f"
            await room.place.put([Upload(path, b"old")])
            work = asyncio.ensure_future(room.place.put([Upload(path, source)]))
            await room.text("true")
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
            if work.cancelled():
                await _back(room, path, b"old", "the file")
            equal(await room.text("ls -A"), "f", "what is in the folder")


@case()
async def a_write_that_fails_names_the_path(bench: Bench) -> None:
    """A file where a folder is needed is a transfer error with the path and the reason."""
    async with bench.shared() as room:
        await room.place.put([Upload(room.folder / "file", b"x")])
        try:
            await room.place.put([Upload(room.folder / "file/below", b"y")])
        except TransferError as error:
            holds("file" in str(error), f"the message names the path: {error}")
            return
        raise AssertionError("writing below a file was not refused")


@case("FI-04")
async def links_are_read_through_and_failures_are_told_apart(bench: Bench) -> None:
    """A link gives its target's content; a dangling one, a loop, a folder and a fifo each say what they are."""
    async with bench.shared() as room:
        await room.text("printf x > f; ln -s f near; ln -s $PWD/f far; ln -s nowhere dangling; ln -s loop loop; mkdir d; mkfifo pipe")
        for name in ("near", "far"):
            await _back(room, room.folder / name, b"x", f"the link {name}")
        for name, reason in {"dangling": "ENOENT", "loop": "ELOOP", "d": "EISDIR", "pipe": "EINVAL", "absent": "ENOENT"}.items():
            equal(await room.place.read(room.folder / name), Missing(room.folder / name, reason), f"reading {name}")


@case()
async def a_file_above_its_limit_is_not_read(bench: Bench) -> None:
    """A limit is kept: at it the file is read, above it the reason is `EFBIG`."""
    async with bench.shared() as room:
        path = room.folder / "f"
        await room.place.put([Upload(path, b"12345678")])
        equal(await room.place.read(path, limit_bytes=8), b"12345678", "a file at the limit")
        equal(await room.place.read(path, limit_bytes=7), Missing(path, "EFBIG"), "a file above the limit")


@case("FI-06")
async def places_choose_no_names_here(bench: Bench) -> None:
    """Received files lie directly in the folder that was given, whatever they are called in the place."""
    with tempfile.TemporaryDirectory() as top:
        into = Path(top) / "into"
        into.mkdir()
        async with bench.shared() as room:
            await room.place.put([Upload(room.folder / name, b"x") for name in ("a..", "..b", "c", "deep/d")])
            asked = [room.folder / name for name in ("a..", "..b", "c", "deep/../c", "deep/d")]
            found = await room.place.get(asked, into)
        for path, where in found.items():
            holds(isinstance(where, Path) and where.parent == into and where.is_file(), f"{path} was received into the folder: {where}")
        equal(_names(top), ["into"], "what is beside the folder")


@case("A5", "B8")
async def files_are_read_as_root(bench: Bench) -> None:
    """A file that only its owner may read is read."""
    async with bench.shared() as room:
        await room.text("printf x > f; chmod 0600 f")
        await _back(room, room.folder / "f", b"x", "the file of mode 0600")


@case("FI-01", "A17")
async def written_files_belong_to_the_places_user(bench: Bench) -> None:
    """Files and the parents that are made belong to whoever commands run as, who can change and remove them."""
    async with bench.shared() as room:
        await room.place.put([Upload(room.folder / "d/f", b"x", mode=0o600)])
        equal(await room.text("echo y >> d/f && cat d/f && touch d/g && rm -r d && echo removed"), "xy\nremoved", "what the user can do")


@case("FI-01")
async def an_owner_can_be_given(bench: Bench) -> None:
    """`owner="0:0"` makes files root's."""
    async with bench.shared() as room:
        await room.place.put([Upload(room.folder / "f", b"x")], owner="0:0")
        found = (await room.place.stat([room.folder / "f"]))[room.folder / "f"]
        holds(not isinstance(found, Missing) and (found.uid, found.gid) == (0, 0), f"it is root's: {found}")


@case("FI-01", "US-01", needs=["users.many"])
async def other_users_own_and_act(bench: Bench) -> None:
    """A numeric user runs commands with a home that it can write, and owns what is written for it."""
    async with bench.shared() as room:
        await room.place.put([Upload(room.folder / "theirs", None)], owner="4321:4321")
        theirs = room.folder / "theirs"
        done = await room.place.run(Command(["sh", "-c", 'id -u; id -g; touch f "$HOME/.case"; ls -n f'], user="4321:4321", cwd=theirs))
        holds(done.ok and done.stdout.startswith(b"4321\n4321\n"), f"it acts as itself: {done.stdout!r} {done.stderr!r}")


@case("FI-10", patience=2)
async def transfers_run_at_once(bench: Bench) -> None:
    """Sixteen writes and reads at once do not mix."""

    async def there_and_back(room: Room, number: int) -> None:
        data = secrets.token_bytes(256 * KIB + number)
        await room.place.put([Upload(room.folder / f"f{number}", data)])
        await _back(room, room.folder / f"f{number}", data, f"file {number}")

    async with bench.shared() as room:
        await asyncio.gather(*(there_and_back(room, number) for number in range(16)))


@case()
async def removing_takes_trees_and_follows_no_link(bench: Bench) -> None:
    """Trees go, links go and their targets stay, and what is absent counts as removed."""
    async with bench.shared() as room:
        await room.text("mkdir -p d/e kept; printf x > d/e/f; printf y > kept/g; ln -s ../kept d/link; ln -s kept top")
        await room.place.remove([room.folder / "d", room.folder / "top", room.folder / "absent"])
        equal(await room.text("ls -A; cat kept/g"), "kept\ny", "what is left")


@case("B9")
async def reading_changes_nothing(bench: Bench) -> None:
    """Looking, walking and reading leave no trace: times of change and contents stay."""
    async with bench.shared() as room:
        await room.text("mkdir d; printf x > d/f; ln -s d/f link")
        before = [entry async for entry in room.place.walk(room.folder, digest=True)]
        await room.place.read(room.folder / "d/f")
        await room.place.stat([room.folder / "d", room.folder / "link"], digest=True)
        with tempfile.TemporaryDirectory() as into:
            await room.place.get([room.folder / "d/f", room.folder / "link"], Path(into))
        equal([entry async for entry in room.place.walk(room.folder, digest=True)], before, "the tree afterwards")


@case()
async def a_folder_that_is_no_file_can_not_be_got(bench: Bench) -> None:
    """Receiving a folder is told as such, beside files that are received."""
    async with bench.shared() as room:
        await room.place.put([Upload(room.folder / "d/f", b"x")])
        with tempfile.TemporaryDirectory() as into:
            found = await room.place.get([room.folder / "d", room.folder / "d/f"], Path(into))
        equal(found[room.folder / "d"], Missing(room.folder / "d", "EISDIR"), "the folder")
        holds(isinstance(found[room.folder / "d/f"], Path), "the file beside it")


@case()
async def kinds_sizes_and_digests_are_told(bench: Bench) -> None:
    """One call tells kind, size and sha256 of many paths, and what is missing."""
    async with bench.shared() as room:
        await room.text("printf hello > f; mkdir d; ln -s f link; mkfifo pipe")
        names = ("f", "d", "link", "pipe", "absent")
        found = await room.place.stat([room.folder / name for name in names], follow=False, digest=True)
        kinds = {path.name: getattr(entry, "kind", None) for path, entry in found.items()}
        wanted = {"f": FileKind.FILE, "d": FileKind.DIRECTORY, "link": FileKind.LINK, "pipe": FileKind.OTHER, "absent": None}
        equal(kinds, wanted, "the kinds")
        file, link = found[room.folder / "f"], found[room.folder / "link"]
        equal((getattr(file, "size", None), getattr(file, "sha256", None)), (5, _digest(b"hello")), "size and digest")
        equal(getattr(link, "target", None), "f", "where the link points")


@case()
async def following_a_link_tells_of_its_target(bench: Bench) -> None:
    """With `follow` a link to a folder is a folder, and a dangling one is missing."""
    async with bench.shared() as room:
        await room.text("mkdir d; ln -s d link; ln -s nowhere dangling")
        found = await room.place.stat([room.folder / "link", room.folder / "dangling"], follow=True)
        equal(getattr(found[room.folder / "link"], "kind", None), FileKind.DIRECTORY, "the link's target")
        equal(found[room.folder / "dangling"], Missing(room.folder / "dangling", "ENOENT"), "the dangling link")


@case()
async def a_missing_folder_can_not_be_walked(bench: Bench) -> None:
    """Walking what is not there is a transfer error."""
    async with bench.shared() as room:
        with raises(TransferError, "walking a folder that is missing"):
            async for _ in room.place.walk(room.folder / "absent"):
                pass

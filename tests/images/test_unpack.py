"""Layers become files as an engine would make them, and whatever a layer says, nothing outside is touched."""

from __future__ import annotations

import errno
import gzip
import os
import shutil
import stat
import struct
import subprocess
import tarfile
import tempfile
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_env.defaults import DEFAULT_LIMITS
from agent_env.errors import AgentEnvError, TransferError, UnsupportedError
from agent_env.images.oci.merge import Stacked, merge
from agent_env.images.oci.sources import Piece
from agent_env.images.oci.tree import remove_below
from agent_env.images.oci.unpack import StoppedError, Unpacked, unpack
from agent_env.images.reference import digest_of
from tests.images.laboratory import entry, ordinary_user, tar_of

DIR, SYM, HARD, FIFO, CHR, BLK = tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="agentenv-capability-missing: root")


def unpacked(folder: Path, layer: bytes, name: str = "layer", packed: bytes | None = None, **limits: int) -> tuple[Path, Unpacked]:
    into = folder / name
    into.mkdir()
    (folder / f"{name}.tar").write_bytes(layer if packed is None else packed)
    report = unpack(Piece(folder / f"{name}.tar"), into, digest_of(layer), limits=replace(DEFAULT_LIMITS, **limits))
    return into, report


def tree(folder: Path) -> dict[str, str]:
    """Every path below, with what it holds."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = f"-> {path.readlink()}"
        elif path.is_dir():
            found[name] = "/"
        elif path.is_fifo():
            found[name] = "|"
        else:
            found[name] = path.read_text()
    return found


def merged(folder: Path, *layers: bytes) -> dict[str, str]:
    stack = []
    for number, layer in enumerate(layers):
        made, report = unpacked(folder, layer, f"l{number}")
        stack.append(Stacked(made, report.whiteouts, report.opaque))
    (folder / "root").mkdir()
    merge(stack, folder / "root")
    return tree(folder / "root")


def test_files_folders_links_and_pipes_are_what_the_layer_says(tmp_path: Path) -> None:
    layer = tar_of(
        ("./", entry(DIR, mode=0o755)),
        ("./bin/", entry(DIR, mode=0o711, mtime=1000)),
        ("bin/run", entry(tarfile.REGTYPE, mode=0o755, mtime=5)),
        ("bin/same", entry(HARD, linkname="bin/run")),
        ("l", entry(SYM, linkname="/bin/run")),
        ("p", entry(FIFO, mode=0o620)),
        ("deep/er/f", b"no entries for its folders"),
        ("tmp", entry(DIR, mode=0o1777)),
        ("shut", entry(DIR, mode=0o500)),
        ("shut/f", b"f"),
    )
    made, report = unpacked(tmp_path, layer)
    assert tree(made) == {
        "bin": "/",
        "bin/run": "",
        "bin/same": "",
        "l": "-> /bin/run",
        "p": "|",
        "deep": "/",
        "deep/er": "/",
        "deep/er/f": "no entries for its folders",
        "tmp": "/",
        "shut": "/",
        "shut/f": "f",
    }
    assert (made / "bin/run").stat().st_ino == (made / "bin/same").stat().st_ino
    modes = {name: stat.S_IMODE((made / name).lstat().st_mode) for name in ("bin", "bin/run", "p", "tmp", "shut", "deep")}
    assert modes == {"bin": 0o711, "bin/run": 0o755, "p": 0o620, "tmp": 0o1777, "shut": 0o500, "deep": 0o755}
    assert (made / "bin").stat().st_mtime == 1000
    assert report.entries == 10
    assert report.skipped == []


@root_only
def test_as_root_owners_devices_set_uid_bits_and_attributes_are_kept(tmp_path: Path) -> None:
    headers = {"SCHILY.xattr.user.note": "x", "SCHILY.xattr.security.selinux": "no", "SCHILY.xattr.trusted.overlay.opaque": "y"}
    layer = tar_of(
        ("su", entry(tarfile.REGTYPE, mode=0o4755, uid=33, gid=44)),
        ("d", entry(DIR, uid=5, gid=6)),
        ("l", entry(SYM, linkname="x", uid=7)),
        ("null", entry(CHR, mode=0o666, devmajor=1, devminor=3)),
        ("noted", entry(tarfile.REGTYPE, pax_headers=headers)),
        ("gone", entry(CHR, devmajor=0, devminor=0)),
    )
    made, report = unpacked(tmp_path, layer)
    facts = {name: (made / name).lstat() for name in ("su", "d", "l", "null")}
    assert (facts["su"].st_uid, facts["su"].st_gid, stat.S_IMODE(facts["su"].st_mode)) == (33, 44, 0o4755)
    assert (facts["d"].st_uid, facts["d"].st_gid, facts["l"].st_uid) == (5, 6, 7)
    assert (stat.S_ISCHR(facts["null"].st_mode), facts["null"].st_rdev) == (True, os.makedev(1, 3))
    assert report.owners
    assert report.skipped == ["gone"]
    assert [name for name in os.listxattr(made / "noted") if name.startswith(("user.", "trusted."))] in (["user.note"], [])


def test_as_an_ordinary_user_everything_is_ours_and_no_set_uid_bit_gives_us_away() -> None:
    with tempfile.TemporaryDirectory() as made, ordinary_user(Path(made)):
        layer = tar_of(
            ("su", entry(tarfile.REGTYPE, mode=0o6755, uid=0)),
            ("null", entry(CHR, devmajor=1, devminor=3)),
            ("shut", entry(DIR, mode=0)),
            ("shut/f", b"f"),
        )
        into, report = unpacked(Path(made), layer)
        assert stat.S_IMODE((into / "su").stat().st_mode) == 0o755
        assert (into / "su").stat().st_uid == os.geteuid()
        assert (report.owners, report.skipped) == (False, ["null"])
        (Path(made) / "root").mkdir()
        merge([Stacked(into)], Path(made) / "root")
        assert stat.S_IMODE((Path(made) / "root/shut").stat().st_mode) == 0
        assert stat.S_IMODE((into / "shut").stat().st_mode) == 0
        for name in ("root", "layer"):
            remove_below(None, Path(made) / name)
            assert not (Path(made) / name).exists()


@pytest.mark.parametrize("name", ["../x", "a/../../x", "..", "./../../etc/x"])
@pytest.mark.parametrize("kind", [tarfile.REGTYPE, DIR, SYM, FIFO])
def test_a_name_that_leads_outside_is_refused(tmp_path: Path, name: str, kind: bytes) -> None:
    with pytest.raises(UnsupportedError, match="outside of the image"):
        unpacked(tmp_path, tar_of((name, entry(kind, linkname="y"))))
    assert {path.name for path in tmp_path.iterdir()} == {"layer", "layer.tar"}


def test_an_absolute_name_is_one_of_the_image(tmp_path: Path) -> None:
    assert tree(unpacked(tmp_path, tar_of(("/etc/x", b"x"), ("//y", b"y"), ("/../z", b"z")))[0]) == {
        "etc": "/",
        "etc/x": "x",
        "y": "y",
        "z": "z",
    }


@pytest.mark.parametrize("target", ["/", "/etc", "../../../..", "..", "../../{outside}"])
def test_what_is_written_through_a_link_lands_inside(tmp_path: Path, target: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    target = target.format(outside=outside.name)
    layer = tar_of(("link", entry(SYM, linkname=target)), ("link/pwned/f", b"x"), ("link/h", entry(HARD, linkname="link/pwned/f")))
    made, _ = unpacked(tmp_path, layer)
    assert [*outside.iterdir()] == []
    assert not Path("/pwned").exists()
    assert not Path("/etc/pwned").exists()
    inside = list(made.rglob("pwned/f"))
    assert len(inside) == 1


def test_a_link_is_replaced_and_never_written_through(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("whole")
    layer = tar_of(
        ("f", entry(SYM, linkname=str(victim))), ("f", b"new"), ("d", entry(SYM, linkname=str(tmp_path))), ("d", entry(DIR)), ("d/x", b"x")
    )
    assert tree(unpacked(tmp_path, layer)[0]) == {"f": "new", "d": "/", "d/x": "x"}
    assert victim.read_text() == "whole"


@pytest.mark.parametrize("target", ["absent", "/etc/passwd", "../../../etc/passwd", "d"])
def test_another_name_for_what_the_layer_does_not_hold_is_refused(tmp_path: Path, target: str) -> None:
    with pytest.raises(UnsupportedError):
        unpacked(tmp_path, tar_of(("d", entry(DIR)), ("h", entry(HARD, linkname=target))))


def test_links_in_a_circle_and_bottomless_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="circle"):
        unpacked(tmp_path, tar_of(("a", entry(SYM, linkname="b")), ("b", entry(SYM, linkname="a")), ("a/x", b"")))
    with pytest.raises(UnsupportedError, match="deep"):
        unpacked(tmp_path, tar_of(("a/" * 300 + "f", b"")), "deep")
    remove_below(None, tmp_path / "deep")


def test_what_holds_more_than_it_may_is_refused_before_it_is_written(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="more than 1000 bytes"):
        unpacked(tmp_path, tar_of(("f", b"x" * 2000)), image_layer_bytes=1000)
    with pytest.raises(UnsupportedError, match="more than 3 files"):
        unpacked(tmp_path, tar_of(*((f"f{i}", b"") for i in range(4))), "many", image_layer_entries=3)


def test_what_no_file_can_have_is_refused_and_an_odd_moment_is_the_first_one(tmp_path: Path) -> None:
    for number, odd in enumerate(({"uid": 1 << 40}, {"gid": -2}, {"pax_headers": {"path": "a\0b"}})):
        layer = tar_of(("f", entry(tarfile.REGTYPE, **odd)))
        if os.geteuid() == 0 or "pax_headers" in odd:
            with pytest.raises(UnsupportedError, match="no file can have"):
                unpacked(tmp_path, layer, f"odd{number}")
    moments = {"nan": "nan", "late": "1e30", "early": "-5", "whole": "1700000000"}
    kinds = [(name, entry(tarfile.REGTYPE, pax_headers={"mtime": moment})) for name, moment in moments.items()]
    made, _ = unpacked(tmp_path, tar_of(*kinds, ("pipe", entry(FIFO, mtime=7))), "moments")
    assert {path.name: path.stat().st_mtime for path in made.iterdir()} == {
        "nan": 0,
        "late": 0,
        "early": 0,
        "whole": 1_700_000_000,
        "pipe": 7,
    }


@pytest.mark.parametrize("pack", ["gzip", "zstd", "pzstd", "none"])
def test_each_compression_is_read(tmp_path: Path, pack: str) -> None:
    layer = tar_of(*((f"f{i}", os.urandom(5000)) for i in range(50)))
    if "zstd" in pack and shutil.which("zstd") is None:
        pytest.skip("agentenv-capability-missing: zstd")

    def zstd(data: bytes) -> bytes:
        return subprocess.run(["zstd", "-q"], input=data, capture_output=True, check=True).stdout

    packed = {
        "gzip": gzip.compress,
        "zstd": zstd,
        "pzstd": lambda data: b"\x50\x2a\x4d\x18\4\0\0\0size" + zstd(data),
        "none": bytes,
    }[pack](layer)
    made, _ = unpacked(tmp_path, layer, packed=packed)
    assert len([*made.iterdir()]) == 50
    for broken in (packed[: len(packed) // 2], packed[:-40] + b"\0" * 40 if pack != "none" else packed[: len(packed) // 3]):
        shutil.rmtree(made)
        with pytest.raises(TransferError):
            unpacked(tmp_path, layer, packed=broken)


def test_a_layer_that_is_not_what_its_digest_says_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TransferError, match="where it should be"):
        unpacked(tmp_path, tar_of(("f", b"x")), packed=tar_of(("f", b"y")))
    with pytest.raises(TransferError, match="where it should be"):
        unpacked(tmp_path, tar_of(("f", b"x")), "tail", packed=tar_of(("f", b"x")) + b"\0" * 512)


def test_work_that_nobody_waits_for_stops(tmp_path: Path) -> None:
    stop = threading.Event()
    stop.set()
    layer = tar_of(("f", b"x"))
    (tmp_path / "l").write_bytes(layer)
    (tmp_path / "into").mkdir()
    with pytest.raises(StoppedError):
        unpack(Piece(tmp_path / "l"), tmp_path / "into", digest_of(layer), limits=DEFAULT_LIMITS, stop=stop)


LOWER = tar_of(
    ("etc/a", b"1"),
    ("etc/b", b"1"),
    ("var/x/y", b"1"),
    ("bin", entry(SYM, linkname="usr/bin")),
    ("usr/bin/sh", b"sh"),
    ("f", b"1"),
    ("kept", b"1"),
)


def test_whiteouts_remove_what_lies_below_and_nothing_else(tmp_path: Path) -> None:
    upper = tar_of(
        ("etc/.wh.a", b""), (".wh.var", b""), ("etc/new", b"2"), (".wh.absent", b""), (".wh..wh.plnk/1", b""), (".wh..wh.aufs", b"")
    )
    assert merged(tmp_path, LOWER, upper) == {
        "etc": "/",
        "etc/b": "1",
        "etc/new": "2",
        "bin": "-> usr/bin",
        "usr": "/",
        "usr/bin": "/",
        "usr/bin/sh": "sh",
        "f": "1",
        "kept": "1",
    }


def test_an_opaque_folder_holds_only_its_own(tmp_path: Path) -> None:
    upper = tar_of(("etc/new", b"2"), ("etc/.wh..wh..opq", b""), ("var/", entry(DIR)), ("var/.wh..wh..opq", b""))
    found = merged(tmp_path, LOWER, upper)
    assert {name: what for name, what in found.items() if name.startswith(("etc", "var"))} == {"etc": "/", "etc/new": "2", "var": "/"}


def test_kinds_replace_each_other_from_layer_to_layer(tmp_path: Path) -> None:
    upper = tar_of(("bin/tool", b"2"), ("f", entry(DIR)), ("f/in", b"2"), ("etc", b"now a file"), ("var", entry(SYM, linkname="/f")))
    assert merged(tmp_path, LOWER, upper) == {
        "bin": "/",
        "bin/tool": "2",
        "usr": "/",
        "usr/bin": "/",
        "usr/bin/sh": "sh",
        "f": "/",
        "f/in": "2",
        "etc": "now a file",
        "var": "-> /f",
        "kept": "1",
    }


@pytest.mark.parametrize("name", ["etc/.wh...", ".wh..", ".wh."])
def test_a_whiteout_of_the_folder_itself_or_of_the_one_above_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UnsupportedError):
        unpacked(tmp_path, tar_of((name, b"")))


def test_a_whiteout_never_follows_a_link_of_a_lower_layer(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "victim").write_text("whole")
    lower = tar_of(("d", entry(SYM, linkname=str(outside))))
    found = merged(tmp_path, lower, tar_of(("d/.wh.victim", b"")), tar_of(("d/.wh..wh..opq", b"")))
    assert (outside / "victim").read_text() == "whole"
    assert found["d"] == f"-> {outside}"


def test_a_tree_shares_its_files_with_its_layers_and_leaves_them_as_they_are(tmp_path: Path) -> None:
    merged(tmp_path, LOWER, tar_of(("etc/.wh.a", b""), ("etc/", entry(DIR, mode=0o700))))
    assert (tmp_path / "root/f").stat().st_ino == (tmp_path / "l0/f").stat().st_ino
    assert (tmp_path / "l0/etc/a").read_text() == "1"
    assert stat.S_IMODE((tmp_path / "root/etc").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "l0/etc").stat().st_mode) == 0o755


@root_only
def test_what_has_as_many_names_as_it_may_is_copied_with_all_that_is_said_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.EMLINK, "too many links")

    capability = struct.pack("<5I", 0x02000001, 1 << 13, 0, 0, 0)
    held = {"SCHILY.xattr.security.capability": capability.decode("utf-8", "surrogateescape")}
    layer = tar_of(
        ("su", entry(tarfile.REGTYPE, mode=0o6755, uid=33, gid=44, mtime=5)),
        ("able", entry(tarfile.REGTYPE, uid=33, pax_headers=held)),
        ("null", entry(CHR, mode=0o666, uid=3, devmajor=1, devminor=3, mtime=6)),
        ("pipe", entry(FIFO, mode=0o620, mtime=7)),
        ("link", entry(SYM, linkname="nowhere", uid=7, mtime=8)),
    )
    made, _ = unpacked(tmp_path, layer)
    (tmp_path / "root").mkdir()
    with monkeypatch.context() as patched:
        patched.setattr("agent_env.images.oci.merge.os.link", full)
        merge([Stacked(made)], tmp_path / "root")
    facts = [
        {
            path.name: (path.lstat().st_mode, path.lstat().st_uid, path.lstat().st_gid, path.lstat().st_rdev, path.lstat().st_mtime)
            for path in folder.iterdir()
        }
        for folder in (made, tmp_path / "root")
    ]
    assert facts[0] == facts[1]
    assert stat.S_IMODE(facts[1]["su"][0]) == 0o6755
    assert [os.listxattr(folder / "able") for folder in (made, tmp_path / "root")] == [["security.capability"]] * 2


names = st.lists(st.sampled_from(["a", "b", "..", ".", "", "c", ".wh.a", ".wh..wh..opq", "x" * 60]), min_size=1, max_size=5).map("/".join)
members = st.lists(st.tuples(names, st.sampled_from([tarfile.REGTYPE, DIR, SYM, HARD, FIFO]), names | st.just("/tmp")), max_size=8)


@given(st.lists(members, min_size=1, max_size=3))
def test_no_stack_of_layers_whatever_touches_anything_outside(layers: list[list[tuple[str, bytes, str]]]) -> None:
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        (folder / "a").write_text("outside")
        stack = []
        try:
            for number, layer in enumerate(layers):
                packed = tar_of(*((name, entry(kind, linkname=target, mode=0o755)) for name, kind, target in layer))
                into, report = unpacked(folder, packed, f"l{number}")
                stack.append(Stacked(into, report.whiteouts, report.opaque))
            (folder / "root").mkdir()
            merge(stack, folder / "root")
        except AgentEnvError:
            pass
        known = {"a", "root", *(f"l{number}{end}" for number in range(3) for end in ("", ".tar"))}
        assert {path.name for path in folder.iterdir()} <= known
        assert (folder / "a").read_text() == "outside"

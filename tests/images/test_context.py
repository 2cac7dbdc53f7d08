"""A build context is the same everywhere, says all that is wrong at once, and never leaves its folder."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import tarfile
import tempfile
from io import BytesIO
from pathlib import Path

import pytest

from agent_env.errors import ProblemsError, StorageError, TransferError, UserError
from agent_env.images import BuildContext
from agent_env.images.packing import extract, tar_chunks, write
from tests.images.laboratory import ordinary_user


def folder(root: Path, files: dict[str, str | bytes]) -> Path:
    for name, content in {"Dockerfile": "FROM scratch\n", **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return root


def names(context: BuildContext) -> list[str]:
    return [entry.name for entry in context.entries]


def packed(context: BuildContext) -> bytes:
    return b"".join(tar_chunks(context))


def test_the_digest_is_of_scheme_dockerfile_platform_and_every_entry(tmp_path: Path) -> None:
    folder(tmp_path, {"run.sh": "#!/bin/sh\n", "a/b.txt": "b"})
    (tmp_path / "run.sh").chmod(0o700)
    (tmp_path / "link").symlink_to("a/b.txt")

    def sha(text: str) -> str:
        return hashlib.sha256(text.encode()).hexdigest()

    described = {
        "scheme": 1,
        "dockerfile": "Dockerfile",
        "platform": "linux/amd64",
        "entries": [
            ["Dockerfile", "0644", sha("FROM scratch\n")],
            ["a/b.txt", "0644", sha("b")],
            ["link", "0755", "link:a/b.txt"],
            ["run.sh", "0755", sha("#!/bin/sh\n")],
        ],
    }
    canonical = json.dumps(described, sort_keys=True, separators=(",", ":"))
    assert BuildContext.of(tmp_path).source_digest("linux/amd64") == sha(canonical)


def test_two_copies_of_a_folder_are_the_same_bytes_whatever_their_times_owners_and_masks(tmp_path: Path) -> None:
    files = {f"d{i}/f{i}.txt": f"{i}" * i for i in range(20)} | {"long/" + "x" * 120 + "/" + "é" * 60: "long", "big": b"\0" * 3_000_000}
    one, two = folder(tmp_path / "one", files), folder(tmp_path / "two", dict(reversed(files.items())))
    for path in two.rglob("*"):
        if path.is_file():
            os.utime(path, (1, 1))
            path.chmod(0o604)
    first, second = BuildContext.of(one), BuildContext.of(two)
    assert first.source_digest(None) == second.source_digest(None)
    assert packed(first) == packed(second)
    out = BytesIO(), BytesIO()
    write(first, out[0])
    write(second, out[1])
    assert out[0].getvalue() == out[1].getvalue()


def test_im02_a_file_of_the_same_length_and_time_gives_another_digest(tmp_path: Path) -> None:
    folder(tmp_path, {"a": "one"})
    os.utime(tmp_path / "a", (0, 0))
    before = BuildContext.of(tmp_path).source_digest(None)
    (tmp_path / "a").write_text("two")
    os.utime(tmp_path / "a", (0, 0))
    assert BuildContext.of(tmp_path).source_digest(None) != before


def test_an_archive_holds_folders_links_and_modes_and_ends_like_any_other(tmp_path: Path) -> None:
    folder(tmp_path, {"a/run": "x"})
    (tmp_path / "a/run").chmod(0o755)
    (tmp_path / "out").symlink_to("/etc/passwd")
    data = packed(BuildContext.of(tmp_path))
    assert len(data) % 10240 == 0
    with tarfile.open(fileobj=BytesIO(data)) as archive:
        found = {member.name: (member.type, member.mode, member.mtime, member.uid, member.uname, member.linkname) for member in archive}
    assert found["a"] == (tarfile.DIRTYPE, 0o755, 0, 0, "", "")
    assert found["a/run"] == (tarfile.REGTYPE, 0o755, 0, 0, "", "")
    assert found["out"] == (tarfile.SYMTYPE, 0o777, 0, 0, "", "/etc/passwd")


def test_leavings_are_left_out_and_so_is_what_the_ignore_file_names(tmp_path: Path) -> None:
    files = {".DS_Store": "", "a/__pycache__/x.pyc": "", "a/Thumbs.db": "", "a/x.py": "", "secret/key": "", ".dockerignore": "secret\n"}
    assert names(BuildContext.of(folder(tmp_path, files))) == [".dockerignore", "Dockerfile", "a/x.py"]


def test_the_dockerfiles_own_ignore_file_counts_alone(tmp_path: Path) -> None:
    files = {"docker/Web": "FROM scratch", "docker/Web.dockerignore": "a", ".dockerignore": "b", "a": "", "b": ""}
    context = BuildContext.of(folder(tmp_path, files), "docker/Web")
    assert "a" not in names(context)
    assert "b" in names(context)


def test_the_dockerfile_and_the_ignore_file_stay_also_when_they_are_ignored_or_links(tmp_path: Path) -> None:
    folder(tmp_path, {"real/Dockerfile.prod": "FROM scratch", "real/ignore": "*\n!kept\n", "x": "", "kept": ""})
    (tmp_path / "Dockerfile").unlink()
    (tmp_path / "Dockerfile").symlink_to("real/Dockerfile.prod")
    (tmp_path / ".dockerignore").symlink_to("real/ignore")
    assert names(BuildContext.of(tmp_path)) == [".dockerignore", "Dockerfile", "kept", "real/Dockerfile.prod", "real/ignore"]


def test_everything_that_is_wrong_is_said_at_once(tmp_path: Path) -> None:
    folder(tmp_path, {".dockerignore": "[\nok\n", "e\u0301": "1", "\u00e9": "2"})
    os.mkfifo(tmp_path / "pipe")
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(tmp_path / "sock"))
    (tmp_path / os.fsdecode(b"bad\xff")).write_text("")
    with pytest.raises(ProblemsError) as caught:
        BuildContext.of(tmp_path)
    listening.close()
    said = {problem.file: problem.message for problem in caught.value.problems}
    assert set(said) == {".dockerignore:1", "pipe", "sock", "\u00e9", "'bad\\udcff'"}
    assert "pipe" in said["pipe"]
    assert "socket" in said["sock"]
    assert "two files" in said["\u00e9"]


def test_what_can_not_be_read_is_a_problem() -> None:
    with tempfile.TemporaryDirectory() as made, ordinary_user(Path(made)):
        root = folder(Path(made), {"secret": "x", "shut/x": ""})
        (root / "secret").chmod(0)
        (root / "shut").chmod(0)
        with pytest.raises(ProblemsError) as caught:
            BuildContext.of(root)
        (root / "shut").chmod(0o700)
    assert [(problem.file, problem.message) for problem in caught.value.problems] == [
        ("secret", "can't be read: Permission denied"),
        ("shut", "can't be read: Permission denied"),
    ]


@pytest.mark.parametrize(
    ("dockerfile", "word"),
    [("absent", "does not exist"), ("../Dockerfile", "outside"), ("/etc/passwd", "outside"), ("sub", "is no file"), ("out", "outside"),
     ("circle", "is no file|circle")],
)  # fmt: skip
def test_a_dockerfile_that_is_not_in_the_context_is_a_problem(tmp_path: Path, dockerfile: str, word: str) -> None:
    folder(tmp_path, {"sub/x": ""})
    (tmp_path / "out").symlink_to("/etc/passwd")
    (tmp_path / "circle").symlink_to("circle")
    with pytest.raises(ProblemsError, match=word):
        BuildContext.of(tmp_path, dockerfile)


def test_a_folder_that_is_none_is_a_problem(tmp_path: Path) -> None:
    with pytest.raises(ProblemsError, match="is no folder"):
        BuildContext.of(tmp_path / "absent")


@pytest.mark.parametrize(
    "change",
    [lambda p: p.write_text("twoo"), lambda p: p.write_text("two"), lambda p: p.unlink(), lambda p: (p.unlink(), p.symlink_to("b"))],
)
def test_a_file_that_changes_under_our_hands_is_an_error_and_never_half_an_archive(tmp_path: Path, change) -> None:
    folder(tmp_path, {"a": "one", "b": "b"})
    context = BuildContext.of(tmp_path)
    change(tmp_path / "a")
    with pytest.raises(TransferError, match=r"\ba\b"):
        packed(context)


def test_a_stored_context_comes_back_as_it_was(tmp_path: Path) -> None:
    source = folder(tmp_path / "source", {"a/run": "x", "b": "b"})
    (source / "a/run").chmod(0o755)
    (source / "link").symlink_to("a/run")
    with (tmp_path / "c.tar.gz").open("wb") as out:
        write(BuildContext.of(source), out)
    (tmp_path / "back").mkdir()
    extract(tmp_path / "c.tar.gz", tmp_path / "back")
    assert BuildContext.of(tmp_path / "back").source_digest(None) == BuildContext.of(source).source_digest(None)


def hand_made(path: Path, *members: tuple[str, bytes, str]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, kind, target in members:
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, target
            archive.addfile(info, BytesIO(b""))
    return path


@pytest.mark.parametrize("name", ["../x", "/etc/x", "a/../../x", ".."])
def test_fi07_a_stored_context_can_not_write_outside(tmp_path: Path, name: str) -> None:
    (tmp_path / "into").mkdir()
    with pytest.raises(UserError, match="outside"):
        extract(hand_made(tmp_path / "x.tgz", (name, tarfile.REGTYPE, "")), tmp_path / "into")


def test_fi07_a_link_that_leads_outside_is_left_out_and_nothing_is_written_through_another(tmp_path: Path) -> None:
    into = tmp_path / "into"
    into.mkdir()
    extract(hand_made(tmp_path / "x.tgz", ("out", tarfile.SYMTYPE, "../../etc"), ("abs", tarfile.SYMTYPE, "/etc"),
                      ("in", tarfile.SYMTYPE, "a"), ("fifo", tarfile.FIFOTYPE, ""), ("in", tarfile.REGTYPE, "")), into)  # fmt: skip
    assert [path.name for path in into.iterdir()] == ["in"]
    assert not (into / "in").is_symlink()
    with pytest.raises(UserError, match="below a link"):
        extract(hand_made(tmp_path / "y.tgz", ("l", tarfile.SYMTYPE, "."), ("l/x", tarfile.REGTYPE, "")), into)


def test_a_context_that_is_cut_off_is_an_error(tmp_path: Path) -> None:
    whole = hand_made(tmp_path / "x.tgz", ("a", tarfile.REGTYPE, "")).read_bytes()
    (tmp_path / "cut").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "into").mkdir()
    with pytest.raises(StorageError, match="can't be unpacked"):
        extract(tmp_path / "cut", tmp_path / "into")

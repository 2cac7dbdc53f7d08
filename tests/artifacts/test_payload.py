"""An environment's payload is unpacked by a pure function that no archive can lead outside."""

from __future__ import annotations

import base64
import io
import json
import stat
import zipfile
from pathlib import PurePosixPath
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_env.artifacts import Artifacts, expand_payload
from agent_env.errors import ProblemsError
from tests.documents.fuzzing import problems_of
from tests.documents.test_reading import JSON_VALUES


def archive(*members: tuple[str | zipfile.ZipInfo, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members:
            file.writestr(name, content)
    return buffer.getvalue()


def described(*files: dict[str, Any]) -> bytes:
    return json.dumps({"files": list(files), "other": 1}).encode()


def test_members_below_root_and_described_files_are_unpacked_and_root_wins() -> None:
    payload = archive(
        ("root/", b""),
        ("root/a/b.txt", b"from root"),
        ("ignored.txt", b"x"),
        (
            "data.json",
            described(
                {"path": "a/b.txt", "content": "from data"},
                {"path": "/c", "content": base64.b64encode(b"\xff").decode(), "encoding": "base64"},
            ),
        ),
    )
    assert dict(expand_payload(payload)) == {PurePosixPath("a/b.txt"): b"from root", PurePosixPath("c"): b"\xff"}


def test_a_bare_data_json_is_a_payload() -> None:
    assert expand_payload(described({"path": "x/y", "content": "é"})) == [(PurePosixPath("x/y"), "é".encode())]
    assert expand_payload(b'{"tables": {}}') == []


@pytest.mark.parametrize("name", ["root/../evil", "root/a/../../evil", "root/..", "root/a/../.."])
def test_zip_slip_is_refused(name: str) -> None:
    with pytest.raises(ProblemsError, match="leads outside"):
        expand_payload(archive((name, b"x")))


def test_absolute_members_stay_inside() -> None:
    assert expand_payload(archive(("root//etc/passwd", b"x"))) == [(PurePosixPath("etc/passwd"), b"x")]


def test_links_encrypted_double_and_damaged_members_are_refused() -> None:
    link = zipfile.ZipInfo("root/link")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    with pytest.raises(ProblemsError, match="link or special"):
        expand_payload(archive((link, b"/etc/passwd")))
    with pytest.raises(ProblemsError, match="there twice"):
        expand_payload(archive(("root/a", b"1"), ("root/./a", b"2")))
    whole = archive(("root/a", b"content " * 50))
    with pytest.raises(ProblemsError, match="damaged"):
        expand_payload(whole[:40])
    flipped = bytearray(whole)
    flipped[45] ^= 0xFF
    with pytest.raises(ProblemsError, match="damaged"):
        expand_payload(bytes(flipped))
    secret = bytearray(archive(("root/a", b"x")))
    secret[6] |= 1
    central = secret.index(b"PK\x01\x02")
    secret[central + 8] |= 1
    with pytest.raises(ProblemsError, match="encrypted"):
        expand_payload(bytes(secret))


def test_a_bomb_is_stopped_at_the_limit() -> None:
    bomb = archive(("root/a", bytes(3_000_000)), ("root/b", bytes(3_000_000)))
    assert len(bomb) < 20_000
    with pytest.raises(ProblemsError, match="larger than it may be"):
        expand_payload(bomb, limit_bytes=4_000_000)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (described({"path": "../x", "content": ""}), r"\$\.files\[0\]\.path: leads outside"),
        (described({"path": "", "content": ""}), "empty path"),
        (described({"path": "/", "content": ""}), "empty path"),
        (described({"content": ""}), r"\$\.files\[0\]"),
        (described({"path": "a", "content": 3}), "content is text"),
        (described({"path": "a", "content": "%%", "encoding": "base64"}), "not base64"),
        (described({"path": "a", "content": "x", "encoding": "rot13"}), "rot13"),
        (described({"path": "a", "content": "x"}, {"path": "a/b", "content": "y"}), "lies below 'a'"),
        (b'{"files": {}}', "list of files"),
        (b"neither", "not valid JSON"),
    ],
)
def test_a_malformed_description_is_refused_with_its_path(data: bytes, said: str) -> None:
    with pytest.raises(ProblemsError, match=said):
        expand_payload(data)


def test_all_problems_of_a_description_are_found_at_once() -> None:
    found = problems_of(lambda: expand_payload(described({"path": "../x"}, {"path": 3}, {"path": "a", "content": []})))
    assert [problem.path for problem in found] == ["$.files[0].path", "$.files[1]", "$.files[2].content"]


ENTRIES = st.fixed_dictionaries(
    {}, optional={"path": st.text(alphabet="a./\0é", max_size=6), "content": st.text(), "encoding": st.sampled_from(["base64", None])}
)


@given(
    st.binary(max_size=80)
    | JSON_VALUES.map(lambda value: json.dumps(value).encode())
    | st.lists(ENTRIES).map(lambda files: described(*files))
)
def test_any_bytes_end_in_inner_paths_or_in_problems(data: bytes) -> None:
    files: list[tuple[PurePosixPath, bytes]] = []
    found = problems_of(lambda: files.extend(expand_payload(data, source="p")))
    assert all((problem.file or "").startswith("p") for problem in found)
    assert all(not path.is_absolute() and ".." not in path.parts and path.parts for path, _ in files)


@given(
    st.lists(
        st.tuples(st.text(alphabet="ab./é\\", max_size=8).map(lambda name: f"root/{name}"), st.binary(max_size=8)),
        max_size=4,
        unique_by=lambda pair: pair[0],
    )
)
def test_any_archive_ends_in_inner_paths_or_in_problems(members: list[tuple[str, bytes]]) -> None:
    files: list[tuple[PurePosixPath, bytes]] = []
    problems_of(lambda: files.extend(expand_payload(archive(*members))))
    assert all(not path.is_absolute() and ".." not in path.parts and path.parts for path, _ in files)


def test_an_environments_payload_is_read_from_its_artifact(artifacts: Artifacts) -> None:
    artifacts.put_environment("seed", "mail", archive(("root/a", b"1")), filename="payload.zip")
    assert artifacts.payload("seed") == [(PurePosixPath("a"), b"1")]

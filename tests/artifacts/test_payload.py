"""An environment's payload is unpacked by a pure function that no archive can lead outside."""

from __future__ import annotations

import base64
import io
import json
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


def test_names_that_differ_in_case_alone_are_two_files() -> None:
    expanded = expand_payload(archive(("root/A", b"1"), ("root/a", b"2")))
    assert expanded == [(PurePosixPath("A"), b"1"), (PurePosixPath("a"), b"2")]


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

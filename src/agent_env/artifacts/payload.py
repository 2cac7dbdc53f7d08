"""An environment's payload as files: a pure function, so that hostile archives are refused before anything touches a disk."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

from agent_env.artifacts.zips import MAGIC, refused, unzip
from agent_env.defaults import DEFAULT_LIMITS, Limits
from agent_env.documents.artifact import path_problem
from agent_env.documents.reading import at, parse_json
from agent_env.errors import Problem, ProblemsError

_ROOT = "root/"
_DATA = "data.json"


def expand_payload(payload: bytes, *, source: str = "payload", limits: Limits = DEFAULT_LIMITS) -> list[tuple[PurePosixPath, bytes]]:
    """The files of a payload, relative to their destination, in the order in which they are to be written.

    A payload is a zip archive with members below `root/` and an optional `data.json`, or a bare `data.json`. `files[]` of `data.json`
    holds `path`, `content` and, for bytes, `encoding: "base64"`. Where both have a path, the member of `root/` wins. Names that differ in
    case alone are different files, as they are in every place.

    Args:
        payload: The archive or JSON.
        source: What it is called in problems.
        limits: `payload_bytes` of all files together, and what `zips.unzip` takes.

    Raises:
        ProblemsError: It is neither; a path leads outside or is empty; a member can't be unpacked (see `zips.unzip`); it is too large.
    """
    found: dict[PurePosixPath, bytes] = {}
    data = payload
    if payload.startswith(MAGIC):
        members = dict(unzip(payload, source=source, limits=limits, only=(_ROOT, _DATA)))
        data = members.pop(_DATA, b"")
        found = {PurePosixPath(name.removeprefix(_ROOT)): content for name, content in members.items()}
    if data:
        for path, content in _described(data, source if data is payload else f"{source}/{_DATA}"):
            found.setdefault(path, content)
    if sum(map(len, found.values())) > limits.payload_bytes:
        raise refused(source, None, f"holds more than {limits.payload_bytes} bytes (limit payload_bytes)")
    for path in found:
        clash = next((parent for parent in path.parents if parent in found), None)
        if clash is not None:
            raise refused(source, str(path), f"lies below {str(clash)!r}, which is a file")
    return list(found.items())


def _described(data: bytes, source: str) -> Iterator[tuple[PurePosixPath, bytes]]:
    """The entries of a `data.json`; all of its problems at once."""
    document = parse_json(data, source=source)
    entries = document.get("files", []) if isinstance(document, dict) else document
    path = "$.files" if isinstance(document, dict) else "$"
    if not isinstance(entries, list):
        raise ProblemsError([Problem("is a list of files", source, path)])
    problems: list[Problem] = []
    files: list[tuple[PurePosixPath, bytes]] = []
    for i, entry in enumerate(entries):
        try:
            files.append(_entry(entry, source, at(path, i)))
        except ProblemsError as error:
            problems += error.problems
    if problems:
        raise ProblemsError(problems)
    yield from files


def _entry(entry: Any, source: str, path: str) -> tuple[PurePosixPath, bytes]:
    if not isinstance(entry, dict) or not isinstance(entry.get("path"), str):
        raise ProblemsError([Problem('a file is {"path": …, "content": …}', source, path)])
    content, encoding = entry.get("content", ""), entry.get("encoding")
    if not isinstance(content, str):
        raise ProblemsError([Problem("content is text", source, at(path, "content"), 'for bytes: base64, with "encoding": "base64"')])
    where = _inside(entry["path"], source, at(path, "path"))
    if encoding == "base64":
        try:
            return where, base64.b64decode("".join(content.split()), validate=True)
        except (binascii.Error, ValueError) as error:
            raise ProblemsError([Problem("content is not base64", source, at(path, "content"))]) from error
    if encoding not in {None, "", "utf-8", "utf8", "text"}:
        raise ProblemsError([Problem(f"unknown encoding {encoding!r}", source, at(path, "encoding"), "base64, or left out for text")])
    return where, content.encode()


def _inside(name: str, source: str, where: str) -> PurePosixPath:
    """A described path below the destination. A leading slash means the destination itself (reference)."""
    parts = [part for part in name.split("/") if part not in {"", "."}]
    if not parts:
        raise refused(source, where, "has an empty path")
    if ".." in parts or "\0" in name:
        raise refused(source, where, f"leads outside: {name!r}")
    wrong = path_problem("/".join(parts))
    if wrong:
        raise refused(source, where, wrong)
    return PurePosixPath(*parts)

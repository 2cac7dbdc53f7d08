"""An environment's payload as files: a pure function, so that hostile archives are refused before anything touches a disk."""

from __future__ import annotations

import base64
import binascii
import io
import stat
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

from agent_env.defaults import DEFAULT_LIMITS
from agent_env.documents.reading import at, parse_json
from agent_env.errors import Problem, ProblemsError

_ROOT = "root/"
_DATA = "data.json"


def expand_payload(
    payload: bytes, *, source: str = "payload", limit_bytes: int = DEFAULT_LIMITS.payload_bytes
) -> list[tuple[PurePosixPath, bytes]]:
    """The files of a payload, relative to their destination, in the order in which they are to be written.

    A payload is a zip archive with members below `root/` and an optional `data.json`, or a bare `data.json`. `files[]` of `data.json`
    holds `path`, `content` and, for bytes, `encoding: "base64"`. Where both have a path, the member of `root/` wins.

    Args:
        payload: The archive or JSON.
        source: What it is called in problems.
        limit_bytes: How many bytes all files together may have.

    Raises:
        ProblemsError: It is neither; a path leads outside or is empty; a member is a link, encrypted, damaged or there twice; it is
            too large.
    """
    found: dict[PurePosixPath, bytes] = {}
    data = payload
    if payload[:2] == b"PK":
        found, data = _unzip(payload, source, limit_bytes)
    if data:
        for path, content in _described(data, source if data is payload else f"{source}/{_DATA}"):
            found.setdefault(path, content)
    if sum(map(len, found.values())) > limit_bytes:
        raise _refused(source, None, f"holds more than {limit_bytes} bytes")
    for path in found:
        clash = next((parent for parent in path.parents if parent in found), None)
        if clash is not None:
            raise _refused(source, str(path), f"lies below {str(clash)!r}, which is a file")
    return list(found.items())


def _unzip(payload: bytes, source: str, limit_bytes: int) -> tuple[dict[PurePosixPath, bytes], bytes]:
    """Members below `root/`, and the bytes of `data.json`."""
    found: dict[PurePosixPath, bytes] = {}
    data, left = b"", limit_bytes
    try:
        archive = zipfile.ZipFile(io.BytesIO(payload))
        for member in archive.infolist():
            if member.is_dir() or not (member.filename.startswith(_ROOT) or member.filename == _DATA):
                continue
            content = _member(archive, member, source, left)
            left -= len(content)
            if member.filename == _DATA:
                data = content
                continue
            path = _inside(member.filename[len(_ROOT) :], source, member.filename)
            if path in found:
                raise _refused(source, member.filename, "is there twice")
            found[path] = content
    except (zipfile.BadZipFile, zlib.error, OSError, EOFError, ValueError, RuntimeError) as error:
        raise _refused(source, None, f"is a damaged zip archive: {type(error).__name__}") from error
    return found, data


def _member(archive: zipfile.ZipFile, member: zipfile.ZipInfo, source: str, left: int) -> bytes:
    if member.flag_bits & 0x1:
        raise _refused(source, member.filename, "is encrypted")
    mode = member.external_attr >> 16
    if stat.S_IFMT(mode) not in {0, stat.S_IFREG}:
        raise _refused(source, member.filename, "is a link or special file")
    with archive.open(member) as stream:
        content = stream.read(left + 1)
    if len(content) > left:
        raise _refused(source, member.filename, "makes the payload larger than it may be")
    return content


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
    parts = [part for part in name.split("/") if part not in {"", "."}]
    if not parts:
        raise _refused(source, where, "has an empty path")
    if ".." in parts or "\0" in name:
        raise _refused(source, where, f"leads outside: {name!r}")
    return PurePosixPath(*parts)


def _refused(source: str, where: str | None, message: str) -> ProblemsError:
    return ProblemsError([Problem(message, source, where)])

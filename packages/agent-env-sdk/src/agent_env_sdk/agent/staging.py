"""`staging/v1`: objects on the agent's own server, for stores that its place can't reach.

The first segment of a path is its permission: whoever knows it may read and write below it, and nobody else learns that it is there. So
the agent itself needs no token to take what was put there for it.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final

from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, Response
from starlette.routing import BaseRoute, Route

from agent_env_sdk.hosting import JsonAnswer
from agent_env_sdk.wire.agent_extensions import STAGING, STANDARDS
from agent_env_sdk.wire.errors import AgentEnvError

from .fleeting import fleeting_folder

MAX_BYTES_VARIABLE: Final = "AGENTENV_STAGING_MAX_BYTES"
FOLDER_VARIABLE: Final = "AGENTENV_STAGING_DIR"
MAX_BYTES: Final = 16 * 1024**3
SHORTEST_PERMISSION: Final = 22
"""Characters: about 128 bits of a URL-safe base64 text."""
LONGEST_PATH: Final = 1024
_LONGEST_SEGMENT: Final = 255
"""Bytes of a file's name, where objects are kept as files."""
_PIECE_BYTES: Final = 64 * 1024
_FORM_BYTES, _FORM_FIELDS = 64 * 1024, 20
"""What a form may hold beside its file."""


@dataclass(frozen=True, slots=True)
class Stored:
    """An object."""

    path: str
    size_bytes: int
    etag: str

    def to_json(self) -> dict[str, Any]:
        """As the wire has it."""
        return {"path": self.path, "size_bytes": self.size_bytes, "etag": self.etag}


class Staging:
    """The objects.

    Args:
        folder: Where they are; None for the variable `AGENTENV_STAGING_DIR`, else a new one.
        max_bytes: Of all together; None for the variable `AGENTENV_STAGING_MAX_BYTES`, else 16 GiB. 0 turns staging off.
    """

    def __init__(self, folder: Path | None = None, max_bytes: int | None = None) -> None:
        named, limit = os.environ.get(FOLDER_VARIABLE), os.environ.get(MAX_BYTES_VARIABLE)
        self.max_bytes = max_bytes if max_bytes is not None else int(limit) if limit else MAX_BYTES
        self._folder = folder or (Path(named) if named else None)
        self._used: int | None = None

    def params(self) -> dict[str, Any]:
        """What the card tells."""
        return {"endpoint": STANDARDS[STAGING].path, "max_bytes": self.max_bytes}

    def routes(self) -> Iterator[BaseRoute]:
        """Where it is served; nowhere when it is turned off."""
        if self.max_bytes > 0:
            yield Route(f"{STANDARDS[STAGING].path}/{{path:path}}", self._answered, methods=["GET", "PUT", "POST", "DELETE"])

    async def _answered(self, request: Request) -> Response:
        try:
            path = _path(str(request.path_params["path"]))
            match request.method:
                case "PUT":
                    return await self._put(path, _pieces(request))
                case "POST":
                    return await self._posted(path, request)
                case "DELETE":
                    return self._delete(path, request.headers.get("if-match"))
                case _:
                    return self._get(path)
        except AgentEnvError as error:
            return JsonAnswer(error.body(), error.status)

    async def _posted(self, path: str, request: Request) -> Response:
        """A form: `key`, the object's path below this one, and `file`. Its length is known before anything of it is read."""
        length = request.headers.get("content-length", "")
        if not length.isdecimal():
            raise AgentEnvError("length_required", "a form needs its content-length", status=411)
        if self._total() + int(length) > self.max_bytes + _FORM_BYTES:
            raise self._full()
        try:
            form = await request.form(max_files=1, max_fields=_FORM_FIELDS)
        except (HTTPException, ClientDisconnect) as error:
            raise AgentEnvError("invalid_params", f"it is no form: {type(error).__name__}") from None
        try:
            key, file = form.get("key"), form.get("file")
            if not isinstance(key, str) or not isinstance(file, UploadFile):
                raise AgentEnvError("invalid_params", "a form needs the field key, and file with the content")
            return await self._put(_path(f"{path.rstrip('/')}/{key}"), _read(file))
        finally:
            await form.close()

    async def _put(self, path: str, pieces: AsyncIterator[bytes]) -> Response:
        if path.endswith("/"):
            raise AgentEnvError("invalid_params", "an object's path has no slash at its end")
        target = self._place(path)
        if target.is_dir() or any(parent.is_file() for parent in target.parents if parent.is_relative_to(self._root())):
            raise AgentEnvError("conflict", "an object can't be above or below another one", status=409)
        handle, name = tempfile.mkstemp(prefix=".new-", dir=self._root())
        aside, digest, size = Path(name), hashlib.sha256(), 0
        try:
            with os.fdopen(handle, "wb") as file:
                async for piece in pieces:
                    size += len(piece)
                    if self._total() + size > self.max_bytes:
                        raise self._full()
                    digest.update(piece)
                    await asyncio.to_thread(file.write, piece)
            self._used = self._total() + size - await asyncio.to_thread(_put, aside, target)
        finally:
            await asyncio.to_thread(aside.unlink, missing_ok=True)
        stored = self._stored(path)
        return JsonAnswer({**stored.to_json(), "sha256": digest.hexdigest()}, 201, {"etag": stored.etag})

    def _get(self, path: str) -> Response:
        place = self._place(path)
        if path.endswith("/"):
            return JsonAnswer({"objects": [each.to_json() for each in self._below(place)]})
        if not place.is_file():
            raise _missing()
        return FileResponse(place, headers={"etag": self._stored(path).etag}, media_type="application/octet-stream")

    def _delete(self, path: str, tag: str | None) -> Response:
        place = self._place(path)
        if path.endswith("/"):
            self._used = self._total() - sum(each.size_bytes for each in self._below(place))
            shutil.rmtree(place, ignore_errors=True)
            return Response(status_code=204)
        if not place.is_file():
            raise _missing()
        if tag is not None and tag != self._stored(path).etag:
            raise AgentEnvError("precondition_failed", "the object has changed", status=412)
        self._used = self._total() - place.stat().st_size
        place.unlink()
        return Response(status_code=204)

    def _full(self) -> AgentEnvError:
        return AgentEnvError("storage_full", f"what is staged may be {self.max_bytes} bytes together", status=507)

    def _root(self) -> Path:
        if self._folder is None:
            self._folder = fleeting_folder(self, "agent-staging-")
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        return self._folder

    def _place(self, path: str) -> Path:
        return self._root() / path.rstrip("/")

    def _stored(self, path: str) -> Stored:
        about = (self._root() / path).stat()
        return Stored(path, about.st_size, f'"{about.st_mtime_ns:x}-{about.st_size:x}"')

    def _below(self, folder: Path) -> list[Stored]:
        found = sorted(path for path in folder.rglob("*") if path.is_file()) if folder.is_dir() else []
        return [self._stored(path.relative_to(self._root()).as_posix()) for path in found]

    def _total(self) -> int:
        if self._used is None:  # what an earlier process left
            self._used = sum(each.size_bytes for each in self._below(self._root()) if not each.path.startswith(".new-"))
        return self._used


def _put(aside: Path, target: Path) -> int:
    """Gives the bytes of what was there before."""
    before = target.stat().st_size if target.exists() else 0
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    aside.replace(target)
    return before


async def _read(file: UploadFile) -> AsyncIterator[bytes]:
    while piece := await file.read(_PIECE_BYTES):
        yield piece


async def _pieces(request: Request) -> AsyncIterator[bytes]:
    try:
        async for piece in request.stream():
            yield piece
    except ClientDisconnect:
        raise AgentEnvError("disconnected", "the request broke off") from None


def _path(value: str) -> str:
    """A normal path whose permission may be known.

    Raises:
        AgentEnvError: It is none (400), or its first segment is too short to be a permission (404).
    """
    inner = value.removesuffix("/")
    segments = inner.split("/")
    if len(segments[0]) < SHORTEST_PERMISSION:
        raise _missing()
    odd = any(each in {"", ".", ".."} or len(each.encode()) > _LONGEST_SEGMENT for each in segments)
    if len(value) > LONGEST_PATH or "\\" in value or "\0" in value or odd:
        raise AgentEnvError("invalid_params", "the path is not a normal one")
    return str(PurePosixPath(inner)) + ("/" if value.endswith("/") else "")


def _missing() -> AgentEnvError:
    return AgentEnvError("not_found", "there is no such object", status=404)

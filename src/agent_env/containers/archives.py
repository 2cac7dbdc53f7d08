"""Files of a container through the engine's archives, for containers that have no helper. All of it passes through a file here."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import io
import json
import os
import secrets
import stat as modes
import tarfile
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from agent_env.containers.engine import Engine
from agent_env.defaults import MIB
from agent_env.errors import EngineConflictError, EngineFailedError, NotFoundError, TransferError
from agent_env.places.place import Entry, FileKind, Missing, Upload

_STAT_HEADER = "X-Docker-Container-Path-Stat"
_GO_DIRECTORY, _GO_LINK = 1 << 31, 1 << 27
_MOST_LINKS = 40
_KINDS = ((tarfile.TarInfo.isreg, FileKind.FILE), (tarfile.TarInfo.isdir, FileKind.DIRECTORY), (tarfile.TarInfo.issym, FileKind.LINK))


@dataclass(frozen=True, slots=True)
class _Seen:
    """A path as an engine tells of it."""

    mode: int
    size: int
    leads_to: str


async def look(engine: Engine, container_id: str, path: PurePosixPath) -> _Seen | None:
    """What the engine says of a path, its last component not followed; None when nothing is there."""
    async with engine.asking(f"looking at {path} in a container", concerns=container_id) as docker:
        answer = await docker.session.head(engine.url(f"containers/{container_id}/archive"), params={"path": str(path)})
        answer.close()
        if answer.status != 200:
            return None
        said = json.loads(base64.b64decode(answer.headers[_STAT_HEADER]))
        return _Seen(int(said["mode"]), int(said["size"]), str(said.get("linkTarget") or ""))


async def resolve(engine: Engine, container_id: str, path: PurePosixPath) -> PurePosixPath | Missing:
    """The path that a path's links lead to, inside the container."""
    at = path
    for _ in range(_MOST_LINKS):
        said = await look(engine, container_id, at)
        if said is None:
            return Missing(path)
        if not said.mode & _GO_LINK:
            return at
        at = _normal(at.parent / said.leads_to)
    return Missing(path, "ELOOP")


def _normal(path: PurePosixPath) -> PurePosixPath:
    return PurePosixPath(os.path.normpath(path))


@asynccontextmanager
async def _archive(engine: Engine, container_id: str, path: PurePosixPath | str) -> AsyncIterator[tarfile.TarFile | None]:
    """A path's archive, held in a file; None when nothing is there."""
    with tempfile.TemporaryFile() as file:
        async with engine.asking(f"copying {path} out of a container", seconds=engine.limits.transfer_seconds) as docker:
            answer = await docker.session.get(engine.url(f"containers/{container_id}/archive"), params={"path": str(path)})
            found = answer.status == 200
            async for piece in answer.content.iter_chunked(MIB):
                await asyncio.to_thread(file.write, piece)
        if not found:
            yield None
            return
        file.seek(0)
        with tarfile.open(fileobj=file, mode="r:", encoding="utf-8", errors="surrogateescape") as archive:
            yield archive


async def get(engine: Engine, container_id: str, path: PurePosixPath, into: Path, limit: int | None) -> Path | Missing:
    """Copies one file into a fresh one below `into`; see `Place.get`."""
    at = await resolve(engine, container_id, path)
    if isinstance(at, Missing):
        return at
    said = await look(engine, container_id, at)
    if said is None:
        return Missing(path)
    if said.mode & _GO_DIRECTORY:
        return Missing(path, "EISDIR")
    if limit is not None and said.size > limit:
        return Missing(path, "EFBIG")
    async with _archive(engine, container_id, at) as archive:
        member = None if archive is None else archive.next()
        if archive is None or member is None:
            return Missing(path)
        content = archive.extractfile(member)
        if content is None or not member.isreg():
            return Missing(path, "EINVAL")
        target = into / secrets.token_hex(8)
        await asyncio.to_thread(_copy, content, target)
        return target


def _copy(source: IO[bytes], target: Path) -> None:
    with target.open("xb") as file:
        while piece := source.read(MIB):
            file.write(piece)


async def read(engine: Engine, container_id: str, path: PurePosixPath, limit: int) -> bytes | Missing:
    """One file's bytes."""
    with tempfile.TemporaryDirectory() as folder:
        found = await get(engine, container_id, path, Path(folder), limit)
        return found if isinstance(found, Missing) else found.read_bytes()


async def stat(engine: Engine, container_id: str, path: PurePosixPath, *, follow: bool, digest: bool) -> Entry | Missing:
    """What stands at a path."""
    at = await resolve(engine, container_id, path) if follow else path
    if isinstance(at, Missing):
        return at
    said = await look(engine, container_id, at)
    if said is None:
        return Missing(path)
    if said.mode & _GO_DIRECTORY:
        return Entry(path, FileKind.DIRECTORY, mode=said.mode & 0o777)
    async with _archive(engine, container_id, at) as archive:
        member = None if archive is None else archive.next()
        if archive is None or member is None:
            return Missing(path)
        return await asyncio.to_thread(_entry, archive, member, path, digest)


async def walk(engine: Engine, container_id: str, root: PurePosixPath, *, digest: bool) -> list[Entry] | Missing:
    """Everything below a folder, parents first, sorted by name."""
    async with _archive(engine, container_id, f"{root}/.") as archive:
        if archive is None:
            return Missing(root)
        entries = await asyncio.to_thread(lambda: list(_below(archive, root, digest)))
    return sorted(entries, key=lambda entry: entry.path.parts)


def _below(archive: tarfile.TarFile, root: PurePosixPath, digest: bool) -> Iterator[Entry]:
    for member in archive:
        parts = PurePosixPath(member.name).parts
        if parts and ".." not in parts:
            yield _entry(archive, member, root.joinpath(*parts), digest)


def _entry(archive: tarfile.TarFile, member: tarfile.TarInfo, path: PurePosixPath, digest: bool) -> Entry:
    kind = next((kind for is_kind, kind in _KINDS if is_kind(member)), FileKind.OTHER)
    if member.islnk():
        kind = FileKind.FILE
    sha256 = None
    if digest and kind is FileKind.FILE and (content := archive.extractfile(member)) is not None:
        sha256 = _sha256(content)
    target = member.linkname if kind is FileKind.LINK else None
    return Entry(path, kind, member.size, member.mode & 0o7777, member.uid, member.gid, int(member.mtime * 1e9), target, sha256)


def _sha256(content: IO[bytes]) -> str:
    found = hashlib.sha256()
    while piece := content.read(MIB):
        found.update(piece)
    return found.hexdigest()


async def put(engine: Engine, container_id: str, uploads: Sequence[Upload], owner: tuple[int, int]) -> None:
    """Writes files and folders; parents that are missing are made, with the same owner.

    Raises:
        TransferError: The engine refuses.
    """
    parents: dict[PurePosixPath, bool] = {}
    for upload in uploads:
        for parent in [upload.path, *upload.path.parents] if upload.source is None else upload.path.parents:
            if parent not in parents and str(parent) != "/":
                parents[parent] = await look(engine, container_id, parent) is None
    missing = sorted((path for path, absent in parents.items() if absent), key=lambda path: path.parts)
    with tempfile.TemporaryFile() as file:
        await asyncio.to_thread(_pack, file, missing, uploads, owner)
        file.seek(0)
        try:
            async with engine.asking("copying files into a container", seconds=engine.limits.transfer_seconds) as docker:
                kind, where = {"Content-Type": "application/x-tar"}, {"path": "/", "noOverwriteDirNonDir": "1"}
                async with docker._query(
                    f"containers/{container_id}/archive", method="PUT", params=where, data=_pieces(file), headers=kind
                ):
                    return
        except (EngineFailedError, EngineConflictError, NotFoundError) as error:
            raise TransferError(str(error), concerns=container_id) from error


async def _pieces(file: IO[bytes]) -> AsyncIterator[bytes]:
    """A file's bytes. The client closes a file that it is given, at some later moment and beside whoever made it."""
    while piece := await asyncio.to_thread(file.read, MIB):
        yield piece


def _pack(file: IO[bytes], folders: Sequence[PurePosixPath], uploads: Sequence[Upload], owner: tuple[int, int]) -> None:
    made = {upload.path: upload for upload in uploads if upload.source is None}
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT, encoding="utf-8", errors="surrogateescape") as archive:
        for folder in folders:
            member = _member(folder, owner, made[folder].mode if folder in made else None, 0o755)
            member.type = tarfile.DIRTYPE
            archive.addfile(member)
        for upload in uploads:
            if isinstance(upload.source, bytes):
                member = _member(upload.path, owner, upload.mode, 0o644)
                member.size = len(upload.source)
                archive.addfile(member, io.BytesIO(upload.source))
            elif upload.source is not None:
                with upload.source.open("rb") as content:
                    about = os.fstat(content.fileno())
                    member = _member(upload.path, owner, upload.mode, modes.S_IMODE(about.st_mode) & 0o777)
                    member.size = about.st_size
                    archive.addfile(member, content)


def _member(path: PurePosixPath, owner: tuple[int, int], mode: int | None, otherwise: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(str(path).lstrip("/"))
    member.uid, member.gid = owner
    member.mode = (otherwise if mode is None else mode) & 0o1777
    return member

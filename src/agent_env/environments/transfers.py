"""Data on its way into and out of a server: seed files staged beside it, and exports saved here, whatever form their part has."""

from __future__ import annotations

import asyncio
import base64
import mimetypes
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

import httpx
from agent_env_sdk.wire.encoding import json_bytes
from agent_env_sdk.wire.names import DATA_OBJECTS

from agent_env.artifacts.fetching import download
from agent_env.artifacts.urls import NamedUrl
from agent_env.environments.faults import EnvironmentFailedError
from agent_env.errors import StorageError, TransferError, UserError
from agent_env.places import Upload

if TYPE_CHECKING:
    from agent_env.environments.client import EnvironmentClient
    from agent_env.places import Place

Json = Any
SERVER_FOLDER, WEBSITE_FOLDER = PurePosixPath("/data"), PurePosixPath("/tmp/data")
"""Where seed files are staged for a server, and for a website's backend (reference)."""
_JSON = "application/json"
_BYTES = "application/octet-stream"
_NAME_BYTES = 200
"""Of a file's name, so that every file system takes it."""


@dataclass(frozen=True, slots=True)
class Seed:
    """Seed data of one server: one file."""

    environment_name: str
    filename: str
    """A plain name."""
    source: Path
    """The file, on this machine."""

    @property
    def media_type(self) -> str:
        """By its extension."""
        return mimetypes.guess_type(self.filename)[0] or _BYTES

    @property
    def size_bytes(self) -> int:
        """How large it is."""
        return self.source.stat().st_size


async def staged(seed: Seed, place: Place, folder: PurePosixPath) -> dict[str, Json]:
    """Puts a seed's file beside its server, and makes the part that names it.

    Raises:
        TransferError: It can't be written there.
    """
    path = folder / seed.filename
    await place.put([Upload(path, seed.source, mode=0o644)])
    return {"kind": "file", "file": {"uri": f"file://{quote(str(path))}", "mimeType": seed.media_type, "name": seed.filename}}


async def inlined(seed: Seed) -> dict[str, Json]:
    """A part that holds a seed's file itself, for a server whose place is not ours to write in."""
    data = await asyncio.to_thread(seed.source.read_bytes)
    return {"kind": "file", "file": {"bytes": base64.b64encode(data).decode(), "mimeType": seed.media_type, "name": seed.filename}}


# exports


@dataclass(frozen=True, slots=True)
class Saved:
    """An exported part, as a file here."""

    path: Path
    name: str
    media_type: str
    object_url: str | None = None
    """Set when the server uploaded it where a grant let it, and nothing is at `path`: the path below the grant's root."""


async def save_part(client: EnvironmentClient, part: Mapping[str, Json], into: Path, *, name: str) -> Saved:
    """Saves an exported part as a file: data as JSON, inline bytes, or what its address serves.

    Args:
        client: Speaks with the server that exported it.
        part: The part.
        into: An existing folder of this machine.
        name: What the file is called where the part does not say, without an extension.

    Raises:
        EnvironmentFailedError: The part can't be read, or what it names can't be had.
        StorageError: It can't be written.
    """
    match part.get("kind"):
        case "data":
            return await _written(into / f"{name}.json", json_bytes(part.get("data")), _JSON)
        case "text":
            return await _written(into / f"{name}.txt", str(part.get("text") or "").encode("utf-8", "replace"), "text/plain")
        case "file" if isinstance(part.get("file"), dict):
            return await _save_file(client, part, into, name)
    raise EnvironmentFailedError(f"{client.name} exported a part that can't be read", concerns=client.name, reason="bad_part")


async def _save_file(client: EnvironmentClient, part: Mapping[str, Json], into: Path, name: str) -> Saved:
    file: Mapping[str, Json] = part["file"]
    media_type = str(file.get("mimeType") or _BYTES)
    called = _plain_name(file.get("name")) or f"{name}{mimetypes.guess_extension(media_type) or ''}"
    metadata = part.get("metadata")
    marker = metadata.get(DATA_OBJECTS) if isinstance(metadata, dict) else None
    uri = file.get("uri")
    if isinstance(marker, dict) and isinstance(marker.get("path"), str):
        return Saved(into / called, called, media_type, object_url=_relative(marker["path"], client))
    if isinstance(file.get("bytes"), str):
        try:
            data = base64.b64decode(file["bytes"], validate=True)
        except ValueError as error:
            raise EnvironmentFailedError(
                f"{client.name} exported a file that is no base64", concerns=client.name, reason="bad_part"
            ) from error
        return await _written(into / called, data, media_type)
    if not isinstance(uri, str) or not uri:
        raise EnvironmentFailedError(f"{client.name} exported a file without content", concerns=client.name, reason="bad_part")
    await _fetched(client, uri, into / called)
    return Saved(into / called, called, media_type)


def _plain_name(said: Json) -> str:
    """What a part calls its file, without folders; nothing where no file can be called that."""
    name = PurePosixPath(said).name if isinstance(said, str) else ""
    return name if name.isprintable() and name != ".." and len(name.encode()) <= _NAME_BYTES else ""


def _relative(path: str, client: EnvironmentClient) -> str:
    if "\\" in path or any(segment in {"", ".", ".."} for segment in path.split("/")):
        raise EnvironmentFailedError(f"{client.name} exported to {path!r}, which is no plain path", concerns=client.name, reason="bad_part")
    return path


async def _fetched(client: EnvironmentClient, uri: str, target: Path) -> None:
    """A path is the server's own; another http address is fetched as a task's is: never from this machine or its link."""
    seconds = client.limits.environment_load_most_seconds
    what = f"the export of {client.name}"
    try:
        scheme = urlsplit(uri).scheme
    except ValueError as error:
        raise EnvironmentFailedError(f"{what} is at no address: {uri!a}", concerns=client.name, reason="bad_part") from error
    if not scheme:
        async with client.request("GET", uri, what=what, seconds=seconds) as answer:
            await _streamed(answer, target, what, client)
        return
    if scheme not in {"http", "https"}:
        raise EnvironmentFailedError(f"{client.name} exported to {scheme}:, where nobody may look", concerns=client.name, reason="bad_part")
    if uri.startswith(f"{client.base_url}/"):
        path = uri.removeprefix(client.base_url)
        async with client.request("GET", path, what=what, seconds=seconds) as answer:
            await _streamed(answer, target, what, client)
        return
    try:
        await download([NamedUrl(uri, target.name)], target.parent, limits=client.limits)
    except (UserError, TransferError) as error:
        raise EnvironmentFailedError(f"{what} can't be had: {error}", concerns=client.name, reason="bad_part") from error


async def _streamed(answer: httpx.Response, target: Path, what: str, client: EnvironmentClient) -> None:
    name, left = client.name, client.limits.download_bytes
    if answer.status_code != httpx.codes.OK:
        message = f"{what} can't be had: status {answer.status_code}"
        raise EnvironmentFailedError(message, concerns=name, reason=f"http_{answer.status_code}", status=answer.status_code)
    try:
        with target.open("wb") as file:
            async for piece in answer.aiter_bytes():
                left -= len(piece)
                if left < 0:
                    message = f"{what} is larger than {client.limits.download_bytes} bytes"
                    raise EnvironmentFailedError(message, concerns=name, reason="too_large", hint="raise the limit download_bytes")
                await asyncio.to_thread(file.write, piece)
    except OSError as error:
        raise StorageError(f"{what} can't be written: {error.strerror}", concerns=str(target)) from error


async def _written(target: Path, data: bytes, media_type: str) -> Saved:
    try:
        await asyncio.to_thread(target.write_bytes, data)
    except OSError as error:
        raise StorageError(f"an export can't be written: {error.strerror}", concerns=str(target)) from error
    return Saved(target, target.name, media_type)


async def legacy_state(client: EnvironmentClient, into: Path, *, name: str) -> Saved:
    """The export of a server from before cards.

    Raises:
        EnvironmentFailedError: It has none, or what it answers is no JSON.
    """
    target, what = into / f"{name}.json", f"the state of {client.name}"
    async with client.request("GET", "/export-state", what=what, seconds=client.limits.environment_load_seconds) as answer:
        await _streamed(answer, target, what, client)
    with target.open("rb") as file:
        first = file.read(64).lstrip()[:1]
    if first not in {b"{", b"["}:
        raise EnvironmentFailedError(f"{what} is no JSON", concerns=client.name, reason="bad_state")
    return Saved(target, target.name, _JSON)

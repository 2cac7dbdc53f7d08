"""Reading seeds: whichever way a part carries its content, the author gets bytes or JSON.

A part may hold the content, or name a `file://` address in the staging folder, or an `https://` one. The staging folder is
`/data` and `/tmp/data`, or what `AGENT_ENV_DATA_ROOT` lists (separated by colons): an address that leads elsewhere is refused,
since whoever may load data could otherwise read the server's own files back.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import copy
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from agent_env_sdk.wire.errors import AgentEnvError
from agent_env_sdk.wire.parts import DataPart, FileBytes, FilePart, FileUri, TextPart

Part = TextPart | DataPart | FilePart
ROOT_VARIABLE: Final = "AGENT_ENV_DATA_ROOT"
ROOTS: Final = ("/data", "/tmp/data")
LIMIT_BYTES: Final = 4 * 1024**3
CHUNK_BYTES: Final = 1024 * 1024
CONNECT_SECONDS: Final = 30.0
IDLE_SECONDS: Final = 60.0


def read_bytes(part: Part, *, limit_bytes: int = LIMIT_BYTES) -> bytes:
    """A part's content. It blocks: call it from plain handlers, or `await load_bytes(part)` from async ones.

    Raises:
        AgentEnvError: The content can't be read, is longer than the limit, or lies outside the staging folder.
    """
    return b"".join(chunks(part, limit_bytes=limit_bytes))


def read_json(part: Part, *, limit_bytes: int = LIMIT_BYTES) -> Any:
    """A part's content as JSON; a part that holds an object gives the object. It blocks, like `read_bytes`.

    Raises:
        AgentEnvError: As `read_bytes`, or the content isn't JSON.
    """
    if isinstance(part, DataPart):
        return part.data
    try:
        return json.loads(read_bytes(part, limit_bytes=limit_bytes))
    except (ValueError, RecursionError) as error:
        raise AgentEnvError("invalid_seed", f"{_named(part)} is not JSON: {error}") from None


async def load_bytes(part: Part, *, limit_bytes: int = LIMIT_BYTES) -> bytes:
    """`read_bytes` for async handlers."""
    return await asyncio.to_thread(read_bytes, part, limit_bytes=limit_bytes)


async def load_json(part: Part, *, limit_bytes: int = LIMIT_BYTES) -> Any:
    """`read_json` for async handlers."""
    return await asyncio.to_thread(read_json, part, limit_bytes=limit_bytes)


def chunks(part: Part, *, limit_bytes: int = LIMIT_BYTES) -> Iterator[bytes]:
    """A part's content piece by piece, for seeds that don't fit into memory.

    Raises:
        AgentEnvError: As `read_bytes`.
    """
    left = limit_bytes
    for chunk in _pieces(part):
        left -= len(chunk)
        if left < 0:
            raise AgentEnvError("seed_too_large", f"{_named(part)} is longer than {limit_bytes} bytes", status=413)
        yield chunk


def staged(uri: str) -> Path:
    """The file that a `file://` address names, in the staging folder, links followed.

    Raises:
        AgentEnvError: It lies elsewhere, or there is none.
    """
    parts = urlsplit(uri)
    if parts.scheme != "file" or parts.netloc not in {"", "localhost"}:
        raise AgentEnvError("invalid_seed", f"{uri!r} is not a file on this server")
    roots = [Path(root).resolve() for root in os.environ.get(ROOT_VARIABLE, ":".join(ROOTS)).split(":") if root]
    try:
        path = Path(unquote(parts.path)).resolve(strict=True)
    except (OSError, ValueError):
        path = None
    if path is None or not path.is_file() or not any(path.is_relative_to(root) for root in roots):
        where = " or ".join(map(str, roots))
        raise AgentEnvError("invalid_seed", f"{uri!r} is no file under {where}", hint=f"stage it there, or set {ROOT_VARIABLE}")
    return path


@contextmanager
def atomic(environment: Any, *attributes: str) -> Iterator[None]:
    """All or nothing: if the block raises, the named attributes have their former values again.

    Args:
        environment: The object whose state is loaded.
        attributes: The names of what holds its state; copied deeply first.
    """
    before = {name: copy.deepcopy(getattr(environment, name)) for name in attributes}
    try:
        yield
    except BaseException:  # whatever ends a load, half of it must not stay
        for name, value in before.items():
            setattr(environment, name, value)
        raise


async def digest(parts: Sequence[Part]) -> list[str | None]:
    """SHA-256 of each part's content, in hexadecimal; None for what lies elsewhere or can't be read.

    An object's content is its JSON with sorted keys and without blanks.
    """
    return await asyncio.to_thread(lambda: [_digest(part) for part in parts])


def _digest(part: Part) -> str | None:
    if isinstance(part, FilePart) and isinstance(part.file, FileUri) and urlsplit(part.file.uri).scheme != "file":
        return None
    total = hashlib.sha256()
    try:
        for chunk in _pieces(part):
            total.update(chunk)
    except (AgentEnvError, OSError):
        return None
    return total.hexdigest()


def _pieces(part: Part) -> Iterator[bytes]:
    match part:
        case TextPart():
            yield part.text.encode(errors="surrogatepass")
        case DataPart():
            yield json.dumps(part.data, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode(errors="surrogatepass")
        case FilePart(file=FileBytes(bytes=text)):
            try:
                yield base64.b64decode(text, validate=True)
            except binascii.Error as error:
                raise AgentEnvError("invalid_seed", f"{_named(part)} is not base64: {error}") from None
        case FilePart(file=FileUri() as file):
            yield from _remote(file.uri) if urlsplit(file.uri).scheme == "https" else _local(staged(file.uri))


def _local(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as stream:
            while chunk := stream.read(CHUNK_BYTES):
                yield chunk
    except OSError as error:
        raise AgentEnvError("invalid_seed", f"{path} can't be read: {error.strerror}") from error


def _remote(url: str) -> Iterator[bytes]:
    import httpx

    where = urlsplit(url).hostname  # never the address itself: it carries the permission
    limits = httpx.Timeout(IDLE_SECONDS, connect=CONNECT_SECONDS)
    try:
        with httpx.stream("GET", url, timeout=limits, headers={"accept-encoding": "identity"}) as response:
            if response.status_code != httpx.codes.OK:
                raise AgentEnvError("seed_unavailable", f"{where} answered with status {response.status_code}", status=502)
            yield from response.iter_bytes(CHUNK_BYTES)
    except httpx.HTTPError as error:
        raise AgentEnvError("seed_unavailable", f"{where} can't be read: {type(error).__name__}", status=502, retryable=True) from error


def _named(part: Part) -> str:
    name = part.file.name if isinstance(part, FilePart) else None
    return f"the {part.kind} part {name!r}" if name else f"the {part.kind} part"

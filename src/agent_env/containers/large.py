"""Large files out of a container by its engine's archive, which costs a fraction of what the helper's stream through an exec does.

An engine looks at a container from outside: of what is mounted inside it knows nothing, and links may lead it elsewhere. So the helper says
meanwhile what the file is, and bytes that are not that file's are thrown away.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
import secrets
import tarfile
from collections import deque
from collections.abc import AsyncIterator, Coroutine, Sequence
from itertools import islice
from pathlib import Path, PurePosixPath

import aiohttp

from agent_env.containers.engine import Engine
from agent_env.defaults import MIB
from agent_env.errors import AgentEnvError, DeadlineError
from agent_env.waiting import shielded

_BLOCK = MIB
"""What is hashed and written at a time, off the event loop. All that an archive says of its first file is within the first."""
_MOST_AT_ONCE = 1024
"""Pieces that Linux writes in one call (`IOV_MAX`)."""


async def copy_out(
    engine: Engine, container_id: str, path: PurePosixPath, into: Path, *, size: int, said: Coroutine[object, object, str | None]
) -> Path | None:
    """Copies one regular file into a fresh one of `into`, in constant memory.

    Args:
        engine: The container's engine.
        container_id: The container.
        path: Where the file is.
        into: Where the fresh file goes.
        size: Its bytes, as the place tells them.
        said: Finds out the sha256 of the file as the place sees it, in hexadecimal digits; runs while the file is copied.

    Returns:
        None where the engine does not give that very file, for whatever reason. Nothing of it is left then.

    Raises:
        DeadlineError: It took longer than `Limits.transfer_seconds`.
        AgentEnvError: What `said` raises.
    """
    target = into / secrets.token_hex(8)
    vouching, whole = asyncio.ensure_future(said), False
    try:
        found = await _written(engine, container_id, path, size, target)
        whole = found is not None and found == await vouching
    except DeadlineError:
        raise
    except (AgentEnvError, UnicodeEncodeError):  # the latter: a name that no address can carry
        if vouching.done():
            vouching.result()
    finally:
        if not whole:
            target.unlink(missing_ok=True)
        vouching.cancel()
        await asyncio.wait([vouching])
        if not vouching.cancelled():
            vouching.exception()  # marks it as seen: what failed first is on its way to the caller
    return target if whole else None


async def _written(engine: Engine, container_id: str, path: PurePosixPath, size: int, target: Path) -> str | None:
    limit = engine.limits.transfer_seconds
    async with engine.asking(f"copying {path} out of a container", seconds=limit) as docker:
        where = engine.url(f"containers/{container_id}/archive")
        async with docker.session.get(where, params={"path": str(path)}, read_bufsize=_BLOCK) as answer:
            if answer.status != 200:
                return None
            blocks = _blocks(answer.content)
            block: list[bytes] = await anext(blocks, [])
            first = b"".join(block)
            start = _start_of(first, size)
            if start is None:
                return None
            with target.open("xb", buffering=0) as file:
                sink = _Sink(file, size)
                sink.keep([memoryview(first)[start:]])
                await _kept(blocks, sink, seconds=limit, what=f"writing {target}")
                return None if sink.left else sink.total.hexdigest()


async def _kept(blocks: AsyncIterator[list[bytes]], sink: _Sink, *, seconds: float, what: str) -> None:
    """Hashes and writes one block while the next arrives, until the file is whole or nothing more comes."""
    writing: asyncio.Future[None] | None = None
    try:
        async for block in blocks:
            if writing is not None:
                await asyncio.wait([writing])
                writing.result()
            if not sink.left:  # what follows a file in its archive is nothing of it
                break
            writing = asyncio.ensure_future(asyncio.to_thread(sink.keep, block))
    finally:
        if writing is not None:
            # The thread is waited for also while the caller is being cancelled: the file must not be closed under it.
            await shielded(_over(writing), seconds=seconds, what=what)


async def _over(writing: asyncio.Future[None]) -> None:
    await writing


async def _blocks(content: aiohttp.StreamReader) -> AsyncIterator[list[bytes]]:
    """What arrives, in as few turns as its amount allows."""
    pieces: list[bytes] = []
    have = 0
    async for piece in content.iter_any():
        pieces.append(piece)
        have += len(piece)
        if have >= _BLOCK:
            yield pieces
            pieces, have = [], 0
    if pieces:
        yield pieces


def _start_of(first: bytes, size: int) -> int | None:
    """Where the content of an archive's only member begins; None where it is no regular file of that size."""
    try:
        with tarfile.open(fileobj=io.BytesIO(first), mode="r:", encoding="utf-8", errors="surrogateescape") as archive:
            member = archive.next()
    except tarfile.TarError:
        return None
    return member.offset_data if member is not None and member.isreg() and member.size == size else None


class _Sink:
    """Hashes and writes what is a file's of what arrives."""

    def __init__(self, file: io.FileIO, size: int) -> None:
        self.left = size
        self.total = hashlib.sha256()
        self._file = file

    def keep(self, pieces: Sequence[bytes | memoryview]) -> None:
        views = deque[memoryview]()
        for piece in pieces:
            view = memoryview(piece)[: self.left]
            self.left -= len(view)
            self.total.update(view)
            views.append(view)
        while views:
            written = os.writev(self._file.fileno(), list(islice(views, _MOST_AT_ONCE)))
            while views and written >= len(views[0]):
                written -= len(views.popleft())
            if written:
                views[0] = views[0][written:]

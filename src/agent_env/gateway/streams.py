"""The stream on which an agent's client hears what belongs to none of its requests: that lists changed, and resources that it follows."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping

from agent_env_sdk.wire.access import ToolAccess

from agent_env.gateway import sse
from agent_env.gateway.asgi import EVENTS, Incoming, first_of
from agent_env.gateway.catalogue import Catalogue
from agent_env.gateway.following import Following
from agent_env.gateway.hearing import UPDATED
from agent_env.gateway.listing import KINDS, Kind
from agent_env.gateway.passing import Passing
from agent_env.gateway.ruling import Ruling
from agent_env.gateway.tokens import SessionId

Seen = Mapping[Kind, list[str]]


class Streams:
    """Those that are open.

    Args:
        catalogue: What there is.
        ruling: Who may see it.
        following: Who wants to be told what.
        passing: Whether a session may, now, hear of a resource.
    """

    def __init__(self, catalogue: Catalogue, ruling: Ruling, following: Following, passing: Passing) -> None:
        self._catalogue = catalogue
        self._ruling = ruling
        self._following = following
        self._passing = passing
        self._open: dict[str, set[_Stream]] = defaultdict(set)
        following.news = self._wake

    def __len__(self) -> int:
        """How many there are."""
        return sum(map(len, self._open.values()))

    def end(self, key: str) -> None:
        """A session is over."""
        for stream in self._open.get(key, ()):
            stream.ended = True
            stream.wake.set()

    async def serve(self, request: Incoming, session: SessionId, *, draining: Callable[[], bool], keep_alive_seconds: float) -> None:
        """Tells a client what there is to tell, until it or the session is gone, or no stream is served any more."""
        await request.start(200, [(key.encode(), value.encode()) for key, value in EVENTS])
        stream = _Stream()
        self._open[session.key].add(stream)
        gone = asyncio.ensure_future(request.gone())
        try:
            await request.more(sse.KEEP_ALIVE)
            seen = self._seen(session)
            while not (stream.ended or gone.done() or draining()):
                change = self._catalogue.change
                stream.wake.clear()
                now = self._seen(session)
                async for message in self._news(session, seen, now):
                    await request.more(sse.encode(message))
                seen = now
                if await first_of(change.wait(), stream.wake.wait(), asyncio.shield(gone), seconds=keep_alive_seconds) is None:
                    await request.more(sse.KEEP_ALIVE)
            await request.more(b"", last=True)
        finally:
            gone.cancel()
            self._open[session.key].discard(stream)
            if not self._open[session.key]:
                del self._open[session.key]

    async def _news(self, session: SessionId, seen: Seen, now: Seen) -> AsyncIterator[str]:
        for changed in dict.fromkeys(kind.changed for kind in KINDS if now[kind] != seen[kind]):
            yield json.dumps({"jsonrpc": "2.0", "method": changed}, separators=(",", ":"))
        for uri in self._following.take_news(session.key):
            if self._passing.may_hear(session, uri):
                yield json.dumps({"jsonrpc": "2.0", "method": UPDATED, "params": {"uri": uri}})

    def _seen(self, session: SessionId) -> Seen:
        access: ToolAccess = self._ruling.access
        return {kind: [entry.raw for entry in self._catalogue.visible(session.role, access, kind)] for kind in KINDS}

    def _wake(self, key: str) -> None:
        for stream in self._open.get(key, ()):
            stream.wake.set()


class _Stream:
    def __init__(self) -> None:
        self.wake = asyncio.Event()
        self.ended = False

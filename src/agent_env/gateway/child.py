"""A server that speaks MCP: one session with it, its own circuit, what it lists. What happens to it happens to no other.

Messages pass as text. A request is sent again only where the server can't have run it: it never left, or the server answered that it
does not know the session.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any

from agent_env.gateway.backend import Backend
from agent_env.gateway.defaults import GatewayLimits
from agent_env.gateway.exchange import ExchangeError, TooLargeError
from agent_env.gateway.hearing import Hearing
from agent_env.gateway.listing import KINDS, TOOLS, Kind, Listed, read_list
from agent_env.gateway.nursery import Nursery, log
from agent_env.gateway.session import Audience, ChildError, Fault, Reply, Session, StreamPlace, UnknownSessionError, open_session

_CAPABILITIES = frozenset(kind.capability for kind in KINDS)
Wish = tuple[str, str, str]
"""Capability that it takes, method, parameters: something that each new session with a server is asked for."""


class Child:
    """See the module. `run` must run for it to be found again after a fault.

    Args:
        backend: Where it is.
        limits: How long it may take.
        nursery: Where what nobody waits for is done.
        changed: Called when what it lists, or whether it is there, changed.
    """

    def __init__(self, backend: Backend, limits: GatewayLimits, nursery: Nursery, changed: Callable[[], None]) -> None:
        self.name = backend.server.name
        self.backend = backend
        self.lists: Mapping[Kind, tuple[Listed, ...]] = dict.fromkeys(KINDS, ())
        self.capabilities: Mapping[str, Any] | None = None
        """What it says that it can do; None until it was there once."""
        self.wishes: Callable[[], Sequence[Wish]] = tuple
        """What each new session is asked for besides its lists."""
        self.updated: Callable[[str], None] = lambda _uri: None
        """Told the URI of a resource of this server that changed."""
        self.ready = False
        self.error: str | None = None
        self.opened = 0
        """Sessions so far."""
        self.settled = asyncio.Event()
        """Whether it is there is known."""
        self._limits = limits
        self._nursery = nursery
        self._changed = changed
        self._session: Session | None = None
        self._opening = asyncio.Lock()
        self._look = asyncio.Event()
        self._stale: set[str] = set()
        """Capabilities whose lists may have changed; none of them means that all may have."""
        self._hurry = asyncio.Event()
        self._failures = 0
        self._retry_at = 0.0
        self._ids = count(1)
        self._hearing = Hearing(
            self.name, nursery, most=limits.server_questions, tell=self._tell, changed=self._outdated, updated=self._news
        )

    @property
    def tools(self) -> tuple[Listed, ...]:
        """Its tools."""
        return self.lists[TOOLS]

    def can(self, capability: str) -> bool:
        """Whether it says that it has such a thing; of one that was never there that is not known."""
        return self.capabilities is None or capability in self.capabilities

    def status(self) -> dict[str, Any]:
        """What health says of it."""
        return {
            "name": self.name,
            "ready": self.ready,
            "required": self.backend.server.required,
            "error": self.error,
            **{kind.key: len(items) for kind, items in self.lists.items()},
            "sessions_opened": self.opened,
        }

    # requests

    async def request(
        self,
        method: str,
        params: str | None,
        *,
        seconds: float,
        audience: Audience | None = None,
        progress: tuple[str, str] | None = None,
    ) -> Reply:
        """Asks the server.

        Args:
            method: The MCP method.
            params: Its parameters, as text.
            seconds: How long the answer may take.
            audience: Whom the server may speak to meanwhile.
            progress: The token that stands in `params`, and the one (as text) that the caller knows.

        Raises:
            ChildError: There is no answer.
        """
        with self._hearing.attending(audience, progress):
            try:
                async with asyncio.timeout(seconds):
                    return await self._request(method, params, audience)
            except TimeoutError as error:
                raise ChildError(f"server '{self.name}' did not answer {method} within {seconds:g} s", Fault.TIMEOUT) from error

    async def _request(self, method: str, params: str | None, audience: Audience | None) -> Reply:
        for last in (False, True):
            session = await self._current()
            number = next(self._ids)
            try:
                return await session.ask(number, method, params, audience)
            except UnknownSessionError as error:
                self._forget(session)
                if last:
                    raise ChildError(f"server '{self.name}' forgot its session again: {error}", Fault.UNREACHABLE) from error
            except ExchangeError as error:
                self._look.set()
                if error.sent:
                    raise ChildError(f"server '{self.name}': {error}; whether the call took effect is not known", Fault.LOST) from error
                self._forget(session)
                if last:
                    raise ChildError(f"server '{self.name}' can't be reached: {error}", Fault.UNREACHABLE) from error
            except TooLargeError as error:
                raise ChildError(f"server '{self.name}': {error}", Fault.TOO_LARGE) from error
            except asyncio.CancelledError:
                self._nursery.soon(self._tell(session, _cancelled(number)), f"telling '{self.name}' of a cancellation")
                raise
        raise AssertionError("unreachable")

    # the session

    async def run(self) -> None:
        """Opens the session, keeps what the server lists, and comes back after each fault."""
        nonsense = 0
        while True:
            try:
                session = await self._current(patient=True)
                await self._discover(session)
                nonsense = 0
                if self._session is session:  # a server that forgot it has another by now, which is told everything in its own turn
                    await self._wish(session)
                    await self._watch(session)
            except ChildError as error:
                self._down(error)
                nonsense = nonsense + 1 if error.fault is Fault.INVALID else 0
            except Exception as error:  # noqa: BLE001 - whatever a server sends, it is looked for again, and who waits for it is told
                log.exception("keeping in touch with '%s'", self.name)
                self._down(ChildError(f"server '{self.name}' sent what can't be read ({type(error).__name__})", Fault.INVALID))
                nonsense += 1
            self.settled.set()
            if not self.ready:
                # One that is away is found at once when it is back; one that is there and answers nonsense is asked ever more rarely.
                least = min(self._limits.reopen_first_seconds * 2 ** min(nonsense, 10), self._limits.reopen_max_seconds)
                await self._pause(max(self._retry_at - asyncio.get_running_loop().time(), least))

    def look_again(self) -> None:
        """Has everything listed anew, and a server that was away tried at once."""
        self._outdated(*_CAPABILITIES)
        self._hurry.set()

    def _outdated(self, *capabilities: str) -> None:
        self._stale.update(capabilities)
        self._look.set()

    async def _discover(self, session: Session) -> None:
        self._look.clear()
        stale, self._stale = self._stale or set(_CAPABILITIES), set()
        said = session.capabilities
        lists = dict(self.lists)
        try:
            for kind in KINDS:
                if kind.capability not in stale:
                    continue
                if kind is not TOOLS and kind.capability not in said:
                    lists[kind] = ()
                    continue
                lenient = kind is not TOOLS or (bool(said) and kind.capability not in said)
                lists[kind] = await read_list(self.name, kind, self._list, pages=self._limits.list_pages, lenient=lenient)
        except ChildError:
            self._stale |= stale
            raise
        changed = not self.ready or any(
            [item.raw for item in items] != [item.raw for item in self.lists[kind]] for kind, items in lists.items()
        )
        self.lists, self.capabilities, self.ready, self.error = lists, said, True, None
        self.settled.set()
        if changed:
            self._changed()

    def _news(self, uri: str) -> None:
        self.updated(uri)

    async def _list(self, method: str, params: str | None) -> Reply:
        return await self.request(method, params, seconds=self._limits.list_seconds)

    async def _wish(self, session: Session) -> None:
        """Tells a new session what an earlier one was told. A server that refuses is none the worse."""
        for capability, method, params in self.wishes():
            if capability in session.capabilities:
                await self.wish(method, params)

    async def wish(self, method: str, params: str) -> None:
        """Asks for something that nobody waits for; that it could not be had is told in the log alone."""
        try:
            reply = await self._list(method, params)
        except ChildError as error:
            log.info("%s", error)
            return
        if reply.error is not None:
            log.info("'%s' refused %s: %s", self.name, method, reply.error)

    async def _watch(self, session: Session) -> None:
        """Until the session is replaced or lost: lists again what may have changed, and asks now and then whether somebody is there."""
        listening = self._nursery.soon(self._listen(session), f"listening to '{self.name}'")
        try:
            while self._session is session:
                try:
                    async with asyncio.timeout(self._limits.keep_alive_seconds):
                        await self._look.wait()
                except TimeoutError:
                    await self.request("ping", None, seconds=self._limits.list_seconds)
                else:
                    await self._discover(session)
        finally:
            listening.cancel()

    async def _listen(self, session: Session) -> None:
        """The server's own stream, where it has one: says when its lists change, and ends when the server does."""
        place = StreamPlace()
        while self._session is session:
            try:
                if not await session.listen(place):
                    return
            except UnknownSessionError:  # or a server that has no such stream, and says so as some do: asking for its lists tells which
                self._look.set()
                return
            except (ExchangeError, TooLargeError) as error:
                log.info("the stream of '%s' ended: %s", self.name, error)
                self._look.set()
                if isinstance(error, ExchangeError) and not error.sent:
                    self._forget(session)
                    return
            await self._pause(max(place.retry_seconds(self._limits.resume_seconds), self._limits.reopen_first_seconds))

    async def _current(self, *, patient: bool = False) -> Session:
        """The session; opened when there is none. One opens, the others wait for that one."""
        if self._session is not None:
            return self._session
        async with self._opening:
            if self._session is not None:
                return self._session
            now = asyncio.get_running_loop().time()
            if not patient and now < self._retry_at:
                raise ChildError(f"server '{self.name}' can't be reached: {self.error}", Fault.UNREACHABLE)
            try:
                self._session = await self._open()
            except (ExchangeError, ChildError, TooLargeError, TimeoutError) as error:
                raise self._refused(error, now) from error
            self._failures, self._retry_at = 0, 0.0
            self.opened += 1
            self._outdated(*_CAPABILITIES)
            return self._session

    def _refused(self, error: Exception, began: float) -> ChildError:
        self._failures += 1
        now = asyncio.get_running_loop().time()
        pause = min(self._limits.reopen_first_seconds * 2 ** (self._failures - 1), self._limits.reopen_max_seconds)
        # Where being refused costs nothing, the next caller may look again at once; where it took long, nobody waits for that again soon.
        quick = now - began < self._limits.reopen_first_seconds
        self._retry_at = now + (self._limits.reopen_first_seconds if quick else pause)
        text = f"no answer within {self._limits.initialize_seconds:g} s" if isinstance(error, TimeoutError) else str(error)
        refused = (
            error if isinstance(error, ChildError) else ChildError(f"server '{self.name}' can't be reached: {text}", Fault.UNREACHABLE)
        )
        self._down(refused)
        return ChildError(str(refused), Fault.UNREACHABLE)

    async def _open(self) -> Session:
        endpoint = await self.backend.mcp_endpoint()
        async with asyncio.timeout(self._limits.initialize_seconds):
            return await open_session(self.name, endpoint, self._limits, self._hearing.heard, self._pause)

    async def _tell(self, session: Session, message: str) -> None:
        """Sends what has no answer. A server that does not take it is none the worse."""
        try:
            async with asyncio.timeout(self._limits.notify_seconds):
                await session.tell(message)
        except (ExchangeError, TooLargeError, TimeoutError) as error:
            log.info("'%s' was not told: %s", self.name, error)

    async def close(self) -> None:
        """Ends the session with the server."""
        session, self._session = self._session, None
        if session is not None and session.id is not None:
            try:
                async with asyncio.timeout(self._limits.initialize_seconds):
                    await session.end()
            except (ExchangeError, TooLargeError, TimeoutError):
                log.info("'%s' was not told that its session ends", self.name)
        self.backend.close()

    def _forget(self, session: Session) -> None:
        if self._session is session:
            self._session = None
            self._look.set()

    def _down(self, error: ChildError) -> None:
        was = self.ready
        self.ready, self.error = False, str(error)
        if was:
            log.warning("%s", error)
            self._changed()

    async def _pause(self, seconds: float) -> None:
        """Waits so long, or until somebody asks for the server."""
        self._hurry.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._hurry.wait()
        except TimeoutError:
            return


def _cancelled(number: int) -> str:
    return f'{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{number},"reason":"cancelled"}}}}'

"""The keeper's process: one an installation, told by its clients to look at a place's record, gone when there is nothing to carry."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import logging
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent_env.defaults import Limits
from agent_env.errors import AgentEnvError, StorageError, UsageError
from agent_env.host import socket_address
from agent_env.keeper.carrier import Carrier
from agent_env.keeper.outside import Outside, Refusal, Resolve
from agent_env.keeper.reaching import close_engines
from agent_env.keeper.records import Records
from agent_env.keeper.refusals import Refusals
from agent_env.keeper.splice import Pipe
from agent_env.keeper.wiring import relay_token
from agent_env.redaction import redacting_filter
from agent_env.stores.owners import Owner

if TYPE_CHECKING:
    from agent_env.keeper.models import Models

PROTOCOL = 1
"""Of the control socket. A keeper of another one is asked to go by whoever finds it."""
SOCKET, LOCK, WHO = "keeper.sock", "keeper.lock", "keeper.json"
_LINE_BYTES = 64 << 10

Answers = AsyncIterator[Mapping[str, Any]]


class Keeper:
    """Carries for every place that has a record."""

    def __init__(self, state_root: Path, *, limits: Limits, resolve: Resolve | None = None) -> None:
        self._state_root = state_root
        self._limits = limits
        self._records = Records(state_root)
        self._outside = Outside(limits, resolve)
        self._models: list[Models] = []
        self._carriers: dict[str, tuple[Carrier, asyncio.Task[None]]] = {}
        self._refusals: dict[str, Refusals] = {}
        self._busy = 0
        self._changed = asyncio.Event()
        self._stopping = False
        self._group = asyncio.TaskGroup()
        self._callers: set[asyncio.Task[None]] = set()

    async def serve(self, ready: Callable[[], None]) -> bool:
        """Serves until there is nothing to carry for `keeper_idle_seconds`, or it is asked to stop.

        Args:
            ready: Called once callers can connect.

        Returns:
            False when another keeper of this installation lives.

        Raises:
            StorageError: The state folder can't be used.
        """
        self._records.make()
        with _only_one(self._records.folder / LOCK) as alone:
            if not alone:
                return False
            (self._records.folder / WHO).write_text(json.dumps({**Owner.this_process().to_json(), "protocol": PROTOCOL}))
            try:
                async with self._group, _server(self._records.folder / SOCKET, self._call):
                    for place in self._records.places():
                        self._look(place)
                    ready()
                    await self._until_idle()
                    self._stopping = True
                    self._end_all()
            finally:
                (self._records.folder / WHO).unlink(missing_ok=True)
                self._outside.close()
                for models in self._models:
                    await models.aclose()
                await close_engines()
        return True

    async def _until_idle(self) -> None:
        while not self._stopping:
            self._changed.clear()
            idle = not self._carriers and not self._busy
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._limits.keeper_idle_seconds):
                    await self._changed.wait()
            if not self._changed.is_set() and (idle or self._forsaken()):
                return

    def _forsaken(self) -> bool:
        """The state folder was removed, so nobody can find this keeper any more."""
        return not (self._records.folder / WHO).exists()

    def _end_all(self) -> None:
        for _, task in self._carriers.values():
            task.cancel()
        for task in self._callers:
            task.cancel()

    # Places

    def _look(self, place: str) -> Carrier | None:
        """Makes what is carried for a place what its record says. Returns its carrier; None when nothing is to be carried."""
        carried = self._records.read(place)
        if carried is None or carried.over:
            self._records.remove(place)
            carried = None
        known = self._carriers.get(place)
        if known is not None:
            if known[0].carried == carried and not known[1].done():
                return known[0]
            known[1].cancel()
            del self._carriers[place]
        self._changed.set()
        if carried is None:
            self._refusals.pop(place, None)
            return None
        heard = self._refusals.setdefault(place, Refusals())
        token = relay_token(self._state_root, place)
        carrier = Carrier(carried, token, outside=self._outside, limits=self._limits, tell=heard.add, models=self._serve_models)
        before = known[1] if known is not None else None
        self._carriers[place] = carrier, self._group.create_task(self._carry(place, carrier, before))
        return carrier

    async def _carry(self, place: str, carrier: Carrier, before: asyncio.Task[None] | None) -> None:
        """Carries, once whoever did it before has let go of its ports."""
        if before is not None:
            await asyncio.wait({before})
        await carrier.run()
        known = self._carriers.get(place)
        if known is not None and known[0] is carrier:  # it ended by itself: the place is gone, or can't be carried for
            del self._carriers[place]
            self._records.remove(place)
            self._changed.set()

    # Models

    def _broker(self) -> Models:
        """The model broker, made when it is first needed: most keepers carry nothing for models."""
        if not self._models:
            from agent_env.keeper.models import Models

            self._models.append(Models(self._state_root, self._limits))
            if logging.lastResort is not None:
                logging.lastResort.addFilter(redacting_filter(self._models[0].redactor))
        return self._models[0]

    async def _serve_models(self, pipe: Pipe) -> None:
        await self._broker().serve(pipe)

    async def _tell_models(self, request: Mapping[str, Any]) -> Answers:
        """Learns of endpoints. Whoever tells stays connected, and so hears at once that a keeper went, and tells the next one."""
        self._busy += 1
        self._changed.set()
        try:
            await self._broker().tell(str(request["database"]), request["endpoints"])
            port = await self._broker().listen() if request.get("listen") else None
            yield {"ok": True, "port": port}
            await asyncio.Event().wait()
        finally:
            self._busy -= 1
            self._changed.set()

    # Callers

    async def _call(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is None or self._stopping:
            writer.close()
            return
        self._callers.add(task)
        try:
            await self._requests(reader, writer)
        except (ConnectionError, ValueError, asyncio.CancelledError):
            pass  # the caller went away, sent a line beyond the reader's limit, or the keeper ends: nobody waits for this task
        finally:
            self._callers.discard(task)
            writer.close()

    async def _requests(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answers one after the other. A caller that goes, or asks anew, wants no more of the answer before."""
        text = await reader.readline()
        while text and not self._stopping:
            answer = asyncio.ensure_future(self._answer(text, writer))
            following = asyncio.ensure_future(reader.readline())
            try:
                await asyncio.wait({answer, following}, return_when=asyncio.FIRST_COMPLETED)
                if answer.done():
                    answer.result()
                text = await following
            finally:
                for task in (answer, following):
                    task.cancel()
                await asyncio.gather(answer, following, return_exceptions=True)

    async def _answer(self, text: bytes, writer: asyncio.StreamWriter) -> None:
        try:
            request = json.loads(text)
            verb = _VERBS.get(request.get("do", "")) if isinstance(request, dict) else None
            if verb is None:
                raise UsageError("that is no request that this keeper knows", hint="it may be of another version of agent-env")
            async for answer in verb(self, request):
                writer.write(_line(answer))
                await writer.drain()
        except ValueError as error:
            writer.write(_line({"error": {"code": "usage", "message": f"not a request: {error}"}}))
        except AgentEnvError as error:
            writer.write(_line({"error": {"code": error.code, "message": error.message}}))
        await writer.drain()

    async def _sync(self, request: Mapping[str, Any]) -> Answers:
        self._busy += 1
        try:
            carrier = self._look(str(request["place"]))
            if carrier is not None:
                await carrier.ready()
            yield {"ok": True, "carried": carrier is not None}
        finally:
            self._busy -= 1
            self._changed.set()

    async def _watch(self, request: Mapping[str, Any]) -> Answers:
        place = str(request["place"])
        heard = self._refusals.setdefault(place, Refusals())
        try:
            yield {"ok": True}
            while True:
                yield {"refused": _plain(await heard.next())}
        finally:
            if place not in self._carriers:
                self._refusals.pop(place, None)

    async def _rest(self, request: Mapping[str, Any]) -> Answers:
        heard = self._refusals.get(str(request["place"]))
        yield {"ok": True, "refused": [_plain(refusal) for refusal in heard.rest()] if heard is not None else []}

    async def _status(self, _: Mapping[str, Any]) -> Answers:
        places = {
            place: {"connections": carrier.open, "refused": self._refusals[place].count if place in self._refusals else 0}
            for place, (carrier, _) in self._carriers.items()
        }
        yield {"ok": True, "protocol": PROTOCOL, "pid": os.getpid(), "places": places}

    async def _stop(self, _: Mapping[str, Any]) -> Answers:
        self._stopping = True
        self._changed.set()
        yield {"ok": True}


_VERBS: Mapping[str, Callable[[Keeper, Mapping[str, Any]], Answers]] = {
    "sync": Keeper._sync,
    "watch": Keeper._watch,
    "rest": Keeper._rest,
    "models": Keeper._tell_models,
    "status": Keeper._status,
    "stop": Keeper._stop,
}


@contextmanager
def _only_one(path: Path) -> Iterator[bool]:
    """Holds the installation's lock. Says False when another process holds it; the kernel frees it when its holder dies."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield True
    except BlockingIOError:
        yield False
    finally:
        os.close(handle)


@asynccontextmanager
async def _server(path: Path, call: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]) -> AsyncIterator[None]:
    """Listens at a path of any length, which nobody but the holder of the lock makes or removes."""
    server = await asyncio.start_unix_server(call, sock=_bound(path), limit=_LINE_BYTES)
    try:
        yield
    finally:
        _remove(path)
        server.close()


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)


def _bound(path: Path) -> socket.socket:
    _remove(path)
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with socket_address(path) as address:
            made.bind(address)
        path.chmod(0o600)
    except OSError as error:
        made.close()
        raise StorageError(f"can't listen at {path}: {error.strerror}", concerns=str(path)) from error
    return made


def _plain(refusal: Refusal) -> Mapping[str, Any]:
    return {"host": refusal.host, "port": refusal.port, "why": refusal.why}


def _line(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"

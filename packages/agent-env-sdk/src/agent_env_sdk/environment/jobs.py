"""Loads as operations: started once, watched, cancelled, and rolled back if they fail (`urn:agentenv:load-jobs/v1`).

A load by `data/add` is one long request: when it breaks nobody knows what happened. Here the request only starts the load.
Whoever lost the connection asks again under the same key and finds the operation; `status` waits for news instead of polling.

    start   POST {"parts": [...], "reset": bool, "rollback": bool, "key": str}
    status  GET  ?operation=ID[&seen=VERSION&wait=SECONDS]
    cancel  POST {"operation": ID}

Each answers `{"operation", "key", "state": "running" | "done" | "failed" | "cancelled", "progress": {"done", "total", "message"},
"digests": [sha256 | null, ...], "error": {"code", "message"} | null, "rolled_back": bool | null, "version": int}`.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import anyio
import anyio.abc

from agent_env_sdk.wire.card import Extension
from agent_env_sdk.wire.errors import AgentEnvError
from agent_env_sdk.wire.names import EXTENSIONS_PATH, GET, LOAD_JOBS, RESET
from agent_env_sdk.wire.parts import dump_parts
from agent_env_sdk.wire.rpc import RpcError

from .calling import Raised
from .context import LoadContext
from .data_plane import DataPlane, Parts, read_parts
from .seeds import digest

KEPT: Final = 64
"""Ended operations that can still be asked for."""
WAIT_SECONDS: Final = 60.0
"""The longest that `status` waits for news."""
PATH: Final = f"{EXTENSIONS_PATH}/load-jobs"

State = Literal["running", "done", "failed", "cancelled"]


def _method(verb: str, op: str, required: str, **properties: str) -> dict[str, Any]:
    request = {"type": "object", "properties": {name: {"type": kind} for name, kind in properties.items()}, "required": [required]}
    return {"method": verb, "endpoint": f"{PATH}/{op}", "request": request}


LOAD_JOBS_EXTENSION: Final = Extension(
    uri=LOAD_JOBS,
    description="Loads as operations that can be watched, cancelled and rolled back.",
    params={
        "features": ["reset", "rollback", "key", "wait", "digests"],
        "methods": {
            "start": _method("POST", "start", "parts", parts="array", reset="boolean", rollback="boolean", key="string"),
            "status": _method("GET", "status", "operation", operation="string", seen="integer", wait="number"),
            "cancel": _method("POST", "cancel", "operation", operation="string"),
        },
    },
)


@dataclass(slots=True)
class Operation:
    """One load."""

    id: str
    key: str
    parts: Parts
    reset: bool
    rollback: bool
    load: LoadContext = field(default_factory=LoadContext)
    state: State = "running"
    digests: list[str | None] | None = None
    error: dict[str, Any] | None = None
    rolled_back: bool | None = None
    before: Parts | None = None
    """What was there, while it may have to be restored."""
    version: int = 0
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    news: asyncio.Event = field(default_factory=asyncio.Event)
    fingerprint: str = ""
    """By which the same request is known again."""

    def __post_init__(self) -> None:
        asked = json.dumps([dump_parts(self.parts), self.reset, self.rollback], sort_keys=True)
        self.fingerprint = hashlib.sha256(asked.encode()).hexdigest()

    def status(self) -> dict[str, Any]:
        """As the wire shows it."""
        return {
            "operation": self.id,
            "key": self.key,
            "state": self.state,
            "progress": self.load.progress.to_json(),
            "digests": self.digests,
            "error": self.error,
            "rolled_back": self.rolled_back,
            "version": self.version,
        }

    def end(self, state: State) -> None:
        """Settles it; what it loaded isn't kept."""
        self.state, self.parts, self.before = state, [], None
        self.changed()

    def changed(self) -> None:
        """Wakes whoever waits for news."""
        self.version += 1
        self.news.set()
        self.news = asyncio.Event()


class Loads:
    """The loads of one environment.

    Args:
        plane: The data that they load into.
        tasks: What owns the operations while the server runs.
    """

    def __init__(self, plane: DataPlane, tasks: anyio.abc.TaskGroup) -> None:
        self._plane = plane
        self._tasks = tasks
        self._operations: dict[str, Operation] = {}

    async def start(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Starts a load; the same key finds the one that was started under it.

        Raises:
            AgentEnvError: The parts can't be read, or the key belongs to another load.
        """
        try:
            parts = read_parts(body)
        except RpcError as error:
            raise AgentEnvError("invalid_params", error.data["detail"]) from error
        key = str(body.get("key") or uuid.uuid4().hex)
        wanted = Operation(uuid.uuid4().hex, key, parts, body.get("reset") is True, body.get("rollback") is True)
        known = next((each for each in self._operations.values() if each.key == key), None)
        if known is not None:
            if known.fingerprint != wanted.fingerprint:
                raise AgentEnvError("key_reused", f"the key {key!r} was used for another load", status=409, hint="use a key a load")
            return known.status()
        if wanted.reset and RESET not in self._plane.handlers:
            raise AgentEnvError("unsupported", "this environment does not serve data/reset", status=501)
        loop = asyncio.get_running_loop()

        def told() -> None:
            loop.call_soon_threadsafe(wanted.changed)

        wanted.load = LoadContext(told)
        self._forget()
        self._operations[wanted.id] = wanted
        self._tasks.start_soon(self._run, wanted)
        return wanted.status()

    async def status(self, operation: str, seen: int | None, wait: float) -> dict[str, Any]:
        """How a load stands, after the first news since version `seen` or after `wait` seconds.

        Raises:
            AgentEnvError: There is no such operation, here and since this server started.
        """
        found = self._found(operation)
        if found.state == "running" and seen is not None and seen >= found.version:
            with anyio.move_on_after(min(wait, WAIT_SECONDS) if wait > 0 else 0):
                await found.news.wait()
        return found.status()

    async def cancel(self, operation: str) -> dict[str, Any]:
        """Ends a load, and answers when it has ended.

        Raises:
            AgentEnvError: There is no such operation.
        """
        found = self._found(operation)
        found.load.cancel()
        found.scope.cancel()
        while found.state == "running":
            await found.news.wait()
        return found.status()

    def _found(self, operation: str) -> Operation:
        try:
            return self._operations[operation]
        except KeyError:
            raise AgentEnvError(
                "operation_unknown",
                f"there is no load {operation!r} since this server started",
                status=404,
                applied="unknown",
                hint="start it again with reset",
            ) from None

    def _forget(self) -> None:
        ended = [each.id for each in self._operations.values() if each.state != "running"]
        for operation in ended[: max(0, len(ended) - KEPT + 1)]:
            del self._operations[operation]

    async def _run(self, operation: Operation) -> None:
        with operation.scope:
            await self._plane.lock.acquire()
        if operation.scope.cancelled_caught:
            operation.end("cancelled")
            return
        operation.scope = anyio.CancelScope()
        try:
            operation.end(await self._ran(operation))
        finally:
            self._plane.lock.release()

    async def _ran(self, operation: Operation) -> State:
        outcome: Any = None
        with operation.scope:
            # Whatever is raised belongs to this load alone: the others and the server go on.
            outcome = await self._plane.attempt(self._load, operation)
        failed, cut = isinstance(outcome, Raised), operation.scope.cancelled_caught
        if isinstance(outcome, Raised):
            operation.error = _told(outcome.error)
        if (failed or cut) and operation.before is not None:
            operation.rolled_back = await self._restored(operation.before)
        if cut or (failed and operation.load.cancelled):
            return "cancelled"
        return "failed" if failed else "done"

    async def _load(self, operation: Operation) -> None:
        operation.digests = await digest(operation.parts)
        if operation.rollback and {RESET, GET} <= set(self._plane.handlers):
            operation.before = await self._plane.get()
        if operation.reset:
            await self._plane.reset()
        await self._plane.add(operation.parts, operation.load)

    async def _restored(self, before: Parts) -> bool:
        async def restore() -> None:
            await self._plane.reset()
            if before:
                await self._plane.add(before, LoadContext())

        return not isinstance(await self._plane.attempt(restore), Raised)


def _told(error: Exception) -> dict[str, str]:
    """A load's error, as its status shows it."""
    match error:
        case RpcError(data={"code": str(code)}):
            return {"code": code, "message": error.message}
        case AgentEnvError():
            return {"code": error.code, "message": error.message}
    return {"code": "load_failed", "message": f"{type(error).__name__}: {error}"}

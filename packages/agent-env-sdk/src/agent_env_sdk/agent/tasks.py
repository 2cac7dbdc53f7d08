"""Tasks and how they go: submitted, working, ended; one at a time in each conversation, and remembered across restarts."""

from __future__ import annotations

import asyncio
import inspect
import logging
import uuid
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias
from weakref import WeakSet

from agent_env_sdk.wire.a2a import (
    TASK_NOT_CANCELABLE,
    TASK_NOT_FOUND,
    Message,
    StatusUpdate,
    Task,
    TaskState,
    TaskStatus,
    a2a_error,
    ending_parts,
)
from agent_env_sdk.wire.parts import Part, TextPart
from agent_env_sdk.wire.rpc import INVALID_PARAMS, RpcError

from .storage import Storage
from .turns import Progress, TaskRequest, TaskResult

logger = logging.getLogger("agent_env_sdk")

CANCEL_SECONDS: Final = 5.0
"""How long a cancelled turn may take to let go before its task is called canceled without it."""
REMEMBERED_TASKS: Final = 4096
"""Ended tasks that are kept; older ones are forgotten with their trajectories."""
WAITING_UPDATES: Final = 256
"""Updates that wait for a slow watcher; beyond them the oldest words of progress are dropped, never the ending."""

Turn: TypeAlias = Callable[[TaskRequest[Any]], Awaitable[TaskResult] | AsyncIterator[Progress | TaskResult]]
Prepare: TypeAlias = Callable[["Entry"], TaskRequest[Any]]


def now() -> str:
    """The time, as the wire spells it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


@dataclass(eq=False)
class Entry:
    """A task with what the server knows of it."""

    task: Task
    message: Message
    order: int
    cancelling: bool = False
    runner: asyncio.Task[None] | None = None
    last_words: str = ""
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    watchers: WeakSet[Watcher] = field(default_factory=WeakSet)
    """Held by whoever reads them; a client that goes is forgotten."""

    @property
    def state(self) -> TaskState:
        """Where it is."""
        return self.task.status.state


class Watcher:
    """Updates of one task for one client."""

    def __init__(self) -> None:
        self._waiting: deque[StatusUpdate] = deque(maxlen=WAITING_UPDATES)
        self._fresh = asyncio.Event()

    def put(self, update: StatusUpdate) -> None:
        """Adds one."""
        self._waiting.append(update)
        self._fresh.set()

    async def updates(self) -> AsyncIterator[StatusUpdate]:
        """Each as it comes, up to the last."""
        while True:
            await self._fresh.wait()
            self._fresh.clear()
            while self._waiting:
                update = self._waiting.popleft()
                yield update
                if update.final:
                    return


class Tasks:
    """All tasks of one agent.

    Args:
        storage: Where they are kept.
        turn: The agent's `run`.
        prepare: Makes its request.
        ended: Told of each turn's result, while its conversation still waits.
    """

    def __init__(self, storage: Storage, turn: Turn, prepare: Prepare, ended: Callable[[Entry, TaskResult], None]) -> None:
        self._storage, self._turn, self._prepare, self._ended = storage, turn, prepare, ended
        self._entries: dict[str, Entry] = {}
        self._by_message: dict[str, Entry] = {}
        self._turns: dict[str, _Turnstile] = {}
        self._group: asyncio.TaskGroup | None = None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Tasks run inside. Those that run when it ends are failed, and say so after a restart."""
        self._restore()
        async with asyncio.TaskGroup() as group:
            self._group = group
            yield
            for entry in self._entries.values():
                if entry.runner is not None:
                    entry.runner.cancel()
        self._group = None

    def get(self, task_id: str) -> Entry:
        """A task.

        Raises:
            RpcError: There is none of that id.
        """
        entry = self._entries.get(task_id)
        if entry is None:
            raise a2a_error(TASK_NOT_FOUND)
        return entry

    def all(self) -> list[Entry]:
        """Every task that is remembered."""
        return list(self._entries.values())

    def of_context(self, context_id: str) -> list[Entry]:
        """A conversation's tasks, in the order in which they came."""
        return sorted((entry for entry in self._entries.values() if entry.task.context_id == context_id), key=lambda each: each.order)

    def submit(self, message: Message) -> Entry:
        """Starts a turn; the same message again finds the task that it started.

        Raises:
            RpcError: The message continues a task that doesn't go on, or has the id of another message.
        """
        known = self._by_message.get(message.message_id)
        if known is not None:
            if known.message.parts != message.parts or message.context_id not in {None, known.task.context_id}:
                raise RpcError(INVALID_PARAMS, "another message has this messageId already")
            return known
        if message.task_id is not None:
            raise RpcError(INVALID_PARAMS, f"Task {self.get(message.task_id).task.id} does not take further messages")
        if self._group is None:
            raise RuntimeError("the server does not run")
        task_id, context_id = str(uuid.uuid4()), message.context_id or str(uuid.uuid4())
        stored = message.model_copy(update={"task_id": task_id, "context_id": context_id})
        status = TaskStatus(state=TaskState.SUBMITTED, timestamp=now())
        order = max((entry.order for entry in self._entries.values()), default=0) + 1
        entry = Entry(Task(id=task_id, context_id=context_id, status=status, history=[stored]), message, order)
        self._keep(entry)
        self._save(entry)
        entry.runner = self._group.create_task(self._run(entry), name=f"agent turn {task_id}")
        self._trim()
        return entry

    async def cancel(self, task_id: str) -> Entry:
        """Ends a task; its conversation waits until the turn has really let go.

        Raises:
            RpcError: There is none of that id, or it has ended.
        """
        entry = self.get(task_id)
        if entry.state.terminal:
            raise a2a_error(TASK_NOT_CANCELABLE, f"it is {entry.state.value}")
        entry.cancelling = True
        if entry.runner is not None:
            entry.runner.cancel()
            await asyncio.wait({entry.runner}, timeout=CANCEL_SECONDS)
        self._finish(entry, TaskState.CANCELED)
        return entry

    def watch(self, entry: Entry) -> AsyncIterator[Task | StatusUpdate]:
        """The task as it stands now, then each update up to the last, whenever they are read."""
        watcher = Watcher()
        entry.watchers.add(watcher)
        return _watched(entry.task, watcher)

    async def _run(self, entry: Entry) -> None:
        try:
            async with self._one_at_a_time(entry.task.context_id):
                if entry.state.terminal:
                    return
                self._tell(entry, TaskStatus(state=TaskState.WORKING, timestamp=now()))
                try:
                    result = await self._outcome(entry)
                    self._ended(entry, result)
                finally:
                    self._storage.close(entry.task.id)
            self._conclude(entry, result)
        except asyncio.CancelledError:
            if entry.cancelling:
                self._finish(entry, TaskState.CANCELED)
            else:
                self._conclude(entry, _stopped())

    async def _outcome(self, entry: Entry) -> TaskResult:
        request = self._prepare(entry)
        limit = request.config.timeout_seconds
        try:
            async with asyncio.timeout(limit) as scope:
                return await self._drive(entry, request)
        except Exception as error:  # an author's code may raise anything; the task fails, the server goes on
            if isinstance(error, TimeoutError) and scope.expired():
                said = [TextPart(text=entry.last_words)] if entry.last_words else []
                return TaskResult.failed("agent.timeout", f"the turn took longer than {limit:g} seconds", parts=said)
            number = uuid.uuid4().hex[:12]
            logger.exception("turn %s failed (%s)", entry.task.id, number)
            return TaskResult.failed(
                "framework.unhandled_exception", f"the agent failed; its log has more under {number}", type="infra_error"
            )

    async def _drive(self, entry: Entry, request: TaskRequest[Any]) -> TaskResult:
        turn = self._turn(request)
        if inspect.isawaitable(turn):
            return await turn
        result: TaskResult | None = None
        async for item in turn:
            if isinstance(item, TaskResult):
                result = item
            else:
                entry.last_words = item.text
                message = self._message(entry, [TextPart(text=item.text)] if item.text else [])
                self._tell(entry, TaskStatus(state=TaskState.WORKING, message=message, timestamp=now()))
        return result or TaskResult.failed("agent.no_result", "the agent ended its turn without a result", type="infra_error")

    def _conclude(self, entry: Entry, result: TaskResult) -> None:
        if entry.cancelling:
            self._finish(entry, TaskState.CANCELED)
            return
        error = result.error
        told = ending_parts(result.usage, *((error.type, error.code, error.message) if error else ()))
        parts: list[Part] = [*result.parts, *told]
        if error is not None and not result.parts:
            parts.insert(0, TextPart(text=error.message or error.code))
        state = TaskState.REJECTED if result.rejected else TaskState.FAILED if error else TaskState.COMPLETED
        self._finish(entry, state, parts)

    def _finish(self, entry: Entry, state: TaskState, parts: list[Part] | None = None) -> None:
        """Ends a task; a task ends once."""
        if entry.state.terminal:
            return
        message = self._message(entry, parts) if parts is not None else None
        self._tell(entry, TaskStatus(state=state, message=message, timestamp=now()))
        entry.ended.set()

    def _tell(self, entry: Entry, status: TaskStatus) -> None:
        """Sets a status, keeps it, and tells whoever watches. After the end there is nothing to tell."""
        if entry.state.terminal:
            return
        changed = status.state is not entry.state
        entry.task = entry.task.model_copy(update={"status": status})
        if changed:
            self._save(entry)
        final = status.state.terminal
        for watcher in list(entry.watchers):
            watcher.put(StatusUpdate(task_id=entry.task.id, context_id=entry.task.context_id, status=status, final=final))

    def _message(self, entry: Entry, parts: list[Part]) -> Message:
        return Message(message_id=str(uuid.uuid4()), role="agent", parts=parts, context_id=entry.task.context_id, task_id=entry.task.id)

    @asynccontextmanager
    async def _one_at_a_time(self, context_id: str) -> AsyncIterator[None]:
        turnstile = self._turns.setdefault(context_id, _Turnstile())
        turnstile.users += 1
        try:
            async with turnstile.lock:
                yield
        finally:
            turnstile.users -= 1
            if turnstile.users == 0:
                del self._turns[context_id]

    def _keep(self, entry: Entry) -> None:
        self._entries[entry.task.id] = entry
        self._by_message[entry.message.message_id] = entry

    def _save(self, entry: Entry) -> None:
        self._storage.save_task(entry.task.id, {"order": entry.order, "task": entry.task.to_json(), "message": entry.message.to_json()})

    def _restore(self) -> None:
        """Takes up the tasks of an earlier process; those that it left running have failed with it."""
        for saved in sorted(self._storage.tasks(), key=lambda each: int(each["order"])):
            entry = Entry(Task.model_validate(saved["task"]), Message.model_validate(saved["message"]), int(saved["order"]))
            self._keep(entry)
            if entry.state.terminal:
                entry.ended.set()
            else:
                self._conclude(entry, _stopped())

    def _trim(self) -> None:
        ended = [entry for entry in self._entries.values() if entry.state.terminal]
        for entry in ended[: max(0, len(ended) - REMEMBERED_TASKS)]:
            del self._entries[entry.task.id]
            self._by_message.pop(entry.message.message_id, None)
            self._storage.forget(entry.task.id)


async def _watched(task: Task, watcher: Watcher) -> AsyncIterator[Task | StatusUpdate]:
    yield task
    if not task.status.state.terminal:
        async for update in watcher.updates():
            yield update


@dataclass(eq=False)
class _Turnstile:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    users: int = 0


def _stopped() -> TaskResult:
    return TaskResult.failed("agent.stopped", "the agent's server stopped while the turn ran", type="infra_error")

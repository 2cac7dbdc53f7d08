"""`trajectory/v1`: what a task or a conversation did, whole, uploaded, or in pages while it still runs."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from pydantic import ValidationError

from agent_env_sdk.wire.a2a import TaskState
from agent_env_sdk.wire.agent_bodies import (
    MAX_PAGE_BYTES,
    Body,
    OfContext,
    OfContextObjects,
    OfContextPage,
    OfTask,
    OfTaskObjects,
    OfTaskPage,
    TrajectoryPage,
    TrajectoryState,
)
from agent_env_sdk.wire.encoding import json_bytes
from agent_env_sdk.wire.errors import AgentEnvError
from agent_env_sdk.wire.grants import WriteObject
from agent_env_sdk.wire.rpc import RpcError

from .registrations import InvalidFieldsError
from .storage import Storage
from .tasks import Entry, Tasks

_READ_AT_ONCE: Final = 1000

_STATES: Final[Mapping[TaskState, TrajectoryState]] = {
    TaskState.COMPLETED: "completed",
    TaskState.FAILED: "failed",
    TaskState.REJECTED: "failed",
    TaskState.CANCELED: "canceled",
}
_VARIANTS: Final[Mapping[tuple[bool, bool, bool], type[Body]]] = {
    (True, False, False): OfTask,
    (True, True, False): OfTaskObjects,
    (True, False, True): OfTaskPage,
    (False, False, False): OfContext,
    (False, True, False): OfContextObjects,
    (False, False, True): OfContextPage,
}
"""By whether a task is asked for, whether to upload, and whether from a position on."""


@dataclass(frozen=True, slots=True)
class Trajectories:
    """Reads trajectories.

    Args:
        tasks: The agent's tasks.
        storage: Where their events are.
        format: What the events are.
    """

    tasks: Tasks
    storage: Storage
    format: str

    async def get(self, sent: Mapping[str, Any]) -> dict[str, Any]:
        """Answers `get` in the variant that the fields choose.

        Raises:
            AgentEnvError: No variant has these fields (400), nothing is known of the id (404), or the upload failed.
        """
        variant = _VARIANTS.get(("task_id" in sent, "objects" in sent, "after" in sent))
        if variant is None:
            raise AgentEnvError("invalid_params", "a trajectory is asked for either to be uploaded or in pages")
        try:
            request = variant.model_validate(sent)
        except ValidationError as error:
            raise InvalidFieldsError(error) from None
        entries = self._entries(request)
        match request:
            case OfTaskPage() | OfContextPage():
                return self._page(entries, request.after, request.limit)
            case OfTaskObjects() | OfContextObjects():
                return await self._uploaded(self._recorded(entries), request.objects.trajectory)
            case _:
                return {"trajectory": [event for entry in self._recorded(entries) for event in self._events(entry)]}

    def write(self, entries: Sequence[Entry], file: IO[bytes]) -> None:
        """Writes the events of tasks as one JSON array, in pieces."""
        separator = b"["
        for entry in entries:
            for event in self._events(entry):
                file.write(separator + json_bytes(event))
                separator = b","
        file.write(b"[]" if separator == b"[" else b"]")

    def _entries(self, request: Body) -> list[Entry]:
        task_id, context_id = getattr(request, "task_id", None), getattr(request, "context_id", None)
        if task_id is not None:
            try:
                return [self.tasks.get(task_id)]
            except RpcError:
                raise AgentEnvError("not_found", "there is no such task", status=404) from None
        entries = self.tasks.of_context(str(context_id))
        if not entries:
            raise AgentEnvError("not_found", "there is no such conversation", status=404)
        return entries

    def _recorded(self, entries: list[Entry]) -> list[Entry]:
        ended = [entry for entry in entries if entry.state.terminal and self.storage.count(entry.task.id)]
        if not ended:
            raise AgentEnvError("not_found", "no task of it has ended and recorded anything", status=404)
        return ended

    def _events(self, entry: Entry) -> Iterator[Any]:
        position = 0
        while events := self.storage.events(entry.task.id, position, _READ_AT_ONCE).events:
            yield from events
            position += len(events)

    def _page(self, entries: list[Entry], after: int, limit: int) -> dict[str, Any]:
        counts = [self.storage.count(entry.task.id) for entry in entries]
        total, position, events, room = sum(counts), after, list[Any](), MAX_PAGE_BYTES
        if after > total:
            raise AgentEnvError("invalid_params", f"after is past the end: there are {total} events")
        start = 0
        for entry, count in zip(entries, counts, strict=True):
            if start <= position < start + count and len(events) < limit:
                page = self.storage.events(entry.task.id, position - start, limit - len(events), room)
                if events and len(page.events) == 1 and _length(page.events) > room:
                    break
                events += page.events
                room -= _length(page.events)
                position += len(page.events)
                if position < start + count:
                    break
            start += count
        last = entries[-1]
        answer = TrajectoryPage(
            context_id=last.task.context_id,
            task_id=last.task.id,
            state=_STATES.get(last.state, "running" if total else "pending"),
            format=self.format if total else None,
            events=events,
            next=position,
            has_more=position < total,
        )
        return answer.model_dump(mode="json", exclude_none=True)

    async def _uploaded(self, entries: list[Entry], target: WriteObject) -> dict[str, Any]:
        # Imported where it is used: it brings the environment side with it, which an agent may do without.
        from agent_env_sdk.environment.transfers import upload

        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trajectory.json"
            with path.open("wb") as file:
                self.write(entries, file)
            came = await upload(target, path)
        return {"objects": {"trajectory": came.model_dump(mode="json", exclude_none=True)}}


def _length(events: Sequence[Any]) -> int:
    return sum(len(json.dumps(event)) for event in events)

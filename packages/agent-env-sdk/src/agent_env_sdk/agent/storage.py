"""The folder that an agent's tasks, trajectories and registrations outlive a restart in.

Nothing is held in memory by the length of a trajectory: events go to a file as they come, and are read from there in pages.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from array import array
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

from agent_env_sdk.wire.a2a import STATE_VARIABLE
from agent_env_sdk.wire.agent_bodies import MAX_PAGE_BYTES
from agent_env_sdk.wire.encoding import json_bytes
from agent_env_sdk.wire.trajectory import ErrorEvent, Event, dump_event

from .fleeting import fleeting_folder

MAX_TRAJECTORY_BYTES: Final = 1024 * 1024 * 1024
"""What a trajectory may be long; the protocol's own limit for one that is uploaded."""
REMEMBERED_INDEXES: Final = 256
"""Trajectories whose lines' places are kept; those of others are found again by reading."""


@dataclass(frozen=True, slots=True)
class Page:
    """Some of a trajectory's events."""

    events: list[Any]
    total: int
    """How many there are by now."""


class Recorder:
    """Takes the events of one task, as lines of a file."""

    def __init__(self, path: Path, index: array[int], limit_bytes: int) -> None:
        self._file: BinaryIO | None = path.open("ab", buffering=0)
        self.index, self._limit = index, limit_bytes

    def append(self, event: Event | Mapping[str, Any]) -> None:
        """Adds an event. Beyond the limit, and after the end, none is taken; the last one then says so.

        Raises:
            TypeError: It isn't JSON.
        """
        if self._file is None:
            return
        value = dict(event) if isinstance(event, Mapping) else dump_event(event)
        line = json_bytes(value, allow_nan=False) + b"\n"
        end = self.index[-1]
        if end + len(line) > self._limit:
            self._write(
                json.dumps(dump_event(ErrorEvent(code="trajectory.full", message=f"longer than {self._limit} bytes"))).encode() + b"\n"
            )
            self.close()
            return
        self._write(line)

    def close(self) -> None:
        """Takes no more."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write(self, line: bytes) -> None:
        if self._file is not None:
            self._file.write(line)
            self.index.append(self.index[-1] + len(line))


class Storage:
    """The folder.

    Args:
        folder: Where; None for the variable `AGENTENV_AGENT_STATE`, else a new folder that this process alone knows, and that goes
            with it.
        max_trajectory_bytes: How long a task's trajectory may be.
    """

    def __init__(self, folder: Path | None = None, max_trajectory_bytes: int = MAX_TRAJECTORY_BYTES) -> None:
        named = folder or os.environ.get(STATE_VARIABLE)
        self._fleeting = not named
        self.folder = Path(named) if named else fleeting_folder(self, "agent-state-")
        self._limit = max_trajectory_bytes
        self._indexes: OrderedDict[str, array[int]] = OrderedDict()
        self._open: dict[str, Recorder] = {}
        self._make_rooms()

    @contextmanager
    def served(self) -> Iterator[None]:
        """What is in a folder that nobody named is gone after the block, with the folder."""
        self._make_rooms()
        try:
            yield
        finally:
            if self._fleeting:
                shutil.rmtree(self.folder, ignore_errors=True)

    def tasks(self) -> Iterator[dict[str, Any]]:
        """The tasks that were saved; a file that was torn by a crash is passed over."""
        for path in (self.folder / "tasks").glob("*.json"):
            try:
                yield json.loads(path.read_bytes())
            except ValueError:
                path.unlink(missing_ok=True)

    def save_task(self, task_id: str, value: Mapping[str, Any]) -> None:
        """Writes a task, whole or not at all."""
        self._write(self._path("tasks", task_id, "json"), value)

    def forget(self, task_id: str) -> None:
        """Removes a task and its trajectory."""
        self._indexes.pop(task_id, None)
        for path in (self._path("tasks", task_id, "json"), self.trajectory(task_id)):
            path.unlink(missing_ok=True)

    def registrations(self) -> dict[str, Any]:
        """What was registered with the agent, and the conversations' session references."""
        try:
            found: dict[str, Any] = json.loads((self.folder / "registrations.json").read_bytes())
        except (FileNotFoundError, ValueError):
            return {}
        return found

    def save_registrations(self, value: Mapping[str, Any]) -> None:
        """Writes them, for the owner's eyes alone: headers of servers are among them."""
        self._write(self.folder / "registrations.json", value)

    def trajectory(self, task_id: str) -> Path:
        """The file of a task's events, a line each."""
        return self._path("trajectories", task_id, "jsonl")

    def recorder(self, task_id: str) -> Recorder:
        """Takes the events of a task, until it is closed."""
        opened = self._open[task_id] = Recorder(self.trajectory(task_id), self._index(task_id), self._limit)
        return opened

    def close(self, task_id: str) -> None:
        """The task records no more."""
        opened = self._open.pop(task_id, None)
        if opened is not None:
            opened.close()

    def count(self, task_id: str) -> int:
        """How many events a task has recorded."""
        return len(self._index(task_id)) - 1

    def events(self, task_id: str, after: int, limit: int, max_bytes: int = MAX_PAGE_BYTES) -> Page:
        """Events from a position on, no more of them and no longer than allowed; the first always fits."""
        index = self._index(task_id)
        total = len(index) - 1
        last = min(total, after + limit)
        while last > after + 1 and index[last] - index[after] > max_bytes:
            last -= 1
        if last <= after:
            return Page([], total)
        with self.trajectory(task_id).open("rb") as file:
            file.seek(index[after])
            lines = file.read(index[last] - index[after]).splitlines()
        return Page([json.loads(line) for line in lines], total)

    def _make_rooms(self) -> None:
        for name in ("tasks", "trajectories"):
            (self.folder / name).mkdir(parents=True, exist_ok=True, mode=0o700)

    def _index(self, task_id: str) -> array[int]:
        """Where each line begins, and the last ends."""
        if task_id in self._open:
            return self._open[task_id].index
        index = self._indexes.get(task_id)
        if index is None:
            index = self._indexes[task_id] = _lines(self.trajectory(task_id))
            if len(self._indexes) > REMEMBERED_INDEXES:
                self._indexes.popitem(last=False)
        self._indexes.move_to_end(task_id)
        return index

    def _path(self, room: str, task_id: str, ending: str) -> Path:
        # Hashed, since ids may come from elsewhere.
        return self.folder / room / f"{hashlib.sha256(task_id.encode()).hexdigest()[:40]}.{ending}"

    def _write(self, path: Path, value: Mapping[str, Any]) -> None:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=".new-")
        with os.fdopen(handle, "wb") as file:
            file.write(json.dumps(value).encode())
        Path(name).replace(path)


def _lines(path: Path) -> array[int]:
    """Where the file's lines end; a last one that a crash has torn is left out."""
    index = array("Q", [0])
    if path.exists():
        with path.open("rb") as file:
            for line in file:
                if line.endswith(b"\n"):
                    index.append(index[-1] + len(line))
    return index

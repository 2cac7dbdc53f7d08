"""What agents did, one JSON object a line: bounded on disk and in memory, redacted, written beside the calls and not in them."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from agent_env_sdk.wire.rpc import DEEPEST, nests_deeper

from agent_env.clock import SystemClock, timestamp
from agent_env.gateway.defaults import GatewayLimits
from agent_env.gateway.jsontext import value_of
from agent_env.redaction import Redactor, mask_tokens

_NAME = "trajectory.jsonl"
_OLDER = "trajectory.1.jsonl"
_TAIL_BYTES = 1 << 16
_COPY_BYTES = 1 << 18
_BATCH = 256
_HOLE = '"@value@"'
_BRACKETS = re.compile(r"[\[\]{}]")
_IN_KEYS = ("passw", "passphrase", "secret", "credential", "authorization", "bearer", "cookie", "token")
_IN_SPLIT_KEYS = tuple(f"{first}{between}key" for first in ("api", "private", "access") for between in ("", "_", "-"))
_IN_VALUES = ("sk-", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "akia", "asia", "xox", "aiza", "hf_", "eyj", "-----begin")
HINTS = (*_IN_KEYS, *_IN_SPLIT_KEYS, *_IN_VALUES)
"""What every text contains (in lower case) that `redaction` would change without knowing a secret's value; a test holds that."""


class RawJson(str):
    """JSON as text, to be built when it is written."""

    __slots__ = ()


class Trajectory:
    """The file, and the events on their way to it.

    Args:
        folder: Where it is kept.
        limits: How much.
        redactor: Blots out what must not be stored.
    """

    def __init__(self, folder: Path, limits: GatewayLimits, redactor: Redactor) -> None:
        self._file = folder / _NAME
        self._older = folder / _OLDER
        self._limits = limits
        self._redactor = redactor
        self._clock = SystemClock()
        self._queue: deque[tuple[bytes | dict[str, Any], int]] = deque()
        self._queued_bytes = 0
        self.dropped = 0
        """Events that found no room."""
        self._wake = asyncio.Event()
        self._lock = asyncio.Lock()
        self._mend()
        self._number = self._last_number()

    def add(self, kind: str, fields: Mapping[str, Any], *, size: int = 256) -> str:
        """Takes an event for writing and gives its id.

        Args:
            kind: Its `event_type`.
            fields: The rest of it; a `RawJson` stands for the value that it spells.
            size: About how many bytes it holds in memory.
        """
        self._number += 1
        event_id = f"event_{self._number}"
        if self._queued_bytes + size > self._limits.trajectory_queue_bytes:
            self.dropped += 1
            return event_id
        event = {"event_id": event_id, "event_type": kind, "timestamp_utc": timestamp(self._clock.now()), **fields}
        # A line that needs no care is made here: it is quick, and a thread that made it would keep the loop from answering for longer.
        self._queue.append((self._quick(event) or event, size))
        self._queued_bytes += size
        self._wake.set()
        return event_id

    async def write_forever(self) -> None:
        """Writes as events come, many at once."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            await self.flush()

    async def flush(self) -> None:
        """Has everything written that was added before."""
        async with self._lock:
            while self._queue:
                batch: list[bytes | dict[str, Any]] = []
                room = self._limits.trajectory_bytes // 8
                while self._queue and len(batch) < _BATCH and room > 0:
                    event, size = self._queue.popleft()
                    self._queued_bytes -= size
                    room -= size
                    batch.append(event)
                try:
                    await asyncio.to_thread(self._write, batch)
                except OSError:
                    self.dropped += len(batch)  # a full disk must not stop the environment; health shows the count

    def flush_now(self) -> None:
        """The same at the very end, without a loop."""
        batch = [event for event, _ in self._queue]
        self._queue.clear()
        if batch:
            self._write(batch)

    def parts(self) -> tuple[int, Iterator[bytes]]:
        """The size of what is written now, and its bytes."""
        files = [path.open("rb") for path in (self._older, self._file) if path.exists()]
        sizes = [os.fstat(file.fileno()).st_size for file in files]

        def chunks() -> Iterator[bytes]:
            for file, size in zip(files, sizes, strict=True):
                with file:
                    left = size
                    while left > 0:
                        chunk = file.read(min(_COPY_BYTES, left))
                        if not chunk:
                            break
                        left -= len(chunk)
                        yield chunk

        return sum(sizes), chunks()

    def _quick(self, event: dict[str, Any]) -> bytes | None:
        """The line with its values spliced in as text: what most events get, because nothing in them looks as if it could be a secret.
        Building and searching each value takes ten times as long, and takes it from the calls.
        """
        values: list[str] = []
        frame = json.dumps(_with_holes(event, values), separators=(",", ":"))
        if any(self._may_hold_secret(text) for text in (frame.replace(_HOLE, ""), *values)) or any(map(_may_nest, values)):
            return None
        parts = frame.split(_HOLE)
        line = [parts[0]]
        for value, part in zip(values, parts[1:], strict=True):
            line += [value.replace("\n", " ").replace("\r", " "), part]
        return "".join(line).encode() + b"\n"

    def _may_hold_secret(self, text: str) -> bool:
        if len(text) > self._limits.trajectory_event_bytes or "\\u" in text:
            return True
        lower = text.lower()
        if any(hint in lower for hint in HINTS) or ("@" in text and "://" in text):
            return True
        return self._redactor.redact(text) is not text

    def _write(self, events: list[bytes | dict[str, Any]]) -> None:
        data = b"".join(event if isinstance(event, bytes) else self._line(event) for event in events)
        if self._file.exists() and self._file.stat().st_size + len(data) > self._limits.trajectory_bytes // 2:
            self._file.replace(self._older)
        descriptor = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(descriptor, "ab") as file:
            file.write(data)

    def _line(self, event: dict[str, Any]) -> bytes:
        try:
            shown = self._shown(event)
            return json.dumps(shown, separators=(",", ":")).encode() + b"\n"
        except RecursionError:  # nested deeper than it can be looked at: then its text is kept, and no value of it is built
            flat = {key: _flat(value) for key, value in event.items()}
            return json.dumps(self._redactor.redact(flat), separators=(",", ":")).encode() + b"\n"

    def _shown(self, event: dict[str, Any]) -> dict[str, Any]:
        built = {key: self._built(value) for key, value in event.items()}
        return self._redactor.redact(built)

    def _built(self, value: Any) -> Any:
        match value:
            case RawJson():
                if len(value) > self._limits.trajectory_event_bytes:
                    cut = str(value)[: self._limits.trajectory_event_bytes]
                    return {"cut": mask_tokens(cut), "characters": len(value)}
                built = value_of(value)
                return _masked(built) if not nests_deeper(built) else _flat(value)  # so that every reader can read every line
            case Mapping():
                return {key: self._built(member) for key, member in value.items()}
            case _:
                return value

    def _last_number(self) -> int:
        """The number of the last whole event, so that none is given twice."""
        for path in (self._file, self._older):
            try:
                with path.open("rb") as file:
                    size = file.seek(0, os.SEEK_END)
                    step = _TAIL_BYTES
                    while True:
                        file.seek(max(size - step, 0))
                        numbers = list(_numbers(file.read(), whole=step >= size))
                        if numbers:
                            return numbers[-1]
                        if step >= size:
                            break
                        step *= 4
            except FileNotFoundError:
                continue
        return 0

    def _mend(self) -> None:
        """Drops a line that a kill tore."""
        if not self._file.exists():
            return
        with self._file.open("r+b") as file:
            size = file.seek(0, os.SEEK_END)
            step = min(size, _TAIL_BYTES)
            while step:
                file.seek(size - step)
                end = file.read(step).rfind(b"\n")
                if end >= 0 or step == size:
                    file.truncate(size - step + end + 1)
                    return
                step = min(size, step * 4)


def _numbers(data: bytes, *, whole: bool) -> Iterator[int]:
    lines = data.split(b"\n")
    for line in lines if whole else lines[1:]:
        found = line.partition(b'"event_id":"event_')[2].partition(b'"')[0]
        if line.startswith(b'{"event_id"') and found.isdigit():
            yield int(found)


def _may_nest(text: str) -> bool:
    """Whether a value may be deeper than readers of the trajectory take: by its brackets, those within strings among them."""
    if text.count("[") + text.count("{") <= DEEPEST:
        return False
    depth = deepest = 0
    for bracket in _BRACKETS.findall(text):
        depth += 1 if bracket in "[{" else -1
        deepest = max(deepest, depth)
    return deepest > DEEPEST


def _with_holes(value: Any, values: list[str]) -> Any:
    match value:
        case RawJson():
            values.append(str(value))
            return _HOLE[1:-1]
        case Mapping():
            return {key: _with_holes(member, values) for key, member in value.items()}
        case _:
            return value


def _flat(value: Any) -> Any:
    match value:
        case RawJson():
            return {"text": mask_tokens(str(value))}
        case Mapping():
            return {key: _flat(member) for key, member in value.items()}
        case _:
            return value


def _masked(value: Any) -> Any:
    match value:
        case str():
            return mask_tokens(value)
        case dict():
            return {key: _masked(member) for key, member in value.items()}
        case list():
            return [_masked(member) for member in value]
        case _:
            return value

"""A confined place: the helper's, with the place's own limits told apart from a command's own ending."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from agent_env.defaults import Limits
from agent_env.errors import SandboxUnavailableError, TransferError
from agent_env.places import Command, Completed, Ending, PlaceKind, Upload
from agent_env.places.helper.connection import Connection
from agent_env.places.helper.execution import NoNetworkError
from agent_env.places.helper.place import HelperPlace
from agent_env.places.helper.process import HelperProcess
from agent_env.sandboxes.confined import limits as control
from agent_env.sandboxes.confined.ending import gone, told_of_break
from agent_env.sandboxes.confined.launch import log_tail
from agent_env.sandboxes.confined.records import Facts


class LimitWatch:
    """Tells when a limit of the place was reached: by the kernel's counter and by the guardian's reports. Asked around every command."""

    def __init__(self, facts: Facts, events: Path) -> None:
        self._counter = control.oom_counter(facts.cgroups)
        self._limits = facts.limits
        try:
            self._events: int | None = os.open(events, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._events = None  # a place without a guardian

    def snapshot(self) -> tuple[int, int]:
        """How much has been reported so far."""
        kills = 0 if self._counter is None else control.oom_kills(self._counter)
        return kills, 0 if self._events is None else os.fstat(self._events).st_size

    def since(self, before: tuple[int, int]) -> str:
        """What limit was reached since then; empty when none was."""
        kills, size = self.snapshot()
        if kills > before[0]:
            return f"the place's memory limit of {self._limits.get('memory', 0):.0f} bytes was reached; the kernel ended a process"
        if size > before[1] and self._events is not None:
            reported = os.pread(self._events, size - before[1], before[1])
            for kind in ("memory", "disk"):
                if f'"event": "{kind}"'.encode() in reported:
                    return f"the place's {kind} limit of {self._limits.get(kind, 0):.0f} bytes was reached; its commands were ended"
        return ""

    def close(self) -> None:
        """Lets go of what it reads."""
        for descriptor in (self._counter, self._events):
            if descriptor is not None:
                os.close(descriptor)
        self._counter = self._events = None


class ConfinedPlace(HelperPlace):
    """The one place of a confined sandbox."""

    def __init__(self, connection: Connection, facts: Facts, *, events: Path, log: Path, limits: Limits) -> None:
        super().__init__(connection, place_id=facts.sandbox_id, kind=PlaceKind.MACHINE, labels=facts.labels, limits=limits)
        connection.explain = partial(gone, facts, events)
        self._facts = facts
        self._events = events
        self._watch = LimitWatch(facts, events)
        self._log = log

    async def run(self, command: Command) -> Completed:
        """As the contract says. A command that ends badly while a limit of the *place* was reached is `LIMITED`, never a score.

        Of a lost one, the detail says what became of the place.
        """
        before = self._watch.snapshot()
        try:
            completed = self._judged(await super().run(command), before)
        except NoNetworkError as error:
            raise self._explained(error) from error
        if completed.ending is not Ending.LOST:
            return completed
        why = await told_of_break(self._facts, self._events, seconds=self._limits.kill_grace_seconds)
        return completed if why is None else replace(completed, detail=why.message)

    async def start(self, command: Command) -> HelperProcess:
        """As the contract says; its ending is told as `run` tells it."""
        before = self._watch.snapshot()
        try:
            process = await super().start(command)
        except NoNetworkError as error:
            raise self._explained(error) from error
        process.judge = lambda completed: self._judged(completed, before)
        return process

    async def put(self, uploads: Sequence[Upload], *, owner: str | None = None) -> None:
        """As the contract says. No file can be larger than what the place may keep: the kernel ends whoever writes on."""
        try:
            await super().put(uploads, owner=owner)
        except TransferError as error:
            limit = self._facts.limits.get("disk") or 0
            large = next((upload for upload in uploads if limit and _size(upload) > limit), None)
            if large is None:
                raise
            why = f"{large.path} could not be written: it is larger than the place's disk limit of {limit:.0f} bytes"
            raise TransferError(why, concerns=error.concerns, hint="raise the sandbox's disk_size_gb") from error

    def _explained(self, error: NoNetworkError) -> SandboxUnavailableError:
        return SandboxUnavailableError(f"{error.message}{log_tail(self._log)}", concerns=self.id)

    def _judged(self, completed: Completed, before: tuple[int, int]) -> Completed:
        if completed.ok or completed.ending is Ending.TIMED_OUT:
            return completed
        reached = self._watch.since(before)
        return replace(completed, ending=Ending.LIMITED, exit_code=None, signal=None, detail=reached) if reached else completed

    async def aclose(self) -> None:
        """Lets go of the connection. What runs there goes on."""
        self._watch.close()
        await super().aclose()


def _size(upload: Upload) -> int:
    if isinstance(upload.source, Path):
        return upload.source.stat().st_size if upload.source.exists() else 0
    return len(upload.source or b"")

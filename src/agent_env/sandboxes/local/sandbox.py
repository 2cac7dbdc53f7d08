"""A live handle on a sandbox of this machine, and its machine place."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path

from agent_env.defaults import Limits
from agent_env.documents.network import NetworkPolicy
from agent_env.errors import DeadlineError, PlaceLostError, SandboxUnavailableError, UnsupportedError
from agent_env.places import Command, Completed, Ending, Place, PlaceKind, Published
from agent_env.places.endpoint import LOOPBACK
from agent_env.places.helper.connection import Connection
from agent_env.places.helper.execution import HelperProcess
from agent_env.places.helper.place import HelperPlace
from agent_env.sandboxes.contract import Level, SandboxInfo
from agent_env.sandboxes.local import limits as control
from agent_env.sandboxes.local.launch import log_tail
from agent_env.sandboxes.local.records import Facts, Records
from agent_env.waiting import deadline

CONTAINER_MARKER = ".agent-container-mode"


class Settling:
    """What a fresh place still waits for before its first command: its network, and its control groups.

    Files can be moved meanwhile, so the milliseconds are usually over before a command comes.
    """

    def __init__(self, waits: dict[str, int], log: Path) -> None:
        self._waits = waits
        self._log = log
        self._lock = asyncio.Lock()
        self.failed: set[str] = set()

    async def wait(self, seconds: float) -> None:
        """Returns when everything is ready or has failed; at once from the second time on.

        Raises:
            DeadlineError: It took too long; the message ends with the last lines of the log.
        """
        if not self._waits:
            return
        try:
            async with self._lock, deadline(seconds, "the sandbox's network and limits"):
                while self._waits:
                    name, descriptor = next(iter(self._waits.items()))
                    if not await _one_byte(descriptor):
                        self.failed.add(name)
                    os.close(self._waits.pop(name))
        except DeadlineError as error:
            raise DeadlineError(f"{error.message} (waiting for its {', '.join(self._waits)}){log_tail(self._log)}") from error

    def close(self) -> None:
        """Lets go, whatever the state."""
        while self._waits:
            os.close(self._waits.popitem()[1])


async def _one_byte(descriptor: int) -> bool:
    loop = asyncio.get_running_loop()
    readable: asyncio.Future[None] = loop.create_future()

    def tell() -> None:
        if not readable.done():
            readable.set_result(None)

    loop.add_reader(descriptor, tell)
    try:
        await readable
    finally:
        loop.remove_reader(descriptor)
    return bool(os.read(descriptor, 1))


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


class LocalPlace(HelperPlace):
    """The machine place: the helper's, with the place's own limits told apart from a command's own ending."""

    def __init__(self, connection: Connection, facts: Facts, *, settling: Settling, watch: LimitWatch, limits: Limits) -> None:
        super().__init__(connection, place_id=facts.sandbox_id, kind=PlaceKind.MACHINE, labels=facts.labels, limits=limits)
        self._settling = settling
        self._watch = watch
        self._settle_seconds = limits.connect_seconds
        self._network_demanded = bool(facts.network.get("demanded"))

    async def run(self, command: Command) -> Completed:
        """As the contract says. A command that ends badly while a limit of the *place* was reached is `LOST`, never a score."""
        await self._settled()
        before = self._watch.snapshot()
        completed = await super().run(command)
        if completed.ok or completed.ending is Ending.TIMED_OUT:
            return completed
        reached = self._watch.since(before)
        return replace(completed, ending=Ending.LOST, detail=reached) if reached else completed

    async def start(self, command: Command) -> HelperProcess:
        """As the contract says."""
        await self._settled()
        return await super().start(command)

    async def _settled(self) -> None:
        """A network that nobody asked for may be missing; one that a policy demands may not, and limits never."""
        await self._settling.wait(self._settle_seconds)
        failed = self._settling.failed - (set() if self._network_demanded else {"network"})
        if failed:
            raise SandboxUnavailableError(
                f"the {' and '.join(sorted(failed))} of sandbox {self.id} could not be set up",
                concerns=self.id,
                hint="the file helper.log beside its record says why",
            )


class LocalSandbox:
    """A sandbox of this machine: one confined machine place."""

    def __init__(self, facts: Facts, records: Records, connection: Connection, *, settling: Settling, limits: Limits) -> None:
        self._facts = facts
        self._settling = settling
        self._watch = LimitWatch(facts, records.folder(facts.sandbox_id) / "events")
        self._place = LocalPlace(connection, facts, settling=settling, watch=self._watch, limits=limits)

    @property
    def info(self) -> SandboxInfo:
        """What the journal keeps of it."""
        return info_of(self._facts)

    @property
    def levels(self) -> Mapping[str, Level]:
        """How each limit holds in it."""
        return {name: Level(value) for name, value in self._facts.levels.items()}

    @property
    def published(self) -> Published:
        """Its ports, on this machine's loopback."""
        ports = {int(served): int(port) for served, port in self._facts.ports.items()}
        return Published({served: f"http://{LOOPBACK}:{port}" for served, port in ports.items()}, ports, (LOOPBACK,))

    @property
    def network(self) -> NetworkPolicy:
        """The policy in force."""
        return NetworkPolicy.model_validate(self._facts.network.get("policy", {}))

    @property
    def work_dir(self) -> Path:
        """Its folder on this machine, which is the place's root."""
        return Path(self._facts.work_dir)

    @property
    def container_name(self) -> str:
        """What a container of its own would be called."""
        return self.scoped_name("agent")

    @property
    def owns_container(self) -> bool:
        """A container of its own was recorded by the marker file."""
        return (self.work_dir / CONTAINER_MARKER).is_file()

    def scoped_name(self, name: str) -> str:
        """A name that belongs to this sandbox alone."""
        return f"{name}-{self._facts.sandbox_id}"

    async def machine(self) -> Place:
        """The machine place."""
        return self._place

    async def container(self, container_id: str) -> Place:
        """There is none: a machine place runs no containers by itself.

        Raises:
            UnsupportedError: Always.
        """
        raise UnsupportedError(
            f"sandbox {self._facts.sandbox_id} is a confined machine place, without a container engine; it has no container {container_id}",
            concerns=self._facts.sandbox_id,
        )

    async def aclose(self) -> None:
        """Lets go of the connection; the sandbox goes on."""
        self._settling.close()
        self._watch.close()
        await self._place.aclose()


def info_of(facts: Facts) -> SandboxInfo:
    """A record as the journal keeps it."""
    data = {field.name: getattr(facts, field.name) for field in fields(facts) if field.name not in {"sandbox_id", "labels"}}
    return SandboxInfo(facts.sandbox_id, dict(facts.labels), facts.alive, data)


def gone(facts: Facts, events: Sequence[Mapping[str, object]]) -> PlaceLostError | None:
    """Why a recorded sandbox can't be reached; None when it lives."""
    if facts.alive:
        return None
    if facts.rebooted:
        return PlaceLostError(
            f"sandbox {facts.sandbox_id} was lost when this machine restarted",
            concerns=facts.sandbox_id,
            hint="resume with --redeploy to make it again",
        )
    ended = next((event for event in reversed(events) if event.get("event") == "ended"), None)
    how = "was never finished" if facts.phase != "running" else f"has ended ({_ending(ended)})"
    return PlaceLostError(f"sandbox {facts.sandbox_id} {how}", concerns=facts.sandbox_id, hint="resume with --redeploy to make it again")


def _ending(event: Mapping[str, object] | None) -> str:
    match event:
        case {"signal": 9}:
            return "it was killed"
        case {"signal": number}:
            return f"signal {number}"
        case {"exit_code": 0}:
            return "its time was over, or it was told to"
        case {"exit_code": code}:
            return f"exit code {code}"
    return "nobody saw how"

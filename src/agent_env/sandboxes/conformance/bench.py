"""What cases work with: a provider as any process would make it, sandboxes that are removed afterwards, and one that many cases share."""

from __future__ import annotations

import asyncio
import json
import secrets
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass
from pathlib import PurePosixPath
from typing import Any

from agent_env.defaults import DEFAULT_LIMITS, GIB, Limits
from agent_env.places import Command, Completed, LedgerEntry, Place, Shape, Upload
from agent_env.sandboxes.conformance.case import CapabilityMissingError, holds
from agent_env.sandboxes.contract import Capabilities, Provider, Sandbox, SandboxSpec
from agent_env.waiting import deadline, poll

PORTS = (18765, 18080)
"""What the shared sandbox publishes, where ports can be published."""
MakeProvider = Callable[[], Provider]
"""Makes a provider as another process would: sharing nothing but what is written down."""

_MADE: ContextVar[list[Provider]] = ContextVar("made")


@dataclass(frozen=True)
class Subject:
    """The provider under test."""

    name: str
    make: MakeProvider
    mode: str | None = None
    """`vm` or `container`; None is `vm` for machine-backed providers and `container` for container-shaped ones."""
    image: str | None = None
    """What containers are made of; without one, `container` mode is not to be had."""
    recipe: Mapping[str, Any] | None = None
    """How another process makes it: `name`, `state_root`, `options`, `impl`. None: cases that need another process are skipped."""
    setting: Mapping[str, Any] | None = None
    """Fields of `SandboxSpec` that differ from the kit's own, such as sizes that the provider sells."""


@dataclass(frozen=True)
class Room:
    """A sandbox, its main place, and what it was made from."""

    spec: SandboxSpec
    sandbox: Sandbox
    place: Place
    folder: PurePosixPath
    """A fresh folder in the place, of this case alone."""
    own: frozenset[int] = frozenset()
    """Numbers of what the place runs by itself, such as an image's own command."""

    async def running(self, place: Place | None = None) -> list[LedgerEntry]:
        """What runs that a case has started, as a handle on the place tells it."""
        return [entry for entry in await (place or self.place).ledger() if entry.running and entry.pid not in self.own]

    async def sh(self, script: str, *arguments: str, **given: Any) -> Completed:
        """Runs a script in the folder."""
        return await self.place.run(Command(["sh", "-c", script, "sh", *arguments], **{"cwd": self.folder, **given}))

    async def text(self, script: str, *arguments: str, **given: Any) -> str:
        """What a script that must succeed prints, without the last newline."""
        done = await self.sh(script, *arguments, **given)
        holds(done.ok, f"the script {script!r} ended with {done.ending} {done.exit_code}: {done.stderr[-300:]!r} {done.detail}")
        return done.stdout.decode(errors="surrogateescape").removesuffix("\n")

    async def survivors(self, tag: str) -> list[str]:
        """Processes of the place whose environment holds a tag."""
        found = await self.text('grep -l -- "$1" /proc/[0-9]*/environ 2>/dev/null; true', tag)
        return found.split()

    async def gone(self, tag: str, *, within_seconds: float) -> None:
        """Waits until no process with the tag is left."""

        async def none_left() -> bool | None:
            return None if await self.survivors(tag) else True

        await poll(none_left, within_seconds=within_seconds, what=f"the end of every process tagged {tag}")


class Bench:
    """One provider under test.

    Args:
        subject: The provider.
        limits: `conformance_case_seconds` bounds a case, the others what it waits for.
    """

    def __init__(self, subject: Subject, *, limits: Limits = DEFAULT_LIMITS) -> None:
        self.subject = subject
        self.limits = limits
        self._capabilities: Capabilities | None = None
        self._shared: SandboxSpec | None = None
        self._lock = asyncio.Lock()

    def make(self) -> Provider:
        """The provider as a new process would make it. It is let go of when the case is over."""
        made = self.subject.make()
        _MADE.get([]).append(made)
        return made

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """One case's turn: lets go of every provider that it made."""
        made: list[Provider] = []
        _MADE.set(made)
        try:
            yield
        finally:
            for provider in made:
                await provider.aclose()

    async def capabilities(self) -> Capabilities:
        """What it says that it can do."""
        if self._capabilities is None:
            self._capabilities = await self.make().capabilities()
        return self._capabilities

    async def declared(self) -> frozenset[str]:
        """The capabilities that cases may need."""
        others = {"another_process"} if self.subject.recipe is not None else set()
        return (await self.capabilities()).declared() | others

    async def spec(self, **changes: Any) -> SandboxSpec:
        """A small sandbox with an id, a token and labels of its own."""
        tag = secrets.token_hex(6)
        container = (await self.mode()) == "container"
        if container and self.subject.image is None:
            raise CapabilityMissingError("an image to make containers of (--image)")
        given = {
            "mode": await self.mode(),
            "image": self.subject.image if container else None,
            "memory_bytes": GIB,
            "disk_bytes": 2 * GIB,
            "processes": 512,
            "token": f"token-{tag}",
            "labels": {"agentenv.home": f"home-{tag}", "agentenv.run": f"run-{tag}", "agentenv.sandbox": f"check-{tag}"},
        }
        return SandboxSpec(sandbox_id=f"check-{tag}", **{**given, **(self.subject.setting or {}), **changes})

    async def mode(self) -> str:
        """The mode that is tested."""
        if self.subject.mode is not None:
            return self.subject.mode
        return "container" if (await self.capabilities()).shape is Shape.CONTAINER_SHAPED else "vm"

    async def beside(self) -> bool:
        """What is tested is a container on a provider's machine: that machine is another place, and its limits are others."""
        return (await self.capabilities()).shape is Shape.MACHINE_BACKED and await self.mode() == "container"

    async def place_of(self, sandbox: Sandbox) -> Place:
        """The place that a sandbox of the tested mode is about: its machine, its container, or itself."""
        if await self.beside():
            return await sandbox.container(str(sandbox.info.facts["container_id"]))
        return await sandbox.machine()

    @asynccontextmanager
    async def sandbox(self, **changes: Any) -> AsyncIterator[Room]:
        """A fresh sandbox, removed afterwards."""
        provider, spec = self.make(), await self.spec(**changes)
        sandbox = await provider.create(spec)
        try:
            yield await self._room(spec, sandbox)
        finally:
            try:
                await sandbox.aclose()
            finally:
                await provider.destroy(spec.sandbox_id)
                await provider.aclose()

    @asynccontextmanager
    async def shared(self) -> AsyncIterator[Room]:
        """The sandbox that cases share which change nothing but their own folder; attached anew by each of them."""
        async with self._lock:
            if self._shared is None:
                fresh = await self.spec(ports=PORTS if "publish" in await self.declared() else ())
                await (await self.make().create(fresh)).aclose()
                self._shared = fresh
            spec = self._shared
        sandbox = await self.make().attach(spec.sandbox_id, epoch=spec.epoch, token=spec.token)
        try:
            yield await self._room(spec, sandbox)
        finally:
            await sandbox.aclose()

    async def _room(self, spec: SandboxSpec, sandbox: Sandbox) -> Room:
        place = await self.place_of(sandbox)
        home = (await place.run(Command(["sh", "-c", "pwd"]))).stdout.decode(errors="surrogateescape").strip()
        folder = PurePosixPath(home) / f"case-{secrets.token_hex(6)}"
        await place.put([Upload(folder, None)])
        own = frozenset(entry.pid for entry in await place.ledger() if entry.running)
        return Room(spec, sandbox, place, folder, own)

    @asynccontextmanager
    async def attached(self, spec: SandboxSpec, *, epoch: int, token: str | None = None) -> AsyncIterator[Sandbox]:
        """A handle that a later owner would have."""
        sandbox = await self.make().attach(spec.sandbox_id, epoch=epoch, token=spec.token if token is None else token)
        try:
            yield sandbox
        finally:
            await sandbox.aclose()

    async def ids(self, labels: Mapping[str, str]) -> list[str]:
        """What the provider lists for these labels."""
        return [info.sandbox_id async for info in self.make().list(labels)]

    async def elsewhere(self, do: str, spec: SandboxSpec, **details: Any) -> asyncio.subprocess.Process:
        """Another process that acts on a sandbox: `attach` or `create`. It answers with one line of JSON."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "agent_env.sandboxes.conformance.elsewhere",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdin is not None
        told = {name: value for name, value in asdict(spec).items() if name != "network"}
        process.stdin.write(json.dumps({"do": do, "recipe": self.subject.recipe, "spec": told, **details}).encode())
        process.stdin.write_eof()
        return process

    async def answer(self, process: asyncio.subprocess.Process) -> dict[str, Any]:
        """What the other process says before it ends."""
        async with deadline(self.limits.conformance_case_seconds, "the other process"):
            out, _ = await process.communicate()
        holds(out, "the other process ended without a word")
        answer: dict[str, Any] = json.loads(out)
        return answer

    async def aclose(self) -> None:
        """Removes the shared sandbox."""
        spec, self._shared = self._shared, None
        if spec is not None:
            async with self.turn():
                await self.make().destroy(spec.sandbox_id)

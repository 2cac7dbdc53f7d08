"""What a step needs to run here, of real parts: a confined machine, stores in a temporary folder, and a run that holds one attempt.

The engine's own run is tested with the engine; this one says nothing of journals, so that a step's own behaviour is what a test sees.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from agent_env.artifacts import Artifacts
from agent_env.clock import SystemClock
from agent_env.defaults import DEFAULT_LIMITS, MIB
from agent_env.documents.context import new_context
from agent_env.documents.records import DeployedSandbox
from agent_env.errors import DeadlineError, PlacementError, SandboxUnavailableError
from agent_env.ids import new_attempt_id, new_sandbox_id
from agent_env.places import Command, Completed, Deed, Place, PlaceKind, Recorded, TargetKind, Where, place_of
from agent_env.sandboxes.contract import Sandbox, SandboxSpec
from agent_env.sandboxes.registry import provider
from agent_env.steps import Decision, SandboxRequest, SandboxTarget, Step, StepResult, Target, read_step, step_class
from agent_env.stores import Database, Documents, Objects
from tests.folding import apply

LIMITS = replace(DEFAULT_LIMITS, kill_grace_seconds=0.5)


class BenchRun:
    """One attempt on the bench. Implements `steps.run.Run`."""

    def __init__(self, folder: Path) -> None:
        self.run_id, self.task_id, self.instance_id = "run-bench", "bench", "bench-12345678"
        self.attempt_id = new_attempt_id()
        self.attempt_number = 1
        self.limits = LIMITS
        self.clock = SystemClock()
        self.quiesce: str | None = None
        self.folder = folder
        self._db = Database.open(f"sqlite:///{folder / 'bench.db'}", limits=LIMITS)
        self.objects = Objects(folder / "objects", self._db)
        self.artifacts = Artifacts(Documents(self._db), self.objects)
        self.context: dict[str, Any] = new_context(task_id="bench")
        self.provider = provider("local", state_root=folder / "state", limits=LIMITS)
        self.sandboxes: dict[str, Sandbox] = {}
        self.requests: list[SandboxRequest] = []
        self.used_documents: list[tuple[str, str, int]] = []
        self.said: list[str] = []
        self.step_params: dict[str, Any] = {}
        self.user_overrides: dict[str, Any] = {}
        self.decision: Decision | None = None
        self.asked: dict[str, Any] = {}
        self.path: str | None = None
        """Where commands look for programs, instead of where the machine does."""
        self.secrets: dict[str, str] = {}
        """What references to secrets stand for."""
        self._scratches = 0

    @property
    def metadata(self) -> Mapping[str, Any]:
        return self.context["metadata"]

    def overrides(self) -> Mapping[str, Any]:
        return self.step_params

    def run_overrides(self) -> Mapping[str, Any]:
        return self.user_overrides

    def sandbox(self, name: str) -> DeployedSandbox:
        for record in self.context["deployed_sandboxes"]:
            if record["sandbox_name"] == name:
                return DeployedSandbox.read(record)
        raise PlacementError(f"sandbox {name!r} is not deployed")

    def agent(self, name: str) -> Any:
        raise PlacementError(f"agent {name!r} is not deployed")

    def environment(self, env_id: str, step_id: str | None = None) -> Any:
        raise PlacementError(f"environment {env_id!r} is not deployed")

    async def place(self, target: Target, deed: Deed) -> Place:
        if not isinstance(target, SandboxTarget):
            raise PlacementError(f"{target} is not deployed")
        record = self.sandbox(target.sandbox_name)
        shape = (await self.provider.capabilities()).shape
        assert place_of(TargetKind.SANDBOX, deed, Recorded(record.recorded), shape) is Where.MACHINE
        sandbox = self.sandboxes.get(record.sandbox_id)
        if sandbox is None:
            raise SandboxUnavailableError(f"sandbox {record.sandbox_id} is gone")
        place = await sandbox.machine()
        assert place.kind is PlaceKind.MACHINE
        return place if self.path is None else _OtherPath(place, self.path)

    async def deploy_sandbox(self, request: SandboxRequest) -> DeployedSandbox:
        self.requests.append(request)
        spec = SandboxSpec(
            new_sandbox_id("local"), mode=request.mode, memory_bytes=512 * MIB, processes=256, ttl_seconds=300, token="bench"
        )
        sandbox = await self.provider.create(spec)
        self.sandboxes[spec.sandbox_id] = sandbox
        return DeployedSandbox(
            sandbox_name=request.sandbox_name, sandbox_id=spec.sandbox_id, sandbox_mode=request.mode, sandbox_type="local", placement="vm"
        )

    async def teardown_sandbox(self, sandbox_id: str) -> bool:
        sandbox = self.sandboxes.pop(sandbox_id, None)
        if sandbox is not None:
            await sandbox.aclose()
        return await self.provider.destroy(sandbox_id)

    async def review(self, *, label: str | None, upstream: Any, timeout_seconds: float) -> Decision:
        self.asked = {"label": label, "upstream": upstream, "timeout_seconds": timeout_seconds}
        if self.decision is None:
            raise DeadlineError("the review did not end within its time")
        return self.decision

    def secret(self, text: str) -> str:
        return self.secrets.get(text, f"<{text}>") if text.startswith(("env:", "secret:")) else text

    def redacted(self, output: bytes) -> bytes:
        return output

    def scratch(self) -> Path:
        folder = self.folder / f"scratch-{self._scratches}"
        folder.mkdir(exist_ok=True, mode=0o700)
        return folder

    def used(self, collection: str, id: str, version: int, digest: str) -> None:
        assert digest
        self.used_documents.append((collection, id, version))

    def progress(self, message: str, *, done: int | None = None, total: int | None = None) -> None:
        self.said.append(message)

    # What a test uses beside the contract

    async def do(self, data: dict[str, Any]) -> StepResult:
        """Runs a step as one attempt of its own, and keeps what it adds to the context."""
        step = self.step(data)
        self.attempt_id = new_attempt_id()
        self._scratches += 1
        result = await step.execute(self)
        apply(self.context, result.updates())
        return result

    def step(self, data: dict[str, Any]) -> Step:
        """A step of the sandbox `box`, unless it says otherwise or has no such target."""
        named = {"sandbox_name": "box"} if "sandbox_name" in step_class(data["type"]).model_fields else {}
        return read_step({"id": data["type"], **named, **data}, source="bench")[0]

    async def box(self) -> Place:
        """The machine of the sandbox `box`."""
        return await self.place(SandboxTarget("box"), Deed.VERIFY)

    async def sh(self, text: str) -> str:
        """Runs shell text there, which must succeed."""
        done = await (await self.box()).run(Command(["sh", "-c", text]))
        assert done.ok, done
        return done.stdout.decode()

    async def aclose(self) -> None:
        for sandbox_id in list(self.sandboxes):
            await self.teardown_sandbox(sandbox_id)
        await self.provider.aclose()
        self._db.close()


class _OtherPath:
    """A real place whose commands look for programs elsewhere: what a place without some program is like."""

    def __init__(self, place: Place, path: str) -> None:
        self._place = place
        self._path = path

    def __getattr__(self, name: str) -> Any:
        return getattr(self._place, name)

    async def run(self, command: Command) -> Completed:
        return await self._place.run(replace(command, env={**command.env, "PATH": self._path}))


@asynccontextmanager
async def bench(folder: Path, *, deployed: bool = True) -> AsyncIterator[BenchRun]:
    """A run, with a sandbox `box` that has an empty folder `/data`; everything is removed at the end."""
    run = BenchRun(folder)
    try:
        if deployed:
            await run.do({"id": "box", "type": "deploy_sandbox", "sandbox_mode": "vm"})
            await run.sh("mkdir /data")
        yield run
    finally:
        await run.aclose()


def on_bench(folder: Path, test: Callable[[BenchRun], Awaitable[None]], *, deployed: bool = True) -> None:
    """Runs a test's body on a bench."""

    async def body() -> None:
        async with bench(folder, deployed=deployed) as run:
            await test(run)

    asyncio.run(body())

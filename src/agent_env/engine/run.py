"""What a step sees of its run: one object per attempt. Implements `steps.run.Run`."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from agent_env.clock import Clock
from agent_env.defaults import Limits
from agent_env.documents.records import DeployedAgent, DeployedContainer, DeployedEnvironment, DeployedSandbox, Record
from agent_env.documents.updates import Json
from agent_env.engine.control import run_folder
from agent_env.engine.events import REVIEW_ASKED, STEP_PROGRESS
from agent_env.engine.shared import Shared, recorded
from agent_env.errors import ContainerNotRunningError, PlacementError, SandboxUnavailableError
from agent_env.places import Deed, Place, Recorded, Shape, TargetKind, Where, place_of
from agent_env.steps.contract import AgentRequest, ContainerRequest, Decision, EnvironmentRequest, InstallRequest, SandboxRequest
from agent_env.steps.targets import AgentTarget, EnvironmentTarget, SandboxTarget, Target
from agent_env.stores.records import UsedDocument
from agent_env.stores.secrets import is_reference
from agent_env.waiting import deadline

if TYPE_CHECKING:
    from agent_env.agents import LiveAgent, McpServer
    from agent_env.artifacts import Artifacts
    from agent_env.broker import Models
    from agent_env.environments import LiveEnvironment
    from agent_env.images import Wheelhouse
    from agent_env.stores import Objects


class AttemptRun:
    """One attempt's view of its run."""

    def __init__(self, shared: Shared, step_id: str, attempt_id: str, attempt_number: int) -> None:
        self.run_id = shared.run_id
        self.task_id = shared.task_id
        self.instance_id = shared.instance_id
        self.attempt_id = attempt_id
        self.attempt_number = attempt_number
        self.limits: Limits = shared.limits
        self.clock: Clock = shared.clock
        self.quiesce = shared.quiesce
        self.artifacts: Artifacts = shared.stores.artifacts
        self.objects: Objects = shared.stores.objects
        self.used_documents: dict[UsedDocument, None] = {}
        self._shared = shared
        self._step_id = step_id
        self._scratch: Path | None = None
        self._places: dict[str, Place] = {}

    @property
    def models(self) -> Models:
        """Models for agents, simulated users and judges."""
        return self._shared.models()

    @property
    def human_url(self) -> str | None:
        """Where people answer."""
        return self._shared.agents.human_url

    @property
    def context(self) -> Mapping[str, Json]:
        """The run's context as committed so far; writing into it raises."""
        return self._shared.context()

    @property
    def metadata(self) -> Mapping[str, Json]:
        """`context["metadata"]`."""
        metadata = self.context.get("metadata")
        return metadata if isinstance(metadata, Mapping) else {}

    def run_overrides(self) -> Mapping[str, Json]:
        """`metadata.user_overrides`, with the secrets that are not stored."""
        return self._shared.overrides

    def overrides(self) -> Mapping[str, Json]:
        """The overrides of this step."""
        params = self._shared.overrides.get("step_params") or {}
        own = params.get(self._step_id) or {}
        return own if isinstance(own, Mapping) else {}

    def sandbox(self, name: str) -> DeployedSandbox:
        """The deployed sandbox of that name."""
        return DeployedSandbox.read(recorded(self.context, "deployed_sandboxes", "sandbox_name", name, "sandbox"))

    def agent_record(self, name: str) -> DeployedAgent:
        """The record of the deployed agent of that name."""
        return DeployedAgent.read(recorded(self.context, "deployed_agents", "agent_name", name, "agent"))

    async def agent(self, name: str) -> LiveAgent:
        """The deployed agent of that name, at hand."""
        return await self._shared.live_agents().live(self.agent_record(name), self.attempt_id, self.progress, needed=True)

    async def agent_at(self, record: DeployedAgent) -> LiveAgent:
        """An agent that is known by its address alone."""
        return await self._shared.live_agents().live(record, self.attempt_id, self.progress)

    async def install_agent(self, request: InstallRequest) -> DeployedAgent:
        """Installs an agent into a place of the run."""
        made = self._shared.live_agents()
        record, used = await made.install(request, self.attempt_id, self.progress, self.scratch() / "images")
        for document in used:
            self.used(*document)
        return record

    async def peer_access(self, source: str, peer: str) -> McpServer:
        """How one deployed agent reaches another."""
        made = self._shared.live_agents()
        return await made.way_to_peer(self.agent_record(source), self.agent_record(peer), self.attempt_id, self.progress)

    async def executor_access(self, environment: DeployedEnvironment, agent: str) -> McpServer:
        """How an environment's gateway reaches a deployed agent."""
        made = self._shared.live_agents()
        return await made.way_to_executor(environment, self.agent_record(agent), self.attempt_id, self.progress)

    async def deploy_agent(self, request: AgentRequest) -> DeployedAgent:
        """Journals and deploys an agent."""
        made = self._shared.live_agents()
        record, used = await made.deploy(request, self.attempt_id, self.progress, self.scratch() / "images")
        for document in used:
            self.used(*document)
        return record

    async def note_prompt(self, message_id: str, agent_name: str, facts: Mapping[str, Json]) -> None:
        """Writes down, before and while it is worked on, what finds a prompt again after a kill."""
        await self._shared.live_agents().prompts.note(message_id, agent_name, self.attempt_id, facts)

    def noted_prompt(self, message_id: str) -> Mapping[str, Json] | None:
        """What was written down of a prompt; None where nothing was."""
        return self._shared.live_agents().prompts.noted(message_id)

    async def prompt_over(self, message_id: str) -> None:
        """A prompt has ended, whichever way."""
        await self._shared.live_agents().prompts.over(message_id)

    async def environment(self, env_id: str, step_id: str | None = None) -> LiveEnvironment:
        """The deployed environment of that id (by that step), at hand."""
        record = self.environment_record(env_id, step_id)
        live = await self._shared.live_environments().live(record, self.attempt_id, self.progress)
        changes = self.metadata.get("tool_access_changes")
        if changes:
            from agent_env.environments.rules import tell_again

            await tell_again(live, changes, self._shared.ruled)
        return live

    async def deploy_environment(self, request: EnvironmentRequest) -> DeployedEnvironment:
        """Journals and deploys an environment."""
        made = self._shared.live_environments()
        record, used = await made.deploy(request, self.attempt_id, self.progress, self.scratch() / "images")
        for document in used:
            self.used(*document)
        return record

    def environment_record(self, env_id: str, step_id: str | None = None) -> DeployedEnvironment:
        """The record of the deployed environment of that id (by that step)."""
        return self._shared.environment_record(env_id, step_id)

    async def place(self, target: Target, deed: Deed) -> Place:
        """The one place where this deed on this target acts, live. See `places.placement`."""
        match target:
            case SandboxTarget(name, None):
                sandbox = self.sandbox(name)
                kind, recorded = TargetKind.SANDBOX, Recorded(sandbox.recorded)
                return await self._resolve(sandbox, sandbox.sandbox_id, kind, deed, recorded, container=sandbox.container_id)
            case SandboxTarget(name, container_name):
                sandbox, container = self.sandbox(name), self._container(name, str(container_name))
                return await self._resolve(
                    sandbox, sandbox.sandbox_id, TargetKind.CONTAINER, deed, Recorded.STARTED_HERE, container=container
                )
            case AgentTarget(name):
                agent = self.agent_record(name)
                recorded = Recorded(agent.recorded)
                return await self._resolve(agent, agent.sandbox_id, TargetKind.AGENT, deed, recorded, container=agent.container_id)
            case EnvironmentTarget(env_id, step_id, server):
                live = await self.environment(env_id, step_id)
                # The environment knows its own shape; both of its rows are in the table, and a deed that it lacks is refused there.
                where = place_of(TargetKind.ENVIRONMENT, deed, Recorded.ANY, Shape.MACHINE_BACKED)
                place = await (live.machine() if where is Where.MACHINE else live.place(server or _only_part(live)))
                self._places[place.id] = place
                return place

    async def _resolve(
        self, record: Record, sandbox_id: str | None, kind: TargetKind, deed: Deed, recorded: Recorded, *, container: str | None
    ) -> Place:
        if sandbox_id is None:
            raise PlacementError(f"the {kind.name.lower()} was recorded without a sandbox, so nothing says where it runs")
        held = await self._shared.sandboxes.hold(sandbox_id, getattr(record, "sandbox_type", None))
        where = place_of(kind, deed, recorded, held.shape)
        async with deadline(self.limits.connect_seconds, f"reaching a place of sandbox {sandbox_id}"):
            if where in (Where.MACHINE, Where.SANDBOX_ITSELF):
                place = await held.sandbox.machine()
            else:
                container = container or await self._shared.sandboxes.own_container(sandbox_id, held)
                if container is None:
                    raise SandboxUnavailableError(
                        f"the {kind.name.lower()} was recorded as {recorded!s}, without a container id, and sandbox {sandbox_id} has no "
                        f"container of its own: none is called 'agent-{sandbox_id}' and carries the sandbox's label",
                        concerns=sandbox_id,
                        hint="no other container takes its part; deploy it again",
                    )
                place = await held.sandbox.container(container)
        self._places[place.id] = place
        return place

    def _container(self, sandbox_name: str, container_name: str) -> str:
        records = self.metadata.get("deployed_docker_containers") or ()
        ours = [record for record in records if record.get("sandbox_name") == sandbox_name]
        for record in ours:
            if record.get("container_name") == container_name and record.get("container_id"):
                return str(record["container_id"])
        known = sorted(str(record.get("container_name")) for record in ours)
        raise PlacementError(f"this run started no container {container_name!r} on sandbox {sandbox_name!r} (started: {known})")

    async def deploy_sandbox(self, request: SandboxRequest) -> DeployedSandbox:
        """Journals and creates a sandbox."""
        return await self._shared.sandboxes.deploy(request, self.attempt_id)

    async def start_container(self, request: ContainerRequest) -> DeployedContainer:
        """Journals and starts a container beside a sandbox's machine."""
        from agent_env.engine.containers import start

        return await start(self._shared, request, self.sandbox(request.sandbox_name), self.attempt_id, self.progress)

    async def container_failure(self, record: DeployedContainer) -> ContainerNotRunningError | None:
        """How a container beside a machine has failed."""
        from agent_env.containers.state import failed

        held = await self._shared.sandboxes.hold(str(record.sandbox_id))
        return await failed(await held.sandbox.engine(), str(record.container_id), record.container_name)

    async def teardown_sandbox(self, sandbox_id: str) -> bool:
        """Destroys a sandbox and closes its journal row."""
        report = await self._shared.sandboxes.destroy([sandbox_id])
        for why in report.failed.values():
            raise SandboxUnavailableError(f"sandbox {sandbox_id} could not be removed: {why}", concerns=sandbox_id)
        return bool(report.removed)

    async def review(self, *, label: str | None, upstream: Json, timeout_seconds: float) -> Decision:
        """Publishes a question and waits for a person's answer."""
        answer: asyncio.Future[Decision] = asyncio.get_running_loop().create_future()
        self._shared.reviews[self._step_id] = answer
        try:
            await self._shared.stores.journal.ask(
                self._shared.lease, self._step_id, self.attempt_id, label=label, upstream=self._shared.redactor.redact(upstream)
            )
            self._shared.events.emit(REVIEW_ASKED, self._step_id, label=label)
            self._shared.look_for_answer(self._step_id)
            async with deadline(timeout_seconds, "the review"):
                return await answer
        finally:
            self._shared.reviews.pop(self._step_id, None)

    def secret(self, text: str) -> str:
        """Resolves a reference. The value is redacted from now on."""
        if not is_reference(text):
            return text
        value = self._shared.stores.secrets.resolve(text).reveal()
        self._shared.redactor.add(value)
        return value

    def redacted(self, output: bytes) -> bytes:
        """What a program said, as it may be kept."""
        return self._shared.redactor.redact(output)

    def wheelhouse(self) -> Wheelhouse:
        """The packages that this installation fetches for places."""
        from agent_env.images import Wheelhouse

        return Wheelhouse(self._shared.state_root, limits=self.limits, clock=self.clock)

    def scratch(self) -> Path:
        """A private folder of this machine for this attempt, removed when it ends."""
        if self._scratch is None:
            folder = run_folder(self._shared.state_root, self.run_id) / "scratch" / self.attempt_id
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            folder.chmod(0o700)
            self._scratch = folder
        return self._scratch

    def used(self, collection: str, id: str, version: int, digest: str) -> None:
        """Notes a document that the run depends on."""
        self.used_documents[UsedDocument(collection, id, version, digest)] = None

    def progress(self, message: str, *, done: int | None = None, total: int | None = None) -> None:
        """Tells whoever watches."""
        self._shared.events.emit(STEP_PROGRESS, self._step_id, message=message, done=done, total=total)

    async def stop(self) -> None:
        """Kills what this attempt may have left in the places that it used."""
        async with asyncio.TaskGroup() as group:
            for place in self._places.values():
                group.create_task(place.stop_attempt(self.attempt_id))

    def close(self) -> None:
        """Removes the scratch folder."""
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)
            self._scratch = None


def _only_part(live: LiveEnvironment) -> str:
    if len(live.parts) == 1:
        return next(iter(live.parts))
    there = ", ".join(map(repr, live.parts)) or "none"
    raise PlacementError(
        f"environment {live.record.env_id!r} has several servers ({there}), and none is named",
        concerns=live.record.env_id,
        hint="set environment_name",
    )

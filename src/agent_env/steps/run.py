"""What a step may ask of its run, once its turn has come. `engine` implements it; tests of steps have one of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from agent_env.documents.updates import Json
from agent_env.steps.requests import AgentRequest, ContainerRequest, EnvironmentRequest, InstallRequest, SandboxRequest

if TYPE_CHECKING:
    from agent_env.agents import LiveAgent, McpServer
    from agent_env.artifacts import Artifacts
    from agent_env.broker import Models
    from agent_env.clock import Clock
    from agent_env.defaults import Limits
    from agent_env.documents.records import DeployedAgent, DeployedContainer, DeployedEnvironment, DeployedSandbox
    from agent_env.environments import LiveEnvironment
    from agent_env.errors import ContainerNotRunningError
    from agent_env.images import Wheelhouse
    from agent_env.places import Deed, Place
    from agent_env.steps.targets import Target
    from agent_env.stores import Objects

Tell = Callable[[str], None]
"""Hears what goes on in a long step."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What a person decided about a waiting review."""

    decision: Literal["continue", "abort"]
    decided_by: str


class Run(Protocol):
    """What a step may ask of its run. One object per attempt."""

    run_id: str
    task_id: str
    instance_id: str
    attempt_id: str
    """Idempotency key of this attempt: staging folders, exec ledger, message ids."""
    attempt_number: int
    """1 for the first attempt of the step in this run."""
    limits: Limits
    clock: Clock
    quiesce: str | None
    """`freeze` or `kill`: what a verifier without a word of its own does with what still runs while it looks; None leaves it."""
    artifacts: Artifacts
    objects: Objects

    @property
    def models(self) -> Models:
        """Models for agents, simulated users and judges, by way of the broker."""
        ...

    @property
    def human_url(self) -> str | None:
        """Where people answer, as the configuration says."""
        ...

    @property
    def context(self) -> Mapping[str, Json]:
        """The run's context document as committed so far. Read only."""
        ...

    @property
    def metadata(self) -> Mapping[str, Json]:
        """`context["metadata"]`. Read only."""
        ...

    def overrides(self) -> Mapping[str, Json]:
        """`metadata.user_overrides.step_params[<this step>]`, or nothing."""
        ...

    def run_overrides(self) -> Mapping[str, Json]:
        """`metadata.user_overrides`, or nothing."""
        ...

    def sandbox(self, name: str) -> DeployedSandbox:
        """The deployed sandbox of that name. Raises `PlacementError` that lists what is deployed."""
        ...

    def agent_record(self, name: str) -> DeployedAgent:
        """The record of the deployed agent of that name. Raises `PlacementError` that lists what is deployed."""
        ...

    async def agent(self, name: str) -> LiveAgent:
        """The deployed agent of that name, at hand; the run lets go of it when it ends.

        Raises:
            PlacementError: It is not deployed.
            SandboxUnavailableError: It was, and its sandbox is gone.
        """
        ...

    async def agent_at(self, record: DeployedAgent) -> LiveAgent:
        """An agent that is known by its address alone."""
        ...

    async def install_agent(self, request: InstallRequest) -> DeployedAgent:
        """Installs an agent into a place of the run. Its record is what the step returns to the context.

        Raises:
            UserError: It can't be installed as asked.
            InfrastructureError: It did not come up.
        """
        ...

    async def peer_access(self, source: str, peer: str) -> McpServer:
        """How one deployed agent reaches another: its address as seen from there, and the token that it wants.

        Raises:
            PlacementError: One of them is not deployed.
            UserError: The other one has no address.
        """
        ...

    async def executor_access(self, environment: DeployedEnvironment, agent: str) -> McpServer:
        """How an environment's gateway reaches a deployed agent: its address as seen from there, and the token that it wants.

        Raises:
            PlacementError: The agent is not deployed.
            UserError: It has no address.
        """
        ...

    async def deploy_agent(self, request: AgentRequest) -> DeployedAgent:
        """Deploys an agent and gives it what it was asked to have. Its record is what the step returns to the context.

        Raises:
            UserError: It can't be deployed as asked.
            InfrastructureError: It did not come up; nothing of it is left.
        """
        ...

    async def note_prompt(self, message_id: str, agent_name: str, facts: Mapping[str, Json]) -> None:
        """Writes down, before and while it is worked on, what finds a prompt again after a kill. Facts are merged key by key."""
        ...

    def noted_prompt(self, message_id: str) -> Mapping[str, Json] | None:
        """What was written down of a prompt, also by an earlier process; None where nothing was."""
        ...

    async def prompt_over(self, message_id: str) -> None:
        """A prompt has ended, whichever way."""
        ...

    def environment_record(self, env_id: str, step_id: str | None = None) -> DeployedEnvironment:
        """The record of the deployed environment of that id (by that step). Raises `PlacementError` that lists what is deployed."""
        ...

    async def environment(self, env_id: str, step_id: str | None = None) -> LiveEnvironment:
        """The deployed environment of that id (by that step), at hand; the run lets go of it when it ends.

        Raises:
            PlacementError: It is not deployed.
            SandboxUnavailableError: It was, and something of it is not running.
        """
        ...

    async def deploy_environment(self, request: EnvironmentRequest) -> DeployedEnvironment:
        """Deploys an environment. Its record is what the step returns to the context.

        Raises:
            UserError: Its documents can't be deployed as asked.
            InfrastructureError: It did not come up; nothing of it is left.
        """
        ...

    async def place(self, target: Target, deed: Deed) -> Place:
        """The one place where this deed on this target acts, live.

        Raises:
            PlacementError: The table has no place for it.
            SandboxUnavailableError: It was recorded, and is not running.
        """
        ...

    async def deploy_sandbox(self, request: SandboxRequest) -> DeployedSandbox:
        """Journals and creates a sandbox. Its record is what the step returns to the context."""
        ...

    async def start_container(self, request: ContainerRequest) -> DeployedContainer:
        """Journals and starts a container beside a sandbox's machine. Its record is what the step returns to the context.

        Raises:
            UserError: It wants what this user's configuration grants no task, or its name is taken.
            UnsupportedError: The sandbox has no container engine, or its network policy can't be held for the container.
            InfrastructureError: It could not be built, fetched, made or started.
        """
        ...

    async def container_failure(self, record: DeployedContainer) -> ContainerNotRunningError | None:
        """What says how a container that was started beside a machine has failed; None while it runs, or has ended well."""
        ...

    async def teardown_sandbox(self, sandbox_id: str) -> bool:
        """Destroys a sandbox and closes its journal row. Returns whether there was anything to remove."""
        ...

    async def review(self, *, label: str | None, upstream: Json, timeout_seconds: float) -> Decision:
        """Publishes a question and waits for a person's answer (`runs review`), without polling where the answer comes here.

        Raises:
            DeadlineError: Nobody answered in time.
        """
        ...

    def secret(self, text: str) -> str:
        """Resolves an `env:NAME` or `secret:KEY` reference; other text comes back as it is. The value is redacted from now on."""
        ...

    def redacted(self, output: bytes) -> bytes:
        """What a program said, without the secrets that are known by now: as it may be kept."""
        ...

    def wheelhouse(self) -> Wheelhouse:
        """The packages that this installation fetches for places."""
        ...

    def scratch(self) -> Path:
        """A private folder of this machine (0700) for this attempt, removed when it ends."""
        ...

    def used(self, collection: str, id: str, version: int, digest: str) -> None:
        """Notes a document that the run depends on."""
        ...

    def progress(self, message: str, *, done: int | None = None, total: int | None = None) -> None:
        """Tells whoever watches what is going on in a long step."""
        ...

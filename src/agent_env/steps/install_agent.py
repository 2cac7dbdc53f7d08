"""`install_agent`: an agent put into a container or onto a machine that is there already."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar

from pydantic import Field

from agent_env.documents.updates import Json
from agent_env.errors import PlacementError, Problem, UserError
from agent_env.steps.contract import EntityRef, InstallRequest, OnResume, Plan, Run, Step, apart
from agent_env.steps.deploy_agent import AgentDeployed, first_model
from agent_env.steps.fields import OptionalName, Whole
from agent_env.steps.targets import DEFAULT_AGENT


class InstallAgent(Step, type="install_agent"):
    """Install an agent into a container that this run started, or onto the machine of a sandbox."""

    on_resume: ClassVar[OnResume] = OnResume.REPEAT
    entity_refs: ClassVar[tuple[EntityRef, ...] | None] = (EntityRef("agent", "a2a_agent_id", version_field="a2a_agent_version"),)
    user_fields: ClassVar[frozenset[str]] = frozenset({"a2a_agent_id", "a2a_agent_version"})

    sandbox_name: str = Field(min_length=1)
    """A deployed sandbox of mode `vm`."""
    container_name: OptionalName = None
    """A container that this run started on it; absent is the machine itself."""
    a2a_agent_id: OptionalName = None
    """The agent's document, or a name of an installed bundle; absent is the configured default."""
    a2a_agent_version: Annotated[Whole, Field(ge=1)] | None = None
    """Its version; the newest when absent."""
    agent_name: str = Field(default=DEFAULT_AGENT, min_length=1)
    """The name that later steps use; unique in the task."""
    a2a_port: Annotated[Whole, Field(ge=1, le=65535)] | None = None
    """Where it listens; the agent's own word when absent."""
    workspace_dir: OptionalName = None
    """Where it works, where it lets that be chosen."""

    def problems(self, plan: Plan) -> Iterator[Problem]:
        """A name can be deployed once, and only a machine has room for an agent beside what runs there."""
        return apart(self._own_name(plan), self._machine(plan))

    def _own_name(self, plan: Plan) -> Iterator[Problem]:
        for type in ("deploy_agent", "install_agent", "deploy_human_agent"):
            for other in plan.deployers(self.id, type, agent_name=self.agent_name):
                message = f"Agent {self.agent_name!r} is already deployed by step {other.id!r}"
                yield Problem(message, path=".agent_name", hint="give one of them another name")

    def _machine(self, plan: Plan) -> Iterator[Problem]:
        for other in plan.deployers(self.id, "deploy_sandbox", sandbox_name=self.sandbox_name):
            if getattr(other, "sandbox_mode", "vm") != "vm":
                message = f"sandbox {self.sandbox_name!r} is a container; an agent is installed beside or onto a machine"
                yield Problem(message, path=".sandbox_name", hint="deploy it with sandbox_mode 'vm'")

    async def execute(self, run: Run) -> AgentDeployed:
        """Runs the agent's own install commands, and waits until it answers.

        Raises:
            UserError: It can't be installed as asked.
            InfrastructureError: It did not come up.
        """
        if any(record.get("agent_name") == self.agent_name for record in run.context.get("deployed_agents") or ()):
            raise UserError(f"Agent with name {self.agent_name!r} is already deployed", concerns=self.agent_name)
        sandbox = run.sandbox(self.sandbox_name)
        if sandbox.recorded != "vm":
            raise UserError(f"sandbox {self.sandbox_name!r} is a container, not a machine", concerns=self.id)
        own, overrides = run.overrides(), run.run_overrides()
        chosen = own.get("a2a_agent_id") or overrides.get("a2a_agent_id")
        container = self._container(run) if self.container_name else {}
        ports = {int(port): int(url.rpartition(":")[2]) for port, url in (sandbox.tunnel_urls or {}).items()}
        request = InstallRequest(
            agent_name=self.agent_name,
            sandbox_id=sandbox.sandbox_id,
            sandbox_type=sandbox.sandbox_type,
            agent_id=str(chosen) if chosen else self.a2a_agent_id,
            agent_version=None if chosen else self.a2a_agent_version,
            container_id=container.get("container_id"),
            container_name=self.container_name,
            port=self.a2a_port,
            ports={} if self.container_name else ports,
            workspace_dir=self.workspace_dir,
        )
        record = await run.install_agent(request)
        return AgentDeployed(record, default_model=first_model(run, record))

    def _container(self, run: Run) -> Mapping[str, Json]:
        records: list[Any] = [
            each for each in run.metadata.get("deployed_docker_containers") or () if each.get("sandbox_name") == self.sandbox_name
        ]
        found = next((each for each in records if each.get("container_name") == self.container_name), None)
        if found is None:
            known = sorted(str(each.get("container_name")) for each in records)
            raise PlacementError(
                f"this run started no container {self.container_name!r} on sandbox {self.sandbox_name!r} (started: {known})",
                concerns=self.id,
            )
        return dict(found)

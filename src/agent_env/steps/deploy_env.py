"""`deploy_env`: an environment's servers, brought up together and ready."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator

from agent_env.defaults import DEFAULT_LIMITS, GIB, MIB
from agent_env.documents.records import DeployedAgent, DeployedEnvironment
from agent_env.documents.updates import AppendRecord, Json, Update
from agent_env.environments.contract import DeployOptions
from agent_env.errors import AgentEnvError, Problem, UserError
from agent_env.steps.contract import EntityRef, EnvironmentRequest, OnResume, Plan, Run, Step, StepResult, apart
from agent_env.steps.deploy_sandbox import overridden_seconds
from agent_env.steps.fields import Number, OptionalName, Seconds, Whole
from agent_env.steps.limited import LimitDefault

if TYPE_CHECKING:
    from agent_env.artifacts import Artifacts
    from agent_env.defaults import Limits
    from agent_env.images import BuildRequest

DEPLOYED_AGENT = "deployed_agent"
"""Where a plug-in's record hands back an agent that it brought up."""
_OPTIONS: Mapping[str, str] = {
    "gateway_mode": "gateway_mode",
    "cpu": "cpu",
    "memory_mb": "memory_bytes",
    "env_state_type": "env_state_type",
    "env_state_instance_id": "env_state_instance_id",
    "artifact_id": "artifact_id",
    "namespacing": "namespacing",
    "inspection": "inspection",
    "unauthenticated_role": "unauthenticated_role",
}
"""Field of the step → option that a provider may not take."""
_PARTS = frozenset({"gateway_server", "service_db", "computer_driver"})
"""Types of environment that are not deployed by themselves."""


@dataclass(frozen=True, slots=True)
class EnvironmentDeployed(StepResult):
    """The record of the new environment, and of an agent that came with it."""

    record: DeployedEnvironment
    agent: DeployedAgent | None = None

    def updates(self) -> Iterator[Update]:
        """Appends them."""
        yield AppendRecord("deployed_envs", self.record.to_json())
        if self.agent is not None:
            yield AppendRecord("deployed_agents", self.agent.to_json())

    def summary(self) -> str:
        """Which deployment, and where."""
        return f"{self.record.instance_id}: {self.record.server_url or 'no MCP endpoint'}"


class DeployEnv(Step, type="deploy_env"):
    """Deploy an environment: its servers, websites and database, behind a gateway or one server alone, as its document says."""

    on_resume: ClassVar[OnResume] = OnResume.REPEAT
    entity_refs: ClassVar[tuple[EntityRef, ...] | None] = (
        EntityRef("env", "env_id", version_field="env_version"),
        EntityRef("artifact", "artifact_id", version_field="artifact_version"),
    )
    user_fields: ClassVar[frozenset[str]] = frozenset({"sandbox_type", "env_state_type", "env_state_instance_id", "metadata.attribution"})
    own_fields: ClassVar[frozenset[str]] = frozenset({"namespacing", "inspection", "unauthenticated_role"})

    env_id: str = Field(min_length=1)
    """The environment's document; later steps name the deployment by it."""
    env_version: Annotated[Whole, Field(ge=1)] | None = None
    """Its version; the newest when absent."""
    ttl_seconds: Annotated[Seconds, LimitDefault("sandbox_ttl_seconds")] = DEFAULT_LIMITS.sandbox_ttl_seconds
    """When its sandboxes end by themselves, in seconds after their start."""
    disk_size_gb: Annotated[Number, Field(gt=0), LimitDefault("sandbox_disk_bytes", GIB)] = DEFAULT_LIMITS.sandbox_disk_bytes // GIB
    """Limit of disk space in GiB."""
    gateway_mode: Literal["performance", "consistent"] = "performance"
    """`consistent`: one tool call at a time, over all servers."""
    cpu: Annotated[Number, Field(gt=0)] | None = None
    """Limit of processor cores."""
    memory_mb: Annotated[Whole, Field(gt=0)] | None = None
    """Limit of memory in MiB."""
    sandbox_type: OptionalName = None
    """The provider of sandboxes, or a comma-separated chain of them; absent is the configured default."""
    env_state_type: OptionalName = None
    """`local_postgres`: with a database, also where no server asks for one."""
    env_state_instance_id: OptionalName = None
    """A database that is there already, where a provider takes one."""
    artifact_id: OptionalName = None
    """Handed on to a provider that takes one."""
    artifact_version: Annotated[Whole, Field(ge=1)] | None = None
    """Its version."""
    metadata: dict[str, Any] = Field(default_factory=dict)
    """Kept in the record; `metadata.attribution` (text to text) is handed to the provider of sandboxes as labels."""
    namespacing: bool = False
    """Tools that two servers call the same get their server's name before theirs; otherwise such a clash is refused."""
    inspection: bool = False
    """The database's own inspection tools run too."""
    unauthenticated_role: OptionalName = None
    """The role of agents that can't send a token; absent: nobody gets in without one."""

    @field_validator("metadata")
    @classmethod
    def _attribution_is_text(cls, value: dict[str, Any]) -> dict[str, Any]:
        attribution = value.get("attribution") or {}
        if not isinstance(attribution, dict) or not all(isinstance(text, str) for text in attribution.values()):
            raise ValueError("attribution maps texts to texts")
        return value

    def problems(self, plan: Plan) -> Iterator[Problem]:
        """The environment must exist and be deployable by its provider; an id can be deployed once."""
        return apart(self._own_id(plan), self._deployable(plan))

    def _own_id(self, plan: Plan) -> Iterator[Problem]:
        for other in plan.deployers(self.id, self.type_name, env_id=self.env_id):
            yield Problem(f"Env {self.env_id!r} is already deployed by step {other.id!r}", path=".env_id", hint="a task deploys each once")

    def _deployable(self, plan: Plan) -> Iterator[Problem]:
        if plan.artifacts is None:
            return
        document = plan.environment(self.env_id, self.env_version)
        if document is None:
            version = f" version {self.env_version}" if self.env_version else ""
            yield Problem(f"env {self.env_id!r}{version} can't be loaded: there is none", path=".env_id", hint="agent-env env list")
        elif document.get("version") is None:
            yield from self._refused(str(document.get("env_provider_type") or "gateway"), told=True)
        elif document.get("type") in _PARTS:
            message = f"env {self.env_id!r} is a {document['type']}, which is not deployed by itself"
            yield Problem(message, path=".env_id", hint="serve a driver from an image, as an mcp_server; the others stand beside a gateway")
        else:
            yield from self._refused(str(document.get("env_provider_type") or "gateway"))

    def _refused(self, provider: str, *, told: bool = False) -> Iterator[Problem]:
        """Fields that the provider does not take. `told`: whoever writes the environment says what is wrong with its provider."""
        from agent_env.environments.registry import environment_provider

        try:
            taken = environment_provider(provider).options
        except AgentEnvError as error:
            if not told:
                yield Problem(error.message, path=".env_id", hint=error.hint)
            return
        for field in sorted(_OPTIONS.keys() & self.model_fields_set):
            if getattr(self, field) != type(self).model_fields[field].default and _OPTIONS[field] not in taken:
                yield Problem(f"the environment provider {provider!r} does not take {field}", path=f".{field}", hint="leave it out")

    def images(self, artifacts: Artifacts, folder: Path, limits: Limits) -> Sequence[str | BuildRequest]:
        """Those of all its servers and websites, however they are had."""
        from agent_env.environments.lookup import StoredLookup, images_of
        from agent_env.images import SavedImage

        found = images_of(StoredLookup(artifacts, folder, limits=limits), self.env_id, self.env_version)
        return [image for image in found if not isinstance(image, SavedImage)]

    async def execute(self, run: Run) -> EnvironmentDeployed:
        """Asks the engine, which journals everything before it exists.

        Raises:
            UserError: It is deployed already, or its document can't be.
            ToolNameClashError: Two of its servers have a tool of one name.
            InfrastructureError: It did not come up; nothing of it is left.
        """
        if any(record.get("env_id") == self.env_id for record in run.context.get("deployed_envs") or ()):
            raise UserError(f"Env {self.env_id!r} is already deployed", concerns=self.env_id)
        record = await run.deploy_environment(self._request(run))
        return EnvironmentDeployed(record, self._agent(run, record))

    def _request(self, run: Run) -> EnvironmentRequest:
        overrides = run.run_overrides()

        def chosen(name: str, otherwise: str | None) -> str | None:
            value = overrides.get(name)
            return value if isinstance(value, str) and value.strip() else otherwise

        task = run.metadata.get("task_id") or run.task_id
        attribution = {**(self.metadata.get("attribution") or {}), "pipeline_step": f"{task}_{self.id}", "run_id": run.instance_id}
        options = DeployOptions(
            ttl_seconds=overridden_seconds(overrides.get("ttl_seconds"), self.ttl_seconds),
            disk_bytes=int(self.disk_size_gb * GIB),
            cpu=self.cpu or 0.0,
            memory_bytes=(self.memory_mb or 0) * MIB,
            gateway_mode=self.gateway_mode,
            env_state_type=chosen("env_state_type", self.env_state_type),
            env_state_instance_id=chosen("env_state_instance_id", self.env_state_instance_id),
            attribution=attribution,
            artifact_id=self.artifact_id,
            artifact_version=self.artifact_version,
            namespacing=self.namespacing,
            inspection=self.inspection,
            unauthenticated_role=self.unauthenticated_role,
        )
        return EnvironmentRequest(
            env_id=self.env_id,
            env_version=self.env_version,
            provider=chosen("env_sandbox", self.sandbox_type),
            options=options,
            step_id=self.id,
            metadata=self.metadata,
        )

    def _agent(self, run: Run, record: DeployedEnvironment) -> DeployedAgent | None:
        told: Json = record.metadata.get(DEPLOYED_AGENT)
        if not isinstance(told, Mapping):
            return None
        agent = DeployedAgent.read(told, source=f"record of environment {self.env_id!r}", path=f"$.metadata.{DEPLOYED_AGENT}")
        if any(known.get("agent_name") == agent.agent_name for known in run.context.get("deployed_agents") or ()):
            raise UserError(f"Agent with name {agent.agent_name!r} is already deployed", concerns=self.env_id)
        return agent

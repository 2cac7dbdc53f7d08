"""`deploy_agent`: an agent's container, ready to be spoken with, with its environments' tools."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field, ValidationInfo, field_validator

from agent_env.agents.outfit import InlineSkill
from agent_env.defaults import GIB, MIB
from agent_env.documents.network import NetworkMode, NetworkPolicy
from agent_env.documents.records import DeployedAgent
from agent_env.documents.spelling import unknown_key_problems
from agent_env.documents.updates import AppendRecord, ExtendMetadata, Json, SetField, Update
from agent_env.errors import Problem, UserError
from agent_env.sandboxes.contract import SandboxSpec
from agent_env.steps import agent_changes, agent_states
from agent_env.steps.contract import AgentRequest, EntityRef, OnResume, Plan, Run, Step, StepResult, apart
from agent_env.steps.deploy_sandbox import overridden_policy, overridden_seconds, variables
from agent_env.steps.fields import SECRET, USABLE, Number, OptionalName, Seconds, Texts, Whole
from agent_env.steps.network_entries import doubtful_entries
from agent_env.steps.targets import DEFAULT_AGENT

if TYPE_CHECKING:
    from agent_env.agents import LiveAgent
    from agent_env.artifacts import Artifacts
    from agent_env.defaults import Limits
    from agent_env.images import BuildRequest

_TEXT_KEYS = ("skill_md", "content")
_URL_KEYS = ("object_url", "skill_s3_url", "s3_uri")
"""Where a skill's text is, the current spelling first (reference)."""


@dataclass(frozen=True, slots=True)
class AgentDeployed(StepResult):
    """The record of the new agent."""

    record: DeployedAgent
    default_model: str | None = None
    told: Mapping[str, Json] = field(default_factory=dict)
    """What it took up, and what it records."""

    def updates(self) -> Iterator[Update]:
        """Appends the record."""
        yield AppendRecord("deployed_agents", self.record.to_json())
        if self.default_model is not None:
            yield SetField("default_agent_model", self.default_model)
        for name, row in agent_changes.changelog_rows(self.told):
            yield ExtendMetadata((name,), [row])

    def summary(self) -> str:
        """Which agent, and where."""
        return f"{self.record.agent_name}: {self.record.sandbox_id}"


class DeployAgent(Step, type="deploy_agent"):
    """Deploy an agent: its container, with the tools of the environments that it is to use."""

    on_resume: ClassVar[OnResume] = OnResume.REPEAT
    entity_refs: ClassVar[tuple[EntityRef, ...] | None] = (
        EntityRef("env", "env_ids[]"),
        EntityRef("agent", "a2a_agent_id", version_field="a2a_agent_version"),
        EntityRef("artifact", "agent_snapshot_files_artifact_id", version_field="agent_snapshot_files_artifact_version"),
    )
    user_fields: ClassVar[frozenset[str]] = frozenset(
        {"a2a_agent_id", "a2a_agent_version", "env_vars", "sandbox_type", "litellm_base_url", "metadata.attribution"}
    )
    other_words: ClassVar[Mapping[str, str]] = {
        "name": "agent_name",
        "agent_id": "a2a_agent_id",
        "env": "env_vars",
        "environment": "env_vars",
        "memory": "memory_mb",
        "network": "network_policy",
        "provider": "sandbox_type",
        "ttl": "ttl_seconds",
    }

    env_ids: Texts = ()
    """Deployed environments whose tools the agent gets."""
    env_step_id: OptionalName = None
    """The `deploy_env` step that is meant, where an environment was deployed by several."""
    a2a_agent_id: OptionalName = None
    """The agent's document, or a name of an installed bundle; absent is the configured default."""
    a2a_agent_version: Annotated[Whole, Field(ge=1)] | None = None
    """Its version; the newest when absent."""
    agent_name: str = Field(default=DEFAULT_AGENT, min_length=1)
    """The name that later steps use; unique in the task."""
    agent_description: str | None = None
    """What its card says of it."""
    env_vars: Annotated[dict[str, str], SECRET, USABLE] = Field(default_factory=dict)
    """Environment variables; `env:NAME` and `secret:KEY` are resolved on deploy; literal secrets are stored apart."""
    skills: tuple[dict[str, Any], ...] = ()
    """Skills: `name`, `description`, and `skill_md` or `object_url`."""
    system_prompt: str | None = None
    """For all its turns, where the agent takes one."""
    disk_size_gb: Annotated[Number, Field(gt=0)] | None = None
    """Limit of disk space in GiB; the agent's own minimum counts too."""
    litellm_base_url: OptionalName = None
    """Where it asks models, in place of the configured endpoint; with a key of its own among `env_vars`."""
    sandbox_type: OptionalName = None
    """The provider of sandboxes, or a comma-separated chain of them; absent is the configured default."""
    ttl_seconds: Seconds | None = None
    """When its sandbox ends by itself, in seconds after its start; 7200 by default."""
    cpu: Annotated[Number, Field(gt=0)] | None = None
    """Limit of processor cores; 1 by default."""
    memory_mb: Annotated[Whole, Field(gt=0)] | None = None
    """Limit of memory in MiB, 8192 by default; a limit, never a reservation."""
    agent_snapshot_files_artifact_id: OptionalName = None
    """A saved state of an agent, which this one takes up."""
    agent_snapshot_files_artifact_version: Annotated[Whole, Field(ge=1)] | None = None
    """Its version."""
    agent_snapshot_target_context_id: OptionalName = None
    """Under which id its conversation goes on."""
    network_policy: NetworkPolicy | None = None
    """What it may reach: `mode` (`allow_all`, `allowlist`, `none`), `allow_hosts`, `allow_cidrs`.
    Its environments and its models it always may."""
    role: OptionalName = None
    """Under which it uses its environments."""
    enable_agent_changelog: bool = False
    """Record what each of its tool calls changes, as an artifact that grows with each prompt."""
    agent_changelog_object_url: OptionalName = None
    """Recorded changes, which this agent is to begin with: `artifact:ID`, `artifact:ID@VERSION`, or `agent:NAME` of this run."""
    agent_changelog_toolcall_position_exclusive: Annotated[Whole, Field(ge=0)] | None = None
    """Only those before this tool call."""
    sandbox_name: OptionalName = None
    """A deployed sandbox of mode `vm`, beside whose machine the agent's container is put."""
    enable_docker: bool = False
    """It is given a container engine of its own (`DOCKER_HOST`), in a privileged container, which your configuration has to grant."""
    metadata: dict[str, Any] = Field(default_factory=dict)
    """`metadata.attribution` (text to text) is handed to the provider of sandboxes as labels."""

    @field_validator("agent_changelog_toolcall_position_exclusive")
    @classmethod
    def _of_something(cls, value: int | None, info: ValidationInfo) -> int | None:
        if value is not None and not info.data.get("agent_changelog_object_url"):
            raise ValueError("needs agent_changelog_object_url")
        return value

    def problems(self, plan: Plan) -> Iterator[Problem]:
        """A name can be deployed once; skills have a text; what this version can't do is told now."""
        return apart(
            self._own_name(plan),
            self._skill_texts(),
            self._docker_problems(),
            self._changelog(plan),
            self._snapshot(plan),
            self._machine(plan),
            self._policy_beside_a_machine(),
        )

    def doubts(self) -> Iterator[Problem]:
        """Entries of the network policy that may open nothing."""
        return doubtful_entries(self.network_policy)

    def passed_over(self) -> Iterator[Problem]:
        """Keys of skills that nobody knows."""
        for index, skill in enumerate(self.skills):
            yield from _unknown_keys(skill, index)[1]

    def _own_name(self, plan: Plan) -> Iterator[Problem]:
        for type in ("deploy_agent", "install_agent", "deploy_human_agent"):
            for other in plan.deployers(self.id, type, agent_name=self.agent_name):
                message = f"Agent {self.agent_name!r} is already deployed by step {other.id!r}"
                yield Problem(message, path=".agent_name", hint="give one of them another name")

    def _skill_texts(self) -> Iterator[Problem]:
        for index, skill in enumerate(self.skills):
            if not skill.get("name") or not any(skill.get(key) for key in (*_TEXT_KEYS, *_URL_KEYS)):
                yield Problem("a skill needs a name, and skill_md or object_url", path=f".skills[{index}]")
            yield from _unknown_keys(skill, index)[0]

    def _docker_problems(self) -> Iterator[Problem]:
        if self.enable_docker and SandboxSpec("", network=self.network_policy).network_mode is not NetworkMode.ALLOW_ALL:
            message = "a container engine of the agent's own goes out by itself, so no network policy can be held"
            yield Problem(message, path=".enable_docker", hint="leave network_policy out, or enable_docker")

    def _changelog(self, plan: Plan) -> Iterator[Problem]:
        if self.agent_changelog_object_url is not None:
            yield from agent_changes.url_problems(self.agent_changelog_object_url, plan, self.id)

    def _snapshot(self, plan: Plan) -> Iterator[Problem]:
        id, version = self.agent_snapshot_files_artifact_id, self.agent_snapshot_files_artifact_version
        if id is None:
            for name in ("agent_snapshot_files_artifact_version", "agent_snapshot_target_context_id"):
                if getattr(self, name) is not None:
                    yield Problem("says nothing without agent_snapshot_files_artifact_id", path=f".{name}")
        elif plan.artifacts is not None and plan.artifact(id, version) is None:
            makers = [each for each in plan.before(self.id) if each.type_name == "snapshot_agent_state"]
            if not any(getattr(each, "artifact_id", None) == id for each in makers):
                yield Problem(f"artifact {id!r} does not exist", path=".agent_snapshot_files_artifact_id")

    def _machine(self, plan: Plan) -> Iterator[Problem]:
        for other in plan.deployers(self.id, "deploy_sandbox", sandbox_name=self.sandbox_name) if self.sandbox_name is not None else ():
            if getattr(other, "sandbox_mode", "vm") != "vm":
                message = (
                    f"Cannot link agent to sandbox {self.sandbox_name!r}: only VM-mode sandboxes can host an additional agent container"
                )
                yield Problem(message, path=".sandbox_name", hint="deploy it with sandbox_mode 'vm', or leave sandbox_name out")

    def _policy_beside_a_machine(self) -> Iterator[Problem]:
        policy = self.network_policy
        if self.sandbox_name is not None and policy is not None and policy.mode != "allow_all":
            yield Problem(
                "beside an existing machine a network policy can't be held", path=".network_policy", hint="leave sandbox_name out"
            )

    def images(self, artifacts: Artifacts, folder: Path, limits: Limits) -> Sequence[str | BuildRequest]:
        """The agent's image, where its document is known already."""
        from agent_env.agents.lookup import StoredAgents
        from agent_env.errors import AgentEnvError
        from agent_env.images import SavedImage

        if self.a2a_agent_id is None:
            return ()
        lookup = StoredAgents(artifacts, folder, limits=limits)
        try:
            image = lookup.image(lookup.agent(self.a2a_agent_id, self.a2a_agent_version).docker_image_artifact)
        except AgentEnvError:  # the step itself says so
            return ()
        return () if isinstance(image, SavedImage) else (image,)

    async def execute(self, run: Run) -> AgentDeployed:
        """Asks the engine, which journals everything before it exists.

        Raises:
            UserError: It is deployed already, or can't be as asked.
            InfrastructureError: It did not come up; nothing of it is left.
        """
        if any(record.get("agent_name") == self.agent_name for record in run.context.get("deployed_agents") or ()):
            raise UserError(f"Agent with name {self.agent_name!r} is already deployed", concerns=self.agent_name)
        told: dict[str, Json] = {}
        id, version = self.agent_snapshot_files_artifact_id, self.agent_snapshot_files_artifact_version

        async def prepare(agent: LiveAgent) -> None:
            if id is not None:
                context_id = self.agent_snapshot_target_context_id
                told["loaded"] = await agent_states.restored(run, agent, id, version, context_id=context_id, concerns=self.id)
            if self.agent_changelog_object_url is not None:
                before = self.agent_changelog_toolcall_position_exclusive
                told["rewound"] = await agent_changes.rewound(run, agent, self.agent_changelog_object_url, before)
            if self.enable_agent_changelog:
                told["changelog"] = await agent_changes.begun(run, agent)

        record = await run.deploy_agent(replace(self._request(run), prepare=prepare))
        return AgentDeployed(record, default_model=first_model(run, record), told=told)

    def _request(self, run: Run) -> AgentRequest:
        own, overrides = run.overrides(), run.run_overrides()
        chosen = own.get("a2a_agent_id") or overrides.get("a2a_agent_id")
        version = own.get("a2a_agent_version") or overrides.get("a2a_agent_version")
        env, secrets = variables(self.env_vars, run)
        if self.litellm_base_url or overrides.get("litellm_base_url"):
            env["LITELLM_BASE_URL"] = str(overrides.get("litellm_base_url") or self.litellm_base_url)
        sandbox = run.sandbox(self.sandbox_name) if self.sandbox_name is not None else None
        provider = overrides.get("agent_sandbox") or overrides.get("sandbox")
        disk = float(overrides.get("agent_disk_size_gb") or self.disk_size_gb or run.limits.sandbox_disk_bytes // GIB)
        return AgentRequest(
            agent_name=self.agent_name,
            agent_id=str(chosen) if chosen else self.a2a_agent_id,
            agent_version=int(version) if version else None if chosen else self.a2a_agent_version,
            provider=provider if isinstance(provider, str) and provider.strip() else self.sandbox_type,
            sandbox_id=sandbox.sandbox_id if sandbox is not None else None,
            sandbox_type=sandbox.sandbox_type if sandbox is not None else None,
            environments=tuple((env_id, self.env_step_id) for env_id in self.env_ids),
            env=env,
            secrets=secrets,
            references={name: text for name, text in self.env_vars.items() if name in secrets},
            description=self.agent_description,
            docker=self.enable_docker,
            role=self.role,
            system_prompt=self.system_prompt,
            skills=tuple(skill_of(skill, run) for skill in self.skills),
            cpu=self.cpu or run.limits.sandbox_cpu,
            memory_bytes=self.memory_mb * MIB if self.memory_mb else run.limits.sandbox_memory_bytes,
            disk_bytes=int(disk * GIB),
            ttl_seconds=overridden_seconds(overrides.get("ttl_seconds"), self.ttl_seconds or run.limits.sandbox_ttl_seconds),
            network=overridden_policy(overrides.get("network_policy"), self.network_policy),
            attribution=self._attribution(run),
        )

    def _attribution(self, run: Run) -> Mapping[str, str]:
        task = run.metadata.get("task_id") or run.task_id
        return {**(self.metadata.get("attribution") or {}), "pipeline_step": f"{task}_{self.id}", "run_id": run.instance_id}


def first_model(run: Run, record: DeployedAgent) -> str | None:
    """The model of a run whose task names none: that of the first agent which has one. None where it is set already."""
    return None if run.context.get("default_agent_model") else record.default_model


def _unknown_keys(skill: Mapping[str, Json], index: int) -> tuple[list[Problem], list[Problem]]:
    """Of a skill as it is written, what is misspelt, and what is merely unknown."""
    return unknown_key_problems(skill, ("name", "description", *_TEXT_KEYS, *_URL_KEYS), source=None, path=f".skills[{index}]")


def skill_of(skill: Mapping[str, Json], run: Run) -> InlineSkill:
    """A skill as it was written, with its text.

    Raises:
        NotFoundError: Its object does not exist.
        UserError: It has no text.
    """
    text = next((skill[key] for key in _TEXT_KEYS if skill.get(key)), None)
    url = next((skill[key] for key in _URL_KEYS if skill.get(key)), None)
    if text is None and url is not None:
        text = run.objects.read(str(url)).decode(errors="replace")
    if text is None:
        raise UserError(f"the skill {skill.get('name')!r} has no text", hint="give it skill_md or object_url")
    return InlineSkill(str(skill.get("name")), str(skill.get("description") or ""), str(text))

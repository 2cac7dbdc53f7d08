"""`deploy_sandbox`: a machine or a container to work in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, ValidationError, field_validator

from agent_env.defaults import DEFAULT_LIMITS, GIB, MIB
from agent_env.documents.network import NetworkPolicy
from agent_env.documents.records import DeployedSandbox
from agent_env.documents.updates import AppendRecord, Json, Update
from agent_env.errors import Problem, UserError
from agent_env.steps.contract import EntityRef, OnResume, Plan, Run, SandboxRequest, Step, StepResult, apart
from agent_env.steps.fields import SECRET, USABLE, Number, OptionalName, Seconds, Whole
from agent_env.steps.image_names import image_problems
from agent_env.steps.limited import LimitDefault
from agent_env.steps.network_entries import doubtful_entries
from agent_env.steps.reading import unread_key

if TYPE_CHECKING:
    from agent_env.artifacts import Artifacts
    from agent_env.defaults import Limits

Port = Annotated[Whole, Field(ge=1, le=65535)]
_OF_THE_OTHER_MODE = {"vm": ("port", "env_vars"), "container": ("exposed_ports", "boot_mode")}
"""Mode → fields that it does not read (reference)."""


@dataclass(frozen=True, slots=True)
class SandboxDeployed(StepResult):
    """The record of the new sandbox."""

    record: DeployedSandbox

    def updates(self) -> tuple[Update, ...]:
        """Appends the record."""
        return (AppendRecord("deployed_sandboxes", self.record.to_json()),)

    def summary(self) -> str:
        """Which sandbox."""
        return f"{self.record.sandbox_name}: {self.record.sandbox_id}"


class DeploySandbox(Step, type="deploy_sandbox"):
    """Deploy a sandbox: a machine (`vm`), or a single container of an image (`container`)."""

    on_resume: ClassVar[OnResume] = OnResume.REPEAT
    images_by_name: ClassVar[bool] = True
    entity_refs: ClassVar[tuple[EntityRef, ...] | None] = ()
    user_fields: ClassVar[frozenset[str]] = frozenset({"sandbox_type", "metadata.attribution"})

    other_words: ClassVar[Mapping[str, str]] = {
        "name": "sandbox_name",
        "mode": "sandbox_mode",
        "provider": "sandbox_type",
        "env": "env_vars",
        "environment": "env_vars",
        "memory": "memory_mb",
        "ports": "exposed_ports",
        "network": "network_policy",
        "ttl": "ttl_seconds",
    }

    sandbox_name: str = Field(min_length=1)
    """The name that later steps use; unique in the task."""
    sandbox_mode: Literal["vm", "container"]
    """`vm`: a machine of its own. `container`: the sandbox is one container; needs `image` and `port`."""
    image: OptionalName = None
    """Container mode: the image to run. Machine mode: the image to boot, where a provider has a choice."""
    cpu: Annotated[Number, Field(gt=0), LimitDefault("sandbox_cpu")] = DEFAULT_LIMITS.sandbox_cpu
    """Limit of processor cores."""
    memory_mb: Annotated[Whole, Field(gt=0), LimitDefault("sandbox_memory_bytes", MIB)] = DEFAULT_LIMITS.sandbox_memory_bytes // MIB
    """Limit of memory in MiB; a limit, never a reservation."""
    disk_size_gb: Annotated[Number, Field(gt=0), LimitDefault("sandbox_disk_bytes", GIB)] = DEFAULT_LIMITS.sandbox_disk_bytes // GIB
    """Limit of disk space in GiB."""
    ttl_seconds: Annotated[Seconds, LimitDefault("sandbox_ttl_seconds")] = DEFAULT_LIMITS.sandbox_ttl_seconds
    """When the sandbox ends by itself, in seconds after its start."""
    exposed_ports: tuple[Port, ...] | None = None
    """Machine mode: ports to publish."""
    boot_mode: str | None = None
    """Machine mode: how to boot, where a provider has a choice."""
    port: Port | None = None
    """Container mode: the port that the container serves, which is published. Needed also where nothing is served: any number then."""
    env_vars: Annotated[dict[str, str] | None, SECRET, USABLE] = None
    """Container mode: environment variables; `env:NAME` and `secret:KEY` are resolved on deploy; literal secrets are stored apart."""
    sandbox_type: OptionalName = None
    """The provider, or a comma-separated chain of providers; absent is the configured default."""
    metadata: dict[str, Any] = Field(default_factory=dict)
    """`metadata.attribution` (text to text) is handed to the provider as labels."""
    network_policy: NetworkPolicy | None = None
    """What the sandbox may reach: `mode` (`allow_all`, `allowlist`, `none`), `allow_hosts`, `allow_cidrs`."""

    @field_validator("metadata")
    @classmethod
    def _attribution_is_text(cls, value: dict[str, Any]) -> dict[str, Any]:
        attribution = value.get("attribution")
        if attribution is not None and not _is_text_map(attribution):
            raise ValueError("attribution maps texts to texts")
        return value

    def problems(self, plan: Plan) -> Iterator[Problem]:
        """A container needs an image and a port; a name can be deployed once."""
        return apart(self._of_a_container(), self._image_name(), self._own_name(plan))

    def _of_a_container(self) -> Iterator[Problem]:
        if self.sandbox_mode == "container" and (self.image is None or self.port is None):
            missing = " and ".join(name for name in ("image", "port") if getattr(self, name) is None)
            any_port = "; a container that serves nothing takes any port, such as 8000" if self.port is None else ""
            yield Problem("container-mode sandbox requires `image` and `port`", path=".sandbox_mode", hint=f"add {missing}{any_port}")

    def _image_name(self) -> Iterator[Problem]:
        if self.sandbox_mode == "container":
            yield from image_problems(self.image, ".image")

    def _own_name(self, plan: Plan) -> Iterator[Problem]:
        for other in plan.deployers(self.id, self.type_name, sandbox_name=self.sandbox_name):
            message = f"Sandbox {self.sandbox_name!r} is already deployed by step {other.id!r}"
            yield Problem(message, path=".sandbox_name", hint="give one of them another name")

    def doubts(self) -> Iterator[Problem]:
        """Entries of the network policy that may open nothing."""
        return doubtful_entries(self.network_policy)

    def passed_over(self) -> Iterator[Problem]:
        """Of each mode, the fields that only the other has."""
        for name in _OF_THE_OTHER_MODE[self.sandbox_mode]:
            if getattr(self, name):
                yield Problem(f"{name} does nothing in the mode {self.sandbox_mode!r}", path=f".{name}")

    def idle_fields(self) -> frozenset[str]:
        """A machine takes no variables, and its provider has names of its own for what it boots from."""
        return frozenset() if self.sandbox_mode == "container" else frozenset({"image", "env_vars"})

    def images(self, artifacts: Artifacts, folder: Path, limits: Limits) -> Sequence[str]:
        """Of a container, its image."""
        del artifacts, folder, limits
        return (self.image,) if self.sandbox_mode == "container" and self.image else ()

    async def execute(self, run: Run) -> SandboxDeployed:
        """Asks the engine for the sandbox, which journals it before it exists."""
        if any(record.get("sandbox_name") == self.sandbox_name for record in run.context.get("deployed_sandboxes") or ()):
            raise UserError(f"Sandbox {self.sandbox_name!r} is already deployed", concerns=self.sandbox_name)
        return SandboxDeployed(await run.deploy_sandbox(self._request(run)))

    def _request(self, run: Run) -> SandboxRequest:
        overrides = run.run_overrides()
        container = self.sandbox_mode == "container"
        env, secrets = variables(self.env_vars if container else None, run)
        provider = overrides.get("sandbox")
        return SandboxRequest(
            sandbox_name=self.sandbox_name,
            mode=self.sandbox_mode,
            provider=provider if isinstance(provider, str) and provider.strip() else self.sandbox_type,
            image=self.image,
            port=self.port if container else None,
            cpu=self.cpu,
            memory_bytes=self.memory_mb * MIB,
            disk_bytes=int(self.disk_size_gb * GIB),
            ttl_seconds=overridden_seconds(overrides.get("ttl_seconds"), self.ttl_seconds),
            exposed_ports=() if container else self.exposed_ports or (),
            env=env,
            secrets=secrets,
            references={name: text for name, text in (self.env_vars or {}).items() if name in secrets},
            network=overridden_policy(overrides.get("network_policy"), self.network_policy),
            attribution=self._attribution(run),
        )

    def _attribution(self, run: Run) -> Mapping[str, str]:
        task = run.metadata.get("task_id") or run.task_id
        return {**(self.metadata.get("attribution") or {}), "pipeline_step": f"{task}_{self.id}", "run_id": run.instance_id}


def variables(written: Mapping[str, str] | None, run: Run) -> tuple[dict[str, str], dict[str, str]]:
    """A step's variables apart: those that anybody may see, and those that stand for secrets, resolved."""
    env: dict[str, str] = {}
    secrets: dict[str, str] = {}
    for name, text in (written or {}).items():
        value = run.secret(text)
        (env if value == text else secrets)[name] = value
    return env, secrets


def _is_text_map(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(text, str) for text in value.values())


def overridden_seconds(override: Json, otherwise: float) -> float:
    if override is None:
        return otherwise
    if isinstance(override, bool) or not isinstance(override, int | float) or not override > 0:
        raise UserError(f"user_overrides.ttl_seconds is a number of seconds above 0, not {override!r}")
    return float(override)


def overridden_policy(override: Json, otherwise: NetworkPolicy | None) -> NetworkPolicy | None:
    if override is None:
        return otherwise
    try:
        return NetworkPolicy.model_validate(override)
    except ValidationError as error:
        reasons = "; ".join(
            "{} ({})".format(*unread_key(NetworkPolicy, entry["loc"]))
            if entry["type"] == "extra_forbidden"
            else str(entry["msg"]).removeprefix("Value error, ")
            for entry in error.errors(include_url=False)
        )
        raise UserError(f"user_overrides.network_policy can't be used: {reasons}") from error

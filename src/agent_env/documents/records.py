"""What a run deployed, as the context records it: field for field the reference's, legacy spellings included.

Ours stand beside the reference's: `container_id` (a container is its id, never a name that happens to match), `placement` (what was
recorded at deploy decides where later steps act) and `parts` (where each server of an environment is). Keys that we don't know are kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from agent_env.documents.stored import validation_problems
from agent_env.errors import ProblemsError

Json = Any
Placement = Literal["vm", "container", "in_container", "on_machine"]
WELL_KNOWN_CARD = "/.well-known/agent-env.json"
_OURS = (
    *("container_id", "placement", "parts", "container_name", "a2a_port", "agent_id", "agent_version", "brokered", "shared_loopback"),
    "default_model",
)


class Record(BaseModel):
    """A frozen record of the context."""

    model_config = ConfigDict(frozen=True, extra="allow", defer_build=True)

    @classmethod
    def read(cls, data: Mapping[str, Json], *, source: str | None = None, path: str = "$") -> Self:
        """A record from its JSON.

        Raises:
            ProblemsError: Required keys are missing or of another type; all of them at once.
        """
        try:
            return cls.model_validate(dict(data))
        except ValidationError as error:
            raise ProblemsError(validation_problems(error, source, path)) from error

    def to_json(self) -> dict[str, Json]:
        """The stored form: every field of the reference, ours only where they say something, then unknown keys."""
        data = self.model_dump(mode="json")
        for name in _OURS:
            if name in data and not data[name]:
                del data[name]
        return data


class DeployedSandbox(Record):
    """A sandbox that `deploy_sandbox` made."""

    sandbox_name: str
    sandbox_id: str
    sandbox_mode: str
    """`vm` or `container`."""
    sandbox_type: str | None = None
    """The provider's name."""
    tunnel_urls: dict[str, str] | None = None
    """Port, as text → URL."""
    vnc_url: str | None = None
    instance_id: str | None = None
    created_at_utc: str | None = None
    expires_at_utc: str | None = None
    network_policy: dict[str, Json] | None = None
    container_id: str | None = None
    placement: Placement | None = None

    @property
    def recorded(self) -> Placement:
        """Where its steps act: the recorded fact, or what the mode of a record from elsewhere says."""
        return self.placement or ("container" if self.sandbox_mode == "container" else "vm")


class DeployedAgent(Record):
    """An agent that a step made reachable."""

    agent_name: str
    api_url: str | None
    sandbox_id: str | None = None
    sandbox_type: str | None = None
    a2a_url: str | None = None
    a2a_card: dict[str, Json] | None = None
    instance_id: str | None = None
    role: str | None = None
    network_policy: dict[str, Json] | None = None
    on_host: bool = False
    installed_container: str | None = None
    container_id: str | None = None
    placement: Placement | None = None
    container_name: str | None = None
    """What a container beside a machine was called when it was made."""
    a2a_port: int | None = None
    """Inside its place; None is the well-known one."""
    agent_id: str | None = None
    """Its document."""
    agent_version: int | None = None
    brokered: bool = False
    """It asks models through the run's broker, on its own loopback."""
    shared_loopback: bool = False
    """That loopback is the machine's."""
    default_model: str | None = None
    """What it asks where nobody names a model: its document's word, else the configuration's."""
    workspace_dir: str | None = None
    """Of an installed agent: where it was told to work."""

    @property
    def installed(self) -> bool:
        """It was put into a place that is there without it."""
        return self.on_host or self.installed_container is not None

    @property
    def recorded(self) -> Placement:
        """Where its steps act: the recorded fact, or what a record from elsewhere says with `on_host`."""
        return self.placement or ("on_machine" if self.on_host else "in_container")


class DeployedPart(BaseModel):
    """Where one server, website, gateway or database of an environment is, and how it is spoken with."""

    model_config = ConfigDict(frozen=True, extra="allow")

    kind: str
    """`mcp_server`, `website`, `frontend`, `gateway` or `database`."""
    name: str
    """Its `environment_name`; what a container beside the machine was called when it was made."""
    sandbox_id: str
    container_id: str | None = None
    """None where the sandbox is the container."""
    container_name: str | None = None
    port: int
    """Inside its place."""
    host_port: int | None = None
    """Of this machine's loopback, where it answers there too."""
    control_port: int | None = None
    """Of a gateway: the port of its place's own loopback that gives every right."""
    control_host_port: int | None = None
    """Of this machine's loopback, leading there."""
    image: str = ""
    """The image's id, or its name."""


class DeployedEnvironment(Record):
    """A deployed environment of any class: plain, with a sandbox, or behind a gateway."""

    env_id: str
    env_version: int | None
    env_provider_type: str | None = None
    environment_card_url: str | None = None
    environment_card: dict[str, Json] | None = None
    environment_card_read_at_utc: str | None = None
    mcp_url: str | None = None
    mcp_server_name: str | None = None
    metadata: dict[str, Json] = Field(default_factory=dict)
    instance_id: str | None = None
    created_at_utc: str | None = None
    expires_at_utc: str | None = None
    sandbox_id: str | None = None
    sandbox_type: str | None = None
    sandbox_ids: dict[str, Json] = Field(default_factory=dict)
    gateway_url: str | None = None
    gateway_mode: str | None = None
    db_web_url: str | None = None
    db_mcp_url: str | None = None
    website_frontend_urls: Json = None
    vnc_url: str | None = None
    env_state_instance_ids: list[str] = Field(default_factory=list)
    container_id: str | None = None
    placement: Placement | None = None
    parts: dict[str, DeployedPart] = Field(default_factory=dict)
    """Its servers and websites, and what else stands beside them, by name."""

    SANDBOX_FIELDS: ClassVar[tuple[str, ...]] = ("sandbox_id", "sandbox_type", "sandbox_ids")
    GATEWAY_FIELDS: ClassVar[tuple[str, ...]] = (
        "gateway_url",
        "gateway_mode",
        "db_web_url",
        "db_mcp_url",
        "website_frontend_urls",
        "vnc_url",
        "env_state_instance_ids",
    )

    @property
    def shape(self) -> Literal["plain", "sandbox", "gateway"]:
        """The reference's class of the record, from its provider type, else from the fields that are set."""
        if self.env_provider_type in {"gateway", "server"}:
            return "gateway" if self.env_provider_type == "gateway" else "sandbox"
        if any(getattr(self, name) for name in self.GATEWAY_FIELDS if name != "gateway_mode"):
            return "gateway"
        return "sandbox" if self.sandbox_id or not self.env_provider_type else "plain"

    @property
    def deploy_step_id(self) -> str | None:
        """The step that deployed it."""
        step = self.metadata.get("deploy_step_id")
        return step if isinstance(step, str) else None

    @property
    def environment_url(self) -> str | None:
        """The address that the card's paths join onto; None for a record from before cards."""
        url = self.environment_card_url
        return url.removesuffix(WELL_KNOWN_CARD).rstrip("/") if url else None

    @property
    def server_url(self) -> str | None:
        """The MCP endpoint that the card declares, else the stored one (records from before cards)."""
        base = self.environment_url
        if base is None or self.environment_card is None:
            return self.mcp_url
        return f"{base}/{_mcp_path(self.environment_card).lstrip('/')}"

    @property
    def server_name(self) -> str | None:
        """The MCP server's name: the card's, else the stored one."""
        if self.environment_url is None or self.environment_card is None:
            return self.mcp_server_name
        name = self.environment_card.get("name")
        return name if isinstance(name, str) else self.mcp_server_name

    def to_json(self) -> dict[str, Json]:
        """The stored form of its class, with `mcp_url` and `mcp_server_name` as the card has them."""
        data = super().to_json()
        data["mcp_url"], data["mcp_server_name"] = self.server_url, self.server_name
        shape = self.shape
        if shape == "gateway":
            data["gateway_mode"] = data["gateway_mode"] or "performance"
        else:
            _drop(data, self.GATEWAY_FIELDS)
        if shape == "plain":
            _drop(data, self.SANDBOX_FIELDS)
        return data


class DeployedContainer(Record):
    """A container that a step started on a sandbox's machine (`metadata.deployed_docker_containers`)."""

    container_name: str
    sandbox_name: str
    sandbox_id: str | None = None
    image_tag: str | None = None
    ports: list[int] = Field(default_factory=list)
    network: str | None = None
    container_id: str | None = None


class PromptResponse(Record):
    """What an agent answered to one prompt."""

    prompt_id: str
    response: str | None
    prompt_text: str | None = None
    agent_trajectory_file_path: str | None = None
    source_agent_per_turn_prompt_parts: list[Json] | None = None
    """A list of parts a turn; None in it means the prompt's text."""
    tool_call_count: int | None = None
    model: str | None = None
    error_type: str | None = None
    error_code: Json = None
    error_message: str | None = None
    agent_session_id: str = ""
    a2a_context_id: str | None = None
    agent_name: str | None = None
    step_id: str | None = None
    structured_output: Json = None
    agent_trajectory_object_url: str | None = None
    agent_trajectory_object_prefix: str | None = None
    target_agent_per_turn_trajectory_object_urls: Json = None

    LEGACY: ClassVar[Mapping[str, str]] = {
        "agent_trajectory_object_url": "agent_trajectory_s3_uri",
        "agent_trajectory_object_prefix": "agent_trajectory_s3_prefix",
        "target_agent_per_turn_trajectory_object_urls": "target_agent_per_turn_trajectory_s3_uris",
    }

    @classmethod
    def read(cls, data: Mapping[str, Json], *, source: str | None = None, path: str = "$") -> Self:
        """A record from its JSON; a legacy key that is not null is preferred, as the reference does."""
        values = dict(data)
        for name, legacy in cls.LEGACY.items():
            old = values.pop(legacy, None)
            if old is not None:
                values[name] = old
        return super().read(values, source=source, path=path)

    def to_json(self) -> dict[str, Json]:
        """The stored form: the last three fields under both spellings."""
        data = super().to_json()
        return {**data, **{legacy: data[name] for name, legacy in self.LEGACY.items()}}


RECORDS: Mapping[str, type[Record]] = {
    "deployed_envs": DeployedEnvironment,
    "deployed_agents": DeployedAgent,
    "deployed_sandboxes": DeployedSandbox,
    "prompt_responses": PromptResponse,
}
"""List of the context → class of its records."""


def _mcp_path(card: Mapping[str, Json]) -> str:
    """The first declared MCP interface's path, `/mcp` by convention."""
    for interface in card.get("additionalInterfaces") or ():
        if (
            isinstance(interface, dict)
            and interface.get("transport") == "mcp"
            and isinstance(interface.get("url"), str)
            and interface["url"]
        ):
            return str(interface["url"])
    return "/mcp"


def _drop(data: dict[str, Json], names: tuple[str, ...]) -> None:
    for name in names:
        data.pop(name, None)

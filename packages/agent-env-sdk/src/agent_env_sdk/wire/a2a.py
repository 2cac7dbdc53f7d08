"""A2A as values: cards, messages, tasks and their updates, as version 0.3 spells them; `a2a_v1` spells the same for 1.x.

The names here are what the rest of the SDK works with; a server or client translates at its edge, by the wire's version.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from typing import Any, Final, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, model_validator

from .card import Extension, join
from .parts import DataPart, Part, TextPart
from .rpc import RpcError

CARD_PATHS: Final = ("/.well-known/agent-card.json", "/.well-known/agent.json")
"""Where an agent's card is, the current path first; older clients ask for the second alone."""
A2A_PATH: Final = "/a2a"
HEALTH_PATH: Final = "/health"
PORT: Final = 8000
HOST_VARIABLE: Final = "A2A_HOST"
PORT_VARIABLE: Final = "A2A_PORT"
TOKEN_VARIABLE: Final = "AGENTENV_AGENT_TOKEN"
"""The bearer token that a server asks for. Unset: the server is open, as older agents are."""
STATE_VARIABLE: Final = "AGENTENV_AGENT_STATE"
"""The folder that tasks, trajectories and session references outlive a restart in."""
VERSION_HEADER: Final = "A2A-Version"
V0_3: Final = "0.3.0"
V1: Final = "1.0"
JSON_RPC: Final = "JSONRPC"

TASK_NOT_FOUND: Final = -32001
TASK_NOT_CANCELABLE: Final = -32002
PUSH_NOT_SUPPORTED: Final = -32003
UNSUPPORTED_OPERATION: Final = -32004
CONTENT_TYPE_NOT_SUPPORTED: Final = -32005
INVALID_AGENT_RESPONSE: Final = -32006
VERSION_NOT_SUPPORTED: Final = -32009
INTERNAL_ERROR: Final = -32603

_TEXTS: Final = {
    TASK_NOT_FOUND: "Task not found",
    TASK_NOT_CANCELABLE: "Task cannot be canceled",
    PUSH_NOT_SUPPORTED: "Push Notification is not supported",
    UNSUPPORTED_OPERATION: "This operation is not supported",
    CONTENT_TYPE_NOT_SUPPORTED: "Incompatible content types",
    INVALID_AGENT_RESPONSE: "Invalid agent response",
    VERSION_NOT_SUPPORTED: "Version not supported",
    INTERNAL_ERROR: "Internal error",
}


class Method(StrEnum):
    """What a client may ask for, by its name in 0.3."""

    SEND = "message/send"
    STREAM = "message/stream"
    GET = "tasks/get"
    CANCEL = "tasks/cancel"
    RESUBSCRIBE = "tasks/resubscribe"
    LIST = "tasks/list"
    """Of 1.x alone; its name there is `ListTasks`."""


class TaskState(StrEnum):
    """Where a task is."""

    SUBMITTED = "submitted"
    WORKING = "working"
    INPUT_REQUIRED = "input-required"
    AUTH_REQUIRED = "auth-required"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELED = "canceled"
    REJECTED = "rejected"
    UNKNOWN = "unknown"

    @property
    def terminal(self) -> bool:
        """Whether the task has ended, whichever way."""
        return self in TERMINAL

    @property
    def settled(self) -> bool:
        """Whether the agent does nothing more until somebody speaks to it: ended, or waiting for input."""
        return self in TERMINAL or self in {TaskState.INPUT_REQUIRED, TaskState.AUTH_REQUIRED}


TERMINAL: Final = frozenset({TaskState.COMPLETED, TaskState.FAILED, TaskState.CANCELED, TaskState.REJECTED})


class _Wire(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="ignore", validate_by_name=True, validate_by_alias=True, serialize_by_alias=True, defer_build=True
    )

    def to_json(self) -> dict[str, Any]:
        """The value as 0.3 carries it, without the fields that are not set."""
        return self.model_dump(mode="json", exclude_none=True)


class Message(_Wire):
    """One turn, of the user or the agent."""

    kind: Literal["message"] = "message"
    message_id: str = Field(alias="messageId", min_length=1)
    role: Literal["user", "agent"] = "user"
    parts: list[Part]
    context_id: str | None = Field(default=None, alias="contextId")
    task_id: str | None = Field(default=None, alias="taskId")
    metadata: dict[str, Any] | None = None
    extensions: list[str] | None = None
    reference_task_ids: list[str] | None = Field(default=None, alias="referenceTaskIds")


class TaskStatus(_Wire):
    """A task's state, since when, and what the agent says of it."""

    state: TaskState
    message: Message | None = None
    timestamp: str | None = None


class Artifact(_Wire):
    """Something that a task made, beside its answer."""

    artifact_id: str = Field(alias="artifactId")
    name: str | None = None
    description: str | None = None
    parts: list[Part]
    metadata: dict[str, Any] | None = None


class Task(_Wire):
    """A task as it stands."""

    kind: Literal["task"] = "task"
    id: str
    context_id: str = Field(alias="contextId")
    status: TaskStatus
    artifacts: list[Artifact] | None = None
    history: list[Message] | None = None
    metadata: dict[str, Any] | None = None


class StatusUpdate(_Wire):
    """A streamed change of state, or a word of progress within one."""

    kind: Literal["status-update"] = "status-update"
    task_id: str = Field(alias="taskId")
    context_id: str = Field(alias="contextId")
    status: TaskStatus
    final: bool = False
    metadata: dict[str, Any] | None = None


class ArtifactUpdate(_Wire):
    """A streamed piece of an artifact."""

    kind: Literal["artifact-update"] = "artifact-update"
    task_id: str = Field(alias="taskId")
    context_id: str = Field(alias="contextId")
    artifact: Artifact
    append: bool | None = None
    last_chunk: bool | None = Field(default=None, alias="lastChunk")
    metadata: dict[str, Any] | None = None


Update = Task | Message | StatusUpdate | ArtifactUpdate


@cache
def _update() -> TypeAdapter[Update]:
    return TypeAdapter(Update)


def read_update(value: object) -> Update:
    """A stream's item or a send's result.

    Raises:
        ValueError: It is none of the four kinds.
    """
    return _update().validate_python(value)


class AgentSkill(_Wire):
    """An ability that the card names."""

    id: str
    name: str
    description: str = ""
    tags: list[str] = Field(default_factory=list)


class AgentExtension(Extension):
    """An extension in an agent's card."""

    @model_validator(mode="before")
    @classmethod
    def _older(cls, value: Any) -> Any:
        """Older cards say `config` where newer ones say `params`."""
        if isinstance(value, dict) and value.get("params") is None and isinstance(value.get("config"), dict):
            return {**value, "params": value["config"]}
        return value


class AgentCapabilities(_Wire):
    """What an agent can do."""

    streaming: bool | None = None
    push_notifications: bool | None = Field(default=None, alias="pushNotifications")
    state_transition_history: bool | None = Field(default=None, alias="stateTransitionHistory")
    extensions: list[AgentExtension] | None = None


class AdditionalInterface(_Wire):
    """A further address, as 0.3 names it."""

    url: str
    transport: str = JSON_RPC


class SupportedInterface(_Wire):
    """An address with its version, as 1.x names it."""

    url: str
    protocol_binding: str = Field(default=JSON_RPC, alias="protocolBinding")
    protocol_version: str = Field(default="", alias="protocolVersion")


class AgentCard(_Wire):
    """An agent's card, in either spelling, or in both at once, as our agents serve it."""

    name: str
    description: str = ""
    version: str = ""
    url: str | None = None
    protocol_version: str | None = Field(default=None, alias="protocolVersion")
    preferred_transport: str | None = Field(default=None, alias="preferredTransport")
    additional_interfaces: list[AdditionalInterface] | None = Field(default=None, alias="additionalInterfaces")
    supported_interfaces: list[SupportedInterface] | None = Field(default=None, alias="supportedInterfaces")
    capabilities: AgentCapabilities = Field(default_factory=AgentCapabilities)
    default_input_modes: list[str] = Field(default_factory=list, alias="defaultInputModes")
    default_output_modes: list[str] = Field(default_factory=list, alias="defaultOutputModes")
    skills: list[AgentSkill] = Field(default_factory=list)
    security_schemes: dict[str, Any] | None = Field(default=None, alias="securitySchemes")


@dataclass(frozen=True, slots=True)
class Interface:
    """Where an agent is spoken to, and in which version."""

    url: str
    version: str

    @property
    def is_v1(self) -> bool:
        """Whether 1.x is spoken there."""
        return self.version.partition(".")[0] not in {"", "0"}


def interfaces(card: AgentCard) -> list[Interface]:
    """The JSON-RPC addresses of a card, in its order; those of 1.x first named by `supportedInterfaces`."""
    found = [Interface(each.url, each.protocol_version) for each in card.supported_interfaces or [] if each.protocol_binding == JSON_RPC]
    version = card.protocol_version or V0_3
    if card.url and (card.preferred_transport or JSON_RPC) == JSON_RPC:
        found.append(Interface(card.url, version))
    found += [Interface(each.url, version) for each in card.additional_interfaces or [] if each.transport == JSON_RPC]
    return list(dict.fromkeys(found)) or [Interface(A2A_PATH, version)]


def rpc_address(base: str, url: str) -> str:
    """Where to post, from the address that the card came from and an interface's url.

    Only the url's path counts: an agent behind a tunnel or in a container can't know the host under which it is reached.
    """
    path = urlsplit(url).path
    return join(base, path if path not in {"", "/"} or url == "/" else A2A_PATH)


def a2a_error(code: int, detail: str | None = None) -> RpcError:
    """An error of A2A with its usual text; `detail` must not repeat what the caller sent."""
    return RpcError(code, _TEXTS[code], None if detail is None else {"detail": detail})


@dataclass(frozen=True, slots=True)
class Usage:
    """What a turn took. None means that the agent doesn't tell."""

    tool_call_count: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    total_tokens: int | None = None
    cost_usd: float | None = None
    provider_details: dict[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        """The fields that are told."""
        return {name: value for name in self.__slots__ if (value := getattr(self, name)) is not None}


ErrorType = Literal["agent_error", "infra_error"]
"""Whether the agent failed at its task, or something around it did: only the first may count against a score."""


@dataclass(frozen=True, slots=True)
class Ending:
    """What a task's last message says."""

    text: str | None = None
    """The last text part."""
    usage: Usage = field(default_factory=Usage)
    structured_output: Any = None
    error_type: str | None = None
    error_code: str | None = None
    error_class: str | None = None
    error_message: str | None = None


def ending_parts(usage: Usage, error_type: ErrorType | None = None, code: str | None = None, message: str | None = None) -> list[DataPart]:
    """The data part that follows an answer, or none when there is nothing to tell."""
    data: dict[str, Any] = {"usage": told} if (told := usage.to_json()) else {}
    if error_type is not None:
        data |= {"error_type": error_type, "error_code": code, "error_message": message}
    return [DataPart(data=data)] if data else []


def read_ending(parts: Sequence[Part]) -> Ending:
    """What the parts of a task's last message say; later ones win, and what isn't of the expected type is passed over."""
    text: str | None = None
    data: dict[str, Any] = {}
    for part in parts:
        if isinstance(part, TextPart):
            text = part.text
        elif isinstance(part, DataPart):
            data |= part.data
    usage = data.get("usage") if isinstance(data.get("usage"), dict) else {}
    counts = {"tool_call_count": data.get("tool_call_count"), **(usage or {})}
    known = {name: value for name in Usage.__slots__ if (value := _told(name, counts.get(name))) is not None}
    errors = {name: data[name] for name in ("error_type", "error_code", "error_class", "error_message") if isinstance(data.get(name), str)}
    return Ending(text, Usage(**known), data.get("structured_output"), **errors)


def _told(name: str, value: object) -> Any:
    """A count, a cost or the details, or None for what is none. The JSON of protobuf, and so 1.x, has every number as a fraction."""
    if name == "provider_details":
        return value if isinstance(value, dict) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if name == "cost_usd":
        return value
    return int(value) if isinstance(value, int) or value.is_integer() else None

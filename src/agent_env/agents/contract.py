"""What a deployed agent is, what a turn with it comes to, and what deploying one may ask of the engine that runs it.

Nothing is made by itself: `Making` journals each sandbox and container before it exists. A live agent is found again from its record
alone, in any process, and a prompt from its message's id.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from agent_env.defaults import DEFAULT_LIMITS
from agent_env.documents.records import DeployedAgent
from agent_env.environments.contract import ContainerWanted, Held
from agent_env.environments.contract import Making as EnvironmentMaking
from agent_env.places import Place, View

if TYPE_CHECKING:
    from agent_env_sdk.wire.a2a import AgentCard, Usage

    from agent_env.agents.trajectories import Keeping
    from agent_env.artifacts.image_artifacts import ImageSource
    from agent_env.documents.network import NetworkPolicy

__all__ = [
    "A2A_PORT",
    "Accepted",
    "AgentPlan",
    "ContainerWanted",
    "End",
    "Ended",
    "LiveAgent",
    "Making",
    "McpServer",
    "Outgoing",
    "Progress",
    "Trajectory",
    "Turn",
    "Update",
]

Json = Any
A2A_PORT = 8000
"""The well-known port of an agent, inside its place."""
DEFAULT_AGENT_NAME = "default-agent"


# what is to be deployed


@dataclass(frozen=True, slots=True)
class AgentPlan:
    """An agent with its document looked up."""

    agent_name: str
    """As the task calls it; unique in the run."""
    agent_id: str
    agent_version: int | None
    image: ImageSource
    """A name that is here or in a registry, or what to build."""
    sandbox: str | None = None
    """A provider of sandboxes; None is the configured default. Always one, never a chain."""
    sandbox_id: str | None = None
    """An existing sandbox with a machine, beside which the agent's container is put; None makes a sandbox of its own."""
    sandbox_type: str | None = None
    """That sandbox's provider."""
    env: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Further variables, which no record, argument or engine may show."""
    references: Mapping[str, str] = field(default_factory=dict)
    """How each value that it is told in confidence, its token too, is found again. That alone is recorded."""
    role: str | None = None
    networks: Sequence[str] = ()
    """The engine's networks that its container joins: those of the environments that it uses."""
    cpu: float = 1.0
    memory_bytes: int = DEFAULT_LIMITS.sandbox_memory_bytes
    disk_bytes: int = DEFAULT_LIMITS.sandbox_disk_bytes
    ttl_seconds: float = DEFAULT_LIMITS.sandbox_ttl_seconds
    network: NetworkPolicy | None = None
    attribution: Mapping[str, str] = field(default_factory=dict)
    instance_id: str = ""
    default_model: str | None = None
    """Its document's."""
    takes_credentials: bool = True
    """It is given what it asks models by."""
    brokered: bool = False
    """That leads through the model broker on its own loopback."""
    port: int = A2A_PORT
    """Where it is to listen."""
    shared_loopback: bool = False
    """Its place has no loopback of its own: it is this machine's."""


@dataclass(frozen=True, slots=True)
class McpServer:
    """An MCP server that an agent is to use."""

    url: str
    """As the agent's place reaches it."""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Hold the agent's own token; never stored."""
    name: str | None = None


class Making(EnvironmentMaking, Protocol):
    """What deploying an agent may ask of the engine: all that an environment may, and the agent's own sandbox."""

    async def agent_sandbox(self, plan: AgentPlan, *, env: Mapping[str, str], secrets: Mapping[str, str]) -> Held:
        """Journals and makes a sandbox that *is* the agent's container, serving `A2A_PORT`.

        Raises:
            UnsupportedError: The provider can't.
            InfrastructureError: It could not.
        """
        ...

    def agent_token(self, instance_id: str, sandbox_id: str | None) -> str:
        """The bearer token of a deployed agent: nothing is stored, and the same deployment has it again. Redacted from now on.

        Args:
            instance_id: The deployment's.
            sandbox_id: Its sandbox, where that is there already.
        """
        ...

    async def agent_place(self, record: DeployedAgent) -> Place:
        """Where an agent is. The engine keeps the connection and ends it.

        Raises:
            SandboxUnavailableError: It is not running, or gone.
        """
        ...

    def host_name(self, record: DeployedAgent) -> str | None:
        """What an agent's container is called on the networks that it joined; None where it is on none."""
        ...

    async def log_tail(self, record: DeployedAgent) -> str:
        """The end of what an agent wrote to its log, without secrets; empty where there is none to be had."""
        ...

    async def join(self, sandbox_id: str, place: Place, network: str) -> None:
        """Puts a container of a sandbox on one more network of its engine. Asking again changes nothing."""
        ...


# what passes between us and an agent


class End(StrEnum):
    """How a turn ended. Each is told apart everywhere."""

    COMPLETED = "completed"
    FAILED = "failed"
    CANCELED = "canceled"
    REJECTED = "rejected"
    TIMED_OUT = "timed_out"
    """It outlived its time; the agent was asked to cancel it."""
    LOST = "lost"
    """The agent can no longer be reached, or forgot the task: what it did is not known."""
    INPUT_REQUIRED = "input_required"
    """The agent waits for an answer: the turn is over, the task is not."""


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message to an agent."""

    parts: Sequence[Mapping[str, Json]]
    """A2A parts, as 0.3 spells them."""
    message_id: str
    """The idempotency key: the same one finds the task that it started, and is never worked on twice."""
    context_id: str | None = None
    """The conversation; None lets the agent choose."""
    task_id: str | None = None
    """A task of that conversation that waits for input."""
    known_task: str | None = None
    """The task that this message is known to have started: it is then only followed."""
    may_have_been_sent: bool = False
    """An earlier process may have sent it: found by its ids before it is sent, and not sent where that can't be told."""
    config: Mapping[str, Json] = field(default_factory=dict)
    """Settings of this turn, of `agent_env_sdk.wire.agent_extensions.CONFIG_FIELDS`; what the agent does not take is left out."""
    timeout_seconds: float = 600.0


@dataclass(frozen=True, slots=True)
class Accepted:
    """The agent has the message."""

    task_id: str
    context_id: str | None


@dataclass(frozen=True, slots=True)
class Progress:
    """The agent says something while it works."""

    text: str


@dataclass(frozen=True, slots=True)
class Turn:
    """What a turn came to. There is one for every turn, however it ended."""

    end: End
    message_id: str
    task_id: str | None = None
    """The agent's id of the task; None where it never took the message."""
    context_id: str | None = None
    text: str | None = None
    """The last text part of the answer; of a turn without one, the last that the agent said."""
    parts: Sequence[Mapping[str, Json]] = ()
    """All parts of the answer."""
    partial: bool = False
    """`text` and `parts` are what had come when the turn was cut."""
    usage: Usage | None = None
    structured_output: Json = None
    error_type: str | None = None
    """`agent_error` or `infra_error`: only the first may count against a score."""
    error_code: str | None = None
    error_message: str | None = None
    gap: bool = False
    """Updates may have been missed while the connection was away; the ending was read again."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The last update of every turn."""

    turn: Turn


Update = Accepted | Progress | Ended


@dataclass(frozen=True, slots=True)
class Trajectory:
    """What an agent recorded of a turn or a conversation, in its own format."""

    format: str | None
    state: str
    """`pending`, `running`, `completed`, `failed` or `canceled`."""
    events: Sequence[Json]
    truncated: bool = False
    """There was more than `limits.agent_trajectory_bytes`."""


class LiveAgent(Protocol):
    """A deployed agent at hand. Closing it leaves the agent running."""

    @property
    def record(self) -> DeployedAgent:
        """What the run's context keeps of it."""
        ...

    async def card(self, *, refresh: bool = False) -> AgentCard:
        """Its card, read once.

        Raises:
            AgentUnreachableError: It does not answer.
            AgentFailedError: It has none; the message lists the paths that were tried.
        """
        ...

    def prompt(self, message: Outgoing) -> AsyncGenerator[Update, None]:
        """Sends a message and tells how it goes; the last update is always an `Ended`, whatever happened.

        Closing or cancelling it cancels the task at the agent. Streams where the agent can, takes a broken stream up again, reads the
        task again where a stream ends without its ending, and asks by and by where the agent can't stream.
        """
        ...

    async def ask(self, message: Outgoing) -> Turn:
        """The same, for whoever needs only the ending."""
        ...

    async def cancel(self, task_id: str) -> None:
        """Asks the agent to end a task; best effort."""
        ...

    async def trajectory(self, task_id: str | None = None, *, context_id: str | None = None) -> Trajectory | None:
        """What it recorded of a task or conversation so far, also while it goes on; None where it records nothing or knows neither."""
        ...

    def recorded_since(self, task_id: str, position: int) -> AsyncGenerator[Sequence[Json], None]:
        """What it recorded of a task from a position on, page by page, as far as it goes now.

        Raises:
            AgentUnreachableError: It does not answer.
        """
        ...

    def keeping(self, path: Path) -> Keeping:
        """What keeps a turn's trajectory in a file, also while it goes on."""
        ...

    async def supports(self, uri: str, operation: str) -> bool:
        """Whether its card advertises an operation of an extension."""
        ...

    async def invoke(self, uri: str, operation: str, body: Mapping[str, Json] | None = None, *, seconds: float | None = None) -> Json:
        """Calls an operation of an extension where the card says.

        Args:
            uri: The extension, see `agent_env_sdk.wire.agent_extensions`.
            operation: Of its operations.
            body: Its request.
            seconds: None is `limits.agent_call_seconds`.

        Raises:
            AgentNotAdvertisedError: The card does not have it.
            AgentFailedError: The agent refused it; says its code, never what was sent.
            AgentUnreachableError: It does not answer.
        """
        ...

    async def get_file(self, path: str, to: Path, *, limit_bytes: int, seconds: float) -> str:
        """Reads what the agent serves under a path (its staging) into a file. Returns its sha256, in hexadecimal.

        Raises:
            AgentFailedError: It is not there, or longer than the limit.
            AgentUnreachableError: The agent does not answer.
        """
        ...

    async def put_file(self, path: str, source: Path, *, media_type: str, seconds: float) -> None:
        """Writes a file to a path that the agent serves. Raises as `get_file`."""
        ...

    def secret_name(self, purpose: str) -> str | None:
        """A name that only this deployment knows, the same in every process; None of an agent that has no token of ours."""
        ...

    async def delete(self, path: str) -> None:
        """Removes what is under a path. What is not there is no error. Raises as `get_file`."""
        ...

    async def configure(self, fields: Mapping[str, Json]) -> Mapping[str, Json]:
        """Sets those of `CONFIG_FIELDS` that its card takes, for all its turns. Returns what was sent."""
        ...

    async def wire(self, servers: Sequence[McpServer]) -> None:
        """Registers MCP servers, replacing those of the same name; an agent without `mcp-config` gets none."""
        ...

    async def place(self) -> Place:
        """Its container, or the machine that it is installed on.

        Raises:
            SandboxUnavailableError: It is not running.
            PlacementError: It has none: it is only known by its address.
        """
        ...

    def url(self, view: View = View.PROCESS) -> str:
        """Its base address, seen from there.

        Raises:
            LookupError: It can't be reached from there.
        """
        ...

    async def log_tail(self) -> str:
        """The end of its container's log, redacted; empty where there is none."""
        ...

    async def aclose(self) -> None:
        """Lets go of connections."""
        ...

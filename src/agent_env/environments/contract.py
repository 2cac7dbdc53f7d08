"""What a deployed environment is, what a provider of environments does, and what it may ask of the engine that runs it.

A provider makes nothing by itself: `Making` journals each sandbox and container before it exists. What is live is found again from its
record alone, in any process, and gives the same answers there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from agent_env.defaults import DEFAULT_LIMITS
from agent_env.documents.records import DeployedEnvironment
from agent_env.documents.stored import Ref, StoredDocument
from agent_env.environments.making import ContainerWanted, Held, Making, SandboxWanted
from agent_env.places import Endpoint, Place, View

if TYPE_CHECKING:
    from agent_env.artifacts.image_artifacts import ImageSource
    from agent_env.environments.client import EnvironmentClient

__all__ = [
    "AgentAccess",
    "ContainerWanted",
    "DeployOptions",
    "DeployPlan",
    "EnvironmentProvider",
    "Held",
    "LiveEnvironment",
    "Lookup",
    "Making",
    "Part",
    "SandboxWanted",
    "ServerPlan",
    "WebsitePlan",
]

Json = Any
SURFACE_VERSION = 1
"""Of what plug-ins are written against."""
DOOR = 18765
"""The well-known port of an environment: of a server in its container, and of a gateway's agent door."""
CONTROL_DOOR = 18766
"""A gateway's control door, on the loopback of its own place alone."""
DEFAULT_ROLE = "default"


# what is to be deployed


@dataclass(frozen=True, slots=True)
class ServerPlan:
    """One MCP server."""

    name: str
    """Its `environment_name`."""
    image: ImageSource
    """A name that is here or in a registry, or what to build."""
    env_id: str = ""
    env_version: int | None = None


@dataclass(frozen=True, slots=True)
class WebsitePlan:
    """One website: a backend with a data plane, and a frontend."""

    name: str
    backend_image: ImageSource
    frontend_image: ImageSource
    env_id: str = ""
    env_version: int | None = None


@dataclass(frozen=True, slots=True)
class DeployOptions:
    """What the one who deploys may choose. A provider is refused those that it does not take (`EnvironmentProvider.options`)."""

    ttl_seconds: float = 7200.0
    disk_bytes: int = DEFAULT_LIMITS.sandbox_disk_bytes
    cpu: float = 0.0
    """0 is the configured limit, as for memory."""
    memory_bytes: int = 0
    gateway_mode: Literal["performance", "consistent"] = "performance"
    env_state_type: str | None = None
    """`local_postgres` asks for a database; None has one where a server says that it needs it, see `service_db`."""
    env_state_instance_id: str | None = None
    attribution: Mapping[str, str] = field(default_factory=dict)
    artifact_id: str | None = None
    artifact_version: int | None = None
    namespacing: bool = False
    """Tools that two servers call the same get the server's name before theirs; otherwise such a clash is refused."""
    inspection: bool = False
    """Also runs the database's own inspection tools."""
    unauthenticated_role: str | None = None
    """The role of callers that send no token, for clients that can't; None lets nobody in without one."""
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Further variables of every server that no record, argument or engine may show."""


@dataclass(frozen=True, slots=True)
class DeployPlan:
    """An environment with all its documents looked up."""

    env_id: str
    env_version: int | None
    kind: Literal["mcp_server", "website", "multi"]
    provider: str
    """`env_provider_type`."""
    servers: Sequence[ServerPlan] = ()
    websites: Sequence[WebsitePlan] = ()
    name: str | None = None
    """Of a multi: the name that agents see."""
    sandbox: str | None = None
    """A provider of sandboxes; None is the configured default. Always one, never a chain: `deploy` goes through that."""
    instance_id: str = ""
    step_id: str | None = None
    metadata: Mapping[str, Json] = field(default_factory=dict)
    """What the step adds to the record's."""
    options: DeployOptions = field(default_factory=DeployOptions)
    database: Mapping[str, ImageSource] = field(default_factory=dict)
    """Images of a `service_db` document: `db`, `web`, `mcp`; empty takes the configured one when a database is needed."""
    gateway_image: ImageSource | None = None
    """Of a `gateway_server` document; None is our own."""


class Lookup(Protocol):
    """Where documents and images of a plan come from; `engine` looks into the stores."""

    def environment(self, ref: Ref) -> StoredDocument:
        """An environment's document.

        Raises:
            NotFoundError: There is none.
        """
        ...

    def image(self, ref: Ref) -> ImageSource:
        """What a `docker_image` artifact stands for: a name, or what to build. May unpack a stored context.

        Raises:
            NotFoundError: There is no such artifact.
            UserError: It holds nothing that an engine can run.
        """
        ...


# what is deployed


@dataclass(frozen=True, slots=True)
class AgentAccess:
    """How an agent reaches an environment: what its MCP configuration gets."""

    url: str
    headers: Mapping[str, str]
    """Hold the agent's token; never stored in a record."""
    name: str | None
    """The MCP server's name, as agents see it."""
    network: str | None = None
    """The engine's network that a container of the agent joins to reach `url`; None where there is nothing to join."""


@dataclass(frozen=True, slots=True)
class Part:
    """One server or website of a live environment."""

    name: str
    kind: Literal["mcp_server", "website"]
    image: str = ""
    """As its document names it: what a snapshot's fingerprint is made of."""


@runtime_checkable
class LiveEnvironment(Protocol):
    """A deployed environment at hand. Closing it leaves the environment running."""

    @property
    def record(self) -> DeployedEnvironment:
        """What the run's context keeps of it."""
        ...

    @property
    def parts(self) -> Mapping[str, Part]:
        """Its servers and websites: `<name>` for an MCP server, `<name>` too for a website unless a server has that name (then
        `<name>-website`).
        """
        ...

    @property
    def has_gateway(self) -> bool:
        """Clock, triggers, trajectory and changes are there to be asked for."""
        ...

    def client(self, name: str | None = None) -> EnvironmentClient:
        """Speaks with one of its servers itself (data plane, extensions, MCP), past any gateway.

        Args:
            name: A key of `parts`; None is the only one.

        Raises:
            PlacementError: There is no such part, or more than one where none was named; says which there are.
        """
        ...

    @property
    def control(self) -> EnvironmentClient:
        """Speaks with the environment as a whole, with every right: a gateway's control door, or the lone server."""
        ...

    def endpoint(self, name: str | None = None) -> Endpoint:
        """Where it answers: as a whole without a name (with every right), or one of its parts."""
        ...

    async def place(self, name: str | None = None) -> Place:
        """The container of a part, or without a name the environment's own: the gateway's, or the lone server's.

        Raises:
            SandboxUnavailableError: It is not running.
            PlacementError: There is no such part, or a plug-in deployed it without a container.
        """
        ...

    async def begin_changes(self, name: str) -> None:
        """What a server holds now is the beginning, and no change: called after its data was loaded.

        Args:
            name: A key of `parts`.
        """
        ...

    async def machine(self) -> Place:
        """Where `run_code` acts: the machine, or in a container-shaped sandbox the environment's own container."""
        ...

    def script_urls(self) -> tuple[str | None, str | None]:
        """`url` and `mcp_url` for a script in `machine()`: the base that every path of the card joins onto (None for a record from
        before cards), and the MCP endpoint.
        """
        ...

    async def agent_access(self, role: str | None = None, *, view: View = View.SIBLING) -> AgentAccess:
        """How an agent of a role gets in, seen from where it is.

        Args:
            role: None or `default` is the default role.
            view: SIBLING for a container that joins `AgentAccess.network`; MACHINE for a program of the machine; PROCESS for this process.

        Raises:
            LookupError: It can't be reached from there.
        """
        ...

    async def aclose(self) -> None:
        """Lets go of connections."""
        ...


@dataclass(frozen=True, slots=True)
class Life:
    """What of an environment stands, and since when."""

    started: Mapping[str, str]
    """Part → which life of it this is: another text once it was started again, by whomever."""
    ended: Mapping[str, str] = field(default_factory=dict)
    """Part → what became of it."""


@runtime_checkable
class TellsLife(Protocol):
    """A live environment that can say what of it stands."""

    async def life(self) -> Life:
        """Asks its parts. One that has ended and keeps all it knows in its files, such as a gateway, is started again by that.

        Raises:
            InfrastructureError: Its gateway does not stand, or nobody can say.
        """
        ...


class EnvironmentProvider(Protocol):
    """What deploys environments: `gateway`, `server`, or a package's (entry point `agent_env.env_providers`, a class without arguments)."""

    type: str
    """`env_provider_type`."""
    options: frozenset[str]
    """Fields of `DeployOptions` that it takes; another one that was given is refused."""

    def problems(self, plan: DeployPlan) -> Sequence[str]:
        """Why it can't deploy this, all reasons at once, as far as the documents tell: nothing was made yet."""
        ...

    async def deploy(self, plan: DeployPlan, making: Making) -> LiveEnvironment:
        """Deploys it. A failure or a cancellation leaves nothing behind: whoever calls removes the sandboxes that it made."""
        ...

    async def attach(self, record: DeployedEnvironment, making: Making) -> LiveEnvironment:
        """The same environment, from its record alone.

        Raises:
            SandboxUnavailableError: Something of it is not running; says what.
        """
        ...

    async def destroy(self, record: DeployedEnvironment, making: Making) -> None:
        """Removes what it has outside of sandboxes, and those. Idempotent."""
        ...

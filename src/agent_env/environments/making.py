"""What a provider of environments may ask of the engine that runs it. Everything made through it is journalled before it exists."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from agent_env.places import Place, Shape

if TYPE_CHECKING:
    from agent_env.artifacts.image_artifacts import ImageSource
    from agent_env.clock import Clock
    from agent_env.containers import ContainerPlace, Engine
    from agent_env.defaults import Limits
    from agent_env.environments.contract import DeployPlan
    from agent_env.environments.settings import EnvironmentSettings
    from agent_env.images import Images
    from agent_env.images.oci.manifests import ImageConfig
    from agent_env.sandboxes.contract import Capabilities, Provider, Sandbox


@dataclass(frozen=True, slots=True)
class SandboxWanted:
    """A sandbox of an environment."""

    name: str
    """Unique in the deployment: `machine`, `gateway`, a server's name."""
    mode: Literal["vm", "container"] = "vm"
    image: ImageSource | None = None
    ports: Sequence[int] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    kept: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Further secrets, which nobody can derive again: this installation keeps them, so that whoever comes back can tell them again."""
    restart: bool = False
    """Its command keeps all it knows in files, and is started again when it was killed."""
    leads: Mapping[int, int] = field(default_factory=dict)
    """Port of its own loopback → port of this machine's that it leads to before its command starts."""
    cpu: float = 0.0
    memory_bytes: int = 0
    disk_bytes: int = 0


@dataclass(frozen=True, slots=True)
class ContainerWanted:
    """A container beside the machine of a sandbox."""

    name: str
    """Unique beside that machine; the container is called `<name>-<sandbox id>`."""
    image: ImageSource
    env: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    references: Mapping[str, str] = field(default_factory=dict)
    """Of those, how a value is found again by whoever comes back; of those without, whoever attaches gives the values itself."""
    kept: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Further secrets, which nobody can derive again: this installation keeps them, so that whoever comes back can tell them again."""
    networks: Sequence[str] = ()
    """Networks of the sandbox's own, such as `back`; made when first named. None is the shared one, where nobody sees anybody."""
    ports: Sequence[int] = ()
    """Published on this machine's loopback."""
    relayed: bool = False
    """Ports of its own loopback shall answer on this machine's, see `Making.relay`."""
    argv: Sequence[str] | None = None
    entrypoint: Sequence[str] | None = None
    user: str | None = None
    hold: bool = False
    """Stays, with its log, when its command has ended."""
    restart: bool = False
    """Its command keeps all it knows in files, and is started again when it was killed."""
    cpu: float = 0.0
    memory_bytes: int = 0
    privileged: bool = False
    """It may do everything to the machine's kernel. Whoever asks has looked whether that is granted."""


class Held(Protocol):
    """A live sandbox and what is known of its provider."""

    @property
    def sandbox(self) -> Sandbox: ...

    @property
    def provider(self) -> Provider: ...

    @property
    def shape(self) -> Shape: ...


class Making(Protocol):
    """What a provider may ask of the engine. Everything that it makes is journalled first, and goes with its sandbox."""

    limits: Limits
    clock: Clock
    state_root: Path
    sandbox_provider: str
    """The provider of sandboxes that is to be used."""
    settings: EnvironmentSettings

    async def capabilities(self) -> Capabilities:
        """What that provider can do."""
        ...

    async def sandbox(self, wanted: SandboxWanted, plan: DeployPlan) -> Held:
        """Journals and makes a sandbox.

        Raises:
            UnsupportedError: The provider can't.
            InfrastructureError: It could not.
        """
        ...

    async def hold(self, sandbox_id: str, sandbox_type: str | None) -> Held:
        """A sandbox of this run, attached when this process does not have it yet.

        Raises:
            SandboxUnavailableError: It is gone.
        """
        ...

    async def remove(self, sandbox_id: str) -> None:
        """Removes a sandbox with all that is beside it, and closes their rows. Idempotent."""
        ...

    async def container(self, sandbox_id: str, wanted: ContainerWanted) -> ContainerPlace:
        """Journals and starts a container beside a sandbox's machine; its image is fetched or built when it is not there."""
        ...

    async def place(
        self,
        sandbox_id: str,
        sandbox_type: str | None,
        container: tuple[str, str] | None,
        secrets: Mapping[str, str] | None = None,
        *,
        revived: Callable[[Place], Awaitable[None]] | None = None,
    ) -> Place:
        """A container of a sandbox, or without one the sandbox itself (its machine). The engine keeps the connection and ends it.

        Args:
            sandbox_id: The sandbox.
            sandbox_type: Its provider.
            container: The container's id, and what it was called when it was made.
            secrets: What the container was told besides its environment, in case it was started again and has to be told again.
            revived: Given, a container that has ended is started again, which is for those that keep all they know in their files. This is
                awaited with it before anybody gets it.

        Raises:
            SandboxUnavailableError: It is not running, or gone.
        """
        ...

    async def network(self, sandbox_id: str, name: str) -> str | None:
        """The engine's id of a network of a sandbox's own; None where there is none."""
        ...

    async def engine(self, sandbox_id: str) -> Engine:
        """The container engine of a sandbox's machine.

        Raises:
            UnsupportedError: It has none.
        """
        ...

    async def image(self, sandbox_id: str, wanted: ImageSource) -> str:
        """Has an image present in the engine of a sandbox. Returns its id."""
        ...

    async def image_config(self, image: ImageSource) -> ImageConfig | None:
        """What an image says of itself to a provider whose sandboxes are made of images; fetched or built where it is not here.

        None where the provider can't tell.
        """
        ...

    async def images(self, sandbox_id: str | None = None) -> Images:
        """The images of the engine of a sandbox; without one, of this machine's own engine. Not the caller's to close.

        Raises:
            UnsupportedError: There is no engine.
        """
        ...

    async def lead(self, sandbox_id: str, ports: Mapping[int, int]) -> None:
        """Makes ports of this machine's loopback answer on that of a sandbox's own place, where it has one of its own.

        Args:
            sandbox_id: The sandbox.
            ports: Port of its loopback → port of this machine's.
        """
        ...

    async def answer(self, sandbox_id: str, ports: Mapping[int, int]) -> bool:
        """Makes ports of a sandbox's own loopback answer on this machine's. Returns whether it has a loopback of its own.

        Args:
            sandbox_id: A sandbox that is a container.
            ports: Port of its loopback → port of this machine's.

        Raises:
            PortTakenError: A port of this machine is in use.
            UnsupportedError: Its provider can't.
        """
        ...

    async def relay(self, sandbox_id: str, place: Place, name: str, ports: Mapping[int, int]) -> None:
        """Makes ports of a container's own loopback answer on this machine's. Asking again changes nothing.

        Args:
            sandbox_id: Whose container it is.
            place: The container, made with `relayed`.
            name: What it was called when it was made.
            ports: Port of the container's loopback → port of this machine's.
        """
        ...

    def derive(self, sandbox_id: str, *words: str) -> str:
        """A secret that only this installation can make, and again for the same sandbox and words: nothing is stored."""
        ...

    def secret(self, value: str) -> str:
        """The value, which no log, event or record shows from now on."""
        ...

    def tell(self, message: str) -> None:
        """Tells whoever watches what goes on."""
        ...

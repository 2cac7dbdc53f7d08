"""The contract of a sandbox provider: a handful of primitives. Everything above them is derived once.

A provider creates, attaches, opens, destroys and lists. It does not retry, record, choose names or decide where steps act.
One that can only run a program with a byte stream gets its places from `sandboxes.remote`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from agent_env.defaults import Limits
from agent_env.documents.network import NetworkMode, NetworkPolicy
from agent_env.errors import InfrastructureError
from agent_env.places import Place, Published, Shape

if TYPE_CHECKING:
    from agent_env.containers.engine import Engine
    from agent_env.images.building import BuildRequest
    from agent_env.images.credentials import Keyring
    from agent_env.images.progress import OnProgress

SURFACE_VERSION = 1
"""Of what plug-ins are written against. Raised when a change would break them; tests/providers/test_surface.py holds it."""


class Level(StrEnum):
    """How honestly a limit holds: enforced by the kernel, watched and then stopped, or not at all."""

    HARD = "hard"
    WATCHED = "watched"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a provider can do on this machine, found out before anything starts."""

    shape: Shape
    egress: frozenset[str]
    """Network modes that it can enforce: `none`, `allow_all`, `allowlist`."""
    limits: Mapping[str, Level] = field(default_factory=dict)
    """`memory`, `processes`, `cpu`, `disk`, `ttl` → how each one holds."""
    containers: bool = False
    """Containers can be run on its machine."""
    users: str = "one"
    """`one` user (0 inside), or `many`."""
    publish: bool = False
    own_network: bool = True
    """Each sandbox has ports and a loopback of its own; without that, two that serve the same port are in each other's way."""
    reattach: bool = True
    snapshots: bool = False
    gpu: bool = False
    on_this_machine: bool = True
    notes: Sequence[str] = ()
    """What a person should know: a missing part and what it would bring."""

    @property
    def modes(self) -> frozenset[str]:
        """The `sandbox_mode`s that it makes: `vm` where it gives a machine, `container` where it runs containers or is one."""
        if self.shape is Shape.CONTAINER_SHAPED:
            return frozenset({"container"})
        return frozenset({"vm", "container"} if self.containers else {"vm"})

    def declared(self) -> frozenset[str]:
        """Every capability that it has, by name: what a conformance case may need, such as `publish`, `egress.none`, `limits.memory`."""
        flags = ("containers", "publish", "own_network", "reattach", "snapshots", "gpu", "on_this_machine")
        return frozenset(
            {self.shape.value, f"users.{self.users}"}
            | {name for name in flags if getattr(self, name)}
            | {f"mode.{mode}" for mode in self.modes}
            | {f"egress.{mode}" for mode in self.egress}
            | {f"limits.{name}" for name, level in self.limits.items() if level is not Level.NONE}
        )


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """What is to be made."""

    sandbox_id: str
    """Chosen by us before the journal row is written, such as `local-1f2e3d4c`."""
    mode: str = "vm"
    """`vm` or `container`."""
    image: str | None = None
    cpu: float = 1.0
    memory_bytes: int = 0
    """0 means no limit."""
    disk_bytes: int = 0
    processes: int = 0
    ttl_seconds: float = 7200.0
    ports: Sequence[int] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables of the place's programs. Whoever may ask a container engine may see them."""
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Further ones, which only the place's own programs see. Never stored, never in an argument."""
    network: NetworkPolicy | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    epoch: int = 1
    token: str = ""
    """The place's token: HMAC(installation key, run id, sandbox id). Never stored."""
    restart: bool = False
    """Of a container: its command is started again when it was killed, where its provider can do that. The place stays the same."""
    leads: Mapping[int, int] = field(default_factory=dict)
    """Port of its own loopback → port of this machine's that it leads to before its command starts, of providers whose sandboxes are
    `LeadsToHost`. One that shares this machine's loopback has none of its own, and is told none."""

    @property
    def network_mode(self) -> NetworkMode:
        """What the policy comes to: none given allows everything, and an allow-list without entries denies everything."""
        if self.network is None:
            return NetworkMode.ALLOW_ALL
        empty = self.network.mode is NetworkMode.ALLOWLIST and not (self.network.allow_hosts or self.network.allow_cidrs)
        return NetworkMode.NONE if empty else self.network.mode


def refusals(name: str, spec: SandboxSpec, capabilities: Capabilities) -> Iterator[str]:
    """Why a provider with these capabilities can't make this sandbox, as far as the capabilities tell: what `problems` begins with.

    Args:
        name: The provider's, for the messages.
        spec: What is to be made.
        capabilities: What the provider can do.
    """
    if spec.mode not in capabilities.modes:
        able = ", ".join(sorted(capabilities.modes))
        yield f"the provider {name!r} makes no sandbox of mode {spec.mode!r}, only {able}"
    if spec.network_mode not in capabilities.egress:
        able = ", ".join(sorted(capabilities.egress)) or "none at all"
        yield f"the provider {name!r} can't hold a network policy of mode {spec.network_mode.value!r}; it can do {able}"
    if spec.ports and not capabilities.publish:
        yield f"the provider {name!r} can't publish ports ({', '.join(map(str, spec.ports))} asked for)"


@dataclass(frozen=True, slots=True)
class SandboxInfo:
    """What a provider tells about one of its sandboxes; plain data for the journal."""

    sandbox_id: str
    labels: Mapping[str, str]
    alive: bool
    facts: Mapping[str, object] = field(default_factory=dict)
    """Provider's own facts that reattaching needs (work folder, container id, pids with start time and boot id)."""


class ByteStream(Protocol):
    """A running program's standard input and output, as bytes. Its standard error is not part of it."""

    async def receive(self) -> bytes:
        """The next bytes, as soon as there are any; none at the end.

        Raises:
            InfrastructureError: The stream broke.
        """
        ...

    async def send(self, data: bytes) -> None:
        """Passes bytes on to the program; waits while it takes none.

        Raises:
            InfrastructureError: The stream broke.
        """
        ...

    async def aclose(self) -> None:
        """Lets go. The program sees the end of its input, and may be ended."""
        ...


OpenStream = Callable[[Sequence[str]], Awaitable[ByteStream]]
"""Runs a program (an argument vector, as root where the machine has one) and speaks with it: the one primitive that a provider of remote
machines needs beside create, destroy and list."""


class Sandbox(Protocol):
    """A live handle on a sandbox. Closing it leaves the sandbox running."""

    @property
    def info(self) -> SandboxInfo:
        """What the journal keeps of it."""
        ...

    @property
    def levels(self) -> Mapping[str, Level]:
        """How each limit holds in this very sandbox: goes into the run's record."""
        ...

    @property
    def published(self) -> Published:
        """Its ports as the outside sees them."""
        ...

    @property
    def network(self) -> NetworkPolicy:
        """The policy that is in force."""
        ...

    async def machine(self) -> Place:
        """The machine place (machine-backed), or the sandbox itself (container-shaped)."""
        ...

    async def container(self, container_id: str) -> Place:
        """A container of this sandbox, by id.

        Raises:
            UnsupportedError: It has no container engine.
            ContainerNotRunningError: It is not running, or is gone; nothing else takes its part.
            PlacementError: It is another sandbox's.
        """
        ...

    async def engine(self) -> Engine:
        """The container engine of its machine. What is made there carries the sandbox's label, and goes with the sandbox.

        Raises:
            UnsupportedError: It has none.
            EngineUnavailableError: It does not answer.
        """
        ...

    async def aclose(self) -> None:
        """Lets go of connections."""
        ...


class Provider(Protocol):
    """Where sandboxes come from."""

    name: str
    """The name under which it was asked for; sandboxes are recorded with it."""

    async def capabilities(self) -> Capabilities:
        """What it can do here, measured once per process and then remembered."""
        ...

    def problems(self, spec: SandboxSpec, capabilities: Capabilities) -> Sequence[str]:
        """Why this spec can't be made here, all reasons at once."""
        ...

    async def create(self, spec: SandboxSpec) -> Sandbox:
        """Makes the sandbox. Called after the journal row exists; a failure leaves nothing behind."""
        ...

    async def attach(self, sandbox_id: str, *, epoch: int, token: str) -> Sandbox:
        """A handle on an existing one, usually from another process. An owner of an older epoch loses its hold.

        Raises:
            SandboxNotFoundError: No sandbox of that id.
            PlaceLostError: It existed, and is gone (a reboot, someone's removal).
        """
        ...

    async def destroy(self, sandbox_id: str) -> bool:
        """Removes it whole: processes, folders, networks. Idempotent. Returns whether there was anything to remove."""
        ...

    def list(self, labels: Mapping[str, str]) -> AsyncIterator[SandboxInfo]:
        """Every sandbox that carries these labels, also those whose creation was cut half-way."""
        ...

    async def aclose(self) -> None:
        """Lets go of clients."""
        ...


@runtime_checkable
class PreparesImages(Protocol):
    """A provider that can fetch an image before a sandbox is made of it, so that nobody waits for that later."""

    async def prepare_image(self, name: str, tell: OnProgress) -> None:
        """Has an image present: the one that is here, else from its registry. What two ask for at the same time is fetched once.

        Args:
            name: As a step names it.
            tell: Told how far it is.

        Raises:
            AgentEnvError: It can't be had; the sandbox's own making says so again.
        """
        ...


@runtime_checkable
class AsksRegistries(Protocol):
    """A provider that fetches images from registries by itself, and can be told who we are to them."""

    def ask_as(self, keyring: Callable[[], Keyring]) -> None:
        """Registries are asked with these credentials from now on, in place of what `docker login` left.

        Args:
            keyring: Gives them when they are needed.
        """
        ...


@runtime_checkable
class BuildsImages(Protocol):
    """A provider whose machines' engine is at hand before there is a sandbox, so that images can be built in it early."""

    async def build_image(self, request: BuildRequest, tell: OnProgress) -> None:
        """Builds an image, unless the same sources were built before. What two ask for at the same time is built once.

        Args:
            request: What to build.
            tell: Told how far it is.

        Raises:
            AgentEnvError: It can't be built; the step that needs it says so again.
        """
        ...


@runtime_checkable
class LeadsToHost(Protocol):
    """A sandbox whose machine has a loopback of its own, on which what runs beside it can be made to answer."""

    async def lead_to_host(self, ports: Mapping[int, int]) -> None:
        """Makes ports of this machine's loopback answer on the place's own, until the sandbox is gone.

        Args:
            ports: Port of the place's loopback → port of this machine's.

        Raises:
            InfrastructureError: It can't be done; says why.
        """
        ...


@runtime_checkable
class MayBeAway(Protocol):
    """A provider that needs something of this machine which may be away for a while, such as a container engine that is being restarted."""

    def away(self, spec: SandboxSpec) -> InfrastructureError | None:
        """What this spec needs and was not there when `capabilities` looked last, although it belongs here: the reason behind `problems`.

        While a task is planned it counts like any other problem. A sandbox that is being made is told this instead, so that it is tried
        again; None where the spec can't be made here at all.
        """
        ...


@runtime_checkable
class AnswersOnHost(Protocol):
    """A sandbox with a loopback of its own, of which ports can be made to answer on this machine's, and nowhere else."""

    async def answer_on_host(self, ports: Mapping[int, int]) -> None:
        """Makes ports of the place's own loopback answer on this machine's, until the sandbox is gone.

        Args:
            ports: Port of the place's loopback → port of this machine's.

        Raises:
            PortTakenError: A port of this machine is in use.
            InfrastructureError: It can't be done; says why.
        """
        ...


@runtime_checkable
class TakesSecrets(Protocol):
    """A provider whose containers somebody may start again, whereupon they have forgotten what they were told in confidence."""

    def remember(self, of: str, secrets: Mapping[str, str]) -> None:
        """What has to be told again to one that is found started again when it is attached to. Kept in this process's memory alone.

        Args:
            of: The sandbox's id, or the engine's id of a container beside its machine.
            secrets: What it was told as `SandboxSpec.secrets`.
        """
        ...


@runtime_checkable
class Sweeps(Protocol):
    """A provider whose sandboxes share something that outlives each of them."""

    async def sweep(self) -> None:
        """Removes what its sandboxes of this installation share and none uses any more. Harmless at any moment."""
        ...


class ProviderFactory(Protocol):
    """What an entry point or an `impl` of the configuration names: usually the provider's class."""

    def __call__(self, state_root: Path, *, limits: Limits, options: Mapping[str, object]) -> Provider:
        """Makes the provider. Touches no network: that is left to `capabilities`, which has a deadline.

        Args:
            state_root: Where providers of this machine keep their records.
            limits: Waits and limits.
            options: The table `[sandbox.providers.<name>.config]`, with its references resolved.

        Raises:
            UserError: An option that it does not know, or one that is missing.
        """
        ...

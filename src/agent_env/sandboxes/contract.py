"""The contract of a sandbox provider: a handful of primitives. Everything above them is derived once.

A provider creates, attaches, opens, destroys and lists. It does not retry, record, choose names or decide where steps act.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from agent_env.documents.network import NetworkPolicy
from agent_env.places import Place, Published, Shape


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
    reattach: bool = True
    snapshots: bool = False
    gpu: bool = False
    on_this_machine: bool = True
    notes: Sequence[str] = ()
    """What a person should know: a missing part and what it would bring."""


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
    network: NetworkPolicy | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    epoch: int = 1
    token: str = ""
    """The place's token: HMAC(installation key, run id, sandbox id). Never stored."""


@dataclass(frozen=True, slots=True)
class SandboxInfo:
    """What a provider tells about one of its sandboxes; plain data for the journal."""

    sandbox_id: str
    labels: Mapping[str, str]
    alive: bool
    facts: Mapping[str, object] = field(default_factory=dict)
    """Provider's own facts that reattaching needs (work folder, container id, pids with start time and boot id)."""


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
        """A container of this sandbox, by id."""
        ...

    async def aclose(self) -> None:
        """Lets go of connections."""
        ...


class Provider(Protocol):
    """Where sandboxes come from."""

    name: str

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

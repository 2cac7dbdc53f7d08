"""What steps ask the engine to make: sandboxes, containers, environments and agents."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Literal, Self

from agent_env.documents.network import NetworkMode
from agent_env.documents.updates import Json

if TYPE_CHECKING:
    from agent_env.agents import LiveAgent
    from agent_env.agents.outfit import InlineSkill
    from agent_env.documents.network import NetworkPolicy
    from agent_env.environments import DeployOptions
    from agent_env.images import BuildRequest, SavedImage

_VOLUME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]*")


@dataclass(frozen=True, slots=True)
class SandboxRequest:
    """What `deploy_sandbox` asks for; the engine chooses the provider, names the sandbox and journals it."""

    sandbox_name: str
    mode: Literal["vm", "container"]
    provider: str | None = None
    """Registry name or a comma-separated chain; None is the configured default."""
    image: str | None = None
    port: int | None = None
    cpu: float = 1.0
    memory_bytes: int = 0
    disk_bytes: int = 0
    ttl_seconds: float = 7200.0
    exposed_ports: Sequence[int] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Variables whose values no record, argument or engine may show."""
    references: Mapping[str, str] = field(default_factory=dict)
    """Of those, how each value is found again: `secret:KEY`, `env:NAME`. That alone is recorded."""
    network: NetworkPolicy | None = None
    attribution: Mapping[str, str] = field(default_factory=dict)
    restart: bool = False
    """Its command is started again when it was killed; see `SandboxSpec`."""
    leads: Mapping[int, int] = field(default_factory=dict)
    """See `SandboxSpec`."""


@dataclass(frozen=True, slots=True)
class Volume:
    """One of a container's volumes."""

    source: str
    """Its name, or a folder of the machine."""
    folder: str
    """Where it stands in the container."""
    read_only: bool = False

    @property
    def of_machine(self) -> bool:
        """It is a folder of the machine, which is a privilege."""
        return self.source.startswith("/")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Reads `name:/folder[:ro]`, or `/of/the/machine:/folder[:ro]`.

        Raises:
            ValueError: It is none; says why.
        """
        source, _, rest = text.partition(":")
        folder, _, options = rest.partition(":")
        plain = PurePosixPath(folder)
        if not plain.is_absolute() or len(plain.parts) == 1 or options not in {"", "ro", "rw"}:
            raise ValueError(f"{text!r} is no volume; write name:/folder, or /of/the/machine:/folder, and :ro for read-only")
        if not source.startswith("/") and not _VOLUME.fullmatch(source):
            raise ValueError(f"{source!r} is no name of a volume: it has letters, digits, dots, dashes and _; a folder is written whole")
        return cls(source, str(plain), options == "ro")


NETWORK_HINT = "deploy the sandbox with allow_all, or use a sandbox_mode 'container' of its own for what must be held to a list"


def network_problem(mode: NetworkMode, sandbox_name: str, names: Iterable[str | None]) -> str | None:
    """Why a container beside a sandbox with such a policy can't be on these networks, or None: it reaches no more than the sandbox may."""
    if mode is NetworkMode.ALLOW_ALL or (mode is NetworkMode.NONE and {*names} <= {None, "none"}):
        return None
    return f"the network policy {mode.value!r} of sandbox {sandbox_name!r} can't be held for a container on a network"


@dataclass(frozen=True, slots=True)
class ContainerRequest:
    """What `run_docker_container` asks for; the engine journals it, and makes it beside the machine of a sandbox."""

    sandbox_name: str
    container_name: str
    image: str | BuildRequest | SavedImage
    """A name that is here or in its registry, what to build, or what to load."""
    argv: Sequence[str] | None = None
    """In place of the image's command."""
    entrypoint: Sequence[str] | None = None
    """In place of the image's entrypoint."""
    hold: bool = False
    """Stays when its command has ended."""
    env: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    references: Mapping[str, str] = field(default_factory=dict)
    """How the values of `secrets` are found again; see `SandboxRequest`."""
    ports: Sequence[int] = ()
    network: str | None = None
    """A network of this sandbox's own, made when it is first named; `host`, `none`, or `container:<name>`."""
    extra_networks: Sequence[str] = ()
    devices: Sequence[str] = ()
    capabilities: Sequence[str] = ()
    privileged: bool = False
    volumes: Sequence[str] = ()
    """`name:/folder[:ro]`, or `/of/the/machine:/folder[:ro]`."""
    shared_memory_bytes: int = 0

    @property
    def privileges(self) -> frozenset[str]:
        """What it wants beyond an ordinary container; see the configuration's `sandbox.container_privileges`."""
        wanted = {
            "privileged": self.privileged,
            "capabilities": bool(self.capabilities),
            "devices": bool(self.devices),
            "volumes": any(Volume.parse(text).of_machine for text in self.volumes),
            "host_network": self.network == "host",
        }
        return frozenset(name for name, asked in wanted.items() if asked)

    def refusal(self, granted: frozenset[str]) -> str | None:
        """Why it can't be started with what this user's configuration grants, and what would grant it; None when it can."""
        return _refusal(f"container {self.container_name!r} asks for", self.privileges, granted)


GRANT_HINT = "write it into your own configuration, if you trust the task"
"""What to do about a refusal."""


def _refusal(who: str, wanted: frozenset[str], granted: frozenset[str]) -> str | None:
    refused = sorted(wanted - granted)
    if not refused:
        return None
    word = f"sandbox.container_privileges = {sorted(granted | set(refused))}"
    return f"{who} {', '.join(refused)}, which reaches this machine itself; {word} would grant that"


@dataclass(frozen=True, slots=True)
class EnvironmentRequest:
    """What `deploy_env` asks for; the engine looks its documents up, chooses the provider of sandboxes, and journals what is made."""

    env_id: str
    env_version: int | None = None
    """None is the newest."""
    provider: str | None = None
    """Of sandboxes: a name or a comma-separated chain; None is the configured default."""
    options: DeployOptions | None = None
    step_id: str | None = None
    metadata: Mapping[str, Json] = field(default_factory=dict)
    """Kept in the record."""


@dataclass(frozen=True, slots=True)
class AgentRequest:
    """What `deploy_agent` asks for; the engine looks its documents up, chooses the provider of sandboxes, and journals what is made."""

    agent_name: str
    agent_id: str | None = None
    """Its document, or a name of an installed bundle; None is the configured default."""
    agent_version: int | None = None
    """None is the newest."""
    provider: str | None = None
    """Of sandboxes: a name or a comma-separated chain; None is the configured default."""
    sandbox_id: str | None = None
    """A sandbox with a machine, beside which its container is put; None makes a sandbox of its own."""
    sandbox_type: str | None = None
    environments: Sequence[tuple[str, str | None]] = ()
    """Those that it uses: the id of each, and the step that deployed it where that has to be said."""
    env: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    references: Mapping[str, str] = field(default_factory=dict)
    """How the values of `secrets` are found again; see `SandboxRequest`."""
    named: bool = True
    """It is told what the task calls it."""
    description: str | None = None
    role: str | None = None
    """Under which it uses its environments."""
    system_prompt: str | None = None
    skills: Sequence[InlineSkill] = ()
    cpu: float = 1.0
    memory_bytes: int = 0
    disk_bytes: int = 0
    ttl_seconds: float = 7200.0
    network: NetworkPolicy | None = None
    attribution: Mapping[str, str] = field(default_factory=dict)
    docker: bool = False
    """It is given a container engine of its own."""
    model_role: Literal["agent", "judge"] = "agent"
    """Whose models it asks, and whose budget that uses up."""
    prepare: Callable[[LiveAgent], Awaitable[None]] | None = field(default=None, repr=False, compare=False)
    """What is done with it before it counts as deployed: when that fails, nothing of it is left."""

    def refusal(self, granted: frozenset[str]) -> str | None:
        """Why it can't be deployed with what this user's configuration grants, and what would grant it; None when it can."""
        return docker_refusal(self.agent_name, granted) if self.docker else None


def docker_refusal(agent_name: str, granted: frozenset[str]) -> str | None:
    """Why an agent can't be given a container engine of its own, which runs in a privileged container; None when it can."""
    return _refusal(f"agent {agent_name!r} is to have a container engine, whose container is", frozenset({"privileged"}), granted)


@dataclass(frozen=True, slots=True)
class InstallRequest:
    """What `install_agent` asks for: an agent in a place of the run that is there already."""

    agent_name: str
    sandbox_id: str
    """With a machine."""
    sandbox_type: str | None
    agent_id: str | None = None
    """Its document; None is the configured default."""
    agent_version: int | None = None
    container_id: str | None = None
    """A container beside that machine; None is the machine itself."""
    container_name: str | None = None
    port: int | None = None
    """Where it listens; None is the agent's own word."""
    ports: Mapping[int, int] = field(default_factory=dict)
    """Port of the machine → port of this machine's loopback that leads there."""
    workspace_dir: str | None = None

"""What a container is to be, as data. Nothing here speaks to an engine."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from agent_env.places.endpoint import LOOPBACK

SANDBOX, RUN, HOME, EPOCH, EXPIRES = (f"agentenv.{name}" for name in ("sandbox", "run", "home", "epoch", "expires"))
"""On every object that we make in an engine."""
ROLE = "agentenv.role"
"""What a container is for: `agent`, `environment`, `sandbox`, `helper`."""
TOLD = "agentenv.told"
"""What its helper was told besides environment and secrets, as JSON: attaching after a restart tells it again."""
SHARED = "shared"
"""The network of a container that stands alone: the installation's, on which containers can't see each other."""
HELPER_FOLDER = "/.agentenv"
HELPER = f"{HELPER_FOLDER}/helper"
_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]{0,127}")

CAPABILITIES = (
    *("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SETPCAP"),
    *("NET_BIND_SERVICE", "SYS_CHROOT", "AUDIT_WRITE", "MKNOD"),
)
"""Of the engine's default, without NET_RAW and SETFCAP. MKNOD is the helper's alone: with it, nothing that runs in the container may trace
what an engine executes there."""


@dataclass(frozen=True, slots=True)
class Mount:
    """A folder or volume that the container sees."""

    target: str
    source: str
    """A volume's name, or an absolute path of the engine's machine (`bind`)."""
    kind: str = "volume"
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class Privileges:
    """What goes beyond an ordinary container. Granted by the user's own policy, never by a task alone."""

    privileged: bool = False
    capabilities: Sequence[str] = ()
    devices: Sequence[str] = ()
    """`/dev/host[:/dev/inside[:rwm]]`."""
    new_privileges: bool = False
    """Set-id programs work (`sudo` of an image)."""

    @property
    def any(self) -> bool:
        """Something is granted."""
        return bool(self.privileged or self.capabilities or self.devices or self.new_privileges)


@dataclass(frozen=True, slots=True)
class ContainerSpec:
    """A container to make."""

    name: str
    """`<role>-<sandbox id>`: for people and for other tools. Identity is the engine's id."""
    image: str
    labels: Mapping[str, str]
    """At least `agentenv.home` and `agentenv.sandbox`."""
    token: str
    """The place's token; see `HelperConfig`."""
    epoch: int = 1
    relay_token: str = ""
    """Lets in who carries TCP for it; see `HelperConfig`."""
    role: str = "sandbox"
    argv: Sequence[str] | None = None
    """In place of the image's command; None keeps it, empty runs nothing."""
    entrypoint: Sequence[str] | None = None
    """In place of the image's entrypoint; None keeps it. A new entrypoint drops the image's command, as engines do."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Shown by the engine to whoever may ask it."""
    secrets: Mapping[str, str] = field(default_factory=dict)
    """As `env`, but told to the helper alone."""
    user: str | None = None
    """None keeps the image's."""
    cwd: str | None = None
    """None keeps the image's."""
    hold: bool = False
    """Stays when its command has ended, or has none."""
    restart: bool = False
    """Its command is started again when it was killed; see `HelperConfig.restart`."""
    ttl_seconds: float = 0.0
    """After which the helper ends the container by itself; 0 is never."""
    cpu: float = 0.0
    """0 means no limit; as for the others."""
    memory_bytes: int = 0
    processes: int = 0
    disk_bytes: int = 0
    shared_memory_bytes: int = 0
    network: str = "none"
    """`none`, `SHARED`, or a network's name or id."""
    aliases: Sequence[str] = ()
    """Its further names on that network."""
    further_networks: Sequence[str] = ()
    """Ids of networks that it is on besides, under the same names, from its start on."""
    ports: Sequence[int] = ()
    """Published on loopback, each on a port of the host that we choose."""
    host_ports: Mapping[int, int] = field(default_factory=dict)
    """Those whose port of the host is asked for."""
    hosts: Mapping[str, str] = field(default_factory=dict)
    """Names that the container knows, with their addresses."""
    mounts: Sequence[Mount] = ()
    temporary: Mapping[str, int] = field(default_factory=dict)
    """Folder → bytes of a file system in memory."""
    read_only: bool = False
    """Its own file system can't be written."""
    privileges: Privileges = field(default_factory=Privileges)
    platform: str | None = None
    """`linux/arm64`; None is the engine's own."""

    def problems(self) -> list[str]:
        """Why this can't be made anywhere, all reasons at once."""
        found = []
        if not _NAME.fullmatch(self.name):
            found.append(f"{self.name!r} is no name for a container")
        found += [f"the label {label} is missing" for label in (HOME, SANDBOX) if not self.labels.get(label)]
        for variables in (self.env, self.secrets):
            found += [f"{name!r} is no name for a variable" for name in variables if not name or "=" in name or "\0" in name]
        found += [f"the value of {name} holds a zero byte" for name, value in (*self.env.items(), *self.secrets.items()) if "\0" in value]
        found += [f"{port} is no port" for port in (*self.ports, *self.host_ports) if not 0 < port < 65536]
        if self.network == "none" and (self.ports or self.host_ports):
            found.append("a container without a network can't publish ports through the engine")
        return found


@dataclass(frozen=True, slots=True)
class ImageFacts:
    """What an image says about the containers made of it."""

    id: str
    architecture: str
    user: str
    cwd: str
    entrypoint: Sequence[str]
    argv: Sequence[str]
    volumes: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)

    def command(self, spec: ContainerSpec) -> list[str]:
        """What the container runs by itself; empty for nothing."""
        if spec.argv is not None and not spec.argv and spec.entrypoint is None:
            return []
        entrypoint = self.entrypoint if spec.entrypoint is None else spec.entrypoint
        own = self.argv if spec.entrypoint is None else ()
        return [*entrypoint, *(own if spec.argv is None else spec.argv)]


@dataclass(frozen=True, slots=True)
class Told:
    """What a helper is told besides environment and secrets; kept as a label, and so never secret."""

    command: Sequence[str]
    user: str
    cwd: str
    hold: bool
    new_privileges: bool
    all_capabilities: bool
    socket: str
    """The abstract name that the helper listens on."""
    secrets: Sequence[str] = ()
    """Names of the variables that it was told besides its environment, so that one that is told again is told all."""
    restart: bool = False

    def label(self) -> str:
        """As the text of a label."""
        pairs = {name: getattr(self, name) for name in self.__slots__}
        return json.dumps({**pairs, "command": list(self.command), "secrets": list(self.secrets)}, separators=(",", ":"))

    @classmethod
    def of_label(cls, text: str) -> Told | None:
        """What `label` wrote; None for anything else."""
        try:
            return cls(**json.loads(text))
        except (ValueError, TypeError):
            return None


@dataclass(frozen=True, slots=True)
class Plan:
    """All that a create request is made of."""

    spec: ContainerSpec
    image: ImageFacts
    told: Told
    helper: Mount
    """The volume that holds the helper."""
    volumes: Sequence[Mount] = ()
    """What stands in for the image's own volumes."""


_LEAST_NANO_CPUS = 10_000_000
"""A hundredth of a core: of less, the kernel makes no quota (1 ms of every 100 ms), and the container could not be started."""


def engine_config(plan: Plan, ports: Mapping[int, int]) -> dict[str, object]:
    """The body of the engine's create request.

    Args:
        plan: The container.
        ports: Port inside → port of the host's loopback.
    """
    spec = plan.spec
    serve = [HELPER, "serve", "--await", plan.told.socket, "--ttl-ms", str(int(spec.ttl_seconds * 1000))]
    exposed = {f"{port}/tcp": [{"HostIp": LOOPBACK, "HostPort": str(number)}] for port, number in ports.items()}
    config: dict[str, object] = {
        "Image": plan.image.id,
        "Entrypoint": serve,
        "Cmd": [],
        "User": "0:0",
        "Env": [f"{name}={value}" for name, value in spec.env.items()],
        "Labels": {**spec.labels, ROLE: spec.role, TOLD: plan.told.label()},
        "Healthcheck": {"Test": ["NONE"]},
        "StopSignal": "SIGTERM",
        "OpenStdin": False,
        "Tty": False,
        "ExposedPorts": {port: {} for port in exposed},
        "HostConfig": _host_config(spec, [plan.helper, *plan.volumes, *spec.mounts], exposed),
    }
    if spec.cwd is not None:
        config["WorkingDir"] = spec.cwd
    if spec.aliases and spec.network not in {"none", "bridge", "host"}:
        config["NetworkingConfig"] = {"EndpointsConfig": {spec.network: {"Aliases": list(spec.aliases)}}}
    return config


def _host_config(spec: ContainerSpec, mounts: Sequence[Mount], exposed: Mapping[str, object]) -> dict[str, object]:
    privileges = spec.privileges
    host: dict[str, object] = {
        "NetworkMode": spec.network,
        "PortBindings": exposed,
        "ExtraHosts": [f"{name}:{address}" for name, address in spec.hosts.items()],
        "Mounts": [_mount(mount) for mount in mounts],
        "Tmpfs": {folder: f"size={size}" for folder, size in spec.temporary.items()},
        "ReadonlyRootfs": spec.read_only,
        "RestartPolicy": {"Name": "no"},
        "Init": False,
        "Privileged": privileges.privileged,
    }
    if not privileges.privileged:
        host["CapDrop"] = ["ALL"]
        host["CapAdd"] = sorted({*CAPABILITIES, *privileges.capabilities})
    if not privileges.new_privileges and not privileges.privileged:
        host["SecurityOpt"] = ["no-new-privileges"]
    if privileges.devices:
        host["Devices"] = [_device(text) for text in privileges.devices]
    if spec.cpu > 0:
        host["NanoCpus"] = max(int(spec.cpu * 1e9), _LEAST_NANO_CPUS)
    if spec.memory_bytes:
        host |= {"Memory": spec.memory_bytes, "MemorySwap": spec.memory_bytes}
    if spec.processes:
        # Every command has a supervisor beside it, and a place that is full must still be looked at and emptied.
        host["PidsLimit"] = spec.processes + max(64, spec.processes // 4)
    if spec.disk_bytes:
        host["StorageOpt"] = {"size": str(spec.disk_bytes)}
    if spec.shared_memory_bytes:
        host["ShmSize"] = spec.shared_memory_bytes
    return host


def _mount(mount: Mount) -> dict[str, object]:
    made: dict[str, object] = {"Type": mount.kind, "Source": mount.source, "Target": mount.target, "ReadOnly": mount.read_only}
    if mount.kind == "volume" and mount.target == HELPER_FOLDER:
        made["VolumeOptions"] = {"NoCopy": True}
    return made


def _device(text: str) -> dict[str, str]:
    host, _, rest = text.partition(":")
    inside, _, rights = rest.partition(":")
    return {"PathOnHost": host, "PathInContainer": inside or host, "CgroupPermissions": rights or "rwm"}

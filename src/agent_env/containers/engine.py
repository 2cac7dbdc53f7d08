"""The one client of a container engine, and the only boundary at which its errors become ours. No `docker` command is ever run."""

from __future__ import annotations

import os
import platform
import re
import socket
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiodocker
import aiohttp
from aiodocker.exceptions import DockerError

from agent_env.containers.endpoint import DENIED_HINT, EngineEndpoint, find_endpoint, hint_of, reason_of
from agent_env.defaults import DEFAULT_LIMITS, Limits
from agent_env.errors import (
    AgentEnvError,
    ContainerNotRunningError,
    DeadlineError,
    EngineConflictError,
    EngineDeniedError,
    EngineFailedError,
    EngineRefusedError,
    EngineUnavailableError,
    NotFoundError,
    PortTakenError,
    StorageError,
    TransportLostError,
)
from agent_env.waiting import deadline

_NO_ANSWER = 900
"""The status that the client library gives to a connection that could not be made, or broke."""
_CONTROLLERS = {"memory": "memory", "cpu": "cpu", "processes": "pids"}
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_TEXTS: tuple[tuple[re.Pattern[str], type[AgentEnvError], str | None], ...] = (
    (re.compile(r"port is already allocated|address already in use|failed to bind host port|bind: .*in use"), PortTakenError, None),
    (re.compile(r"no space left on device|disk quota exceeded"), StorageError, "free space where the engine keeps its data"),
    (re.compile(r"[Pp]ool overlaps|overlaps with (?:other|existing)|subnet \S+ is already used"), EngineConflictError, None),
    (
        re.compile(r"non-overlapping IPv4 address pool|predefined address pools"),
        EngineFailedError,
        "the engine has no address range left for another network: remove unused ones, or widen default-address-pools",
    ),
    (
        re.compile(r"Container \S+ is (?:not running|paused|restarting)|container \S+ is not running|container state improper"),
        ContainerNotRunningError,
        None,
    ),
)
"""What an engine says only in words: pattern → error, hint. Nowhere else are its words read."""


_STRANGE_HINT = "see that DOCKER_HOST, or Docker's active context, leads to the engine itself and not to a proxy or another program"
_BROKEN_HINT = "see with `agent-env doctor` that the engine runs: it may have been restarted"


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What an engine is and can."""

    kind: str
    """`docker` or `podman`."""
    version: str
    api: str
    os: str
    architecture: str
    """In the spelling of images: `amd64`, `arm64`."""
    rootless: bool
    cgroup_version: int
    storage_driver: str
    cpus: int
    on_this_machine: bool
    """It runs on this very kernel and host name, so that its loopback is ours. Otherwise it is reached by published ports alone."""
    names_its_host: str | None = "host-gateway"
    """What a container's list of hosts must say for `host.docker.internal` to be the engine's machine; None where it says so already."""
    limits: frozenset[str] = field(default_factory=frozenset)
    """Of `cpu`, `memory`, `processes`, `disk`: what it can hold a container to."""
    id: str = "engine"
    root: str = ""
    """Where it keeps its data, on its own machine."""
    desktop: bool = False
    """Its machine is a virtual one that emulates other architectures."""


class Engine:
    """A client of one engine; one a process and endpoint. Use as an async context manager, or `aclose` it."""

    def __init__(self, endpoint: EngineEndpoint, *, limits: Limits = DEFAULT_LIMITS) -> None:
        self.endpoint = endpoint
        self.limits = limits
        self.filled: set[str] = set()
        """Volumes of which this process knows that they hold the helper."""
        self.strangers: set[bytes] = set()
        """What this machine calls the first process of containers whose runtime has a kernel of its own: none of them is ours."""
        self._docker: aiodocker.Docker | None = None
        self._connector: aiohttp.BaseConnector | None = None
        self._info: EngineInfo | None = None
        self._is_podman = False
        self._libpod = "4.0.0"
        """The version of Podman's own API that it speaks."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Lets go of every connection."""
        docker, self._docker = self._docker, None
        connector, self._connector = self._connector, None
        if docker is not None:
            await docker.close()
        if connector is not None:
            await connector.close()

    @property
    def docker(self) -> aiodocker.Docker:
        """The client of the Engine API. Use it inside `asking`."""
        if self._docker is None:
            # Without a bound on connections: every container has one of its own, and a bound would make them wait for each other.
            path = self.endpoint.socket
            if path is not None:
                self._connector, url = aiohttp.UnixConnector(str(path), limit=0), "unix://localhost"
            else:
                tls = self.endpoint.tls()
                self._connector = aiohttp.TCPConnector(ssl=tls if tls is not None else True, limit=0)
                url = re.sub(r"^\w+://", "https://" if tls is not None else "http://", self.endpoint.url)
            self._docker = aiodocker.Docker(url=url, connector=self._connector)
            # An engine packs what it is asked to, at tens of megabytes a second: an archive would take ten times as long.
            self._docker.session.headers["Accept-Encoding"] = "identity"
        return self._docker

    @asynccontextmanager
    async def asking(
        self, what: str, *, missing: type[AgentEnvError] = NotFoundError, seconds: float | None = None, concerns: str | None = None
    ) -> AsyncIterator[aiodocker.Docker]:
        """Bounds what is asked of the engine, and turns its errors into ours.

        Args:
            what: What is being done, as messages will say it: `starting the container agent-x`.
            missing: What it means that the engine does not know what is asked about.
            seconds: The limit; None is `Limits.engine_seconds`.
            concerns: The object, for messages.

        Raises:
            EngineUnavailableError: Nobody answers.
            EngineDeniedError: This user is not let in.
            EngineRefusedError: It can't be done as it is asked.
            EngineConflictError: It stands against what the engine has.
            PortTakenError: A port of the host is in use.
            EngineFailedError: The engine tried and failed, or its answer is none of the Engine API's: who reads an answer does it inside.
            TransportLostError: The connection broke, and whether it was done is not known.
            DeadlineError: The engine did not answer in time.
        """
        try:
            limit = self.limits.engine_seconds if seconds is None else seconds
            async with deadline(limit, f"{what} by the container engine at {self.endpoint}"):
                with self.reading(what, concerns=concerns):
                    if self.docker.api_version == "auto":
                        await self._meet(self.docker)
                    yield self.docker
        except DockerError as error:
            broken = error.__context__ if error.status == _NO_ANSWER else None  # raised without naming its cause
            if isinstance(broken, OSError | aiohttp.ClientError):
                raise self._broken(broken, what, concerns) from error
            raise self._refusal(error, what, missing, concerns) from error
        except (aiohttp.ClientError, OSError) as error:
            raise self._broken(error, what, concerns) from error

    @contextmanager
    def reading(self, what: str, *, concerns: str | None = None) -> Iterator[None]:
        """Wherever an answer is read: what is not formed as the Engine API says is the engine's error, and none of ours.

        Raises:
            EngineFailedError: It is not.
        """
        try:
            yield
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            said = f"{type(error).__name__}: {error}"
            message = f"{what} failed: what answers at {self.endpoint} does not answer as a container engine does ({said})"
            raise EngineFailedError(message, concerns=concerns, hint=_STRANGE_HINT) from error

    async def info(self) -> EngineInfo:
        """What the engine is and can; asked once.

        Raises:
            EngineUnavailableError: Nobody answers.
        """
        if self._info is None:
            async with self.asking("finding out what it is", seconds=self.limits.engine_probe_seconds) as docker:
                said = await docker.system.info()
                self._info = self._read_info(said, docker.api_version.removeprefix("v"), await self._controllers(docker))
        return self._info

    def url(self, path: str) -> str:
        """The address of a request that is made on `docker.session` itself, for what the client library can't stream."""
        return f"{self.docker.docker_host}/{self.docker.api_version}/{path}"

    async def ready(self) -> None:
        """Has the version of the API agreed on, which `url` needs."""
        async with self.asking("agreeing on a version"):
            pass

    async def _meet(self, docker: aiodocker.Docker) -> None:
        """Agrees on a version by a ping, which is answered at once. What Podman says of its versions, it asks the package manager first."""
        spoken, who = None, ""
        try:
            async with docker._query("_ping", versioned_api=False) as answer:
                spoken, who = answer.headers.get("Api-Version"), answer.headers.get("Server", "")
                self._libpod = answer.headers.get("Libpod-Api-Version", self._libpod)
        except DockerError as error:
            if error.status == _NO_ANSWER:
                raise
        if spoken is None:  # something stands between that passes no ping on
            told = await docker._query_json("version", versioned_api=False)
            spoken, who = told["ApiVersion"], " ".join(str(part.get("Name", "")) for part in told.get("Components") or [])
        self._is_podman = any(name in who.lower() for name in ("libpod", "podman"))
        docker.api_version = f"v{spoken}"

    async def _controllers(self, docker: aiodocker.Docker) -> frozenset[str] | None:
        """The control groups that Podman may use: what it says as an engine is what root could. None where the engine's own word holds."""
        if not self._is_podman:
            return None
        host = (await docker._query_json(f"v{self._libpod}/libpod/info", versioned_api=False))["host"]
        return frozenset(map(str, host.get("cgroupControllers") or ())) if host["security"]["rootless"] else None

    def _read_info(self, said: Mapping[str, Any], api: str, controllers: frozenset[str] | None) -> EngineInfo:
        podman = self._is_podman
        security = " ".join(str(option) for option in said.get("SecurityOptions") or [])
        machine = str(said.get("Architecture", ""))
        driver = str(said.get("Driver", ""))
        status = {str(pair[0]): str(pair[1]) for pair in said.get("DriverStatus") or [] if len(pair) == 2}
        limits = {
            name
            for name, key in (("memory", "MemoryLimit"), ("cpu", "CpuCfsQuota"), ("processes", "PidsLimit"))
            if said.get(key) or (podman and key == "CpuCfsQuota" and said.get("CPUCfsQuota"))
        }
        if controllers is not None:
            limits &= {name for name, controller in _CONTROLLERS.items() if controller in controllers}
        if driver in {"btrfs", "zfs", "windowsfilter"} or (driver.startswith("overlay") and status.get("Backing Filesystem") == "xfs"):
            limits.add("disk")
        return EngineInfo(
            kind="podman" if podman else "docker",
            version=str(said.get("ServerVersion", "")),
            api=api,
            os=str(said["OSType"]),
            architecture=_ARCHITECTURES.get(machine, machine),
            rootless="rootless" in security,
            cgroup_version=int(said.get("CgroupVersion") or 1),
            storage_driver=driver,
            cpus=int(said.get("NCPU") or 0),
            on_this_machine=self._is_here(said),
            names_its_host=None if "desktop" in str(said.get("OperatingSystem", "")).lower() else "host-gateway",
            limits=frozenset(limits),
            id=str(said.get("ID") or "engine"),
            root=str(said.get("DockerRootDir") or ""),
            desktop="Docker Desktop" in str(said.get("OperatingSystem") or ""),
        )

    def _is_here(self, said: Mapping[str, Any]) -> bool:
        same_kernel = sys.platform == "linux" and said.get("KernelVersion") == platform.release()
        return self.endpoint.socket is not None and same_kernel and said.get("Name") == socket.gethostname()

    def _broken(self, error: OSError | aiohttp.ClientError, what: str, concerns: str | None) -> AgentEnvError:
        if isinstance(error, aiohttp.ClientConnectorError | FileNotFoundError | PermissionError | ConnectionRefusedError):
            return self._unreachable(error)
        message = f"the connection to the container engine at {self.endpoint} broke while {what}: {error or type(error).__name__}"
        return TransportLostError(message, concerns=concerns, hint=_BROKEN_HINT)

    def _unreachable(self, error: OSError) -> AgentEnvError:
        cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
        where = str(self.endpoint)
        if isinstance(cause, PermissionError):
            return EngineDeniedError(
                f"the container engine at {where} does not let this user in",
                concerns=where,
                hint=DENIED_HINT,
            )
        return EngineUnavailableError(f"no container engine answers at {where} ({reason_of(cause)})", concerns=where, hint=hint_of(cause))

    def _refusal(self, error: DockerError, what: str, missing: type[AgentEnvError], concerns: str | None) -> AgentEnvError:
        message = f"{what} failed: the container engine says {' '.join(str(error.message).split())!r}"
        for pattern, kind, hint in _TEXTS:
            if pattern.search(str(error.message)):
                return kind(message, concerns=concerns, hint=hint)
        by_status: Mapping[int, type[AgentEnvError]] = {
            400: EngineRefusedError,
            401: EngineRefusedError,
            403: EngineRefusedError,
            404: missing,
            409: EngineConflictError,
        }
        return by_status.get(error.status, EngineFailedError)(message, concerns=concerns)


def open_engine(environ: Mapping[str, str] | None = None, home: Path | None = None, *, limits: Limits = DEFAULT_LIMITS) -> Engine:
    """The engine that this environment names; see `find_endpoint` for the order and the errors."""
    return Engine(find_endpoint(os.environ if environ is None else environ, home or Path.home()), limits=limits)


async def engine_problem(engine: Engine) -> str | None:
    """Why an engine can't be used, in one line, or None."""
    try:
        await engine.info()
    except (EngineUnavailableError, EngineDeniedError, DeadlineError, EngineFailedError, TransportLostError) as error:
        return str(error)
    return None

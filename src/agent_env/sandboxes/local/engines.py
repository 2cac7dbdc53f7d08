"""The container engine that this machine's sandboxes use: whether one answers, and one client for each that a record names."""

from __future__ import annotations

import asyncio
import contextlib
import errno
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from agent_env.containers.endpoint import DENIED_HINT, NO_ENGINE_HINT, EngineEndpoint, find_endpoint, hint_of, reason_of
from agent_env.defaults import Limits
from agent_env.errors import AgentEnvError, DeadlineError, EngineUnavailableError, InfrastructureError
from agent_env.waiting import deadline

if TYPE_CHECKING:
    from agent_env.containers import Engine

_PORT = 2375
_PING = b"GET /_ping HTTP/1.0\r\nHost: localhost\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Problem:
    """Why no container engine can be used, and what would mend it."""

    why: str
    hint: str = NO_ENGINE_HINT

    def __str__(self) -> str:
        return self.why


@dataclass
class Engines:
    """The engines that one provider speaks with."""

    environ: Mapping[str, str]
    limits: Limits
    _clients: dict[tuple[str, str], Engine] = field(default_factory=dict)
    _released: dict[tuple[str, str], set[str]] = field(default_factory=dict)
    told: dict[str, Mapping[str, str]] = field(default_factory=dict, repr=False)
    """What was told in confidence, by the id of a sandbox or of a container beside a machine; never written down."""
    away: InfrastructureError | None = None
    """Of an engine that is named or has a socket here, and that did not answer when it was asked last: why."""
    _answers: bool = False
    _loop: asyncio.AbstractEventLoop | None = None

    async def problem(self) -> Problem | None:
        """Why no container engine can be used here, in one line; None when one can. Loads no client: most runs need none."""
        if self._answers:
            return None
        self.away = None
        try:
            endpoint = self._endpoint()
            async with deadline(self.limits.engine_probe_seconds, "the container engine's first answer"):
                said = await _ping(endpoint)
        except DeadlineError as error:
            self.away = error
            return Problem(str(error))
        except AgentEnvError as error:
            return Problem(error.message, error.hint or NO_ENGINE_HINT)
        except PermissionError:
            return Problem(f"the container engine at {endpoint} does not let this user in", DENIED_HINT)
        except OSError as error:
            why = f"no container engine answers at {endpoint} ({reason_of(error)})"
            self.away = EngineUnavailableError(why, concerns=str(endpoint), hint=hint_of(error))
            return Problem(why, hint_of(error))
        self._answers = said
        return None if said else Problem(f"what listens at {endpoint} is no container engine")

    def client(self, record: Mapping[str, str] | None = None) -> Engine:
        """The client of a recorded engine, or of the one that the environment names.

        Raises:
            AgentEnvError: The environment names none that can be used.
        """
        from agent_env.containers import Engine

        loop = asyncio.get_running_loop()
        if loop is not self._loop:  # connections belong to the loop that made them
            self._loop, self._clients = loop, {}
        endpoint = _recorded(record) if record else self._endpoint()
        key = _key(endpoint)
        if key not in self._clients:
            self._clients[key] = Engine(endpoint, limits=self.limits)
        return self._clients[key]

    def release_later(self, engine: Engine, home: str) -> None:
        """An installation's containers went: what they shared goes with this process's clients, if nobody has come to use it by then.

        Not at once, because where one container goes another usually comes, and a network takes longer to make than to keep.
        """
        self._released.setdefault(_key(engine.endpoint), set()).add(home)

    @property
    def where(self) -> str:
        """The engine that the environment names, for messages.

        Raises:
            AgentEnvError: It names none that can be used.
        """
        return str(self._endpoint())

    async def aclose(self) -> None:
        """Lets go of every client, and of what nobody shares any more."""
        while self._clients:
            key, engine = self._clients.popitem()
            try:
                await self._release(engine, self._released.pop(key, set()))
            finally:
                await engine.aclose()

    async def _release(self, engine: Engine, homes: set[str]) -> None:
        if not homes:
            return
        from agent_env.containers import release_shared

        with contextlib.suppress(AgentEnvError):  # an engine that went meanwhile: `gc` finds what is left
            async with deadline(self.limits.cleanup_seconds, "removing the network that nobody shares any more"):
                await asyncio.gather(*(release_shared(engine, home) for home in sorted(homes)))

    def _endpoint(self) -> EngineEndpoint:
        return find_endpoint(self.environ, Path(self.environ.get("HOME") or Path.home()))


def _key(endpoint: EngineEndpoint) -> tuple[str, str]:
    return endpoint.url, str(endpoint.certificates or "")


def record_of(engine: Engine) -> Mapping[str, str]:
    """What is written down of an engine, so that its containers are found again whatever the environment says by then."""
    endpoint = engine.endpoint
    certificates = {"certificates": str(endpoint.certificates)} if endpoint.certificates is not None else {}
    return {"url": endpoint.url, "verify": "yes" if endpoint.verify else "no", **certificates}


def _recorded(record: Mapping[str, str]) -> EngineEndpoint:
    certificates = Path(record["certificates"]) if record.get("certificates") else None
    return EngineEndpoint(record["url"], "recorded", certificates, record.get("verify") != "no")


async def _ping(endpoint: EngineEndpoint) -> bool:
    if endpoint.socket is not None:
        reader, writer = await asyncio.open_unix_connection(str(endpoint.socket))
    else:
        parts = urlsplit(endpoint.url)
        secure = endpoint.tls() or (True if _speaks_tls(endpoint) else None)
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port or _PORT, ssl=secure)
    try:
        writer.write(_PING)
        await writer.drain()
        said = await reader.readline()
        if not said or b" 50" in said:  # it went while it was asked, or is being started
            raise ConnectionResetError(errno.ECONNRESET, "it broke the connection" if not said else "it is not ready")
        return b" 200 " in said
    finally:
        writer.close()


def _speaks_tls(endpoint: EngineEndpoint) -> bool:
    """Its address says that it speaks TLS."""
    return endpoint.url.startswith("https://")

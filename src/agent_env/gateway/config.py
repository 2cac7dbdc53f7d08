"""What a gateway is told at its start: one JSON document, or the reference's environment variables; secrets by environment alone."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from agent_env_sdk.wire.names import DEFAULT_ROLE, PORT
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from agent_env.errors import ConfigError
from agent_env.gateway.defaults import DEFAULT_GATEWAY_LIMITS, GatewayLimits

CONFIG_VARIABLE = "AGENTENV_GATEWAY_CONFIG"
KEY_VARIABLE = "AGENTENV_GATEWAY_KEY"
DATABASE_VARIABLE = "AGENTENV_GATEWAY_DATABASE_URL"
REFERENCE_DATABASE_VARIABLE = "SERVICE_DB_URL"
CONTROL_PORT = 18766
KEY_FILE = "control.key"
_KEY_BYTES = 32


def _http_url(value: str) -> str:
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{value!r} is not an http or https URL with a host")
    return value.rstrip("/")


def _door(value: str) -> str:
    host, _, port = value.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"{value!r} is not host:port, such as 0.0.0.0:{PORT} or [::]:{PORT}")
    return value


Url = Annotated[str, AfterValidator(_http_url)]
Door = Annotated[str, AfterValidator(_door)]


class ServerConfig(BaseModel):
    """One thing behind the gateway."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(min_length=1)
    """Its `environment_name`."""
    url: Url
    """Its address, without a path for an MCP server that is at the root of its host."""
    mcp_path: str | None = None
    """Where it speaks MCP; None takes what its card declares (path and port), and `/mcp` without a card."""
    website: bool = False
    """A website's backend: no MCP, reached under `/svc/<name>`."""
    frontend: Url | None = None
    """A website's frontend, reached under `/website/<name>`."""
    required: bool = True
    """The gateway counts as ready only with it."""

    @property
    def proxy_key(self) -> str:
        """What it is called under `/svc`."""
        return self.name if self.website else f"mcp-{self.name}"


class GatewayConfig(BaseModel):
    """All of it. Frozen; no secret is in it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(default="env", min_length=1)
    """The card's name, and that of the MCP server which agents see."""
    servers: tuple[ServerConfig, ...] = ()
    agent_doors: tuple[Door, ...] = (f"0.0.0.0:{PORT}",)
    control_doors: tuple[Door, ...] = (f"127.0.0.1:{CONTROL_PORT}",)
    mode: Literal["performance", "consistent"] = "performance"
    """`consistent` runs one tool call at a time, over all servers."""
    state_dir: str = "/var/lib/agent-env-gateway"
    """Journal and trajectory; they must outlive the process."""
    namespacing: bool = False
    """Tools that two servers call the same get the server's name before theirs; otherwise none of the clashing ones is served."""
    unauthenticated_role: str | None = None
    """The role of callers of the agent door that send no token; None lets nobody in without one."""
    hosts: tuple[str, ...] = ()
    """Further names under which callers without a token may reach it; `*` for any."""
    clock_url: str = f"http://gateway:{PORT}/clock/time"
    """Where servers can read the virtual time."""
    limits: Mapping[str, float] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _consistent(self) -> GatewayConfig:
        keys = [server.proxy_key for server in self.servers]
        twice = sorted({key for key in keys if keys.count(key) > 1})
        if twice:
            raise ValueError(f"servers: {', '.join(twice)} given twice")
        unknown = sorted(set(self.limits) - set(GatewayLimits.names()))
        if unknown:
            raise ValueError(f"limits: unknown {', '.join(unknown)}; there are {', '.join(GatewayLimits.names())}")
        if self.unauthenticated_role is not None and not self.unauthenticated_role.strip():
            raise ValueError("unauthenticated_role: empty; leave it out, or name a role such as 'default'")
        return self

    @property
    def mcp_servers(self) -> tuple[ServerConfig, ...]:
        """Those that speak MCP."""
        return tuple(server for server in self.servers if not server.website)

    @property
    def websites(self) -> tuple[ServerConfig, ...]:
        """The others."""
        return tuple(server for server in self.servers if server.website)

    def gateway_limits(self) -> GatewayLimits:
        """The limits with what the document overrides."""
        whole = {name: type(getattr(DEFAULT_GATEWAY_LIMITS, name))(value) for name, value in self.limits.items()}
        return replace(DEFAULT_GATEWAY_LIMITS, **whole)


@dataclass(frozen=True, slots=True)
class Settings:
    """The configuration together with its secrets, which no repr shows."""

    config: GatewayConfig
    limits: GatewayLimits
    key: bytes = field(repr=False)
    """What tokens and session ids are made with."""
    database_url: str | None = field(default=None, repr=False)

    @property
    def state(self) -> Path:
        """Where journal and trajectory are."""
        return Path(self.config.state_dir)


def read_config(path: str | None, environ: Mapping[str, str]) -> GatewayConfig:
    """The configuration from a file, from `AGENTENV_GATEWAY_CONFIG`, or from the reference's variables, in this order.

    Raises:
        ConfigError: It can't be read, or says something that is not known; names each place.
    """
    if path is not None:
        try:
            text, source = Path(path).read_text(), path
        except OSError as error:
            raise ConfigError(f"{path}: can't be read: {error.strerror}") from error
    elif CONFIG_VARIABLE in environ:
        text, source = environ[CONFIG_VARIABLE], CONFIG_VARIABLE
    else:
        return _validated(_from_variables(environ), "the environment")
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{source}: not JSON: {error}") from error
    return _validated(value, source)


def settings(config: GatewayConfig, environ: Mapping[str, str]) -> Settings:
    """The configuration with its secrets. A key that nobody gave is made once and kept in `state_dir`.

    Raises:
        ConfigError: `state_dir` can't be written.
    """
    state = Path(config.state_dir)
    try:
        state.mkdir(parents=True, exist_ok=True, mode=0o700)
        given = environ.get(KEY_VARIABLE)
        key = given.encode() if given else _own_key(state / KEY_FILE)
    except OSError as error:
        raise ConfigError(f"state_dir {config.state_dir}: can't be used: {error.strerror}", hint="give one that is writable") from error
    database = environ.get(DATABASE_VARIABLE) or environ.get(REFERENCE_DATABASE_VARIABLE) or None
    return Settings(config, config.gateway_limits(), key, database)


def door_address(door: str) -> tuple[str, int]:
    """Host and port of a door as it is written."""
    host, _, port = door.rpartition(":")
    return host.strip("[]"), int(port)


def _own_key(path: Path) -> bytes:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return path.read_bytes()
    with os.fdopen(descriptor, "wb") as file:
        file.write(secrets.token_hex(_KEY_BYTES).encode())
        file.flush()
        os.fsync(file.fileno())
    return path.read_bytes()


def _validated(value: Any, source: str) -> GatewayConfig:
    try:
        return GatewayConfig.model_validate(value)
    except ValidationError as error:
        places = [f"{'.'.join(map(str, each['loc'])) or 'document'}: {_said(each['type'], each['msg'])}" for each in error.errors()]
        raise ConfigError(f"{source}: {'; '.join(places)}") from error


def _said(kind: str, message: str) -> str:
    return "no such key" if kind == "extra_forbidden" else message.removeprefix("Value error, ")


def _from_variables(environ: Mapping[str, str]) -> dict[str, Any]:
    """The reference's variables; without a token no v1 client could get in, so its default role is open."""
    port = int(environ.get("MCP_PORT") or PORT)
    host = environ.get("MCP_HOST") or "0.0.0.0"
    inner = environ.get("INTERNAL_MCP_PORT") or str(PORT)
    servers = [_mcp_server(entry, inner) for entry in _entries(environ, "INTERNAL_MCP_SERVERS")]
    fronts = dict(_pair(entry, "WEBSITE_URLS") for entry in _entries(environ, "WEBSITE_URLS"))
    backs = dict(_pair(entry, "REST_PROXY_URLS") for entry in _entries(environ, "REST_PROXY_URLS"))
    known = {f"mcp-{server['name']}" for server in servers}
    servers += [
        {"name": name, "url": backs.get(name, fronts.get(name)), "website": True, "frontend": fronts.get(name)}
        for name in dict.fromkeys([*backs, *fronts])
        if name not in known
    ]
    listen = f"[{host}]" if ":" in host else host
    value: dict[str, Any] = {
        "servers": servers,
        "agent_doors": [f"{listen}:{port}"],
        "name": environ.get("MCP_SERVER_NAME") or "env",
        "mode": environ.get("GATEWAY_MODE") or "performance",
        "unauthenticated_role": DEFAULT_ROLE,
    }
    trajectory = environ.get("GATEWAY_TRAJECTORY_FILE")
    if trajectory:
        value["state_dir"] = str(Path(trajectory).parent)
    wait = environ.get("GATEWAY_INTERNAL_SERVER_TIMEOUT_S")
    if wait:
        value["limits"] = {"discovery_seconds": float(wait)}
    return value


def _entries(environ: Mapping[str, str], name: str) -> list[str]:
    text = environ.get(name, "").strip()
    entries = [entry.strip() for entry in text.split(",")] if text else []
    if "" in entries:
        raise ConfigError(f"{name}: an entry is empty", hint="write name=url, separated by single commas")
    names = [entry.partition("=")[0] for entry in entries]
    twice = sorted({each for each in names if names.count(each) > 1})
    if twice:
        raise ConfigError(f"{name}: {', '.join(twice)} given twice")
    return entries


def _pair(entry: str, variable: str) -> tuple[str, str]:
    name, equals, url = entry.partition("=")
    if not equals or not url:
        raise ConfigError(f"{variable}: {entry!r} is not name=url")
    return name.strip(), url.strip()


def _mcp_server(entry: str, port: str) -> dict[str, Any]:
    name, _, url = entry.partition("=")
    if not url:
        return {"name": name, "url": f"http://{name}:{port}"}
    parts = urlsplit(url.strip())
    return {"name": name, "url": f"{parts.scheme}://{parts.netloc}", "mcp_path": parts.path or None}

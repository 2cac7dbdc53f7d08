"""Which container engine this user's machine speaks to, found as its own tools find it. Only reads; never starts anything."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from agent_env.errors import ConfigError, EngineUnavailableError, UnsupportedError
from agent_env.places.endpoint import is_local

_UNIX = "unix://"
_TCP = ("tcp://", "http://", "https://")
_DEFAULT_CONTEXT = "default"
NO_ENGINE_HINT = "start a container engine (Docker or Podman), or name one with DOCKER_HOST"
DENIED_HINT = "add the user to the group that owns the socket (usually `docker`), or run a rootless engine"
_TLS_HINT = "DOCKER_CERT_PATH, or the context, names the folder of ca.pem, cert.pem and key.pem that belong to this engine"
_INSTALL_HINT = "install Docker or Podman and start it, or point DOCKER_HOST at one"


@dataclass(frozen=True, slots=True)
class EngineEndpoint:
    """Where an engine listens."""

    url: str
    """`unix:///path`, `tcp://host:port`, or `https://host:port`."""
    source: str = "given"
    """Why this one, for messages: a variable, a context, or the default socket."""
    certificates: Path | None = None
    """Folder with `ca.pem`, `cert.pem` and `key.pem`, for an engine behind TLS."""
    verify: bool = True
    """Whether the engine's certificate must be signed by that authority."""

    @property
    def socket(self) -> Path | None:
        """The socket of an engine that is reached by one."""
        return Path(self.url.removeprefix(_UNIX)) if self.url.startswith(_UNIX) else None

    @property
    def publishes_here(self) -> bool:
        """What it publishes on its loopback answers on ours: it is reached by a socket (Docker Desktop forwards) or on loopback itself."""
        return self.socket is not None or is_local(self.url)

    def __str__(self) -> str:
        return f"{self.url} ({self.source})"

    def tls(self) -> ssl.SSLContext | None:
        """What its connections are made with; None without TLS.

        Raises:
            ConfigError: A certificate can't be read.
        """
        if self.certificates is None:
            return None
        try:
            context = ssl.create_default_context(cafile=_existing(self.certificates / "ca.pem"))
            if not self.verify:
                context.check_hostname = False
                context.verify_mode = ssl.CERT_NONE
            certificate, key = _existing(self.certificates / "cert.pem"), _existing(self.certificates / "key.pem")
            if certificate and key:
                context.load_cert_chain(certificate, key)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(f"the certificates of the container engine {self} can't be used: {error}", hint=_TLS_HINT) from error
        return context


def find_endpoint(environ: Mapping[str, str], home: Path) -> EngineEndpoint:
    """The engine that this environment names, else the one whose socket is here.

    In this order: `DOCKER_HOST`, `DOCKER_CONTEXT`, `currentContext` of the Docker configuration, the usual sockets of Docker and Podman,
    of which one that answers goes before one that only exists.

    Args:
        environ: The variables.
        home: The user's home folder.

    Raises:
        ConfigError: A context is named that does not exist or can't be read.
        UnsupportedError: The engine is named by a kind of address that we don't speak.
        EngineUnavailableError: Nothing is named, and no socket is here.
    """
    if host := environ.get("DOCKER_HOST"):
        return _of_variable(host, environ, home)
    folder = _config_folder(environ, home)
    if name := environ.get("DOCKER_CONTEXT"):
        source = "DOCKER_CONTEXT"
    else:
        name, source = _current_context(folder), f"current context of {folder / 'config.json'}"
    if name and name != _DEFAULT_CONTEXT:
        return _of_context(folder, name, source)
    existing = [path for path in usual_sockets(environ, home) if path.is_socket()]
    answering = next((path for path in existing if _answers(path)), None)
    if answering or existing:
        return EngineEndpoint(f"{_UNIX}{answering or existing[0]}", "default socket")
    raise EngineUnavailableError("no container engine is here: none of its usual sockets exists", hint=_INSTALL_HINT)


def usual_sockets(environ: Mapping[str, str], home: Path) -> Iterator[Path]:
    """Where Docker and Podman listen unless told otherwise, most specific owner last."""
    runtime = environ.get("XDG_RUNTIME_DIR")
    yield Path("/run/docker.sock")
    yield Path("/var/run/docker.sock")
    if runtime:
        yield Path(runtime) / "docker.sock"
    yield home / ".docker/run/docker.sock"
    yield home / ".docker/desktop/docker.sock"
    yield home / ".colima/default/docker.sock"
    yield home / ".orbstack/run/docker.sock"
    yield Path("/run/podman/podman.sock")
    if runtime:
        yield Path(runtime) / "podman/podman.sock"


def _of_variable(host: str, environ: Mapping[str, str], home: Path) -> EngineEndpoint:
    host = _checked(host, "DOCKER_HOST")
    secure = bool(environ.get("DOCKER_TLS_VERIFY")) and not host.startswith(_UNIX)
    if not secure:
        return EngineEndpoint(host, "DOCKER_HOST")
    folder = Path(environ.get("DOCKER_CERT_PATH") or _config_folder(environ, home))
    if not folder.is_dir():
        message = f"there is no folder {folder} with the certificates of the container engine {host} (DOCKER_TLS_VERIFY)"
        raise ConfigError(message, hint=_TLS_HINT)
    return EngineEndpoint(host, "DOCKER_HOST", folder)


def _of_context(folder: Path, name: str, source: str) -> EngineEndpoint:
    digest = hashlib.sha256(name.encode()).hexdigest()
    meta = folder / "contexts/meta" / digest / "meta.json"
    try:
        endpoint = json.loads(meta.read_text())["Endpoints"]["docker"]
        host, unverified = str(endpoint["Host"]), bool(endpoint.get("SkipTLSVerify", False))
    except FileNotFoundError as error:
        raise ConfigError(f"the Docker context {name!r} does not exist ({source})", hint="see `docker context ls`") from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"the Docker context {name!r} can't be read from {meta}: {error}") from error
    certificates = folder / "contexts/tls" / digest / "docker"
    secure = certificates.is_dir() or host.startswith("https://")
    return EngineEndpoint(_checked(host, source), f"context {name!r}, {source}", certificates if secure else None, verify=not unverified)


def _checked(host: str, source: str) -> str:
    if host.startswith(_TCP) and "@" in host.partition("://")[2].partition("/")[0]:
        message = f"the container engine's address ({source}) has a user or a password, which engines have no use for"
        raise UnsupportedError(message, hint="write tcp://host:port; an engine knows its users by certificates (DOCKER_TLS_VERIFY)")
    if host.startswith((_UNIX, *_TCP)):
        return host
    if host.startswith("/"):
        return _UNIX + host
    raise UnsupportedError(
        f"the container engine's address {host!r} ({source}) is of a kind that we don't speak",
        hint="use unix:// or tcp://; over ssh, forward its socket: ssh -L /tmp/docker.sock:/var/run/docker.sock HOST",
    )


def _config_folder(environ: Mapping[str, str], home: Path) -> Path:
    return Path(environ.get("DOCKER_CONFIG") or home / ".docker")


def _current_context(folder: Path) -> str:
    try:
        config = json.loads((folder / "config.json").read_text())
    except FileNotFoundError:
        return ""
    except (OSError, ValueError) as error:
        raise ConfigError(f"the Docker configuration {folder / 'config.json'} can't be read: {error}") from error
    return str(config.get("currentContext") or "") if isinstance(config, dict) else ""


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
        link.setblocking(False)
        try:
            link.connect(os.fspath(path))
        except OSError:
            return False
        return True


def _existing(path: Path) -> str | None:
    return str(path) if path.exists() else None


def reason_of(error: OSError) -> str:
    """Why nobody answers, in the system's words: an event loop's own name the address once more. TLS has numbers of its own."""
    if isinstance(error, ssl.SSLError):
        return getattr(error, "verify_message", "") or (error.reason or str(error)).replace("_", " ").lower()
    return os.strerror(error.errno) if error.errno else error.strerror or str(error)


def hint_of(error: OSError) -> str:
    """What to do where nobody answers."""
    return _TLS_HINT if isinstance(error, ssl.SSLError) else NO_ENGINE_HINT

"""Who we are to a registry. Credentials travel with one call each; the user's Docker configuration is read, never written."""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from agent_env.defaults import DEFAULT_LIMITS, Limits
from agent_env.errors import ConfigError
from agent_env.images.reference import DOCKER_HUB, HUB_NAMES
from agent_env.stores.secrets import Secret
from agent_env.waiting import deadline

_HUB_KEY = "https://index.docker.io/v1/"
"""How Docker's files and headers call Docker Hub."""
_TOKEN_USER = "<token>"
"""The user name by which credential helpers say that what follows is an identity token."""
REGISTRIES_KEY = "images.registries"


@dataclass(frozen=True, slots=True)
class Credentials:
    """A user and a password, or an identity token, for one registry. Shows neither."""

    username: str = ""
    password: Secret = field(default_factory=lambda: Secret(""))
    identity_token: Secret | None = None

    def auth(self, registry: str) -> dict[str, str]:
        """As the Engine API takes it."""
        server = _HUB_KEY if registry in HUB_NAMES else registry
        if self.identity_token is not None:
            return {"identitytoken": self.identity_token.reveal(), "serveraddress": server}
        return {"username": self.username, "password": self.password.reveal(), "serveraddress": server}

    def basic(self) -> str:
        """The value of an HTTP `Authorization` header."""
        text = f"{self.username}:{self.password.reveal()}"
        return f"Basic {base64.b64encode(text.encode()).decode()}"


class Keyring(Protocol):
    """Where credentials come from."""

    async def of(self, registry: str) -> Credentials | None:
        """Those for a registry (`host[:port]`; Docker Hub is `docker.io`), or None to go without."""
        ...

    async def all(self) -> Mapping[str, Credentials]:
        """Every registry that is known here without asking anybody else."""
        ...


class KnownKeyring:
    """Credentials that were handed over.

    Args:
        known: Registry → credentials.
        others: Asked for what is not among them.
    """

    def __init__(self, known: Mapping[str, Credentials], others: Keyring | None = None) -> None:
        self._known = {_key(registry): credentials for registry, credentials in known.items()}
        self._others = others

    async def of(self, registry: str) -> Credentials | None:
        """Ours first."""
        found = self._known.get(_key(registry))
        return found if found is not None or self._others is None else await self._others.of(registry)

    async def all(self) -> Mapping[str, Credentials]:
        """Ours win."""
        return {**(await self._others.all() if self._others is not None else {}), **self._known}


class DockerKeyring:
    """What `docker login` has left: `auths`, and the credential helpers that the file names.

    Args:
        config: Docker's `config.json`.
        seen: Told every secret before it is handed out, so that it can be redacted.
    """

    def __init__(self, config: Path, *, seen: Callable[[str], object] | None = None, limits: Limits = DEFAULT_LIMITS) -> None:
        self._path = config
        self._seen = seen or (lambda _: None)
        self._limits = limits

    @classmethod
    def of_user(cls, environ: Mapping[str, str], *, seen: Callable[[str], object] | None = None) -> DockerKeyring:
        """The file that the docker client of this user reads."""
        folder = environ.get("DOCKER_CONFIG") or str(Path(environ.get("HOME") or "/").expanduser() / ".docker")
        return cls(Path(folder) / "config.json", seen=seen)

    async def of(self, registry: str) -> Credentials | None:
        """From the registry's helper, the file's own entries, or the general helper, in Docker's order."""
        config = self._read()
        helpers = config.get("credHelpers") or {}
        helper = next((helpers[name] for name in _spellings(registry) if name in helpers), None) or config.get("credsStore")
        if helper:
            found = await self._from_helper(str(helper), registry)
            if found is not None:
                return found
        return self._stored(config).get(_key(registry))

    async def all(self) -> Mapping[str, Credentials]:
        """Those that stand in the file itself."""
        return self._stored(self._read())

    def _read(self) -> dict[str, Any]:
        try:
            config = json.loads(self._path.read_bytes())
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            return {}
        except (OSError, ValueError) as error:
            raise ConfigError(f"{self._path} can't be read: {error}", hint="mend or remove it; `docker login` writes it anew") from error
        return config if isinstance(config, dict) else {}

    def _stored(self, config: Mapping[str, Any]) -> dict[str, Credentials]:
        found = {}
        for registry, entry in (config.get("auths") or {}).items():
            credentials = self._entry(entry) if isinstance(entry, dict) else None
            if credentials is not None:
                found[_key(registry)] = credentials
        return found

    def _entry(self, entry: Mapping[str, Any]) -> Credentials | None:
        username, password = str(entry.get("username") or ""), str(entry.get("password") or "")
        if entry.get("auth"):
            try:
                username, _, password = base64.b64decode(str(entry["auth"])).decode().strip("\0").partition(":")
            except (binascii.Error, UnicodeDecodeError):
                return None
        token = entry.get("identitytoken")
        if not password and not token:
            return None
        self._tell(password, str(token or ""), str(entry.get("auth") or ""))
        return Credentials(username, Secret(password), Secret(str(token)) if token else None)

    async def _from_helper(self, helper: str, registry: str) -> Credentials | None:
        """Asks `docker-credential-<helper>`; one that is missing or knows nothing is passed over, as Docker does."""
        server = _HUB_KEY if registry in HUB_NAMES else registry
        try:
            process = await asyncio.create_subprocess_exec(
                "docker-credential-" + helper.rpartition("/")[2],
                "get",
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
            )
        except OSError:
            return None
        try:
            async with deadline(self._limits.connect_seconds, f"the credential helper {helper}"):
                out, _ = await process.communicate(server.encode())
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        try:
            answer = json.loads(out) if process.returncode == 0 else {}
        except ValueError:
            return None
        secret, username = str(answer.get("Secret") or ""), str(answer.get("Username") or "")
        if not secret:
            return None
        self._tell(secret)
        return Credentials(identity_token=Secret(secret)) if username == _TOKEN_USER else Credentials(username, Secret(secret))

    def _tell(self, *secrets: str) -> None:
        for secret in filter(None, secrets):
            self._seen(secret)


def configured(table: Mapping[str, Mapping[str, str]], resolve: Callable[[str], Secret]) -> dict[str, Credentials]:
    """The credentials of the configuration's table `[images.registries]`.

    Args:
        table: Registry → `username` and `password`, or `token`; each may be a reference.
        resolve: Makes a secret of a text or reference.
    """
    return {
        registry: Credentials(
            resolve(entry["username"]).reveal() if entry.get("username") else "",
            resolve(entry["password"]) if entry.get("password") else Secret(""),
            resolve(entry["token"]) if entry.get("token") else None,
        )
        for registry, entry in table.items()
    }


def registry_auth(credentials: Credentials | None, registry: str) -> dict[str, str]:
    """The header of a pull or push; engines want one of a push even from nobody."""
    return {"X-Registry-Auth": _encoded(credentials.auth(registry) if credentials is not None else {})}


def registry_config(known: Mapping[str, Credentials]) -> dict[str, str]:
    """The header of a build, which may pull from several registries."""
    entries = {_HUB_KEY if registry in HUB_NAMES else registry: credentials.auth(registry) for registry, credentials in known.items()}
    return {"X-Registry-Config": _encoded(entries)}


def _encoded(value: Mapping[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode()


def _key(registry: str) -> str:
    name = registry.partition("://")[2] or registry
    host = name.partition("/")[0].lower()
    return DOCKER_HUB if host in HUB_NAMES else host


def _spellings(registry: str) -> tuple[str, ...]:
    return (registry, _HUB_KEY, *HUB_NAMES) if registry in HUB_NAMES else (registry,)

"""Whether a configuration that lies in a working tree may do what only its user may decide.

Whoever clones a folder has not read its configuration. Until its user trusts the folder once, that file can't send a key or a
reference anywhere, name code to import, switch isolation off, or redirect stores and state. Trust holds for the folder and the file's
content: a changed file asks again.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agent_env.errors import ConfigError, UntrustedError

TRUST_VARIABLE = "AGENT_ENV_TRUST"
"""Names trusted folders, separated as in PATH: for CI, where nobody can be asked."""

REDIRECTS = ("stores", "state", "database.url", "runner")
ENDPOINTS = (
    "conversations.default_human_a2a_url",
    "model.endpoints",
    "explorer.cors_origins",
    "explorer.allowed_hosts",
    "explorer.static_dir",
)
BUDGETS = ("model.budget", "model.judge_budget")
IMPORTS = ("impl", "impls")
ISOLATION = ("sandbox.unsafe_host",)
PROVIDERS = ("sandbox.default", "sandbox.agent_default")
OPENINGS = (("allow_private", None), ("network", "machine"))
"""Options of providers, with their value where only that one does it, that let places reach this machine's own network."""


class Trust:
    """The folders that this user trusts.

    Args:
        path: The file of the user's state that remembers them; made at the first `record`.
        environ: The process's variables.
    """

    def __init__(self, path: Path, environ: Mapping[str, str]) -> None:
        self._path = path
        named = environ.get(TRUST_VARIABLE, "").split(os.pathsep)
        self._named = frozenset(Path(folder).resolve() for folder in named if folder.startswith("/"))

    def is_trusted(self, folder: Path, digest: str) -> bool:
        """The folder is trusted with exactly this configuration."""
        folder = folder.resolve()
        return folder in self._named or self._load().get(str(folder)) == digest

    def folders(self) -> dict[str, str]:
        """Folder → digest of the configuration that was trusted."""
        return self._load()

    def record(self, folder: Path, digest: str) -> None:
        """Trusts a folder with the configuration of this digest (sha256, hexadecimal)."""
        with self._alone():
            self._save({**self._load(), str(folder.resolve()): digest})

    def forget(self, folder: Path) -> bool:
        """Trusts a folder no longer. Returns whether it was trusted."""
        with self._alone():
            known = self._load()
            was = known.pop(str(folder.resolve()), None) is not None
            if was:
                self._save(known)
        return was

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Nobody else changes the list meanwhile, also in another process."""
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = os.open(self._path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise ConfigError(f"the list of trusted folders can't be written: {error.strerror}", concerns=str(self._path)) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def _load(self) -> dict[str, str]:
        try:
            status = self._path.stat()
            if status.st_uid not in {os.getuid(), 0}:
                raise ConfigError(f"{self._path} belongs to another user", hint="remove it")
            known = json.loads(self._path.read_bytes())
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise ConfigError(f"the list of trusted folders can't be read: {error}", concerns=str(self._path), hint="remove it") from error
        folders = known.get("folders") if isinstance(known, dict) else None
        return {str(folder): str(digest) for folder, digest in folders.items()} if isinstance(folders, dict) else {}

    def _save(self, folders: Mapping[str, str]) -> None:
        aside = self._path.with_name(f"{self._path.name}.{os.getpid()}.{os.urandom(4).hex()}")
        try:
            descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                json.dump({"folders": dict(sorted(folders.items()))}, file, indent=2)
                file.flush()
                os.fsync(file.fileno())
            aside.replace(self._path)
        except OSError as error:
            raise ConfigError(f"the list of trusted folders can't be written: {error.strerror}", concerns=str(self._path)) from error
        finally:
            aside.unlink(missing_ok=True)


def gated_keys(values: Mapping[str, Any], *, foreign_key: bool) -> dict[str, str]:
    """What a file may not do without trust: dotted key → why.

    Args:
        values: The file's values by dotted key.
        foreign_key: A key or header for the model endpoint is known from elsewhere and would be sent to the file's `model.base_url`.
    """
    gates = (*_GATES, *(_WITH_A_FOREIGN_KEY if foreign_key else ()))
    reasons = ((key, next((why for gated, why in gates if gated(key, value)), None)) for key, value in values.items())
    return {key: why for key, why in reasons if why is not None}


def _imports(key: str, value: Any) -> bool:
    return key.rpartition(".")[2] in IMPORTS or any(name in IMPORTS for name, _ in _members(value))


def _unconfines(key: str, value: Any) -> bool:
    return key in ISOLATION or (key in PROVIDERS and isinstance(value, str) and "unsafe" in value)


def _opens(_key: str, value: Any) -> bool:
    return any(name == option and worth in (None, member) for name, member in _members(value) for option, worth in OPENINGS)


def _refers(_key: str, value: Any) -> bool:
    return any(text.startswith(("env:", "secret:")) for text in _texts(value))


_Gate = tuple[Callable[[str, Any], bool], str]
_GATES: tuple[_Gate, ...] = (
    (_imports, "names code to import"),
    (lambda key, _: _within(key, REDIRECTS), "redirects stores or state"),
    (lambda key, _: _within(key, ENDPOINTS), "names an endpoint"),
    (_unconfines, "switches isolation off"),
    (_opens, "opens this machine's network to sandboxes"),
    (_refers, "uses one of your variables or secrets"),
    (lambda key, value: key == "model.broker" and value is not True, "would hand your model key to agents"),
    (lambda key, _: _within(key, BUDGETS), "says how much of your models may be used up"),
)
"""Whether a key with that value needs trust, and why; the first that fits is told."""
_WITH_A_FOREIGN_KEY: tuple[_Gate, ...] = (
    (lambda key, _: key == "model.base_url", "would send your model key to an endpoint of its choice"),
)


def _within(key: str, names: tuple[str, ...]) -> bool:
    return any(key == name or key.startswith(f"{name}.") for name in names)


def _members(value: Any) -> Iterator[tuple[str, Any]]:
    """Every key and its value, however deep."""
    if isinstance(value, Mapping):
        for name, member in value.items():
            yield str(name), member
            yield from _members(member)
    elif isinstance(value, list):
        for member in value:
            yield from _members(member)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for member in value.values():
            yield from _texts(member)
    elif isinstance(value, list):
        for member in value:
            yield from _texts(member)


def refusal(file: Path, folder: Path, gated: Mapping[str, str]) -> UntrustedError:
    """The error that names the keys and says what to do."""
    listed = "; ".join(f"{key} {why}" for key, why in sorted(gated.items()))
    return UntrustedError(
        f"{file} asks for what only a trusted folder may: {listed}",
        concerns=str(file),
        hint=f"read it, then run `agent-env trust {folder}`; in CI set {TRUST_VARIABLE}={folder}",
    )

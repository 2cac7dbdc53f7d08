"""Which folders a user trusts, so that the configuration that lies there may do what only its user may decide.

Whoever clones a folder has not read its configuration. Until its user trusts the folder once, that file may say what is harmless and
nothing else (`config/untrusted.py` is the list). Trust holds for the folder and the file's content: a changed file asks again.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from agent_env.errors import ConfigError, UntrustedError

TRUST_VARIABLE = "AGENT_ENV_TRUST"
"""Names trusted folders, separated as in PATH: for CI, where nobody can be asked."""


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


def refusal(file: Path, folder: Path, gated: Mapping[str, str]) -> UntrustedError:
    """The error that names the keys and says what to do."""
    listed = "; ".join(f"{key} {why}" for key, why in sorted(gated.items()))
    return UntrustedError(
        f"{file} asks for what only a trusted folder may: {listed}",
        concerns=str(file),
        hint=f"read it, then run `agent-env trust {folder}`; in CI set {TRUST_VARIABLE}={folder}",
    )

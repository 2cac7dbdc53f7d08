"""The installation: its label, and its own key, from which credentials are derived, so that none is stored and a resume has them."""

from __future__ import annotations

import hashlib
import hmac
import os
from pathlib import Path

from agent_env.errors import StorageError
from agent_env.stores.identity import identity_of

_FILE = "installation.key"
_BYTES = 32


class InstallationKey:
    """32 random bytes in the state folder (0600), made once, whoever is first.

    Args:
        state_root: The state folder; made when absent.
    """

    def __init__(self, state_root: Path) -> None:
        self._path = state_root / _FILE
        self._key: bytes | None = None

    @property
    def is_made(self) -> bool:
        """Whether there is one already."""
        return self._key is not None or self._path.exists()

    def derive(self, run_id: str, name: str) -> str:
        """HMAC-SHA256 of run and name under the key: 64 hexadecimal digits, the same each time.

        Raises:
            StorageError: The key can't be read or made, or is damaged.
        """
        message = f"{len(run_id)}:{run_id}:{name}".encode()
        return hmac.new(self._read(), message, hashlib.sha256).hexdigest()

    def __repr__(self) -> str:
        return f"InstallationKey({str(self._path)!r})"

    def _read(self) -> bytes:
        if self._key is None:
            try:
                self._key = self._stored_or_made()
            except OSError as error:
                raise StorageError(
                    f"the installation's key {self._path} can't be read or made: {error.strerror}", concerns=str(self._path)
                ) from error
            if len(self._key) != _BYTES:
                self._key = None
                raise StorageError(
                    f"the installation's key {self._path} is damaged",
                    concerns=str(self._path),
                    hint="remove it; runs in flight then need --redeploy",
                )
        return self._key

    def _stored_or_made(self) -> bytes:
        try:
            return self._path.read_bytes()
        except FileNotFoundError:
            self._make()
            return self._path.read_bytes()

    def _make(self) -> None:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        identity_of(self._path.parent)  # first: a folder that has a key without one is from before there were identities
        aside = self._path.with_name(f".{_FILE}.{os.urandom(8).hex()}")
        with open(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as stream:
            stream.write(os.urandom(_BYTES))
            stream.flush()
            os.fsync(stream.fileno())
        try:
            os.link(aside, self._path)  # unlike a rename it never replaces the key of somebody who was quicker
        except FileExistsError:
            return
        finally:
            aside.unlink()


def home_of(state_root: Path) -> str:
    """The label of the installation with this state folder, which everything carries that it makes.

    Raises:
        StorageError: The folder's identity is damaged.
    """
    return identity_of(state_root).home

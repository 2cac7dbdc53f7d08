"""Secrets: references in documents and configuration, and the values behind them, typed so that they can't be printed.

`env:NAME` is a variable of this process, `secret:KEY` an entry of the secret stores; `?default` after either is used when there is
none. Values are kept in one private file of this installation and in whatever stores plug-ins bring.
"""

from __future__ import annotations

import fcntl
import hmac
import json
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn, Protocol, Self

from agent_env.errors import ConfigError, NotFoundError, StorageError, UsageError
from agent_env.lazy import brought, loaded
from agent_env.stores.installation import InstallationKey

ENTRY_POINTS = "agent_env.secret_stores"
"""Entry points of this group are called without arguments and return a `SecretStore`."""

_REFERENCE = re.compile(r"(?P<kind>env|secret):(?P<name>[^?]+)(?:\?(?P<default>.*))?", re.DOTALL)
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-/]{0,254}")
_HIDDEN = "***"
_KEPT = "kept"
"""First part of the keys of literals that were taken out of documents."""
_KEPT_DIGITS = 32


class SecretStore(Protocol):
    """Where secrets come from."""

    def get(self, name: str) -> str | None:
        """The value, or None when this store has none of that name."""
        ...


class Secret:
    """A value that shows itself only to whoever calls `reveal`. It can't be formatted, pickled or turned into JSON."""

    __slots__ = ("__value",)

    def __init__(self, value: str) -> None:
        self.__value = value

    def reveal(self) -> str:
        """The value itself. Call it where the value is used, and keep it nowhere."""
        return self.__value

    def __repr__(self) -> str:
        return f"Secret({_HIDDEN})"

    def __str__(self) -> str:
        return _HIDDEN

    def __format__(self, spec: str) -> str:
        return format(_HIDDEN, spec)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and hmac.compare_digest(self.__value.encode(), other.reveal().encode())

    def __hash__(self) -> int:
        return hash((Secret, self.__value))

    def __bool__(self) -> bool:
        return bool(self.__value)

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("a secret can't be pickled")


class Secrets:
    """Resolves references, and keeps the file of this installation.

    Args:
        file: Where values that the user stores are kept (JSON, 0600); made when first needed.
        environ: The variables that `env:` means.
        seen: Told every value before it is handed out, so that it can be redacted from then on.
        plugged: Further stores, asked after the file; None asks those that are installed.
    """

    def __init__(
        self,
        file: Path,
        *,
        environ: Mapping[str, str] | None = None,
        seen: Callable[[str], object] | None = None,
        plugged: Mapping[str, SecretStore] | None = None,
    ) -> None:
        self.file = file
        """Where values that the user stores are kept."""
        self._file = SecretFile(file)
        self._key = InstallationKey(file.parent)
        self._environ = os.environ if environ is None else environ
        self._seen = seen
        self._plugged = plugged

    def resolve(self, reference: str) -> Secret:
        """The value of `env:NAME[?default]` or `secret:KEY[?default]`.

        Raises:
            UsageError: The text is no reference.
            NotFoundError: There is no such value, and no default.
        """
        parts = _REFERENCE.fullmatch(reference)
        if parts is None:
            raise UsageError(
                "this is no reference to a secret", hint="write env:NAME or secret:KEY, with ?default after it if there is one"
            )
        kind, name, default = parts["kind"], parts["name"], parts["default"]
        value = self._environ.get(name) if kind == "env" else self.get(name)
        if value is None and default is not None and is_reference(default):
            return self.resolve(default)
        if value is None:
            value = default
        if value is None:
            hint = f"export {name}=…" if kind == "env" else f"agent-env secret set {name}, or write secret:{name}?default"
            raise NotFoundError(f"{kind}:{name} has no value", concerns=f"{kind}:{name}", hint=hint)
        if self._seen is not None and value:
            self._seen(value)
        return Secret(value)

    def get(self, name: str) -> str | None:
        """The stored value of a key, from the file or the first store that has it."""
        value = self._file.get(name)
        if value is not None:
            return value
        return next((found for _, store in self._stores() if (found := store.get(name)) is not None), None)

    def put(self, name: str, value: str) -> None:
        """Stores a value in the file.

        Raises:
            UsageError: The name can't be a key.
        """
        if not _NAME.fullmatch(name):
            raise UsageError(f"{name!r} can't be the name of a secret", hint="letters, digits and _ . - / are allowed")
        self._file.change(lambda values: {**values, name: value})

    def reference_to(self, value: str) -> str:
        """The reference under which `keep` keeps a literal: the same each time, and nothing can be learnt of the value from it.

        Nothing is written: before the installation has a key, nothing is kept yet, and any name will be another one.
        """
        return self._reference_to(value) if self._key.is_made else f"secret:{_KEPT}/new"

    def keep(self, value: str) -> str:
        """Stores a literal of a document, and gives the reference that the document keeps. It is redacted from now on.

        Raises:
            StorageError: It can't be stored.
        """
        if self._seen is not None:
            self._seen(value)
        reference = self._reference_to(value)
        name = reference.removeprefix("secret:")
        if self._file.get(name) != value:
            self.put(name, value)
        return reference

    def names(self) -> list[str]:
        """The keys of the file. Values are never listed."""
        return sorted(self._file.values())

    def plugged_names(self) -> list[str]:
        """The stores that plug-ins bring, in the order in which they are asked after the file."""
        return [name for name, _ in self._stores()]

    def delete(self, name: str) -> bool:
        """Removes a key from the file. Returns whether it was there."""
        there = name in self._file.values()
        if there:
            self._file.change(lambda values: {key: value for key, value in values.items() if key != name})
        return there

    def _reference_to(self, value: str) -> str:
        return f"secret:{_KEPT}/{self._key.derive('literal', value)[:_KEPT_DIGITS]}"

    def _stores(self) -> Iterator[tuple[str, SecretStore]]:
        if self._plugged is None:
            self._plugged = _installed()
        yield from self._plugged.items()


class SecretFile:
    """Keys and values as one JSON object in a private file: replaced as a whole, by one writer at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def get(self, name: str) -> str | None:
        """One value."""
        return self.values().get(name)

    def values(self) -> dict[str, str]:
        """All of them.

        Raises:
            ConfigError: Others than the user may read the file.
            StorageError: It is damaged.
        """
        with _file_errors(self._path):
            try:
                with self._path.open("rb") as stream:
                    mode = os.fstat(stream.fileno()).st_mode
                    data = stream.read()
            except FileNotFoundError:
                return {}
        if stat.S_IMODE(mode) & 0o077:
            raise ConfigError(f"others may read the secrets in {self._path}", concerns=str(self._path), hint=f"chmod 600 {self._path}")
        try:
            values = json.loads(data)
        except ValueError:
            values = None
        if not isinstance(values, dict) or not all(isinstance(value, str) for value in values.values()):
            raise StorageError(
                f"{self._path} is damaged: it is no JSON object of texts",
                concerns=str(self._path),
                hint="move it aside, and store the secrets again",
            )
        return values

    def change(self, changed: Callable[[dict[str, str]], dict[str, str]]) -> None:
        """Replaces the content by what `changed` makes of it. A kill at any moment leaves the old one or the new one."""
        folder = self._path.parent
        with _file_errors(self._path):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = os.open(self._path.with_name(self._path.name + ".lock"), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX)
                self._replace(changed(self.values()))
            finally:
                os.close(lock)

    def _replace(self, values: Mapping[str, str]) -> None:
        aside = self._path.with_name(f".{self._path.name}.{os.urandom(8).hex()}")
        try:
            with open(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w", encoding="ascii") as stream:
                json.dump(values, stream, indent=1, sort_keys=True)
                stream.flush()
                os.fsync(stream.fileno())
            aside.replace(self._path)
        finally:
            aside.unlink(missing_ok=True)


def is_reference(text: str) -> bool:
    """Whether a text refers to a secret."""
    return _REFERENCE.fullmatch(text) is not None


def split_default(reference: str) -> tuple[str, str | None]:
    """A reference without its default, and the default."""
    name, question, default = reference.partition("?")
    return name, default if question else None


def _installed() -> dict[str, SecretStore]:
    made: dict[str, SecretStore] = {}
    for point in sorted(brought(ENTRY_POINTS), key=lambda point: point.name):
        what = f"the secret store {point.name!r} ({point.value})"
        made[point.name] = loaded(loaded(point.load, what), what)
    return made


@contextmanager
def _file_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(f"{path} can't be read or written: {error.strerror}", concerns=str(path)) from error

"""What is to be carried for each place, written down in the state folder by whoever wants it. The keeper only reads it.

One file a place: how its helper is reached, until when, and its relays. Tokens are not in it: they are derived from the installation's key.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from agent_env.errors import InternalError, StorageError
from agent_env.host import boot_id, boot_seconds

MOST_TOLD = 100
"""Different refusals of one place that are told."""
MODELS = 0
"""In place of a port of this machine: the model broker, which the keeper itself serves."""
_PLACE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")


@dataclass(frozen=True, slots=True)
class Egress:
    """The way out: a proxy on a port of the place's loopback, held to an allow-list."""

    listen: int
    hosts: tuple[str, ...] = ()
    cidrs: tuple[str, ...] = ()
    allow_private: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ToHost:
    """A port of the place's loopback leads to one of this machine's loopback."""

    listen: int
    port: int
    """`MODELS` is the model broker."""


@dataclass(frozen=True, slots=True)
class FromHost:
    """A port of this machine's loopback leads to one of the place's loopback."""

    port: int
    to: int


Relay = Egress | ToHost | FromHost
_KINDS: Mapping[str, Callable[..., Relay]] = {"egress": Egress, "to_host": ToHost, "from_host": FromHost}
_NAMES = {Egress: "egress", ToHost: "to_host", FromHost: "from_host"}


@dataclass(frozen=True, slots=True)
class Carried:
    """Everything that is carried for one place."""

    place: str
    """The id of its sandbox, which its relay token is derived from."""
    reach: Mapping[str, str]
    """How its helper is reached: `{"unix": path}`, or what `places.helper` of another kind of place is told by."""
    relays: tuple[Relay, ...] = ()
    expires: float | None = None
    """When the place ends by itself, in seconds since boot (suspended time counts)."""
    boot: str = field(default_factory=boot_id)

    @property
    def over(self) -> bool:
        """It was for an earlier boot, or its time is up."""
        return self.boot != boot_id() or (self.expires is not None and boot_seconds() >= self.expires)


class Records:
    """The records of one installation.

    Args:
        state_root: The state folder.
    """

    def __init__(self, state_root: Path) -> None:
        self.folder = state_root / "keeper"
        """Private: lock, socket, log and records."""
        self._places = self.folder / "places"

    def make(self) -> None:
        """Makes the folders, closed to other users.

        Raises:
            StorageError: They can't be made.
        """
        try:
            for folder in (self.folder, self._places):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                folder.chmod(0o700)
        except OSError as error:
            raise StorageError(f"can't make {self._places}: {error.strerror}", concerns=str(self._places)) from error

    def write(self, carried: Carried) -> None:
        """Replaces a place's record, whole or not at all.

        Raises:
            StorageError: It can't be written.
        """
        self.make()
        target = self._file(carried.place)
        fresh = target.with_name(f".{secrets.token_hex(8)}")
        try:
            fresh.write_text(json.dumps(_plain(carried)))
            fresh.replace(target)
        except OSError as error:
            fresh.unlink(missing_ok=True)
            raise StorageError(f"can't write {target}: {error.strerror}", concerns=carried.place) from error

    def read(self, place: str) -> Carried | None:
        """A place's record; None when there is none, or none that can be read."""
        try:
            return _carried(json.loads(self._file(place).read_text()))
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def remove(self, place: str) -> bool:
        """Removes it. Returns whether there was one."""
        try:
            self._file(place).unlink()
        except FileNotFoundError:
            return False
        return True

    def places(self) -> Iterator[str]:
        """Every place with a record."""
        with contextlib.suppress(OSError):
            yield from sorted(entry.name for entry in os.scandir(self._places) if _PLACE.fullmatch(entry.name))

    def _file(self, place: str) -> Path:
        if not _PLACE.fullmatch(place):
            raise InternalError(f"{place!r} is no id of a place")
        return self._places / place


def _plain(carried: Carried) -> dict[str, Any]:
    relays = [{"kind": _NAMES[type(relay)], **asdict(relay)} for relay in carried.relays]
    return {"place": carried.place, "reach": dict(carried.reach), "relays": relays, "expires": carried.expires, "boot": carried.boot}


def _carried(data: dict[str, Any]) -> Carried:
    return Carried(data["place"], data["reach"], tuple(map(_relay, data["relays"])), data["expires"], data["boot"])


def _relay(data: dict[str, Any]) -> Relay:
    kind = _KINDS[data.pop("kind")]
    return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in data.items()})

"""What the store knows: which image a name stands for, when it was used, and who has it pinned. Small files, each replaced whole."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import quote, unquote

from agent_env.clock import Clock, SystemClock
from agent_env.errors import StorageError
from agent_env.images.oci.tree import remove_below


@dataclass(frozen=True, slots=True)
class Record:
    """An image in the store."""

    id: str
    location: str
    """Where it came from, as it was first asked for."""
    config: str
    """Its configuration, as it came."""
    layers: tuple[str, ...]
    digest: str | None
    bytes: int
    """Of its layers, some of which others may share."""


class Records:
    """The files.

    Args:
        root: Where they are; made when absent.
    """

    def __init__(self, root: Path, *, clock: Clock | None = None) -> None:
        self._root = root
        self._clock = clock or SystemClock()

    def image(self, id: str) -> Record | None:
        """An image by its id."""
        try:
            facts = json.loads(self._image(id).read_bytes())
            return Record(**{**facts, "layers": tuple(facts["layers"])})
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None

    def named(self, name: str, platform: str) -> Record | None:
        """The image that a name stands for on a platform."""
        try:
            id = self._name(name, platform).read_text()
        except FileNotFoundError:
            return None
        return self.image(id)

    def all(self) -> list[Record]:
        """Every image, least recently used first."""
        folder = self._root / "images"
        found = [self.image(path.name.replace("-", ":", 1)) for path in _visible(folder)]
        return sorted((record for record in found if record is not None), key=lambda record: (self.last_used(record.id), record.id))

    def keep(self, record: Record) -> None:
        """An image is here."""
        self._write(self._image(record.id), json.dumps(asdict(record)))

    def name(self, name: str, platform: str, id: str) -> None:
        """A name stands for an image."""
        self._write(self._name(name, platform), id)

    def use(self, id: str, owner: str | None) -> None:
        """An image is used now, and stays until its owner releases it."""
        if owner is not None:
            self._write(self._pins(id) / quote(owner, safe=""), "")
        moment = self._clock.now().timestamp()
        os.utime(self._image(id), (moment, moment))

    def last_used(self, id: str) -> float:
        """When, in seconds of the Unix epoch; 0 when never."""
        try:
            return self._image(id).stat().st_mtime
        except FileNotFoundError:
            return 0.0

    def release(self, owner: str) -> None:
        """An owner needs nothing any more."""
        for folder in _visible(self._root / "pins"):
            (folder / quote(owner, safe="")).unlink(missing_ok=True)

    def owners(self, id: str) -> set[str]:
        """Who has an image pinned."""
        return {unquote(path.name) for path in _visible(self._pins(id))}

    def above(self, budget: int, live: Collection[str] | None, spare: str | None = None) -> tuple[list[Record], list[Record]]:
        """Which images stay and which go so that what stays holds at most `budget` bytes; pinned ones and `spare` stay."""
        counted = None if live is None else set(live)
        kept, removed = self.all(), []
        held = sum(record.bytes for record in kept)
        for record in [*kept]:
            pins = self.owners(record.id)
            if held > budget and record.id != spare and not (pins if counted is None else pins & counted):
                kept.remove(record)
                removed.append(record)
                held -= record.bytes
        return kept, removed

    def forget(self, id: str) -> None:
        """An image is no more; names that stood for it find nothing."""
        self._image(id).unlink(missing_ok=True)
        remove_below(None, self._pins(id))
        for path in _visible(self._root / "names"):
            with contextlib.suppress(FileNotFoundError):
                if path.read_text() == id:
                    path.unlink()

    def _image(self, id: str) -> Path:
        return self._root / "images" / id.replace(":", "-", 1)

    def _pins(self, id: str) -> Path:
        return self._root / "pins" / id.replace(":", "-", 1)

    def _name(self, name: str, platform: str) -> Path:
        return self._root / "names" / hashlib.sha256(f"{name}\n{platform}".encode()).hexdigest()

    def _write(self, path: Path, text: str) -> None:
        aside = path.with_name(f".{path.name[:32]}.{os.urandom(6).hex()}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            aside.write_text(text)
            aside.replace(path)
        except OSError as error:
            raise StorageError(f"an unpacked image can't be recorded: {error.strerror}", concerns=str(path)) from error
        finally:
            aside.unlink(missing_ok=True)


def _visible(folder: Path) -> Iterator[Path]:
    with contextlib.suppress(FileNotFoundError):
        yield from (path for path in sorted(folder.iterdir()) if not path.name.startswith("."))

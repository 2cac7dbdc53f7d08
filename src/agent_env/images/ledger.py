"""What this installation built on an engine: written down before a build begins, so that a kill at any moment leaves nothing unknown."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from agent_env.clock import Clock, SystemClock
from agent_env.errors import StorageError

STATE_FOLDER = "images"
"""Below the state folder: all that this room keeps."""
_FOLDER = "builds"
_USED = "used"
_RECIPES = "recipes"


@dataclass(frozen=True, slots=True)
class Build:
    """One kind of content that was built, under whatever names."""

    sources: str
    names: tuple[str, ...] = ()
    """Every tag that we gave it."""
    ids: tuple[str, ...] = ()
    """The images that came of it."""
    made: tuple[str, ...] = ()
    """Ids of the engine's intermediate images, oldest first: the layers of a build before they have a name."""
    running: tuple[str, ...] = ()
    """Ids of the containers in which the engine runs a build's commands. It removes them itself, unless it is killed."""


class Ledger:
    """The records, one small file a content, replaced whole.

    Args:
        folder: Where they are; made when absent.
    """

    def __init__(self, folder: Path, *, clock: Clock | None = None) -> None:
        self._folder = folder
        self._clock = clock or SystemClock()

    def read(self, sources: str) -> Build:
        """What is known of a content."""
        try:
            known = json.loads((self._folder / _FOLDER / sources).read_bytes())
            names, ids, made, running = (tuple(map(str, known.get(part, ()))) for part in ("names", "ids", "made", "running"))
            return Build(sources, names, ids, made, running)
        except (FileNotFoundError, ValueError, AttributeError, TypeError):
            return Build(sources)

    def all(self) -> Iterator[Build]:
        """Every content."""
        with contextlib.suppress(FileNotFoundError):
            for path in sorted((self._folder / _FOLDER).iterdir()):
                if not path.name.startswith("."):
                    yield self.read(path.name)

    def named(self, sources: str, name: str) -> None:
        """A name is going to be given to a content."""
        known = self.read(sources)
        if name not in known.names:
            self._write(replace(known, names=(*known.names, name)))

    def built(self, sources: str, id: str) -> None:
        """A build has ended well."""
        known = self.read(sources)
        if id not in known.ids:
            self._write(replace(known, ids=(*known.ids, id)))

    def prepared(self, recipe: str, sources: str) -> None:
        """What was asked for by a recipe has become this content."""
        _put(self._folder / _RECIPES, recipe, sources)

    def sources_of(self, recipe: str) -> str | None:
        """The content that a recipe became before; None where that is not known, or nothing was built of it."""
        path = self._folder / _RECIPES / recipe
        try:
            sources = path.read_text()
        except FileNotFoundError:
            return None
        if (self._folder / _FOLDER / sources).is_file():
            return sources
        path.unlink(missing_ok=True)
        return None

    def owns(self, sources: str, id: str, names: Iterable[str]) -> bool:
        """An image that carries our label is the one that we built, and not one that somebody made from it.

        Where a build was killed at its very end, its name alone is known.
        """
        known = self.read(sources)
        return id in known.ids or (not known.ids and any(name in known.names for name in names))

    def intermediate(self, sources: str, id: str) -> None:
        """A build has made an intermediate image."""
        known = self.read(sources)
        if id not in known.made:
            self._write(replace(known, made=(*known.made, id)))

    def running(self, sources: str, id: str) -> None:
        """The engine runs a command of a build in a container."""
        known = self.read(sources)
        self._write(replace(known, running=(*known.running, id)))

    def forget(
        self,
        sources: str,
        *,
        made: tuple[str, ...] = (),
        names: tuple[str, ...] = (),
        ids: tuple[str, ...] = (),
        running: tuple[str, ...] = (),
    ) -> None:
        """Some of it is gone from the engine."""
        known = self.read(sources)
        left = Build(
            sources,
            tuple(name for name in known.names if name not in names),
            tuple(id for id in known.ids if id not in ids),
            tuple(id for id in known.made if id not in made),
            tuple(id for id in known.running if id not in running),
        )
        if left.names or left.ids or left.made or left.running:
            self._write(left)
        else:
            (self._folder / _FOLDER / sources).unlink(missing_ok=True)
            self._forget_recipes(sources)

    def use(self, image_id: str) -> None:
        """An image is used now."""
        path = self._folder / _USED / image_id.rpartition(":")[2]
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            path.touch()
            moment = self._clock.now().timestamp()
            os.utime(path, (moment, moment))
        except OSError as error:
            raise StorageError(f"the use of an image can't be noted: {error.strerror}", concerns=str(path)) from error

    def last_used(self, image_id: str) -> float:
        """When, in seconds of the Unix epoch; 0 when never."""
        try:
            return (self._folder / _USED / image_id.rpartition(":")[2]).stat().st_mtime
        except FileNotFoundError:
            return 0.0

    def gone(self, image_id: str) -> None:
        """An image is no more."""
        (self._folder / _USED / image_id.rpartition(":")[2]).unlink(missing_ok=True)

    def _forget_recipes(self, sources: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            for path in (self._folder / _RECIPES).iterdir():
                with contextlib.suppress(FileNotFoundError):  # another process looked for it
                    if path.read_text() == sources:
                        path.unlink()

    def _write(self, build: Build) -> None:
        _put(self._folder / _FOLDER, build.sources, json.dumps(asdict(build)))


def _put(folder: Path, name: str, text: str) -> None:
    aside = folder / f".{name}.{os.urandom(6).hex()}"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        aside.write_text(text)
        aside.replace(folder / name)
    except OSError as error:
        raise StorageError(f"a build can't be recorded: {error.strerror}", concerns=str(folder)) from error
    finally:
        aside.unlink(missing_ok=True)

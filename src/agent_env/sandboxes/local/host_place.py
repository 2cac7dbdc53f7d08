"""The bare host as a place: `/app`, which every machine place has, is there the sandbox's own work folder."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import TypeVar

from agent_env.places import Command, Completed, Entry, Missing, Upload
from agent_env.places.helper.place import HelperPlace
from agent_env.places.helper.process import HelperProcess

APP = PurePosixPath("/app")
_Found = TypeVar("_Found")


class AppInFolder(HelperPlace):
    """Mixed in before a place: what a step names below `/app` is meant below the work folder, in both directions.

    Only paths that are paths are meant. The text of a command is its own: it starts in the work folder, and `/app` in it is the machine's.
    """

    app: PurePosixPath
    """The work folder."""

    def _inside(self, path: PurePosixPath) -> PurePosixPath:
        return self.app / path.relative_to(APP) if path.is_relative_to(APP) else path

    def _named(self, asked: Sequence[PurePosixPath], found: Mapping[PurePosixPath, _Found]) -> dict[PurePosixPath, _Found]:
        return {path: _renamed(found[self._inside(path)], path) for path in asked}

    def _command(self, command: Command) -> Command:
        return command if command.cwd is None else replace(command, cwd=self._inside(command.cwd))

    async def run(self, command: Command) -> Completed:
        """See `Place.run`."""
        return await super().run(self._command(command))

    async def start(self, command: Command) -> HelperProcess:
        """See `Place.start`."""
        return await super().start(self._command(command))

    async def put(self, uploads: Sequence[Upload], *, owner: str | None = None) -> None:
        """See `Place.put`."""
        await super().put([self._upload(upload) for upload in uploads], owner=owner)

    def _upload(self, upload: Upload) -> Upload:
        beneath = upload.beneath
        if beneath is not None and upload.path.is_relative_to(APP):
            beneath = self._inside(beneath) if beneath.is_relative_to(APP) else self.app
        return replace(upload, path=self._inside(upload.path), beneath=beneath)

    async def get(
        self, paths: Sequence[PurePosixPath], into: Path, *, limit_bytes: int | None = None
    ) -> Mapping[PurePosixPath, Path | Missing]:
        """See `Place.get`."""
        return self._named(paths, await super().get([self._inside(path) for path in paths], into, limit_bytes=limit_bytes))

    async def read(self, path: PurePosixPath, *, limit_bytes: int | None = None) -> bytes | Missing:
        """See `Place.read`."""
        return _renamed(await super().read(self._inside(path), limit_bytes=limit_bytes), path)

    async def stat(
        self, paths: Sequence[PurePosixPath], *, follow: bool = True, digest: bool = False
    ) -> Mapping[PurePosixPath, Entry | Missing]:
        """See `Place.stat`."""
        return self._named(paths, await super().stat([self._inside(path) for path in paths], follow=follow, digest=digest))

    async def walk(
        self, root: PurePosixPath, *, digest: bool = False, unreadable: Callable[[Missing], None] | None = None
    ) -> AsyncIterator[Entry]:
        """See `Place.walk`."""
        below = self._inside(root)

        def told(missing: Missing) -> None:
            assert unreadable is not None
            unreadable(_renamed(missing, root / missing.path.relative_to(below)))

        async for entry in super().walk(below, digest=digest, unreadable=told if unreadable else None):
            yield _renamed(entry, root / entry.path.relative_to(below))

    async def remove(self, paths: Sequence[PurePosixPath]) -> None:
        """See `Place.remove`."""
        await super().remove([self._inside(path) for path in paths])


def _renamed(found: _Found, path: PurePosixPath) -> _Found:
    return replace(found, path=path) if isinstance(found, Entry | Missing) else found

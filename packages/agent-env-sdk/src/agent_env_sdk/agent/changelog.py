"""`snapshot/v1`'s changelog: what each call of a tool changed in the workspace, as an object a call, and replaying it elsewhere.

An increment is a `tar.gz`: `changes.json` (format, position, roots, what was deleted), and below `files/<number of the root>/` every file,
folder and link that is new or differs in size, time or mode. Nobody but this SDK reads it.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, Final

from pydantic import ValidationError

from agent_env_sdk.wire.agent_bodies import ChangelogApply, ChangelogEnable
from agent_env_sdk.wire.errors import AgentEnvError
from agent_env_sdk.wire.grants import WriteNamespaceGrant

from .registrations import InvalidFieldsError
from .unpacking import unpack

_FORMAT: Final = "agentenv-sdk-changes/1"
_STATE: Final = "changelog.json"
Seen = dict[str, list[int]]
"""Of a root: relative path → what tells whether it has changed."""


class Changelog:
    """Records and replays changes.

    Args:
        workspace: The root unless others are asked for, and where replayed changes of a recording's first root go.
        folder: For what outlives a restart.
        port: Where the agent is served, for objects of its own store; known once it is.
    """

    def __init__(self, workspace: Path, folder: Path, port: Callable[[], int | None]) -> None:
        self._workspace, self._folder, self._port = workspace, folder, port
        self._one_at_a_time = asyncio.Lock()
        self._grant: WriteNamespaceGrant | None = None
        self._roots: list[Path] = [workspace]
        self._position = 0
        self._seen: list[Seen] = []
        self._restored()

    async def enable(self, sent: Mapping[str, Any]) -> dict[str, Any]:
        """Records from now on; what is there already is not part of it.

        Raises:
            AgentEnvError: The fields don't fit, or a root is no absolute folder (400).
        """
        try:
            body = ChangelogEnable.model_validate(sent)
        except ValidationError as error:
            raise InvalidFieldsError(error) from None
        roots = [Path(each) for each in body.roots or ()] or [self._workspace]
        odd = [str(each) for each in roots if not each.is_absolute() or each == Path("/")]
        if odd:
            raise AgentEnvError("invalid_params", f"roots are absolute paths below /, not {', '.join(odd)}")
        async with self._one_at_a_time:
            self._grant, self._roots = body.write_namespace, roots
            self._seen = await asyncio.to_thread(lambda: [_scanned(root) for root in roots])
            await asyncio.to_thread(self._keep)
        return {"roots": [str(root) for root in roots]}

    async def calls_over(self, count: int = 1) -> None:
        """Calls of tools are over: what they changed is uploaded, under the position of the last one.

        Raises:
            AgentEnvError: It can't be uploaded; the next call's increment has it then.
        """
        if self._grant is None or count < 1:
            return
        # Imported where it is used: it brings the environment side with it, which an agent may do without.
        from agent_env_sdk.environment.transfers import NamespaceUploader, serving_on

        async with self._one_at_a_time:
            position = self._position + count - 1
            now = await asyncio.to_thread(lambda: [_scanned(root) for root in self._roots])
            if now != self._seen:
                with tempfile.TemporaryDirectory() as folder, serving_on(self._port() or 0):
                    increment = Path(folder) / "increment.tar.gz"
                    await asyncio.to_thread(self._pack, increment, now, position)
                    await NamespaceUploader(self._grant).upload(f"{position:06d}.tar.gz", increment)
            self._position, self._seen = position + 1, now
            await asyncio.to_thread(self._keep)

    async def apply(self, sent: Mapping[str, Any]) -> dict[str, Any]:
        """Replays increments in their order, into the workspace and into roots that are recorded here as well.

        Raises:
            AgentEnvError: The fields don't fit, a download failed, or an object isn't one of these (422).
        """
        from agent_env_sdk.environment.transfers import download

        try:
            body = ChangelogApply.model_validate(sent)
        except ValidationError as error:
            raise InvalidFieldsError(error) from None
        if body.resume_conversation:
            raise AgentEnvError("unsupported", "changes hold no conversation; load a snapshot for that")
        async with self._one_at_a_time:
            with tempfile.TemporaryDirectory() as folder:
                for each in body.increments:
                    file = Path(folder) / "increment.tar.gz"
                    await download(each.object, file)
                    try:
                        await asyncio.to_thread(self._unpack, file)
                    except (tarfile.TarError, EOFError, KeyError, ValueError, TypeError, OSError) as error:
                        told = f"increment {each.sequence} can't be replayed: {type(error).__name__}"
                        raise AgentEnvError("invalid_changelog", told, status=422) from error
            if self._grant is not None:  # what was replayed is none of this agent's own changes
                self._seen = await asyncio.to_thread(lambda: [_scanned(root) for root in self._roots])
        return {"count": len(body.increments)}

    def _pack(self, target: Path, now: list[Seen], position: int) -> None:
        deleted = [[number, path] for number, old in enumerate(self._seen) for path in sorted(set(old) - set(now[number]))]
        about = {"format": _FORMAT, "position": position, "roots": [str(root) for root in self._roots], "deleted": deleted}
        with tarfile.open(target, "w:gz", compresslevel=1) as archive:
            content = json.dumps(about).encode()
            entry = tarfile.TarInfo("changes.json")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
            for number, root in enumerate(self._roots):
                for path, mark in sorted(now[number].items()):
                    if self._seen[number].get(path) != mark and os.path.lexists(root / path):
                        archive.add(root / path, f"files/{number}/{path}", recursive=False)

    def _unpack(self, source: Path) -> None:
        with tarfile.open(source, "r:gz") as archive, tempfile.TemporaryDirectory() as aside:
            told = archive.extractfile("changes.json")
            about = json.loads(told.read()) if told is not None else None
            if not isinstance(about, dict) or about.get("format") != _FORMAT:
                raise ValueError("not a changelog of this format")
            roots = self._targets([str(each) for each in about["roots"]])
            for number, path in about["deleted"]:
                _delete(roots[int(number)], PurePosixPath(path))
            unpack(archive, Path(aside))
            for number, root in enumerate(roots):
                came = Path(aside) / "files" / str(number)
                if came.is_dir():
                    _lay_over(came, root)

    def _targets(self, recorded: list[str]) -> list[Path]:
        known = {str(root): root for root in (self._workspace, *self._roots)}
        targets = [known.get(each) for each in recorded]
        if targets and targets[0] is None:  # the other agent's workspace was called otherwise
            targets[0] = self._workspace
        if None in targets:
            raise ValueError("a root that this agent does not have")
        return [each for each in targets if each is not None]

    def _keep(self) -> None:
        grant = self._grant.model_dump(mode="json", exclude_none=True) if self._grant is not None else None
        state = {"grant": grant, "roots": [str(root) for root in self._roots], "position": self._position, "seen": self._seen}
        self._folder.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=self._folder, prefix=".new-")
        with os.fdopen(handle, "w") as file:
            json.dump(state, file)
        Path(name).replace(self._folder / _STATE)

    def _restored(self) -> None:
        """What an earlier process of this agent recorded up to."""
        path = self._folder / _STATE
        if path.exists():
            state = json.loads(path.read_text())
            self._grant = WriteNamespaceGrant.model_validate(state["grant"]) if state["grant"] is not None else None
            self._roots, self._position, self._seen = [Path(each) for each in state["roots"]], state["position"], state["seen"]


def _scanned(root: Path) -> Seen:
    """Everything below a root. What goes away meanwhile is not there."""
    found: Seen = {}
    for path, entry in _entries(root, ""):
        try:
            about = entry.stat(follow_symlinks=False)
        except OSError:
            continue
        # A folder's time and size change with what is in it, which is listed by itself.
        found[path] = (
            [about.st_mode] if entry.is_dir(follow_symlinks=False) else [about.st_mode, about.st_size, about.st_mtime_ns, about.st_ino]
        )
    return found


def _entries(folder: Path, below: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
    try:
        with os.scandir(folder) as listed:
            entries = list(listed)
    except OSError:
        return
    for entry in entries:
        path = f"{below}{entry.name}"
        yield path, entry
        if entry.is_dir(follow_symlinks=False):
            yield from _entries(Path(entry.path), f"{path}/")


def _delete(root: Path, path: PurePosixPath) -> None:
    target = _within(root, path)
    if target.is_dir() and not target.is_symlink():
        shutil.rmtree(target)
    else:
        target.unlink(missing_ok=True)


def _within(root: Path, path: PurePosixPath) -> Path:
    """A path below a root, also when links on the way are followed.

    Raises:
        ValueError: It leads out.
    """
    target = root / path
    if path.is_absolute() or ".." in path.parts or not target.parent.resolve().is_relative_to(root.resolve()):
        raise ValueError("a path that leads out of its root")
    return target


def _lay_over(source: Path, root: Path) -> None:
    """Puts what came over what is there; a folder joins a folder, everything else takes the place of what has its name."""
    root.mkdir(parents=True, exist_ok=True)
    for path, entry in _entries(source, ""):
        target = _within(root, PurePosixPath(path))
        if entry.is_dir(follow_symlinks=False):
            if target.is_symlink() or not target.is_dir():
                target.unlink(missing_ok=True)
                target.mkdir(parents=True)
            target.chmod(entry.stat(follow_symlinks=False).st_mode & 0o7777)
            continue
        if target.is_dir() and not target.is_symlink():
            shutil.rmtree(target)
        target.unlink(missing_ok=True)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(entry.path, target, follow_symlinks=False)

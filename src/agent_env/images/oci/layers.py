"""Layers and trees on the disk: each content unpacked once, whole or not there at all, whoever is killed when."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from agent_env.defaults import Limits
from agent_env.errors import StorageError
from agent_env.images.locks import turn, turn_if_free
from agent_env.images.oci.manifests import chain_of
from agent_env.images.oci.merge import Stacked, merge
from agent_env.images.oci.sources import Layer, Source
from agent_env.images.oci.tree import remove_below
from agent_env.images.oci.unpack import StoppedError, unpack

T = TypeVar("T")

_FILES = "files"
_FACTS = "facts.json"
Told = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class StoredLayer:
    """A layer that is unpacked."""

    diff_id: str
    folder: Path
    bytes: int
    whiteouts: tuple[str, ...] = ()
    opaque: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    owners: bool = True


class Layers:
    """The store's folders.

    Args:
        root: Where they are; made when absent, for this user alone: an image's set-uid programs must not be within others' reach.
        locks: Where lock files are.
    """

    def __init__(self, root: Path, locks: Path, limits: Limits) -> None:
        self._root = root
        self._locks = locks
        self._limits = limits

    def layer(self, diff_id: str) -> StoredLayer | None:
        """A layer, if it is there."""
        folder = self._folder("layers", diff_id)
        try:
            facts = json.loads((folder / _FACTS).read_bytes())
        except (FileNotFoundError, NotADirectoryError):
            return None
        return StoredLayer(
            diff_id,
            folder / _FILES,
            int(facts["bytes"]),
            tuple(facts["whiteouts"]),
            tuple(facts["opaque"]),
            tuple(facts["skipped"]),
            bool(facts["owners"]),
        )

    async def ensure_layer(self, source: Source, layer: Layer, told: Told) -> StoredLayer:
        """A layer, fetched and unpacked unless it is there. Two processes do it once.

        Raises:
            AgentEnvError: As the source, and as `unpack`.
            DeadlineError: Another process took too long over it.
        """
        found = self.layer(layer.diff_id)
        if found is not None:
            return found
        what = f"another process's work on the layer {layer.diff_id}"
        async with turn(self._locks, [f"layer:{layer.diff_id}"], what, limits=self._limits):
            found = self.layer(layer.diff_id)
            if found is not None:
                return found
            async with source.blob(layer, self._private("blobs") / _file(layer.diff_id), told) as piece:
                made = self._fresh("layers", layer.diff_id)

                def work(stop: threading.Event) -> None:
                    done = unpack(piece, made / _FILES, layer.diff_id, limits=self._limits, stop=stop)
                    facts = {"bytes": done.bytes, "whiteouts": done.whiteouts, "opaque": done.opaque}
                    (made / _FACTS).write_text(json.dumps({**facts, "skipped": done.skipped, "owners": done.owners}))

                await self._finished(made, "layers", layer.diff_id, work)
        stored = self.layer(layer.diff_id)
        if stored is None:
            raise StorageError(f"the layer {layer.diff_id} is gone as soon as it was unpacked", concerns=str(self._root))
        return stored

    async def ensure_tree(self, layers: Sequence[StoredLayer]) -> Path:
        """The one tree of a stack of layers.

        Raises:
            StorageError: It can't be written.
            DeadlineError: Another process took too long over it.
        """
        if len(layers) == 1 and not layers[0].whiteouts:
            return layers[0].folder
        chain = chain_of([layer.diff_id for layer in layers])
        ready = self._folder("trees", chain) / _FILES
        if ready.is_dir():
            return ready
        async with turn(self._locks, [f"tree:{chain}"], "another process's work on the same image", limits=self._limits):
            if not ready.is_dir():
                made = self._fresh("trees", chain)
                stack = [Stacked(layer.folder, layer.whiteouts, layer.opaque) for layer in layers]

                def work(stop: threading.Event) -> None:
                    merge(stack, made / _FILES, lambda: _check(stop))

                await self._finished(made, "trees", chain, work)
        return ready

    def stored(self, kind: str) -> Iterator[str]:
        """The digests of the `layers` or `trees` that are there."""
        folder = self._root / kind
        if folder.is_dir():
            yield from (path.name.replace("-", ":", 1) for path in sorted(folder.iterdir()) if not path.name.startswith("."))

    def remove(self, kind: str, digest: str) -> None:
        """Removes one: first its name, so that nobody finds half of it.

        Raises:
            StorageError: It can't be removed.
        """
        folder, gone = self._folder(kind, digest), self._root / kind / f".gone-{os.urandom(6).hex()}"
        try:
            folder.rename(gone)
            remove_below(None, gone)
        except FileNotFoundError:
            return
        except OSError as error:
            raise StorageError(f"an unpacked image can't be removed: {error.strerror}", concerns=str(folder)) from error

    def keep_trees(self, stacks: Sequence[Sequence[str]]) -> None:
        """Removes every tree but those of some stacks of layers.

        Raises:
            StorageError: One can't be removed.
        """
        kept = {chain_of(stack) for stack in stacks}
        for digest in [*self.stored("trees")]:
            if digest not in kept:
                self.remove("trees", digest)

    def scratch(self) -> Path:
        """A new folder for passing files; its maker removes it, and `remove_leavings` when the maker was killed.

        Raises:
            StorageError: It can't be made.
        """
        folder = self._private("scratch") / f"{os.getpid()}-{os.urandom(6).hex()}"
        folder.mkdir(mode=0o700)
        return folder

    def remove_leavings(self) -> int:
        """Removes what killed processes left half-done; returns how many. The caller holds the store's lock, so nobody is at work."""
        count = 0
        for kind, lock in (("layers", "layer"), ("trees", "tree"), ("blobs", "layer"), ("scratch", "scratch")):
            folder = self._root / kind
            for path in sorted(folder.iterdir()) if folder.is_dir() else ():
                if kind in {"layers", "trees"} and not path.name.startswith("."):
                    continue
                digest = path.name.removeprefix(".half-").replace("-", ":", 1)
                with turn_if_free(self._locks, f"{lock}:{digest}") as ours:
                    if ours:
                        remove_below(None, path)
                        count += 1
        return count

    async def _finished(self, made: Path, kind: str, digest: str, work: Callable[[threading.Event], None]) -> None:
        try:
            await in_thread(work)
            await asyncio.to_thread(made.rename, self._folder(kind, digest))
        except OSError as error:
            raise StorageError(f"an image can't be unpacked: {error.strerror}", concerns=str(made)) from error
        finally:
            await asyncio.to_thread(remove_below, None, made)

    def _fresh(self, kind: str, digest: str) -> Path:
        """An empty folder beside its place; what a killed process left there goes. The caller holds the lock."""
        made = self._private(kind) / f".half-{_file(digest)}"
        try:
            remove_below(None, made)
            (made / _FILES).mkdir(parents=True)
        except OSError as error:
            raise StorageError(f"an image can't be unpacked: {error.strerror}", concerns=str(made)) from error
        (made / _FILES).chmod(0o755)
        return made

    def _private(self, kind: str) -> Path:
        folder = self._root / kind
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._root.chmod(0o700)
        except OSError as error:
            raise StorageError(f"there is no place for unpacked images: {error.strerror}", concerns=str(folder)) from error
        return folder

    def _folder(self, kind: str, digest: str) -> Path:
        return self._root / kind / _file(digest)


async def in_thread(work: Callable[[threading.Event], T]) -> T:
    """Runs blocking work in a thread. A cancellation tells it to stop, and is passed on once it has."""
    stop = threading.Event()
    task = asyncio.ensure_future(asyncio.to_thread(work, stop))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        stop.set()
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # marks it as seen: the cancellation is what the caller must hear
        raise


def _check(stop: threading.Event) -> None:
    if stop.is_set():
        raise StoppedError


def _file(digest: str) -> str:
    return digest.replace(":", "-", 1)

"""Room for images: what this installation built is listed, bounded by bytes, and removed again. What others own is never touched.

Ours is what carries our home's label and is in our ledger, and the intermediate images that the ledger names.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent_env.clock import Clock
from agent_env.defaults import Limits
from agent_env.errors import StorageError
from agent_env.images.engine_api import EngineAnswerError, EngineApi, rows
from agent_env.images.held import EngineHost, HeldImage, inspect, labelled
from agent_env.images.ledger import Build, Ledger
from agent_env.images.locks import turn_if_free
from agent_env.waiting import poll
from agent_env.wording import counted

_KEEP_PARENTS = {"noprune": "1"}
"""The engine would also remove untagged parents, which may be somebody else's build cache."""
_COUNTING = "already running"
"""Docker 20 counts for one caller at a time, and refuses the next one. Whole sizes, with what is shared, would have too much removed."""
_REFUSED = frozenset({404, 409})
_BEING_BUILT = "it is being built"


def build_lock(sources: str) -> str:
    """The lock of one content's build; who holds it may name and remove its images."""
    return f"build:{sources}"


@dataclass(frozen=True, slots=True)
class OwnImage:
    """An image that this installation built."""

    image: HeldImage
    unique_bytes: int
    """What removing it would free, as far as the engine tells."""
    last_used: float
    """Seconds of the Unix epoch; 0 when never."""
    containers: int
    """Containers made from it, running or not."""
    children: int = 0
    """Images made from it."""
    foreign_names: tuple[str, ...] = ()
    """Names that somebody else gave it."""

    @property
    def idle(self) -> bool:
        """Nothing and nobody else needs it."""
        return not self.containers and not self.children and not self.foreign_names


@dataclass(frozen=True, slots=True)
class Removal:
    """What `gc` did, or would do."""

    removed: tuple[OwnImage, ...] = ()
    intermediate: tuple[str, ...] = ()
    """Ids of layers of failed or removed builds."""
    kept: Mapping[str, str] = field(default_factory=dict)
    """Id → why it is still there."""


@dataclass(frozen=True, slots=True)
class _Layer:
    """An intermediate image."""

    id: str
    known: str
    """As the ledger has it, which may be shorter."""
    sources: str
    """The build that made it."""


@dataclass(frozen=True, slots=True)
class _Plan:
    """What a collection will do."""

    images: tuple[OwnImage, ...]
    layers: tuple[_Layer, ...]
    kept: Mapping[str, str]


class Space:
    """The images of one installation on one engine."""

    def __init__(self, api: EngineApi, host: EngineHost, *, home: str, ledger: Ledger, locks: Path, limits: Limits, clock: Clock) -> None:
        self._api = api
        self._host = host
        self._home = home
        self._ledger = ledger
        self._locks = locks
        self._limits = limits
        self._clock = clock

    async def own(self) -> list[OwnImage]:
        """What this installation built, least recently used first.

        Raises:
            InfrastructureError: The engine can't be reached, or refused.
        """
        images = await self._ours()
        if not images:
            return []
        used, every = await self._used()
        parents = [str(row.get("ParentId")) for row in every]
        unique = await self._unique_bytes()
        own = [
            OwnImage(
                image,
                unique.get(image.id, image.size_bytes),
                self._ledger.last_used(image.id),
                used.count(image.id),
                parents.count(image.id),
                tuple(name for name in image.names if name not in self._ledger.read(image.sources or "").names),
            )
            for image in images
        ]
        return sorted(own, key=lambda row: (row.last_used, row.image.id))

    async def _used(self) -> tuple[list[str], list[dict[str, Any]]]:
        """The image of each container, and every image with what it was made from."""
        containers, every = await asyncio.gather(
            self._api.ask("GET", "containers/json", params={"all": "1"}, read=rows),
            self._api.ask("GET", "images/json", params={"all": "1"}, read=rows),
        )
        return [str(row.get("ImageID")) for row in containers], every

    async def _ours(self) -> list[HeldImage]:
        found = await labelled(self._api, self._home)
        return [image for image in found if self._ledger.owns(image.sources or "", image.id, image.names)]

    def free_bytes(self) -> int | None:
        """Free bytes where the engine keeps its data; None when that is not on this machine."""
        try:
            return shutil.disk_usage(self._host.root).free if self._host.root else None
        except OSError:
            return None

    async def make_room(self, needed_bytes: int, what: str) -> None:
        """Makes sure that something fits, removing our own least recently used images where it does not.

        Raises:
            StorageError: It does not fit; nothing of others is removed for it.
        """
        needed = needed_bytes + self._limits.image_free_bytes
        free = self.free_bytes()
        if free is None or free >= needed:
            return
        for row in await self.own():
            await self._remove(row, grace=True)
            free = self.free_bytes() or 0
            if free >= needed:
                return
        raise StorageError(
            f"{what} needs {needed_bytes} bytes, and {self._limits.image_free_bytes} must stay free: {self._host.root} has {free}",
            concerns=self._host.root,
            hint="free some, or lower the limit image_free_bytes; `agent-env image gc --all` removes what agent-env built",
        )

    async def keep_budget(self, spare: str) -> None:
        """Removes our least recently used images above `image_budget_bytes`.

        Args:
            spare: The id of an image that stays.
        """
        # The sum of sizes counts shared layers more than once: only when it is too much are the exact ones worth asking for.
        if sum(image.size_bytes for image in await self._ours()) > self._limits.image_budget_bytes:
            for row in _above(await self.own(), self._limits.image_budget_bytes):
                if row.image.id != spare:
                    await self._remove(row, grace=True)

    async def gc(self, *, everything: bool = False, dry_run: bool = False, budget_bytes: int | None = None) -> Removal:
        """Removes what failed builds left, and our least recently used images above the budget.

        Args:
            everything: Every image that we built and nothing uses, whenever it was used.
            dry_run: Only says what would go.
            budget_bytes: None takes `image_budget_bytes`.

        Raises:
            InfrastructureError: The engine can't be reached, or refused.
        """
        if not dry_run:
            await self._remove_containers()
        plan = await self._plan(everything, budget_bytes)
        if dry_run:
            return Removal(plan.images, tuple(layer.id for layer in plan.layers), plan.kept)
        removed, kept = [], dict(plan.kept)
        for row in plan.images:
            why = await self._remove(row, grace=False)
            if why is None:
                removed.append(row)
            else:  # since it was planned
                kept[row.image.id] = why
        made = await self._remove_layers(plan.layers)
        await self._forget_lost()
        return Removal(tuple(removed), tuple(made), kept)

    async def _plan(self, everything: bool, budget_bytes: int | None) -> _Plan:
        """What goes, and why the rest stays: what a dry run says, and what a collection does."""
        own = await self.own()
        budget = self._limits.image_budget_bytes if budget_bytes is None else budget_bytes
        images, kept = [], {}
        for row in own if everything else _above(own, budget):
            why = self._why_not(row, grace=not everything and budget_bytes is None)
            if why is None and not self._is_free(row.image.sources or ""):
                why = _BEING_BUILT
            if why is None:
                images.append(row)
            else:
                kept[row.image.id] = why
        return _Plan(tuple(images), tuple(await self._idle_layers({row.image.id for row in images})), kept)

    def _is_free(self, sources: str) -> bool:
        with turn_if_free(self._locks, build_lock(sources)) as ours:
            return ours

    def _why_not(self, row: OwnImage, *, grace: bool) -> str | None:
        if row.containers:
            return f"{counted(row.containers, 'container')} made from it exist"
        if row.children:
            return f"{counted(row.children, 'image')} made from it exist"
        if row.foreign_names:
            return f"somebody else named it {row.foreign_names[0]}"
        if grace and self._clock.now().timestamp() - row.last_used < self._limits.gc_grace_seconds:
            return "it was used just now"
        return None

    async def _remove(self, row: OwnImage, *, grace: bool) -> str | None:
        """Removes one image; says why it is still there otherwise."""
        why = self._why_not(row, grace=grace)
        if why is not None:
            return why
        sources = row.image.sources or ""
        with turn_if_free(self._locks, build_lock(sources)) as ours:
            if not ours:
                return _BEING_BUILT
            for name in row.image.names or (row.image.id,):
                if not await self._delete(f"images/{name}", _KEEP_PARENTS):
                    return "the engine says that it is in use"
            self._ledger.forget(sources, names=row.image.names, ids=(row.image.id,))
            self._ledger.gone(row.image.id)
        return None

    async def _idle_layers(self, gone: Collection[str]) -> list[_Layer]:
        """Intermediate images of ours that nothing needs once `gone` are removed, those that are made from others first."""
        found: dict[str, _Layer] = {}
        for build in self._ledger.all():
            if build.made and self._is_free(build.sources):
                for known in reversed(build.made):
                    image = await inspect(self._api, known)
                    if image is not None and not (image.names or image.digests or image.id in build.ids or image.id in gone):
                        found.setdefault(image.id, _Layer(image.id, known, build.sources))
        if not found:
            return []
        containers, every = await self._used()
        children = {id: {str(row.get("Id")) for row in every if row.get("ParentId") == id} for id in found}
        going, order = {*gone}, list[_Layer]()
        while free := [id for id in found if id not in going and id not in containers and children[id] <= going]:
            going.update(free)
            order += [found[id] for id in free]
        return order

    async def _remove_containers(self) -> None:
        """Those in which builds ran a command when their engine was killed. They hold the layers that they were made of."""
        for build in [*self._ledger.all()]:
            if build.running:
                with turn_if_free(self._locks, build_lock(build.sources)) as ours:
                    if ours:
                        gone = [id for id in build.running if await self._delete(f"containers/{id}", {"force": "1", "v": "1"})]
                        self._ledger.forget(build.sources, running=tuple(gone))

    async def _remove_layers(self, layers: Iterable[_Layer]) -> list[str]:
        removed = []
        for layer in layers:
            with turn_if_free(self._locks, build_lock(layer.sources)) as ours:
                if ours and await self._delete(f"images/{layer.id}", _KEEP_PARENTS):
                    self._ledger.forget(layer.sources, made=(layer.known,))
                    removed.append(layer.id)
        return removed

    async def _forget_lost(self) -> None:
        """What the ledger knows and the engine has no more, whoever removed it."""
        for build in [*self._ledger.all()]:
            with turn_if_free(self._locks, build_lock(build.sources)) as ours:
                if ours:
                    made = [id for id in build.made if await inspect(self._api, id) is None]
                    ids = [id for id in build.ids if await inspect(self._api, id) is None]
                    self._ledger.forget(build.sources, made=tuple(made), names=await self._lost_names(build), ids=tuple(ids))

    async def _lost_names(self, build: Build) -> tuple[str, ...]:
        """Names that no image of ours has any more: someone removed it, or its build never ended."""
        found = {name: await inspect(self._api, name) for name in build.names}
        return tuple(name for name, image in found.items() if image is None or image.sources != build.sources)

    async def _delete(self, path: str, params: Mapping[str, str]) -> bool:
        try:
            await self._api.ask("DELETE", path, params=params)
        except EngineAnswerError as error:
            if error.status not in _REFUSED:
                raise
            return error.status == 404
        return True

    async def _unique_bytes(self) -> dict[str, int]:
        """What each image holds alone; nothing from an engine that does not tell."""

        async def counted_alone() -> dict[str, int] | None:
            try:
                alone: dict[str, int] = await self._api.ask("GET", "system/df", params={"type": "image"}, read=_alone)
            except EngineAnswerError as error:
                return None if _COUNTING in error.said else {}
            return alone

        within, what = self._limits.engine_seconds, "what each image holds alone"
        return await poll(counted_alone, within_seconds=within, what=what, limits=self._limits)


def _alone(usage: Mapping[str, Any] | None) -> dict[str, int]:
    images = rows((usage or {}).get("Images"))
    return {str(row["Id"]): int(row["Size"]) - max(int(row.get("SharedSize") or 0), 0) for row in images}


def _above(own: Sequence[OwnImage], budget_bytes: int) -> Iterator[OwnImage]:
    """The least recently used ones whose absence brings the rest below a budget."""
    held = sum(row.unique_bytes for row in own)
    for row in own:
        if held <= budget_bytes:
            return
        held -= row.unique_bytes
        yield row

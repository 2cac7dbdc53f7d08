"""Images unpacked for whoever runs them without an engine: found by name, kept by content, removed by age."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from agent_env.defaults import DEFAULT_LIMITS, Limits
from agent_env.errors import (
    EngineDeniedError,
    ImageNotFoundError,
    ImagePlatformError,
    ImageUnavailableError,
    InfrastructureError,
    StorageError,
)
from agent_env.images.credentials import Keyring
from agent_env.images.ledger import STATE_FOLDER
from agent_env.images.locks import Hold, turn, turn_if_free
from agent_env.images.oci.layers import Layers
from agent_env.images.oci.location import Location, Transport
from agent_env.images.oci.manifests import ImageConfig
from agent_env.images.oci.records import Record, Records
from agent_env.images.oci.registry import Registry
from agent_env.images.oci.sources import GROWTH, ArchiveSource, Found, LayoutSource, RegistrySource, Source
from agent_env.images.oci.tree import remove_below
from agent_env.images.platforms import EMULATED, Platform, emulated_architectures
from agent_env.images.progress import Bytes, OnProgress, Progress, Stage, nobody

if TYPE_CHECKING:
    from agent_env.images.images import Images

UNPACKED = "unpacked"
_STORE_LOCK = "store"
_NOTHING = -1
"""The budget of which nothing is left, not even an image without any bytes."""


@dataclass(frozen=True, slots=True)
class UnpackedImage:
    """An image that lies ready on this machine's disk."""

    id: str
    """The digest of its configuration: one content, wherever it came from."""
    location: str
    """As it was asked for."""
    root: Path
    """Its whole tree, to be used read-only: bound, or as the lower layer of an overlay. Files are shared with other images."""
    layers: tuple[Path, ...]
    """The unpacked layers that the tree is made of, lowest first. They hold no marks for what they remove; use `root`."""
    config: ImageConfig
    digest: str | None
    """What its registry calls it; None when it came from elsewhere."""
    owners: bool
    """Owners of files are as the image says; else all belong to this user, whom a user namespace shows as root."""
    skipped: tuple[str, ...]
    """Devices and such that could not be made."""


@dataclass(frozen=True, slots=True)
class Freed:
    """What `gc` did, or would do."""

    removed: tuple[Record, ...] = ()
    bytes: int = 0
    """Of the layers that no image needs any more."""
    leavings: int = 0
    """Half-done work of killed processes."""
    kept: int = 0
    """Images that are still there."""
    busy: bool = False
    """Nothing was done, because images are being unpacked now."""


class _NoRoomError(StorageError):
    """It does not fit before something goes."""


class ImageStore:
    """Unpacked images of one installation.

    Args:
        state_root: The installation's state folder.
        keyring: Credentials for registries.
        images: An engine's images, asked first for a plain name; None where there is no engine.
    """

    def __init__(
        self, state_root: Path, *, keyring: Keyring | None = None, images: Images | None = None, limits: Limits = DEFAULT_LIMITS
    ) -> None:
        self._root = state_root / STATE_FOLDER / UNPACKED
        self._locks = state_root / "locks"
        self._layers = Layers(self._root, self._locks, limits)
        self._records = Records(self._root)
        self._keyring = keyring
        self._images = images
        self._limits = limits

    async def unpacked(
        self,
        location: str,
        *,
        platform: str | None = None,
        newest: bool = False,
        pinned_by: str | None = None,
        tell: OnProgress = nobody,
    ) -> UnpackedImage:
        """An image, fetched and unpacked unless it is here. Two processes that want the same do it once; a kill leaves nothing half-done.

        Args:
            location: A name of an image, or `docker://NAME`, `docker-daemon:NAME`, `oci:FOLDER[:NAME]`, `docker-archive:FILE[:NAME]`.
            platform: Such as `linux/amd64`; None is this machine's.
            newest: Asks the registry also when the image is here; when it can't be reached, the one that is here is used.
            pinned_by: Whose it is until `release`, such as a sandbox's id: what is pinned is not removed. Write it down first.

        Raises:
            UserError: It is no image name.
            ImageNotFoundError: There is none.
            ImageUnavailableError: The registry can't be reached, or refuses.
            ImagePlatformError: It is made for another machine.
            UnsupportedError: It can't be unpacked: unknown compression, names that lead outside, more than the limits allow.
            TransferError: What came is not what its digest says.
            StorageError: There is no room for it, or it can't be written.
            DeadlineError: It took too long, or another process did.
        """
        place = Location.parse(location)
        wanted = Platform.parse(platform) if platform is not None else None
        try:
            image = await self._unpacked(place, wanted, newest, pinned_by, tell)
        except _NoRoomError as error:
            if not (await self.gc(everything=True)).removed:
                raise StorageError(error.message, concerns=error.concerns, hint=error.hint) from error
            image = await self._unpacked(place, wanted, newest, pinned_by, tell)
        if sum(record.bytes for record in self._records.all()) > self._limits.image_layers_bytes:
            await self._collected(self._limits.image_layers_bytes, spare=image.id)
        return image

    def release(self, owner: str) -> None:
        """Takes back every pin of an owner. Idempotent."""
        self._records.release(owner)

    def held(self) -> list[Record]:
        """What is here, least recently used first."""
        return self._records.all()

    def use_of(self, id: str) -> tuple[float, list[str]]:
        """When an image was used last (seconds of the Unix epoch), and who has it pinned."""
        return self._records.last_used(id), sorted(self._records.owners(id))

    async def gc(
        self,
        *,
        everything: bool = False,
        dry_run: bool = False,
        budget_bytes: int | None = None,
        live: Collection[str] | None = None,
    ) -> Freed:
        """Removes the least recently used images above `image_layers_bytes`, layers that none needs, and what killed processes left.

        Args:
            everything: Every image that nobody has pinned.
            dry_run: Only says what would go.
            budget_bytes: None takes `image_layers_bytes`.
            live: The owners whose pins count; None means all.

        Raises:
            StorageError: Something can't be removed.
        """
        budget = _NOTHING if everything else self._limits.image_layers_bytes if budget_bytes is None else budget_bytes
        return await self._collected(budget, dry_run=dry_run, live=live)

    async def _unpacked(
        self, place: Location, platform: Platform | None, newest: bool, owner: str | None, tell: OnProgress
    ) -> UnpackedImage:
        what = "the removal of unpacked images"
        async with turn(self._locks, [_STORE_LOCK], what, hold=Hold.SHARED, limits=self._limits):
            record = await self._record(place, platform, newest, tell)
            image = await self._ready(record, str(place))
            self._records.use(record.id, owner)
            return image

    async def _record(self, place: Location, platform: Platform | None, newest: bool, tell: OnProgress) -> Record:
        """Where the image is, by its kind of place; it is fetched when it is not here."""
        match place.transport:
            case Transport.LAYOUT | Transport.ARCHIVE:
                return await self._from_file(place, platform, tell)
            case Transport.ENGINE:
                record = await self._from_engine(place, platform, tell)
                if record is None:
                    raise ImageNotFoundError(f"the container engine holds no image {place.reference}", concerns=str(place))
                return record
            case Transport.ANYWHERE if self._images is not None:
                record = await self._from_engine(place, platform, tell)
                return record if record is not None else await self._from_registry(place, platform, newest, tell)
            case _:
                return await self._from_registry(place, platform, newest, tell)

    async def _from_file(self, place: Location, platform: Platform | None, tell: OnProgress) -> Record:
        assert place.path is not None
        if place.transport is Transport.LAYOUT:
            return await self._fetched(LayoutSource(place.path, place.name, limits=self._limits), place, platform, tell)
        with self._scratch() as scratch:
            source = ArchiveSource(place.path, place.name, scratch=scratch, limits=self._limits)
            return await self._fetched(source, place, platform, tell)

    async def _from_engine(self, place: Location, platform: Platform | None, tell: OnProgress) -> Record | None:
        if self._images is None:
            raise ImageUnavailableError(f"there is no container engine to take {place.reference} from", concerns=str(place))
        assert place.reference is not None
        try:
            held = await self._images.held(str(place.reference.untagged()))
        except (InfrastructureError, EngineDeniedError):
            if place.transport is Transport.ENGINE:
                raise
            return None
        if held is None or (platform is not None and held.platform != platform):
            return None
        known = self._known(f"{Transport.ENGINE}{held.id}", str(held.platform))
        if known is not None:
            return known
        with self._scratch() as scratch:
            archive = scratch / "image.tar"
            self._check_room(held.size_bytes * 2, str(place))
            await self._export(held.id, archive, str(place), tell)
            source = ArchiveSource(archive, scratch=scratch, limits=self._limits)
            return await self._fetched(source, place, platform, tell, name=f"{Transport.ENGINE}{held.id}")

    def _known(self, name: str, platform: str) -> Record | None:
        """What a name stands for, if all of it is still here."""
        record = self._records.named(name, platform)
        return record if record is not None and all(map(self._layers.layer, record.layers)) else None

    async def _export(self, image_id: str, archive: Path, place: str, tell: OnProgress) -> None:
        assert self._images is not None
        moved, done = Bytes(place, tell), 0
        with _written(archive) as file:
            async with self._images.exported(image_id) as chunks:
                async for chunk in chunks:
                    file.write(chunk)
                    done += len(chunk)
                    moved.update("archive", done, None)

    async def _from_registry(self, place: Location, platform: Platform | None, newest: bool, tell: OnProgress) -> Record:
        assert place.reference is not None
        reference = place.reference
        name = f"{Transport.REGISTRY}{reference.normalised()}"
        known = self._known(name, str(platform or Platform.here()))
        if known is not None and (not newest or reference.pinned):
            return known
        if reference.context_only:
            raise ImageNotFoundError(f"{reference} is in no registry: it is built from its context", concerns=str(place), hint="build it")
        async with Registry(reference.normalised().host, keyring=self._keyring, limits=self._limits) as registry:
            try:
                return await self._fetched(RegistrySource(registry, reference), place, platform, tell, name=name)
            except ImageUnavailableError as error:
                if known is None:
                    raise
                tell(Progress(Stage.LOG, str(place), f"the one that is here is used: {error.message}"))
                return known

    async def _fetched(
        self, source: Source, place: Location, platform: Platform | None, tell: OnProgress, *, name: str | None = None
    ) -> Record:
        found = await self._find(source, platform)
        self._check_platform(found.config.platform, platform, str(place))
        each = {layer.diff_id: layer for layer in found.layers}
        missing = [layer for layer in each.values() if self._layers.layer(layer.diff_id) is None]
        self._check_room(sum(layer.blob.size for layer in missing if layer.blob is not None) * GROWTH, str(place))
        moved = Bytes(str(place), tell)
        for layer in missing:
            moved.update(layer.diff_id, 0, layer.blob.size if layer.blob is not None else None)
        turns = asyncio.Semaphore(max(self._limits.image_layer_streams, 1))

        async def one(index: int) -> None:
            layer = missing[index]
            async with turns:
                size = layer.blob.size if layer.blob is not None else None
                await self._layers.ensure_layer(source, layer, lambda done: moved.update(layer.diff_id, done, size))

        try:
            async with asyncio.TaskGroup() as group:
                for index in range(len(missing)):
                    group.create_task(one(index))
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from errors
        return self._remember(found, place, name, platform)

    async def _find(self, source: Source, platform: Platform | None) -> Found:
        try:
            return await source.find(platform or Platform.here())
        except ImagePlatformError:
            if platform is not None or Platform.here() == EMULATED or EMULATED.architecture not in emulated_architectures():
                raise
            return await source.find(EMULATED)

    def _remember(self, found: Found, place: Location, name: str | None, platform: Platform | None) -> Record:
        stored = [self._layers.layer(diff_id) for diff_id in dict.fromkeys(found.config.layers)]
        size = sum(layer.bytes for layer in stored if layer is not None)
        record = Record(found.id, str(place), found.config_bytes.decode(), found.config.layers, found.digest, size)
        self._records.keep(record)
        if name is not None:
            for spelled in {str(platform or Platform.here()), str(found.config.platform)}:
                self._records.name(name, spelled, record.id)
        return record

    async def _ready(self, record: Record, location: str) -> UnpackedImage:
        layers = [self._layers.layer(diff_id) for diff_id in record.layers]
        here = [layer for layer in layers if layer is not None]
        if len(here) != len(layers):
            self._records.forget(record.id)
            raise StorageError(f"layers of {location} have vanished from {self._root}", concerns=location, hint="try again")
        root = await self._layers.ensure_tree(here)
        return UnpackedImage(
            record.id,
            location,
            root,
            tuple(layer.folder for layer in here),
            ImageConfig.parse(record.config.encode(), location),
            record.digest,
            all(layer.owners for layer in here),
            tuple(name for layer in here for name in layer.skipped),
        )

    def _check_platform(self, made_for: Platform, asked: Platform | None, place: str) -> None:
        here = Platform.here()
        if asked is not None and made_for != asked:
            raise ImagePlatformError(f"{place} is made for {made_for}, not for {asked}", concerns=place)
        if not made_for.runs_on(here, emulated_architectures()):
            hint = f"take one that is made for {here}, or install an emulator (Debian: qemu-user-static)"
            raise ImagePlatformError(f"{place} is made for {made_for}, and this machine is {here}", concerns=place, hint=hint)

    def _check_room(self, needed: int, place: str) -> None:
        nearest = next(folder for folder in (self._root, *self._root.parents) if folder.exists())
        free = shutil.disk_usage(nearest).free
        if free < needed + self._limits.image_free_bytes:
            raise _NoRoomError(
                f"{place} needs about {needed} bytes, and {self._limits.image_free_bytes} must stay free: {nearest} has {free}",
                concerns=str(nearest),
                hint="free some, or lower the limit image_free_bytes",
            )

    @contextmanager
    def _scratch(self) -> Iterator[Path]:
        folder = self._layers.scratch()
        try:
            yield folder
        finally:
            remove_below(None, folder)

    async def _collected(
        self, budget: int, *, dry_run: bool = False, live: Collection[str] | None = None, spare: str | None = None
    ) -> Freed:
        with turn_if_free(self._locks, _STORE_LOCK) as ours:
            if not ours:
                return Freed(kept=len(self._records.all()), busy=True)
            return await asyncio.to_thread(self._collect, budget, dry_run, live, spare)

    def _collect(self, budget: int, dry_run: bool, live: Collection[str] | None, spare: str | None) -> Freed:
        """Under the store's lock, so nobody reads or unpacks."""
        kept, removed = self._records.above(budget, live, spare)
        needed = {diff_id for record in kept for diff_id in record.layers}
        idle = [digest for digest in self._layers.stored("layers") if digest not in needed]
        freed = sum(layer.bytes for digest in idle if (layer := self._layers.layer(digest)) is not None)
        if dry_run:
            return Freed(tuple(removed), freed, 0, len(kept))
        for record in removed:
            self._records.forget(record.id)
        self._layers.keep_trees([record.layers for record in kept])
        for digest in idle:
            self._layers.remove("layers", digest)
        return Freed(tuple(removed), freed, self._layers.remove_leavings(), len(kept))


@contextmanager
def _written(path: Path) -> Iterator[IO[bytes]]:
    try:
        with path.open("wb") as file:
            yield file
    except OSError as error:
        raise StorageError(f"an image can't be written: {error.strerror}", concerns=str(path)) from error

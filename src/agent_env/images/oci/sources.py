"""Where an image without an engine comes from: a registry, an OCI layout folder, or a `docker save` archive. Each gives verified blobs."""

from __future__ import annotations

import gzip
import io
import json
import posixpath
import shutil
import tarfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

from agent_env.defaults import DEFAULT_LIMITS, Limits
from agent_env.errors import ImageNotFoundError, StorageError, TransferError, UnsupportedError
from agent_env.images.oci.manifests import Descriptor, ImageConfig, Index, Manifest, described, parse_manifest
from agent_env.images.oci.registry import Registry
from agent_env.images.platforms import Platform
from agent_env.images.reference import DEFAULT_TAG, ImageReference, digest_of, is_digest, reference_problem

_REF_NAME = "org.opencontainers.image.ref.name"
_CONTAINERD_NAME = "io.containerd.image.name"
_MOST_INDEXES = 4
"""Indexes that point to indexes: real ones nest once."""

GROWTH = 3
"""A layer's bytes, unpacked, in those of its blob: gzip makes about a third of a system's files."""

Told = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes in a file of this machine: all of it, or a member of an archive."""

    path: Path
    offset: int = 0
    size: int | None = None

    def open(self) -> IO[bytes]:
        """A reader of exactly these bytes."""
        file = self.path.open("rb")
        file.seek(self.offset)
        return file if self.size is None else io.BufferedReader(_Window(file, self.size))


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer of an image that was found."""

    diff_id: str
    """The digest of what it unpacks to."""
    blob: Descriptor | None
    """As its source keeps it; None where only the place is known (archives)."""
    place: str = ""


@dataclass(frozen=True, slots=True)
class Found:
    """An image that was found."""

    config: ImageConfig
    config_bytes: bytes
    layers: tuple[Layer, ...]
    digest: str | None = None
    """The manifest's, as registries call it."""

    @property
    def id(self) -> str:
        """The digest of its configuration: one content, wherever it came from."""
        return digest_of(self.config_bytes)


class Source(Protocol):
    """Where an image comes from."""

    async def find(self, platform: Platform) -> Found:
        """The image for a platform.

        Raises:
            ImageNotFoundError: There is none.
            ImagePlatformError: It is not made for the platform.
            UnsupportedError: It is no image that can be unpacked.
        """
        ...

    def blob(self, layer: Layer, scratch: Path, told: Told) -> AbstractAsyncContextManager[Piece]:
        """A layer's bytes, as a file while the block lasts.

        Args:
            layer: One of what `find` gave.
            scratch: A file that may be used; what it holds is the beginning of this very layer.
            told: Told how many bytes there are.
        """
        ...


class RegistrySource:
    """An image in a registry.

    Args:
        registry: The client; the caller closes it.
        reference: The image's name.
    """

    def __init__(self, registry: Registry, reference: ImageReference) -> None:
        self._registry = registry
        self._reference = reference

    async def find(self, platform: Platform) -> Found:
        """Asks the registry, following its index to the platform's image."""
        where = str(self._reference)
        version: str | None = None
        for _ in range(_MOST_INDEXES):
            data, media_type, digest = await self._registry.manifest(self._reference, version)
            manifest = parse_manifest(data, media_type, where)
            if isinstance(manifest, Manifest):
                config = await self._registry.small_blob(self._reference, manifest.config)
                return _found(config, manifest, where, digest)
            version = manifest.choose(platform, where).digest
        raise UnsupportedError(f"{where} is an index of indexes of indexes", concerns=where)

    @asynccontextmanager
    async def blob(self, layer: Layer, scratch: Path, told: Told) -> AsyncIterator[Piece]:
        """Fetches it into the scratch file, which stays when the transfer breaks, and goes when it was used."""
        if layer.blob is None:
            raise UnsupportedError(f"{self._reference} has a layer without a digest", concerns=str(self._reference))
        await self._registry.blob(self._reference, layer.blob, scratch, told)
        with _used_once(scratch):
            yield Piece(scratch)


class LayoutSource:
    """An image in an OCI layout folder.

    Args:
        folder: Holds `oci-layout`, `index.json` and `blobs`.
        name: The image's name in the index; None when there is only one.
    """

    def __init__(self, folder: Path, name: str | None = None, *, limits: Limits = DEFAULT_LIMITS) -> None:
        self._folder = folder
        self._name = name
        self._limits = limits

    async def find(self, platform: Platform) -> Found:
        """Reads the index."""
        where = f"oci:{self._folder}" + (f":{self._name}" if self._name else "")
        try:
            data = (self._folder / "index.json").read_bytes()
        except OSError as error:
            raise ImageNotFoundError(f"{self._folder} is no OCI layout: index.json {error.strerror}", concerns=where) from error
        index = parse_manifest(data, "", where)
        found: Descriptor | None = named(index, self._name, where) if isinstance(index, Index) else None
        if found is None and isinstance(index, Index):
            found = index.choose(platform, where)
        for _ in range(_MOST_INDEXES):
            if found is None:
                break
            manifest = parse_manifest(self._document(found.digest), found.media_type, where)
            if isinstance(manifest, Manifest):
                return _found(self._document(manifest.config.digest), manifest, where, found.digest)
            found = manifest.choose(platform, where)
        raise UnsupportedError(f"{where} leads to no image", concerns=where)

    @asynccontextmanager
    async def blob(self, layer: Layer, scratch: Path, told: Told) -> AsyncIterator[Piece]:
        """The file itself."""
        del scratch
        if layer.blob is None:
            raise UnsupportedError(f"{self._folder} has a layer without a digest", concerns=str(self._folder))
        path = self._path(layer.blob.digest)
        if not path.is_file():
            raise ImageNotFoundError(f"{self._folder} lacks the layer {layer.blob.digest}", concerns=str(path))
        told(path.stat().st_size)
        yield Piece(path)

    def _document(self, digest: str) -> bytes:
        path = self._path(digest)
        try:
            if path.stat().st_size > self._limits.image_manifest_bytes:
                raise UnsupportedError(f"{path} is larger than {self._limits.image_manifest_bytes} bytes", concerns=str(path))
            data = path.read_bytes()
        except OSError as error:
            raise ImageNotFoundError(f"{self._folder} lacks {digest}: {error.strerror}", concerns=str(path)) from error
        if digest.startswith("sha256:") and digest_of(data) != digest:
            raise TransferError(f"{path} is damaged: it is not what its name says", concerns=str(path))
        return data

    def _path(self, digest: str) -> Path:
        algorithm, _, value = digest.partition(":")
        return self._folder / "blobs" / algorithm / value


class ArchiveSource:
    """An image in a `docker save` archive, of engines old and new.

    Args:
        path: The archive; a compressed one is unpacked into `scratch` first.
        name: The image's name or id in it; None when there is only one.
        scratch: A folder for what must be unpacked.
    """

    def __init__(self, path: Path, name: str | None = None, *, scratch: Path, limits: Limits = DEFAULT_LIMITS) -> None:
        self._path = path
        self._name = name
        self._scratch = scratch
        self._limits = limits
        self._members: dict[str, tarfile.TarInfo] = {}

    async def find(self, platform: Platform) -> Found:
        """Reads the archive's list of contents. An archive names no platform to choose by: the caller compares."""
        del platform
        where = f"docker-archive:{self._path}"
        self._read_members(where)
        listed = self._document("manifest.json", where)
        with described(where):
            entry = self._entry(json.loads(listed), where)
            document, places = str(entry["Config"]), [str(place) for place in entry.get("Layers") or ()]
        data = self._document(document, where)
        config = ImageConfig.parse(data, where)
        if len(places) != len(config.layers):
            raise UnsupportedError(f"{where} has {len(places)} layers where its image has {len(config.layers)}", concerns=where)
        for place in places:
            self._member(place, where)
        return Found(config, data, tuple(Layer(diff_id, None, place) for diff_id, place in zip(config.layers, places, strict=True)))

    @asynccontextmanager
    async def blob(self, layer: Layer, scratch: Path, told: Told) -> AsyncIterator[Piece]:
        """The member, in place."""
        del scratch
        member = self._member(layer.place, str(self._path))
        told(member.size)
        yield Piece(self._path, member.offset_data, member.size)

    def _read_members(self, where: str) -> None:
        try:
            if _is_gzip(self._path):
                unpacked = self._scratch / "archive.tar"
                with gzip.open(self._path) as source, unpacked.open("wb") as out:
                    shutil.copyfileobj(source, out)
                self._path = unpacked
            with tarfile.open(self._path, "r:") as archive:
                self._members = {posixpath.normpath(member.name): member for member in archive}
        except FileNotFoundError as error:
            raise ImageNotFoundError(f"there is no archive {self._path}", concerns=where) from error
        except (tarfile.TarError, EOFError, gzip.BadGzipFile) as error:
            raise UnsupportedError(f"{self._path} is no archive of images: {error}", concerns=where) from error
        except OSError as error:
            raise StorageError(f"{self._path} can't be read: {error.strerror}", concerns=where) from error

    def _entry(self, listed: Any, where: str) -> Mapping[str, Any]:
        entries = [entry for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []
        if self._name is not None:
            entries = [entry for entry in entries if _is_called(entry, self._name)]
        if len(entries) == 1:
            return entries[0]
        if not entries:
            raise ImageNotFoundError(f"{where} holds no image {self._name or ''}".rstrip(), concerns=where)
        names = ", ".join(str(tag) for entry in entries for tag in entry.get("RepoTags") or ())
        raise ImageNotFoundError(f"{where} holds {len(entries)} images", concerns=where, hint=f"name one, after a colon: {names}")

    def _member(self, name: str, where: str) -> tarfile.TarInfo:
        """A file of the archive; old engines write a link where two layers are equal."""
        at = posixpath.normpath(name)
        for _ in range(_MOST_INDEXES):
            member = self._members.get(at)
            if member is None:
                break
            if member.isfile():
                return member
            at = posixpath.normpath(posixpath.join(posixpath.dirname(at), member.linkname) if member.issym() else member.linkname)
        raise UnsupportedError(f"{where} lacks {name}, so it is no archive of images or is cut off", concerns=where)

    def _document(self, name: str, where: str) -> bytes:
        member = self._member(name, where)
        if member.size > self._limits.image_manifest_bytes:
            raise UnsupportedError(f"{name} in {where} is larger than {self._limits.image_manifest_bytes} bytes", concerns=where)
        with Piece(self._path, member.offset_data, member.size).open() as file:
            return file.read()


@contextmanager
def _used_once(path: Path) -> Iterator[None]:
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def named(index: Index, name: str | None, where: str) -> Descriptor | None:
    """The one entry of an index that has a name; None without a name, when the platform decides.

    Raises:
        ImageNotFoundError: None or several have it.
    """
    if name is None:
        return None
    found = [entry for entry in index.manifests if name in {entry.annotations.get(_REF_NAME), entry.annotations.get(_CONTAINERD_NAME)}]
    if len(found) == 1:
        return found[0]
    names = sorted({entry.annotations[_REF_NAME] for entry in index.manifests if _REF_NAME in entry.annotations})
    raise ImageNotFoundError(f"{where} is not in its index", concerns=where, hint=f"it holds {', '.join(names)}" if names else None)


def _found(config: bytes, manifest: Manifest, where: str, digest: str) -> Found:
    parsed = ImageConfig.parse(config, where)
    if len(parsed.layers) != len(manifest.layers):
        raise UnsupportedError(f"{where} has {len(manifest.layers)} layers where its image has {len(parsed.layers)}", concerns=where)
    layers = tuple(Layer(diff_id, blob) for diff_id, blob in zip(parsed.layers, manifest.layers, strict=True))
    return Found(parsed, config, layers, digest)


def _is_called(entry: Mapping[str, Any], name: str) -> bool:
    if is_digest(name) or reference_problem(name) is not None:
        return str(entry.get("Config") or "").replace("blobs/sha256/", "").removesuffix(".json") == name.removeprefix("sha256:")
    wanted = ImageReference.parse(name)
    wanted = wanted.with_tag(wanted.tag or DEFAULT_TAG).normalised()
    tags = [str(tag) for tag in entry.get("RepoTags") or ()]
    return any(reference_problem(tag) is None and ImageReference.parse(tag).normalised() == wanted for tag in tags)


def _is_gzip(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(2) == b"\x1f\x8b"


class _Window(io.RawIOBase):
    """The next bytes of a file, up to a number."""

    def __init__(self, file: IO[bytes], size: int) -> None:
        self._file = file
        self._left = size

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: Any, /) -> int:
        """Reads no further than the window."""
        data = self._file.read(min(len(buffer), self._left))
        buffer[: len(data)] = data
        self._left -= len(data)
        return len(data)

    def close(self) -> None:
        """Closes the file too."""
        self._file.close()
        super().close()

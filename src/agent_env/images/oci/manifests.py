"""What describes an image: manifests, indexes and configurations, of OCI and of Docker."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from agent_env.errors import ImagePlatformError, UnsupportedError
from agent_env.images.platforms import Platform
from agent_env.images.reference import digest_of, is_digest

OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
OCI_INDEX = "application/vnd.oci.image.index.v1+json"
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
DOCKER_INDEX = "application/vnd.docker.distribution.manifest.list.v2+json"
ACCEPTED = ", ".join((OCI_INDEX, DOCKER_INDEX, OCI_MANIFEST, DOCKER_MANIFEST))
_FOREIGN_LAYER = "foreign"
"""Part of the media types of layers that registries may not serve (Windows)."""
_ARM_VARIANTS = ("v8", "v7", "v6", "v5")
"""A processor of one runs what is made for those after it."""


@dataclass(frozen=True, slots=True)
class Descriptor:
    """What one manifest says of another document or of a layer."""

    digest: str
    size: int
    media_type: str = ""
    platform: Platform | None = None
    annotations: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, value: Any, where: str) -> Descriptor:
        """Reads one.

        Raises:
            UnsupportedError: It is none.
        """
        if not isinstance(value, dict) or not is_digest(str(value.get("digest"))) or type(value.get("size")) is not int:
            raise UnsupportedError(f"{where} has a part without a digest and size", concerns=where)
        platform = value.get("platform")
        made_for = Platform.of(str(platform.get("os")), str(platform.get("architecture")), platform.get("variant")) if platform else None
        return cls(value["digest"], value["size"], str(value.get("mediaType") or ""), made_for, value.get("annotations") or {})


@dataclass(frozen=True, slots=True)
class Manifest:
    """One image: its configuration and its layers, lowest first."""

    config: Descriptor
    layers: tuple[Descriptor, ...]


@dataclass(frozen=True, slots=True)
class Index:
    """One name for images of several platforms."""

    manifests: tuple[Descriptor, ...]

    def choose(self, platform: Platform, where: str) -> Descriptor:
        """The one for a platform.

        Raises:
            ImagePlatformError: There is none; the message lists those that there are.
        """
        for wanted in _spellings(platform):
            for found in self.manifests:
                if found.platform == wanted:
                    return found
        unnamed = [found for found in self.manifests if found.platform is None and found.media_type in {OCI_MANIFEST, DOCKER_MANIFEST, ""}]
        if len(unnamed) == 1 and len(self.manifests) == 1:
            return unnamed[0]
        offered = sorted({str(found.platform) for found in self.manifests if found.platform and found.platform.os != "unknown"})
        raise ImagePlatformError(
            f"{where} is not made for {platform}, only for {', '.join(offered) or 'platforms that it does not name'}",
            concerns=where,
            hint="ask for one of those with --platform where an emulator runs it, or build it here",
        )


@dataclass(frozen=True, slots=True)
class ImageConfig:
    """What an image says about how it is run."""

    platform: Platform
    entrypoint: tuple[str, ...] = ()
    cmd: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    user: str = ""
    """`user[:group]`, names or numbers; empty is root."""
    workdir: str = "/"
    exposed_ports: tuple[str, ...] = ()
    """Such as `8000/tcp`."""
    volumes: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    stop_signal: str | None = None
    layers: tuple[str, ...] = ()
    """Digests of the unpacked layers (`diff_ids`), lowest first."""

    @classmethod
    def parse(cls, data: bytes, where: str) -> ImageConfig:
        """Reads an image's configuration.

        Raises:
            UnsupportedError: It is none.
        """
        with described(where):
            return cls._of(_object(data), where)

    @classmethod
    def _of(cls, facts: Mapping[str, Any], where: str) -> ImageConfig:
        run = facts.get("config") or {}
        diff_ids = tuple(str(id) for id in (facts.get("rootfs") or {}).get("diff_ids") or ())
        if not all(map(is_digest, diff_ids)):
            raise UnsupportedError(f"{where} names a layer that has no digest", concerns=where)
        return cls(
            Platform.of(str(facts.get("os") or ""), str(facts.get("architecture") or "amd64"), facts.get("variant")),
            _texts(run.get("Entrypoint")),
            _texts(run.get("Cmd")),
            dict(text.partition("=")[::2] for text in _texts(run.get("Env"))),
            str(run.get("User") or ""),
            str(run.get("WorkingDir") or "/"),
            tuple(sorted(run.get("ExposedPorts") or ())),
            tuple(sorted(run.get("Volumes") or ())),
            {str(key): str(value) for key, value in (run.get("Labels") or {}).items()},
            run.get("StopSignal") or None,
            diff_ids,
        )


def parse_manifest(data: bytes, media_type: str, where: str) -> Manifest | Index:
    """Reads a manifest or an index.

    Raises:
        UnsupportedError: It is neither, or of a kind that is no image.
    """
    with described(where):
        return _manifest(_object(data), media_type, where)


def _manifest(facts: Mapping[str, Any], media_type: str, where: str) -> Manifest | Index:
    kind = str(facts.get("mediaType") or media_type.partition(";")[0].strip())
    if kind in {OCI_INDEX, DOCKER_INDEX} or "manifests" in facts:
        return Index(tuple(Descriptor.of(value, where) for value in facts.get("manifests") or ()))
    if facts.get("schemaVersion") == 1 or "fsLayers" in facts:
        raise UnsupportedError(f"{where} has a manifest of version 1, which nobody makes any more", concerns=where, hint="push it again")
    if "config" not in facts:
        raise UnsupportedError(f"{where} has no manifest of an image (media type {kind or 'not given'})", concerns=where)
    layers = tuple(Descriptor.of(value, where) for value in facts.get("layers") or ())
    if any(_FOREIGN_LAYER in layer.media_type for layer in layers):
        raise UnsupportedError(f"{where} has layers that its registry does not hold (it is made for Windows)", concerns=where)
    return Manifest(Descriptor.of(facts["config"], where), layers)


def chain_of(diff_ids: Sequence[str]) -> str:
    """The digest of a stack of layers (OCI's `ChainID`): equal stacks have equal contents, whatever image they belong to."""
    chain = ""
    for diff_id in diff_ids:
        chain = digest_of(f"{chain} {diff_id}".encode()) if chain else diff_id
    return chain or digest_of(b"")


@contextmanager
def described(where: str) -> Iterator[None]:
    """Reads what describes an image, which anybody may have written.

    Raises:
        UnsupportedError: It is no JSON, or not of the shape that is read.
    """
    try:
        yield
    except (ValueError, RecursionError) as error:
        raise UnsupportedError(f"{where} is described by something that is no JSON", concerns=where) from error
    except (AttributeError, LookupError, TypeError) as error:
        message = f"{where} is described by something that describes no image ({type(error).__name__}: {error})"
        raise UnsupportedError(message, concerns=where) from error


def _object(data: bytes) -> dict[str, Any]:
    value = json.loads(data)
    if not isinstance(value, dict):
        raise TypeError("it is no object")
    return value


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(str(member) for member in value) if isinstance(value, list) else (str(value),) if value else ()


def _spellings(platform: Platform) -> list[Platform]:
    """A platform as indexes may name it, the best first."""
    if platform.architecture != "arm":
        return [platform]
    newest = platform.variant or "v7"
    older = _ARM_VARIANTS[_ARM_VARIANTS.index(newest) :] if newest in _ARM_VARIANTS else (newest,)
    return [*(Platform(platform.os, "arm", variant) for variant in older), Platform(platform.os, "arm")]

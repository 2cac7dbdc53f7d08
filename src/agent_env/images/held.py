"""Images that an engine holds: what they are, and whether this engine runs them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agent_env.errors import ImagePlatformError
from agent_env.images.engine_api import EngineAnswerError, EngineApi, rows
from agent_env.images.platforms import Platform, emulated_architectures
from agent_env.images.reference import ImageReference, is_digest, reference_problem

SOURCES_LABEL = "dev.agentenv.sources"
"""Label of what was built from a context: its digest (reference)."""
HOME_LABEL = "dev.agentenv.home"
"""Which installation built an image. Not the label of containers: those inherit the labels of their image, whoever makes them."""


@dataclass(frozen=True, slots=True)
class HeldImage:
    """An image in an engine."""

    id: str
    names: tuple[str, ...]
    """Its tags."""
    digests: tuple[str, ...]
    """`repository@sha256:…`: what registries call it, as far as it came from or went to one."""
    labels: Mapping[str, str]
    platform: Platform
    size_bytes: int
    layers: tuple[str, ...]

    @property
    def sources(self) -> str | None:
        """The digest of what it was built from, by us or another installation."""
        return self.labels.get(SOURCES_LABEL)

    def pin(self, reference: ImageReference) -> ImageReference | None:
        """A name pinned to what its registry calls this content; None when the registry never had it."""
        wanted = reference.normalised()
        for text in self.digests:
            name, _, digest = text.partition("@")
            if is_digest(digest) and _same_repository(name, wanted):
                return reference.with_digest(digest)
        return None


@dataclass(frozen=True, slots=True)
class EngineHost:
    """What an engine's machine is."""

    id: str
    platform: Platform
    emulated: frozenset[str]
    root: str
    """Where it keeps its data; empty when that is not on this machine."""
    desktop: bool
    """Its machine is a virtual one that emulates other architectures."""

    def check(self, image: HeldImage, name: str) -> None:
        """Refuses an image that would start and die with a puzzling message (IM-06).

        Raises:
            ImagePlatformError: It is made for another machine.
        """
        self.check_platform(image.platform, name)

    def check_platform(self, platform: Platform, name: str) -> None:
        """The same for an image that is still to be had.

        Raises:
            ImagePlatformError: It is made for another machine.
        """
        if not self.desktop and not platform.runs_on(self.platform, self.emulated):
            raise ImagePlatformError(
                f"{name} is made for {platform}, and the container engine runs {self.platform}",
                concerns=name,
                hint=f"build or pull it for {self.platform}, or install an emulator (Debian: qemu-user-static)",
            )


async def engine_host(api: EngineApi) -> EngineHost:
    """What an engine is, which its client asks once.

    Raises:
        InfrastructureError: It can't be reached.
    """
    info = await api.engine.info()
    platform, here = Platform.of(info.os or "linux", info.architecture or "amd64"), info.on_this_machine
    return EngineHost(info.id, platform, emulated_architectures() if here else frozenset(), info.root if here else "", info.desktop)


async def inspect(api: EngineApi, name: str) -> HeldImage | None:
    """The image of a name or id, or None when the engine has none.

    Raises:
        InfrastructureError: The engine can't be reached, or refused.
    """
    try:
        found: HeldImage = await api.ask("GET", f"images/{name}/json", read=_held)
    except EngineAnswerError as error:
        if error.status == 404:
            return None
        raise
    return found


def _held(facts: Mapping[str, Any]) -> HeldImage:
    return HeldImage(
        id=str(facts["Id"]) if ":" in str(facts["Id"]) else f"sha256:{facts['Id']}",
        names=tuple(facts.get("RepoTags") or ()),
        digests=tuple(facts.get("RepoDigests") or ()),
        labels=dict((facts.get("Config") or {}).get("Labels") or {}),
        platform=Platform.of(str(facts.get("Os") or ""), str(facts.get("Architecture") or ""), facts.get("Variant")),
        size_bytes=int(facts.get("Size") or 0),
        layers=tuple((facts.get("RootFS") or {}).get("Layers") or ()),
    )


async def labelled(api: EngineApi, home: str, sources: str | None = None) -> list[HeldImage]:
    """The images that carry an installation's label: all, or those of one content.

    That alone does not make them ours: an image from a registry may carry any label, and what is made from ours inherits them. The
    ledger decides.

    Raises:
        InfrastructureError: The engine can't be reached, or refused.
    """
    labels = [f"{HOME_LABEL}={home}", SOURCES_LABEL if sources is None else f"{SOURCES_LABEL}={sources}"]
    filters = {"filters": json.dumps({"label": labels})}
    ids = await api.ask("GET", "images/json", params=filters, read=lambda answer: [str(row["Id"]) for row in rows(answer)])
    found = [await inspect(api, id) for id in ids]
    return [image for image in found if image is not None]


def _same_repository(name: str, wanted: ImageReference) -> bool:
    if reference_problem(name) is not None:
        return False
    held = ImageReference.parse(name).normalised()
    return (held.host, held.path) == (wanted.host, wanted.path)

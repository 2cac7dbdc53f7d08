"""Whether an image can be had, asked without fetching any of it: the engine, what is unpacked, files of this machine, then its registry."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from agent_env.defaults import Limits
from agent_env.errors import AgentEnvError, ImageNotFoundError
from agent_env.images.credentials import Keyring
from agent_env.images.oci.location import Location, Transport
from agent_env.images.oci.registry import Registry
from agent_env.images.oci.sources import ArchiveSource, LayoutSource
from agent_env.images.opening import Opened
from agent_env.images.platforms import Platform
from agent_env.images.reference import ImageReference
from agent_env.waiting import deadline


@dataclass(frozen=True, slots=True)
class Absence:
    """Why an image is not at hand."""

    reason: str
    certain: bool
    """False: whoever could know was not reached, or did not say."""
    hint: str | None = None


async def absence(text: str, opened: Opened, keyring: Keyring, *, limits: Limits) -> Absence | None:
    """None when the image is there to be had; else why not. Bounded by `image_question_seconds`.

    Args:
        text: As a step names it.
        opened: What this installation has.
        keyring: Credentials for registries.
        limits: How long a registry may take.

    Raises:
        UserError: It is no image name.
    """
    place = Location.parse(text)
    try:
        async with deadline(limits.image_question_seconds, f"asking for {text}"):
            return await _absence(place, opened, keyring, limits)
    except AgentEnvError as error:
        if place.path is not None or isinstance(error, ImageNotFoundError):  # a file of this machine, or a registry that answered
            return Absence(error.message, certain=True, hint=error.hint)
        return Absence(f"nobody could say whether there is an image {text}: {error.message}", certain=False)


async def pinned_now(reference: ImageReference, keyring: Keyring, *, limits: Limits) -> ImageReference:
    """A name pinned to what its registry has under it now; the name as it is where the registry does not say within the same time."""
    if reference.pinned:
        return reference
    once = replace(limits, image_pull_attempts=1)
    try:
        async with (
            deadline(limits.image_question_seconds, f"asking what {reference} is"),
            Registry(reference.normalised().host, keyring=keyring, limits=once) as registry,
        ):
            _, _, digest = await registry.manifest(reference)
    except AgentEnvError:
        return reference
    return reference.with_digest(digest)


async def _absence(place: Location, opened: Opened, keyring: Keyring, limits: Limits) -> Absence | None:
    if place.path is not None:
        await _in_file(place, place.path, limits)
        return None
    reference = place.reference
    assert reference is not None  # the other two transports name one
    if place.transport is not Transport.REGISTRY and opened.images is not None:
        if await opened.images.held(str(reference.untagged())) is not None:
            return None
        if place.transport is Transport.ENGINE:
            return Absence(f"the container engine holds no image {reference}", certain=True)
    if place.transport is Transport.ENGINE:
        return Absence(f"there is no container engine to take {reference} from ({opened.why_not})", certain=True)
    if _unpacked(reference, opened):
        return None
    if reference.context_only:
        return Absence(f"{reference} is in no registry: it is built from its context, and was not built here", certain=True)
    once = replace(limits, image_pull_attempts=1)
    async with Registry(reference.normalised().host, keyring=keyring, limits=once) as registry:
        await registry.manifest(reference)
    return None


def _unpacked(reference: ImageReference, opened: Opened) -> bool:
    wanted = {f"{Transport.REGISTRY}{reference.normalised()}", str(reference), f"{Transport.REGISTRY}{reference}"}
    return any(record.location in wanted for record in opened.store.held())


async def _in_file(place: Location, path: Path, limits: Limits) -> None:
    """Raises what unpacking it would, for what is wrong with its name or its index."""
    if place.transport is Transport.LAYOUT:
        await LayoutSource(path, place.name, limits=limits).find(Platform.here())
        return
    with tempfile.TemporaryDirectory(prefix="agent-env-") as scratch:
        await ArchiveSource(path, place.name, scratch=Path(scratch), limits=limits).find(Platform.here())

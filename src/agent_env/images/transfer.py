"""Pulling and pushing through an engine: retried within bounds, with the credentials of this one call, a clear word for each refusal."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any, TypeVar

from agent_env.defaults import Limits
from agent_env.errors import EngineUnavailableError, ImageNotFoundError, InfrastructureError, TransportLostError
from agent_env.images.answers import PATIENCE, Meaning, meaning
from agent_env.images.credentials import Keyring, registry_auth
from agent_env.images.engine_api import EngineAnswerError, EngineApi
from agent_env.images.progress import Bytes, OnProgress, Progress, Stage
from agent_env.images.reference import DOCKER_HUB, ImageReference, is_digest
from agent_env.waiting import back_off, deadline

T = TypeVar("T")

_RESTART_PATIENCE = 2
"""Doublings by which the pause is longer when the engine itself broke off: one that is restarted takes some seconds."""
_COMPLETE = frozenset({"Pull complete", "Already exists", "Pushed", "Layer already exists", "Download complete", "Extracting"})
"""What engines say of a layer of which every byte has come. One that is unpacked has; Docker weighs it as it was packed."""


class RefusedError(InfrastructureError):
    """An engine could not get an image; `meaning` says why."""

    def __init__(self, found: Meaning) -> None:
        super().__init__(found.error.message)
        self.meaning = found


async def pull(
    api: EngineApi, reference: ImageReference, *, platform: str | None, keyring: Keyring, limits: Limits, tell: OnProgress
) -> None:
    """Fetches an image into the engine. A name with tag and digest also gets the tag.

    Raises:
        RefusedError: Why it could not be had.
        DeadlineError: It took longer than `image_pull_seconds`.
    """
    headers = registry_auth(await keyring.of(reference.host), reference.host)
    wanted = {"fromImage": reference.name, "tag": reference.version, **({"platform": platform} if platform else {})}

    async def once() -> None:
        async with aclosing(api.events("images/create", seconds=limits.image_pull_seconds, params=wanted, headers=headers)) as events:
            await _follow(api, events, reference, tell)

    async with deadline(limits.image_pull_seconds, f"the pull of {reference}"):
        await _with_attempts(once, reference, limits, tell)
        if reference.digest is not None and reference.tag is not None:
            await tag(api, str(reference.untagged()), reference)


async def push(api: EngineApi, reference: ImageReference, *, keyring: Keyring, limits: Limits, tell: OnProgress) -> ImageReference:
    """Sends an image that the engine holds under this name to its registry.

    Returns:
        The name, pinned to what the registry now calls it.

    Raises:
        RefusedError: Why it could not be sent.
        InfrastructureError: The engine did not say what the registry calls it.
        DeadlineError: It took longer than `image_pull_seconds`.
    """
    headers = registry_auth(await keyring.of(reference.host), reference.host)
    params = {"tag": reference.version}

    async def once() -> str | None:
        path, seconds = f"images/{reference.name}/push", limits.image_pull_seconds
        async with aclosing(api.events(path, seconds=seconds, params=params, headers=headers)) as events:
            return await _follow(api, events, reference, tell)

    async with deadline(limits.image_pull_seconds, f"the push of {reference}"):
        digest = await _with_attempts(once, reference, limits, tell)
    if digest is None:
        raise InfrastructureError(f"the engine pushed {reference} and did not say its digest", concerns=str(reference))
    return reference.with_digest(digest)


async def tag(api: EngineApi, image: str, name: ImageReference) -> None:
    """Gives an image that the engine holds another name.

    Raises:
        ImageNotFoundError: The engine has no such image.
        InfrastructureError: The engine can't be reached, or refused.
    """
    try:
        await api.ask("POST", f"images/{image}/tag", params={"repo": name.name, "tag": name.tag or "latest"})
    except EngineAnswerError as error:
        if error.status == 404:
            raise ImageNotFoundError(f"the engine holds no image {image}", concerns=image) from error
        raise


async def _with_attempts(once: Callable[[], Awaitable[T]], reference: ImageReference, limits: Limits, tell: OnProgress) -> T:
    last: InfrastructureError | None = None
    patience = 0
    for attempt in range(1, limits.image_pull_attempts + 1):
        if attempt > 1:
            await back_off(attempt + patience, limits=limits)
        try:
            return await once()
        except EngineAnswerError as error:
            registry = "Docker Hub" if reference.host == DOCKER_HUB else reference.host
            found = meaning(error.said, str(reference), registry)
            last, patience = RefusedError(found), PATIENCE if found.asked_too_often else 0
            last.__cause__ = error
            why = found.error.message
            # Nobody listens on a port of this machine: that won't change by waiting a second.
            if not found.again or (found.unreachable and not found.asked_too_often and reference.on_this_machine):
                raise last from error
        except (TransportLostError, EngineUnavailableError) as error:  # the engine broke off amid it, and may be back in a moment
            if last is None and isinstance(error, EngineUnavailableError):
                raise
            last, patience, why = error, _RESTART_PATIENCE, error.message
        tell(Progress(Stage.RETRYING, str(reference), f"attempt {attempt} of {limits.image_pull_attempts}: {why}"))
    assert last is not None, "image_pull_attempts is at least 1"
    raise last


async def _follow(api: EngineApi, events: AsyncIterator[dict[str, Any]], reference: ImageReference, tell: OnProgress) -> str | None:
    """Tells of bytes as they come; returns the digest that the engine reports."""
    moved, digest = Bytes(str(reference), tell), None
    async for event in events:
        with api.reading(f"moving {reference}"):
            digest = _take(event, moved) or digest
    return digest


def _take(event: Mapping[str, Any], moved: Bytes) -> str | None:
    """Counts what an event tells of; the digest that it names."""
    detail, part = event.get("progressDetail") or {}, str(event.get("id") or "")
    status = str(event.get("status") or "")
    total = None if detail.get("total") is None else int(detail["total"])
    if detail.get("current") is not None and status in {"Downloading", "Pushing"}:
        moved.update(part, int(detail["current"]), total)
    elif status in _COMPLETE:  # a small layer may come without a word before: engines leave out news that follow each other closely
        moved.finish(part, total)
    said = str((event.get("aux") or {}).get("Digest") or status.removeprefix("Digest: "))
    return said if is_digest(said) else None

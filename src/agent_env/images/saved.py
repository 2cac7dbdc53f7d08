"""Images that lie in an archive of `docker save`: loaded into the engine, once for each name."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path

from agent_env.defaults import MIB, Limits
from agent_env.errors import EngineFailedError
from agent_env.images import transfer
from agent_env.images.engine_api import EngineAnswerError, EngineApi
from agent_env.images.held import HeldImage, inspect
from agent_env.images.reference import ImageReference

_LOADED = re.compile(r"Loaded image(?: ID)?: (\S+)")


@dataclass(frozen=True, slots=True)
class SavedImage:
    """An image in an archive, plain or compressed."""

    archive: Path
    name: ImageReference
    """What it is called in the engine."""


async def load(api: EngineApi, saved: SavedImage, *, limits: Limits) -> HeldImage:
    """The image of an archive, as the engine holds it under its name; loaded unless it is there.

    Raises:
        EngineFailedError: The archive holds no image that the engine takes.
        InfrastructureError: The engine can't be reached, or refused.
        DeadlineError: It took longer than `image_pull_seconds`.
    """
    name = saved.name.tagged_name
    held = await inspect(api, name)
    if held is not None:
        return held
    loaded: list[str] = []
    try:
        events = api.events("images/load", seconds=limits.image_pull_seconds, params={"quiet": "1"}, data=_content(saved.archive))
        async with aclosing(events) as lines:
            async for event in lines:
                loaded += _LOADED.findall(str(event.get("stream") or ""))
    except EngineAnswerError as error:
        raise EngineFailedError(f"the archive of {name} can't be loaded: {error.said}", concerns=name) from error
    held = await inspect(api, name)
    if held is None and len(loaded) == 1:
        await transfer.tag(api, loaded[0], saved.name.with_tag(saved.name.tag or "latest"))
        held = await inspect(api, name)
    if held is None:
        raise EngineFailedError(f"the archive of {name} holds {', '.join(loaded) or 'no image'} instead", concerns=name)
    return held


async def _content(path: Path) -> AsyncIterator[bytes]:
    with path.open("rb") as file:
        while chunk := await asyncio.to_thread(file.read, MIB):
            yield chunk

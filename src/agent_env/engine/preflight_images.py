"""Images that tasks name and that can't be had: what can be known on this machine for certain, and what a registry says if it answers."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import TYPE_CHECKING

from agent_env.engine.plan import TaskPlan
from agent_env.engine.preflight_values import and_more, value_of
from agent_env.errors import Problem
from agent_env.steps.contract import Step, UnreadableError
from agent_env.steps.image_names import image_problems, is_open

if TYPE_CHECKING:
    from agent_env.config import Config

_ARTIFACT = "docker_context_artifact_id"
_BYTES = ("tar_gz_object_url", "build_context_object_url")
"""What an image artifact brings with it."""
_AT_ONCE = 8
"""Questions to registries at a time."""


IsHere = Callable[[TaskPlan, Step], Awaitable[bool]]
"""Whether what a step makes is made on this machine: others have images of their own."""


async def images_missing(config: Config, plans: Mapping[str, TaskPlan], is_here: IsHere) -> tuple[list[Problem], list[Problem]]:
    """Which images can't be had, and of which nobody could say it. Nothing is fetched.

    Args:
        config: Whose engine, unpacked images and credentials count.
        plans: File or id, as messages will name it → task.
        is_here: Tells the steps of this machine's providers.
    """
    named: dict[str, list[tuple[str, str]]] = {}
    async for source, path, name in _named(plans, is_here):
        named.setdefault(name, []).append((source, path))
    if not named:
        return [], []
    from agent_env.images.opening import keyring_of, open_images
    from agent_env.images.presence import Absence, absence

    turns, keyring = asyncio.Semaphore(_AT_ONCE), keyring_of(config, environ=os.environ)
    async with open_images(config) as opened, asyncio.TaskGroup() as group:

        async def ask(name: str) -> Absence | None:
            async with turns:
                return await absence(name, opened, keyring, limits=config.limits)

        asked = {name: group.create_task(ask(name)) for name in named}
    missing: list[Problem] = []
    unsure: list[Problem] = []
    for name, answer in asked.items():
        said = answer.result()
        if said is not None:
            problem = Problem(f"{said.reason}{and_more(named[name], 'step')}", *named[name][0], hint=said.hint)
            (missing if said.certain else unsure).append(problem)
    return missing, unsure


async def _named(plans: Mapping[str, TaskPlan], is_here: IsHere) -> AsyncIterator[tuple[str, str, str]]:
    """Source, place and name of each image that must be there before its step, and that no step of the same task makes."""
    for source, plan in plans.items():
        if any(step_id not in plan.steps for step_id in plan.graph.order):
            continue  # what could not be read may make any image
        try:
            made = {tag for step in plan.steps.values() if isinstance(tag := value_of(step, "image_tag"), str)}
        except UnreadableError:
            continue
        made |= {f"{tag}:latest" for tag in made if ":" not in tag.rpartition("/")[2]}
        for index, step_id in enumerate(plan.graph.order):
            step = plan.steps.get(step_id)
            if step is None or type(step).images is Step.images:
                continue
            try:
                path, name = _image_of(step, plan)
                _ = value_of(step, "sandbox_type"), value_of(step, "sandbox_name")  # which `is_here` needs
            except UnreadableError:
                continue
            if name is None or is_open(name) or name in made:
                continue
            if not any(image_problems(name, path)) and await is_here(plan, step):  # the first are told already
                yield source, f"{plan.path_of(index)}{path}", name


def _image_of(step: Step, plan: TaskPlan) -> tuple[str, str | None]:
    """The field that names a step's image, and the name: the step's own, or that of a stored image which is nothing but a name."""
    name = value_of(step, "image")
    if isinstance(name, str):
        return ".image", None if "image" in step.idle_fields() else name
    id = value_of(step, _ARTIFACT)
    document = plan.artifact(id, value_of(step, f"{_ARTIFACT.removesuffix('_id')}_version")) if isinstance(id, str) else None
    if document is None or document.get("type") != "docker_image" or any(document.get(key) for key in _BYTES):
        return f".{_ARTIFACT}", None
    named = document.get("image_name")
    return f".{_ARTIFACT}", named if isinstance(named, str) else None

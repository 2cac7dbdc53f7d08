"""What a run can begin at time zero: the images of all its steps are fetched and built while its first steps work.

It changes nothing that a step depends on: an image that is present is only present sooner. What fails here fails again, and is told, where
the step itself needs it.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from agent_env.documents.updates import Json
from agent_env.engine.control import run_folder
from agent_env.engine.events import STEP_PROGRESS
from agent_env.engine.fallback import links
from agent_env.engine.image_progress import ImageProgress
from agent_env.engine.plan import TaskPlan
from agent_env.engine.shared import Shared
from agent_env.errors import AgentEnvError
from agent_env.sandboxes.contract import BuildsImages, PreparesImages
from agent_env.steps.contract import Step

if TYPE_CHECKING:
    from agent_env.artifacts.image_artifacts import ImageSource
    from agent_env.engine.options import Providers
    from agent_env.sandboxes.contract import Provider

DEPLOYING = "deploy_sandbox"
_ENVIRONMENT = "deploy_env"
_OVERRIDES = {_ENVIRONMENT: "env_sandbox"}
"""Type of step → the run's override that chooses its provider, where that is not `sandbox`."""


@asynccontextmanager
async def prefetching(plan: TaskPlan, done: Collection[str], shared: Shared, providers: Providers, default: str) -> AsyncIterator[None]:
    """While the block runs, what its steps will need is fetched and built; what is not finished by its end is given up.

    Args:
        plan: The task.
        done: Steps that need nothing any more.
        shared: The run.
        providers: Name → provider.
        default: The chain of steps that name none.
    """
    waiting = [step for step_id, step in plan.steps.items() if step_id not in done and _needs_images(step, shared)]
    if not waiting:
        yield
        return
    task = asyncio.create_task(_all(waiting, plan, shared, providers, default))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


def _needs_images(step: Step, shared: Shared) -> bool:
    if step.images_by_name:
        return bool(step.images(shared.stores.artifacts, Path(), shared.limits))
    return type(step).images is not Step.images


async def _all(steps: Collection[Step], plan: TaskPlan, shared: Shared, providers: Providers, default: str) -> None:
    async with asyncio.TaskGroup() as group:
        for step in steps:
            group.create_task(_of_step(step, chain_of(step, plan, shared.overrides, default), shared, providers))


def chain_of(step: Step, plan: TaskPlan, overrides: Mapping[str, Json], default: str) -> str:
    """The providers of the sandbox that the step makes, or runs beside."""
    override = overrides.get(_OVERRIDES.get(step.type_name, "sandbox"))
    deploys = [step, *_deployers(step, plan)]
    named = next((str(name) for each in deploys if (name := getattr(each, "sandbox_type", None))), None)
    return str(override) if isinstance(override, str) and override.strip() else named or default


def _deployers(step: Step, plan: TaskPlan) -> Iterator[Step]:
    name = getattr(step, "sandbox_name", None)
    for other in plan.steps.values():
        if other.type_name == DEPLOYING and getattr(other, "sandbox_name", None) == name:
            yield other


async def _of_step(step: Step, chain: str, shared: Shared, providers: Providers) -> None:
    def say(text: str) -> None:
        shared.events.emit(STEP_PROGRESS, step.id, message=text, done=None, total=None)

    folder = run_folder(shared.state_root, shared.run_id) / "scratch" / f"images-{step.id}"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        provider = providers(links(chain)[0])
        images = await asyncio.to_thread(_images, step, folder, shared)
        await asyncio.gather(*(_fetch(image, provider, ImageProgress(say)) for image in images))
    except (AgentEnvError, OSError):
        return  # the step itself meets it again, and says so
    finally:
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)


def _images(step: Step, folder: Path, shared: Shared) -> Sequence[ImageSource]:
    found = step.images(shared.stores.artifacts, folder, shared.limits)
    if step.type_name != _ENVIRONMENT:
        return found
    from agent_env.environments.images import unnamed_images
    from agent_env.environments.lookup import StoredLookup

    lookup = StoredLookup(shared.stores.artifacts, folder / "unnamed", limits=shared.limits)
    id, version, state_type = (getattr(step, name, None) for name in ("env_id", "env_version", "env_state_type"))
    return [*found, *unnamed_images(lookup, str(id), version, shared.environments, shared.state_root, state_type=state_type)]


async def _fetch(image: ImageSource, provider: Provider, tell: ImageProgress) -> None:
    from agent_env.images import BuildRequest

    with contextlib.suppress(AgentEnvError, OSError):  # the step itself meets it again, and says so
        if isinstance(image, str):
            if isinstance(provider, PreparesImages):
                await provider.prepare_image(image, tell)
        elif isinstance(image, BuildRequest) and isinstance(provider, BuildsImages):
            await provider.build_image(image, tell)

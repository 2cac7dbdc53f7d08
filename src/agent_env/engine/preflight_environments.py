"""Environments of tasks that no provider of sandboxes in their chain can hold: told before any step, with one that can."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, cast

from agent_env.documents.updates import Json
from agent_env.engine.fallback import links
from agent_env.engine.plan import TaskPlan
from agent_env.environments.registry import BUILT_IN
from agent_env.errors import AgentEnvError, Problem
from agent_env.places import Shape
from agent_env.sandboxes.contract import BuildsImages
from agent_env.steps.contract import UnreadableError
from agent_env.waiting import deadline

if TYPE_CHECKING:
    from agent_env.defaults import Limits
    from agent_env.sandboxes.contract import Capabilities, Provider
    from agent_env.steps.deploy_env import DeployEnv

DEPLOYING = "deploy_env"
OVERRIDE = "env_sandbox"
_NAMED_INSTEAD = ("local", "rootfs")
"""Providers that may be named as one that can, where they can."""
_BYTES = ("tar_gz_object_url", "build_context_object_url")
"""What an image artifact brings with it, in place of a name that a registry knows."""
_IMAGES = ("docker_image_artifact", "backend_docker_image_artifact", "frontend_docker_image_artifact")
_CHILDREN = ("mcp_server_envs", "website_envs")


async def environments_refused(
    plans: Mapping[str, TaskPlan],
    providers: Callable[[str], Provider],
    *,
    default: str,
    overrides: Mapping[str, Json],
    limits: Limits,
) -> list[Problem]:
    """Environments that can't be deployed here, with the reasons of every provider of their chain.

    Args:
        plans: File or id, as messages will name it → task.
        providers: Name → provider.
        default: The chain of steps that name none.
        overrides: `user_overrides`; their `env_sandbox` beats what steps say.
        limits: How long a provider may take to say what it can do.
    """
    asking = _Asking(providers, limits)
    found = []
    for source, plan in plans.items():
        for index, step_id in enumerate(plan.graph.order):
            step = plan.steps.get(step_id)
            if step is None or step.type_name != DEPLOYING:
                continue
            deploy = cast("DeployEnv", step)
            try:
                needs, chosen = _needs(deploy, plan), overrides.get(OVERRIDE) or deploy.sandbox_type or default
            except UnreadableError:
                continue
            chain = links(str(chosen))
            reasons = [(name, await asking.why_not(name, needs)) for name in chain]
            if needs and all(why is not None for _, why in reasons):
                told = "; ".join(f"{name}: {why}" for name, why in reasons)
                able = [name for name in _NAMED_INSTEAD if name not in chain and await asking.why_not(name, needs) is None]
                hint = f"deploy it with {able[0]!r}" if able else "agent-env doctor says what this machine can do"
                hint = f"{asking.lacking.hint}; or {hint}" if asking.lacking else hint
                found.append(Problem(f"no sandboxes can be made for the environment: {told}", source, plan.path_of(index), hint))
    return found


class _Needs:
    """What an environment asks of a provider of sandboxes."""

    def __init__(self) -> None:
        self.built: list[str] = []
        """Servers whose images have to be built or loaded."""
        self.beside: list[str] = []
        """What stands beside a machine alone."""


def _needs(step: DeployEnv, plan: TaskPlan) -> _Needs | None:
    """None where the document is not there, which is told already, or where a plug-in deploys it, wherever that may be."""
    document = plan.environment(step.env_id, step.env_version)
    if document is None or document.get("env_provider_type", "gateway") not in BUILT_IN:
        return None
    needs = _Needs()
    for each in _servers(document, plan):
        if each.get("type") == "website" and "websites" not in needs.beside:
            needs.beside.append("websites")
        for key in _IMAGES:
            ref = each.get(key)
            image = plan.artifact(str(ref["id"]), ref.get("version")) if isinstance(ref, dict) and ref.get("id") else None
            if image is not None and any(image.get(name) for name in _BYTES):
                needs.built.append(str(each.get("environment_name") or each.get("id")))
    return needs


def _servers(document: Mapping[str, Json], plan: TaskPlan) -> Iterator[Mapping[str, Json]]:
    refs = [ref for key in _CHILDREN for ref in document.get(key) or () if isinstance(ref, dict)]
    if not refs:
        yield document
    for ref in refs:
        child = plan.environment(str(ref.get("id")), ref.get("version"))
        if child is not None:
            yield child


class _Asking:
    """Asks each provider once."""

    def __init__(self, providers: Callable[[str], Provider], limits: Limits) -> None:
        self._providers = providers
        self._limits = limits
        self._said: dict[str, Capabilities | str] = {}
        self._engine: AgentEnvError | bool | None = None

    @property
    def lacking(self) -> AgentEnvError | None:
        """Why this machine's container engine can't be used, where it was asked for; with a hint."""
        return self._engine if isinstance(self._engine, AgentEnvError) and self._engine.hint else None

    async def why_not(self, name: str, needs: _Needs | None) -> str | None:
        """Why a provider can't hold it; None when it can, or when nothing is known of it."""
        if needs is None:
            return None
        said = await self._capabilities(name)
        if isinstance(said, str):
            return said
        if said.shape is Shape.MACHINE_BACKED:
            if not said.containers:
                why = await self._no_engine_here() if said.on_this_machine else None
                return f"it runs no containers beside its machines{f', because {why}' if why else ''}"
            return None if said.on_this_machine else "its machines are elsewhere, and an environment stands beside machines here"
        if needs.beside:
            return f"its sandboxes are containers, and the environment needs machines for {' and '.join(needs.beside)}"
        if needs.built and not isinstance(self._providers(name), BuildsImages):
            why = await self._no_engine_here() if said.on_this_machine else "it is not on this machine"
            if why is not None:
                return f"it runs images by name, and those of {', '.join(_some(needs.built))} have to be built first ({why})"
        return None

    async def _capabilities(self, name: str) -> Capabilities | str:
        if name not in self._said:
            try:
                async with deadline(self._limits.deploy_seconds, f"asking the provider {name!r} what it can do"):
                    self._said[name] = await self._providers(name).capabilities()
            except AgentEnvError as error:
                self._said[name] = str(error)
        return self._said[name]

    async def _no_engine_here(self) -> str | None:
        """Why no container engine of this machine can build images for a provider that has none."""
        from agent_env.containers import open_engine

        if self._engine is None:
            try:
                async with open_engine(os.environ, limits=self._limits) as engine:
                    await engine.info()
                self._engine = True
            except AgentEnvError as error:
                self._engine = error
        return self._engine.message if isinstance(self._engine, AgentEnvError) else None


def _some(names: Sequence[str]) -> list[str]:
    return [*dict.fromkeys(names)][:3]

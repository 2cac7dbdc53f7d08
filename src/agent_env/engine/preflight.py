"""What providers can't do of tasks, asked before anything is written or started.

Also of tasks with something wrong: what can be known of their other steps and fields is told in the same round.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from agent_env.defaults import GIB, MIB, Limits
from agent_env.documents.updates import Json
from agent_env.engine.fallback import links
from agent_env.engine.plan import TaskPlan
from agent_env.engine.prefetch import chain_of
from agent_env.engine.preflight_environments import environments_refused
from agent_env.engine.preflight_models import ModelsAsked
from agent_env.engine.preflight_values import and_more, values_missing
from agent_env.errors import AgentEnvError, Problem, ProblemsError, UnsupportedError, UserError
from agent_env.sandboxes.contract import SandboxSpec
from agent_env.steps.contract import UnreadableError
from agent_env.steps.requests import GRANT_HINT, docker_refusal
from agent_env.waiting import deadline

if TYPE_CHECKING:
    from agent_env.config import Config
    from agent_env.sandboxes.contract import Provider
    from agent_env.steps.contract import Step
    from agent_env.steps.deploy_agent import DeployAgent
    from agent_env.steps.deploy_sandbox import DeploySandbox
    from agent_env.steps.run_docker_container import RunDockerContainer
    from agent_env.stores import Secrets

DEPLOYING, STARTING = "deploy_sandbox", "run_docker_container"
PRIVILEGES_KEY = "sandbox.container_privileges"
"""What this user's configuration grants the containers of tasks."""


@dataclass(frozen=True)
class Preflight:
    """What was found."""

    mistakes: tuple[Problem, ...] = ()
    """What is wrong anywhere: a provider that nobody knows."""
    inabilities: tuple[Problem, ...] = ()
    """What can't be done here and now: another machine, or another configuration, may."""
    remarks: tuple[Problem, ...] = ()
    """What could not be found out."""

    @property
    def problems(self) -> list[Problem]:
        """All of it: what keeps the tasks from running here."""
        return [*self.mistakes, *self.inabilities]

    def refuse(self) -> None:
        """Raises `ProblemsError` with what keeps the tasks from running here, if anything does."""
        if self.problems:
            raise ProblemsError(self.problems)


async def preflight(
    config: Config, plans: Mapping[str, TaskPlan], overrides: Mapping[str, Json] | None = None, asked: ModelsAsked | None = None
) -> Preflight:
    """`findings` with the providers of a configuration, for whoever has no engine open and only looks: also which images can't be had.

    Args:
        config: What is configured.
        plans: File or id, as messages will name it → task.
        overrides: `user_overrides` of their runs.
        asked: Who will ask a model; None does not look.
    """
    from agent_env.engine.opening import default_provider_of, providers_of
    from agent_env.engine.preflight_images import images_missing
    from agent_env.stores import Secrets
    from agent_env.stores.opening import SECRETS_FILE

    make, made = providers_of(config), dict[str, "Provider"]()

    async with AsyncExitStack() as stack:

        def provider(name: str) -> Provider:
            if name not in made:
                made[name] = make(name)
                stack.push_async_callback(made[name].aclose)
            return made[name]

        granted = frozenset(config.get(PRIVILEGES_KEY) or ())
        default, chosen = default_provider_of(config), overrides or {}
        secrets = Secrets(config.state_root / SECRETS_FILE)
        found = await findings(
            plans,
            provider,
            secrets,
            default=default,
            overrides=chosen,
            limits=config.limits,
            privileges=granted,
            asked=asked,
            unsound=config.unsound,
        )
        there: dict[str, bool] = {}

        async def is_here(plan: TaskPlan, step: Step) -> bool:
            chain = chain_of(step, plan, chosen, default)
            if chain not in there:
                there[chain] = await _all_here(chain, provider, config.limits)
            return there[chain]

        missing, unsure = await images_missing(config, plans if config.unsound.isdisjoint(("sandbox", "images")) else {}, is_here)
        return Preflight(found.mistakes, (*found.inabilities, *missing), tuple(unsure))


async def findings(
    plans: Mapping[str, TaskPlan],
    providers: Callable[[str], Provider],
    secrets: Secrets,
    *,
    default: str,
    overrides: Mapping[str, Json],
    limits: Limits,
    privileges: frozenset[str] = frozenset(),
    asked: ModelsAsked | None = None,
    unsound: Collection[str] = (),
) -> Preflight:
    """What can't be done of tasks, of everything that is quickly known. See `sandbox_findings` for the arguments.

    Args:
        secrets: Where values of references are.
        asked: Who will ask a model; None does not look.
        unsound: Tables of the configuration with something wrong; what depends on them is not asked.
    """

    def by(*tables: str) -> Mapping[str, TaskPlan]:
        return {} if any(table in unsound for table in tables) else plans

    found = await sandbox_findings(by("sandbox"), providers, default=default, overrides=overrides, limits=limits, privileges=privileges)
    environments = await environments_refused(by("sandbox", "envs"), providers, default=default, overrides=overrides, limits=limits)
    values = await values_missing(by("state"), secrets)
    models = asked.missing(by("model", "agents"), overrides) if asked is not None else []
    return Preflight(found.mistakes, (*found.inabilities, *environments, *values, *models))


async def sandbox_findings(
    plans: Mapping[str, TaskPlan],
    providers: Callable[[str], Provider],
    *,
    default: str,
    overrides: Mapping[str, Json],
    limits: Limits,
    privileges: frozenset[str] = frozenset(),
) -> Preflight:
    """Sandboxes of tasks that no provider of their chain can make, with every provider's reasons.

    Args:
        plans: File or id, as messages will name it → task. Equal sandboxes are asked about once, and told once.
        providers: Name → provider.
        default: The chain of steps that name none.
        overrides: `user_overrides`; their `sandbox` beats what steps say.
        limits: How long a provider may take to say what it can do.
        privileges: What the configuration grants containers beyond an ordinary one.
    """
    forms: dict[int, str] = {}
    answers: dict[str, tuple[bool, str] | None] = {}
    found: dict[tuple[bool, str], list[tuple[str, str]]] = {}
    for source, path, step in _deploys(plans):
        with suppress(UnreadableError):
            if id(step) not in forms:  # a suite has one step for all that are equal
                chain = str(overrides.get("sandbox") or step.sandbox_type or default)
                form = f"{chain} {_spec(step, limits)!r}"
                if form not in answers:
                    answers[form] = await _refusal(chain, step, providers, limits)
                forms[id(step)] = form
            refusal = answers[forms[id(step)]]
            if refusal is not None:
                found.setdefault(refusal, []).append((source, path))
    told = {
        mistaken: tuple(
            Problem(
                f"{why}{and_more(places, 'deploy')}",
                *places[0],
                hint=None if mistaken else "agent-env doctor says what this machine can do",
            )
            for (kind, why), places in found.items()
            if kind is mistaken
        )
        for mistaken in (True, False)
    }
    return Preflight(told[True], (*told[False], *_refused(plans, privileges)))


def _refused(plans: Mapping[str, TaskPlan], granted: frozenset[str]) -> Iterator[Problem]:
    """Containers that want what this user grants to none."""
    for source, path, step in _steps(plans, STARTING):
        with suppress(UnreadableError):
            why = cast("RunDockerContainer", step).request().refusal(granted)
            if why is not None:
                yield Problem(why, source, path, hint=GRANT_HINT)
    for source, path, step in _steps(plans, "deploy_agent"):
        with suppress(UnreadableError):
            agent = cast("DeployAgent", step)
            why = docker_refusal(agent.agent_name, granted) if agent.enable_docker else None
            if why is not None:
                yield Problem(why, source, f"{path}.enable_docker", hint=GRANT_HINT)


def _deploys(plans: Mapping[str, TaskPlan]) -> Iterator[tuple[str, str, DeploySandbox]]:
    for source, path, step in _steps(plans, DEPLOYING):
        yield source, path, cast("DeploySandbox", step)


def _steps(plans: Mapping[str, TaskPlan], type: str) -> Iterator[tuple[str, str, Step]]:
    for source, plan in plans.items():
        for index, step_id in enumerate(plan.graph.order):
            step = plan.steps.get(step_id)
            if step is not None and step.type_name == type:
                yield source, plan.path_of(index), step


async def _refusal(chain: str, step: DeploySandbox, providers: Callable[[str], Provider], limits: Limits) -> tuple[bool, str] | None:
    """Why no provider of the chain can make it, and whether that is a mistake; None when one can."""
    reasons: list[str] = []
    for name in links(chain):
        try:
            said = await _said(name, step, providers, limits)
        except UnsupportedError as error:
            said = [str(error)]
        except UserError as error:  # a name that nobody knows is a mistake, also where another link could serve
            return True, str(error)
        except AgentEnvError as error:
            said = [str(error)]
        if not said:
            return None
        reasons.append(f"{name}: {'; '.join(said)}")
    return False, f"no sandbox can be made for it ({', '.join(reasons)})"


async def _all_here(chain: str, providers: Callable[[str], Provider], limits: Limits) -> bool:
    """Whether every provider of a chain makes its sandboxes on this machine; one that can't be asked was told of already."""
    for name in links(chain):
        try:
            async with deadline(limits.deploy_seconds, f"asking the provider {name!r} where it is"):
                if not (await providers(name).capabilities()).on_this_machine:
                    return False
        except AgentEnvError:
            return False
    return True


async def _said(name: str, step: DeploySandbox, providers: Callable[[str], Provider], limits: Limits) -> Sequence[str]:
    provider = providers(name)
    async with deadline(limits.deploy_seconds, f"asking the provider {name!r} what it can do"):
        capabilities = await provider.capabilities()
    return provider.problems(_spec(step, limits), capabilities)


def _spec(step: DeploySandbox, limits: Limits) -> SandboxSpec:
    step = step.under(limits)
    return SandboxSpec(
        sandbox_id="planned",
        mode=step.sandbox_mode,
        image=step.image,
        cpu=float(step.cpu),
        memory_bytes=step.memory_mb * MIB,
        disk_bytes=int(step.disk_size_gb * GIB),
        processes=limits.sandbox_processes,
        ttl_seconds=float(step.ttl_seconds),
        ports=tuple(step.exposed_ports or ()),
        network=step.network_policy,
    )

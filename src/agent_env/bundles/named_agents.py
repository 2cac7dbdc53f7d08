"""Agents that a call or a task names by an alias, and the default one: written from their installed bundles before anything runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING

from agent_env.bundles.materialising import materialise
from agent_env.bundles.model import KINDS, BundleKind
from agent_env.bundles.single_plans import plan_named, unknown_name
from agent_env.documents.updates import Json
from agent_env.engine.preflight_models import says_so, stored_needs

if TYPE_CHECKING:
    from agent_env.bundles.lookups import PlanStores
    from agent_env.bundles.materialising import WriteStores
    from agent_env.bundles.planned import Write
    from agent_env.engine import TaskPlan
    from agent_env.engine.preflight_models import AgentNeeds
    from agent_env.steps.contract import Step

_DEPLOYING = frozenset({"deploy_agent", "install_agent"})
_FIELD = "a2a_agent_id"


def with_agents(
    plans: Iterable[TaskPlan], overrides: Mapping[str, Json], stores: WriteStores, *, default_id: str | None, dry_run: bool = False
) -> dict[str, Json]:
    """Writes the agents that these tasks will deploy, as far as installed bundles have them.

    Args:
        plans: The tasks.
        overrides: `user_overrides` of their runs, which may name other agents than the tasks do.
        stores: Where they are written.
        default_id: The agent that is meant where nobody names one; None leaves that out.
        dry_run: Write nothing.

    Returns:
        The overrides, with the ids of what was named by an alias.

    Raises:
        NotFoundError: The agent of `user_overrides` is not there, or `BUNDLE:NAME` names a bundle or agent that is not.
        ProblemsError: Everything wrong with an installed bundle's agent.
    """
    written: dict[str, str] = {}
    plans = list(plans)
    refuse_unknown(overrides, stores)

    def id_of(name: str, *, stored_will_do: bool = False) -> str:
        if stored_will_do and stores.documents.get(KINDS[BundleKind.AGENT].collection, name) is not None:
            return name
        if name not in written:
            found = plan_named(BundleKind.AGENT, name, stores)
            if found is not None and not dry_run:
                materialise(found[0], stores)
            written[name] = name if found is None else found[1]
        return written[name]

    made = dict(overrides)
    steps = {step.id: step for plan in plans for step in _deploying(plan)}
    chosen = made.get(_FIELD)
    if isinstance(chosen, str) and chosen:
        made[_FIELD] = id_of(chosen)
    params = {str(id): dict(each or {}) for id, each in (made.get("step_params") or {}).items()}
    for id, step in steps.items():
        own = params.get(id, {}).get(_FIELD)
        named = own or (None if chosen else getattr(step, _FIELD, None))
        if named:
            found = id_of(str(named), stored_will_do=True)
            if found != named:
                params[id] = {**params.get(id, {}), _FIELD: found}
        elif not chosen and default_id is not None:
            id_of(default_id)
    if params:
        made["step_params"] = params
    return made


def needs_of(writes: Iterable[Write], stores: PlanStores) -> AgentNeeds:
    """What agents say of themselves: those that a plan writes, those of installed bundles, and stored ones."""
    own = {write.entry.id: write.entry for write in writes if write.entry.kind is BundleKind.AGENT}

    @cache
    def needs(name: str) -> bool:
        if name not in own and (found := plan_named(BundleKind.AGENT, name, stores)) is not None:
            plan, id = found
            return any(says_so(write.entry.config.get("metadata")) for write in plan.writes if write.entry.id == id)
        return says_so(own[name].config.get("metadata")) if name in own else stored_needs(stores.documents)(name)

    return needs


def refuse_unknown(overrides: Mapping[str, Json], stores: PlanStores) -> None:
    """Whether the agent that a call puts into every task can be had, asked before anything runs.

    Raises:
        NotFoundError: Nobody knows it; the hint has a near name.
    """
    name = overrides.get(_FIELD)
    if not isinstance(name, str) or not name or plan_named(BundleKind.AGENT, name, stores) is not None:
        return
    if stores.documents.get(KINDS[BundleKind.AGENT].collection, name) is None:
        raise unknown_name(BundleKind.AGENT, name, stores)


def without_effect(plans: Iterable[TaskPlan], overrides: Mapping[str, Json]) -> list[str]:
    """A warning where a call names an agent, and none of its tasks deploys one."""
    name = overrides.get(_FIELD)
    if not name or any(next(_deploying(plan), None) is not None for plan in plans):
        return []
    return [f"the agent {name!r} is not used: no step deploys an agent"]


def _deploying(plan: TaskPlan) -> Iterator[Step]:
    return (step for step in plan.steps.values() if step.type_name in _DEPLOYING)

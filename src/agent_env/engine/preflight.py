"""What providers of this machine can't do, asked before anything starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, cast

from agent_env.defaults import GIB, MIB, Limits
from agent_env.documents.updates import Json
from agent_env.engine.options import Providers
from agent_env.engine.plan import TaskPlan
from agent_env.errors import AgentEnvError, Problem
from agent_env.sandboxes.contract import SandboxSpec
from agent_env.waiting import deadline

if TYPE_CHECKING:
    from agent_env.steps.deploy_sandbox import DeploySandbox

DEPLOYING = "deploy_sandbox"


async def sandbox_problems(
    plan: TaskPlan, providers: Providers, *, default: str, overrides: Mapping[str, Json], limits: Limits
) -> list[Problem]:
    """Sandboxes of the task that no provider of their chain can make, with every provider's reasons."""
    found: list[Problem] = []
    for index, step_id in enumerate(plan.graph.order):
        step = plan.steps.get(step_id)
        if step is None or step.type_name != DEPLOYING:
            continue
        box = cast("DeploySandbox", step)
        chain = str(overrides.get("sandbox") or box.sandbox_type or default)
        reasons = [await _reasons(name.strip(), box, providers, limits) for name in chain.split(",") if name.strip()]
        if reasons and all(reasons):
            message = f"sandbox {box.sandbox_name!r} can't be made: {'; '.join(reason for each in reasons for reason in each)}"
            found.append(Problem(message, file=plan.source, path=f"$[{index}]", hint="agent-env doctor says what each provider can do"))
    return found


async def _reasons(name: str, step: DeploySandbox, providers: Providers, limits: Limits) -> Sequence[str]:
    try:
        provider = providers(name)
        async with deadline(limits.deploy_seconds, f"asking the provider {name!r} what it can do"):
            capabilities = await provider.capabilities()
    except AgentEnvError as error:
        return [f"{name}: {error}"]
    spec = SandboxSpec(
        sandbox_id=f"{name}-planned",
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
    return [f"{name}: {reason}" for reason in provider.problems(spec, capabilities)]

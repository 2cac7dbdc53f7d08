"""Whether this machine can deploy what the tasks ask for, found out before anything is written or run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from agent_env.bundles.plan import BundlePlan
from agent_env.defaults import GIB, MIB
from agent_env.documents.updates import Json
from agent_env.errors import AgentEnvError, Problem, UserError
from agent_env.sandboxes.contract import SandboxSpec
from agent_env.steps.contract import Step

if TYPE_CHECKING:
    from agent_env.sandboxes.contract import Provider

_FIELDS = ("sandbox_mode", "image", "cpu", "memory_mb", "disk_size_gb", "exposed_ports", "network_policy")


async def preflight(plan: BundlePlan, provider: Callable[[str], Provider], default: str, overrides: Mapping[str, Json]) -> list[Problem]:
    """Problems of deploys that no provider of their chain can make; equal deploys are asked about once and told once.

    Args:
        plan: What is to be run.
        provider: Name → provider.
        default: The chain of steps that name none.
        overrides: `user_overrides`; their `sandbox` beats what steps say.
    """
    answers: dict[str, str | None] = {}
    found: dict[str, list[tuple[str, str]]] = {}
    for name, index, step in _deploys(plan):
        chain = str(overrides.get("sandbox") or getattr(step, "sandbox_type", None) or default)
        form = f"{chain} {[getattr(step, field, None) for field in _FIELDS]!r}"
        if form not in answers:
            answers[form] = await _refusal(chain, step, provider)
        refusal = answers[form]
        if refusal is not None:
            found.setdefault(refusal, []).append((name, f"$[{index}]"))
    return [
        Problem(f"{refusal}{f', and {len(places) - 1} more deploys like it' if len(places) > 1 else ''}", *places[0])
        for refusal, places in found.items()
    ]


def _deploys(plan: BundlePlan) -> Iterator[tuple[str, int, Step]]:
    for task in plan.tasks:
        for index, step in enumerate(task.plan.steps.values()):
            if step.type_name == "deploy_sandbox":
                yield task.name, index, step


async def _refusal(chain: str, step: Step, provider: Callable[[str], Provider]) -> str | None:
    """Why no provider of the chain can make it, or None."""
    reasons: list[str] = []
    for name in (link.strip() for link in chain.split(",")):
        try:
            candidate = provider(name)
            said = candidate.problems(_spec(step), await candidate.capabilities())
        except UserError as error:  # a name that nobody knows is a mistake, also where another link could serve
            return str(error)
        except AgentEnvError as error:
            said = [str(error)]
        if not said:
            return None
        reasons.append(f"{name}: {'; '.join(said)}")
    return f"no sandbox can be made for it ({', '.join(reasons)})"


def _spec(step: Step) -> SandboxSpec:
    fields = {name: getattr(step, name, None) for name in _FIELDS}
    return SandboxSpec(
        sandbox_id="preflight",
        mode=fields["sandbox_mode"] or "vm",
        image=fields["image"],
        cpu=fields["cpu"] or 1.0,
        memory_bytes=(fields["memory_mb"] or 0) * MIB,
        disk_bytes=int((fields["disk_size_gb"] or 0) * GIB),
        ports=tuple(fields["exposed_ports"] or ()),
        network=fields["network_policy"],
    )

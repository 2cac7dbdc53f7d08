"""`agent-env agent validate`: whether an agent does what every agent must."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import click

from agent_env.cli.agents import Deployment, at_hand, for_a_while, is_address, variables_of
from agent_env.cli.checks import gate_named, show_checks, summed_up, tell
from agent_env.cli.completing import AGENT_TARGETS, PROVIDERS
from agent_env.cli.frame import Command, FiniteRange
from agent_env.cli.output import json_option, line, write_json
from agent_env.cli.session import opened_engine, run_async
from agent_env.errors import UsageError

if TYPE_CHECKING:
    from agent_env.agents.conformance import Check, Report, Subject
    from agent_env.agents.live import RecordedAgent
    from agent_env.engine import Engine


@click.command(cls=Command)
@click.argument("target", metavar="RUN[:AGENT]|URL|WHAT", required=False, shell_complete=AGENT_TARGETS)
@click.option("--id", "id", shell_complete=AGENT_TARGETS, help="A stored agent's id, in place of TARGET.")
@click.option("--write", is_flag=True, help="With RUN or URL: also change its settings. Of WHAT, each such check gets an agent of its own.")
@click.option("--require", "required", multiple=True, metavar="GATE", help="The gates that count, instead of the usual ones (repeatable).")
@click.option("--check", "patterns", multiple=True, metavar="CHECK", help="Only these: an id, a gate, or a glob over ids (repeatable).")
@click.option("--env-var", "env_vars", multiple=True, metavar="NAME=VALUE", help="With WHAT: a variable (repeatable).")
@click.option("--sandbox", shell_complete=PROVIDERS, help="With WHAT: the provider of sandboxes, or a comma-separated chain.")
@click.option("--prompt-seconds", type=FiniteRange(min=1), default=60.0, show_default=True, help="Limit of one prompt.")
@click.option("--list", "listing", is_flag=True, help="List the checks and run none.")
@json_option
def validate(
    *,
    target: str | None,
    id: str | None,
    required: tuple[str, ...],
    patterns: tuple[str, ...],
    listing: bool,
    as_json: bool,
    **options: Any,
) -> int:
    """Run the conformance kit of agents against TARGET, and say with one verdict whether it passes.

    TARGET is RUN[:AGENT] of a run, the URL of an agent anywhere, or WHAT as for `agent deploy`, which is deployed for the check and taken
    down. No model is needed but for the gate `model`, which counts only where --require names it. Exit code 1 when a gate that counts
    fails.
    """
    from agent_env.agents.conformance import CHECKS, REQUIRED, Gate
    from agent_env.conformance import matches

    gates = [gate_named(Gate, word) for word in required] or list(REQUIRED)
    chosen = [each for each in CHECKS if not patterns or any(matches(each, pattern) for pattern in patterns)]
    if not patterns and Gate.MODEL not in gates:
        chosen = [each for each in chosen if each.gate is not Gate.MODEL]
    if listing:
        show_checks(chosen if patterns else CHECKS, gates, as_json=as_json)
        return 0
    if (target is None) is (id is None):
        said = "say what is to be checked" if target is None else "what is to be checked is given twice"
        raise UsageError(said, hint="a run, the URL of an agent, or what `agent deploy` takes")
    target = target or id or ""
    deployment = Deployment(target, {"env_vars": variables_of(options["env_vars"])}, sandbox=options["sandbox"])

    async def work() -> Report:
        async with opened_engine() as engine:
            return await _checked(engine, target, deployment, chosen, gates, quiet=as_json, **options)

    report = run_async(work)
    if as_json:
        write_json({"target": target, **report.to_json()})
        return 0 if report.passed else 1
    line(summed_up(report))
    line("passed" if report.passed else "failed")
    return 0 if report.passed else 1


async def _checked(
    engine: Engine,
    target: str,
    deployment: Deployment,
    checks: Sequence[Check],
    gates: Sequence[Any],
    *,
    quiet: bool,
    write: bool,
    prompt_seconds: float,
    **_: Any,
) -> Report:
    from agent_env.agents.conformance import Report, run_checks

    verdicts = []
    async with _subject(engine, target, deployment, write=write, prompt_seconds=prompt_seconds) as subject:
        async for verdict in run_checks(subject, checks):
            verdicts.append(verdict)
            if not quiet:
                tell(verdict)
    return Report(verdicts, gates)


@asynccontextmanager
async def _subject(engine: Engine, target: str, deployment: Deployment, *, write: bool, prompt_seconds: float) -> AsyncIterator[Subject]:
    from agent_env.agents.conformance import Subject

    ours = not is_address(target) and not target.startswith("run-")

    @asynccontextmanager
    async def another() -> AsyncIterator[RecordedAgent]:
        async with for_a_while(engine, deployment, "check") as agent:
            yield _recorded(agent)

    async with at_hand(engine, target, deployment, "check") as agent:
        live = _recorded(agent)
        has_token = live.record.sandbox_id is not None and bool((await live.card()).security_schemes)
        yield Subject(live, another if ours else None, may_write=write, has_token=has_token, prompt_seconds=prompt_seconds)


def _recorded(agent: Any) -> RecordedAgent:
    """Checks look behind the contract: at the wire itself."""
    from agent_env.agents.live import RecordedAgent
    from agent_env.errors import InternalError

    if not isinstance(agent, RecordedAgent):
        raise InternalError("a deployed agent is not one that checks can look into")
    return agent

"""`agent-env env check`: whether a server does what every environment's server must."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import click

from agent_env.cli.checks import gate_named, show_checks, summed_up, tell
from agent_env.cli.completing import ENV_TARGETS
from agent_env.cli.environments import live_environment, written_environment
from agent_env.cli.frame import Command
from agent_env.cli.output import json_option, line, note, write_json
from agent_env.cli.session import configuration, opened_engine, run_async
from agent_env.errors import TaskError, UsageError

if TYPE_CHECKING:
    from agent_env.environments import LiveEnvironment
    from agent_env.environments.conformance import Check, Report, Subject


@click.command(cls=Command)
@click.argument("target", metavar="TARGET", required=False, shell_complete=ENV_TARGETS)
@click.option("--name", help="With a URL: the name that the card must have.")
@click.option("--write", is_flag=True, help="Also replace its data, and put it back. Always done to what is brought up for the check.")
@click.option("--require", "required", multiple=True, metavar="GATE", help="The gates that count, instead of the usual ones (repeatable).")
@click.option("--check", "patterns", multiple=True, metavar="CHECK", help="Only these: an id, a gate, or a glob over ids (repeatable).")
@click.option("--list", "listing", is_flag=True, help="List the checks and run none.")
@json_option
def check(
    *, target: str | None, name: str | None, write: bool, required: tuple[str, ...], patterns: tuple[str, ...], listing: bool, as_json: bool
) -> int:
    """Run the conformance kit of environments against TARGET, and say with one verdict whether it passes.

    TARGET is the URL of a server anywhere, RUN[:ENV] of a run, or WHAT as for `env deploy`, which is brought up for the check and taken
    down. Behind a gateway each server is checked, and the gateway itself. Exit code 1 when a gate that counts fails.
    """
    from agent_env.conformance import matches
    from agent_env.environments.conformance import CHECKS, REQUIRED, Gate

    gates = [gate_named(Gate, word) for word in required] or list(REQUIRED)
    checks = [each for each in CHECKS if not patterns or any(matches(each, pattern) for pattern in patterns)]
    if not checks:
        raise UsageError(f"no check matches {', '.join(patterns)}", hint=f"a gate: {', '.join(Gate)}")
    if listing:
        show_checks(checks, gates, as_json=as_json)
        return 0
    if target is None:
        raise UsageError("say what is to be checked", hint="the URL of a server, a run, or what `env deploy` takes")
    reports = run_async(lambda: _checked(target, name, checks, gates, write=write, quiet=as_json))
    passed = all(report.passed for report in reports.values())
    if as_json:
        write_json({"target": target, "passed": passed, "servers": {server: report.to_json() for server, report in reports.items()}})
        return 0 if passed else 1
    for server, report in reports.items():
        line(f"{server}: {summed_up(report)}")
    line("passed" if passed else "failed")
    return 0 if passed else 1


async def _checked(
    target: str, name: str | None, checks: Sequence[Check], gates: Sequence[Any], *, write: bool, quiet: bool
) -> dict[str, Report]:
    from agent_env.environments.conformance import Report, run_checks

    reports: dict[str, Report] = {}
    async with _subjects(target, name, write=write) as subjects:
        for server, subject in subjects.items():
            verdicts = []
            if not quiet and len(subjects) > 1:
                line(f"{server}:")
            async for verdict in run_checks(subject, checks):
                verdicts.append(verdict)
                if not quiet:
                    tell(verdict)
            reports[server] = Report(verdicts, gates)
    return reports


@asynccontextmanager
async def _subjects(target: str, name: str | None, *, write: bool) -> AsyncIterator[dict[str, Subject]]:
    if target.startswith(("http://", "https://")):
        async with _at_url(target, name, write=write) as found:
            yield found
    elif target.startswith("run-"):
        async with live_environment(target) as live:
            yield _of(live, write=write)
    else:
        async with _brought_up(target) as live:
            yield _of(live, write=True)


@asynccontextmanager
async def _at_url(url: str, name: str | None, *, write: bool) -> AsyncIterator[dict[str, Subject]]:
    from agent_env.environments.client import EnvironmentClient
    from agent_env.environments.conformance import Subject
    from agent_env.environments.http import new_client

    limits = configuration().limits
    client = EnvironmentClient(url, http=new_client(None, limits), name=name or "the server", limits=limits)
    try:
        yield {name or url: Subject(client, name, may_write=write)}
    finally:
        await client.aclose()


def _of(live: LiveEnvironment, *, write: bool) -> dict[str, Subject]:
    from agent_env.environments.conformance import Subject

    found = {key: Subject(live.client(key), part.name, may_write=write) for key, part in live.parts.items() if part.kind == "mcp_server"}
    if live.has_gateway:
        found["gateway"] = Subject(live.control, is_gateway=True)
    return found


@asynccontextmanager
async def _brought_up(what: str) -> AsyncIterator[LiveEnvironment]:
    """An environment for this check alone."""
    from agent_env.engine import RunOptions, plan_document

    async with opened_engine() as engine:
        env_id = await written_environment(engine, what)
        steps = [{"id": "env", "type": "deploy_env", "env_id": env_id}]
        plan = plan_document(steps, source="env check", task_id=f"{env_id}/check", artifacts=engine.stores.artifacts)
        run_id = await engine.submit(plan, RunOptions(keep=True))
        note(f"bringing up {env_id} (run {run_id})")
        try:
            outcome = await engine.execute(run_id)
            if outcome.status != "completed":
                raise TaskError(str((outcome.error or {}).get("message") or "it did not come up"), concerns=env_id)
            async with engine.environment_of_run(run_id) as live:
                yield live
        finally:
            await engine.teardown(run_id)

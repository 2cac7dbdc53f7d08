"""`agent-env provider`: which sandbox providers there are, what they can do, and whether one does what every provider must."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agent_env.cli.completing import PROVIDERS
from agent_env.cli.frame import Group
from agent_env.cli.output import json_option, line, table, write_json
from agent_env.cli.session import configuration, run_async
from agent_env.errors import AgentEnvError, UsageError

if TYPE_CHECKING:
    from agent_env.config import Config
    from agent_env.sandboxes.conformance import Case, Subject, Verdict


@click.group(cls=Group)
def provider() -> None:
    """Show and check the providers of sandboxes."""


@provider.command("list")
@json_option
def list_(as_json: bool) -> None:
    """List the providers, and what each can do here.

    One that can't be used says why; it does not keep the others from being shown.
    """
    config = configuration()
    rows = run_async(lambda: _rows(config))
    if as_json:
        write_json({"providers": rows})
        return
    table(
        ("NAME", "SHAPE", "MODES", "NETWORK", "PORTS", "NOTE"),
        [
            (
                row["name"],
                row.get("shape"),
                _words(row.get("modes")),
                _words(row.get("network")),
                _yes(row.get("publish")),
                row.get("error"),
            )
            for row in rows
        ],
    )


@provider.command()
@click.argument("name", shell_complete=PROVIDERS)
@click.option(
    "--case", "patterns", multiple=True, metavar="CASE", help="Only these cases: an id, an area, or a glob over ids (repeatable)."
)
@click.option("--mode", type=click.Choice(["vm", "container"]), help="The mode to check; by default what the provider's shape says.")
@click.option("--image", metavar="IMAGE", help="What containers are made of.")
@click.option("--jobs", type=click.IntRange(min=1), default=1, show_default=True, help="Cases at once.")
@click.option("--list", "listing", is_flag=True, help="List the cases and run none.")
@json_option
def check(*, name: str, patterns: tuple[str, ...], mode: str | None, image: str | None, jobs: int, listing: bool, as_json: bool) -> int:
    """Run the conformance kit against provider NAME. It makes real sandboxes and removes them.

    A case that needs a capability which the provider does not declare is skipped, with its name. Exit code 1 when a case fails.
    """
    from agent_env.sandboxes.conformance import CASES, chosen, subject_of

    cases = chosen(CASES, patterns)
    if listing:
        _show_cases(cases, as_json)
        return 0
    with tempfile.TemporaryDirectory(prefix="agent-env-check-") as folder:
        config = configuration()
        subject = subject_of(name, config, Path(folder) / "state", mode=mode, image=image)
        verdicts = run_async(lambda: _check(subject, config, cases, jobs=jobs, quiet=as_json))
    counts = {result: sum(1 for verdict in verdicts if verdict.result == result) for result in ("passed", "failed", "skipped")}
    if as_json:
        write_json({"provider": name, "ok": not counts["failed"], **counts, "cases": [verdict.to_json() for verdict in verdicts]})
    else:
        line(f"{name}: " + ", ".join(f"{count} {result}" for result, count in counts.items()))
    return 1 if counts["failed"] else 0


def _show_cases(cases: Sequence[Case], as_json: bool) -> None:
    if as_json:
        write_json(
            {"cases": [{"id": case.id, "title": case.title, "about": list(case.about), "needs": sorted(case.needs)} for case in cases]}
        )
    else:
        table(
            ("CASE", "ABOUT", "NEEDS", "TITLE"), [(case.id, _words(case.about), _words(sorted(case.needs)), case.title) for case in cases]
        )


async def _check(subject: Subject, config: Config, cases: Sequence[Case], *, jobs: int, quiet: bool) -> list[Verdict]:
    from agent_env.sandboxes.conformance import Bench, run_cases

    bench = Bench(subject, limits=config.limits)
    async with bench.turn():
        if await bench.mode() == "container" and subject.image is None:
            raise UsageError(f"the sandboxes of {subject.name!r} are made of an image, and none is named", hint="add --image IMAGE")
    verdicts = []
    async for verdict in run_cases(bench, cases, jobs=jobs):
        verdicts.append(verdict)
        if not quiet:
            line(f"{verdict.result:8}{verdict.seconds:7.2f} s  {verdict.case.id}")
            if verdict.detail:
                line(f"{'':19}{verdict.detail}")
    order = {case.id: at for at, case in enumerate(cases)}
    return sorted(verdicts, key=lambda verdict: order[verdict.case.id])


async def _rows(config: Config) -> list[dict[str, Any]]:
    from agent_env.sandboxes.registry import names

    known = sorted({*names(), *config.sandbox.providers})
    return [await _row(name, config) for name in known]


async def _row(name: str, config: Config) -> dict[str, Any]:
    from agent_env.engine.opening import providers_of
    from agent_env.waiting import deadline

    try:
        found = providers_of(config)(name)
        async with deadline(config.limits.deploy_seconds, f"asking the provider {name!r} what it can do"):
            told = await found.capabilities()
        await found.aclose()
    except AgentEnvError as error:
        return {"name": name, "error": str(error)}
    return {
        "name": name,
        "shape": told.shape.value,
        "modes": sorted(told.modes),
        "network": sorted(told.egress),
        "publish": told.publish,
        "limits": {limit: level.value for limit, level in told.limits.items()},
        "capabilities": sorted(told.declared()),
        "notes": list(told.notes),
        "error": None,
    }


def _yes(value: bool | None) -> str | None:
    return None if value is None else "yes" if value else "no"


def _words(words: Sequence[str] | None) -> str:
    return ", ".join(words or ())

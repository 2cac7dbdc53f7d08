"""`agent-env resume RUN`: going on at the first unfinished step, in the same sandboxes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from agent_env.cli.frame import Command
from agent_env.cli.output import json_option, write_json
from agent_env.cli.session import find_run, opened_engine, run_async
from agent_env.errors import UsageError

if TYPE_CHECKING:
    from agent_env.engine import RunOutcome


@click.command(cls=Command)
@click.argument("run")
@click.option("--redeploy", is_flag=True, help="Deploy again what is gone (after a reboot), and repeat the steps that depend on it.")
@click.option(
    "--decide",
    metavar="STEP=repeat|done",
    multiple=True,
    help="What to do about a step that was cut and can't go on by itself. Repeatable.",
)
@click.option("-q", "--quiet", is_flag=True, help="No progress, only the last line.")
@json_option
def resume(run: str, redeploy: bool, decide: tuple[str, ...], quiet: bool, as_json: bool) -> int:
    """Go on with an interrupted run at its first unfinished step, in the same sandboxes.

    RUN is a run's id or its first letters. Finished steps never run again.
    """
    from agent_env.cli.progress import watching
    from agent_env.cli.results import Result, Verdict, show

    choices = dict(map(_choice, decide))
    with watching(quiet=quiet or as_json, total=1) as watcher:

        async def work() -> RunOutcome:
            async with opened_engine() as engine:
                run_id = find_run(engine.stores, run).run_id
                return await engine.resume(run_id, redeploy=redeploy, choices=choices, observer=watcher)

        outcome = run_async(work)
    verdict = Verdict([Result.of(outcome.task_id, outcome)])
    if as_json:
        write_json(verdict.to_json())
    else:
        show(verdict, quiet=quiet)
    return 0 if verdict.ok else 1


def _choice(text: str) -> tuple[str, str]:
    step, equals, choice = text.rpartition("=")
    if not equals or choice not in {"repeat", "done"}:
        raise UsageError(f"--decide {text!r} is not STEP=repeat or STEP=done")
    return step, choice

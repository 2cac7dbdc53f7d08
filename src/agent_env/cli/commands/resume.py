"""`agent-env resume RUN`: going on at the first unfinished step, in the same sandboxes."""

from __future__ import annotations

import click

from agent_env.cli.frame import Command
from agent_env.cli.output import json_option
from agent_env.cli.session import find_run, opened_engine
from agent_env.errors import UsageError


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
    from agent_env.cli.batch import Presentation, conclude, interrupted_by
    from agent_env.cli.progress import watching
    from agent_env.cli.results import Result

    choices = dict(map(_choice, decide))
    results: list[Result] = []
    with watching(quiet=quiet or as_json) as watcher:

        async def work() -> None:
            async with opened_engine() as engine:
                row = find_run(engine.stores, run)
                watcher.begin(row.run_id, row.bundle_path or row.task_id)
                outcome = await engine.resume(row.run_id, redeploy=redeploy, choices=choices, observer=watcher)
                results.append(Result.of(row.bundle_path or row.task_id, outcome))

        interruption = interrupted_by(work)
    return conclude(results, watcher, Presentation(as_json, quiet), interruption)


def _choice(text: str) -> tuple[str, str]:
    step, equals, choice = text.rpartition("=")
    if not equals or choice not in {"repeat", "done"}:
        raise UsageError(f"--decide {text!r} is not STEP=repeat or STEP=done")
    return step, choice

"""`agent-env resume RUN`: going on at the first unfinished step, in the same sandboxes where they are there."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import click

from agent_env.cli.completing import DECISIONS, UNFINISHED_RUNS
from agent_env.cli.frame import Command
from agent_env.cli.output import json_option, moment, note
from agent_env.cli.session import find_run, opened_engine
from agent_env.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from agent_env.stores import RunRow


@click.command(cls=Command)
@click.argument("run", shell_complete=UNFINISHED_RUNS)
@click.option("--redeploy", is_flag=True, help="Deploy again what was lost (after a reboot), and repeat the steps that depend on it.")
@click.option(
    "--decide",
    metavar="STEP=repeat|done",
    multiple=True,
    shell_complete=DECISIONS,
    help="What to do about a step that was cut and can't go on by itself. Repeatable.",
)
@click.option("--keep", is_flag=True, help="Leave the sandboxes up when the run has ended.")
@click.option("--pause-on-failure", is_flag=True, help="Leave the sandboxes up if the run fails.")
@click.option("-q", "--quiet", is_flag=True, help="No progress: only the last line, and why a run failed.")
@json_option
def resume(*, run: str, redeploy: bool, decide: tuple[str, ...], keep: bool, pause_on_failure: bool, quiet: bool, as_json: bool) -> int:
    """Go on with an interrupted run at its first unfinished step, in the same sandboxes.

    RUN is a run's id or its first letters, with or without `run-`. Finished steps do not run again, unless their sandbox is gone: a run
    that was cancelled or failed had its sandboxes removed (unless they were kept), so what was done in them is done again in new ones,
    as `run --resume` does. Sandboxes that were lost otherwise are made again with --redeploy only. Of a run that is finished the scores
    are shown.
    """
    import asyncio

    from agent_env.bundles.sources import changed_since
    from agent_env.bundles.verdict import Result
    from agent_env.cli.batch import Agenda, Presentation, conclude, cut_short_by
    from agent_env.cli.progress import watching

    choices = dict(map(_choice, decide))
    agenda = Agenda()
    with watching(quiet=quiet or as_json) as watcher:

        async def work() -> None:
            async with opened_engine() as engine:
                row = find_run(engine.stores, run)
                if row.status == "completed" and not quiet:
                    finished(row)
                elif not quiet and (changed := await asyncio.to_thread(changed_since, row, engine.stores)) is not None:
                    note(_changed(row, changed))
                agenda.group_id = row.group_id
                watcher.begin(row.run_id, row.bundle_path or row.task_id)
                outcome = await engine.resume(
                    row.run_id, redeploy=redeploy, keep=keep, pause_on_failure=pause_on_failure, choices=choices, observer=watcher
                )
                agenda.results.append(Result.of(row.bundle_path or row.task_id, outcome))
                if row.status != "completed":
                    agenda.end(outcome)

        cut = cut_short_by(work)
    return conclude(agenda, watcher, Presentation(as_json, quiet), cut)


def finished(row: RunRow) -> None:
    """Says that there is nothing to go on with."""
    ended = f" on {moment(row.finished_at)} UTC" if row.finished_at else ""
    note(f"run {row.run_id} is finished: it was completed{ended}, and nothing is done again")


def _changed(row: RunRow, source: Path) -> str:
    """Says that what the user may have mended meanwhile is not what goes on."""
    what = f"{row.bundle_path}, or what it uses," if row.bundle_path else "the task"
    now = f"agent-env run {shlex.quote(str(source))} begins with what is there now"
    return f"{what} changed in {source} since, and run {row.run_id} goes on with what it began with ({now})"


def _choice(text: str) -> tuple[str, str]:
    step, equals, choice = text.rpartition("=")
    if not equals or choice not in {"repeat", "done"}:
        raise UsageError(f"--decide {text!r} is not STEP=repeat or STEP=done")
    return step, choice

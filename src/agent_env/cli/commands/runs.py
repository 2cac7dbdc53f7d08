"""`agent-env runs`: looking back at runs, following, stopping, comparing and removing them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from agent_env.cli.commands.resume import resume
from agent_env.cli.completing import GROUPS, RUNS, RUNS_AND_GROUPS, STEPS, TASK_IDS
from agent_env.cli.frame import FilePath, Group, same_command
from agent_env.cli.output import json_option, line, moment, note, table, write_json
from agent_env.cli.results import score_text, seconds_text
from agent_env.cli.run_view import brief, print_event, print_events, show_elsewhere, show_run
from agent_env.cli.session import configuration, context_of, find_run, opened_engine, opened_stores, run_async
from agent_env.diagnostics import each
from agent_env.documents.scoring import score_of
from agent_env.errors import NotFoundError, UsageError

if TYPE_CHECKING:
    from agent_env.engine import TeardownReport
    from agent_env.stores import RunRow, StoredRun


_STATUSES = ("queued", "running", "interrupted", "completed", "failed", "cancelled")


@click.group(cls=Group)
def runs() -> None:
    """List, show, follow, cancel, compare and remove runs.

    RUN is a run's id or its first letters, with or without `run-`.
    """


@runs.command("list")
@click.option("--task", shell_complete=TASK_IDS, help="Only runs of this task id.")
@click.option("--status", type=click.Choice(_STATUSES), help="Only runs with this status; `interrupted`: those whose process is gone.")
@click.option("--group", shell_complete=GROUPS, help="Only runs of one command (`group_id`).")
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="At most this many.")
@click.option("--before", metavar="RUN", shell_complete=RUNS, help="Only runs older than this one: the next page.")
@json_option
def list_(*, task: str | None, status: Any, group: str | None, limit: int, before: str | None, as_json: bool) -> None:
    """List stored runs, newest first."""
    from agent_env.cli.rows import interrupted, interrupted_runs, run_json, state

    with opened_stores() as stores:
        older = find_run(stores, before).run_id if before else None
        group = group and (stores.journal.find_group(group) or group)
        if status == "interrupted":
            found = interrupted_runs(stores.journal, task=task, group=group, before=older, limit=limit + 1)
        else:
            found = stores.journal.list_runs(task=task, status=status, group=group, limit=limit + 1, before=older)
        found, further = found[:limit], len(found) > limit
        stopped = {run.run_id for run in found if interrupted(stores.journal, run)}
    if as_json:
        write_json({"runs": [run_json(run, stopped=run.run_id in stopped) for run in found]})
        return
    if not found:
        if task:
            note("no such runs; --task takes a task's whole id, as the column TASK of the list shows it")
        else:
            note("no such runs" if status or group or before else "no runs yet")
        return
    rows = [
        (
            run.run_id,
            run.task_id,
            state(run, stopped=run.run_id in stopped),
            score_text(run.scores, score_of(run)),
            seconds_text(run.duration_seconds),
            moment(run.created_at),
        )
        for run in found
    ]
    table(("RUN", "TASK", "RESULT", "SCORE", "TIME", "CREATED (UTC)"), rows, right=(4,))
    if further:
        note(f"more: {same_command(before=found[-1].run_id)}")


@runs.command()
@click.argument("run", shell_complete=RUNS)
@click.option("--context", "with_context", is_flag=True, help="Print the run's context JSON, as --context-json reads it, and nothing else.")
@json_option
def show(run: str, with_context: bool, as_json: bool) -> None:
    """Show one run: its steps, scores, places, and the versions of what it used."""
    from agent_env.cli.following import summaries
    from agent_env.cli.rows import details_json, interrupted

    with opened_stores() as stores:
        stored = stores.journal.load(find_run(stores, run).run_id)
        stopped = interrupted(stores.journal, stored.run)
        said = summaries(stores.journal, stored.run.run_id)
        if with_context:
            write_json(context_of(stored))
        elif as_json:
            write_json(details_json(stored, stopped=stopped, said=said))
        else:
            waiting = [review.step_id for review in stores.journal.pending_reviews() if review.run_id == stored.run.run_id]
            show_run(stored, stopped=stopped, said=said, waiting=waiting)


@runs.command()
@click.argument("run", shell_complete=RUNS)
@click.option("--prompt", metavar="ID", shell_complete=STEPS, help="Only this prompt, by its id or its step's.")
@click.option("--full", is_flag=True, help="Cut nothing, however long it is.")
@click.option("--otlp", "traces", is_flag=True, help="As OpenTelemetry traces: one document of OTLP in JSON, as collectors take it.")
@click.option("-f", "--follow", is_flag=True, help="What agents tell while they work, a JSON object a line, until the run is over.")
@json_option
def trajectory(*, run: str, prompt: str | None, full: bool, traces: bool, follow: bool, as_json: bool) -> None:
    """Show what agents did in a run: what was asked, each call of a tool with its result, and the answer."""
    from agent_env.agents.recorded import recorded_prompts
    from agent_env.cli.traces import follow_agents, traces_of
    from agent_env.cli.trajectories import show_prompts

    if follow:
        run_async(lambda: follow_agents(run))
        return
    with opened_stores() as stores:
        stored = stores.journal.load(find_run(stores, run).run_id)
        found = recorded_prompts(context_of(stored), stores.objects, only=prompt)
        if prompt is not None and not found:
            there = [str(record.get("prompt_id")) for record in context_of(stored).get("prompt_responses") or ()]
            hint = f"it has {', '.join(there)}" if there else "no agent was asked in it"
            raise NotFoundError(f"{stored.run.run_id} has no prompt {prompt!r}", concerns=prompt, hint=hint)
        if traces:
            write_json(traces_of(stored.run, context_of(stored), stores.objects, only=prompt))
            return
    if as_json:
        write_json({"run_id": stored.run.run_id, "prompts": [each.to_json() for each in found]})
    elif not found:
        note(f"no agent was asked in {stored.run.run_id}")
    else:
        show_prompts(found, full=full)


@runs.command()
@click.argument("run", shell_complete=RUNS)
@click.option("-f", "--follow", is_flag=True, help="Go on with what happens now, until the run is over.")
@click.option("--after", type=click.IntRange(min=0), default=0, help="Only events after this number.")
@click.option("--step", "steps", metavar="ID", multiple=True, shell_complete=STEPS, help="Only what happened in this step. Repeatable.")
@json_option
def logs(run: str, follow: bool, after: int, steps: tuple[str, ...], as_json: bool) -> None:
    """Print a run's events, and what its scripts printed. With --json: one object, or with --follow one object a line."""
    from agent_env.cli.following import follow_events, stored_events
    from agent_env.cli.rows import event_json, refuse_unknown_steps, with_printed

    config = configuration()
    with opened_stores(config) as stores:
        run_id = find_run(stores, run).run_id
        if steps:
            refuse_unknown_steps(stores.journal.load(run_id), steps)

        def wanted(step_id: str | None) -> bool:
            return not steps or step_id in steps

        def stored(after: int) -> Iterator[dict[str, Any]]:
            found = (event for event in stored_events(stores.journal, run_id, after) if wanted(event.step_id))
            return (with_printed(event_json(event), stores.journal) for event in found)

        def show(event: dict[str, Any]) -> None:
            if wanted(event["step_id"]):
                print_event(with_printed(event, stores.journal), as_json=as_json)

        if as_json and not follow:
            write_json({"run_id": run_id, "events": list(stored(after))})
            return
        seen = print_events(stored(after), as_json=as_json, after=after)
        if follow:
            seen = run_async(lambda: follow_events(config, run_id, after=seen, show=show, is_owned=lambda: stores.journal.is_owned(run_id)))
            # It may have ended before we listened, or its process in the middle of telling.
            print_events(stored(seen), as_json=as_json, after=seen)


runs.add_command(resume)


@runs.command()
@click.argument("run", shell_complete=RUNS)
@json_option
def cancel(run: str, as_json: bool) -> None:
    """Stop a run: its steps are cancelled and its sandboxes removed."""

    async def work() -> tuple[str, bool]:
        async with opened_engine() as engine:
            run_id = find_run(engine.stores, run).run_id
            return run_id, await engine.cancel(run_id)

    run_id, done = run_async(work)
    if as_json:
        write_json({"run_id": run_id, "cancelled": done})
    else:
        line(f"{run_id}: {'cancelled' if done else 'had ended before'}")


@runs.command()
@click.argument("run", required=False, shell_complete=RUNS)
@click.option(
    "--context-json", type=FilePath(dir_okay=False, path_type=Path), help="Take the sandboxes from this context file, known here or not."
)
@json_option
def teardown(run: str | None, context_json: Path | None, as_json: bool) -> int:
    """Remove what a run left behind: sandboxes, containers, work folders. Doing it twice is no error."""
    if (run is None) == (context_json is None):
        raise UsageError("name a run, or give --context-json FILE", hint="agent-env runs teardown --help")

    async def work() -> tuple[TeardownReport, str]:
        async with opened_engine() as engine:
            if context_json is not None:
                from agent_env.cli.files import read_context_file

                return await engine.teardown_context(read_context_file(context_json)), "RUN"
            run_id = find_run(engine.stores, str(run)).run_id
            return await engine.teardown(run_id), run_id

    report, run_id = run_async(work)
    if as_json:
        write_json(report.to_json())
    else:
        show_report(report, run_id)
    return 0 if report.clean else 1


@runs.command()
@click.argument("left", metavar="RUN|GROUP|RESULTS", shell_complete=RUNS_AND_GROUPS)
@click.argument("right", metavar="RUN|GROUP|RESULTS", shell_complete=RUNS_AND_GROUPS)
@json_option
def diff(left: str, right: str, as_json: bool) -> None:
    """Compare two runs: results, steps, options, models, seeds, and the versions of what they used; or the runs of two commands.

    GROUP is the `group_id` that `run --json` and `runs show` tell; RESULTS, what `run --output` wrote, tells it too. Of groups, each task's
    passed runs and mean score are compared, as the commands themselves counted them; behind a mean stands its standard error.
    """
    from agent_env.cli.comparing import compared_run, named_group, runs_of_group

    left, right = named_group(left), named_group(right)
    with opened_stores() as stores:
        groups = [runs_of_group(stores.journal, name) for name in (left, right)]
        if not any(groups):
            one, other = (stores.journal.load(row.run_id) for row in each(partial(compared_run, stores), (left, right)))
    if all(groups):
        _diff_groups(left, right, groups, as_json=as_json)
    elif any(groups):
        alone = right if groups[0] else left
        raise UsageError(
            f"{alone!r} is no group of runs, and a run can't be compared with a group", hint="agent-env runs show RUN tells its group"
        )
    else:
        _diff_runs(one, other, as_json=as_json)


def _diff_groups(left: str, right: str, groups: Sequence[Sequence[RunRow]], *, as_json: bool) -> None:
    from agent_env.cli.comparing import compared, show_compared

    found = compared(*groups)
    if as_json:
        write_json({"left": left, "right": right, "tasks": found})
    else:
        show_compared(found, left, right)


def _diff_runs(one: StoredRun, other: StoredRun, *, as_json: bool) -> None:
    from agent_env.cli.rows import differences

    found = differences(one, other)
    if as_json:
        write_json({"left": one.run.run_id, "right": other.run.run_id, "differences": found})
    elif not found:
        line("no differences")
    else:
        rows = [(name, brief(pair["left"]), brief(pair["right"])) for name, pair in found.items()]
        table(("WHAT", one.run.run_id, other.run.run_id), rows)


@runs.command()
@click.argument("run", nargs=-1, required=True, shell_complete=RUNS)
@json_option
def rm(run: tuple[str, ...], as_json: bool) -> None:
    """Remove stored runs with their events and their folders. A run that is going on, or that left something behind, is not removed."""
    from agent_env.engine import installation_of
    from agent_env.engine.control import run_folder
    from agent_env.engine.models import transcript_of

    config = configuration()
    with opened_stores(config) as stores:
        found = list({row.run_id: row for row in each(partial(find_run, stores), run)}.values())
        ownership = installation_of(config).ownership
        for row in found:
            stores.journal.delete_run(row.run_id, spared=ownership.is_only_copied)
            transcript_of(config.state_root, row.run_id).unlink(missing_ok=True)
            shutil.rmtree(run_folder(config.state_root, row.run_id), ignore_errors=True)
    if as_json:
        write_json({"removed": [row.run_id for row in found]})
    else:
        for row in found:
            line(f"{row.run_id}: removed")


@runs.command()
@click.argument("run", required=False, shell_complete=RUNS)
@click.argument("step", required=False, shell_complete=STEPS)
@click.argument("decision", required=False, type=click.Choice(["continue", "abort"]))
@click.option("--by", help="Who decides; your user name by default.")
@json_option
def review(run: str | None, step: str | None, decision: Literal["continue", "abort"] | None, by: str | None, as_json: bool) -> None:
    """List the reviews that wait for a person, or decide one: RUN STEP continue|abort."""
    from agent_env.cli.reviewing import decide, show_pending

    if run is not None and step is not None and decision is not None:
        decided = run_async(lambda: decide(run, step, decision, by))
        if as_json:
            write_json(decided)
        else:
            line(f"{decided['run_id']} {step}: {decision}")
        return
    if step is not None:
        raise UsageError("a decision needs RUN, STEP and one of continue, abort", hint="agent-env runs review")
    show_pending(run, as_json=as_json)


def show_report(report: TeardownReport, run_id: str) -> None:
    """A teardown for people."""
    for name in report.removed:
        line(f"{name}: removed")
    for name in report.absent:
        line(f"{name}: gone already")
    for name, why in report.failed.items():
        line(f"{name}: still there: {why}")
    for name in report.left:
        line(f"{name}: left, the teardown was stopped")
    show_elsewhere(report, run_id)
    if not (report.removed or report.absent or report.failed or report.left or report.elsewhere):
        line("nothing to remove")

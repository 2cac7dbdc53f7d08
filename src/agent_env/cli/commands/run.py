"""`agent-env run`: a bundle's tasks, or one task, to their scores."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agent_env.cli.completing import AGENTS, EVALS, MODELS, PROVIDERS, RUNNABLE, TASKS
from agent_env.cli.frame import MOST_RUNS, Command, FilePath, FiniteRange
from agent_env.cli.models import model_options
from agent_env.cli.output import json_option, note, table, write_json
from agent_env.diagnostics import Diagnostics
from agent_env.errors import NotFoundError, ProblemsError, UsageError
from agent_env.wording import counted

if TYPE_CHECKING:
    from agent_env.cli.batch import Presentation

HERE = "agent-env run . runs the bundle in this folder"
UNSAFE_NOTE = "warning: --unsafe-host: task code runs on this machine as you, and can read, change and delete whatever you can"


@click.command(cls=Command)
@click.argument("bundle", required=False, shell_complete=RUNNABLE)
@click.option("--task", "tasks", multiple=True, metavar="NAME", shell_complete=TASKS, help="Only this task, by name or id. Repeatable.")
@click.option("--eval", "evals", multiple=True, metavar="NAME", shell_complete=EVALS, help="Only this eval's tasks. Repeatable.")
@click.option("--attempts", type=click.IntRange(1, MOST_RUNS), default=1, show_default=True, help="Runs of each task.")
@click.option("--concurrency", type=click.IntRange(1, MOST_RUNS), help="Runs at once; by cores and memory when absent.")
@click.option("--fail-under", type=FiniteRange(0, 1), help="Exit code 1 when the mean score is below this.")
@json_option
@click.option("--output", type=FilePath(path_type=Path), help="Write results to this file (.json), or with all contexts into this folder.")
@click.option("--keep", is_flag=True, help="Leave the sandboxes up when runs have ended.")
@click.option("--pause-on-failure", is_flag=True, help="Leave the sandboxes of failed runs up, to look into them and resume.")
@click.option("--dry-run", is_flag=True, help="Check everything and say what would happen; write and run nothing.")
@click.option("--seed", type=int, help="Fills <seed> in the tasks: another number in each run, the same ones in each call.")
@click.option("--seeds", type=FilePath(path_type=Path), help="CSV file: a run of each task for each row, its columns are placeholders.")
@click.option(
    "--resume",
    is_flag=True,
    help="Go on with the newest unfinished call for the same work: runs that ended are kept, the others go on as `resume` does.",
)
@click.option("--redeploy", is_flag=True, help="With --resume: deploy again what was lost, as after a reboot.")
@click.option("--model", shell_complete=MODELS, help="The model that solves.")
@click.option("--user-model", shell_complete=MODELS, help="The model of the user simulator.")
@click.option("--judge-model", shell_complete=MODELS, help="The model that grades rubrics.")
@model_options
@click.option("--agent", shell_complete=AGENTS, help="The agent, over what tasks say.")
@click.option("--sandbox", shell_complete=PROVIDERS, help="Provider of sandboxes, over what tasks say.")
@click.option("--strict", is_flag=True, help="Warnings are problems.")
@click.option("-q", "--quiet", is_flag=True, help="No progress: only the last line, and why a run failed.")
@click.option("--unsafe-host", is_flag=True, help="Run task code on the bare machine, without any isolation.")
@click.pass_context
def run(ctx: click.Context, /, bundle: str | None, **given: Any) -> int:
    """Run BUNDLE: a folder, the name of an installed bundle, a task's JSON file, or the id of a stored task.

    Without BUNDLE, list the installed bundles. Exit code: 0 when every run completed (and the mean score reaches --fail-under), 1 when not,
    2 when something is wrong with what was given, 130 or 143 when interrupted. Ctrl-C once cancels and cleans up, twice stops that.
    """
    if bundle is None:
        _only_json(ctx)
        return _list(as_json=given["as_json"])
    if given["redeploy"] and not given["resume"]:
        raise UsageError("--redeploy goes with --resume")
    if given["unsafe_host"]:
        if given["sandbox"]:
            raise UsageError("--unsafe-host and --sandbox exclude each other")
        os.environ["AGENT_ENV_UNSAFE_HOST"] = "1"  # the user's own word, which no document can give
        note(UNSAFE_NOTE)
    if _is_task_file(bundle):
        return _single(bundle, given, file=Path(bundle).expanduser())
    from agent_env.bundles.installed import find_bundle

    try:
        found = find_bundle(bundle)
    except NotFoundError as error:
        _refuse_unless_stored(bundle, error)
        return _single(bundle, given, file=None)
    from agent_env.cli.bundle_runs import dry_run, run_found

    if found.note:
        note(found.note)
    if given["dry_run"]:
        return dry_run(found, given, overrides=_overrides(given))
    wrong = Diagnostics()
    how = wrong.of(lambda: _presentation(given))
    return run_found(found, given, how, overrides=_overrides(given), wrong=wrong)


def _only_json(ctx: click.Context) -> None:
    """Options say something about a bundle; without one they are a mistake."""
    typed = [
        param.opts[0]
        for param in ctx.command.params
        if param.name not in {"as_json", "bundle"}
        and param.name in ctx.params
        and ctx.get_parameter_source(param.name) is click.core.ParameterSource.COMMANDLINE
    ]
    if typed:
        hint = "agent-env run lists the installed ones"
        raise UsageError(f"{', '.join(typed)} needs a BUNDLE", hint=f"{HERE}, and {hint}" if _is_here() else hint)


def _is_here() -> bool:
    """The current folder is a bundle."""
    from agent_env.bundles.parse import is_bundle

    return is_bundle(Path())


def _list(*, as_json: bool) -> int:
    from agent_env.bundles.installed import installed_bundles
    from agent_env.bundles.report import first_sentence, listing_report

    found = listing_report(installed_bundles())
    if as_json:
        write_json({"bundles": found})
        return 0
    rows = [
        (
            b["name"],
            b["package"],
            ", ".join(counted(count, kind) for kind, count in b["contents"].items()),
            first_sentence(b["description"]),
        )
        for b in found
    ]
    table(("NAME", "PACKAGE", "CONTENTS", "DESCRIPTION"), rows)
    note("run one: agent-env run NAME · start your own: agent-env bundle new FOLDER")
    if _is_here():
        note(f"hint: {HERE}")
    return 0


def _is_task_file(text: str) -> bool:
    """A file of any name, but one that happens to have an installed bundle's."""
    path = Path(text).expanduser()
    if path.suffix == ".json":
        return not path.is_dir()
    if not path.is_file():
        return False
    from agent_env.bundles.installed import installed_bundles

    return all(text != bundle.name for bundle in installed_bundles())


def _refuse_unless_stored(id: str, error: NotFoundError) -> None:
    """Raises the error, with what is wrong with the configuration, where no task of that id is stored either."""
    from agent_env.cli.session import asked_configuration, opened_stores
    from agent_env.cli.tasks import COLLECTION

    wrong = Diagnostics()
    with opened_stores(asked_configuration(wrong)) as stores:
        if stores.documents.get(COLLECTION, id) is None:
            wrong.refuse(error)
            wrong.tell()


def _single(text: str, given: dict[str, Any], *, file: Path | None) -> int:
    from agent_env.cli.task_runs import run_single

    for name in ("tasks", "evals"):
        if given[name]:
            raise UsageError(f"--{name.removesuffix('s')} goes with a bundle; {text!r} is a single task")
    try:
        wrong = Diagnostics()
        how = wrong.of(lambda: _presentation(given))
        return run_single(text, file, given, how, overrides=_overrides(given), wrong=wrong)
    except ProblemsError as error:
        if file is not None and error.hint is None:
            error.hint = _in_its_bundle(file)
        raise


def _in_its_bundle(file: Path) -> str | None:
    """How a task of a bundle is run where the bundle's names mean something."""
    from agent_env.bundles.parse import is_bundle

    bundle = file.parent.parent
    if file.parent.name != "tasks" or not is_bundle(bundle):
        return None
    return f"it is a task of a bundle, whose names are known there alone: agent-env run {bundle} --task {file.stem}"


def _presentation(given: dict[str, Any]) -> Presentation:
    from agent_env.cli.batch import Presentation

    output = None if given["dry_run"] else given["output"]
    return Presentation(given["as_json"], given["quiet"], output, given["fail_under"])


def _overrides(given: dict[str, Any]) -> dict[str, Any]:
    sandbox = "unsafe_host" if given["unsafe_host"] else given["sandbox"]
    wanted = {"user_model": given["user_model"], "judge_model": given["judge_model"], "a2a_agent_id": given["agent"]}
    wanted |= {"sandbox": sandbox, "env_sandbox": given["sandbox"]}
    return {name: value for name, value in wanted.items() if value is not None}

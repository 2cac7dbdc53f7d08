"""`agent-env bundle`: starting, checking and showing bundles."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agent_env.cli.completing import BUNDLES, EVAL_IDS, TASK_IDS
from agent_env.cli.frame import FilePath, Group
from agent_env.cli.output import json_option, line, note, table, write_json
from agent_env.cli.session import asked_configuration, opened_stores, stores_of
from agent_env.diagnostics import Diagnostics
from agent_env.errors import UsageError
from agent_env.wording import counted

if TYPE_CHECKING:
    from agent_env.bundles.planned import BundlePlan
    from agent_env.engine.options import Stores


@click.group(cls=Group)
def bundle() -> None:
    """Start, check and show bundles: folders of tasks and of what they need."""


@bundle.command()
@click.argument("folder", type=FilePath(path_type=Path))
@click.option("--name", help="The bundle's name; the folder's by default.")
@click.option("--env", metavar="NAME", help="Start with an environment of this name: a server of tools, its image, a seed and a verifier.")
@click.option("--agent", metavar="NAME", help="Start with an agent of this name: its program, its image, and a task that asks it.")
@json_option
def new(*, folder: Path, name: str | None, env: str | None, agent: str | None, as_json: bool) -> None:
    """Write a small bundle that runs, to start from."""
    from agent_env.bundles.new import new_bundle

    written = [str(path) for path in new_bundle(folder, name, env=env, agent=agent)]
    if as_json:
        write_json({"folder": str(folder), "files": written})
        return
    for path in written:
        line(path)
    note(f"run it: agent-env run {shown(folder)}")


@bundle.command()
@click.argument("bundle", metavar="BUNDLE", shell_complete=BUNDLES)
@click.option("--strict", is_flag=True, help="Warnings are problems.")
@json_option
def check(bundle: str, strict: bool, as_json: bool) -> None:
    """Say everything that is wrong with a bundle, without running it."""
    from agent_env.cli.preflight import unable

    found = Diagnostics()
    config = asked_configuration(found)
    with opened_stores(config) as memory:
        plan = found.of(lambda: _plan(bundle, stores_of(memory, config), strict=strict))
        remarks = found.of(lambda: unable(config, plan.plans, strict=strict)) if plan is not None else None
    found.tell()
    assert plan is not None
    warnings = [str(warning) for warning in (*plan.warnings, *(remarks or ()))]
    if as_json:
        write_json({"bundle": plan.bundle.name, "tasks": len(plan.tasks), "evals": len(plan.evals), "warnings": warnings, "problems": []})
        return
    for warning in warnings:
        note(f"warning: {warning}")
    counts = f"{counted(len(plan.tasks), 'task')}, {counted(len(plan.bundle.entries), 'entry')}"
    line(f"{plan.bundle.name}: {counts}, no problems")


@bundle.command()
@click.argument("bundle", metavar="BUNDLE", shell_complete=BUNDLES)
@json_option
def show(bundle: str, as_json: bool) -> None:
    """Show a bundle's entries, and the tasks that a run would select."""
    with opened_stores() as memory:
        plan = _plan(bundle, stores_of(memory), strict=False)
    found = plan.bundle
    entries = [
        {"kind": str(entry.kind), "name": entry.name, "type": entry.type, "id": entry.id, "path": entry.path} for entry in found.entries
    ]
    tasks = [{"name": task.name, "id": task.id, "steps": len(task.plan.steps)} for task in plan.tasks]
    if as_json:
        facts = {"name": found.name, "folder": str(found.root), "id": found.id_root, "description": found.description}
        write_json({**facts, "entries": entries, "tasks": tasks, "ignored": list(found.ignored)})
        return
    line(f"{found.name}  {found.root}")
    if found.description:
        line(found.description)
    line()
    table(("KIND", "NAME", "TYPE", "ID"), [(entry["kind"], entry["name"], entry["type"], entry["id"]) for entry in entries])
    line()
    table(("TASK", "STEPS"), [(task["name"], task["steps"]) for task in tasks], right=(1,))
    for name in found.ignored:
        note(f"ignored: {name}")


@bundle.command()
@click.argument("folder", type=FilePath(path_type=Path))
@click.option("--from-task", metavar="ID", shell_complete=TASK_IDS, help="Import this stored task with everything that it refers to.")
@click.option("--from-eval", metavar="ID", shell_complete=EVAL_IDS, help="Import this stored eval with its tasks.")
@click.option("--version", type=click.IntRange(min=1), help="Of that task or eval; the newest when absent.")
@click.option("--include-scope", multiple=True, type=click.Choice(["user"]), help="Also keep fields that belong to whoever runs the task.")
@json_option
def init(*, folder: Path, from_task: str | None, from_eval: str | None, version: int | None, as_json: bool, **rest: Any) -> None:
    """Make a bundle folder from what is stored."""
    if (from_task is None) == (from_eval is None):
        raise UsageError("exactly one of --from-task and --from-eval is needed", hint="to start an empty one: agent-env bundle new FOLDER")
    from agent_env.bundles.importer import import_task
    from agent_env.clock import SystemClock, timestamp

    with opened_stores() as stores:
        done = import_task(
            folder,
            stores_of(stores),
            task_id=from_task,
            eval_id=from_eval,
            version=version,
            keep_user_fields="user" in rest["include_scope"],
            imported_at=timestamp(SystemClock().now()),
        )
    if as_json:
        write_json({"folder": str(done.folder), "files": done.files, "notes": done.notes()})
        return
    for path in done.files:
        line(str(done.folder / path))
    for said in done.notes():
        note(said)


def shown(folder: Path) -> str:
    """A folder as `run` takes it for one, whatever is installed under the same name."""
    text = str(folder)
    return shlex.quote(text if text.startswith(("/", ".", "~")) or folder.is_dir() else f"./{text}")


def _plan(bundle: str, stores: Stores, *, strict: bool) -> BundlePlan:
    from agent_env.bundles.installed import find_bundle
    from agent_env.bundles.plan import plan_folder

    found = find_bundle(bundle)
    if found.note:
        note(found.note)
    return plan_folder(found.folder, stores, everything=True, id_root=found.id_root, name=found.name, strict=strict)

"""`agent-env agent`: agents, stored and deployed."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import click

from agent_env.cli.agents import Deployment, deployed_of, variables_of
from agent_env.cli.commands.agent_chat import chat
from agent_env.cli.commands.agent_validate import validate
from agent_env.cli.completing import AGENTS, ENVS, MODELS, PROVIDERS, STORED_AGENTS, UP_OR_STORED_AGENTS
from agent_env.cli.frame import FilePath, FiniteRange, Group
from agent_env.cli.output import json_option, line, note, write_json
from agent_env.cli.session import opened_engine, opened_stores, run_async
from agent_env.cli.stored import list_newest, one_id, page_options, print_document, show_deployed, take_down_or_remove
from agent_env.errors import UsageError

if TYPE_CHECKING:
    from agent_env.engine import RunOutcome

COLLECTION = "agents"


@click.group(cls=Group)
def agent() -> None:
    """Store, deploy, talk with, check and take down agents.

    WHAT is a folder with a Dockerfile or an agent.toml, BUNDLE:NAME of an installed bundle, an alias, or the id of a stored agent.
    """


for _command in (chat, validate):
    agent.add_command(_command)


@agent.command()
@click.argument("what", metavar="[WHAT]", required=False, shell_complete=AGENTS)
@click.option("--id", "id", help="Its id, for a folder or image; one of its bundle or path when absent.")
@click.option("--image-ref", help="In place of WHAT: an image that is here or in a registry.")
@click.option("--dockerfile", type=FilePath(exists=True, dir_okay=False), help="In place of WHAT: a Dockerfile.")
@click.option("--context", type=FilePath(exists=True, file_okay=False), help="The folder that it builds; the Dockerfile's when absent.")
@click.option("--env-var", "env_vars", multiple=True, metavar="NAME=VALUE", help="A variable of every deployment (repeatable).")
@click.option("--default-model", shell_complete=MODELS, help="The model that it uses where nobody says another.")
@click.option("--min-disk-size-gb", type=FiniteRange(min=0, min_open=True), help="The least disk that it needs.")
@click.option("--dry-run", is_flag=True, help="Say what would be written, and write nothing.")
@json_option
def put(*, what: str | None, id: str | None, dry_run: bool, as_json: bool, **given: Any) -> None:
    """Store an agent, with its image and all that it refers to. Only what changed is written."""
    from agent_env.bundles.model import BundleKind
    from agent_env.cli.named_documents import put as put_single

    named = [name for name in ("image_ref", "dockerfile") if given[name]]
    if (what is None) == (not named) or len(named) > 1:
        raise UsageError("say WHAT is to be stored, or give --image-ref or --dockerfile")
    shown: dict[str, Any] = {"dry_run": dry_run, "as_json": as_json, "next_command": "deploy it: agent-env agent deploy"}
    if what is not None:
        _refuse_without(given, "env_vars", "default_model", "min_disk_size_gb", "context")
        put_single(BundleKind.AGENT, what, id, **shown)
        return
    if id is None:
        raise UsageError("an agent that is no folder needs an --id")
    with TemporaryDirectory() as folder:
        root = Path(folder, "agent")
        _written_folder(root, given)
        put_single(BundleKind.AGENT, str(root), id, **shown)


def _refuse_without(given: dict[str, Any], *names: str) -> None:
    said = [f"--{name.removesuffix('s').replace('_', '-')}" for name in names if given[name]]
    if said:
        raise UsageError(f"{', '.join(said)} go with --image-ref or --dockerfile", hint="in a folder, agent.toml says it")


def _written_folder(root: Path, given: dict[str, Any]) -> None:
    """A folder of an agent, as bundles have them."""
    import shutil

    if given["dockerfile"]:
        dockerfile = Path(given["dockerfile"])
        shutil.copytree(given["context"] or dockerfile.parent, root, symlinks=True)
        shutil.copyfile(dockerfile, root / "Dockerfile")
    else:
        root.mkdir(parents=True)
    lines = [f"image = {{ ref = {json.dumps(given['image_ref'])} }}"] if given["image_ref"] else []
    variables = variables_of(given["env_vars"])
    if variables:
        lines += ["[default_env_vars]", *(f"{json.dumps(name)} = {json.dumps(value)}" for name, value in variables.items())]
    metadata = {name: given[name] for name in ("default_model", "min_disk_size_gb") if given[name] is not None}
    if metadata:
        lines += ["[metadata]", *(f"{name} = {json.dumps(value)}" for name, value in metadata.items())]
    if lines:
        (root / "agent.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")


@agent.command()
@one_id(STORED_AGENTS, "The agent's id.")
@click.option("--version", type=click.IntRange(min=1), help="The newest one when absent.")
@json_option
def get(id: str, version: int | None, as_json: bool) -> None:
    """Print a stored agent's document."""
    del as_json
    print_document(COLLECTION, id, version)


@agent.command("list")
@click.option("--deployed", is_flag=True, help="What is up, run by run, instead of what is stored.")
@page_options
def list_(deployed: bool, contains: str | None, limit: int, offset: int, as_json: bool) -> None:
    """List stored agents, or with --deployed what is up."""
    if not deployed:
        list_newest(COLLECTION, _facts, limit=limit, offset=offset, as_json=as_json, id_contains=contains)
        return
    with opened_stores() as memory:
        rows = list(deployed_of(memory))
    show_deployed(rows, ("RUN", "AGENT", "DOCUMENT", "A2A URL", "ROLE"), what="agent", as_json=as_json)


def _facts(document: Any) -> dict[str, Any]:
    metadata = document.body.get("metadata") or {}
    return {"type": document.type, "model": metadata.get("default_model")}


@agent.command()
@one_id(AGENTS, "A stored agent's id.", name="what", metavar="WHAT")
@click.option("--version", type=click.IntRange(min=1), help="Of a stored agent; the newest when absent.")
@click.option("--name", default="agent", show_default=True, help="What it is called.")
@click.option(
    "--env",
    "environments",
    multiple=True,
    metavar="WHAT",
    shell_complete=ENVS,
    help="An environment that it uses, brought up with it (repeatable).",
)
@click.option(
    "--env-var", "env_vars", multiple=True, metavar="NAME=VALUE", help="A variable; secret:KEY and env:NAME are looked up (repeatable)."
)
@click.option("--role", help="Under which it uses its environments.")
@click.option("--system-prompt", help="For all its turns, where it takes one.")
@click.option("--sandbox", shell_complete=PROVIDERS, help="The provider of sandboxes, or a comma-separated chain.")
@click.option("--ttl-seconds", type=click.IntRange(60, 1_209_600), default=7_200, show_default=True, help="When it ends by itself.")
@click.option("--cpu", type=FiniteRange(min=0, min_open=True), help="Limit of processor cores.")
@click.option("--memory-mb", type=click.IntRange(min=1), help="Limit of memory in MiB.")
@click.option("-q", "--quiet", is_flag=True, help="No progress on standard error.")
@json_option
def deploy(*, what: str, version: int | None, quiet: bool, as_json: bool, **options: Any) -> None:
    """Deploy an agent, and leave it up until `agent rm RUN` or its time is over."""
    import os

    from agent_env.cli.progress import watching

    fields = {name: options[name] for name in ("role", "system_prompt", "ttl_seconds", "cpu", "memory_mb") if options[name] is not None}
    fields |= {"env_vars": variables_of(options["env_vars"]), **({"a2a_agent_version": version} if version else {})}
    deployment = Deployment(what, fields, options["environments"], options["sandbox"], options["name"])

    async def work() -> RunOutcome:
        async with opened_engine() as engine:
            with watching(quiet=quiet or as_json) as watcher:
                return await deployment.brought_up(engine, watcher, why="up")

    outcome = run_async(work)
    record = (outcome.context.get("deployed_agents") or [{}])[-1]
    facts = {
        "run": outcome.run_id,
        "agent": record.get("agent_name"),
        "instance_id": record.get("instance_id"),
        "sandbox_id": record.get("sandbox_id"),
        "a2a_url": record.get("a2a_url"),
    }
    if as_json:
        write_json(facts)
        return
    line(f"{facts['run']}  {facts['agent']}  {facts['a2a_url']}")
    note(f"talk with it: agent-env agent chat {facts['run']}{os.linesep}take it down: agent-env agent rm {facts['run']}")


@agent.command()
@click.argument("targets", metavar="RUN|ID...", nargs=-1, required=True, shell_complete=UP_OR_STORED_AGENTS)
@click.option("--version", type=click.IntRange(min=1), help="Of a stored agent: only this one.")
@json_option
def rm(targets: tuple[str, ...], version: int | None, as_json: bool) -> int:
    """Take down what `agent deploy` brought up (runs), or remove stored agents (ids)."""
    return take_down_or_remove(COLLECTION, targets, version, as_json=as_json)

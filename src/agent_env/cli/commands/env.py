"""`agent-env env`: environments, stored and deployed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from agent_env.cli.agents import not_up
from agent_env.cli.commands.env_check import check
from agent_env.cli.commands.env_live import call, exec_, logs, shell, state
from agent_env.cli.completing import ARTIFACT_IDS, ENVS, PROVIDERS, STORED_ENVS, UP_OR_STORED_ENVS
from agent_env.cli.environments import deployed_of, written_environment, written_seed
from agent_env.cli.frame import FiniteRange, Group
from agent_env.cli.output import json_option, line, note, write_json
from agent_env.cli.session import opened_engine, opened_stores, run_async
from agent_env.cli.stored import list_newest, one_id, page_options, print_document, show_deployed, take_down_or_remove

if TYPE_CHECKING:
    from agent_env.engine import Engine, RunOutcome

COLLECTION = "envs"


@click.group(cls=Group)
def env() -> None:
    """Store, bring up, look into, check and take down environments.

    WHAT is a folder with a Dockerfile or an env.toml, BUNDLE:NAME of an installed bundle, an alias, or the id of a stored environment.
    """


for _command in (call, check, exec_, logs, shell, state):
    env.add_command(_command)


@env.command()
@click.argument("what", metavar="WHAT", shell_complete=ENVS)
@click.option("--id", "id", help="Its id, for a folder; one of its bundle or path when absent.")
@click.option("--dry-run", is_flag=True, help="Say what would be written, and write nothing.")
@json_option
def put(what: str, id: str | None, dry_run: bool, as_json: bool) -> None:
    """Store an environment, with its images and all that it refers to. Only what changed is written."""
    from agent_env.bundles.model import BundleKind
    from agent_env.cli.named_documents import put as put_single

    put_single(BundleKind.ENV, what, id, dry_run=dry_run, as_json=as_json, next_command="bring it up: agent-env env deploy")


@env.command()
@one_id(STORED_ENVS, "The environment's id.")
@click.option("--version", type=click.IntRange(min=1), help="The newest one when absent.")
@json_option
def get(id: str, version: int | None, as_json: bool) -> None:
    """Print a stored environment's document."""
    del as_json
    print_document(COLLECTION, id, version)


@env.command("list")
@click.option("--deployed", is_flag=True, help="What is up, run by run, instead of what is stored.")
@page_options
def list_(deployed: bool, contains: str | None, limit: int, offset: int, as_json: bool) -> None:
    """List stored environments, or with --deployed what is up."""
    if not deployed:
        list_newest(COLLECTION, _facts, limit=limit, offset=offset, as_json=as_json, id_contains=contains)
        return
    with opened_stores() as memory:
        rows = list(deployed_of(memory))
    show_deployed(rows, ("RUN", "ENVIRONMENT", "PROVIDER", "MCP URL", "ENDS"), what="environment", as_json=as_json)


def _facts(document: Any) -> dict[str, Any]:
    return {
        "type": document.type,
        "provider": document.body.get("env_provider_type"),
        "name": document.body.get("environment_name") or document.body.get("name"),
    }


@env.command()
@one_id(ENVS, "A stored environment's id.", name="what", metavar="WHAT")
@click.option("--version", type=click.IntRange(min=1), help="Of a stored environment; the newest when absent.")
@click.option(
    "--load",
    "loads",
    multiple=True,
    metavar="ARTIFACT",
    shell_complete=ARTIFACT_IDS,
    help="Seed data: the name of an artifact of WHAT's bundle, or the id of a stored one (repeatable).",
)
@click.option("--sandbox", shell_complete=PROVIDERS, help="The provider of sandboxes, or a comma-separated chain.")
@click.option("--ttl-seconds", type=click.IntRange(60, 1_209_600), default=10_800, show_default=True, help="When it ends by itself.")
@click.option(
    "--gateway-mode",
    type=click.Choice(["performance", "consistent"]),
    default="performance",
    show_default=True,
    help="consistent: one tool call at a time, over all servers.",
)
@click.option("--cpu", type=FiniteRange(min=0, min_open=True), help="Limit of processor cores.")
@click.option("--memory-mb", type=click.IntRange(min=1), help="Limit of memory in MiB.")
@click.option("--disk-size-gb", type=click.IntRange(min=1), default=10, show_default=True, help="Limit of disk space in GiB.")
@click.option("--env-state-type", help="local_postgres: with a database, also where no server asks for one.")
@click.option("-q", "--quiet", is_flag=True, help="No progress on standard error.")
@json_option
def deploy(*, what: str, version: int | None, loads: tuple[str, ...], quiet: bool, as_json: bool, **options: Any) -> None:
    """Bring an environment up, and leave it up until `env rm RUN` or its time is over."""
    import os

    from agent_env.cli.progress import watching

    given = {name: value for name, value in options.items() if value is not None and name != "sandbox"}

    async def work() -> RunOutcome:
        async with opened_engine() as engine:
            env_id = await written_environment(engine, what)
            steps: list[dict[str, Any]] = [{"id": "env", "type": "deploy_env", "env_id": env_id, "env_version": version, **given}]
            seeds = [await written_seed(engine, what, each) for each in loads]
            steps += [{"id": f"load-{n}", "type": "load_artifact", "env_id": env_id, "artifact_id": id} for n, id in enumerate(seeds, 1)]
            overrides = {"env_sandbox": options["sandbox"]} if options["sandbox"] else {}
            with watching(quiet=quiet or as_json) as watcher:
                return await _kept(engine, steps, f"{env_id}/up", overrides, watcher)

    outcome = run_async(work)
    if outcome.status != "completed":
        raise not_up(outcome)
    record = (outcome.context.get("deployed_envs") or [{}])[0]
    facts = {
        "run": outcome.run_id,
        "env_id": record.get("env_id"),
        "name": record.get("mcp_server_name"),
        "mcp_url": record.get("mcp_url"),
        "instance_id": record.get("instance_id"),
        "expires_at_utc": record.get("expires_at_utc"),
    }
    if as_json:
        write_json(facts)
        return
    line(f"{facts['run']}  {facts['name']}  {facts['mcp_url']}")
    note(f"its tools: agent-env env call {facts['run']}{os.linesep}take it down: agent-env env rm {facts['run']}")


async def _kept(engine: Engine, steps: list[dict[str, Any]], task_id: str, overrides: dict[str, Any], watcher: Any) -> RunOutcome:
    """A run of these steps that leaves its places."""
    from agent_env.engine import RunOptions, plan_document

    plan = plan_document(steps, source="env deploy", task_id=task_id, artifacts=engine.stores.artifacts, overrides=overrides)
    run_id = await engine.submit(plan, RunOptions(keep=True, overrides=overrides))
    watcher.begin(run_id, "env deploy")
    return await engine.execute(run_id, watcher)


@env.command()
@click.argument("targets", metavar="RUN|ID...", nargs=-1, required=True, shell_complete=UP_OR_STORED_ENVS)
@click.option("--version", type=click.IntRange(min=1), help="Of a stored environment: only this one.")
@json_option
def rm(targets: tuple[str, ...], version: int | None, as_json: bool) -> int:
    """Take down what `env deploy` brought up (runs, with all that is in them), or remove stored environments (ids)."""
    return take_down_or_remove(COLLECTION, targets, version, as_json=as_json)

"""`agent-env model`: whether the models that runs will ask can be asked, and what runs used of them."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from agent_env.cli.completing import MODELS, RUNS
from agent_env.cli.frame import Group
from agent_env.cli.output import json_option, line, note, table, write_json
from agent_env.cli.session import configuration, find_run, opened_stores, run_async
from agent_env.config.checks import DIALECTS
from agent_env.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from agent_env.broker import Usage
    from agent_env.broker.checking import Checked
    from agent_env.config import Config


@click.group(cls=Group)
def model() -> None:
    """Check the models that agents and judges ask, and show what runs used of them."""


@model.command()
@click.option(
    "--model",
    "models",
    multiple=True,
    metavar="NAME",
    shell_complete=MODELS,
    help="By default those that the configuration names. Repeatable.",
)
@click.option("--dialect", "dialects", multiple=True, type=click.Choice(DIALECTS), help="Only this dialect. Repeatable.")
@json_option
def check(*, models: tuple[str, ...], dialects: tuple[str, ...], as_json: bool) -> int:
    """Ask each configured model one small question in each dialect, and say what it took.

    An agent speaks one dialect, so an endpoint need not speak all. Exit code 1 when a model answers in none of them.
    """
    config = configuration()
    found = run_async(lambda: _found(config, models, dialects))
    silent = sorted({each.model for each in found} - {each.model for each in found if each.ok})
    if as_json:
        write_json({"models": [asdict(each) for each in found], "silent": silent})
        return 1 if silent else 0
    table(("MODEL", "DIALECT", "ENDPOINT", "ANSWERS", "TIME", "TOKENS", "COST"), [_row(each) for each in found])
    for each in found:
        if not each.ok:
            note(f"{each.model} ({each.dialect}): {each.message}")
    for name in silent:
        line(f"{name} answers in no dialect")
    return 1 if silent else 0


def _row(each: Checked) -> tuple[Any, ...]:
    tokens = f"{each.input_tokens} in, {each.output_tokens} out" if each.ok else None
    cost = None if not each.ok else "no price configured" if each.cost_usd is None else f"${each.cost_usd:.6f}"
    return each.model, each.dialect, each.endpoint, "yes" if each.ok else "no", f"{each.seconds:.2f} s", tokens, cost


@model.command()
@click.argument("run", shell_complete=RUNS)
@json_option
def usage(run: str, as_json: bool) -> None:
    """Show what RUN used of models, by who asked and in which turn."""
    from agent_env.broker.accounts import Accounts

    with opened_stores() as stores:
        row = find_run(stores, run)
        accounts = Accounts(stores.db)
        found = run_async(lambda: accounts.by_turn(row.run_id))
        whole = run_async(lambda: accounts.usage(row.run_id))
    if as_json:
        turns = [{"holder": holder, "role": role, "turn": turn, **asdict(used)} for holder, role, turn, used in found]
        write_json({"run_id": row.run_id, "turns": turns, "total": asdict(whole)})
        return
    if not found:
        line(f"{row.run_id} asked no model")
        return
    table(
        ("WHO", "AS", "TURN", "CALLS", "TOKENS", "COST", "REFUSED"),
        [(*each[:3], *_used(each[3])) for each in [*found, ("all", None, None, whole)]],
    )


def _used(used: Usage) -> tuple[Any, ...]:
    tokens = f"{used.input_tokens} in, {used.output_tokens} out" + (f" ({used.estimated} calls estimated)" if used.estimated else "")
    cost = None if used.cost_usd is None else f"${used.cost_usd:.6f}"
    return used.requests, tokens, cost, used.refused or None


async def _found(config: Config, models: tuple[str, ...], dialects: tuple[str, ...]) -> list[Checked]:
    from agent_env.broker import Dialect
    from agent_env.broker.checking import check as ask
    from agent_env.broker.configured import endpoints_of
    from agent_env.stores.opening import SECRETS_FILE
    from agent_env.stores.secrets import Secrets, is_reference

    secrets = Secrets(config.state_root / SECRETS_FILE)

    def resolved(text: str) -> str:
        return secrets.resolve(text).reveal() if is_reference(text) else text

    endpoints = endpoints_of(config.model, resolved)
    if not endpoints.all:
        raise ConfigError("no model is configured", hint="set LITELLM_BASE_URL and LITELLM_API_KEY, or [model] base_url and api_key")
    named = [config.model.default, *config.model.roles.values()] if not models else [*models]
    wanted = list(dict.fromkeys(resolved(each) for each in named if each))
    if not wanted:
        raise UsageError("no model is named", hint="--model NAME, or model.default in the configuration")
    spoken = [Dialect(each) for each in dialects or DIALECTS]
    return [each async for each in ask(endpoints, wanted, spoken, limits=config.limits)]

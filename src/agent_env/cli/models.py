"""What `run` takes about models: recording, replaying, budgets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from agent_env.cli.frame import FilePath
from agent_env.errors import UsageError

F = TypeVar("F", bound=Callable[..., Any])
LIMITS = "requests, tokens, cost_usd, concurrency"
MODEL_OPTIONS = (
    click.option("--record", type=FilePath(path_type=Path, file_okay=False), help="Keep the answers of models in this folder."),
    click.option(
        "--replay",
        type=FilePath(path_type=Path, file_okay=False, exists=True),
        help="Take the answers of models from this folder; no model is asked.",
    ),
    click.option(
        "--budget", "budgets", multiple=True, metavar="LIMIT=N", help=f"What the agents of a run may use of models: {LIMITS}. Repeatable."
    ),
)


def model_options(command: F) -> F:
    """Adds `--record`, `--replay` and `--budget`."""
    for option in reversed(MODEL_OPTIONS):
        command = option(command)
    return command


def of_models(given: Mapping[str, Any]) -> dict[str, Any]:
    """What these options say, as fields of `RunOptions`.

    Raises:
        UsageError: They don't go together, or a limit is none.
    """
    record, replay = given["record"], given["replay"]
    if record is not None and replay is not None:
        raise UsageError("--record and --replay exclude each other", hint="what is replayed is recorded already")
    if record is not None and not given.get("dry_run"):
        try:
            record.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"--record {record} can't be made: {error.strerror}") from error
    return {
        "record": str(record.absolute()) if record is not None else None,
        "replay": str(replay.absolute()) if replay is not None else None,
        "model_budget": budget_of(given["budgets"]),
    }


def budget_of(words: tuple[str, ...]) -> dict[str, float | int]:
    """`tokens=100000` and the like.

    Raises:
        UsageError: It can't be read.
    """
    from agent_env.config.keys import KEYS

    found: dict[str, float | int] = {}
    for word in words:
        name, equals, text = word.partition("=")
        try:
            found[name.strip()] = float(text) if "." in text else int(text.replace("_", ""))
        except ValueError:
            raise UsageError(f"--budget {word!r} is no LIMIT=N" if equals else f"--budget {word!r} lacks a value", hint=LIMITS) from None
    why = KEYS["model.budget"].check(found)
    if why is not None:
        raise UsageError(f"--budget {why}", hint=f"limits: {LIMITS}")
    return found

"""`agent-env secret`: the store that `secret:KEY` means. Values come from standard input or a prompt, and are never shown again."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from agent_env.cli.completing import SECRETS
from agent_env.cli.frame import Group
from agent_env.cli.output import json_option, line, note, table, write_json
from agent_env.cli.session import configuration
from agent_env.cli.state import state_of
from agent_env.diagnostics import each
from agent_env.errors import NotFoundError, UsageError

if TYPE_CHECKING:
    from agent_env.stores import Secrets

_KEPT = "kept/"
"""Names of literals that were moved out of documents; nobody else gives such names."""


@click.group(cls=Group)
def secret() -> None:
    """Keep values for `secret:KEY` references."""


@secret.command("set", context_settings={"allow_extra_args": True})
@click.argument("name", metavar="KEY", shell_complete=SECRETS)
@json_option
@click.pass_context
def set_(ctx: click.Context, name: str, as_json: bool) -> None:
    """Store a value under KEY: what comes on standard input, or what is typed at the prompt.

    One line end at its end is left out. A value is never an argument, because every user of a machine can read arguments.
    """
    if ctx.args:  # not shown: it is most likely the value
        raise UsageError(
            "a value is no argument: every user of this machine can read arguments", hint=f"agent-env secret set {name} < FILE"
        )
    if name.startswith(_KEPT):
        raise UsageError(f"names that begin with {_KEPT!r} are those of literals that were moved out of documents", hint="choose another")
    value = _typed(name) if sys.stdin.isatty() else _piped()
    if not value:
        raise UsageError("the value is empty", hint=f"agent-env secret set {name} < FILE, or in a terminal without it")
    from agent_env.redaction import Redactor

    state_of(ctx).redact.also(Redactor([value]).redact)
    secrets = _opened()
    new = name not in secrets.names()
    secrets.put(name, value)
    if as_json:
        write_json({"name": name, "stored_in": str(secrets.file), "new": new})
    else:
        line(f"{name}: {'stored' if new else 'replaced'} (refer to it as secret:{name})")


@secret.command("list")
@json_option
def list_(as_json: bool) -> None:
    """List the keys and where each is stored. Values are not shown."""
    secrets = _opened()
    names, plugged = secrets.names(), secrets.plugged_names()
    if as_json:
        found = [{"name": name, "stored_in": str(secrets.file)} for name in names]
        write_json({"secrets": found, "asked_after": plugged})
        return
    if names:
        table(("KEY", "STORED IN"), [(name, secrets.file) for name in names])
    else:
        note(f"{secrets.file} holds no secrets")
    for store in plugged:
        note(f"the store {store!r} of an installed package is asked for keys that are not listed; it lists none itself")


@secret.command()
@click.argument("names", metavar="KEY...", nargs=-1, required=True, shell_complete=SECRETS)
@json_option
def rm(names: Sequence[str], as_json: bool) -> None:
    """Remove keys and their values. Documents that refer to them have no value then."""
    from agent_env.documents.spelling import near

    secrets = _opened()
    known = secrets.names()

    def check(name: str) -> None:
        if name not in known:
            meant = near(name, known)
            hint = f"did you mean {meant!r}?" if meant else "agent-env secret list"
            raise NotFoundError(f"{secrets.file} holds no secret {name!r}", concerns=name, hint=hint)

    each(check, names)
    removed = [name for name in dict.fromkeys(names) if secrets.delete(name)]
    if as_json:
        write_json({"removed": removed})
        return
    for name in removed:
        line(f"{name}: removed")


def _opened() -> Secrets:
    from agent_env.stores import Secrets
    from agent_env.stores.opening import SECRETS_FILE

    return Secrets(configuration().state_root / SECRETS_FILE)


def _typed(name: str) -> str:
    return str(click.prompt(f"value of {name}", hide_input=True, confirmation_prompt=True, default="", show_default=False, err=True))


def _piped() -> str:
    data = sys.stdin.buffer.read()
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise UsageError("the value is no text in UTF-8", hint="encode it, such as with base64") from None
    if "\0" in text:
        raise UsageError("the value holds a zero byte, which no environment variable can")
    return text.removesuffix("\n").removesuffix("\r")

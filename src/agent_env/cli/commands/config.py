"""`agent-env config`: what is configured, where it came from, and a file to start from."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agent_env.cli.completing import KEYS
from agent_env.cli.frame import FilePath, Group
from agent_env.cli.output import json_option, line, note, table, write_json
from agent_env.errors import UsageError

if TYPE_CHECKING:
    from agent_env.config import Config

STARTER = """\
# Configuration of agent-env. Every line is optional; `agent-env config show` says what holds and where it came from.
# A key or another secret is best a reference: "env:NAME", "env:NAME?default" or "secret:KEY".
# In a working tree most of it counts only once you trust the folder: agent-env trust.

[sandbox]
# default = "local"          # a provider, or several in the order in which they are tried

[model]
# default = "provider/model"
# base_url = "https://…"
# api_key = "env:LITELLM_API_KEY"

[run]
# concurrency = 4            # by cores and memory when absent

[database]
# url = "postgresql://…"     # a SQLite file in the state folder when absent

[limits]
# exec_seconds = 600.0       # any other that `agent-env config explain` lists
"""


@click.group(cls=Group)
def config() -> None:
    """Show, explain and start the configuration.

    A variable beats the working tree's .agentenv/config.toml, which beats the user's agent-env/config.toml. Secrets are masked.
    """


@config.command()
@json_option
def show(as_json: bool) -> None:
    """Show everything that is configured, with its source."""
    from agent_env.cli.unread import unread_tables

    found = _config()
    facts = found.describe()
    facts["warnings"] = [*facts["warnings"], *map(str, unread_tables(found))]
    if as_json:
        write_json(facts)
        return
    rows = [(key, _text(entry["value"]), entry["source"]) for key, entry in facts["values"].items()]
    table(("KEY", "VALUE", "FROM"), rows)
    line()
    for file in facts["files"]:
        line(f"read      {file['path']}")
    line(f"state     {facts['state_root']}")
    line(f"database  {facts['database_url']}")
    _notes(facts)


@config.command()
@click.argument("key", required=False, shell_complete=KEYS)
@json_option
def explain(key: str | None, as_json: bool) -> None:
    """Say what KEY is (such as model.default or limits.exec_seconds), and which sources gave it; of a table (limits), or without KEY, list
    the keys.
    """
    from agent_env.config.keys import rule_of
    from agent_env.config.said import every_key, said_of

    every = [(name, said_of(name)) for name in every_key() if key is None or name.startswith(f"{key}.")]
    if every:
        if as_json:
            write_json({"keys": [{"key": name, "about": said} for name, said in every]})
        else:
            table(("KEY", "WHAT IT IS"), every)
        return
    found, rule = _config().explain(str(key)), rule_of(str(key))
    facts = {"key": found.key, "value": found.value, "source": found.source, "shadowed": list(found.shadowed)}
    about = {"about": said_of(found.key), "variable": rule.variable if rule is not None else None}
    if as_json:
        write_json({**facts, **about})
        return
    line(f"{found.key} = {_text(found.value)}")
    if about["about"]:
        line(str(about["about"]))
    line(f"from {found.source}")
    for source in found.shadowed:
        line(f"hides {source}")
    if about["variable"]:
        line(f"the variable {about['variable']} beats every file")


@config.command()
@click.argument("folder", default=".", type=FilePath(path_type=Path))
@click.option("--user", is_flag=True, help="The user's own file instead of a folder's.")
@json_option
def init(folder: Path, user: bool, as_json: bool) -> None:
    """Write a configuration to start from; an existing one is never changed."""
    file = _user_file() if user else folder / ".agentenv/config.toml"
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("x", encoding="utf-8") as stream:
            stream.write(STARTER)
    except FileExistsError as error:
        raise UsageError(f"{file} exists already", hint="agent-env config show") from error
    except OSError as error:
        raise UsageError(f"{file} can't be written: {error.strerror}") from error
    if as_json:
        write_json({"file": str(file)})
    else:
        line(str(file))


def _config() -> Config:
    from agent_env.config import load_config

    # It must work before there is trust: what an untrusted file may not set is listed, not refused.
    return load_config(Path.cwd(), os.environ, untrusted="skip")


def _user_file() -> Path:
    from agent_env.ids import home_folder

    base = os.environ.get("XDG_CONFIG_HOME", "")
    home = home_folder(os.environ)
    if not base.startswith("/") and home is None:
        raise UsageError("this user has no home folder", hint="set XDG_CONFIG_HOME")
    return (Path(base) if base.startswith("/") else Path(str(home)) / ".config") / "agent-env/config.toml"


def _text(value: Any) -> str:
    import json

    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _notes(facts: dict[str, Any]) -> None:
    for key, why in facts["blocked"].items():
        note(f"not used: {key} {why}; agent-env trust")
    for said in (*facts["warnings"], *facts["notes"]):
        note(f"warning: {said}")

"""`agent-env trust`: saying once that the configuration of a working tree may do what only its user may decide."""

from __future__ import annotations

import os
from pathlib import Path

import click

from agent_env.cli.frame import Command, FilePath
from agent_env.cli.output import json_option, line, note, table, write_json
from agent_env.errors import NotFoundError, UsageError


@click.command(cls=Command)
@click.argument("folder", required=False, type=FilePath(path_type=Path))
@click.option("--list", "listing", is_flag=True, help="List the trusted folders.")
@click.option("--revoke", is_flag=True, help="Trust FOLDER no longer.")
@json_option
def trust(folder: Path | None, listing: bool, revoke: bool, as_json: bool) -> None:
    """Trust the configuration in FOLDER (the nearest one above when absent).

    Until then a .agentenv/config.toml of a working tree may say what is harmless, such as an agent, a model or how long a command may
    take, and nothing else: no privileges of containers, provider, endpoint, key, image, code or store. Trust holds for the file as it is
    now: a changed file asks again. In CI, name the folder in AGENT_ENV_TRUST.
    """
    from agent_env.config import digest_of, user_trust

    known = user_trust(os.environ)
    if listing:
        if folder is not None or revoke:
            raise UsageError("--list takes no FOLDER and no --revoke")
        found = known.folders()
        if as_json:
            write_json({"trusted": [{"folder": name, "digest": digest} for name, digest in found.items()]})
        elif found:
            table(("FOLDER", "CONFIGURATION"), [(name, digest[:16]) for name, digest in found.items()])
        else:
            note("no folder is trusted")
        return
    where = Path(os.path.realpath(folder or _nearest()))
    if revoke:
        was = known.forget(where)
        if not was:
            raise NotFoundError(f"{where} is not trusted", hint="agent-env trust --list")
    else:
        known.record(where, digest_of(_config_of(where)))
    if as_json:
        write_json({"folder": str(where), "trusted": not revoke})
    else:
        line(f"{where}: {'no longer trusted' if revoke else 'trusted'}")


def _nearest() -> Path:
    from agent_env.config import find_tree_file

    found = find_tree_file(Path.cwd())
    if found is None:
        raise NotFoundError("there is no .agentenv/config.toml here or above", hint="agent-env trust FOLDER")
    return found.parent.parent


def _config_of(folder: Path) -> Path:
    from agent_env.config import TREE_FILE

    file = folder / TREE_FILE
    if not file.is_file():
        raise NotFoundError(f"{folder} has no {TREE_FILE}", hint="trust is given to a folder with a configuration")
    return file

"""`agent-env doctor`: what this machine can do, and what is missing."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from agent_env.cli.frame import Command
from agent_env.cli.output import json_option, line, write_json
from agent_env.errors import AgentEnvError

if TYPE_CHECKING:
    from agent_env.config import Config

NEEDED_HERE = frozenset({"confined places"})
OLDEST_PYTHON = (3, 11)


class Check(NamedTuple):
    """One part, for a person."""

    name: str
    ok: bool
    needed: bool
    detail: str
    hint: str = ""

    @property
    def mark(self) -> str:
        """How it is shown."""
        return "ok" if self.ok else "MISSING" if self.needed else "absent"


@click.command(cls=Command)
@json_option
def doctor(as_json: bool) -> int:
    """Say what this machine can do: places, limits, the run database, the state folder, Python.

    Exit code 1 when something is missing without which nothing runs.
    """
    checks = list(_checks())
    levels = _levels(checks)
    ok = all(check.ok or not check.needed for check in checks)
    if as_json:
        write_json({"ok": ok, "checks": [check._asdict() for check in checks], "limits": levels})
        return 0 if ok else 1
    width = max(len(check.name) for check in checks)
    for check in checks:
        line(f"{check.mark:8} {check.name:{width}}  {check.detail}")
        if check.hint and not check.ok:
            line(f"{'':8} {'':{width}}  → {check.hint}")
    if levels:
        line()
        line(f"limits of local sandboxes: {', '.join(f'{name} {level}' for name, level in levels.items())}")
    return 0 if ok else 1


def _checks() -> Iterator[Check]:
    from agent_env.sandboxes.local.examine import examine

    found = platform.python_version()
    yield Check("python", sys.version_info >= OLDEST_PYTHON, True, f"{found} at {sys.executable}", "install Python 3.11 or newer")
    config = None
    try:
        config = _config()
    except AgentEnvError as error:
        yield Check("configuration", False, True, str(error).replace("\n", "; "), error.hint or "agent-env config show")
    else:
        read = ", ".join(str(file.path) for file in config.files) or "nothing to read: built-in values"
        refused = "; ".join(f"{key} {why}" for key, why in sorted(config.blocked.items()))
        detail = f"{read} asks for what only a trusted folder may: {refused}" if refused else read
        yield Check("configuration", not refused, True, detail, "read it, then run `agent-env trust` there")
        yield from _memory(config)
        yield _keeper(config)
    for finding in examine():
        yield Check(finding.name, finding.ok, finding.name in NEEDED_HERE, finding.detail, finding.hint)


def _memory(config: Config) -> Iterator[Check]:
    root = config.state_root
    nearest = next((folder for folder in (root, *root.parents) if folder.exists()), Path("/"))
    note = f" ({'; '.join(config.notes)})" if config.notes else ""
    yield Check("state", os.access(nearest, os.W_OK), True, f"{root}{note}", "set AGENT_ENV_STATE_ROOT to a folder that you can write")
    from agent_env.cli.session import opened_stores
    from agent_env.redaction import mask_user_info

    where = mask_user_info(config.database_url)
    try:
        with opened_stores(config) as stores:
            runs = len(stores.journal.list_runs(limit=1))
    except (AgentEnvError, OSError) as error:
        yield Check("run database", False, True, f"{where}: {mask_user_info(str(error))}", "agent-env config explain database.url")
    else:
        yield Check("run database", True, True, f"{where}{'' if runs else ', empty'}")


def _keeper(config: Config) -> Check:
    """The one process that outlives commands; without an allow-list anywhere there is none."""
    from agent_env.keeper import recorded_owner
    from agent_env.keeper.records import Records

    owner = recorded_owner(config.state_root)
    places = ", ".join(Records(config.state_root).places())
    carried = f"for {places}" if places else "for nothing, and will soon go"
    return Check(
        "keeper", True, False, f"process {owner.pid} carries {carried}" if owner else "not running; it is started when a place needs it"
    )


def _config() -> Config:
    from agent_env.config import load_config

    return load_config(Path.cwd(), os.environ, untrusted="skip")


def _levels(checks: list[Check]) -> dict[str, Any]:
    """How limits hold in local sandboxes, when they can be made at all."""
    if any(check.needed and not check.ok for check in checks):
        return {}
    import asyncio

    from agent_env.engine.opening import providers_of

    async def ask() -> dict[str, Any]:
        provider = providers_of(_config())("local")
        try:
            return {name: str(level) for name, level in (await provider.capabilities()).limits.items()}
        finally:
            await provider.aclose()

    return asyncio.run(ask())

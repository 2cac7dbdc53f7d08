"""`agent-env cp`: files into and out of a place of a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from agent_env.cli.completing import SIDES
from agent_env.cli.frame import Command
from agent_env.cli.output import json_option, line, note, write_json
from agent_env.cli.session import opened_place, run_async
from agent_env.errors import UsageError
from agent_env.wording import counted

if TYPE_CHECKING:
    from agent_env.cli.copying import Copied


@click.command(cls=Command)
@click.argument("source", type=click.UNPROCESSED, shell_complete=SIDES)
@click.argument("destination", type=click.UNPROCESSED, shell_complete=SIDES)
@json_option
def cp(source: str, destination: str, as_json: bool) -> None:
    """Copy SOURCE to DESTINATION, one of which is RUN:/path or RUN:PLACE:/path.

    A folder is copied whole. Into an existing folder, or one written with a slash at its end, the copy keeps its name. Links inside a
    place are followed there, those of a folder of this machine as far as they stay in it; what is no file, and links to folders, are
    skipped and named. The other side can be -, for one file: standard output or input.
    """
    from agent_env.cli.copying import Remote, Standard, copy_in, copy_out, read_in, side, write_out

    sides = side(source), side(destination)
    if as_json and isinstance(sides[1], Standard):
        raise UsageError("--json and - exclude each other: both want standard output")

    async def work() -> Copied | None:
        match sides:
            case Remote() as remote, Standard():
                async with opened_place(remote.target) as place:
                    await write_out(place, remote)
                return None
            case Standard(), Remote() as remote:
                async with opened_place(remote.target) as place:
                    return await read_in(place, remote)
            case Remote() as remote, Path() as local:
                async with opened_place(remote.target) as place:
                    return await copy_out(place, remote, local)
            case Path() as local, Remote() as remote:
                async with opened_place(remote.target) as place:
                    return await copy_in(place, local, remote)
            case _:
                raise UsageError("exactly one of SOURCE and DESTINATION is RUN:/path", hint="agent-env cp RUN:/app/out.txt .")

    copied = run_async(work)
    if copied is None:
        return
    if as_json:
        write_json({"files": copied.files, "bytes": copied.bytes, "skipped": list(copied.skipped)})
        return
    line(f"{counted(copied.files, 'file')}, {counted(copied.bytes, 'byte')}")
    for name in copied.skipped:
        note(f"skipped: {name}")

"""`agent-env exec` and `agent-env shell`: into a place of a run."""

from __future__ import annotations

import signal
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

import click

from agent_env.cli.completing import PLACES
from agent_env.cli.frame import Command, FiniteRange
from agent_env.cli.output import json_option, note, write_json
from agent_env.cli.session import opened_engine, opened_place, place_in, run_async
from agent_env.errors import LimitHitError, TransportLostError, UsageError

if TYPE_CHECKING:
    from agent_env.places import Command as PlaceCommand
    from agent_env.places import Completed

TIMED_OUT = 124
"""As `timeout(1)` says it."""
_ORDINARY = (signal.SIGINT, signal.SIGPIPE)
"""Signals by which commands end as they should: nothing is said of them, as shells say nothing."""


@click.command("exec", cls=Command, context_settings={"allow_interspersed_args": False})
@click.option("--user", help="A user of the place; its own by default.")
@click.option("--cwd", help="A folder of the place; its own by default.")
@click.option("--env", "env", metavar="NAME=VALUE", multiple=True, help="Adds a variable. Repeatable.")
@click.option(
    "--timeout",
    "timeout_seconds",
    type=FiniteRange(min=0, min_open=True),
    help="Seconds until it is killed; by default 600.",
)
@click.option("-i", "--interactive", is_flag=True, help="Pass standard input on.")
@click.option("--raw", is_flag=True, help="Pass the output on untouched, secrets too.")
@json_option
@click.argument("run", metavar="RUN[:PLACE]", shell_complete=PLACES)
@click.argument("argv", metavar="-- COMMAND [ARG]...", nargs=-1, type=click.UNPROCESSED, required=True)
def exec_(
    *,
    user: str | None,
    cwd: str | None,
    env: tuple[str, ...],
    timeout_seconds: float | None,
    interactive: bool,
    raw: bool,
    as_json: bool,
    **rest: Any,
) -> int:
    """Run one command in a place of a run and exit with its exit code.

    PLACE is the name of a sandbox, of an agent, or of a container that a step started.

    Options stand before RUN. The command is an argument vector: for shell text, say `-- bash -c 'text'`.

    Secrets that the run's task refers to are shown as ***, as in its events; --raw passes every byte on.
    """
    from agent_env.places import Command as PlaceCommand

    argv: tuple[str, ...] = rest["argv"][1:] if rest["argv"][:1] == ("--",) else rest["argv"]
    if argv is rest["argv"] and argv[0].startswith("-"):
        raise UsageError(f"{argv[0]} stands behind RUN, where the command begins", hint=f"agent-env exec {argv[0]} … RUN -- COMMAND")
    if not argv:
        raise UsageError("there is no command to run", hint="agent-env exec RUN -- ls -l /app")
    command = PlaceCommand(
        argv,
        user=user,
        cwd=PurePosixPath(cwd) if cwd else None,
        env=dict(map(_pair, env)),
        timeout_seconds=timeout_seconds,
    )
    if as_json and interactive:
        raise UsageError("--json and --interactive exclude each other")
    completed = run_async(lambda: _execute(rest["run"], command, streamed=not as_json, interactive=interactive, raw=raw))
    if as_json:
        write_json(_completed_json(completed))
    return exit_code(completed)


@click.command(cls=Command)
@click.argument("run", metavar="RUN[:PLACE]", shell_complete=PLACES)
@click.option("--user", help="A user of the place; its own by default.")
@click.option("--shell", "program", default="bash", show_default=True, help="The shell to start.")
def shell(run: str, user: str | None, program: str) -> int:
    """Open a shell in a place of a run. Its exit code is the shell's.

    PLACE is the name of a sandbox, of an agent, or of a container that a step started.

    What is shown there is shown as it is: secrets that the place's own programs know are no secrets in it.
    """
    from agent_env.cli.terminal import interactive_shell, piped_shell

    async def work() -> Completed:
        async with opened_place(run) as place:
            if sys.stdin.isatty() and sys.stdout.isatty():
                return await interactive_shell(place, program, user)
            return await piped_shell(place, program, user, _standard_input())

    return exit_code(run_async(work))


async def _execute(run: str, command: PlaceCommand, *, streamed: bool, interactive: bool, raw: bool) -> Completed:
    async with opened_engine() as engine:
        place = await place_in(engine, run)
        hidden = None if raw else engine.redactor
        if streamed:
            from agent_env.cli.terminal import pass_through

            return await pass_through(place, command, _standard_input() if interactive else None, hidden)
        done = await place.run(command)
        return done if hidden is None else replace(done, stdout=hidden.redact(done.stdout), stderr=hidden.redact(done.stderr))


def _standard_input() -> Any:
    from agent_env.cli.terminal import standard_input

    return standard_input()


def _pair(text: str) -> tuple[str, str]:
    from agent_env.documents.variables import VARIABLE_RULE, is_variable_name

    name, equals, value = text.partition("=")
    if not equals or not is_variable_name(name):
        # Only the name is shown: what stands behind it may be a secret.
        raise UsageError(f"--env {name!r} is not NAME=VALUE", hint=VARIABLE_RULE)
    return name, value


def _completed_json(completed: Completed) -> dict[str, Any]:
    return {
        "ending": str(completed.ending),
        "exit_code": completed.exit_code,
        "signal": completed.signal,
        "stdout": completed.stdout.decode("utf-8", "replace"),
        "stderr": completed.stderr.decode("utf-8", "replace"),
        "stdout_dropped_bytes": completed.stdout_dropped_bytes,
        "stderr_dropped_bytes": completed.stderr_dropped_bytes,
        "duration_seconds": completed.duration_seconds,
        "reason": _why(completed) or None,
    }


def _why(completed: Completed) -> str:
    """Why a command did not end by itself; empty where it did."""
    if completed.signal is None:
        return completed.detail
    name = f"signal {completed.signal}"
    with suppress(ValueError):  # a real-time one
        name = signal.Signals(completed.signal).name
    killed = f"it was killed by {name}"
    return f"{killed}: {completed.detail}" if completed.detail else killed


def exit_code(completed: Completed) -> int:
    from agent_env.places import Ending

    match completed.ending:
        case Ending.EXITED:
            return completed.exit_code or 0
        case Ending.SIGNALLED:
            if completed.signal not in _ORDINARY:
                note(f"the command did not end by itself: {_why(completed)}")
            return 128 + (completed.signal or 0)
        case Ending.TIMED_OUT:
            note("the command was killed at its time limit")
            return TIMED_OUT
        case Ending.LIMITED:
            raise LimitHitError(f"the command ended badly: {completed.detail}", hint="deploy the sandbox with more, or use less")
        case _:
            raise TransportLostError(
                f"the connection to the place broke: {completed.detail or 'no reason known'}", hint="see `agent-env runs show`"
            )

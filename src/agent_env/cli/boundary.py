"""The one place where errors become a message and an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from agent_env.cli import INTERRUPTED
from agent_env.cli.frame import root
from agent_env.cli.interruptions import Interruptions
from agent_env.cli.output import OUTPUT_FULL, close_quietly, error_line, output_refused, write_json
from agent_env.cli.state import State
from agent_env.errors import AgentEnvError, Problem, ProblemsError

PROGRAM = "agent-env"
COMPLETE_VARIABLE = "_AGENT_ENV_COMPLETE"
SHOWN_CHARACTERS = 200
"""Of a path in a message: its end."""


class InterruptionError(Exception):
    """The process was told to stop, and has cleaned up. `signal` is SIGINT (2) or SIGTERM (15)."""

    def __init__(self, signal: int) -> None:
        super().__init__(f"interrupted by signal {signal}")
        self.signal = signal
        self.shown = False
        """Results were written already: with `--json` they are the one object."""


class CutShortError(Exception):
    """A command failed when some of its runs had begun, and what is known of them was shown to people.

    Args:
        error: Why.
        known: The command's JSON object, which the error is added to.
    """

    def __init__(self, error: AgentEnvError, known: dict[str, Any]) -> None:
        super().__init__(str(error))
        self.error = error
        self.known = known


def run(argv: Sequence[str], interruptions: Interruptions | None = None) -> int:
    """Runs one command line and returns its exit code. Nothing escapes but `SystemExit`.

    Args:
        argv: The arguments without the program's name.
        interruptions: Knows which signal a KeyboardInterrupt stands for; None where signals are left to whoever calls.
    """
    for stream in (sys.stdout, sys.stderr):
        # What a terminal's encoding can't show is escaped, never an error. An output that is full is told when it is written to.
        with suppress(OSError):
            getattr(stream, "reconfigure", lambda **_: None)(errors="backslashreplace")
    instruction = os.environ.get(COMPLETE_VARIABLE)
    if instruction:
        from click.shell_completion import shell_complete

        return shell_complete(root, {}, PROGRAM, COMPLETE_VARIABLE, instruction)
    state = State(debug=os.environ.get("AGENT_ENV_DEBUG", "") not in ("", "0"))
    try:
        code = _invoke(argv, state)
    except BaseException as error:  # the outermost edge: every ending becomes an exit code, here and only here
        if isinstance(error, SystemExit | GeneratorExit):
            raise
        code = _report(_meaning(error, interruptions), state, argv)
    close_quietly()
    return code


def _invoke(argv: Sequence[str], state: State) -> int:
    try:
        with root.make_context(PROGRAM, list(argv), obj=state) as ctx:
            result: Any = root.invoke(ctx)
    except click.exceptions.Exit as ending:
        return ending.exit_code
    return result if isinstance(result, int) else 0


def _meaning(error: BaseException, interruptions: Interruptions | None) -> BaseException:
    """Of a group with a single member, that member: the group says nothing more. Of what a signal led to, the interruption."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    if interruptions is None or interruptions.first is None or isinstance(error, InterruptionError | CutShortError):
        return error
    reason: BaseException | None = error
    while reason is not None and not isinstance(reason, KeyboardInterrupt):  # enums and descriptors wrap what is raised as they are made
        reason = reason.__cause__ or reason.__context__
    if reason is None:
        return error
    interrupted = InterruptionError(interruptions.first)
    interrupted.__cause__ = error
    return interrupted


def _report(error: BaseException, state: State, argv: Sequence[str]) -> int:
    if isinstance(error, BrokenPipeError):
        return 0
    if state.debug:
        _show_traceback(error, state)
    known: dict[str, Any] = {}
    if isinstance(error, CutShortError):
        known, error = error.known, error.error
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        error_line(error.format_message())
        return error.exit_code
    code, facts = _describe(error)
    facts = _redacted(facts, state)
    if isinstance(error, InterruptionError) and error.shown:
        error_line("error: interrupted")
        return code
    if state.json or (isinstance(error, click.UsageError) and _takes_json(error, argv)):
        write_json({**known, "error": facts})
    _show(facts)
    if isinstance(error, click.UsageError) and error.ctx is not None:
        error_line(f"usage: {error.ctx.get_usage().removeprefix('Usage: ')}")
    return code


def _describe(error: BaseException) -> tuple[int, dict[str, Any]]:
    match error:
        case InterruptionError():
            return 128 + error.signal, _facts("interrupted", "interrupted", None)
        case KeyboardInterrupt() | click.Abort():
            return INTERRUPTED, _facts("interrupted", "interrupted", None)
        case ProblemsError():
            facts = _facts(error.code, error.message, error.hint)
            facts["problems"] = [{"file": p.file, "path": p.path, "message": p.message, "hint": p.hint} for p in error.problems]
            return error.exit_code, facts
        case AgentEnvError():
            concerns = repr(error.concerns or "")[1:-1]  # what was typed may hold line breaks; messages show it in this form too
            named = concerns and not (concerns in error.message or str(error.concerns) in error.message)
            return error.exit_code, _facts(error.code, f"{concerns}: {error.message}" if named else error.message, error.hint)
        case click.UsageError():
            return 2, _facts("usage", _plain(error.format_message()), _usage_hint(error))
        case click.ClickException():
            return error.exit_code, _facts("failed", error.format_message(), None)
        case OSError() if error.filename is None and error.errno in OUTPUT_FULL:  # click writes help by itself
            refused = output_refused(error)
            return 1, _facts(refused.code, refused.message, refused.hint)
        case FileNotFoundError() if _folder_is_gone():
            return 2, _facts("no_folder", "the folder that this command was started in has been removed", "go to one that exists: cd ~")
        case UnicodeEncodeError() if "surrogate" in error.reason:  # a name of the file system, whose bytes Python carries so
            name = repr(error.object if len(error.object) <= SHOWN_CHARACTERS else f"…{error.object[-SHOWN_CHARACTERS:]}")
            return 2, _facts("not_text", f"{name} is not UTF-8 text, as every name and path that is kept must be", "rename it")
        case OSError() if error.filename is not None:
            return 1, _facts("os", f"{error.filename}: {error.strerror or error}", "run again with --debug for the traceback")
        case _:
            text = " ".join(f"{type(error).__name__}: {error}".split())
            return 1, _facts("internal", text, "run again with --debug for the traceback, and please report it")


def _plain(message: str) -> str:
    """The parser's message on one line: it lists choices on lines of their own, and calls numbers within bounds a range."""
    return (
        " ".join(message.split())
        .replace(" is not a valid integer range.", " is no whole number.")
        .replace(" is not a valid float range.", " is no number.")
    )


def _folder_is_gone() -> bool:
    try:
        Path.cwd()
    except FileNotFoundError:
        return True
    return False


def _facts(code: str, message: str, hint: str | None) -> dict[str, Any]:
    return {"code": code, "message": message, "hint": hint}


def _redacted(value: Any, state: State) -> Any:
    """The facts without secrets: programs read them as people do."""
    match value:
        case str():
            return state.redact(value)
        case dict():
            return {key: _redacted(member, state) for key, member in value.items()}
        case list():
            return [_redacted(member, state) for member in value]
        case _:
            return value


def _show(facts: dict[str, Any]) -> None:
    error_line(f"error: {facts['message']}")
    for problem in facts.get("problems", ()):
        error_line(f"  {Problem(**problem)}")
    if facts["hint"]:
        error_line(f"hint: {facts['hint']}")


def _show_traceback(error: BaseException, state: State) -> None:
    import traceback

    error_line(state.redact("".join(traceback.format_exception(error))).rstrip())


def _usage_hint(error: click.UsageError) -> str | None:
    return f"{error.ctx.command_path} --help" if error.ctx is not None else None


def _takes_json(error: click.UsageError, argv: Sequence[str]) -> bool:
    """The arguments could not be parsed, so the flag was not seen; what was typed still says what the reader wants."""
    typed = argv[: list(argv).index("--")] if "--" in argv else argv
    command = error.ctx.command if error.ctx is not None else None
    return "--json" in typed and command is not None and any("--json" in param.opts for param in command.params)

"""The root command: finds commands by name without importing the others, and the classes that they are made of."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterable
from importlib import import_module
from math import isfinite
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any

import click

from agent_env.cli.command_table import ALIASES, COMMANDS, SECTIONS
from agent_env.cli.state import state_of

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

CONTEXT = {"help_option_names": ["-h", "--help"], "auto_envvar_prefix": None}
OTHER_WORDS = {
    "add": ("put", "set", "create"),
    "check": ("validate",),
    "create": ("put", "new", "set"),
    "delete": ("rm",),
    "describe": ("show", "get"),
    "down": ("rm", "teardown"),
    "get": ("show",),
    "help": ("--help",),
    "info": ("show", "get", "doctor"),
    "ls": ("list",),
    "new": ("put", "create"),
    "remove": ("rm",),
    "show": ("get",),
    "start": ("deploy", "run"),
    "stop": ("rm", "cancel"),
    "test": ("check", "validate"),
    "up": ("deploy",),
    "validate": ("check",),
    "version": ("--version",),
}
"""What other programs call a command → what ours may be called; the first that a group has is offered."""
MOST_RUNS = 100_000
"""Of one task in one call. Each is planned before the first begins: a slip of the keyboard must not take the machine's memory."""
NARROWEST = 20
"""Columns below which no help can be laid out."""


def same_command(**others: object) -> str:
    """The command line that is being run, as a shell reads it, with other values of some options.

    Args:
        others: Options by their parameter's name, and the values that they are to have.
    """
    ctx = click.get_current_context()
    words = ctx.command_path.split()
    for param in ctx.command.params:
        name = param.name or ""
        typed = ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
        if name not in others and not typed:
            continue
        value = others.get(name, ctx.params.get(name))
        for each in value if isinstance(value, list | tuple) else [value]:
            option = [max(param.opts, key=len)] if isinstance(param, click.Option) else []
            words += option if isinstance(param, click.Option) and param.is_flag else [*option, str(each)]
    return shlex.join(words)


class FiniteRange(click.FloatRange):
    """Numbers within bounds. `nan` compares with none, so a plain range takes it; and what is infinite is no limit."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if not isfinite(number):
            self.fail(f"{value!r} is no finite number.", param, ctx)
        return number


class FilePath(click.Path):
    """A path. The empty one, which an unset variable leaves behind, is none: pathlib would take it for the folder that one is in."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            self.fail("a path is not empty.", param, ctx)
        return super().convert(value, param, ctx)


class Formatter(click.HelpFormatter):
    """Help as wide as the terminal, narrow ones too; 80 columns where there is none."""

    def __init__(self, indent_increment: int = 2, width: int | None = None, max_width: int | None = None) -> None:
        del max_width
        super().__init__(indent_increment, width or max(get_terminal_size().columns - 2, NARROWEST))

    def write_dl(self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:
        """Writes terms and what they mean; terms take at most half of the width."""
        super().write_dl(list(rows), min(col_max, self.width // 2 - col_spacing), col_spacing)


class Context(click.Context):
    """Makes help with our formatter."""

    formatter_class = Formatter


class Command(click.Command):
    """A command that also takes `--debug` after its name, where people append it."""

    context_class = Context

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params.append(_debug_option(hidden=True))

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Reads the arguments. What is empty, or no text because its bytes are not in the terminal's encoding, is refused once for all."""
        rest = super().parse_args(ctx, args)
        for param in () if ctx.resilient_parsing else self.params:  # a shell that asks what comes next is told nothing of what stands there
            for value in _texts_of(param, ctx.params.get(param.name or "")):
                named = isinstance(param, click.Argument)
                if named and not value:
                    raise click.BadParameter("it is empty.", ctx, param)
                if not _is_text(value) and not (named and os.path.lexists(value)):  # what is there is told of by whoever opens it
                    raise click.BadParameter(f"{value!r} is not UTF-8 text.", ctx, param)
        return rest


def _texts_of(param: click.Parameter, value: Any) -> list[str]:
    """The texts that were given for an option or argument; paths and what is passed on untouched may hold any bytes."""
    if not isinstance(param.type, click.types.StringParamType):
        return []
    return [text for text in (value if isinstance(value, tuple) else (value,)) if isinstance(text, str)]


def _is_text(value: str) -> bool:
    return value.isascii() or not any("\ud800" <= character <= "\udfff" for character in value)


class Group(click.Group):
    """A group of our commands; an unknown name gets its near spellings."""

    command_class = Command
    context_class = Context

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes each command with its first sentence, whole."""
        found = [(name, command) for name in self.list_commands(ctx) if (command := self.get_command(ctx, name)) and not command.hidden]
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.get_short_help_str(limit=sys.maxsize)) for name, command in found])

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        """Finds the command of the first argument."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            from difflib import get_close_matches

            if "Did you mean" in error.message:
                raise
            known = self.list_commands(ctx)
            near = [word for word in OTHER_WORDS.get(args[0], ()) if word in known or word.startswith("-")]
            near = near or get_close_matches(args[0], known, n=1)
            if not near or (near[0].startswith("-") and ctx.parent is not None):
                raise
            raise click.UsageError(f"{error.message.rstrip('.')}. Did you mean {near[0]!r}?", ctx) from error


class Root(Group):
    """`agent-env`: a table of commands and whatever plug-ins add to it."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Every name, ours first."""
        del ctx
        from agent_env.cli.plugins import plugin_names

        return [*COMMANDS, *(name for name in plugin_names() if name not in COMMANDS)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Loads one command."""
        del ctx
        entry = COMMANDS.get(ALIASES.get(cmd_name, cmd_name))
        if entry is not None:
            module, _, attribute = entry.target.partition(":")
            command: click.Command = getattr(import_module(module), attribute)
            return command
        from agent_env.cli.plugins import load_plugin, plugin_names

        return load_plugin(cmd_name) if cmd_name in plugin_names() else None

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Completes command names from the table; click would import every command for its help line."""
        from click.shell_completion import CompletionItem

        items = [
            CompletionItem(name, help=COMMANDS[name].help if name in COMMANDS else "")
            for name in self.list_commands(ctx)
            if name.startswith(incomplete)
        ]
        return items or click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the table by sections, from the help lines inlined in it."""
        del ctx
        from agent_env.cli.plugins import plugin_names

        for title, commands in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name, entry.help) for name, entry in commands.items()])
        added = [name for name in plugin_names() if name not in COMMANDS]
        if added:
            with formatter.section("Plug-ins"):
                formatter.write_dl([(name, "") for name in added])


def _debug(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if value:
        from agent_env.cli.logs import show_debug_logs

        state = state_of(ctx)
        state.debug = True
        show_debug_logs(state)


def _debug_option(*, hidden: bool) -> click.Option:
    names = ["--debug"] if hidden else ["-v", "--verbose", "--debug"]
    return click.Option(
        names, is_flag=True, expose_value=False, callback=_debug, hidden=hidden, help="Debug logs and tracebacks on stderr."
    )


def _version(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if value:
        from agent_env import __version__

        click.echo(f"agent-env {__version__}")
        ctx.exit()


root = Root(
    name="agent-env",
    help="Build, deploy and run agentic environments, and the tasks that grade agents inside them.",
    epilog="\b\nFirst steps:\n  agent-env run hello\n  agent-env bundle new my-bundle\n  agent-env doctor",
    context_settings=CONTEXT,
    params=[
        click.Option(["-V", "--version"], is_flag=True, expose_value=False, is_eager=True, callback=_version, help="Print the version."),
        _debug_option(hidden=False),
    ],
)

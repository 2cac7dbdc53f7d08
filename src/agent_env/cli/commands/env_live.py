"""`agent-env env call|state|exec|shell|logs`: into an environment that is up."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import click

from agent_env.cli.completing import RUNS
from agent_env.cli.environments import live_environment, part_of
from agent_env.cli.frame import Command
from agent_env.cli.output import json_option, line, note, table, write_json
from agent_env.cli.session import run_async
from agent_env.errors import UnsupportedError, UsageError

if TYPE_CHECKING:
    from agent_env.places import Completed

server_option = click.option("--server", help="One of the environment's servers; its own place (the gateway's) when there are several.")


@click.command(cls=Command)
@click.argument("run", metavar="RUN[:ENV]", shell_complete=RUNS)
@click.argument("tool", required=False)
@click.argument("arguments", metavar="[ARGUMENTS]", required=False)
@click.option("--arg", "single", multiple=True, metavar="NAME=VALUE", help="One argument; VALUE is JSON, else text (repeatable).")
@click.option("--role", help="Whose call it is; nobody's when absent.")
@json_option
def call(*, run: str, tool: str | None, arguments: str | None, single: tuple[str, ...], role: str | None, as_json: bool) -> int:
    """Call TOOL with a JSON object of ARGUMENTS, or without TOOL list the tools.

    Exit code 1 when the tool says that it failed.
    """
    given = _arguments(arguments, single)

    async def work() -> Any:
        from agent_env_sdk.wire.names import ROLE_HEADER

        async with live_environment(run) as live, live.control.mcp(headers={ROLE_HEADER: role} if role else {}) as session:
            return await (session.tools() if tool is None else session.call(tool, given))

    answer = run_async(work)
    if tool is None:
        if as_json:
            write_json({"tools": answer})
        else:
            table(("TOOL", "ARGUMENTS", "WHAT IT DOES"), [_tool_row(each) for each in answer])
        return 0
    if as_json:
        write_json(answer)
    for part in answer.get("content") or () if not as_json else ():
        line(str(part["text"]) if part.get("type") == "text" else json.dumps(part, ensure_ascii=False))
    return 1 if answer.get("isError") else 0


def _arguments(whole: str | None, single: tuple[str, ...]) -> dict[str, Any]:
    try:
        given = json.loads(whole) if whole else {}
    except ValueError as error:
        raise UsageError(f"ARGUMENTS is no JSON: {error}", hint="""such as '{"text": "hello"}'""") from error
    if not isinstance(given, dict):
        raise UsageError("ARGUMENTS is a JSON object", hint="""such as '{"text": "hello"}'""")
    for text in single:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise UsageError("--arg takes NAME=VALUE", concerns=name)
        try:
            given[name] = json.loads(value)
        except ValueError:
            given[name] = value
    return given


def _tool_row(tool: dict[str, Any]) -> tuple[str, str, str]:
    schema = tool.get("inputSchema") or {}
    needed = schema.get("required") or ()
    names = [name if name in needed else f"[{name}]" for name in schema.get("properties") or {}]
    return tool["name"], " ".join(names), str(tool.get("description") or "").partition("\n")[0]


@click.command(cls=Command)
@click.argument("run", metavar="RUN[:ENV]", shell_complete=RUNS)
@click.option("--data", is_flag=True, help="Also what each server holds.")
@json_option
def state(run: str, data: bool, as_json: bool) -> None:
    """Say what an environment consists of and, with a gateway, its tools and roles; with --data what its servers hold."""

    async def work() -> dict[str, Any]:
        from agent_env_sdk.wire.names import GET, STATE

        async with live_environment(run) as live:
            record = live.record
            found: dict[str, Any] = {
                "env_id": record.env_id,
                "instance_id": record.instance_id,
                "provider": record.env_provider_type,
                "mcp_url": record.server_url,
                "servers": {key: {"kind": part.kind, "image": part.image} for key, part in live.parts.items()},
                "gateway": await live.control.invoke(STATE, {}) if live.has_gateway else None,
            }
            if data:
                held = {}
                for key in live.parts:
                    client = live.client(key)
                    held[key] = await client.get() if GET in await client.operations() else None
                found["data"] = held
            return found

    facts = run_async(work)
    if as_json or data:
        write_json(facts)
        return
    line(f"{facts['env_id']}  {facts['mcp_url']}")
    table(("SERVER", "KIND", "IMAGE"), [(key, part["kind"], part["image"]) for key, part in facts["servers"].items()])
    gateway = facts["gateway"] or {}
    for server in gateway.get("mcp_servers") or ():
        line(f"{server['name']}: {', '.join(tool['name'] for tool in server['tools']) or 'no tools'}")
    for role, rules in (gateway.get("roles") or {}).items():
        line(f"role {role}: disabled {', '.join(rules['disabled']) or 'nothing'}; allowed {', '.join(rules['allowed']) or 'nothing'}")


@click.command("exec", cls=Command, context_settings={"allow_interspersed_args": False})
@server_option
@click.option("--user", help="A user of the place; its own by default.")
@click.argument("run", metavar="RUN[:ENV]", shell_complete=RUNS)
@click.argument("argv", metavar="-- COMMAND [ARG]...", nargs=-1, type=click.UNPROCESSED, required=True)
def exec_(*, run: str, server: str | None, user: str | None, argv: tuple[str, ...]) -> int:
    """Run one command in a server's container and exit with its exit code. Options stand before RUN."""
    from agent_env.cli.commands.places import exit_code
    from agent_env.cli.terminal import pass_through
    from agent_env.places import Command as PlaceCommand

    words = argv[1:] if argv[:1] == ("--",) else argv
    if not words:
        raise UsageError("there is no command to run", hint="agent-env env exec RUN -- ls -l /data")

    async def work() -> Completed:
        async with live_environment(run) as live:
            place = await live.place(part_of(live, server))
            return await pass_through(place, PlaceCommand(words, user=user), None, None)

    return exit_code(run_async(work))


@click.command(cls=Command)
@server_option
@click.option("--user", help="A user of the place; its own by default.")
@click.option("--shell", "program", default="sh", show_default=True, help="The shell to start.")
@click.argument("run", metavar="RUN[:ENV]", shell_complete=RUNS)
def shell(*, run: str, server: str | None, user: str | None, program: str) -> int:
    """Open a shell in a server's container. Its exit code is the shell's."""
    from agent_env.cli.commands.places import exit_code
    from agent_env.cli.terminal import interactive_shell, piped_shell, standard_input

    async def work() -> Completed:
        async with live_environment(run) as live:
            place = await live.place(part_of(live, server))
            if sys.stdin.isatty() and sys.stdout.isatty():
                return await interactive_shell(place, program, user)
            return await piped_shell(place, program, user, standard_input())

    return exit_code(run_async(work))


@click.command(cls=Command)
@server_option
@click.option("--tail", type=click.IntRange(min=1), default=200, show_default=True, help="How many lines from the end.")
@click.argument("run", metavar="RUN[:ENV]", shell_complete=RUNS)
@json_option
def logs(*, run: str, server: str | None, tail: int, as_json: bool) -> None:
    """Print what a server has written, or all servers, each line with its server's name."""

    async def work() -> dict[str, str]:
        async with live_environment(run) as live:
            wanted = [server] if server else [*live.parts, *([None] if live.has_gateway else [])]
            return {name or "gateway": await _log(live, name, tail) for name in wanted}

    found = run_async(work)
    if as_json:
        write_json({"logs": found})
        return
    for name, text in found.items():
        for each in text.splitlines():
            line(f"{name}: {each}" if len(found) > 1 else each)
        if not text:
            note(f"{name}: nothing")


async def _log(live: Any, name: str | None, tail: int) -> str:
    from agent_env.containers import ContainerPlace

    place = await live.place(part_of(live, name) if name else None)
    if not isinstance(place, ContainerPlace):
        raise UnsupportedError("only containers of an engine have a log", hint="look inside with `env shell`")
    async with place.engine.asking("reading a log", concerns=place.name) as docker:
        lines = await docker.containers.container(place.id).log(stdout=True, stderr=True, tail=tail)
    return "".join(lines)

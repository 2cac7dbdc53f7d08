"""What agents act with: a shell, and the tools of the MCP servers that they were given."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import signal
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from .turns import McpServer

if TYPE_CHECKING:
    from agent_env_sdk.mcp_session import McpSession

SHELL_SECONDS: Final = 600.0
TOOL_SECONDS: Final = 600.0
GRACE_SECONDS: Final = 1.0
"""How long the output of processes that a command left behind is waited for after its end; what `proxy/v1` says."""
KEPT_OUTPUT: Final = 16 * 1024
"""Characters of a command's output that are kept at each end: more than this no model reads."""
KEPT_BYTES: Final = 4 * KEPT_OUTPUT


@dataclass(frozen=True, slots=True)
class ShellResult:
    """How a command ended."""

    output: str
    """What it wrote, on both streams together; the middle is left out when it is long."""
    exit_code: int | None
    """None: it took too long and was ended."""


async def shell(command: str, *, folder: Path | None = None, timeout_seconds: float = SHELL_SECONDS) -> ShellResult:
    """Runs a command in a process group of its own, which is ended with it: at its end, at the timeout, and when the turn is cancelled."""
    program = shutil.which("bash") or "sh"
    kept = _Kept()
    # A pipe of our own: asyncio's `wait` would wait for its pipes too, which processes that were left behind hold open.
    async with pipe() as (reader, writing):
        try:
            running = await asyncio.create_subprocess_exec(
                program, "-c", command, cwd=folder, start_new_session=True, stdin=asyncio.subprocess.DEVNULL, stdout=writing, stderr=writing
            )  # fmt: skip
        finally:
            os.close(writing)
        try:
            async with asyncio.timeout(timeout_seconds):
                await _read(reader, kept, running)
                await running.wait()
            return ShellResult(kept.text(), running.returncode)
        except TimeoutError:
            return ShellResult(f"{kept.text()}\n[ended after {timeout_seconds:g} seconds]", None)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)
            await running.wait()


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool of an MCP server, under a name that no other tool of the agent has."""

    name: str
    server: str
    tool: str
    description: str
    schema: dict[str, Any]


class Toolbox:
    """Tools of several servers, while their sessions are open."""

    def __init__(self, sessions: Mapping[str, McpSession], tools: Mapping[str, Tool]) -> None:
        self._sessions, self.tools = sessions, tools

    async def call(self, server: str, tool: str, arguments: Mapping[str, Any]) -> tuple[str, bool]:
        """What a tool answers as text, and whether that is an error."""
        session = self._sessions.get(server)
        if session is None:
            return f"there is no MCP server named {server!r}; there are {', '.join(self._sessions) or 'none'}", True
        import httpx

        from agent_env_sdk.mcp_session import McpError

        try:
            result = await session.call(tool, arguments)
        except (McpError, httpx.HTTPError) as error:
            return f"{type(error).__name__}: {error}", True
        return "\n".join(str(each.get("text", f"[{each.get('type')}]")) for each in result.content), result.is_error


@asynccontextmanager
async def toolbox(servers: Mapping[str, McpServer]) -> AsyncIterator[Toolbox]:
    """Opens a session with each server and lists its tools.

    Raises:
        httpx.HTTPError: A server can't be reached.
        McpError: A server refused the session.
    """
    if not servers:
        yield Toolbox({}, {})
        return
    # Where they are used: an agent's start need not wait for them.
    import httpx

    from agent_env_sdk.mcp_session import McpSession

    async with AsyncExitStack() as held:
        sessions: dict[str, McpSession] = {}
        tools: dict[str, Tool] = {}
        for name, server in servers.items():
            http = await held.enter_async_context(httpx.AsyncClient(timeout=TOOL_SECONDS, follow_redirects=False))
            session = sessions[name] = McpSession(http, server.url, server.headers)
            await session.open()
            for listed in await session.tools():
                free = _free_name(str(listed["name"]), name, tools)
                tools[free] = Tool(
                    free, name, listed["name"], listed.get("description") or "", listed.get("inputSchema") or {"type": "object"}
                )
        try:
            yield Toolbox(sessions, tools)
        finally:
            for session in sessions.values():
                with contextlib.suppress(httpx.HTTPError):
                    await session.close()


class _Kept:
    """The beginning and the end of what was written."""

    def __init__(self) -> None:
        self._head, self._tail, self._left_out = b"", b"", 0

    def add(self, chunk: bytes) -> None:
        room = max(0, KEPT_BYTES - len(self._head))
        self._head += chunk[:room]
        tail = self._tail + chunk[room:]
        self._left_out += max(0, len(tail) - KEPT_BYTES)
        self._tail = tail[-KEPT_BYTES:]

    def text(self) -> str:
        between = f"\n[… {self._left_out} bytes left out …]\n" if self._left_out else ""
        return self._head.decode(errors="replace") + between + self._tail.decode(errors="replace")


@asynccontextmanager
async def pipe(longest_line: int = KEPT_BYTES) -> AsyncIterator[tuple[asyncio.StreamReader, int]]:
    """A pipe: who reads it here, and its other end, which whoever is given it closes.

    Args:
        longest_line: Bytes that a line may hold, where lines are read.
    """
    reading, writing = os.pipe()
    reader = asyncio.StreamReader(limit=longest_line)
    protocol = asyncio.StreamReaderProtocol(reader)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, os.fdopen(reading, "rb", 0))
    try:
        yield reader, writing
    finally:
        transport.close()


async def _read(stream: asyncio.StreamReader, kept: _Kept, running: asyncio.subprocess.Process) -> None:
    """Reads until the command's end; what a process that it left behind writes later isn't waited for."""
    ended = asyncio.create_task(running.wait())
    try:
        while chunk := await read_until(ended, stream.read(KEPT_OUTPUT)):
            kept.add(chunk)
    finally:
        ended.cancel()


async def read_until(ended: asyncio.Task[int], read: Coroutine[Any, Any, bytes]) -> bytes:
    """What is read next; nothing once the command has ended and all that it wrote itself was read. Raises what `read` raises."""
    reading = asyncio.ensure_future(read)
    done, _ = await asyncio.wait({reading, ended}, return_when=asyncio.FIRST_COMPLETED)
    if reading not in done:
        # The command has ended: what it wrote itself is in the pipe by now.
        done, _ = await asyncio.wait({reading}, timeout=GRACE_SECONDS)
    if reading not in done:
        reading.cancel()
        return b""
    return reading.result()


def _free_name(tool: str, server: str, taken: Mapping[str, Tool]) -> str:
    """A name that model APIs take: letters, digits, `_` and `-`, at most 64."""
    clean = re.sub(r"[^A-Za-z0-9_-]", "_", tool)[:64]
    if clean not in {*taken, "shell"}:
        return clean
    longer = re.sub(r"[^A-Za-z0-9_-]", "_", f"{server}_{tool}")[:60]
    number = next(number for number in range(1, len(taken) + 3) if (longer if number == 1 else f"{longer}_{number}") not in taken)
    return longer if number == 1 else f"{longer}_{number}"

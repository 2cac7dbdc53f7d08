"""A tool call, whoever makes it: an agent over MCP, `/step`, or a trigger. Forwarded as it came, recorded, attributed, bounded."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

from agent_env_sdk.wire.clock import ClockError, current_time
from agent_env_sdk.wire.names import DEFAULT_ROLE, IDEMPOTENCY_META

from agent_env.gateway import jsontext
from agent_env.gateway.catalogue import Entry
from agent_env.gateway.changelog import Changelog
from agent_env.gateway.child import Child
from agent_env.gateway.defaults import GatewayLimits
from agent_env.gateway.marking import Caller, Marked, Marker
from agent_env.gateway.questions import refusal
from agent_env.gateway.ruling import Ruling
from agent_env.gateway.session import Audience, ChildError, Reply
from agent_env.gateway.trajectory import RawJson, Trajectory

ROUTED_KEYS = ("name", "arguments")
"""Keys of a call's parameters, besides its `_meta`, that decide what happens."""
NO_ANSWER = -32000
"""The JSON-RPC code of an answer that a server did not give."""


class Nobody:
    """Whoever calls without being there to be spoken to."""

    key = ""

    def told(self, text: str) -> None:
        """Nobody hears it."""

    async def asked(self, method: str, _params: str | None) -> Reply:
        """Nobody answers."""
        return refusal(f"nobody is there to answer {method}: the call was made by the environment itself")


NOBODY = Nobody()


@dataclass(frozen=True, slots=True)
class Made:
    """A call that was made, as triggers look at it."""

    caller: Caller
    entry: Entry
    arguments: Mapping[str, Any]
    result: Any
    """The result's JSON value."""

    @property
    def failed(self) -> bool:
        """Whether the tool said so."""
        return isinstance(self.result, dict) and self.result.get("isError") is True


class Watcher(Protocol):
    """What wants to know of calls."""

    def wants(self, caller: Caller) -> bool:
        """Whether calls of this caller matter at all now."""
        ...

    async def seen(self, made: Made) -> None:
        """A call was answered. Returns when its answer may go out."""
        ...

    def causes(self, role: str) -> list[dict[str, Any]]:
        """Which fires a call of this role comes from."""
        ...


@dataclass(frozen=True, slots=True)
class Asked:
    """Parameters of a request that is no tool call."""

    params: str
    routed: Collection[str]
    """Keys that decide what happens."""
    renamed: Mapping[str, str] = field(default_factory=dict)
    """Members that the server gets another value of, as JSON text."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a call came to. Exactly one of the texts is set."""

    result: str | None
    error: str | None
    position: int | None = None
    """The database's log of changes after it."""
    fault: ChildError | None = None
    """Why the server gave no answer; then `result` of a tool call, and `error` of any other, says so to the agent."""


@dataclass(frozen=True, slots=True)
class Window:
    """Which changes an event may have made: those after `before`, up to `after`."""

    before: int
    after: int
    actor: Mapping[str, Any] = field(default_factory=dict)


class Windows:
    """The latest windows."""

    def __init__(self, most: int) -> None:
        self._kept: deque[Window] = deque(maxlen=most)

    def add(self, before: int | None, after: int | None, actor: Mapping[str, Any]) -> None:
        """Keeps a window that may hold changes."""
        if before is not None and after is not None and after > before:
            self._kept.append(Window(before, after, actor))

    def actors(self, first: int, last: int) -> dict[int, list[Mapping[str, Any]]]:
        """Who may have made each change between two ids, both included."""
        touching = [window for window in self._kept if window.before < last and window.after >= first]
        found: dict[int, list[Mapping[str, Any]]] = {}
        for window in touching:
            for change in range(max(window.before + 1, first), min(window.after, last) + 1):
                found.setdefault(change, []).append(window.actor)
        return found


class Calls:
    """Makes calls. See the module.

    Args:
        ruling: The rules and the clock.
        trajectory: Where they are recorded.
        changelog: What they are attributed by, where there is a database.
        limits: How long, how many.
        consistent: One at a time.
    """

    def __init__(
        self, ruling: Ruling, trajectory: Trajectory, changelog: Changelog | None, limits: GatewayLimits, *, consistent: bool
    ) -> None:
        self.ruling = ruling
        self.trajectory = trajectory
        self.changelog = changelog
        self.windows = Windows(limits.windows)
        self.watcher: Watcher | None = None
        self.websites: Mapping[str, str] = {}
        """Frontends by name, as `list_website_urls` tells them."""
        self.in_progress = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self.limits = limits
        self._one: AbstractAsyncContextManager[Any] = asyncio.Lock() if consistent else nullcontext()
        self._marker = Marker()

    async def position(self) -> int | None:
        """Where the database's log of changes stands; None without one."""
        return await self.changelog.position() if self.changelog is not None else None

    async def idle(self) -> None:
        """Waits until no call is in progress."""
        await self._idle.wait()

    async def call(
        self,
        caller: Caller,
        entry: Entry,
        params: str,
        *,
        audience: Audience = NOBODY,
        source: Literal["mcp", "step_api"] = "mcp",
        record: Mapping[str, Any] | None = None,
    ) -> Answer:
        """Makes one call.

        Args:
            caller: Who; replaces whatever `params` say of it.
            entry: What.
            params: The parameters of `tools/call`, as the caller wrote them: an object with `name` and `arguments`.
            audience: Whom the server may speak to meanwhile.
            source: Which way it came.
            record: Further fields of its event.

        Raises:
            jsontext.JsonTextError: `params` is no such object.
        """
        marked = self._marked(caller, entry, params)
        arguments = marked.given.get("arguments", "{}")
        fields = {"tool_call": {"function_name": entry.name, "arguments": RawJson(arguments)}, **(record or {})}
        fields |= {"role": caller.role, **self._circumstances(caller, source)}
        actor = {"kind": "tool_call", "role": caller.role, "tool": entry.name}
        event = self._begun("tool_call", fields, marked, len(params))
        async with self._in_progress("tool_call", event), self._one:
            before = await self.position()
            answer = await self._forward(entry, marked, arguments, audience, self.limits.call_seconds)
            after = await self.position()
        self._answered("tool_call", event, actor, answer, (before, after))
        await self._watched(caller, entry, arguments, answer)
        return Answer(answer.result, answer.error, after, answer.fault)

    async def fetch(self, caller: Caller, child: Child, method: str, asked: Asked, audience: Audience = NOBODY) -> Answer:
        """Asks a server for something that is no tool call: a resource, a prompt, a completion.

        Args:
            caller: Who; replaces whatever the parameters say of it.
            child: Whom.
            method: The MCP method.
            asked: Its parameters.
            audience: Whom the server may speak to meanwhile.

        Raises:
            jsontext.JsonTextError: The parameters are no object, or say the same thing twice.
        """
        marked = self._marker.mark(caller, asked.params, routed=asked.routed, renamed=asked.renamed)
        said = {"method": method, "params": RawJson(asked.params)}
        fields = {"mcp_request": said, "server": child.name, "role": caller.role, **self._circumstances(caller, "mcp")}
        actor = {"kind": "mcp_request", "role": caller.role, "method": method}
        event = self._begun("mcp_request", fields, marked, len(asked.params))
        async with self._in_progress("mcp_request", event):
            before = await self.position()
            answer = await self._asked(child, method, marked, audience, self.limits.call_seconds)
            after = await self.position()
        self._answered("mcp_request", event, actor, answer, (before, after))
        return Answer(answer.result, answer.error, after, answer.fault)

    def questioned(self, caller: Caller, method: str, params: str | None, reply: Reply) -> None:
        """Records what a server asked an agent's client, and what it heard."""
        heard = {"result": RawJson(reply.result)} if reply.result is not None else {"error": RawJson(reply.error or "null")}
        asked = {"method": method, "params": RawJson(params or "null")}
        fields = {"server_question": asked, **heard, "role": caller.role, **self._circumstances(caller, "mcp")}
        self.trajectory.add("server_question", fields, size=len(params or "") + len(reply.result or "") + 512)

    async def internal(self, role: str | None, entry: Entry, arguments: str, seconds: float, *, key: str | None = None) -> Answer:
        """A call of the environment's own (a trigger's): no rule applies to it, and whoever makes it records it.

        Args:
            role: What the server is told; None is the default role.
            entry: What.
            arguments: As JSON text.
            seconds: How long it may take.
            key: What the server can tell by that it was asked for the same before; None where it does not matter.
        """
        meta = f',"_meta":{json.dumps({IDEMPOTENCY_META: key})}' if key is not None else ""
        params = f'{{"name":{json.dumps(entry.name)},"arguments":{arguments}{meta}}}'
        async with self._one:
            marked = self._marked(Caller(role or DEFAULT_ROLE), entry, params)
            return await self._forward(entry, marked, arguments, NOBODY, seconds)

    def refused(self, caller: Caller, name: str, method: str = "tools/call") -> None:
        """Records that somebody asked for what is not for them, or for what is no tool and not there."""
        if method == "tools/call":
            kind, fields = "tool_call_refused", {"function_name": name, "error": "disabled for this role"}
        else:
            kind, fields = "mcp_request_refused", {"method": method, "name": name, "error": "not there, or not for this role"}
        self.trajectory.add(kind, {**fields, "role": caller.role, **self.ruling.virtual_time()})

    async def _watched(self, caller: Caller, entry: Entry, arguments: str, answer: Answer) -> None:
        watcher = self.watcher
        if watcher is None or answer.fault is not None or answer.result is None or not watcher.wants(caller):
            return
        built = jsontext.value_of(arguments)
        made = Made(caller, entry, built if isinstance(built, dict) else {}, jsontext.value_of(answer.result))
        await watcher.seen(made)

    def _circumstances(self, caller: Caller, source: str) -> dict[str, Any]:
        causes = self.watcher.causes(caller.role) if self.watcher is not None else []
        return {
            **({"session": caller.session} if caller.session is not None else {}),
            **({"source": source} if source == "step_api" else {}),
            **({"caused_by": causes} if causes else {}),
            **self.ruling.virtual_time(),
        }

    def _begun(self, kind: str, fields: Mapping[str, Any], marked: Marked, size: int) -> str:
        forged = {"forged_identity": marked.forged} if marked.forged else {}
        return self.trajectory.add(kind, {**fields, **forged}, size=size + 512)

    @asynccontextmanager
    async def _in_progress(self, kind: str, event: str) -> AsyncIterator[None]:
        self.in_progress += 1
        self._idle.clear()
        try:
            yield
        except asyncio.CancelledError:
            fields = {f"{kind}_event_id": event, "error": "cancelled", **self.ruling.virtual_time()}
            self.trajectory.add(f"{kind}_failed", fields)
            raise
        finally:
            self.in_progress -= 1
            if not self.in_progress:
                self._idle.set()

    def _answered(self, kind: str, event: str, actor: Mapping[str, Any], answer: Answer, span: tuple[int | None, int | None]) -> None:
        text = answer.result if answer.result is not None else answer.error or "null"
        fields: dict[str, Any] = {f"{kind}_event_id": event}
        if answer.fault is not None or answer.result is None:
            outcome = "failed"
            fields["error"] = str(answer.fault) if answer.fault is not None else RawJson(text)
        else:
            outcome = "result"
            fields[f"{kind}_result"] = RawJson(text)
        fields |= {"changelog_id_before": span[0], "changelog_id": span[1], **self.ruling.virtual_time()}
        self.trajectory.add(f"{kind}_{outcome}", fields, size=len(text) + 512)
        self.windows.add(span[0], span[1], {"kind": actor["kind"], "event_id": event, **actor})

    async def _forward(self, entry: Entry, marked: Marked, arguments: str, audience: Audience, seconds: float) -> Answer:
        if entry.child is None:
            return self._own(entry, arguments)
        answer = await self._asked(entry.child, "tools/call", marked, audience, seconds)
        return answer if answer.fault is None else replace(answer, result=failed_result(str(answer.fault)), error=None)

    async def _asked(self, child: Child, method: str, marked: Marked, audience: Audience, seconds: float) -> Answer:
        try:
            reply = await child.request(method, marked.params, seconds=seconds, audience=audience, progress=marked.progress)
        except ChildError as error:
            return Answer(None, json.dumps({"code": NO_ANSWER, "message": str(error)}), fault=error)
        return Answer(reply.result, reply.error)

    def _own(self, entry: Entry, arguments: str) -> Answer:
        """The gateway's own tools, which only read: `get_time` while the clock is armed, `list_website_urls` where there are websites."""
        if entry.tool.name == "list_website_urls":
            return Answer(_structured({"websites": [{"name": name, "url": url} for name, url in self.websites.items()]}), None)
        clock = self.ruling.clock
        given = jsontext.value_of(arguments)
        if clock is None:
            return Answer(failed_result(f"Unknown tool: {entry.name}"), None)
        try:
            value = current_time(clock.now(self.ruling.real()), given.get("time_zone") if isinstance(given, dict) else None)
        except ClockError as error:
            return Answer(failed_result(str(error)), None)
        return Answer(_structured(value), None)

    def _marked(self, caller: Caller, entry: Entry, params: str) -> Marked:
        renamed = {"name": json.dumps(entry.tool.name)} if entry.name != entry.tool.name else None
        return self._marker.mark(caller, params, routed=ROUTED_KEYS, renamed=renamed)


def _structured(value: Mapping[str, Any]) -> str:
    return json.dumps({"content": [{"type": "text", "text": json.dumps(value)}], "structuredContent": value, "isError": False})


def failed_result(message: str) -> str:
    """A tool's result that says it failed."""
    return json.dumps({"content": [{"type": "text", "text": message}], "isError": True})

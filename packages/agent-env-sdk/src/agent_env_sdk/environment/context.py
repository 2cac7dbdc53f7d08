"""Who calls, and what for: values that a handler may ask for, bound to the call that runs."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from agent_env_sdk.wire.errors import AgentEnvError
from agent_env_sdk.wire.names import ROLE_HEADER, ROLE_META, SESSION_HEADER, SESSION_META, normal_role

Report = Callable[[float, float | None, str | None], Awaitable[None]]
_EMPTY: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Caller:
    """The identity that a call arrived with. It is what the caller or its gateway says, not a proof."""

    role: str | None = None
    """None when no role was sent, and for the gateway's `default`."""
    session: str | None = None
    """Tells agents apart that share one connection."""

    @classmethod
    def of(cls, meta: Mapping[str, Any] | None, headers: Mapping[str, str] | None) -> Caller:
        """The caller of a request.

        A role in `_meta`, whatever its value, marks the call as a gateway's: then headers are the gateway's own and say
        nothing about the caller.

        Args:
            meta: The call's `_meta`.
            headers: The request's headers, looked up without regard to case.
        """
        if meta is not None and ROLE_META in meta:
            session = meta.get(SESSION_META)
            return cls(normal_role(meta[ROLE_META]), session if isinstance(session, str) and session else None)
        sent = headers if headers is not None else {}
        return cls(normal_role(sent.get(ROLE_HEADER)), sent.get(SESSION_HEADER) or None)


@dataclass(frozen=True, slots=True)
class ToolContext:
    """What is known of one call of a tool or an extension."""

    caller: Caller = field(default_factory=Caller)
    tool: str = ""
    arguments: Mapping[str, Any] = field(default_factory=lambda: _EMPTY, hash=False)
    """As they were sent; read-only."""
    call_id: str = ""
    report: Report | None = field(default=None, repr=False, compare=False)

    @property
    def role(self) -> str | None:
        """The caller's role."""
        return self.caller.role

    async def progress(self, done: float, total: float | None = None, message: str | None = None) -> None:
        """Tells the caller how far the call is; nothing happens when the caller didn't ask for it."""
        if self.report is not None:
            await self.report(done, total, message)

    @staticmethod
    def current() -> ToolContext:
        """The context of the call that this code runs for; an empty one outside of any."""
        return _current.get()

    @classmethod
    def acting_as(
        cls, role: str | None = None, session: str | None = None, *, tool: str = "", arguments: Mapping[str, Any] | None = None
    ) -> ToolContext:
        """A context for code that acts for a role outside of any call, such as a test; bind it with `bound`."""
        return cls(Caller(normal_role(role), session), tool, frozen(arguments), uuid.uuid4().hex)


_NOBODY = ToolContext()
_current: ContextVar[ToolContext] = ContextVar("agent_env_tool_context", default=_NOBODY)


@contextmanager
def bound(context: ToolContext) -> Iterator[ToolContext]:
    """Makes the context the current one in the block."""
    token = _current.set(context)
    try:
        yield context
    finally:
        _current.reset(token)


def frozen(arguments: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """A read-only copy."""
    return MappingProxyType(dict(arguments or {}))


@dataclass(slots=True)
class Progress:
    """How far a load is, as its handler tells."""

    done: float = 0.0
    total: float | None = None
    message: str | None = None

    def to_json(self) -> dict[str, Any]:
        """As the status of an operation shows it."""
        return {"done": self.done, "total": self.total, "message": self.message}


class LoadContext:
    """A load that runs: a parameter annotated `LoadContext` of an `@add_data` handler receives it.

    It works the same when the load was not started as an operation; then nobody watches.
    """

    def __init__(self, changed: Callable[[], None] | None = None) -> None:
        self.progress = Progress()
        self._changed = changed
        self._stop = threading.Event()

    def tell(self, done: float, total: float | None = None, message: str | None = None) -> None:
        """Says how far the load is, in the handler's own unit; from any thread.

        Raises:
            AgentEnvError: `load_cancelled`: a handler that isn't async stops here.
        """
        if self._stop.is_set():
            raise AgentEnvError("load_cancelled", "the load was cancelled")
        self.progress = Progress(done, total, message)
        if self._changed is not None:
            self._changed()

    @property
    def cancelled(self) -> bool:
        """Whether the load was cancelled."""
        return self._stop.is_set()

    def cancel(self) -> None:
        """Asks the handler to stop."""
        self._stop.set()

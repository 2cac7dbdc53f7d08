"""What the control door decides and a restart must not forget: tool access, the clock, who was shut out. One value of each, journalled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agent_env_sdk.wire.access import Action, ToolAccess
from agent_env_sdk.wire.clock import VirtualClock

from agent_env.clock import SystemClock
from agent_env.gateway.defaults import GatewayLimits
from agent_env.gateway.journal import Journal
from agent_env.gateway.tokens import AgentToken, SessionId

_ACCESS = "access"
_CLOCK = "clock"
_ENDED = "ended/"
_REVOKED = "revoked/"
_REVOKED_ROLE = "revoked-role/"


class Ruling:
    """See the module.

    Args:
        journal: Where it is kept.
        limits: How much of it.
        changed: Called when what agents may see changed.
    """

    def __init__(self, journal: Journal, limits: GatewayLimits, changed: Callable[[], None]) -> None:
        self._journal = journal
        self._limits = limits
        self._changed = changed
        self._wall = SystemClock()
        self.armed: Callable[[], None] | None = None
        """Called when the clock was set or taken away."""
        self.access = ToolAccess.from_json(journal.get(_ACCESS) or {})
        clock = journal.get(_CLOCK)
        self.clock: VirtualClock | None = VirtualClock.from_json(clock) if clock else None
        self._ended = dict.fromkeys(key for key, _ in journal.under(_ENDED))
        self._revoked = {key for key, _ in journal.under(_REVOKED)}
        self._revoked_roles = {key for key, _ in journal.under(_REVOKED_ROLE)}

    # tool access

    async def change_access(self, action: Action, body: object) -> dict[str, Any]:
        """One request of `/tools/enable` or `/tools/disable`; durable when it returns.

        Raises:
            agent_env_sdk.wire.AgentEnvError: The body says nothing usable.
        """
        after, answer = self.access.change(action, body)
        self.access = after
        self._changed()
        await self._journal.put(_ACCESS, after.to_json())
        return answer

    # the clock

    def real(self) -> float:
        """Real seconds as the clock is armed with: the wall's, because monotonic ones don't survive a restart of the machine."""
        return self._wall.now().timestamp()

    async def arm(self, virtual_time: object, rate: object) -> VirtualClock:
        """Arms the clock, anew where it is armed.

        Raises:
            agent_env_sdk.wire.ClockError: The time or rate can't be taken.
        """
        clock = VirtualClock.arm(virtual_time, rate, self.real())
        self.clock = clock
        self._changed()
        if self.armed is not None:
            self.armed()
        await self._journal.put(_CLOCK, clock.to_json())
        return clock

    async def disarm(self) -> None:
        """Takes the clock away."""
        self.clock = None
        self._changed()
        if self.armed is not None:
            self.armed()
        await self._journal.put(_CLOCK, None)

    def virtual_time(self) -> dict[str, Any]:
        """`{"virtual_time": …}` while the clock is armed, else nothing."""
        return self.clock.time(self.real()) if self.clock is not None else {}

    # who is shut out

    async def revoke(self, token: AgentToken) -> None:
        """This token lets nobody in any more."""
        self._revoked.add(token.nonce)
        await self._journal.put(_REVOKED + token.nonce, token.role)

    async def revoke_role(self, role: str) -> None:
        """No token of this role lets anybody in any more."""
        self._revoked_roles.add(role)
        await self._journal.put(_REVOKED_ROLE + role, True)

    def is_revoked(self, token: AgentToken) -> bool:
        """Whether a token that was made with the key no longer holds."""
        return token.nonce in self._revoked or token.role in self._revoked_roles

    async def end_session(self, session: SessionId) -> None:
        """The session is over; its id is never taken again."""
        self._ended[session.key] = None
        while len(self._ended) > self._limits.ended_sessions:
            oldest = next(iter(self._ended))
            del self._ended[oldest]
            self._journal.note(_ENDED + oldest, None)
        await self._journal.put(_ENDED + session.key, True)

    def has_ended(self, session: SessionId) -> bool:
        """Whether it was ended."""
        return session.key in self._ended

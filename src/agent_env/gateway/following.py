"""What sessions of agents asked to be told: which resources they follow, and from which level on they hear logs. A restart of the gateway
or of a server changes neither: the one remembers, the other is told again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from agent_env.gateway.child import Child, Wish
from agent_env.gateway.defaults import GatewayLimits
from agent_env.gateway.journal import Journal
from agent_env.gateway.tokens import SessionId

LEVELS: Final = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
_KEY = "following/"


@dataclass
class _Wanted:
    """What one session asked for."""

    role: str
    level: str | None = None
    resources: dict[str, tuple[str, str]] = field(default_factory=dict)
    """URI as the session knows it → server, and URI as that knows it."""
    news: set[str] = field(default_factory=set)
    """Those that changed while the session did not listen."""

    def to_json(self) -> dict[str, Any]:
        return {"role": self.role, "level": self.level, "resources": self.resources}


class Following:
    """See the module.

    Args:
        journal: Where it is kept.
        limits: How much of it.
    """

    def __init__(self, journal: Journal, limits: GatewayLimits) -> None:
        self._journal = journal
        self._limits = limits
        self.news: Callable[[str], None] = lambda _key: None
        """Told the key of a session that has news."""
        self._wanted: dict[str, _Wanted] = {}
        for key, value in journal.under(_KEY):
            kept = {uri: (server, own) for uri, (server, own) in value["resources"].items()}
            self._wanted[key] = _Wanted(value["role"], value["level"], kept)

    # resources

    def is_full(self, session: SessionId, uri: str) -> bool:
        """Whether the session follows as many resources as it may, without this one."""
        known = self._wanted.get(session.key)
        return known is not None and uri not in known.resources and len(known.resources) >= self._limits.followed_resources

    async def follow(self, session: SessionId, uri: str, server: str, own: str) -> None:
        """The session wants to be told when a resource changes; durable when it returns."""
        self._of(session).resources[uri] = (server, own)
        await self._keep(session.key)

    async def unfollow(self, session: SessionId, uri: str) -> tuple[str, str] | None:
        """It does not any more. Gives the server and the URI that nobody follows now, where that is so."""
        known = self._wanted.get(session.key)
        followed = known.resources.pop(uri, None) if known is not None else None
        if known is None or followed is None:
            return None
        known.news.discard(uri)
        await self._keep(session.key)
        return None if any(followed in each.resources.values() for each in self._wanted.values()) else followed

    def changed(self, server: str, own: str) -> None:
        """A server told that a resource, or one below it, changed."""
        for key, wanted in self._wanted.items():
            touched = {uri for uri, known in wanted.resources.items() if known[0] == server and _is_at(own, known[1])}
            if touched - wanted.news:
                wanted.news |= touched
                self.news(key)

    def take_news(self, key: str) -> Iterator[str]:
        """What changed for a session since it was last asked: URIs as the session knows them."""
        wanted = self._wanted.get(key)
        while wanted is not None and wanted.news:
            uri = wanted.news.pop()
            if uri in wanted.resources:
                yield uri

    # logs

    async def set_level(self, session: SessionId, level: str) -> str:
        """From which level on a session hears logs. Gives the lowest that any session wants."""
        self._of(session).level = level
        await self._keep(session.key)
        return self._lowest() or level

    def hears(self, key: str, level: object) -> bool:
        """Whether a session hears a log of this level; one that never said takes what comes."""
        wanted = self._wanted.get(key)
        least = wanted.level if wanted is not None else None
        return least is None or level not in LEVELS or LEVELS.index(str(level)) >= LEVELS.index(least)

    def _lowest(self) -> str | None:
        return min((each.level for each in self._wanted.values() if each.level is not None), key=LEVELS.index, default=None)

    # both

    def wishes(self, child: Child) -> list[Wish]:
        """What a new session with a server has to be asked for."""
        followed = {own: None for wanted in self._wanted.values() for server, own in wanted.resources.values() if server == child.name}
        level = self._lowest()
        wishes = [("resources", "resources/subscribe", json.dumps({"uri": own})) for own in followed]
        return [*wishes, *([("logging", "logging/setLevel", json.dumps({"level": level}))] if level is not None else [])]

    async def forget(self, session: SessionId) -> Mapping[str, tuple[str, str]]:
        """The session is over. Gives what it alone followed."""
        gone = self._wanted.pop(session.key, None)
        if gone is None:
            return {}
        await self._journal.put(_KEY + session.key, None)
        left = {followed for wanted in self._wanted.values() for followed in wanted.resources.values()}
        return {uri: followed for uri, followed in gone.resources.items() if followed not in left}

    def _of(self, session: SessionId) -> _Wanted:
        while len(self._wanted) >= self._limits.ended_sessions and session.key not in self._wanted:
            oldest = next(iter(self._wanted))
            del self._wanted[oldest]
            self._journal.note(_KEY + oldest, None)
        return self._wanted.setdefault(session.key, _Wanted(session.role))

    async def _keep(self, key: str) -> None:
        await self._journal.put(_KEY + key, self._wanted[key].to_json())


def _is_at(changed: str, followed: str) -> bool:
    return changed == followed or changed.startswith(followed.rstrip("/") + "/")

"""What all servers list, as one: which name leads where, what clashes, and which of it a role sees."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from agent_env_sdk.wire.access import ToolAccess
from agent_env_sdk.wire.names import ANY

from agent_env.gateway import jsontext, uris
from agent_env.gateway.child import Child
from agent_env.gateway.listing import KINDS, PROMPTS, RESOURCES, TEMPLATES, TOOLS, Kind, Listed

NATIVE = ""
"""Stands for the gateway itself where a server's name would."""
NAME_CHARACTERS = 64
"""What model providers take as a tool's name."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing that agents may see."""

    name: str
    """What agents call it: a name, a URI or a template of URIs."""
    tool: Listed
    """As its server lists it, be it a tool or not."""
    child: Child | None
    """Who serves it; None for the gateway's own."""
    raw: str
    """What the gateway's own list says of it."""

    @property
    def hidden(self) -> bool:
        """See `Listed.hidden`."""
        return self.tool.hidden

    def allowed(self, role: str, access: ToolAccess) -> bool:
        """Whether a rule lets a role have it. A rule about a namespaced thing's own name holds for it as well."""
        named = self.name == self.tool.name or access.allowed(role, self.tool.name)
        return named and access.allowed(role, self.name, self.hidden)


@dataclass(frozen=True, slots=True)
class Found:
    """A resource that may be read."""

    child: Child
    own: str
    """Its URI as its server knows it."""


@dataclass(frozen=True, slots=True)
class _Listing:
    entries: Mapping[str, Entry]
    clashes: Mapping[str, Sequence[str]]


class Catalogue:
    """What the servers list and the gateway's own, made anew when any of it changes.

    Args:
        children: The servers.
        namespacing: Whether clashing names get their server's name before them.
        own: Gives the gateway's own tools, as they are now.
    """

    def __init__(self, children: Sequence[Child], *, namespacing: bool, own: Callable[[], Sequence[Listed]]) -> None:
        self.children = tuple(children)
        self._namespacing = namespacing
        self._own = own
        self._listings: dict[Kind, _Listing] = {}
        self._changed = asyncio.Event()

    def refresh(self) -> None:
        """Something changed: the lists are made anew when they are next asked for, and whoever watches is told."""
        self._listings = {}
        self._changed.set()
        self._changed = asyncio.Event()

    @property
    def change(self) -> asyncio.Event:
        """Happens with the next change from now on."""
        return self._changed

    async def settle(self, seconds: float) -> None:
        """Waits until each server was found, or found missing, but no longer than `seconds`."""
        missing = [child for child in self.children if not child.settled.is_set()]
        if not missing:
            return
        try:
            async with asyncio.timeout(seconds):
                await asyncio.gather(*(child.settled.wait() for child in missing))
        except TimeoutError:
            return

    def release(self) -> None:
        """Nobody waits any longer for servers to be found: whoever did gets what there is."""
        for child in self.children:
            child.settled.set()

    async def complete(self, seconds: float) -> None:
        """Waits until every server is there, but no longer than `seconds`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not all(child.ready for child in self.children):
                    await self.change.wait()

    @property
    def clashes(self) -> Mapping[str, Sequence[str]]:
        """Names that more than one server gives to a tool, with those servers; none of these tools is served unless they are namespaced."""
        return self.clashing(TOOLS)

    def clashing(self, kind: Kind) -> Mapping[str, Sequence[str]]:
        """The same of any kind."""
        return self._now(kind).clashes

    def get(self, name: str, kind: Kind = TOOLS) -> Entry | None:
        """The thing of that name."""
        return self._now(kind).entries.get(name)

    def entries(self, kind: Kind = TOOLS) -> Sequence[Entry]:
        """All of a kind."""
        return tuple(self._now(kind).entries.values())

    def can(self, capability: str) -> bool:
        """Whether any server has such a thing, as far as is known."""
        return any(child.can(capability) for child in self.children)

    # roles

    def visible(self, role: str, access: ToolAccess, kind: Kind = TOOLS) -> list[Entry]:
        """What of a kind a role may list and use."""
        shown = {child for child in self.children if self.shows(child, role, access)} if kind is not TOOLS else {}
        return [
            entry for entry in self._now(kind).entries.values() if entry.allowed(role, access) and (kind is TOOLS or entry.child in shown)
        ]

    def shows(self, child: Child, role: str, access: ToolAccess) -> bool:
        """Whether a role sees anything of a server. One whose every tool is kept from it is hidden from it as a whole; so is one without
        tools where the role is kept from all of them.
        """
        if not child.tools:
            return access.allowed(role, NATIVE)
        served = [entry for entry in self._now(TOOLS).entries.values() if entry.child is child]
        if served:
            return any(entry.allowed(role, access) for entry in served)
        return any(access.allowed(role, tool.name, tool.hidden) for tool in child.tools)

    def allows(self, entry: Entry, role: str, access: ToolAccess) -> bool:
        """Whether a role may use something that is no tool."""
        return entry.child is not None and entry.allowed(role, access) and self.shows(entry.child, role, access)

    # resources

    def readable(self, uri: str, role: str, access: ToolAccess) -> Iterator[Found]:
        """Where a role may read a URI: at whoever lists it, else at whoever has the template that spells most of it out."""
        listed = self.get(uri, RESOURCES)
        if listed is not None:
            if listed.child is not None and self.allows(listed, role, access) and _is_free(listed.child, listed.tool.name, role, access):
                yield Found(listed.child, listed.tool.name)
            return
        fitting = [(fit, entry) for entry in self.visible(role, access, TEMPLATES) if (fit := uris.fits(entry.name, uri)) is not None]
        for _, entry in sorted(fitting, key=lambda each: -each[0]):
            own = uri[len(entry.name) - len(entry.tool.name) :] if entry.name.endswith(entry.tool.name) else uri
            if entry.child is not None and _is_free(entry.child, own, role, access):
                yield Found(entry.child, own)

    def handed(self, server: str, uri: str, role: str, access: ToolAccess) -> Found | None:
        """The same for a URI that a server handed to somebody of the role without listing it."""
        child = next((each for each in self.children if each.name == server), None)
        free = child is not None and self.shows(child, role, access) and _is_free(child, uri, role, access)
        return Found(child, uri) if child is not None and free else None

    def _now(self, kind: Kind) -> _Listing:
        if kind not in self._listings:
            own = self._own() if kind is TOOLS else ()
            self._listings[kind] = _listing(self.children, kind, own, self._namespacing)
        return self._listings[kind]


def _is_free(child: Child, uri: str, role: str, access: ToolAccess) -> bool:
    """Whether neither a rule nor the server itself keeps this URI, in any spelling, from a role."""
    meant = uris.plain(uri)
    alike = [item for item in child.lists[RESOURCES] if uris.plain(item.name) == meant]
    named = {name for who in (role, ANY) for name in access.rules.get(who, {}) if name != ANY and uris.plain(name) == meant}
    return all(access.allowed(role, item.name, item.hidden) for item in alike) and all(access.allowed(role, name) for name in named)


def _listing(children: Sequence[Child], kind: Kind, own: Sequence[Listed], namespacing: bool) -> _Listing:
    found: dict[str, list[tuple[Child | None, Listed]]] = defaultdict(list)
    for child in children:
        for item in child.lists[kind]:
            found[item.name].append((child, item))
    for native in own:
        if native.name not in found:  # a server's tool of that name wins over the gateway's
            found[native.name].append((None, native))
    clashes = {name: [_who(child) for child, _ in sources] for name, sources in found.items() if len(sources) > 1}
    taken = {name for name in found if name not in clashes}
    entries: dict[str, Entry] = {}
    for name, sources in found.items():
        if len(sources) == 1:
            only, item = sources[0]
            entries[name] = Entry(name, item, only, item.raw)
        elif namespacing:
            for source, item in sources:
                prefixed = _PREFIXED[kind](_who(source), name, taken)
                taken.add(prefixed)
                entries[prefixed] = Entry(prefixed, item, source, _renamed(item.raw, kind.name_key, prefixed))
    return _Listing(entries, {} if namespacing else clashes)


def _who(child: Child | None) -> str:
    return child.name if child is not None else NATIVE


def _prefixed(server: str, name: str, taken: set[str]) -> str:
    """`server_name`; shortened, and told apart by a digest of both, where that is too long or already taken."""
    plain = re.sub(r"[^A-Za-z0-9_-]", "_", f"{server}_{name}")
    if len(plain) <= NAME_CHARACTERS and plain not in taken:
        return plain
    return f"{plain[: NAME_CHARACTERS - 9]}_{_digest(server, name)}"


def _prefixed_uri(server: str, name: str, taken: set[str]) -> str:
    """`server+uri`, which is a URI again; told apart by a digest where that is already taken."""
    scheme = uris.scheme_of(server)
    plain = f"{scheme}+{name}"
    return plain if plain not in taken else f"{scheme}-{_digest(server, name)}+{name}"


_PREFIXED: Mapping[Kind, Callable[[str, str, set[str]], str]] = {
    TOOLS: _prefixed,
    PROMPTS: _prefixed,
    RESOURCES: _prefixed_uri,
    TEMPLATES: _prefixed_uri,
}
assert set(_PREFIXED) == set(KINDS)


def _digest(server: str, name: str) -> str:
    return hashlib.sha256(json.dumps([server, name]).encode()).hexdigest()[:8]


def _renamed(raw: str, key: str, name: str) -> str:
    member = jsontext.whole_object(raw)[key]
    return raw[: member.start] + json.dumps(name) + raw[member.end :]


def summary(entry: Entry) -> dict[str, Any]:
    """A tool as `/step` and `/state` show it."""
    value = entry.tool.value
    return {
        "name": entry.name,
        "description": value.get("description"),
        "parameters": value.get("inputSchema") or {"type": "object", "properties": {}},
    }

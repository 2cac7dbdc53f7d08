"""What servers list: tools, prompts, resources and templates of resources. Each stays the text that its server wrote, beside the little
that the gateway must know of it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from agent_env_sdk.wire.names import HIDDEN_META

from agent_env.gateway import jsontext
from agent_env.gateway.session import ChildError, Fault, Reply, shown


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of thing that MCP servers list."""

    noun: str
    """As errors say it."""
    capability: str
    """Under which a server says that it has such things, and tells that they changed."""
    method: str
    """Lists them."""
    key: str
    """Where a list's result holds them."""
    name_key: str
    """Which member of an item names it."""

    @property
    def changed(self) -> str:
        """The notification that the list changed."""
        return f"notifications/{self.capability}/list_changed"


TOOLS: Final = Kind("tool", "tools", "tools/list", "tools", "name")
PROMPTS: Final = Kind("prompt", "prompts", "prompts/list", "prompts", "name")
RESOURCES: Final = Kind("resource", "resources", "resources/list", "resources", "uri")
TEMPLATES: Final = Kind("resource template", "resources", "resources/templates/list", "resourceTemplates", "uriTemplate")
KINDS: Final = (TOOLS, PROMPTS, RESOURCES, TEMPLATES)
BY_METHOD: Final = {kind.method: kind for kind in KINDS}
CHANGES: Final = {kind.changed: kind.capability for kind in KINDS}
"""Notification → the capability whose lists it is about."""


@dataclass(frozen=True, slots=True)
class Listed:
    """A thing as its server lists it."""

    name: str
    """What names it: a name, a URI or a template of URIs."""
    raw: str
    """Its JSON text, to the byte."""
    value: dict[str, Any]

    @property
    def hidden(self) -> bool:
        """Whether roles see it only once a rule names it."""
        meta = self.value.get("_meta")
        return isinstance(meta, dict) and meta.get(HIDDEN_META) is True

    @property
    def read_only(self) -> bool:
        """Whether it says that it changes nothing."""
        annotations = self.value.get("annotations")
        return isinstance(annotations, dict) and annotations.get("readOnlyHint") is True


Ask = Callable[[str, str | None], Awaitable[Reply]]
"""Asks the server: method, parameters as text."""


async def read_list(server: str, kind: Kind, ask: Ask, *, pages: int, lenient: bool) -> tuple[Listed, ...]:
    """Everything of a kind that a server lists, page by page.

    Args:
        server: Its name, as errors say it.
        kind: What.
        ask: Asks it.
        pages: So many, at most.
        lenient: A server that refuses has none of it.

    Raises:
        ChildError: It did not answer, or refused, or what it gave is no list.
    """
    return tuple([item async for item in _listed(server, kind, ask, pages, lenient)])


async def _listed(server: str, kind: Kind, ask: Ask, pages: int, lenient: bool) -> AsyncIterator[Listed]:
    cursor: str | None = None
    followed: set[str] = set()
    for _ in range(pages):
        reply = await ask(kind.method, f'{{"cursor":{cursor}}}' if cursor is not None else None)
        if reply.result is None:
            if lenient:
                return
            raise ChildError(f"server '{server}' refused {kind.method}: {shown((reply.error or '').encode())}", Fault.INVALID)
        try:
            members = jsontext.whole_object(reply.result)
            items = members.get(kind.key)
            for start, end in jsontext.array_items(reply.result, items.start) if items is not None else ():
                yield _item(kind, reply.result[start:end])
        except jsontext.JsonTextError as error:
            raise ChildError(f"server '{server}' gave no list of {kind.noun}s: {error}", Fault.INVALID) from error
        cursor = jsontext.raw(reply.result, members.get("nextCursor"))
        if cursor is None or cursor in ("null", '""'):
            return
        if cursor in followed:
            raise ChildError(f"server '{server}' leads from page to page of {kind.noun}s in a circle", Fault.INVALID)
        followed.add(cursor)
    raise ChildError(f"server '{server}' has more than {pages} pages of {kind.noun}s", Fault.INVALID)


def _item(kind: Kind, raw: str) -> Listed:
    value = jsontext.value_of(raw)
    if not isinstance(value, dict) or not isinstance(value.get(kind.name_key), str):
        raise jsontext.JsonTextError(f"a {kind.noun} without its {kind.name_key}")
    return Listed(value[kind.name_key], raw, value)

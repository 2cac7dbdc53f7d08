"""What agents ask of servers besides tool calls: prompts, resources, completions, news of resources, logs. Each goes to the server that it
is for, and only where the role may see that server and the thing itself; of what it may not see it hears what it hears of nothing.
"""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from agent_env.gateway import jsontext
from agent_env.gateway.calls import Answer, Asked, Calls
from agent_env.gateway.catalogue import Catalogue, Found
from agent_env.gateway.child import Child
from agent_env.gateway.delivering import Waiting, error_text
from agent_env.gateway.following import LEVELS, Following
from agent_env.gateway.listing import PROMPTS, RESOURCES, TEMPLATES
from agent_env.gateway.marking import Caller
from agent_env.gateway.nursery import Nursery
from agent_env.gateway.tokens import SessionId

INVALID_PARAMS, NOT_FOUND, REFUSED = -32602, -32002, -32000
_DONE = Answer("{}", None)
_NO_VALUES = Answer('{"completion":{"values":[],"total":0,"hasMore":false}}', None)
_HANDED = 10_000
"""Resources that tools handed to sessions without listing them, the latest ones."""
_LINK = "resource_link"
Work = Callable[[SessionId, str, Waiting], Awaitable[Answer]]


class Passing:
    """See the module.

    Args:
        catalogue: What there is, and where.
        calls: Makes the requests.
        following: Who wants to be told what.
        nursery: Where what nobody waits for is done.
    """

    def __init__(self, catalogue: Catalogue, calls: Calls, following: Following, nursery: Nursery) -> None:
        self._catalogue = catalogue
        self._calls = calls
        self._following = following
        self._nursery = nursery
        self._limits = calls.limits
        self._handed: OrderedDict[tuple[str, str], str] = OrderedDict()
        self.methods: Mapping[str, Work] = {
            "prompts/get": self._prompt,
            "resources/read": self._read,
            "resources/subscribe": self._subscribe,
            "resources/unsubscribe": self._unsubscribe,
            "completion/complete": self._complete,
            "logging/setLevel": self._set_level,
        }

    async def answer(self, session: SessionId, method: str, params: str, waiting: Waiting) -> Answer:
        """Answers one of `methods`.

        Raises:
            jsontext.JsonTextError: The parameters are not what the method takes.
        """
        await self._catalogue.settle(self._limits.discovery_seconds)
        return await self.methods[method](session, params, waiting)

    def hand_over(self, session: SessionId, server: str, result: str | None) -> None:
        """A result goes to a session: resources that it links to may be read by it, also where the server does not list them."""
        if result is None or _LINK not in result:
            return
        for uri in _links(jsontext.value_of(result)):
            self._handed[session.key, uri] = server
            self._handed.move_to_end((session.key, uri))
        while len(self._handed) > _HANDED:
            self._handed.popitem(last=False)

    def may_hear(self, session: SessionId, uri: str) -> bool:
        """Whether a session may, now, read a resource."""
        return next(self._found(session, uri), None) is not None

    async def end(self, session: SessionId) -> None:
        """The session is over: what it alone followed is followed no more."""
        for server, own in (await self._following.forget(session)).values():
            self._unfollowed(server, own)

    # prompts and completions

    async def _prompt(self, session: SessionId, params: str, waiting: Waiting) -> Answer:
        name = _text(params, "name", ("name", "arguments"))
        entry = self._catalogue.get(name, PROMPTS)
        access = self._calls.ruling.access
        if entry is None or entry.child is None or not self._catalogue.allows(entry, session.role, access):
            return self._refused(session, "prompts/get", name, INVALID_PARAMS, f"Unknown prompt: {name}")
        renamed = {"name": json.dumps(entry.tool.name)} if name != entry.tool.name else {}
        answer = await self._fetch(session, entry.child, "prompts/get", Asked(params, ("name", "arguments"), renamed), waiting)
        self.hand_over(session, entry.child.name, answer.result)
        return answer

    async def _complete(self, session: SessionId, params: str, waiting: Waiting) -> Answer:
        members = jsontext.whole_object(params, exact=("ref", "argument", "context"))
        ref = jsontext.raw(params, members.get("ref"))
        if ref is None:
            raise jsontext.JsonTextError("'ref' must be an object")
        said = jsontext.whole_object(ref, exact=("type", "name", "uri"))
        kinds = {"ref/prompt": ("name", (PROMPTS,)), "ref/resource": ("uri", (TEMPLATES, RESOURCES))}
        key, found_in = kinds.get(jsontext.string_value(ref, said.get("type")) or "", ("", ()))
        name = jsontext.string_value(ref, said.get(key))
        access = self._calls.ruling.access
        entries = [entry for kind in found_in if name is not None and (entry := self._catalogue.get(name, kind)) is not None]
        entry = next((each for each in entries if self._catalogue.allows(each, session.role, access)), None)
        if entry is None or entry.child is None:
            return self._refused(session, "completion/complete", name or "", INVALID_PARAMS, f"Unknown reference: {name}")
        if not entry.child.can("completions"):
            return _NO_VALUES
        renamed = {}
        if entry.name != entry.tool.name:
            place = said[key]
            renamed["ref"] = ref[: place.start] + json.dumps(entry.tool.name) + ref[place.end :]
        asked = Asked(params, ("ref", "argument", "context"), renamed)
        return await self._fetch(session, entry.child, "completion/complete", asked, waiting)

    # resources

    async def _read(self, session: SessionId, params: str, waiting: Waiting) -> Answer:
        uri = _text(params, "uri", ("uri",))
        answer: Answer | None = None
        for found in self._found(session, uri):
            answer = await self._fetch(session, found.child, "resources/read", _at(params, found), waiting)
            if answer.result is not None:
                return replace(answer, result=_as_known(answer.result, found.own, uri))
        return answer or self._not_found(session, "resources/read", uri)

    async def _subscribe(self, session: SessionId, params: str, waiting: Waiting) -> Answer:
        uri = _text(params, "uri", ("uri",))
        found = next(self._found(session, uri), None)
        if found is None:
            return self._not_found(session, "resources/subscribe", uri)
        if self._following.is_full(session, uri):
            why = f"a session can follow {self._limits.followed_resources} resources; unsubscribe from some"
            return Answer(None, error_text(REFUSED, why))
        await self._following.follow(session, uri, found.child.name, found.own)
        answer = await self._fetch(session, found.child, "resources/subscribe", _at(params, found), waiting)
        if answer.result is None:
            await self._following.unfollow(session, uri)
        return answer

    async def _unsubscribe(self, session: SessionId, params: str, _waiting: Waiting) -> Answer:
        left = await self._following.unfollow(session, _text(params, "uri", ("uri",)))
        if left is not None:
            self._unfollowed(*left)
        return _DONE

    def _found(self, session: SessionId, uri: str) -> Iterator[Found]:
        access = self._calls.ruling.access
        yield from self._catalogue.readable(uri, session.role, access)
        server = self._handed.get((session.key, uri))
        handed = self._catalogue.handed(server, uri, session.role, access) if server is not None else None
        if handed is not None:
            yield handed

    def _not_found(self, session: SessionId, method: str, uri: str) -> Answer:
        return self._refused(session, method, uri, NOT_FOUND, f"Resource not found: {uri}", data={"uri": uri})

    def _unfollowed(self, server: str, own: str) -> None:
        for child in self._catalogue.children:
            if child.name == server and child.ready:
                work = child.wish("resources/unsubscribe", json.dumps({"uri": own}))
                self._nursery.soon(work, f"telling '{server}' that nobody follows {own}")

    # logs

    async def _set_level(self, session: SessionId, params: str, _waiting: Waiting) -> Answer:
        level = _text(params, "level", ("level",))
        if level not in LEVELS:
            return Answer(None, error_text(INVALID_PARAMS, f"unknown level {level!r}; there are {', '.join(LEVELS)}"))
        lowest = json.dumps({"level": await self._following.set_level(session, level)})
        logging = [child for child in self._catalogue.children if child.ready and child.can("logging")]
        with suppress(TimeoutError):
            async with asyncio.timeout(self._limits.notify_seconds):
                await asyncio.gather(*(child.wish("logging/setLevel", lowest) for child in logging))
        return _DONE

    # all of them

    async def _fetch(self, session: SessionId, child: Child, method: str, asked: Asked, waiting: Waiting) -> Answer:
        return await self._calls.fetch(Caller(session.role, session.key), child, method, asked, waiting)

    def _refused(self, session: SessionId, method: str, name: str, code: int, message: str, *, data: Any = None) -> Answer:
        self._calls.refused(Caller(session.role, session.key), name, method)
        return Answer(None, error_text(code, message, data))


def _text(params: str, key: str, routed: tuple[str, ...]) -> str:
    value = jsontext.string_value(params, jsontext.whole_object(params, exact=routed).get(key))
    if value is None:
        raise jsontext.JsonTextError(f"'{key}' must be a string")
    return value


def _at(params: str, found: Found) -> Asked:
    return Asked(params, ("uri",), {"uri": json.dumps(found.own)})


def _as_known(result: str, own: str, uri: str) -> str:
    """What was read, under the URI that it was asked for by."""
    if own == uri:
        return result
    members = jsontext.whole_object(result)
    contents = members.get("contents")
    edits = []
    for start, end in jsontext.array_items(result, contents.start) if contents is not None else ():
        item, _ = jsontext.object_members(result[start:end])
        edits += [start + each.start for each in item if each.key == "uri" and jsontext.string_value(result[start:end], each) == own]
    for place in reversed(edits):
        result = result[:place] + json.dumps(uri) + result[jsontext.value_ends(result, place) :]
    return result


def _links(result: object) -> Iterator[str]:
    """The resources that a tool's or a prompt's result links to."""
    said = result if isinstance(result, dict) else {}
    blocks = list(said["content"]) if isinstance(said.get("content"), list) else []
    messages = said["messages"] if isinstance(said.get("messages"), list) else []
    blocks += [message.get("content") for message in messages if isinstance(message, dict)]
    for block in blocks:
        if isinstance(block, dict) and block.get("type") == _LINK and isinstance(block.get("uri"), str):
            yield block["uri"]

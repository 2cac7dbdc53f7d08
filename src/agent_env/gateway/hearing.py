"""What a server says without being asked: progress, news of its lists, logs, and questions to the client of an agent.

Most of it comes with the call that it belongs to. What names no call is only passed on where there can be no doubt whose it is: where the
server has had one caller and no other, and that one is waiting.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from agent_env.gateway import jsontext
from agent_env.gateway.listing import CHANGES
from agent_env.gateway.nursery import Nursery, log
from agent_env.gateway.questions import QUESTIONS, refusal
from agent_env.gateway.session import Audience, Reply, Session, shown

UPDATED = "notifications/resources/updated"


@dataclass(eq=False)
class _Call:
    """One that is in progress."""

    audience: Audience
    questions: set[asyncio.Future[Reply]] = field(default_factory=set)


class Hearing:
    """See the module.

    Args:
        server: The server's name.
        nursery: Where questions wait for their answers.
        most: Questions of the server that may be under way at once; further ones are not answered.
        tell: Sends the server what has no answer.
        changed: Told the capability whose lists changed.
        updated: Told the URI of a resource that changed.
    """

    def __init__(
        self,
        server: str,
        nursery: Nursery,
        *,
        most: int,
        tell: Callable[[Session, str], Coroutine[Any, Any, None]],
        changed: Callable[[str], None],
        updated: Callable[[str], None],
    ) -> None:
        self._server = server
        self._nursery = nursery
        self._most = most
        self._under_way = 0
        self._tell = tell
        self._changed = changed
        self._updated = updated
        self._progress: dict[str, tuple[str, Audience]] = {}
        self._calls: list[_Call] = []
        self._asking: dict[tuple[Session, str], asyncio.Future[Reply]] = {}
        self._first: str | None = None
        self._several = False

    @contextmanager
    def attending(self, audience: Audience | None, progress: tuple[str, str] | None) -> Iterator[None]:
        """While a call is in progress.

        Args:
            audience: Who made it; None is the gateway itself.
            progress: The token that the server was given, and the one (as text) that the caller knows.
        """
        if audience is None:
            yield
            return
        self._first = audience.key if self._first is None else self._first
        self._several = self._several or audience.key != self._first
        call = _Call(audience)
        self._calls.append(call)
        if progress is not None:
            self._progress[progress[0]] = (progress[1], audience)
        try:
            yield
        finally:
            self._calls.remove(call)
            if progress is not None:
                self._progress.pop(progress[0], None)
            for question in call.questions:
                question.cancel()

    def heard(self, session: Session, text: str, audience: Audience | None) -> None:
        """Takes what the server said.

        Args:
            session: Where.
            text: The message.
            audience: Whose call it came with.
        """
        try:
            members = jsontext.whole_object(text)
            method = jsontext.string_value(text, members.get("method"))
            request_id, params = jsontext.raw(text, members.get("id")), jsontext.raw(text, members.get("params"))
            if method is not None and request_id is not None:
                self._question(session, request_id, method, params, audience)
            elif method is not None:
                self._note(session, method, text, members.get("params"), audience)
        except jsontext.JsonTextError as error:
            log.warning("server '%s' sent what is no message: %s: %s", self._server, error, shown(text.encode("utf-8", "replace")))

    # notifications

    def _note(self, session: Session, method: str, text: str, params: jsontext.Member | None, audience: Audience | None) -> None:
        if method in CHANGES:
            self._changed(CHANGES[method])
            return
        match method:
            case "notifications/progress":
                self._progressed(text, params)
            case "notifications/cancelled":
                self._withdrawn(session, text, params)
            case "notifications/resources/updated":
                uri = _member(text, params, "uri")
                if uri is not None:
                    self._updated(jsontext.string_value(text, uri) or "")
            case _:
                call = self._whose(audience)
                if call is not None:
                    call.audience.told(text)

    def _progressed(self, text: str, params: jsontext.Member | None) -> None:
        token = _member(text, params, "progressToken")
        known = self._progress.get(jsontext.string_value(text, token) or "")
        if token is not None and known is not None:
            known[1].told(text[: token.start] + known[0] + text[token.end :])

    def _withdrawn(self, session: Session, text: str, params: jsontext.Member | None) -> None:
        question = self._asking.get((session, jsontext.raw(text, _member(text, params, "requestId")) or ""))
        if question is not None:
            question.cancel()

    # questions

    def _question(self, session: Session, request_id: str, method: str, params: str | None, audience: Audience | None) -> None:
        if self._under_way >= self._most:
            return
        if method == "ping":
            self._answer(session, request_id, Reply("{}", None))
            return
        call = self._whose(audience)
        if method not in QUESTIONS:
            self._answer(session, request_id, refusal(f"the gateway passes no {method} on to agents"))
        elif call is None:
            self._answer(session, request_id, refusal(f"{method} belongs to no agent's call that is in progress, so nobody can be asked"))
        else:
            asking = asyncio.ensure_future(call.audience.asked(method, params))
            call.questions.add(asking)
            self._asking[session, request_id] = asking
            self._begin(self._ask(session, request_id, asking, call), f"a question of '{self._server}'")

    async def _ask(self, session: Session, request_id: str, asking: asyncio.Future[Reply], call: _Call) -> None:
        try:
            await asyncio.wait([asking])
        finally:
            asking.cancel()
            call.questions.discard(asking)
            self._asking.pop((session, request_id), None)
        over = refusal("nobody is asked any more: the call that the question belongs to has ended")
        await self._tell(session, _answered(request_id, over if asking.cancelled() else asking.result()))

    def _answer(self, session: Session, request_id: str, reply: Reply) -> None:
        self._begin(self._tell(session, _answered(request_id, reply)), f"answering '{self._server}'")

    def _begin(self, work: Coroutine[Any, Any, None], what: str) -> None:
        self._under_way += 1
        if self._under_way == self._most:
            log.warning("server '%s' has %s questions under way; further ones are not answered", self._server, self._most)
        self._nursery.soon(work, what).add_done_callback(self._ended)

    def _ended(self, _task: asyncio.Task[None]) -> None:
        self._under_way -= 1

    def _whose(self, audience: Audience | None) -> _Call | None:
        if audience is not None:
            return next((call for call in self._calls if call.audience is audience), None)
        return self._calls[-1] if self._calls and not self._several else None


def _member(text: str, params: jsontext.Member | None, key: str) -> jsontext.Member | None:
    if params is None:
        return None
    members, _ = jsontext.object_members(text, params.start)
    return next((member for member in members if member.key == key), None)


def _answered(request_id: str, reply: Reply) -> str:
    member = f'"result":{reply.result}' if reply.result is not None else f'"error":{reply.error}'
    return f'{{"jsonrpc":"2.0","id":{request_id},{member}}}'

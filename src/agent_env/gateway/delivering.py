"""The way back to a client that waits for an answer: the answer alone as JSON where it comes first; as events where something is told, or
asked, before it, or where it takes long.
"""

from __future__ import annotations

import asyncio
import json
from http import HTTPStatus

from agent_env.gateway import jsontext, sse
from agent_env.gateway.asgi import EVENTS, JSON, Incoming
from agent_env.gateway.calls import Answer, Calls
from agent_env.gateway.following import Following
from agent_env.gateway.marking import Caller
from agent_env.gateway.questions import Questions, refusal
from agent_env.gateway.session import Reply
from agent_env.gateway.tokens import SessionId

_NOTES = 1000
"""Notifications that wait for a slow client, at most; further ones are dropped."""
_LOG = "notifications/message"


class Waiting:
    """A client that waits for one answer. It is the `session.Audience` of what is asked for it.

    Args:
        request: What it asked, whose answer is still to be written.
        request_id: The id of that, as text.
        session: Whose client it is.
        questions: Those that servers put to clients.
        following: Which logs it wants to hear.
        calls: Records questions.
    """

    def __init__(
        self, request: Incoming, request_id: str, session: SessionId, *, questions: Questions, following: Following, calls: Calls
    ) -> None:
        self._request = request
        self._request_id = request_id
        self._session = session
        self._questions = questions
        self._following = following
        self._calls = calls
        self._outbox: asyncio.Queue[str | Answer] = asyncio.Queue()
        self._takes_events = "text/event-stream" in (request.header(b"accept") or "")

    @property
    def key(self) -> str:
        """Its session."""
        return self._session.key

    def told(self, text: str) -> None:
        """Takes a notification of a server."""
        if self._outbox.qsize() < _NOTES and self._wants(text):
            self._outbox.put_nowait(text)

    async def asked(self, method: str, params: str | None) -> Reply:
        """Puts a server's question to the client."""
        if not self._takes_events:
            return refusal(f"the agent's client takes no events with its answers, so {method} can't be put to it")
        reply = await self._questions.ask(self._session, method, params, self._outbox.put_nowait)
        self._calls.questioned(Caller(self._session.role, self.key), method, params, reply)
        return reply

    def answered(self, answer: Answer) -> None:
        """The answer is there."""
        self._questions.withdraw(self._outbox.put_nowait)
        self._outbox.put_nowait(answer)

    async def deliver(self, *, keep_alive_seconds: float) -> None:
        """Writes everything to the answer's end."""
        streaming = False
        while True:
            item = await self._next(keep_alive_seconds if self._takes_events else None)
            if isinstance(item, Answer) and not streaming:
                body = spelled(self._request_id, item).encode("utf-8", "surrogatepass")
                await self._request.answer(HTTPStatus.OK, body, [JSON])
                return
            if not self._takes_events:
                continue
            if not streaming:
                await self._request.start(HTTPStatus.OK, [(key.encode(), value.encode()) for key, value in EVENTS])
                streaming = True
            match item:
                case None:
                    await self._request.more(sse.KEEP_ALIVE)
                case Answer():
                    await self._request.more(sse.encode(spelled(self._request_id, item)), last=True)
                    return
                case _:
                    await self._request.more(sse.encode(item))

    async def _next(self, seconds: float | None) -> str | Answer | None:
        try:
            async with asyncio.timeout(seconds):
                return await self._outbox.get()
        except TimeoutError:
            return None

    def _wants(self, text: str) -> bool:
        if _LOG not in text:
            return True
        message = jsontext.value_of(text)
        params = message.get("params") if isinstance(message, dict) and message.get("method") == _LOG else None
        return not isinstance(params, dict) or self._following.hears(self.key, params.get("level"))


def spelled(request_id: str, answer: Answer) -> str:
    """The message that carries an answer."""
    member = f'"result":{answer.result}' if answer.result is not None else f'"error":{answer.error}'
    return f'{{"jsonrpc":"2.0","id":{request_id},{member}}}'


def error_text(code: int, message: str, data: object = None) -> str:
    """A JSON-RPC error."""
    return json.dumps({"code": code, "message": message, **({"data": data} if data is not None else {})})

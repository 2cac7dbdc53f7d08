"""Questions that servers put to the clients of agents while these wait for an answer: sampling, elicitation, roots."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from agent_env.gateway import jsontext
from agent_env.gateway.defaults import GatewayLimits
from agent_env.gateway.session import Reply
from agent_env.gateway.tokens import SessionId

METHOD_NOT_FOUND, REFUSED = -32601, -32000
QUESTIONS: Final[Mapping[str, str]] = {"sampling/createMessage": "sampling", "elicitation/create": "elicitation", "roots/list": "roots"}
"""Method → the ability that a client says it has."""
_PARTS: Final = (("sampling", ("tools", "context")), ("elicitation", ("url",)))
"""Abilities that have parts which a client may lack."""

Send = Callable[[str], None]


def abilities(capabilities: object) -> tuple[str, ...]:
    """What a client says that it can be asked, such as `elicitation` and `elicitation.url`."""
    said = capabilities if isinstance(capabilities, dict) else {}
    found = [name for name in QUESTIONS.values() if isinstance(said.get(name), dict)]
    found += [f"{name}.{part}" for name, parts in _PARTS if name in found for part in parts if part in said[name]]
    return tuple(sorted(found))


def needed(method: str, params: object) -> str:
    """The ability that a question takes."""
    fields: Mapping[str, Any] = params if isinstance(params, dict) else {}
    if method == "sampling/createMessage" and ("tools" in fields or "toolChoice" in fields):
        return "sampling.tools"
    if method == "elicitation/create" and fields.get("mode") == "url":
        return "elicitation.url"
    return QUESTIONS[method]


def refusal(message: str, code: int = METHOD_NOT_FOUND) -> Reply:
    """What a server hears whose question can't be put."""
    return Reply(None, json.dumps({"code": code, "message": message}))


class Questions:
    """Those that wait for their answer.

    Args:
        limits: How long, and how many of one session.
    """

    def __init__(self, limits: GatewayLimits) -> None:
        self._limits = limits
        self._open: dict[tuple[str, str], _Question] = {}

    async def ask(self, session: SessionId, method: str, params: str | None, send: Send) -> Reply:
        """Puts a question to a session's client and gives its answer, or the refusal that stands for it.

        Args:
            session: Whose client.
            method: What is asked.
            params: Its parameters, as text.
            send: Brings a message to the client, with the answer that it waits for.
        """
        wanted = needed(method, jsontext.value_of(params or "{}"))
        if wanted not in session.abilities:
            return refusal(f"the agent's client has not said that it supports {wanted}, so {method} can't be put to it")
        if sum(key == session.key for key, _ in self._open) >= self._limits.questions:
            return refusal(f"{self._limits.questions} questions wait for this agent already", REFUSED)
        number = f"agentenv-{secrets.token_hex(8)}"
        question = self._open[session.key, number] = _Question(number, send, asyncio.get_running_loop().create_future())
        said = f',"params":{params}' if params is not None else ""
        send(f'{{"jsonrpc":"2.0","id":"{number}","method":{json.dumps(method)}{said}}}')
        try:
            async with asyncio.timeout(self._limits.question_seconds):
                return await question.answer
        except TimeoutError:
            question.withdraw("nobody answered in time")
            return refusal(f"the agent's client did not answer {method} within {self._limits.question_seconds:g} s", REFUSED)
        except asyncio.CancelledError:
            question.withdraw("it is not asked any more")
            raise
        finally:
            del self._open[session.key, number]

    def answered(self, session: SessionId, request_id: object, reply: Reply) -> bool:
        """A client answered. Whether it was asked."""
        question = self._open.get((session.key, request_id)) if isinstance(request_id, str) else None
        if question is None or question.answer.done():
            return False
        question.answer.set_result(reply)
        return True

    def withdraw(self, send: Send) -> None:
        """The answer that a client waited for is there: what it was asked with it is asked no more."""
        for question in self._open.values():
            if question.send == send:
                question.withdraw("the call that it belongs to has ended")


@dataclass(eq=False)
class _Question:
    number: str
    send: Send
    answer: asyncio.Future[Reply]
    withdrawn: bool = False

    def withdraw(self, why: str) -> None:
        if self.withdrawn or (self.answer.done() and not self.answer.cancelled()):
            return
        self.withdrawn = True
        params = json.dumps({"requestId": self.number, "reason": why})
        self.send(f'{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{params}}}')
        if not self.answer.done():
            self.answer.set_result(refusal(f"nobody is asked any more: {why}"))

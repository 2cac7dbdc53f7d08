"""What an agent sends to the broker and what it is answered, the broker's own no among it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from agent_env.broker.admission import Refused
from agent_env.broker.contract import Refusal
from agent_env.broker.dialects import SPELLINGS, Route, route_of
from agent_env.broker.endpoints import Headers

STATUS: Final[Mapping[Refusal, int]] = {
    Refusal.TOKEN: 401,
    Refusal.BUDGET: 403,
    Refusal.UNPRICED: 403,
    Refusal.UNCONFIGURED: 424,
    Refusal.KEY: 503,
    Refusal.UNAVAILABLE: 502,
    Refusal.NOT_RECORDED: 424,
    Refusal.UNKNOWN: 404,
}
_MAY_PASS: Final = frozenset({Refusal.KEY, Refusal.UNAVAILABLE})
"""Asking again may help."""


@dataclass(frozen=True, slots=True)
class Request:
    """What an agent sent."""

    method: str
    target: str
    """Path and query."""
    headers: Headers
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class Answer:
    """What it is answered."""

    status: int
    headers: Sequence[tuple[str, str]]
    pieces: AsyncIterator[bytes]
    """Raises `ModelUnavailableError` where the model's answer breaks off."""


class RefusedError(Exception):
    """The broker's own no. Never leaves the broker but as an answer."""

    def __init__(self, refused: Refused) -> None:
        super().__init__(refused.message)
        self.refused = refused


def answer_refused(request: Request, refused: Refused) -> Answer:
    """The answer to a request that no broker takes."""
    return refusal(route_of(request.method, urlsplit(request.target).path), refused)


def refusal(route: Route | None, refused: Refused) -> Answer:
    """A no, spelled as the dialect of who asked spells it."""
    status = STATUS[refused.refusal]
    spelling = SPELLINGS[route.dialect] if route is not None else next(iter(SPELLINGS.values()))
    body = json.dumps(spelling.error(status, refused.refusal, refused.message)).encode()

    async def pieces() -> AsyncIterator[bytes]:
        yield body

    again = "true" if refused.refusal in _MAY_PASS else "false"
    return Answer(status, [("content-type", "application/json"), ("x-should-retry", again)], pieces())

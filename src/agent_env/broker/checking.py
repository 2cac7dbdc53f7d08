"""Asks each configured endpoint one small question, so that a person knows before a run what will work in it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from agent_env.broker.contract import Dialect
from agent_env.broker.dialects import UsageReader, route_of
from agent_env.broker.endpoints import Endpoint, Endpoints
from agent_env.broker.upstream import Upstream
from agent_env.defaults import Limits
from agent_env.errors import ModelUnavailableError
from agent_env.redaction import Redactor

_QUESTION: Final = "Answer with the word ok."
_TOKENS: Final = 16
"""The least that every provider takes for the length of an answer."""
_MOST_SHOWN: Final = 300
_PATHS: Final[Mapping[Dialect, str]] = {
    Dialect.CHAT: "/v1/chat/completions",
    Dialect.RESPONSES: "/openai/v1/responses",
    Dialect.MESSAGES: "/v1/messages",
    Dialect.GEMINI: "/gemini/v1beta/models/{model}:streamGenerateContent",
}


@dataclass(frozen=True, slots=True)
class Checked:
    """What came of asking one endpoint for one model in one dialect."""

    endpoint: str
    model: str
    dialect: str
    ok: bool
    message: str
    """What it said when it failed, without the key."""
    seconds: float
    """Until the answer was whole."""
    first_byte_seconds: float | None
    input_tokens: int
    output_tokens: int
    cost_usd: float | None = None
    """None where the configuration has no price of the model."""


async def check(endpoints: Endpoints, models: Sequence[str], dialects: Sequence[Dialect], *, limits: Limits) -> AsyncIterator[Checked]:
    """Asks for each model, in each dialect that some endpoint is configured for. What each asking costs is a few tokens."""
    upstream, redactor = Upstream(limits), Redactor(endpoints.secrets())
    try:
        for model in models:
            for dialect in dialects:
                endpoint = endpoints.choose(dialect, model)
                if endpoint is not None:
                    found = await _checked(upstream, endpoint, model, dialect, limits=limits)
                    price = endpoints.price(model) if found.ok else None
                    cost = price.cost(found.input_tokens, found.output_tokens) if price is not None else None
                    yield replace(found, message=redactor.redact(found.message), cost_usd=cost)
    finally:
        await upstream.aclose()


async def _checked(upstream: Upstream, endpoint: Endpoint, model: str, dialect: Dialect, *, limits: Limits) -> Checked:
    loop = asyncio.get_running_loop()
    begun, first = loop.time(), None
    reader = UsageReader(dialect, streamed=True, most_bytes=limits.model_answer_bytes)
    problem = endpoint.problem or ""
    if not problem:
        path = _PATHS[dialect].format(model=model)
        route = route_of("POST", path)
        assert route is not None
        headers = [(b"content-type", b"application/json"), *_ways(dialect)]
        url = endpoint.address(route, path, "alt=sse" if dialect is Dialect.GEMINI else "")
        try:
            asking = upstream.asking("POST", url, endpoint.request_headers(headers), json.dumps(_body(dialect, model)).encode())
            async with asking as answer:
                said = bytearray()
                async for piece in answer.pieces:
                    first = first or loop.time()
                    reader.feed(piece)
                    said += piece[: _MOST_SHOWN - len(said)] if len(said) < _MOST_SHOWN else b""
                if answer.status >= 300:
                    problem = f"status {answer.status}: {said.decode(errors='replace')}"
        except ModelUnavailableError as error:
            problem = error.message
    told = reader.end()
    if not problem and told is None:
        problem = "the answer does not tell its tokens, so that they could only be estimated"
    counted = told or (0, 0, 0)
    return Checked(
        endpoint=endpoint.name,
        model=model,
        dialect=dialect.value,
        ok=not problem,
        message=problem,
        seconds=loop.time() - begun,
        first_byte_seconds=first - begun if first is not None else None,
        input_tokens=counted[0],
        output_tokens=counted[1],
    )


def _ways(dialect: Dialect) -> list[tuple[bytes, bytes]]:
    """Where the dialect's own clients put the key; the endpoint puts it there."""
    match dialect:
        case Dialect.MESSAGES:
            return [(b"x-api-key", b"-"), (b"anthropic-version", b"2023-06-01")]
        case Dialect.GEMINI:
            return [(b"x-goog-api-key", b"-")]
        case _:
            return [(b"authorization", b"Bearer -")]


def _body(dialect: Dialect, model: str) -> dict[str, Any]:
    said = [{"role": "user", "content": _QUESTION}]
    match dialect:
        case Dialect.CHAT:
            more = {"max_completion_tokens": _TOKENS, "stream_options": {"include_usage": True}}
            return {"model": model, "messages": said, "stream": True, **more}
        case Dialect.RESPONSES:
            return {"model": model, "input": said, "max_output_tokens": _TOKENS, "stream": True}
        case Dialect.MESSAGES:
            return {"model": model, "messages": said, "max_tokens": _TOKENS, "stream": True}
        case Dialect.GEMINI:
            return {"contents": [{"role": "user", "parts": [{"text": _QUESTION}]}], "generationConfig": {"maxOutputTokens": _TOKENS}}

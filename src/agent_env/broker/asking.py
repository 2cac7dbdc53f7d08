"""Asks a model by way of a broker in this very process: for judges and simulated users."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from agent_env.broker.answers import Request
from agent_env.broker.broker import Broker
from agent_env.broker.contract import ChatAnswer, Dialect, Refusal, Usage
from agent_env.broker.dialects import SPELLINGS
from agent_env.defaults import Limits
from agent_env.errors import BudgetExceededError, ConfigError, ModelUnavailableError
from agent_env.waiting import deadline

Json = Any
_UNFIT: Final = frozenset({400, 404, 422})
"""What an endpoint answers that takes no schema."""
_CONFIGURED_WRONG: Final = frozenset({Refusal.UNPRICED, Refusal.UNCONFIGURED, Refusal.KEY})


async def chat(broker: Broker, token: str, body: Mapping[str, Json], *, timeout_seconds: float | None, limits: Limits) -> ChatAnswer:
    """Asks. A schema that the endpoint does not take is left out at a second try.

    Raises:
        UserError: No endpoint is configured for that model, or no key.
        BudgetExceededError: The budget is used up.
        ModelUnavailableError: The model can't be asked, or its answer is none.
        DeadlineError: There was no answer in time.
    """
    async with deadline(timeout_seconds or limits.model_seconds, "the model's answer"):
        status, text = await _posted(broker, token, body)
        if status in _UNFIT and "response_format" in body and "response_format" in text:
            status, text = await _posted(broker, token, {name: value for name, value in body.items() if name != "response_format"})
    answer = _object(text)
    if status >= 400 or answer is None:
        raise _failed(status, answer, text)
    try:
        choice = answer["choices"][0]
        message = choice["message"]
        said = message.get("content")
    except (KeyError, IndexError, TypeError, AttributeError):
        raise ModelUnavailableError(f"the model's answer has no message: {text[:200]}") from None
    told = SPELLINGS[Dialect.CHAT].counted(answer)
    usage = Usage(requests=1)
    if told is not None:
        usage = replace(usage, input_tokens=told.input, output_tokens=told.output, cached_tokens=told.cached)
    content = "".join(str(part.get("text") or "") for part in said if isinstance(part, dict)) if isinstance(said, list) else str(said or "")
    return ChatAnswer(content, message, str(answer.get("model") or body.get("model")), choice.get("finish_reason"), usage)


async def _posted(broker: Broker, token: str, body: Mapping[str, Json]) -> tuple[int, str]:
    headers = [(b"authorization", f"Bearer {token}".encode()), (b"content-type", b"application/json")]
    request = Request("POST", "/v1/chat/completions", headers, json.dumps(body).encode())
    async with broker.answering(request) as answer:
        return answer.status, b"".join([piece async for piece in answer.pieces]).decode(errors="replace")


def _failed(status: int, answer: Mapping[str, Json] | None, text: str) -> Exception:
    error = (answer or {}).get("error")
    told = error if isinstance(error, Mapping) else {}
    message, code = str(told.get("message") or text[:200]), told.get("code")
    if code == Refusal.BUDGET:
        return BudgetExceededError(message)
    if code in _CONFIGURED_WRONG:
        return ConfigError(message, hint="agent-env model check")
    return ModelUnavailableError(f"the model could not be asked (status {status}): {message}", hint="agent-env model check")


def _object(text: str) -> dict[str, Json] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None

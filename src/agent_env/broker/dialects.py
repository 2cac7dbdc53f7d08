"""The four dialects as the broker needs them: which requests it carries, which model they ask for, how much they may answer, and how an
answer tells its tokens. A table of functions; nothing here talks to anybody.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from agent_env.broker.contract import Dialect, Refusal

Json = Any


class Counted(NamedTuple):
    """The tokens that an answer tells. `input` holds what came from the provider's cache too."""

    input: int = 0
    output: int = 0
    cached: int = 0


@dataclass(frozen=True, slots=True)
class Route:
    """A request that the broker carries, by its method and path."""

    dialect: Dialect
    resource: str
    """The path below the API's version: `chat/completions`."""
    asks: bool = True
    """It asks the model, and so counts. Others (lists of models, counts of tokens) are only carried."""
    streams: bool = False
    """The path alone says that the answer is a stream."""
    model: str | None = None
    """The model that the path names."""


_PREFIX: Final = r"/(?:openai/|gemini/|anthropic/)?(?:v1/|v1beta/)?"
_FIXED: Final = {
    "chat/completions": Route(Dialect.CHAT, "chat/completions"),
    "responses": Route(Dialect.RESPONSES, "responses"),
    "messages": Route(Dialect.MESSAGES, "messages"),
    "messages/count_tokens": Route(Dialect.MESSAGES, "messages/count_tokens", asks=False),
    "embeddings": Route(Dialect.CHAT, "embeddings"),
}
_POST: Final = re.compile(_PREFIX + f"({'|'.join(map(re.escape, _FIXED))})")
_GEMINI: Final = re.compile(r"/(?:gemini/)?(?:v1beta/|v1/)?(models/([^/:?#]+):(generateContent|streamGenerateContent|countTokens))")
_LIST: Final = re.compile(_PREFIX + r"(models(?:/[^/:?#]+)?)")
_NO_COUNT: Final = 10**12
"""Tokens that no answer has: whatever says so counts nothing."""
VERSION: Final = re.compile(r"/v\d+(?:beta\d*|alpha\d*)?$")
"""The end of a base address that names the API's version itself."""


def route_of(method: str, path: str) -> Route | None:
    """What a request is; None for everything else that the endpoint may have, such as its administration."""
    if method == "POST":
        fixed = _POST.fullmatch(path)
        if fixed:
            return _FIXED[fixed[1]]
        gemini = _GEMINI.fullmatch(path)
        if gemini:
            streams = gemini[3] == "streamGenerateContent"
            return Route(Dialect.GEMINI, gemini[1], asks=gemini[3] != "countTokens", streams=streams, model=gemini[2])
    if method == "GET" and (listed := _LIST.fullmatch(path)):
        dialect = Dialect.GEMINI if "/v1beta/" in path or path.startswith("/gemini/") else Dialect.CHAT
        return Route(dialect, listed[1], asks=False)
    return None


@dataclass(frozen=True, slots=True)
class Spelling:
    """One dialect."""

    ceiling: Callable[[Mapping[str, Json]], int | None]
    """The most tokens that the answer may have, as the request says."""
    capped: Callable[[dict[str, Json], int], None]
    """Lowers it."""
    answers: Callable[[Mapping[str, Json]], int]
    """How many answers the request asks for at once."""
    counted: Callable[[Mapping[str, Json]], Counted | None]
    """The tokens in one object of an answer: the whole one, or an event of a stream."""
    items: str
    """Where the request has its conversation."""
    error: Callable[[int, Refusal, str], Json]
    """An error body."""


# OpenAI chat completions


def _number(value: Json) -> int | None:
    return value if type(value) is int and value > 0 else None


_CHAT_CEILINGS: Final = ("max_completion_tokens", "max_tokens")


def _chat_ceiling(body: Mapping[str, Json]) -> int | None:
    """Where a request says both, endpoints differ in which they go by: the larger one."""
    return max((said for name in _CHAT_CEILINGS if (said := _number(body.get(name)))), default=None)


def _chat_capped(body: dict[str, Json], most: int) -> None:
    for name in [name for name in _CHAT_CEILINGS if name in body] or _CHAT_CEILINGS[:1]:
        body[name] = most


def _chat_answers(body: Mapping[str, Json]) -> int:
    return _number(body.get("n")) or 1


def _one_answer(_body: Mapping[str, Json]) -> int:
    return 1


def _chat_counted(value: Mapping[str, Json]) -> Counted | None:
    usage = value.get("usage")
    if not isinstance(usage, Mapping) or "prompt_tokens" not in usage:
        return None
    return Counted(_told(usage, "prompt_tokens"), _told(usage, "completion_tokens"), _told(usage, "prompt_tokens_details", "cached_tokens"))


def _openai_error(status: int, refusal: Refusal, message: str) -> Json:
    kind = "insufficient_quota" if refusal is Refusal.BUDGET else "invalid_request_error" if status < 500 else "server_error"
    return {"error": {"message": message, "type": kind, "param": None, "code": refusal.value}}


# OpenAI responses


def _responses_counted(value: Mapping[str, Json]) -> Counted | None:
    inner = value.get("response")
    usage = (inner if isinstance(inner, Mapping) else value).get("usage")
    if not isinstance(usage, Mapping) or "input_tokens" not in usage:
        return None
    return Counted(_told(usage, "input_tokens"), _told(usage, "output_tokens"), _told(usage, "input_tokens_details", "cached_tokens"))


# Anthropic messages


def _messages_counted(value: Mapping[str, Json]) -> Counted | None:
    inner = value.get("message")
    usage = (inner if isinstance(inner, Mapping) else value).get("usage")
    if not isinstance(usage, Mapping):
        return None
    cached = _told(usage, "cache_read_input_tokens")
    return Counted(
        _told(usage, "input_tokens") + cached + _told(usage, "cache_creation_input_tokens"), _told(usage, "output_tokens"), cached
    )


def _messages_error(status: int, refusal: Refusal, message: str) -> Json:
    kind = "permission_error" if status < 500 else "api_error"
    return {"type": "error", "error": {"type": kind, "message": message, "code": refusal.value}}


# Gemini


def _spelled(members: Mapping[str, Json], camel: str, snake: str) -> str:
    """The spelling of a field that a request uses: the API takes both, and one of them at a time."""
    return snake if snake in members and camel not in members else camel


def _gemini_settings(body: Mapping[str, Json]) -> Mapping[str, Json]:
    settings = body.get(_spelled(body, "generationConfig", "generation_config"))
    return settings if isinstance(settings, Mapping) else {}


def _gemini_ceiling(body: Mapping[str, Json]) -> int | None:
    settings = _gemini_settings(body)
    return _number(settings.get(_spelled(settings, "maxOutputTokens", "max_output_tokens")))


def _gemini_capped(body: dict[str, Json], most: int) -> None:
    settings = _gemini_settings(body)
    name = _spelled(body, "generationConfig", "generation_config")
    body[name] = {**settings, _spelled(settings, "maxOutputTokens", "max_output_tokens"): most}


def _gemini_answers(body: Mapping[str, Json]) -> int:
    settings = _gemini_settings(body)
    return _number(settings.get(_spelled(settings, "candidateCount", "candidate_count"))) or 1


def _gemini_counted(value: Mapping[str, Json]) -> Counted | None:
    usage = value.get("usageMetadata")
    if not isinstance(usage, Mapping):
        return None
    output = _told(usage, "candidatesTokenCount") + _told(usage, "thoughtsTokenCount")
    return Counted(_told(usage, "promptTokenCount"), output, _told(usage, "cachedContentTokenCount"))


def _gemini_error(status: int, refusal: Refusal, message: str) -> Json:
    word = "PERMISSION_DENIED" if status < 500 else "UNAVAILABLE"
    return {"error": {"code": status, "message": message, "status": word, "details": [{"reason": refusal.value}]}}


def _told(usage: Mapping[str, Json], *names: str) -> int:
    value: Json = usage
    for name in names:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value if type(value) is int and 0 < value < _NO_COUNT else 0


def _plain_ceiling(name: str) -> Callable[[Mapping[str, Json]], int | None]:
    return lambda body: _number(body.get(name))


def _plain_capped(name: str) -> Callable[[dict[str, Json], int], None]:
    def capped(body: dict[str, Json], most: int) -> None:
        body[name] = most

    return capped


SPELLINGS: Final[Mapping[Dialect, Spelling]] = {
    Dialect.CHAT: Spelling(_chat_ceiling, _chat_capped, _chat_answers, _chat_counted, "messages", _openai_error),
    Dialect.RESPONSES: Spelling(
        _plain_ceiling("max_output_tokens"), _plain_capped("max_output_tokens"), _one_answer, _responses_counted, "input", _openai_error
    ),
    Dialect.MESSAGES: Spelling(
        _plain_ceiling("max_tokens"), _plain_capped("max_tokens"), _one_answer, _messages_counted, "messages", _messages_error
    ),
    Dialect.GEMINI: Spelling(_gemini_ceiling, _gemini_capped, _gemini_answers, _gemini_counted, "contents", _gemini_error),
}


class UsageReader:
    """Reads the tokens out of an answer as it goes by. Numbers of a stream only grow, so the largest of each counts.

    Args:
        dialect: Of the answer.
        streamed: It is a stream of server-sent events.
        most_bytes: How much of an answer that is no stream is held to be read at its end.
    """

    def __init__(self, dialect: Dialect, *, streamed: bool, most_bytes: int) -> None:
        self._counted = SPELLINGS[dialect].counted
        self._streamed = streamed
        self._most = most_bytes
        self._held = bytearray()
        self._found: Counted | None = None
        self.events = 0
        """Events of a stream so far."""
        self.seen_bytes = 0

    def feed(self, piece: bytes) -> None:
        """The next bytes."""
        self.seen_bytes += len(piece)
        if len(self._held) + len(piece) <= self._most:
            self._held += piece
        if self._streamed:
            *lines, rest = self._held.split(b"\n")
            self._held = bytearray(rest)
            for line in lines:
                if line.startswith(b"data:"):
                    self.events += 1
                    if b"sage" in line:  # `usage`, `usageMetadata`
                        self._note(bytes(line[5:]))

    def end(self) -> Counted | None:
        """What was told; None when nothing was."""
        if self._held:
            self._note(bytes(self._held[5:] if self._streamed and self._held.startswith(b"data:") else self._held))
            self._held.clear()
        return self._found

    def estimate(self) -> int:
        """The tokens of an answer that did not tell them: a stream has about one in each event, and other text one in four bytes."""
        return self.events if self._streamed else self.seen_bytes // 4

    def _note(self, text: bytes) -> None:
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return
        for each in value if isinstance(value, list) else [value]:
            told = self._counted(each) if isinstance(each, Mapping) else None
            if told is not None:
                self._found = told if self._found is None else Counted(*map(max, self._found, told))

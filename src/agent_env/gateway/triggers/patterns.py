"""Patterns of authors, searched for in texts of agents: neither may hold up the gateway, so each search has a limit of its own."""

from __future__ import annotations

import asyncio
from functools import lru_cache

import regex

from agent_env.gateway.defaults import GatewayLimits

PatternError = regex.error


class SlowPatternError(Exception):
    """A search did not end in time."""


def check(pattern: str) -> None:
    """Raises `PatternError` where the pattern is none."""
    _compiled(pattern)


async def found(pattern: str, text: str, limits: GatewayLimits) -> bool:
    """Whether the pattern is somewhere in the text.

    Raises:
        SlowPatternError: The search did not end within `limits.regex_seconds`.
    """
    return await asyncio.to_thread(_search, pattern, text[: limits.regex_text_bytes], limits.regex_seconds)


def _search(pattern: str, text: str, seconds: float) -> bool:
    try:
        return _compiled(pattern).search(text, timeout=seconds, concurrent=True) is not None
    except TimeoutError as error:
        raise SlowPatternError(f"the pattern {pattern[:80]!r} was still being searched for after {seconds:g} s") from error


@lru_cache(maxsize=1024)
def _compiled(pattern: str) -> regex.Pattern[str]:
    return regex.compile(pattern)

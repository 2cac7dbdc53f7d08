"""What agents did, for people: a line or a paragraph for each event, under a heading for each prompt and turn."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from agent_env.cli.output import line
from agent_env.wording import counted

if TYPE_CHECKING:
    from agent_env.agents.recorded import RecordedPrompt, RecordedTurn

LONGEST = 2000
"""Characters of one event; `--full` and `--json` have all of them."""
_INDENT = " " * 10


def show_prompts(prompts: Sequence[RecordedPrompt], *, full: bool) -> None:
    """Prints them."""
    for index, prompt in enumerate(prompts):
        if index:
            line()
        line(heading(prompt.record))
        for turn in prompt.turns:
            if len(prompt.turns) > 1:
                line(f"turn {turn.number + 1} of {len(prompt.turns)}, {turn.state}")
            for label, text in _told(turn):
                line(_laid_out(label, text, full=full))
        why = prompt.record.get("error_message")
        if why and not any(event.get("type") == "error" and event.get("message") == why for turn in prompt.turns for event in turn.events):
            line(_laid_out("error", f"{prompt.record.get('error_code')}: {why}", full=full))


def heading(record: Mapping[str, Any]) -> str:
    """A prompt in one line."""
    facts = [
        record["prompt_id"],
        record.get("agent_name"),
        record.get("model"),
        record.get("state"),
        calls_text(record),
        usage_text(record),
    ]
    return " · ".join(str(fact) for fact in facts if fact)


def calls_text(record: Mapping[str, Any]) -> str | None:
    """How many tools were called."""
    count = record.get("tool_call_count")
    return None if count is None else counted(count, "tool call")


def usage_text(record: Mapping[str, Any]) -> str | None:
    """What it took of models, as far as somebody counted."""
    used = record.get("usage") or {}
    tokens = [f"{used[key]} tokens {word}" for key, word in (("input_tokens", "in"), ("output_tokens", "out")) if used.get(key)]
    cost = [f"${used['cost_usd']:.6f}"] if used.get("cost_usd") else []
    return ", ".join([*tokens, *cost]) or None


def _told(turn: RecordedTurn) -> Iterator[tuple[str, str]]:
    for event in turn.events:
        yield from _event(event) if turn.known else [("event", _text(event))]
    if turn.problem:
        yield "missing" if not turn.events else "problem", turn.problem


def _event(event: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    match event.get("type"):
        case "message":
            yield str(event.get("source") or "agent"), event["text"]
        case "reasoning":
            yield "thought", event["text"]
        case "tool_call":
            tool = f"{event['server']}.{event['name']}" if event.get("server") else event["name"]
            arguments = event.get("arguments")
            yield "call", f"{tool} {_text(arguments)}" if arguments is not None else tool
        case "tool_result":
            yield "failed" if event.get("is_error") else "result", _text(event.get("content"))
        case "error":
            yield "error", f"{event['code']}: {event['message']}"
        case "end" | "usage":  # the heading has the state, and the sum
            return
        case _:
            yield "event", _text(event)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _laid_out(label: str, text: str, *, full: bool) -> str:
    shown = text.rstrip("\n")
    if not full and len(shown) > LONGEST:
        shown = f"{shown[:LONGEST]}… ({len(shown) - LONGEST} more characters: --full)"
    return f"{label:9} " + shown.replace("\n", f"\n{_INDENT}")

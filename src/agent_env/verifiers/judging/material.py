"""What a judge is shown: the task, and as evidence the answer, what the agent did, and what the step asks for beside.

All of it is bounded, padding is taken out, and so is what speaks to the grader; the record says what was taken out.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from agent_env.defaults import Limits
from agent_env.verifiers.judging.hostile import Passage, withheld

Json = Any
_LONG_RUN: Final = re.compile(r"(.)\1{199,}", re.DOTALL)
"""One character two hundred times."""
_SAID_OFTEN, _LONG_LINE = 3, 40
"""A line of that length that stands there more often than that is padding."""
_SHOWN_SPEAKERS: Final = {"user": "user", "system": "system", "agent": "agent"}


@dataclass(frozen=True, slots=True)
class Shown:
    """What of a trajectory a judge sees."""

    tool_calls: bool = True
    tool_call_results: bool = True
    response: bool = True
    thinking: bool = False


@dataclass(frozen=True, slots=True)
class Material:
    """What a judge is shown."""

    task: Json
    evidence: Mapping[str, Json]
    passages: tuple[Passage, ...] = ()
    """What spoke to the grader."""
    left_out_characters: int = 0
    """Of what was too long."""
    padding_characters: int = 0
    """Of repetition."""

    def to_json(self) -> dict[str, Json]:
        """What the record says of it."""
        said: dict[str, Json] = {}
        if self.passages:
            said["addressed_to_judge"] = [each.to_json() for each in self.passages]
        if self.left_out_characters:
            said["left_out_characters"] = self.left_out_characters
        if self.padding_characters:
            said["padding_characters"] = self.padding_characters
        return said


def material(task: Json, evidence: Mapping[str, Json], limits: Limits, *, withhold: bool = True) -> Material:
    """Evidence, bounded and without what is none.

    Args:
        task: What the agent was asked to do, in its author's words.
        evidence: By name; texts, or lists of steps as `steps_of` makes them.
        limits: Say how much is shown.
        withhold: Passages that speak to the grader are left out; they are found and told in any case.
    """
    tidy = _Tidy(limits, withhold=withhold)
    shown = {name: tidy.value(name, value) for name, value in evidence.items()}
    return Material(task, tidy.bounded(shown), tuple(tidy.passages), tidy.left_out, tidy.padding)


@dataclass
class _Tidy:
    limits: Limits
    withhold: bool
    passages: list[Passage] = field(default_factory=list)
    left_out: int = 0
    padding: int = 0

    def value(self, where: str, value: Json) -> Json:
        """The value with every text in it tidied."""
        match value:
            case str():
                return self.text(where, value)
            case Mapping():
                return {str(key): self.value(where, each) for key, each in value.items()}
            case list() | tuple():
                return [self.value(where, each) for each in value]
            case _:
                return value

    def text(self, where: str, text: str) -> str:
        """A text without padding and without what speaks to the grader."""
        condensed = without_padding(text)
        self.padding += len(text) - len(condensed)
        clean, found = withheld(where, condensed)
        self.passages += found
        return clean if self.withhold else condensed

    def bounded(self, evidence: dict[str, Json]) -> dict[str, Json]:
        """Evidence within the limit: each part gets its share, and what a short one leaves goes to the others."""
        left, parts = self.limits.judge_material_characters, dict(sorted(evidence.items(), key=lambda item: _length(item[1])))
        for index, (name, value) in enumerate(parts.items()):
            share = left // (len(parts) - index)
            parts[name] = self._cut(value, share)
            left -= _length(parts[name])
        return {name: parts[name] for name in evidence}

    def _cut(self, value: Json, most: int) -> Json:
        length = _length(value)
        if length <= most:
            return value
        if isinstance(value, list) and len(value) > 1:
            return self._fewer(value, most)
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        self.left_out += len(text) - most
        return middle_out(text, most)

    def _fewer(self, items: list[Json], most: int) -> list[Json]:
        """The first and the last items: an agent's beginning and end tell more than its middle."""
        first: list[Json] = []
        last: list[Json] = []
        room, start, end = most, 0, len(items)
        while start < end:
            from_start = len(first) <= len(last)
            item = items[start] if from_start else items[end - 1]
            size = _length(item)
            if size > room:
                break
            room -= size
            if from_start:
                first, start = [*first, item], start + 1
            else:
                last, end = [item, *last], end - 1
        skipped = items[start:end]
        self.left_out += sum(_length(each) for each in skipped)
        return [*first, {"left_out_steps": len(skipped)}, *last]


def without_padding(text: str) -> str:
    """The text without long runs of one character, and with a line that is said again and again said three times."""
    lines = _LONG_RUN.sub(lambda run: f"{run[1] * 3}[{len(run[0])} times]", text).split("\n")
    often = {line for line, count in Counter(lines).items() if count > _SAID_OFTEN and len(line.strip()) >= _LONG_LINE}
    if not often:
        return "\n".join(lines)
    seen: Counter[str] = Counter()
    kept = []
    for line in lines:
        seen[line] += 1
        if line not in often or seen[line] <= _SAID_OFTEN:
            kept.append(line)
        elif kept[-1] != "[said before]":
            kept.append("[said before]")
    return "\n".join(kept)


def middle_out(text: str, most: int) -> str:
    """The beginning and the end of a text that is too long."""
    if len(text) <= most:
        return text
    half = max(most // 2, 0)
    return f"{text[:half]}\n[{len(text) - 2 * half} characters left out]\n{text[len(text) - half :] if half else ''}"


def steps_of(atif: Mapping[str, Json], shown: Shown, limits: Limits, *, numbered: bool = False) -> list[dict[str, Json]]:
    """The steps of an ATIF document as a judge reads them. Times and ids are left out: they tell nothing, and differ in each run.

    Args:
        atif: The document.
        shown: What of it.
        limits: Say how much.
        numbered: With the steps' numbers, for a judge that points at them.
    """
    steps = []
    for each in atif.get("steps") or ():
        if isinstance(each, Mapping) and (step := dict(_step(each, shown, limits))):
            steps.append({"step": each.get("step_id"), **step} if numbered else step)
    return steps


def _step(step: Mapping[str, Json], shown: Shown, limits: Limits) -> Iterator[tuple[str, Json]]:
    source = _SHOWN_SPEAKERS.get(str(step.get("source")), "system")
    results = {
        str(each.get("source_call_id")): each.get("content")
        for each in (step.get("observation") or {}).get("results") or ()
        if isinstance(each, Mapping)
    }
    calls = [dict(_call(call, results, shown, limits)) for call in step.get("tool_calls") or () if isinstance(call, Mapping)]
    thought, said = step.get("reasoning_content"), step.get("message")
    if shown.thinking and thought:
        yield "thinks", str(thought)
    if said and (shown.response or source != "agent"):
        yield source, said if isinstance(said, str) else json.dumps(said, ensure_ascii=False)
    if calls and shown.tool_calls:
        yield "calls", calls


def _call(call: Mapping[str, Json], results: Mapping[str, Json], shown: Shown, limits: Limits) -> Iterator[tuple[str, Json]]:
    yield "tool", call.get("function_name")
    yield "arguments", call.get("arguments")
    call_id = str(call.get("tool_call_id"))
    if shown.tool_call_results and call_id in results:
        content = results[call_id]
        text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
        yield "result", middle_out(text, limits.judge_result_characters)


def conversation_of(turns: Sequence[Mapping[str, Json]]) -> list[dict[str, Json]]:
    """The turns of a conversation as a judge reads them."""
    said: list[dict[str, Json]] = []
    for turn in turns:
        for side in ("message", "reply"):
            message = turn.get(side)
            if isinstance(message, Mapping) and message.get("text"):
                said.append({str(message.get("role")): str(message["text"])})
    return said


def _length(value: Json) -> int:
    return len(value) if isinstance(value, str) else len(json.dumps(value, ensure_ascii=False))

"""Pictures in a trajectory: taken out of what a judge reads, and some of them shown to it beside.

Which ones is arithmetic, so that the same case always shows the same: the last ones, or for each criterion those whose surroundings share
the rarest words with it.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from agent_env.verifiers.matching import lines_that_match

Json = Any
_TYPES: Final = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
"""What model APIs take."""
_WORD: Final = re.compile(r"[^\W_]{3,}")
_ACTION_CHARACTERS: Final = 300
LEFT_OUT: Final = "[picture that is too large, or of a kind that models don't take]"


@dataclass(frozen=True, slots=True)
class Screenshot:
    """A picture that a tool gave."""

    name: str
    """`screenshot 1` …"""
    step: int
    action: str
    """The call that it came of."""
    around: str
    """What was said, called and answered in its step."""
    media_type: str
    data: str
    """Base64."""

    def shown(self) -> dict[str, Json]:
        """What the document says of it."""
        return {"name": self.name, "step": self.step, "after": self.action}


@dataclass(frozen=True, slots=True)
class Choice:
    """Which pictures a judge is shown."""

    strategy: Literal["final_frames", "per_criterion"] = "final_frames"
    last: int = 3
    """Of `final_frames`."""
    budget: int = 90
    """Of `per_criterion`, for all criteria of one question together."""
    exclude: str | None = None
    """An expression: pictures of calls that match are none of the evidence of `per_criterion`."""


@dataclass(frozen=True, slots=True)
class Gallery:
    """All pictures of a trajectory, and which are chosen of them."""

    screenshots: Sequence[Screenshot] = ()
    choice: Choice | None = None
    """None shows none."""

    def chosen(self, criteria: Sequence[str]) -> Sequence[Screenshot]:
        """The pictures for these criteria, in the order in which they were taken."""
        choice = self.choice
        if choice is None or not self.screenshots:
            return ()
        if choice.strategy == "final_frames":
            return self.screenshots[-choice.last :]
        fit = self.screenshots
        if len(fit) <= choice.budget:
            return fit
        ranked = [_by_words(criterion, fit) for criterion in criteria]
        picked = {fit[-1].name}  # how it ended concerns every criterion
        for rank in range(len(fit)):
            for order in ranked:
                if len(picked) == choice.budget:
                    return [each for each in fit if each.name in picked]
                picked.add(order[rank].name)
        return fit


def gallery_of(screenshots: Sequence[Screenshot], choice: Choice | None, *, timeout_seconds: float) -> Gallery:
    """The pictures that may be chosen. Blocks.

    Raises:
        TaskError: The choice's expression takes too long.
    """
    if choice is None or choice.exclude is None or choice.strategy == "final_frames":
        return Gallery(screenshots, choice)
    excluded = lines_that_match(choice.exclude, [each.action for each in screenshots], timeout_seconds=timeout_seconds)
    return Gallery([each for index, each in enumerate(screenshots) if index not in excluded], choice)


def _by_words(criterion: str, screenshots: Sequence[Screenshot]) -> list[Screenshot]:
    """Those first whose surroundings share the rarest words with the criterion; of equal ones the later first."""
    words = [frozenset(_WORD.findall(each.around.casefold())) for each in screenshots]
    often = Counter(word for each in words for word in each)
    asked = frozenset(_WORD.findall(criterion.casefold()))
    worth = [sum(math.log(1 + len(words) / often[word]) for word in each & asked) for each in words]
    return [screenshots[index] for index in sorted(range(len(words)), key=lambda index: (-worth[index], -index))]


def pictured(documents: Sequence[Mapping[str, Json]], *, limit_bytes: int) -> tuple[list[dict[str, Json]], list[Screenshot]]:
    """ATIF documents with a word where a picture was, their steps numbered through, and the pictures.

    Args:
        documents: As they are.
        limit_bytes: What is larger is left out.
    """
    taken: list[Screenshot] = []
    numbered, number = [], 0
    for document in documents:
        steps = []
        for step in document.get("steps") or ():
            if isinstance(step, Mapping):
                number += 1
                steps.append({**_without_pictures(step, number, taken, limit_bytes), "step_id": number})
        numbered.append({**document, "steps": steps})
    return numbered, taken


def _without_pictures(step: Mapping[str, Json], number: int, taken: list[Screenshot], limit_bytes: int) -> Mapping[str, Json]:
    results = [each for each in (step.get("observation") or {}).get("results") or () if isinstance(each, Mapping)]
    calls = {str(each.get("tool_call_id")): each for each in step.get("tool_calls") or () if isinstance(each, Mapping)}
    first, clean = len(taken), []
    for result in results:
        action = action_of(calls.get(str(result.get("source_call_id")), {}))

        def named(media_type: str, data: str, action: str = action) -> str:
            if media_type not in _TYPES or len(data) * 3 // 4 > limit_bytes:
                return LEFT_OUT
            taken.append(Screenshot(f"screenshot {len(taken) + 1}", number, action, "", media_type, data))
            return f"[{taken[-1].name}]"

        clean.append({**result, "content": _worded(result.get("content"), named)})
    if not results:
        return step
    whole = {**step, "observation": {**step["observation"], "results": clean}}
    around = json.dumps([whole.get("message"), [action_of(each) for each in calls.values()], clean], ensure_ascii=False)
    taken[first:] = [replace(each, around=around) for each in taken[first:]]
    return whole


def _worded(content: Json, named: Callable[[str, str], str]) -> Json:
    if isinstance(content, Mapping):
        picture = picture_of(content)
        return named(*picture) if picture is not None else {key: _worded(value, named) for key, value in content.items()}
    return [_worded(each, named) for each in content] if isinstance(content, list) else content


def picture_of(block: Mapping[str, Json]) -> tuple[str, str] | None:
    """Media type and base64 of a block that is a picture, in the spellings of MCP, Anthropic, OpenAI and A2A; None for another one."""
    for spelled in (_as_mcp, _as_anthropic, _as_openai, _as_a2a):
        found = spelled(block)
        if found is not None:
            return found
    return None


def _as_mcp(block: Mapping[str, Json]) -> tuple[str, str] | None:
    data = block.get("data")
    return (str(block.get("mimeType")), data) if block.get("type") == "image" and isinstance(data, str) else None


def _as_anthropic(block: Mapping[str, Json]) -> tuple[str, str] | None:
    source = block.get("source")
    if block.get("type") != "image" or not isinstance(source, Mapping) or not isinstance(source.get("data"), str):
        return None
    return str(source.get("media_type")), source["data"]


def _as_openai(block: Mapping[str, Json]) -> tuple[str, str] | None:
    if block.get("type") not in {"image_url", "input_image"}:
        return None
    told = block.get("image_url")
    url = told.get("url") if isinstance(told, Mapping) else told
    head, comma, data = str(url).partition(";base64,")
    return (head.removeprefix("data:"), data) if comma and head.startswith("data:") else None


def _as_a2a(block: Mapping[str, Json]) -> tuple[str, str] | None:
    file = block.get("file")
    if block.get("kind") != "file" or not isinstance(file, Mapping) or not isinstance(file.get("bytes"), str):
        return None
    kind = str(file.get("mimeType") or file.get("mediaType"))
    return (kind, file["bytes"]) if kind.startswith("image/") else None


# what an agent did, in a line a call


def action_of(call: Mapping[str, Json]) -> str:
    """A call of a tool as one line."""
    text = f"{call.get('function_name')}({json.dumps(call.get('arguments'), ensure_ascii=False)})"
    return text if len(text) <= _ACTION_CHARACTERS else f"{text[: _ACTION_CHARACTERS - 1]}…"


@dataclass(frozen=True, slots=True)
class Actions:
    """What of the calls is listed."""

    most: int
    """How many, without those that are listed in any case."""
    always: Mapping[str, str] = field(default_factory=dict)
    """Label → expression: calls that match are listed in any case, under that label."""


def action_log(documents: Sequence[Mapping[str, Json]], actions: Actions, *, timeout_seconds: float) -> list[dict[str, Json]]:
    """Every call of a tool, one entry each; of too many the middle ones are left out, but never what must always be shown. Blocks.

    Args:
        documents: As `pictured` numbered them.
        actions: Which.
        timeout_seconds: What looking for one expression may take.

    Raises:
        TaskError: It takes longer.
    """
    entries: list[dict[str, Json]] = [
        {"step": step["step_id"], "action": action_of(call)}
        for document in documents
        for step in document.get("steps") or ()
        for call in step.get("tool_calls") or ()
        if isinstance(call, Mapping)
    ]
    lines, most = [str(each["action"]) for each in entries], actions.most
    for label, pattern in actions.always.items():
        for index in lines_that_match(pattern, lines, timeout_seconds=timeout_seconds):
            entries[index].setdefault("label", label)
    plain = [index for index, each in enumerate(entries) if "label" not in each]
    if len(plain) <= most:
        return entries
    half = most // 2
    left_out = frozenset(plain[most - half : len(plain) - half])
    kept = [each for index, each in enumerate(entries) if index < min(left_out) and index not in left_out]
    rest = [each for index, each in enumerate(entries) if index > min(left_out) and index not in left_out]
    return [*kept, {"left_out_actions": len(left_out)}, *rest]

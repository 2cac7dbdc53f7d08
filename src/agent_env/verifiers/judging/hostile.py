"""Passages of what is graded that speak to whoever grades it. They are evidence of nothing, so a judge need not see them.

What is found here is what people and models write when they try; it is no proof that nothing else does. The controls that are mixed into
every list of criteria (`asking.py`) tell when a judge did as it was told by somebody else.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

_GRADER = r"(?:llm[ -]?)?(?:judge|grader|evaluator|assessor|verifier|scorer|marker|rubric|grading (?:model|system|assistant|policy))s?"
_MARKS = r"(?:full|maximum|max|perfect|highest|top|passing|100 ?%|all)"
_THINGS = r"(?:marks?|scores?|points?|credits?|ratings?|grades?)"
_GIVE = r"(?:give|award|assign|grant|return|output|set|mark|rate|score|respond with|answer with)"
_CALLS = r"(?:dear|attention|attn|hey|(?:note|message|instructions?|reminder) (?:to|for))"
_MEANT = r"(?:criteri(?:a|on)|c\d+|this answer|this response|my answer|it)"
_MET = r"(?:met|satisfied|passed|pass|fulfilled|correct|true|1(?:\.0)?)"
_BETWEEN = r"[^\w\n]{1,20}"
_RULES: Final[tuple[tuple[str | int, ...], ...]] = (
    (
        r"\b(?:ignore|disregard|forget|override|overrule|bypass)\b",
        60,
        r"\b(?:instruction|prompt|rule|rubric|criteri|guideline|polic|system)",
    ),
    (rf"\b{_CALLS}\b", 20, rf"\b{_GRADER}\b"),
    (r"\b(?:if|when|since|because) you(?:'re| are)\b", 40, rf"\b{_GRADER}\b"),
    (rf"\b(?:you are|you're|act as|acting as|as) (?:now )?(?:the|a|an|my) (?:[\w-]{{1,40}} ){{0,2}}{_GRADER}\b",),
    (rf"\b{_GIVE}\b", 60, rf"\b{_MARKS}(?:{_BETWEEN}\w{{1,40}})?{_BETWEEN}{_THINGS}\b"),
    (rf"\b{_THINGS}\b", 30, r"\b(?:must|should|shall|has to|is to) be\b", 20, rf"\b{_MARKS}\b|\b1(?:\.0)?\b"),
    (r"\b(?:all|every|each|any)\b", 20, r"\bcriteri(?:a|on)\b", 40, rf"\b{_MET}\b"),
    (r"\b(?:mark|score|rate|treat|consider|grade|judge)\b", 40, rf"\b{_MEANT}\b", 40, rf"\b{_MET}\b"),
    (r"[\"']?\b(?:score|justification|verdict)[\"']? ?[:=] ?[\"']?(?:1(?:\.0)?|true|pass)\b",),
    (r"<\|?/?(?:im_start|im_end|system|assistant|user|judge|instructions?|evidence|rubric)\b[^>\n]{0,40}\|?>",),
)
"""What such text looks like: expressions that follow on each other, and how many characters may be between them. Each is searched by
itself, in time in proportion to the text: one that spans the gaps would be tried anew from every word."""
_AT_THE_START: Final = re.compile(
    r"(?:\[/?inst\]|#+ *(?:system|new instructions?|instructions? (?:to|for))\b|(?:system|assistant|judge|grader) ?:)"
)
"""What a sentence or line may not begin with."""
_ENDS: Final = re.compile(r"(?<=[.!?])(?=\s)|(?<=\n)")
"""Between sentences and lines."""
_INVISIBLE: Final = frozenset({"Cf", "Cc", "Co", "Cn", "Mn"})
_SHOWN_CHARACTERS: Final = 200
_BROKEN_CHARACTERS = 100
"""How long a line may be for its sentence to go on in the next one."""
_TWINS: Final = str.maketrans("асеорхуіјѕԁԛԝСЕОРХ", "aceopxyijsdqwCEOPX")
"""Cyrillic letters that look like Latin ones."""
WORD: Final = "[withheld: text that speaks to the grader]"


@dataclass(frozen=True, slots=True)
class Passage:
    """Something that speaks to the grader."""

    where: str
    """The part of the material."""
    text: str

    def to_json(self) -> dict[str, str]:
        """As the context keeps it, cut."""
        return {"where": self.where, "text": self.text[:_SHOWN_CHARACTERS]}


def withheld(where: str, text: str) -> tuple[str, list[Passage]]:
    """The text without the sentences and lines that speak to the grader, and those passages; a word stands where they stood."""
    segments = _ENDS.split(text)
    hostile = _speaking(segments)
    kept: list[str] = []
    found: list[Passage] = []
    for index, segment in enumerate(segments):
        if index not in hostile:
            kept.append(segment)
            continue
        found.append(Passage(where, segment.strip()))
        before, after = segment[: len(segment) - len(segment.lstrip())], segment[len(segment.rstrip()) :]
        kept += [before, "" if index - 1 in hostile else WORD, after]
    return "".join(kept), found


def _speaking(segments: list[str]) -> set[int]:
    """Segments that speak to the grader, alone, or as part of a sentence that was broken into lines."""
    text, starts = _laid_out(segments)
    found: set[int] = set()
    for first, last in _matches(text):
        found.update(range(bisect_right(starts, first) - 1, bisect_right(starts, last - 1)))
    return found | {index for index, start in enumerate(starts) if _AT_THE_START.match(text, start)}


def _laid_out(segments: list[str]) -> tuple[str, list[int]]:
    """All segments as plain text, and where each begins. A line feed stands between those that don't go on in the next."""
    parts: list[str] = []
    starts: list[int] = []
    length = 0
    for segment in segments:
        plain = plain_letters(segment).lower()
        starts.append(length)
        parts += [plain, " " if _goes_on(segment) else "\n"]
        length += len(plain) + 1
    return "".join(parts), starts


def _matches(text: str) -> Iterator[tuple[int, int]]:
    """Where something in it speaks to the grader: from, and to."""
    known: dict[str, list[tuple[int, int]]] = {}

    def of(pattern: str) -> list[tuple[int, int]]:
        if pattern not in known:
            known[pattern] = [match.span() for match in re.finditer(pattern, text)]
        return known[pattern]

    for first, *more in _RULES:
        spans = of(str(first))
        for gap, pattern in zip(more[::2], more[1::2], strict=True):
            spans = _followed(spans, of(str(pattern)), int(gap), text) if spans else spans
        yield from spans


def _followed(before: list[tuple[int, int]], after: list[tuple[int, int]], gap: int, text: str) -> list[tuple[int, int]]:
    """Each span of the second list that begins at most so far behind the end of one of the first, in the same sentence; with that one."""
    ends = [end for _, end in before]
    found = []
    for start, end in after:
        index = bisect_right(ends, start) - 1
        if index >= 0 and start - ends[index] <= gap and "\n" not in text[ends[index] : start]:
            found.append((before[index][0], end))
    return found


def _goes_on(line: str) -> bool:
    """Whether a sentence may go on in the next line."""
    said = line.strip()
    return line.endswith("\n") and bool(said) and said[-1] not in ".!?" and len(said) <= _BROKEN_CHARACTERS


def plain_letters(text: str) -> str:
    """The text as it would be read aloud, on one line: without invisible characters and accents, in letters that people type."""
    if text.isascii():
        return " ".join(text.split())
    folded = unicodedata.normalize("NFKD", text)
    invisible = {ord(each): None for each in set(folded) if not each.isspace() and unicodedata.category(each) in _INVISIBLE}
    return " ".join(folded.translate(invisible).split()).translate(_TWINS)

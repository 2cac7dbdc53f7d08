"""Passages of what is graded that speak to whoever grades it. They are evidence of nothing, so a judge need not see them.

What is found here is what people and models write when they try; it is no proof that nothing else does. The controls that are mixed into
every list of criteria (`asking.py`) tell when a judge did as it was told by somebody else.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from typing import Final

_GRADER = r"(?:llm[ -]?)?(?:judge|grader|evaluator|assessor|verifier|scorer|marker|rubric|grading (?:model|system|assistant|policy))s?"
_MARKS = r"(?:full|maximum|max|perfect|highest|top|passing|100 ?%|all)"
_THINGS = r"(?:marks?|scores?|points?|credits?|ratings?|grades?)"
_GIVE = r"(?:give|award|assign|grant|return|output|set|mark|rate|score|respond with|answer with)"
_CALLS = r"(?:dear|attention|attn|hey|(?:note|message|instructions?|reminder) (?:to|for))"
_MEANT = r"(?:criteri(?:a|on)|c\d+|this answer|this response|my answer|it)"
_MET = r"(?:met|satisfied|passed|pass|fulfilled|correct|true|1(?:\.0)?)"
_PATTERNS: Final = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"\b(?:ignore|disregard|forget|override|overrule|bypass)\b.{0,60}\b(?:instruction|prompt|rule|rubric|criteri|guideline|polic|system)",
        rf"\b{_CALLS}\b.{{0,20}}\b{_GRADER}\b",
        rf"\b(?:if|when|since|because) you(?:'re| are)\b.{{0,40}}\b{_GRADER}\b",
        rf"\b(?:you are|you're|act as|acting as|as) (?:now )?(?:the|a|an|my) (?:[\w-]+ ){{0,2}}{_GRADER}\b",
        rf"\b{_GIVE}\b.{{0,60}}\b{_MARKS}(?:\W+\w+)?\W+{_THINGS}\b",
        rf"\b{_THINGS}\b.{{0,30}}\b(?:must|should|shall|has to|is to) be\b.{{0,20}}(?:\b{_MARKS}\b|\b1(?:\.0)?\b)",
        rf"\b(?:all|every|each|any)\b.{{0,20}}\bcriteri(?:a|on)\b.{{0,40}}\b{_MET}\b",
        rf"\b(?:mark|score|rate|treat|consider|grade|judge)\b.{{0,40}}\b{_MEANT}\b.{{0,40}}\b{_MET}\b",
        r"[\"']?\b(?:score|justification|verdict)[\"']?\s*[:=]\s*[\"']?(?:1(?:\.0)?|true|pass)\b",
        r"<\|?/?(?:im_start|im_end|system|assistant|user|judge|instructions?|evidence|rubric)\b[^>]{0,40}\|?>",
        r"^\s*(?:\[/?INST\]|#+ *(?:system|new instructions?|instructions? (?:to|for))\b|(?:system|assistant|judge|grader)\s*:)",
    )
)
_ENDS: Final = re.compile(r"(?<=[.!?])(?=\s)|(?<=\n)")
"""Between sentences and lines."""
_INVISIBLE: Final = frozenset({"Cf", "Cc", "Co", "Cn", "Mn"})
_SHOWN_CHARACTERS: Final = 200
_BROKEN_LINES, _BROKEN_CHARACTERS = 4, 100
"""Over how many lines, and how long ones, one sentence is looked for."""
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
    """Segments that speak to the grader, alone, or as a sentence that was broken into lines."""
    found = {index for index, segment in enumerate(segments) if speaks_to_the_grader(segment)}
    for index in range(len(segments)):
        for end in range(index + 2, min(index + _BROKEN_LINES, len(segments)) + 1):
            lines = segments[index:end]
            if not _goes_on(lines[-2]) or not found.isdisjoint(range(index, end)):
                break
            if speaks_to_the_grader("".join(lines)):
                found.update(range(index, end))
    return found


def _goes_on(line: str) -> bool:
    """Whether a sentence may go on in the next line."""
    said = line.strip()
    return line.endswith("\n") and bool(said) and said[-1] not in ".!?" and len(said) <= _BROKEN_CHARACTERS


def speaks_to_the_grader(text: str) -> bool:
    """Whether it does; letters that only look alike, and invisible ones, don't hide it."""
    plain = plain_letters(text)
    return any(pattern.search(plain) for pattern in _PATTERNS)


def plain_letters(text: str) -> str:
    """The text as it would be read aloud, on one line: without invisible characters and accents, in letters that people type."""
    if text.isascii():
        return " ".join(text.split())
    folded = unicodedata.normalize("NFKD", text)
    return " ".join("".join(each for each in folded if each.isspace() or unicodedata.category(each) not in _INVISIBLE).split()).translate(
        _TWINS
    )

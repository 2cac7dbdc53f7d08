"""Near spellings: how a mistyped key or name is told from one that is merely unknown."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from agent_env.documents.reading import at
from agent_env.errors import Problem


def near(word: str, known: Iterable[str]) -> str | None:
    """The known word that `word` most likely means: other case or separators, or one or two slips of the finger.

    Words of up to three letters must differ in case or separators only; up to seven letters allow one slip, longer ones two.
    """
    folded = _fold(word)
    allowed = 0 if len(folded) < 4 else 1 if len(folded) < 8 else 2
    best: tuple[int, str] | None = None
    for candidate in known:
        if candidate == word:
            continue
        distance = _distance(folded, _fold(candidate), allowed)
        if distance is not None and (best is None or (distance, candidate) < best):
            best = (distance, candidate)
    return best[1] if best else None


def meant_keys(data: Collection[str], known: Collection[str], other_words: Mapping[str, str] | None = None) -> dict[str, str]:
    """Of the keys that are not known, those that are mistakes for known ones, and for which. See `unknown_key_problems`."""
    unknown = [key for key in data if key not in known]
    return {key: meant for key in unknown if (meant := (other_words or {}).get(key) or near(key, known)) is not None}


def unknown_key_problems(
    data: Mapping[str, Any],
    known: Collection[str],
    *,
    source: str | None,
    path: str = "$",
    strict: bool = False,
    other_words: Mapping[str, str] | None = None,
    elsewhere: Mapping[str, str] | None = None,
) -> tuple[list[Problem], list[Problem]]:
    """Judges the keys of one object.

    Args:
        data: The object as written.
        known: Every accepted key, legacy spellings included.
        source: The file, for the messages.
        path: The object's JSON path.
        strict: Refuses every unknown key.
        other_words: Keys that other systems have for the same → ours. They are mistakes as near spellings are.
        elsewhere: Keys that mean something in another place → what to write there.

    Returns:
        Problems (near spellings of a known key; with `strict` all unknown ones) and warnings (the others, which are kept).
    """
    problems: list[Problem] = []
    warnings: list[Problem] = []
    mistakes = meant_keys(data, known, other_words)
    for key in data:
        if key in known:
            continue
        if key in mistakes:
            problems.append(Problem(f"unknown key {key!r}", source, at(path, key), f"did you mean {mistakes[key]!r}?"))
        elif strict:
            hint = (elsewhere or {}).get(key) or f"accepted: {', '.join(sorted(known))}"
            problems.append(Problem(f"unknown key {key!r}", source, at(path, key), hint))
        else:
            warnings.append(Problem(f"unknown key {key!r} is kept and ignored", source, at(path, key), (elsewhere or {}).get(key)))
    return problems, warnings


def _fold(word: str) -> str:
    return word.casefold().replace("-", "").replace("_", "").replace(" ", "").replace(".", "")


def _distance(a: str, b: str, allowed: int) -> int | None:
    """Edits from a to b (swapping two neighbours is one), or None when more than allowed."""
    if a == b:
        return 0
    if allowed == 0 or abs(len(a) - len(b)) > allowed:
        return None
    before: list[int] = []
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        older, before, row = before, row, [i]
        for j, y in enumerate(b, 1):
            cost = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (x != y))
            if i > 1 and j > 1 and x == b[j - 2] and a[i - 2] == y:
                cost = min(cost, older[j - 2] + 1)
            row.append(cost)
        if min(row) > allowed:
            return None
    return row[-1] if row[-1] <= allowed else None

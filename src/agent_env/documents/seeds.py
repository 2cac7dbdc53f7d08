r"""Seeds: values that a task's texts are filled with, and the files that hold many of them.

`<key>` in any text of a step becomes the seed's value, in one pass, so that a value is never searched again. A backslash keeps it
as it is: `<\key>` becomes `<key>`, `<\\key>` becomes `<\key>`. Keys that the seed doesn't have are ordinary text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_env.defaults import DEFAULT_LIMITS
from agent_env.documents.reading import decode, parse_json, read_file
from agent_env.errors import Problem, ProblemsError

Json = Any
Seed = Mapping[str, Json]
SEED_KEY = "seed"
"""The placeholder, `<seed>`, that a call's `--seed` fills, differently for each run and the same in each repetition of the call."""
NAMING = ("id", "name")
"""Columns whose value also tells a row from the others, the first that has one."""
NAME_CHARACTERS = 80
"""That much of it, on one line."""


@dataclass(frozen=True, slots=True)
class SeedTable:
    """The rows of a CSV file, each a seed, with the places that messages name."""

    source: str
    columns: tuple[str, ...]
    """The names of the header, without those that are empty."""
    header: str
    """Where the header stands: `line 1`."""
    rows: tuple[dict[str, str], ...]
    """Empty cells are absent."""
    places: tuple[str, ...]
    """Where each row stands: `line 2`."""


def row_name(number: int, seed: Seed) -> str:
    """How people tell a row from the others: `row 2`, or `row 2 ada` with a naming column. `number` counts from 1, without the header."""
    named = next((" ".join(str(seed[key]).split()) for key in NAMING if seed.get(key)), None)
    if not named:
        return f"row {number}"
    return f"row {number} {named if len(named) <= NAME_CHARACTERS else f'{named[:NAME_CHARACTERS]}…'}"


def substitute(value: Json, seed: Seed) -> Json:
    """The value with every `<key>` of its texts replaced by `str(seed[key])`; keys of objects and numbers are left alone.

    Parts without any come back as they are, not copied.
    """
    if not seed:
        return value
    names = "|".join(sorted(map(re.escape, seed), key=len, reverse=True))
    return _substituted(value, re.compile(rf"<(\\*)({names})>"), seed)


def _substituted(value: Json, pattern: re.Pattern[str], seed: Seed) -> Json:
    match value:
        case str():
            return pattern.sub(lambda found: _filled(found, seed), value) if "<" in value else value
        case dict():
            made = {key: _substituted(member, pattern, seed) for key, member in value.items()}
            return value if all(made[key] is value[key] for key in made) else made
        case list() | tuple():
            items = [_substituted(member, pattern, seed) for member in value]
            return value if all(new is old for new, old in zip(items, value, strict=True)) else items
        case _:
            return value


def _filled(found: re.Match[str], seed: Seed) -> str:
    backslashes, key = found.groups()
    return f"<{backslashes[1:]}{key}>" if backslashes else str(seed[key])


def read_seeds(path: Path | str) -> list[dict[str, Json]]:
    """The seeds of a file: CSV with a header, a JSON list of objects, or one JSON object a line (`.jsonl`).

    An empty cell or a null is absent, never the text `nan` (TP-11). CSV values are text.

    Raises:
        ProblemsError: Everything wrong with it, with line or JSON path.
    """
    source = str(path)
    data = read_file(path, limit_bytes=DEFAULT_LIMITS.document_bytes)
    match Path(path).suffix.lower():
        case ".csv" | ".tsv":
            return list(_csv(data, source, "\t" if source.lower().endswith(".tsv") else ",").rows)
        case ".json":
            rows = parse_json(data, source=source)
            return _objects(rows, source, [f"$[{i}]" for i in range(len(rows))] if isinstance(rows, list) else [])
        case ".jsonl" | ".ndjson":
            lines = [(f"line {i}", line) for i, line in enumerate(data.splitlines(), 1) if line.strip()]
            return _objects([_line(line, source, where) for where, line in lines], source, [where for where, _ in lines])
    raise ProblemsError([Problem("seeds are read from .csv, .tsv, .json or .jsonl", source)])


def _line(line: bytes, source: str, where: str) -> Json:
    try:
        return parse_json(line, source=source)
    except ProblemsError as error:
        problems = (Problem(problem.message, source, f"{where} {problem.path or ''}".strip(), problem.hint) for problem in error.problems)
        raise ProblemsError(problems) from error


def _objects(rows: Json, source: str, places: Sequence[str]) -> list[dict[str, Json]]:
    if not isinstance(rows, list):
        raise ProblemsError([Problem("seeds are a list of objects", source, "$")])
    wrong = [Problem("a seed is an object", source, where) for row, where in zip(rows, places, strict=True) if not isinstance(row, dict)]
    if wrong:
        raise ProblemsError(wrong)
    return [{key: value for key, value in row.items() if value is not None} for row in rows]


def read_csv(path: Path | str, *, delimiter: str = ",") -> SeedTable:
    """The seeds of a CSV file, whatever its name ends in. Empty rows are left out.

    Raises:
        ProblemsError: Everything wrong with it, with its lines: no header, a name twice, cells that belong to no column, no rows.
    """
    return _csv(read_file(path, limit_bytes=DEFAULT_LIMITS.document_bytes), str(path), delimiter)


def _csv(data: bytes, source: str, delimiter: str) -> SeedTable:
    import csv
    import io

    text = decode(data, source)
    found: list[tuple[str, list[str]]] = []
    problems: list[Problem] = []
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    try:
        found += [(f"line {reader.line_num}", row) for row in reader if any(cell.strip() for cell in row)]
    except csv.Error as error:
        problems.append(Problem(f"is not valid CSV: {error}", source, f"line {reader.line_num}"))
    if not found:
        raise ProblemsError(problems or [Problem("has no header: its first row names the placeholders", source)])
    (where, first), *below = found
    header = [cell.strip() for cell in first]
    problems += _header_problems(header, source, where)
    for place, row in below:
        problems += _row_problems(header, row, source, place)
    if not below and not problems:
        problems.append(Problem("has no rows with values", source))
    if problems:
        raise ProblemsError(problems)
    rows = tuple({key: cell for key, cell in zip(header, row, strict=False) if cell.strip()} for _, row in below)
    return SeedTable(source, tuple(name for name in header if name), where, rows, tuple(place for place, _ in below))


def _header_problems(header: Sequence[str], source: str, where: str) -> list[Problem]:
    twice = sorted({name for name in header if name and header.count(name) > 1})
    return [Problem(f"two columns are named {name!r}", source, where) for name in twice]


def _row_problems(header: Sequence[str], row: Sequence[str], source: str, where: str) -> Iterator[Problem]:
    """Cells that no column names. Empty ones are what spreadsheets leave behind."""
    for i, cell in enumerate(row):
        if cell.strip() and (i >= len(header) or not header[i]):
            yield Problem(f"cell {i + 1} belongs to no named column of the header", source, where)

"""What a task's placeholders and the seeds that are to fill them don't have in common: said before anything runs, with both places."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agent_env.documents.reading import at
from agent_env.documents.seeds import NAMING, SEED_KEY, SeedTable
from agent_env.documents.spelling import near
from agent_env.errors import Problem

Json = Any
_PLACEHOLDER = re.compile(r"<(\\*)([^<>\n]+)>")
_NAME_A_COLUMN = ("artifacts_key",)
"""Fields of steps that read a seed's value by its name."""
_LIKE_ONE = re.compile(r"[A-Za-z_][\w-]*")
_GLUED = re.compile(r"[A-Za-z0-9?]")
"""What stands before a name in generics (`List<int>`) and in groups of regular expressions (`(?P<year>…)`, `(?<year>…)`)."""
_WITHOUT_END = frozenset({"br", "hr", "wbr"})
"""Elements of HTML that are always markup."""


@dataclass(frozen=True, slots=True)
class _Site:
    """The first place of a placeholder in a task."""

    source: str
    path: str


def seed_remarks(
    table: SeedTable | None,
    tasks: Mapping[str, Sequence[Json]],
    *,
    numbered: str | None = None,
    given: Collection[str] = (),
    all_read: bool = True,
) -> list[Problem]:
    r"""Columns that fill nothing, placeholders that nothing fills, rows without a value for one. Remarks, not errors: texts may hold `<b>`.

    A name between `<name>` and `</name>` in one text is markup, and `<\name>` is said to be text: neither is a placeholder. Where nothing
    is filled at all, a name is said once for all tasks.

    Args:
        table: The file of seeds, if any.
        tasks: Source → its steps as written.
        numbered: A placeholder that is filled by other means with a number for each run.
        given: What else is filled.
        all_read: There are no tasks beside these; else what fills nothing here may fill something there.
    """
    filled = {*(table.columns if table else ()), *([numbered] if numbered else ()), *given}
    found = {source: dict(_placeholders(steps, filled, source)) for source, steps in tasks.items()}
    remarks = [remark for sites in found.values() for remark in _unfilled(sites, filled)] if filled else list(_never_filled(found))
    used = {name: site for sites in reversed(found.values()) for name, site in sites.items()}
    named = {step.get(key) for steps in tasks.values() for step in steps for key in _NAME_A_COLUMN}
    if table is not None:
        remarks += _unused(table, used, {*NAMING, *named}) if all_read else ()
        remarks += _gaps(table, used)
    if numbered is not None and numbered not in used and all_read:
        remarks.append(Problem(f"no task has <{numbered}>, so the number fills nothing", f"--{numbered}"))
    return remarks


def _placeholders(steps: Sequence[Json], filled: Collection[str], source: str) -> Iterator[tuple[str, _Site]]:
    """Every name that stands as a placeholder and where it does first; what only looks like one counts unless it is markup."""
    seen: set[str] = set()
    for path, text in _texts(steps, "$"):
        for one in _PLACEHOLDER.finditer(text):
            backslashes, name = one.groups()
            glued = one.start() > 0 and _GLUED.match(text, one.start() - 1)
            is_name = _LIKE_ONE.fullmatch(name) and f"</{name}>" not in text and name not in _WITHOUT_END
            is_one = name in filled or (is_name and not (glued and near(name, filled) is None))
            if is_one and not backslashes and name not in seen:
                seen.add(name)
                yield name, _Site(source, path)


def _texts(value: Json, path: str) -> Iterator[tuple[str, str]]:
    match value:
        case str():
            if "<" in value:
                yield path, value
        case Mapping():
            for key, member in value.items():
                yield from _texts(member, at(path, key))
        case list() | tuple():
            for i, member in enumerate(value):
                yield from _texts(member, at(path, i))


def _unfilled(sites: Mapping[str, _Site], filled: Collection[str]) -> Iterator[Problem]:
    for name, site in sites.items():
        if name not in filled:
            meant = near(name, filled)
            or_number = ", or --seed N" if name == SEED_KEY else ""
            as_text = f"a column {name!r}{or_number} would; where the text itself is meant, its value is <{name}>"
            hint = f"did you mean <{meant}>?" if meant else as_text
            yield Problem(f"nothing fills <{name}>, so it stays as it is written", site.source, site.path, hint)


def _never_filled(found: Mapping[str, Mapping[str, _Site]]) -> Iterator[Problem]:
    for name in dict.fromkeys(name for sites in found.values() for name in sites):
        first, *others = [sites[name] for sites in found.values() if name in sites]
        also = f" (also in {others[0].source}{f' and {len(others) - 1} more' if len(others) > 1 else ''})" if others else ""
        column = f"a column {name!r} of a file that is given with --seeds would fill it"
        hint = f"--seed N fills it with another number in each run; {column} too" if name == SEED_KEY else column
        yield Problem(f"nothing fills <{name}>, so it stays as it is written{also}", first.source, first.path, hint)


def _unused(table: SeedTable, used: Mapping[str, _Site], otherwise: Collection[Json]) -> Iterator[Problem]:
    for column in table.columns:
        if column not in used and column not in otherwise:
            meant = near(column, used)
            hint = f"did you mean {meant!r}?" if meant else None
            yield Problem(f"the column {column!r} fills nothing: no task has <{column}>", table.source, table.header, hint)


def _gaps(table: SeedTable, used: Mapping[str, _Site]) -> Iterator[Problem]:
    for column in table.columns:
        empty = [place for place, row in zip(table.places, table.rows, strict=True) if column not in row]
        if column in used and empty:
            which = f"this row and {len(empty) - 1} more have" if len(empty) > 1 else "the row has"
            message = f"{which} no value for {column!r}"
            hint = f"<{column}> stays as it is written there ({used[column].source}: {used[column].path})"
            yield Problem(message, table.source, empty[0], hint)

"""SKILL.md: the frontmatter rules of agentskills.io, checked all at once."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from agent_env.documents.reading import at, json_problems
from agent_env.documents.spelling import unknown_key_problems
from agent_env.errors import Problem, ProblemsError

SPEC_VERSION = "0.1"
SKILL_FILE = "SKILL.md"
MAX_NAME, MAX_DESCRIPTION, MAX_COMPATIBILITY = 64, 1024, 500
FRONTMATTER_KEYS = frozenset({"name", "description", "license", "compatibility", "allowed-tools", "metadata"})

_FRONTMATTER = re.compile(r"\A\ufeff?---[ \t]*\r?\n(.*?)^---[ \t]*(?:\r?\n|\Z)", re.DOTALL | re.MULTILINE)
_NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")


@dataclass(frozen=True, slots=True)
class Skill:
    """What a SKILL.md says about itself."""

    name: str
    description: str
    license: str | None = None
    compatibility: str | None = None
    allowed_tools: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    body: str = ""
    """The text below the frontmatter."""
    warnings: tuple[Problem, ...] = ()


def parse_skill(data: bytes | str, *, source: str, folder: str | None = None, strict: bool = False) -> Skill:
    """A SKILL.md.

    Args:
        data: The file's content.
        source: The file, for the problems.
        folder: The skill's folder or the last segment of its id, which its name must equal.
        strict: Unknown keys are problems, not warnings.

    Raises:
        ProblemsError: Everything wrong with it.
    """
    try:
        text = data if isinstance(data, str) else data.decode()
    except UnicodeDecodeError as error:
        raise ProblemsError([Problem("is not UTF-8 text", source, hint="save it as UTF-8")]) from error
    match = _FRONTMATTER.match(text)
    if match is None:
        raise ProblemsError([Problem("has no frontmatter", source, hint="start the file with --- lines around `name:` and `description:`")])
    table = _yaml(match.group(1), source)
    problems, warnings = unknown_key_problems(table, FRONTMATTER_KEYS, source=source, strict=strict)
    problems += json_problems(table, source=source)
    problems += _problems(table, source, folder)
    if problems:
        raise ProblemsError(problems)
    return Skill(
        name=table["name"],
        description=table["description"],
        license=table.get("license"),
        compatibility=table.get("compatibility"),
        allowed_tools=table.get("allowed-tools"),
        metadata=table.get("metadata") or {},
        body=text[match.end() :],
        warnings=tuple(warnings),
    )


def _problems(table: Mapping[str, Any], source: str, folder: str | None) -> Iterator[Problem]:
    name = table.get("name")
    if not isinstance(name, str) or len(name) > MAX_NAME or not _NAME.fullmatch(name):
        rule = f"1 to {MAX_NAME} of a–z, 0–9 and single hyphens between them"
        yield Problem("name is missing" if name is None else f"name can't be {name!r}", source, "$.name", rule)
    elif folder is not None and name != folder:
        yield Problem(f"name is {name!r} but the skill's folder is {folder!r}", source, "$.name", "they must be equal")
    yield from _text_problems(table, source, "description", MAX_DESCRIPTION, required=True)
    yield from _text_problems(table, source, "compatibility", MAX_COMPATIBILITY)
    yield from _text_problems(table, source, "license", None)
    yield from _text_problems(table, source, "allowed-tools", None)
    metadata = table.get("metadata")
    if metadata is not None and not isinstance(metadata, dict):
        yield Problem("metadata is a table of texts", source, "$.metadata")
    elif metadata:
        for key, value in metadata.items():
            if not isinstance(value, str):
                yield Problem("metadata values are text", source, at("$.metadata", str(key)), "put quotes around it")


def _text_problems(table: Mapping[str, Any], source: str, key: str, limit: int | None, *, required: bool = False) -> Iterator[Problem]:
    value = table.get(key)
    if value is None:
        if required:
            yield Problem(f"{key} is missing", source, at("$", key))
    elif not isinstance(value, str) or (required and not value.strip()):
        yield Problem(f"{key} is text", source, at("$", key))
    elif limit is not None and len(value) > limit:
        yield Problem(f"{key} has {len(value)} characters; at most {limit} are allowed", source, at("$", key))


def _yaml(text: str, source: str) -> dict[str, Any]:
    import yaml

    try:
        table = yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f" at line {mark.line + 2}, column {mark.column + 1}" if mark else ""
        raise ProblemsError([Problem(f"the frontmatter is not valid YAML: {error.problem}{where}", source)]) from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ProblemsError([Problem(f"the frontmatter is not valid YAML: {type(error).__name__}", source)]) from error
    if not isinstance(table, dict):
        raise ProblemsError([Problem("the frontmatter is a table of keys and values", source)])
    odd = [key for key in table if not isinstance(key, str)]
    if odd:
        raise ProblemsError([Problem(f"{odd[0]!r} can't be a key", source, hint="keys are text")])
    return table

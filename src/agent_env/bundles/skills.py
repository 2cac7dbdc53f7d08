"""The head of a SKILL.md (agentskills.io 0.1): YAML between two lines of dashes, with rules of its own."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from agent_env.documents.reading import at
from agent_env.documents.updates import Json
from agent_env.errors import Problem, ProblemsError

SPEC_VERSION = "0.1"
NAME_LENGTH, DESCRIPTION_LENGTH, COMPATIBILITY_LENGTH = 64, 1024, 500
_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


def read_frontmatter(data: bytes, *, file: str) -> dict[str, Json]:
    """The head of a SKILL.md as a mapping, unchecked.

    Raises:
        ProblemsError: There is none, or it is no YAML mapping.
    """
    import yaml

    text = data.decode("utf-8-sig", "replace")
    lines = text.splitlines()
    end = next((number for number, line in enumerate(lines[1:], 1) if line.rstrip() == "---"), None)
    if not lines or lines[0].rstrip() != "---" or end is None:
        raise ProblemsError([Problem("starts with no frontmatter: YAML between two lines '---'", file, "line 1")])
    try:
        head = yaml.safe_load("\n".join(lines[1:end]))
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 2}, column {mark.column + 1}" if mark else None
        raise ProblemsError([Problem(f"its frontmatter is not YAML: {getattr(error, 'problem', None) or error}", file, where)]) from error
    if not isinstance(head, dict):
        raise ProblemsError([Problem("its frontmatter is no mapping", file, "line 2", "write 'name: …' and 'description: …'")])
    return {str(key): value for key, value in head.items()}


def skill_problems(data: bytes, name: str, *, file: str) -> tuple[Problem, ...]:
    """Everything wrong with the head of the SKILL.md of the skill folder `name`."""
    try:
        head = read_frontmatter(data, file=file)
    except ProblemsError as error:
        return error.problems
    return tuple(_problems(head, name, file))


def _problems(head: Mapping[str, Json], folder: str, file: str) -> Iterator[Problem]:
    name = head.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name) or len(name) > NAME_LENGTH:
        said = f"name is 1 to {NAME_LENGTH} lower-case letters and digits, with single hyphens inside, not {name!r}"
        yield Problem(said, file, "$.name")
    elif name != folder:
        yield Problem(f"the skill's name {name!r} is not its folder's name {folder!r}", file, "$.name", "make them equal")
    description = head.get("description")
    if not isinstance(description, str) or not description.strip():
        yield Problem("description is missing, or no text", file, "$.description")
    for key, limit in (("description", DESCRIPTION_LENGTH), ("compatibility", COMPATIBILITY_LENGTH)):
        value = head.get(key)
        if isinstance(value, str) and len(value) > limit:
            yield Problem(f"{key} has {len(value)} characters; at most {limit} are allowed", file, at("$", key))
    for key in ("license", "compatibility", "allowed-tools"):
        if head.get(key) is not None and not isinstance(head[key], str):
            yield Problem(f"{key} is text, not {head[key]!r}", file, at("$", key))
    metadata = head.get("metadata")
    texts = isinstance(metadata, dict) and all(isinstance(part, str) for pair in metadata.items() for part in pair)
    if metadata is not None and not texts:
        yield Problem("metadata is a map of texts", file, "$.metadata", "put numbers into quotes")

"""Taking out of a document what belongs to whoever ran it: nulls that say nothing, personal fields, and whatever looks like a secret."""

from __future__ import annotations

import re
from collections.abc import Mapping

from agent_env.bundles.json_paths import Path, spelled_below
from agent_env.documents.updates import Json
from agent_env.errors import AgentEnvError
from agent_env.redaction import MASK, is_secret_key, looks_secret, mask_tokens, mask_user_info
from agent_env.steps.registry import step_class

_REFERENCE = re.compile(r"(?:env|secret):[^?\s]+")
_VARIABLES = frozenset({"env", "env_vars", "default_env_vars"})
"""Tables whose entries are dropped whole when they look like secrets: an empty variable would be worse than none."""


class Scrubber:
    """Masks what looks like a secret.

    Args:
        notes: Told where something was found.
    """

    def __init__(self, notes: list[str]) -> None:
        self._notes = notes

    def scrubbed(self, value: dict[str, Json], where: str) -> dict[str, Json]:
        """A step without secrets."""
        made: dict[str, Json] = self._member("", value, where, ())
        return made

    def look(self, text: str, where: str) -> None:
        """Notes that a file, which is left as it is, seems to hold a secret."""
        if mask_tokens(text) != mask_user_info(text):
            self._notes.append(f"{where} holds what looks like a key; the file was left as it is")

    def _member(self, key: str, value: Json, where: str, path: Path) -> Json:
        match value:
            case dict():
                drop = key in _VARIABLES
                kept = {name: item for name, item in value.items() if not (drop and self._is_secret(name, item))}
                for name in value.keys() - kept.keys():
                    self._notes.append(f"{where}: {spelled_below((*path, name))} was dropped")
                return {name: self._member(str(name), item, where, (*path, name)) for name, item in kept.items()}
            case list():
                return [self._member(key, item, where, (*path, index)) for index, item in enumerate(value)]
            case str():
                return self._text(key, value, where, path)
            case _:
                return value

    def _text(self, key: str, text: str, where: str, path: Path) -> str:
        if _REFERENCE.fullmatch(text):
            return text
        masked = MASK if text and is_secret_key(key) else mask_tokens(text)
        if masked != text:
            self._notes.append(f"{where}: {spelled_below(path)} was masked")
        return masked

    def _is_secret(self, name: str, value: Json) -> bool:
        return isinstance(value, str) and not _REFERENCE.fullmatch(value) and (is_secret_key(name) or looks_secret(value))


def cleaned_step(step: Mapping[str, Json], *, keep_user_fields: bool) -> tuple[dict[str, Json], list[str]]:
    """A stored step as a person would write it, and the fields that were dropped because they belong to whoever runs it.

    Keys that are null where null is their default, the step document's own version, and the long form of `depends_on` go.
    """
    user_fields, nulls_matter = _of_type(str(step.get("type")))
    made: dict[str, Json] = {}
    dropped: list[str] = []
    for key, value in step.items():
        if value is None and key not in nulls_matter:
            continue
        if key == "version":
            continue
        if key in user_fields and not keep_user_fields:
            dropped.append(key)
        elif key == "depends_on":
            made[key] = [entry["task_step_id"] if isinstance(entry, dict) else entry for entry in value]
        elif isinstance(value, dict) and not keep_user_fields:
            kept = {name: item for name, item in value.items() if f"{key}.{name}" not in user_fields}
            dropped += [f"{key}.{name}" for name in value.keys() - kept.keys()]
            made[key] = kept
        else:
            made[key] = value
    return made, dropped


def _of_type(type: str) -> tuple[frozenset[str], frozenset[str]]:
    """A step type's personal fields, and those whose null says something, because their default is not null."""
    try:
        cls = step_class(type)
    except AgentEnvError:
        return frozenset(), frozenset()
    matter = {name for name, info in cls.model_fields.items() if not info.is_required() and info.get_default() is not None}
    return cls.user_fields, frozenset(matter)

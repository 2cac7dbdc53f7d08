"""What each type's toml may say: one row a key. Checks look at values alone; what they refer to is resolved elsewhere."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from agent_env.bundles.model import BundleKind
from agent_env.documents.reading import at
from agent_env.documents.spelling import near, unknown_key_problems
from agent_env.documents.updates import Json
from agent_env.errors import Problem
from agent_env.wording import shown

Check = Callable[[Json], str | None]
"""Says what a value must be ("is text"), or None when it is."""
RefKind = Literal["env", "agent", "artifact", "task"]


def _text(value: Json) -> str | None:
    return None if isinstance(value, str) and value.strip() else "is a text that is not empty"


def _any_text(value: Json) -> str | None:
    return None if isinstance(value, str) else "is text"


def _word(value: Json) -> str | None:
    return None if isinstance(value, str) and value and not re.search(r"\s", value) else "is a text without white space"


def _command(value: Json) -> str | None:
    right = isinstance(value, str) and re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]*", value)
    return None if right else "is a command's name: letters, digits, '_', '.', '-', not starting with '.' or '-'"


def _module(value: Json) -> str | None:
    right = isinstance(value, str) and re.fullmatch(r"[\w./-]+\.py:[A-Za-z_]\w*", value)
    return None if right else "is written 'file.py:Class'"


def _texts_table(value: Json) -> str | None:
    return None if isinstance(value, dict) else "is a table of texts"


def _bool(value: Json) -> str | None:
    return None if isinstance(value, bool) else "is true or false"


def _number(value: Json) -> str | None:
    return None if isinstance(value, int | float) and not isinstance(value, bool) and value > 0 else "is a number above 0"


def _table(value: Json) -> str | None:
    return None if isinstance(value, dict) else "is a table"


def _pinned(value: Json, kind: str) -> str | None:
    """A reference: a name or id, or an inline table with a version."""
    if isinstance(value, str) and value.strip():
        return None
    if isinstance(value, dict) and set(value) <= {kind, "version"} and isinstance(value.get(kind), str) and value[kind].strip():
        version = value.get("version")
        return None if version is None or (type(version) is int and version >= 1) else "has a version that is a whole number from 1"
    return f'is a name or id, or {{ {kind} = "id", version = 1 }}'


def _reference(kind: RefKind) -> Check:
    return lambda value: _pinned(value, kind)


def _some(kind: RefKind) -> Check:
    return lambda value: None if isinstance(value, list) and value else f"is a list, with at least one {kind}"


def _image(value: Json) -> str | None:
    if isinstance(value, dict) and len(value) == 1:
        if isinstance(value.get("dockerfile"), str) and value["dockerfile"].strip():
            return None
        if "ref" in value:
            return _registry_image(value["ref"])
    if _pinned(value, "artifact") is None:
        return None
    return 'is { dockerfile = "path" }, { ref = "registry/image:tag" }, or a docker_image artifact\'s name or id'


def _registry_image(value: Json) -> str | None:
    """An image reference that says which registry it is in, so that it means the same on every machine."""
    host = value.split("/")[0] if isinstance(value, str) and "/" in value else ""
    right = host == "localhost" or "." in host or ":" in host
    if not right or re.search(r"\s", value):
        return "is an image that names its registry, such as 'docker.io/library/alpine:3.20'"
    from agent_env.images.reference import reference_problem

    wrong = reference_problem(value)
    return f"is the name of an image; this one {wrong}" if wrong else None


@dataclass(frozen=True, slots=True)
class Key:
    """One key of a type's toml."""

    check: Check
    required: bool = False
    refers: RefKind | None = None
    """What the value, or each entry of it, refers to."""
    artifact_type: str | None = None
    image: bool = False
    """An image key: what it refers to depends on its form."""
    each: Check | None = None
    """What each entry of the list or table must be."""
    below: Mapping[str, Check] | None = None
    """The keys that the table may hold."""


@dataclass(frozen=True, slots=True)
class TomlType:
    """The keys of one type, beside `type` and `id`."""

    keys: Mapping[str, Key] = field(default_factory=dict)
    one_of: tuple[str, ...] = ()
    """At least one of these must be there."""


_PROVIDER = {"env_provider_type": Key(_text)}
_IMAGE = Key(_image, refers="artifact", artifact_type="docker_image", image=True)
_AGENT_METADATA: Mapping[str, Check] = {"default_model": _text, "min_disk_size_gb": _number, "takes_credentials": _bool}


def _listed(refers: RefKind, *, required: bool = False, artifact_type: str | None = None) -> Key:
    """A list of references."""
    return Key(_some(refers), required=required, refers=refers, artifact_type=artifact_type, each=_reference(refers))


TYPES: Mapping[tuple[BundleKind, str], TomlType] = {
    (BundleKind.ENV, "mcp_server"): TomlType({"image": _IMAGE, "environment_name": Key(_text), **_PROVIDER}),
    (BundleKind.ENV, "website"): TomlType(
        {"backend_image": _IMAGE, "frontend_image": _IMAGE, "environment_name": Key(_text), **_PROVIDER},
    ),
    (BundleKind.ENV, "multi"): TomlType(
        {
            "mcp_server_envs": _listed("env"),
            "website_envs": _listed("env"),
            "name": Key(_word),
            **_PROVIDER,
        },
        one_of=("mcp_server_envs", "website_envs"),
    ),
    (BundleKind.ENV, "computer_driver"): TomlType({"module": Key(_module, required=True), **_PROVIDER}),
    (BundleKind.AGENT, "a2a_agent"): TomlType(
        {"image": _IMAGE, "default_env_vars": Key(_texts_table, each=_any_text), "metadata": Key(_table, below=_AGENT_METADATA)},
    ),
    (BundleKind.ARTIFACT, "file"): TomlType({"description": Key(_any_text)}),
    (BundleKind.ARTIFACT, "file_artifact_universe"): TomlType({"description": Key(_any_text)}),
    (BundleKind.ARTIFACT, "environment"): TomlType(
        {
            "environment_name": Key(_text, required=True),
            "file": Key(_reference("artifact"), refers="artifact", artifact_type="file"),
            "description": Key(_any_text),
        },
    ),
    (BundleKind.ARTIFACT, "environment_universe"): TomlType(
        {"environment_artifacts": _listed("artifact", artifact_type="environment")},
    ),
    (BundleKind.ARTIFACT, "cli"): TomlType({"command_name": Key(_command, required=True), "entrypoint": Key(_text, required=True)}),
    (BundleKind.ARTIFACT, "docker_image"): TomlType({"description": Key(_any_text), "ref": Key(_registry_image)}),
    (BundleKind.EVAL, "eval"): TomlType({"tasks": _listed("task", required=True)}),
}
STORED_NAMES: Mapping[str, str] = {
    "service_name": "environment_name",
    "file_artifact_id": "file",
    "file_artifact_ref": "file",
    "service_artifact_refs": "environment_artifacts",
    "service_artifact_ids": "environment_artifacts",
    "environment_artifact_refs": "environment_artifacts",
    "docker_image_artifact": "image",
    "a2a_agent_id": "id",
}
"""Keys of stored documents, which people copy into a toml → the key that is written there."""


def type_names(kind: BundleKind) -> tuple[str, ...]:
    """The types that a kind's toml may declare."""
    return tuple(name for of, name in TYPES if of is kind)


def toml_problems(
    kind: BundleKind, type: str, data: Mapping[str, Json], *, file: str, strict: bool = False
) -> tuple[list[Problem], list[Problem]]:
    """Problems and warnings of one entry's toml."""
    rules = TYPES.get((kind, type))
    if rules is None:
        known = type_names(kind)
        meant = near(type, known)
        hint = f"did you mean {meant!r}?" if meant else f"there are {', '.join(known)}"
        return [Problem(f"{type!r} is no type of {kind}", file, "$.type", hint)], []
    known_keys = {"type", "id", *rules.keys}
    stored = {key: STORED_NAMES[key] for key in data if key in STORED_NAMES and STORED_NAMES[key] in known_keys and key not in known_keys}
    problems, warnings = unknown_key_problems(
        {key: value for key, value in data.items() if key not in stored}, known_keys, source=file, strict=strict
    )
    problems += [
        Problem(f"{key!r} is the stored document's key", file, at("$", key), f"a toml says {right!r}") for key, right in stored.items()
    ]
    problems += _missing(rules, data, file)
    for name, key in rules.keys.items():
        if name in data:
            problems += _value_problems(name, key, data[name], file)
            if key.below is not None and isinstance(data[name], dict):
                wrong, remarks = unknown_key_problems(data[name], key.below, source=file, path=at("$", name), strict=strict)
                problems += wrong
                warnings += remarks
    return problems, warnings


def _missing(rules: TomlType, data: Mapping[str, Json], file: str) -> Iterator[Problem]:
    for name, key in rules.keys.items():
        if key.required and name not in data:
            yield Problem(f"{name!r} is missing", file)
    if rules.one_of and not any(name in data for name in rules.one_of):
        yield Problem(f"names nothing: at least one of {' and '.join(map(repr, rules.one_of))} is needed", file)


def _value_problems(name: str, key: Key, value: Json, file: str) -> Iterator[Problem]:
    said = key.check(value)
    if said:
        yield Problem(f"{name} {said}, not {shown(value)}", file, at("$", name))
    elif key.each is not None:
        for index, entry in value.items() if isinstance(value, dict) else enumerate(value):
            wrong = key.each(entry)
            if wrong:
                yield Problem(
                    f"{index if isinstance(index, str) else 'an entry'} {wrong}, not {shown(entry)}", file, at(at("$", name), index)
                )
    elif key.below is not None:
        for below, check in key.below.items():
            wrong = check(value[below]) if below in value else None
            if wrong:
                yield Problem(f"{below} {wrong}, not {shown(value[below])}", file, at(at("$", name), below))

"""Every configuration key as one table: its type, its variable, its default. `config` reads files and variables by it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from agent_env.config import checks
from agent_env.config.checks import Check, is_reference
from agent_env.defaults import (
    AGENT_DOCKER_IMAGE,
    DATABASE_SYNCHRONOUS,
    DEFAULT_LIMITS,
    ENVIRONMENT_BASE_IMAGE,
    ENVIRONMENT_DATABASE_IMAGE,
    Limits,
)
from agent_env.documents.reading import at
from agent_env.documents.spelling import near
from agent_env.errors import Problem

LIMIT_PREFIX = "limits."
VARIABLE, SECRET = "env:", "secret:"
LIMIT_VARIABLE = "AGENT_ENV_LIMIT_"
LIMITS_LISTED = "agent-env config explain limits lists them"


class Key(NamedTuple):
    """One key, or one open table."""

    check: Check
    default: Any = None
    variable: str | None = None
    """The variable that overrides it."""
    convert: Callable[[str], Any] | None = None
    """Makes a value of a variable's text; None keeps the text."""
    reference: bool = False
    """May be `env:…` or `secret:…`, and stays it until it is used. Others may be `env:…`, which is looked up when the file is read."""
    path: bool = False
    """A relative path starts at the file's folder, never at wherever a resume happens to be called (TP-12)."""


def _number(text: str) -> int | float:
    return float(text) if re.search(r"[.eE]", text) else int(text.replace("_", ""))


_FLAGS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


def _as_flag(text: str) -> bool:
    if text.strip().lower() not in _FLAGS:
        raise ValueError(text)
    return _FLAGS[text.strip().lower()]


_DATABASES = ("sqlite", "postgresql", "postgres", "postgresql+psycopg")

KEYS: Mapping[str, Key] = {
    "agents.default_a2a_agent_id": Key(checks.text, variable="AGENT_ENV_DEFAULT_AGENT"),
    "agents.docker_image": Key(checks.text, AGENT_DOCKER_IMAGE, "AGENT_ENV_DOCKER_IMAGE"),
    "artifacts.impls": Key(checks.impls),
    "artifacts.type_aliases": Key(checks.texts),
    "conversations.default_human_a2a_url": Key(checks.url(*checks.HTTP), variable="AGENT_ENV_HUMAN_A2A_URL", reference=True),
    "database.synchronous": Key(checks.one_of("NORMAL", "FULL"), DATABASE_SYNCHRONOUS, "AGENT_ENV_DATABASE_SYNCHRONOUS", str.upper),
    "database.url": Key(checks.url(*_DATABASES), variable="AGENT_ENV_DATABASE_URL", reference=True),
    "envs.base_image": Key(checks.text, ENVIRONMENT_BASE_IMAGE, "AGENT_ENV_BASE_IMAGE"),
    "envs.database_image": Key(checks.text, ENVIRONMENT_DATABASE_IMAGE, "AGENT_ENV_DATABASE_IMAGE"),
    "envs.impls": Key(checks.impls),
    "explorer.allowed_hosts": Key(checks.text_list),
    "explorer.cors_origins": Key(checks.text_list),
    "explorer.plugins": Key(checks.table),
    "explorer.port": Key(checks.port, 8234, "AGENT_ENV_EXPLORER_PORT", int),
    "explorer.static_dir": Key(checks.text, path=True),
    "images.registries": Key(checks.registries),
    "model.api_key": Key(checks.text, variable="LITELLM_API_KEY", reference=True),
    "model.broker": Key(checks.flag, True, "AGENT_ENV_MODEL_BROKER", _as_flag),
    "model.budget": Key(checks.budget),
    "model.base_url": Key(checks.url(*checks.HTTP), variable="LITELLM_BASE_URL", reference=True),
    "model.default": Key(checks.text, variable="AGENT_ENV_MODEL", reference=True),
    "model.endpoints.*": Key(checks.endpoint),
    "model.headers": Key(checks.headers),
    "model.judge_budget": Key(checks.budget),
    "model.params": Key(checks.params),
    "model.prices": Key(checks.prices),
    "model.roles": Key(checks.roles),
    "run.concurrency": Key(checks.count, variable="AGENT_ENV_CONCURRENCY", convert=int),
    "run.quiesce": Key(checks.one_of("freeze", "kill"), variable="AGENT_ENV_QUIESCE"),
    "runner": Key(checks.store, variable="AGENT_ENV_RUNNER"),
    "sandbox.agent_default": Key(checks.text, variable="AGENT_ENV_AGENT_SANDBOX"),
    "sandbox.attribution": Key(checks.texts),
    "sandbox.container_privileges": Key(checks.privileges),
    "sandbox.default": Key(checks.text, "local", "AGENT_ENV_SANDBOX"),
    "sandbox.providers.*": Key(checks.component),
    "sandbox.unsafe_host": Key(checks.flag, False, "AGENT_ENV_UNSAFE_HOST", _as_flag),
    "state.providers.*": Key(checks.component),
    "state.root": Key(checks.text, path=True),
    "stores.document": Key(checks.store, variable="AGENT_ENV_DOCUMENT_STORE"),
    "stores.image": Key(checks.store, variable="AGENT_ENV_IMAGE_STORE"),
    "stores.object": Key(checks.store, variable="AGENT_ENV_OBJECT_STORE"),
    "stores.secret": Key(checks.store, variable="AGENT_ENV_SECRET_STORE"),
    "task_steps.impls": Key(checks.impls),
    "plugins.*": Key(checks.table),
}
"""Dotted key → rule; `*` stands for one free name."""

UNREAD = frozenset(
    {
        "artifacts.impls",
        "artifacts.type_aliases",
        "envs.impls",
        "explorer.allowed_hosts",
        "explorer.cors_origins",
        "explorer.plugins",
        "explorer.port",
        "explorer.static_dir",
        "runner",
        "sandbox.attribution",
        "state.providers.*",
        "stores.document",
        "stores.image",
        "stores.object",
        "stores.secret",
    }
)
"""Keys that are accepted, because files of the published system have them, and that nothing in this version reads."""

_OPEN = {key[:-1]: rule for key, rule in KEYS.items() if key.endswith(".*")}

TABLES = sorted({key.split(".", 1)[0] for key in KEYS if "." in key} | {"limits"})


@cache
def limit_key(key: str) -> Key | None:
    """The rule of `limits.<name>`, or None when there is no such limit."""
    name = key.removeprefix(LIMIT_PREFIX)
    if not key.startswith(LIMIT_PREFIX) or name not in Limits.names():
        return None
    default = getattr(DEFAULT_LIMITS, name)
    return Key(checks.amount(default), default, LIMIT_VARIABLE + name.upper(), _number)


def rule_of(key: str) -> Key | None:
    """The rule of a dotted key, open names included."""
    return KEYS.get(key) or limit_key(key) or next((rule for prefix, rule in _OPEN.items() if key.startswith(prefix)), None)


def pattern_of(key: str) -> str:
    """How the table of keys spells a dotted key: `model.endpoints.*` for `model.endpoints.mine`; the key itself where it has none."""
    return key if key in KEYS else next((f"{prefix}*" for prefix in _OPEN if key.startswith(prefix)), key)


def is_unread(key: str, value: Any) -> bool:
    """Whether a key asks for something that nobody does. `"local"`, and nothing, is what there is anyway."""
    return value not in ("local", [], {}) and (key in UNREAD or any(key.startswith(open[:-1]) for open in UNREAD if open.endswith(".*")))


def unread_problem(key: str, source: str, path: str | None) -> Problem:
    """What is said of such a key."""
    return Problem(f"{key} is accepted, and read by nothing in this version of agent-env", source, path)


def flatten(table: Mapping[str, Any], *, source: str, folder: Path) -> tuple[dict[str, Any], list[Problem], list[Problem]]:
    """A file's values by dotted key.

    Returns:
        Sound values, problems (wrong types, near spellings), warnings (tables and keys that are unknown, or that nothing reads).
    """
    values: dict[str, Any] = {}
    problems: list[Problem] = []
    warnings: list[Problem] = []
    for key, value in _leaves(table, ""):
        rule = rule_of(key)
        path = _path(key)
        if rule is None:
            found = _unknown(key, source, path)
            (problems if found.hint else warnings).append(found)
            continue
        wrong = list(check_value(rule, value, source, path))
        problems += wrong
        if is_unread(key, value):
            warnings.append(unread_problem(key, source, path))
        if not wrong:
            values[key] = _anchored(key, rule, value, folder)
    return values, problems, warnings


def check_value(rule: Key, value: Any, source: str, path: str | None) -> Iterator[Problem]:
    """What is wrong with a value; the value itself is not shown, because it may be a secret."""
    if is_reference(value):
        if not rule.reference and value.startswith(SECRET):
            yield Problem("can't be a secret", source, path, "write the value itself, or env:NAME for that of a variable")
        return
    wrong = rule.check(value)
    if wrong:
        yield Problem(wrong, source, path)


def variable_value(key: str, rule: Key, text: str, cwd: Path, *, variable: str | None = None) -> tuple[Any, list[Problem]]:
    """A variable's value, typed."""
    source = f"variable {variable or rule.variable}"
    if is_reference(text) and not rule.reference:
        return None, [Problem("can't be a reference", source, None, "write the value itself")]
    value: Any = text
    if rule.convert is not None and not is_reference(text):
        try:
            value = rule.convert(text)
        except ValueError:
            return None, [Problem(rule.check(text) or "can't be read", source)]
    return _anchored(key, rule, value, cwd), list(check_value(rule, value, source, None))


def looked_up(key: str, value: Any, environ: Mapping[str, str], *, source: str, folder: Path) -> tuple[Any, list[Problem]]:
    """A value that the program needs while it starts: that of the variable, where `env:NAME` or `env:NAME?default` stands for it."""
    rule = rule_of(key)
    if rule is None or rule.reference or not isinstance(value, str) or not value.startswith(VARIABLE):
        return value, []
    name, mark, default = value.removeprefix(VARIABLE).partition("?")
    text = environ.get(name) or (default if mark else None)
    if text is None:
        return None, [Problem(f"the variable {name} is not set", source, _path(key), f"set it, or write env:{name}?DEFAULT")]
    try:
        found = rule.convert(text) if rule.convert is not None else text
    except ValueError:
        return None, [Problem(rule.check(text) or "can't be read", source, _path(key), f"the variable {name} has it")]
    wrong = rule.check(found)
    return _anchored(key, rule, found, folder), [Problem(wrong, source, _path(key), f"the variable {name} has it")] if wrong else []


def _leaves(table: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    """Descends as far as the table of keys does."""
    for name, value in table.items():
        key = prefix + name
        deeper = any(known.startswith(f"{key}.") for known in KEYS) or key == "limits"
        if deeper and isinstance(value, dict) and key not in KEYS:
            yield from _leaves(value, f"{key}.")
        else:
            yield key, value


def _unknown(key: str, source: str, path: str) -> Problem:
    parent, _, name = key.rpartition(".")
    if key in TABLES or f"{key}." in _OPEN:
        return Problem("is a table", source, path, f"write [{key}] on a line of its own, and its keys below")
    prefix = f"{parent}." if parent else ""
    known = {other[len(prefix) :].split(".", 1)[0] for other in KEYS if other.startswith(prefix)}
    if parent == "limits":
        known = set(Limits.names())
    meant = near(name, sorted(known | ({"limits"} if not parent else set())))
    if meant is not None:
        return Problem(f"unknown key {name!r}", source, path, f"did you mean {meant!r}?")
    if parent == "limits":
        return Problem(f"unknown key {name!r}", source, path, LIMITS_LISTED)
    if parent == "model":
        return Problem(f"unknown key {name!r}", source, path, f"known: {', '.join(sorted(known))}")
    elsewhere = next((table for table in TABLES if name == table), None)
    if parent and elsewhere:
        return Problem(f"[{key}] is nested under [{parent}]", source, path, f"did you mean [{elsewhere}]?")
    return Problem(f"unknown {'key' if parent else 'table or key'} {name!r} is ignored", source, path)


def _path(key: str) -> str:
    path = "$"
    for name in key.split("."):
        path = at(path, name)
    return path


def _anchored(key: str, rule: Key, value: Any, folder: Path) -> Any:
    """Relative paths made absolute, so that a resume from elsewhere uses the same files."""
    if not isinstance(value, str) or is_reference(value):
        return value
    if rule.path:
        return str((folder / Path(value).expanduser()).absolute())
    return _absolute_database(value, folder) if key == "database.url" else value


def _absolute_database(url: str, folder: Path) -> str:
    scheme, mark, path = url.partition(":///")
    if scheme != "sqlite" or not mark or path.startswith("/") or not path:
        return url
    return f"sqlite:///{(folder / Path(path).expanduser()).absolute()}"

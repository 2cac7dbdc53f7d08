"""Every configuration key as one table: its type, its variable, its default. `config` reads files and variables by it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from agent_env.defaults import DEFAULT_LIMITS, Limits
from agent_env.documents.reading import at
from agent_env.documents.spelling import near
from agent_env.errors import Problem
from agent_env.ids import name_problem

LIMIT_PREFIX = "limits."
LIMIT_VARIABLE = "AGENT_ENV_LIMIT_"

Check = Callable[[Any], str | None]
"""Says what is wrong with a value, or None."""

_IMPL = r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*"
_HEADER_NAME = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
ROLES = ("agent", "user", "judge")
"""What models are asked for."""
RESERVED_PARAMS = frozenset({"model", "messages", "api_key", "api_base", "user", "metadata", "timeout", "response_format"})
"""Of a model call, what `[model.params]` may not set (reference)."""


class Key(NamedTuple):
    """One key, or one open table."""

    check: Check
    default: Any = None
    variable: str | None = None
    """The variable that overrides it."""
    convert: Callable[[str], Any] | None = None
    """Makes a value of a variable's text; None keeps the text."""
    reference: bool = False
    """May be `env:…` or `secret:…`."""
    path: bool = False
    """A relative path starts at the file's folder, never at wherever a resume happens to be called (TP-12)."""


def is_reference(value: Any) -> bool:
    """A text that stands for a variable or a secret."""
    return isinstance(value, str) and value.startswith(("env:", "secret:"))


def _text(value: Any) -> str | None:
    if not isinstance(value, str) or not value.strip():
        return "is text that is not empty"
    return name_problem(value)


def _texts(value: Any) -> str | None:
    good = isinstance(value, dict) and all(isinstance(member, str) for member in value.values())
    return None if good else "is a table of texts"


def _headers(value: Any) -> str | None:
    if _texts(value):
        return _texts(value)
    odd = next((name for name, text in value.items() if not re.fullmatch(_HEADER_NAME, name) or re.search(r"[\r\n\0]", text)), None)
    return f"has no valid header {odd!r}" if odd is not None else None


def _roles(value: Any) -> str | None:
    if _texts(value):
        return _texts(value)
    odd = sorted(value.keys() - set(ROLES))
    return f"has the unknown role {odd[0]!r}; there are {', '.join(ROLES)}" if odd else None


def _params(value: Any) -> str | None:
    if not isinstance(value, dict):
        return "is a table"
    taken = sorted(RESERVED_PARAMS & value.keys())
    return f"can't set {', '.join(taken)}" if taken else None


def _table(value: Any) -> str | None:
    return None if isinstance(value, dict) else "is a table"


def _store(value: Any) -> str | None:
    """`"local"`, or `{impl = "module:Class", config = {…}}`."""
    if value == "local":
        return None
    if not isinstance(value, dict):
        return 'is "local" or a table with impl and config'
    return _component(value)


def _component(value: Any) -> str | None:
    if not isinstance(value, dict):
        return "is a table with impl and config"
    odd = sorted(value.keys() - {"impl", "config"})
    if odd:
        return f"has the unknown key {odd[0]!r}; it takes impl and config"
    if "impl" in value and (not isinstance(value["impl"], str) or not re.fullmatch(_IMPL, value["impl"])):
        return 'has an impl that is not written "module:Class"'
    return None if isinstance(value.get("config", {}), dict) else "has a config that is no table"


def _impls(value: Any) -> str | None:
    good = isinstance(value, list) and all(isinstance(member, str) and re.fullmatch(_IMPL, member) for member in value)
    return None if good else 'is a list of "module:Class"'


def _registries(value: Any) -> str | None:
    """`{"host:port" = {username = …, password = …}}`, or `{token = …}`."""
    known = {"username", "password", "token"}
    good = _table(value) is None and all(_texts(entry) is None and not entry.keys() - known for entry in value.values())
    return None if good else "is a table of registries, each with username and password, or token"


def _amounts(value: Any, known: Mapping[str, float | int], *, needed: frozenset[str] = frozenset()) -> str | None:
    """A table of numbers: each name with the least that it takes, whole where that is whole."""
    if not isinstance(value, dict):
        return "is a table"
    odd = sorted(value.keys() - known.keys())
    if odd:
        return f"has the unknown key {odd[0]!r}; it takes {', '.join(known)}"
    for name, least in known.items():
        whole = isinstance(least, int)
        given = value.get(name, least)
        if type(given) not in ((int,) if whole else (int, float)) or given < least:
            return f"has a {name} that is no {'whole ' if whole else ''}number from {least:g}"
    missing = sorted(needed - value.keys())
    return f"lacks {', '.join(missing)}" if missing else None


def _budget(value: Any) -> str | None:
    return _amounts(value, {"requests": 0, "tokens": 0, "cost_usd": 0.0, "concurrency": 1})


def _prices(value: Any) -> str | None:
    """`{"model" = {input = …, output = …}}`, in dollars for a million tokens."""
    if not isinstance(value, dict):
        return "is a table of models"
    known, needed = {"input": 0.0, "output": 0.0, "cached_input": 0.0}, frozenset({"input", "output"})
    wrong = ((model, _amounts(price, known, needed=needed)) for model, price in value.items())
    return next((f"has a price of {model!r} that {why}" for model, why in wrong if why), None)


DIALECTS = ("openai-chat", "openai-responses", "anthropic-messages", "gemini")
"""The model APIs that the broker carries."""


def _endpoint(value: Any) -> str | None:
    """`{base_url = …, api_key = …, headers = {…}, dialects = […], models = […]}`."""
    if not isinstance(value, dict):
        return "is a table with base_url and api_key"
    checks: Mapping[str, Check] = {
        "base_url": _url(*_HTTP), "api_key": _text, "headers": _headers, "dialects": _text_list, "models": _text_list,
    }  # fmt: skip
    odd = sorted(value.keys() - checks.keys())
    if odd:
        return f"has the unknown key {odd[0]!r}; it takes {', '.join(checks)}"
    if "base_url" not in value:
        return "lacks base_url"
    for name, given in value.items():
        why = None if name in {"base_url", "api_key"} and is_reference(given) else checks[name](given)
        if why:
            return f"has a {name} that {why}"
    strange = sorted(set(value.get("dialects", ())) - set(DIALECTS))
    return f"has the unknown dialect {strange[0]!r}; there are {', '.join(DIALECTS)}" if strange else None


def _text_list(value: Any) -> str | None:
    good = isinstance(value, list) and all(isinstance(member, str) for member in value)
    return None if good else "is a list of texts"


def _flag(value: Any) -> str | None:
    return None if isinstance(value, bool) else "is true or false"


def _count(value: Any) -> str | None:
    return None if type(value) is int and value >= 1 else "is a whole number from 1"


def _port(value: Any) -> str | None:
    return None if type(value) is int and 0 <= value <= 65535 else "is a port from 0 to 65535"


def _one_of(*choices: str) -> Check:
    return lambda value: None if value in choices else f"is one of {', '.join(choices)}"


def _url(*schemes: str) -> Check:
    def check(value: Any) -> str | None:
        if not isinstance(value, str) or value.partition("://")[0].lower() not in schemes or "://" not in value:
            return f"is a URL that starts with {' or '.join(f'{scheme}://' for scheme in schemes)}"
        return name_problem(value)

    return check


def _amount(default: float | int) -> Check:
    whole = isinstance(default, int)

    def check(value: Any) -> str | None:
        right = type(value) is int or (not whole and isinstance(value, float))
        if not right or value < 0:
            return "is a whole number from 0" if whole else "is a number from 0"
        return None

    return check


def _number(text: str) -> int | float:
    return float(text) if re.search(r"[.eE]", text) else int(text.replace("_", ""))


_FLAGS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


def _as_flag(text: str) -> bool:
    if text.strip().lower() not in _FLAGS:
        raise ValueError(text)
    return _FLAGS[text.strip().lower()]


PRIVILEGES = ("privileged", "capabilities", "devices", "volumes", "host_network")
"""What a task's containers may be granted beyond an ordinary container, each by this user's word alone."""


def _privileges(value: Any) -> str | None:
    good = isinstance(value, list) and all(member in PRIVILEGES for member in value)
    return None if good else f"is a list of {', '.join(PRIVILEGES)}"


_DATABASES = ("sqlite", "postgresql", "postgres", "postgresql+psycopg")
_HTTP = ("http", "https")

KEYS: Mapping[str, Key] = {
    "agents.default_a2a_agent_id": Key(_text, variable="AGENT_ENV_DEFAULT_AGENT"),
    "agents.docker_image": Key(_text, "docker:27-dind", "AGENT_ENV_DOCKER_IMAGE"),
    "artifacts.impls": Key(_impls),
    "artifacts.type_aliases": Key(_texts),
    "conversations.default_human_a2a_url": Key(_url(*_HTTP), variable="AGENT_ENV_HUMAN_A2A_URL", reference=True),
    "database.synchronous": Key(_one_of("NORMAL", "FULL"), "NORMAL", "AGENT_ENV_DATABASE_SYNCHRONOUS", str.upper),
    "database.url": Key(_url(*_DATABASES), variable="AGENT_ENV_DATABASE_URL", reference=True),
    "envs.base_image": Key(_text, "python:3.12-slim", "AGENT_ENV_BASE_IMAGE"),
    "envs.database_image": Key(_text, "postgres:16-alpine", "AGENT_ENV_DATABASE_IMAGE"),
    "envs.impls": Key(_impls),
    "explorer.allowed_hosts": Key(_text_list),
    "explorer.cors_origins": Key(_text_list),
    "explorer.plugins": Key(_table),
    "explorer.port": Key(_port, 8234, "AGENT_ENV_EXPLORER_PORT", int),
    "explorer.static_dir": Key(_text, path=True),
    "images.registries": Key(_registries),
    "model.api_key": Key(_text, variable="LITELLM_API_KEY", reference=True),
    "model.broker": Key(_flag, True, "AGENT_ENV_MODEL_BROKER", _as_flag),
    "model.budget": Key(_budget),
    "model.base_url": Key(_url(*_HTTP), variable="LITELLM_BASE_URL", reference=True),
    "model.default": Key(_text, variable="AGENT_ENV_MODEL", reference=True),
    "model.endpoints.*": Key(_endpoint),
    "model.headers": Key(_headers),
    "model.judge_budget": Key(_budget),
    "model.params": Key(_params),
    "model.prices": Key(_prices),
    "model.roles": Key(_roles),
    "run.concurrency": Key(_count, variable="AGENT_ENV_CONCURRENCY", convert=int),
    "run.quiesce": Key(_one_of("freeze", "kill"), variable="AGENT_ENV_QUIESCE"),
    "runner": Key(_store, variable="AGENT_ENV_RUNNER"),
    "sandbox.agent_default": Key(_text, variable="AGENT_ENV_AGENT_SANDBOX"),
    "sandbox.attribution": Key(_texts),
    "sandbox.container_privileges": Key(_privileges),
    "sandbox.default": Key(_text, "local", "AGENT_ENV_SANDBOX"),
    "sandbox.providers.*": Key(_component),
    "sandbox.unsafe_host": Key(_flag, False, "AGENT_ENV_UNSAFE_HOST", _as_flag),
    "state.providers.*": Key(_component),
    "state.root": Key(_text, path=True),
    "stores.document": Key(_store, variable="AGENT_ENV_DOCUMENT_STORE"),
    "stores.image": Key(_store, variable="AGENT_ENV_IMAGE_STORE"),
    "stores.object": Key(_store, variable="AGENT_ENV_OBJECT_STORE"),
    "stores.secret": Key(_store, variable="AGENT_ENV_SECRET_STORE"),
    "task_steps.impls": Key(_impls),
    "plugins.*": Key(_table),
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
    return Key(_amount(default), default, LIMIT_VARIABLE + name.upper(), _number)


def rule_of(key: str) -> Key | None:
    """The rule of a dotted key, open names included."""
    return KEYS.get(key) or limit_key(key) or next((rule for prefix, rule in _OPEN.items() if key.startswith(prefix)), None)


def is_unread(key: str, value: Any) -> bool:
    """Whether a key asks for something that nobody does. `"local"`, and nothing, is what there is anyway."""
    return value not in ("local", [], {}) and (key in UNREAD or any(key.startswith(open[:-1]) for open in UNREAD if open.endswith(".*")))


def unread_problem(key: str, source: str, path: str | None) -> Problem:
    """What is said of such a key."""
    return Problem(f"{key} is accepted, and read by nothing in this version of agent-env", source, path)


def flatten(table: Mapping[str, Any], *, source: str, folder: Path) -> tuple[dict[str, Any], list[Problem], list[Problem]]:
    """A file's values by dotted key.

    Returns:
        Values, problems (wrong types, near spellings), warnings (tables and keys that are unknown, or that nothing reads).
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
        problems += check_value(rule, value, source, path)
        if is_unread(key, value):
            warnings.append(unread_problem(key, source, path))
        values[key] = _anchored(key, rule, value, folder)
    return values, problems, warnings


def check_value(rule: Key, value: Any, source: str, path: str | None) -> Iterator[Problem]:
    """What is wrong with a value; the value itself is not shown, because it may be a secret."""
    if is_reference(value):
        if not rule.reference:
            yield Problem("can't be a reference", source, path, "write the value itself")
        return
    wrong = rule.check(value)
    if wrong:
        yield Problem(wrong, source, path)


def variable_value(key: str, rule: Key, text: str, cwd: Path, *, variable: str | None = None) -> tuple[Any, list[Problem]]:
    """A variable's value, typed."""
    source = f"variable {variable or rule.variable}"
    value: Any = text
    if rule.convert is not None and not is_reference(text):
        try:
            value = rule.convert(text)
        except ValueError:
            return None, [Problem(rule.check(text) or "can't be read", source)]
    return _anchored(key, rule, value, cwd), list(check_value(rule, value, source, None))


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
    if parent in {"limits", "model"}:
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

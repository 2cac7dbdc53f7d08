"""What the values of configuration keys have to be: each check says what is wrong with a value, or None. It never shows the value."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from agent_env.ids import name_problem

Check = Callable[[Any], str | None]
"""Says what is wrong with a value, or None."""

_IMPL = r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*"
_HEADER_NAME = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
ROLES = ("agent", "user", "judge")
"""What models are asked for."""
RESERVED_PARAMS = frozenset({"model", "messages", "api_key", "api_base", "user", "metadata", "timeout", "response_format"})
"""Of a model call, what `[model.params]` may not set (reference)."""
HTTP = ("http", "https")


def is_reference(value: Any) -> bool:
    """A text that stands for a variable or a secret."""
    return isinstance(value, str) and value.startswith(("env:", "secret:"))


def text(value: Any) -> str | None:
    """Text that is not empty and can be shown on one line."""
    if not isinstance(value, str) or not value.strip():
        return "is text that is not empty"
    return name_problem(value)


def texts(value: Any) -> str | None:
    """A table of texts."""
    good = isinstance(value, dict) and all(isinstance(member, str) for member in value.values())
    return None if good else "is a table of texts"


def headers(value: Any) -> str | None:
    """A table of HTTP headers."""
    if texts(value):
        return texts(value)
    odd = next((name for name, text in value.items() if not re.fullmatch(_HEADER_NAME, name) or re.search(r"[\r\n\0]", text)), None)
    return f"has no valid header {odd!r}" if odd is not None else None


def roles(value: Any) -> str | None:
    """A table of models by role."""
    if texts(value):
        return texts(value)
    odd = sorted(value.keys() - set(ROLES))
    return f"has the unknown role {odd[0]!r}; there are {', '.join(ROLES)}" if odd else None


def params(value: Any) -> str | None:
    """A table of parameters of a model call, without those that we set."""
    if not isinstance(value, dict):
        return "is a table"
    taken = sorted(RESERVED_PARAMS & value.keys())
    return f"can't set {', '.join(taken)}" if taken else None


def table(value: Any) -> str | None:
    """Any table."""
    return None if isinstance(value, dict) else "is a table"


def store(value: Any) -> str | None:
    """`"local"`, or `{impl = "module:Class", config = {…}}`."""
    if value == "local":
        return None
    if not isinstance(value, dict):
        return 'is "local" or a table with impl and config'
    return component(value)


def component(value: Any) -> str | None:
    """A table with `impl` and `config`."""
    if not isinstance(value, dict):
        return "is a table with impl and config"
    odd = sorted(value.keys() - {"impl", "config"})
    if odd:
        return f"has the unknown key {odd[0]!r}; it takes impl and config"
    if "impl" in value and (not isinstance(value["impl"], str) or not re.fullmatch(_IMPL, value["impl"])):
        return 'has an impl that is not written "module:Class"'
    return None if isinstance(value.get("config", {}), dict) else "has a config that is no table"


def impls(value: Any) -> str | None:
    """A list of `module:Class`."""
    good = isinstance(value, list) and all(isinstance(member, str) and re.fullmatch(_IMPL, member) for member in value)
    return None if good else 'is a list of "module:Class"'


def registries(value: Any) -> str | None:
    """`{"host:port" = {username = …, password = …}}`, or `{token = …}`."""
    known = {"username", "password", "token"}
    good = table(value) is None and all(texts(entry) is None and not entry.keys() - known for entry in value.values())
    return None if good else "is a table of registries, each with username and password, or token"


def amounts(value: Any, known: Mapping[str, float | int], *, needed: frozenset[str] = frozenset()) -> str | None:
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


def budget(value: Any) -> str | None:
    """What a run may use of models."""
    return amounts(value, {"requests": 0, "tokens": 0, "cost_usd": 0.0, "concurrency": 1})


def prices(value: Any) -> str | None:
    """`{"model" = {input = …, output = …}}`, in dollars for a million tokens."""
    if not isinstance(value, dict):
        return "is a table of models"
    known, needed = {"input": 0.0, "output": 0.0, "cached_input": 0.0}, frozenset({"input", "output"})
    wrong = ((model, amounts(price, known, needed=needed)) for model, price in value.items())
    return next((f"has a price of {model!r} that {why}" for model, why in wrong if why), None)


DIALECTS = ("openai-chat", "openai-responses", "anthropic-messages", "gemini")
"""The model APIs that the broker carries."""


def endpoint(value: Any) -> str | None:
    """`{base_url = …, api_key = …, headers = {…}, dialects = […], models = […]}`."""
    if not isinstance(value, dict):
        return "is a table with base_url and api_key"
    checks: Mapping[str, Check] = {
        "base_url": url(*HTTP), "api_key": text, "headers": headers, "dialects": text_list, "models": text_list,
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


def text_list(value: Any) -> str | None:
    """A list of texts."""
    good = isinstance(value, list) and all(isinstance(member, str) for member in value)
    return None if good else "is a list of texts"


def flag(value: Any) -> str | None:
    """True or false."""
    return None if isinstance(value, bool) else "is true or false"


def count(value: Any) -> str | None:
    """A whole number from 1."""
    return None if type(value) is int and value >= 1 else "is a whole number from 1"


def port(value: Any) -> str | None:
    """A port, or 0 for any."""
    return None if type(value) is int and 0 <= value <= 65535 else "is a port from 0 to 65535"


def one_of(*choices: str) -> Check:
    """The check for one of these words."""
    return lambda value: None if value in choices else f"is one of {', '.join(choices)}"


def url(*schemes: str) -> Check:
    """The check for a URL of one of these schemes."""

    def check(value: Any) -> str | None:
        if not isinstance(value, str) or value.partition("://")[0].lower() not in schemes or "://" not in value:
            return f"is a URL that starts with {' or '.join(f'{scheme}://' for scheme in schemes)}"
        return name_problem(value)

    return check


def amount(default: float | int) -> Check:
    """The check for a number from 0: a whole one where the default is."""
    whole = isinstance(default, int)

    def check(value: Any) -> str | None:
        right = type(value) is int or (not whole and isinstance(value, float))
        if not right or value < 0:
            return "is a whole number from 0" if whole else "is a number from 0"
        return None

    return check


PRIVILEGES = ("privileged", "capabilities", "devices", "volumes", "host_network")
"""What a task's containers may be granted beyond an ordinary container, each by this user's word alone."""


def privileges(value: Any) -> str | None:
    """A list of what containers may be granted."""
    good = isinstance(value, list) and all(member in PRIVILEGES for member in value)
    return None if good else f"is a list of {', '.join(PRIVILEGES)}"

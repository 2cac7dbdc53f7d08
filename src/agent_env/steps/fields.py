"""Field types that several steps share: numbers as people and seeds write them, names that may be blank."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer

from agent_env.documents.variables import VARIABLE_RULE, is_variable_name


def blank_is_unset(value: object) -> object:
    """Empty or white text counts as not given."""
    return None if isinstance(value, str) and not value.strip() else value


def _no_flag(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError(f"is a number, not {str(value).lower()}")
    return value


def _list_not_text(value: Any) -> Any:
    if isinstance(value, str):
        raise ValueError(f"is a list, not the text {value!r}")
    return value


def _plain_number(value: float) -> int | float:
    return int(value) if float(value).is_integer() else value


def _usable_variables(value: dict[str, str] | None) -> dict[str, str] | None:
    for name, text in (value or {}).items():
        if not is_variable_name(name) or "\0" in text:
            raise ValueError(f"{name!r} can't be an environment variable: {VARIABLE_RULE}, and its value has no zero byte")
    return value


@dataclass(frozen=True)
class Secret:
    """The type of `SECRET` and `SECRET_URLS`."""

    urls: bool = False


SECRET = Secret()
"""Marks a field whose texts may be secrets: literals move to the secret store when a task is loaded; `Run.secret` resolves them."""
SECRET_URLS = Secret(urls=True)
"""The same of a URL, or a list of URLs and of objects that have a `url`: of literals only those move that carry a user or a key."""


USABLE = AfterValidator(_usable_variables)
"""Of a table of environment variables: each can be one."""
Number = Annotated[float, Field(allow_inf_nan=False), BeforeValidator(_no_flag), PlainSerializer(_plain_number)]
"""A finite number; a whole one is written without a fraction, as people write it."""
Whole = Annotated[int, BeforeValidator(_no_flag)]
"""A whole number."""
Seconds = Annotated[Number, Field(gt=0)]
Texts = Annotated[tuple[str, ...], BeforeValidator(_list_not_text)]
"""A list of texts; a single text is a mistake, not a list of its letters."""
OptionalName = Annotated[str | None, BeforeValidator(blank_is_unset)]
"""A name; blank counts as not given."""


def default_to_id(data: Any, field: str) -> Any:
    """A name that is not given is the step's id, so that other steps can refer to it."""
    if isinstance(data, Mapping) and blank_is_unset(data.get(field)) is None and isinstance(data.get("id"), str):
        return {**data, field: data["id"]}
    return data

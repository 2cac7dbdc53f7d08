"""Extensions over REST: what arrives as text becomes what the handler's annotations say."""

from __future__ import annotations

import datetime as dt
import enum
import inspect
import json
import types
import typing
import uuid
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any, Final, Literal

from pydantic import TypeAdapter, ValidationError

from .arguments import complaint, injected, resolved

_BOOLEANS: Final = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}


def _boolean(text: str) -> bool:
    try:
        return _BOOLEANS[text.strip().lower()]
    except KeyError:
        raise ValueError(f"{text!r} is no boolean: expected one of {', '.join(_BOOLEANS)}") from None


def _decimal(text: str) -> Decimal:
    try:
        return Decimal(text)
    except InvalidOperation:
        raise ValueError(f"{text!r} is no decimal number") from None


_READERS: Final[Mapping[type, Callable[[str], Any]]] = {
    bool: _boolean,
    int: int,
    float: float,
    Decimal: _decimal,
    dt.datetime: dt.datetime.fromisoformat,
    dt.date: dt.date.fromisoformat,
    dt.time: dt.time.fromisoformat,
    uuid.UUID: uuid.UUID,
}


class Coercion:
    """A handler's parameters, for arguments that come as JSON or as a query.

    Args:
        handler: Whose annotations decide.
    """

    def __init__(self, handler: Callable[..., Any]) -> None:
        hints = resolved(handler)
        listed = inspect.signature(handler).parameters
        self.context = next((name for name in listed if injected(hints.get(name))), None)
        self._signature = inspect.Signature([each for name, each in listed.items() if name != self.context])
        self._hints = {name: hint for name, hint in hints.items() if name not in {"return", self.context}}

    def bind(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments as the handler takes them.

        Raises:
            ValueError: One is missing, unknown, or can't be what its annotation says.
        """
        values = {name: self._value(name, value) for name, value in arguments.items()}
        try:
            self._signature.bind(**values)
        except TypeError as error:
            raise ValueError(str(error)) from None
        return values

    def query(self, pairs: Sequence[tuple[str, str]]) -> dict[str, Any]:
        """A query's arguments: every value where a parameter is a list, else the last one."""
        lists = {name for name, hint in self._hints.items() if _listed(hint)}
        values: dict[str, Any] = {}
        for name, text in pairs:
            values[name] = [*values.get(name, []), text] if name in lists else text
        return values

    def _value(self, name: str, value: Any) -> Any:
        try:
            return coerced(value, self._hints[name]) if name in self._hints else value
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None


def coerced(value: Any, annotation: Any) -> Any:
    """One value as its annotation says.

    Raises:
        ValueError: It can't be.
    """
    target = _single(annotation)
    if target is None or value is None:
        return value
    if typing.get_origin(target) is Literal:
        return _literal(value, typing.get_args(target))
    if isinstance(target, type) and issubclass(target, enum.Enum):
        return value if isinstance(value, target) else target(_literal(value, [member.value for member in target]))
    if isinstance(value, str) and isinstance(target, type) and target in _READERS:
        return _READERS[target](value)
    return value if isinstance(value, str | bool | int | float) and target in (str, bool, int, float) else _modelled(value, target)


def _modelled(value: Any, target: Any) -> Any:
    """Containers and models are pydantic's business; a text in their place is read as JSON."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise ValueError("expected JSON") from None
    try:
        return TypeAdapter(target).validate_python(value)
    except ValidationError as error:
        raise ValueError(complaint(error)) from None


def _literal(value: Any, allowed: Sequence[Any]) -> Any:
    kinds = {type(each) for each in allowed}
    if isinstance(value, str) and len(kinds) == 1 and (reader := _READERS.get(next(iter(kinds)))):
        value = reader(value)
    # By type as well, since True equals 1.
    if not any(type(each) is type(value) and each == value for each in allowed):
        raise ValueError(f"{value!r} is not one of {list(allowed)}")
    return value


def _single(annotation: Any) -> Any:
    """The type to read a value as; None when the annotation leaves it open."""
    if annotation in (Any, inspect.Parameter.empty, None):
        return None
    if typing.get_origin(annotation) is typing.Annotated:
        return _single(typing.get_args(annotation)[0])
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        kinds = [each for each in typing.get_args(annotation) if each is not type(None)]
        return _single(kinds[0]) if len(kinds) == 1 else annotation
    return annotation


def _listed(annotation: Any) -> bool:
    target = _single(annotation)
    return (typing.get_origin(target) or target) in (list, tuple, set, frozenset, Sequence)

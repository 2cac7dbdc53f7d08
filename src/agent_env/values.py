"""Values: classes of named fields, exactly as `dataclasses` makes them, at a fraction of what it costs to define one.

A command defines hundreds of these classes and makes instances of some. `dataclasses` compiles six functions for each class that it
meets; here what can be written once is written once, and a class's `__init__` is compiled when its first instance is made.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any

__all__ = ["dataclass"]


class _MadeAnew:
    """Stands in a signature for what a field's factory makes."""

    def __repr__(self) -> str:
        return "<factory>"


_MADE_ANEW = _MadeAnew()


def _defined(cls: type[Any] | None = None, /, *, frozen: bool = False, slots: bool = False, eq: bool = True, repr: bool = True) -> Any:
    """What `dataclasses.dataclass` does, with those of its parameters that are used here; type checkers see that one.

    Raises:
        TypeError: As from `dataclasses.dataclass`.
    """

    def define(made: type[Any]) -> type[Any]:
        if any(dataclasses.is_dataclass(base) for base in made.__mro__[1:]):  # what may inherit what is decided there
            return dataclasses.dataclass(frozen=frozen, slots=slots, eq=eq, repr=repr)(made)
        if not made.__doc__:
            made.__doc__ = f"{made.__name__}({', '.join(inspect.get_annotations(made))})"
        hashes_itself = "__hash__" in made.__dict__ and (made.__dict__["__hash__"] is not None or "__eq__" not in made.__dict__)
        made = dataclasses.dataclass(init=False, repr=False, eq=False, slots=slots)(made)
        told = getattr(made, "__dataclass_params__")  # noqa: B009 -- what a class that inherits from this one is checked against
        told.init, told.repr, told.eq, told.frozen = True, repr, eq, frozen
        fields = dataclasses.fields(made)
        compared = _values_of([field.name for field in fields if field.compare])
        _add(made, {"__init__": _Initialiser(made, frozen=frozen)})
        if repr:
            _add(made, {"__repr__": _shown([field.name for field in fields if field.repr])})
        if eq:
            _add(made, {"__eq__": _equal(compared)})
            if not hashes_itself:
                made.__hash__ = _hashed(compared) if frozen else None  # type: ignore[assignment]
        if frozen:
            _add(made, _refusing(made, {field.name for field in fields}))
            _add(made, {"__getstate__": _state, "__setstate__": _set_state} if slots else {})
        return made

    return define if cls is None else define(cls)


if TYPE_CHECKING:
    from dataclasses import dataclass
else:
    dataclass = _defined


def _add(cls: type[Any], methods: Mapping[str, Any]) -> None:
    """Gives a class what its own text does not define."""
    for name, method in methods.items():
        if name not in cls.__dict__:
            setattr(cls, name, method)


class _Initialiser:
    """A class's `__init__` until it is first asked for: compiled then, and put in this one's place."""

    def __init__(self, cls: type[Any], *, frozen: bool) -> None:
        self._cls = cls
        self._frozen = frozen

    def __get__(self, instance: Any, owner: type[Any]) -> Any:
        method = _initialiser(self._cls, frozen=self._frozen)
        self._cls.__init__ = method
        return method if instance is None else method.__get__(instance, owner)


def _initialiser(cls: type[Any], *, frozen: bool) -> Any:
    """Compiles the `__init__` of a class: its fields in order, then those that are named only.

    What the text itself needs begins with two underscores: a class's text can't give a field such a name.
    """
    known: dict[str, Any] = {"__set": object.__setattr__, "__anew": _MADE_ANEW}
    asked: list[str] = []
    named: list[str] = []
    lines: list[str] = []
    for field in dataclasses.fields(cls):
        value = name = field.name
        if field.default_factory is not dataclasses.MISSING:
            known[f"__make_{name}"] = field.default_factory
            value = f"__make_{name}() if {name} is __anew else {name}" if field.init else f"__make_{name}()"
            default = "=__anew"
        elif field.default is not dataclasses.MISSING:
            known[f"__default_{name}"] = field.default
            default = f"=__default_{name}"
            value = name if field.init else default[1:]
        elif field.init:
            default = ""
        else:
            continue  # its class sets it
        if field.init:
            (named if field.kw_only else asked).append(f"{name}{default}")
        lines.append(f"__set(__self, {name!r}, {value})" if frozen else f"__self.{name} = {value}")
    if hasattr(cls, "__post_init__"):
        lines.append("__self.__post_init__()")
    parameters = ", ".join(["__self", *asked, *(["*", *named] if named else [])])
    exec(f"def __init__({parameters}):\n  " + "\n  ".join(lines or ["pass"]), known)
    method = known["__init__"]
    method.__qualname__ = f"{cls.__qualname__}.__init__"
    method.__module__ = cls.__module__
    method.__annotations__ = {field.name: field.type for field in dataclasses.fields(cls) if field.init} | {"return": None}
    return method


def _values_of(names: list[str]) -> Callable[[Any], Any]:
    """Takes the named attributes of an instance, as a tuple."""
    match names:
        case []:
            return lambda _: ()
        case [name]:
            return lambda value: (getattr(value, name),)
        case _:
            return attrgetter(*names)


def _shown(names: Iterable[str]) -> Any:
    @recursive_repr()
    def __repr__(self: Any) -> str:  # noqa: N807
        return f"{type(self).__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"

    return __repr__


def _equal(values: Callable[[Any], Any]) -> Any:
    def __eq__(self: Any, other: object) -> Any:  # noqa: N807
        return values(self) == values(other) if other.__class__ is self.__class__ else NotImplemented

    return __eq__


def _hashed(values: Callable[[Any], Any]) -> Any:
    def __hash__(self: Any) -> int:  # noqa: N807
        return hash(values(self))

    return __hash__


def _refusing(cls: type[Any], names: set[str]) -> dict[str, Any]:
    """What keeps an instance as it was made; a plain class that inherits may have attributes of its own."""

    def __setattr__(self: Any, name: str, value: Any) -> None:  # noqa: N807
        if type(self) is cls or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
        super(cls, self).__setattr__(name, value)

    def __delattr__(self: Any, name: str) -> None:  # noqa: N807
        if type(self) is cls or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
        super(cls, self).__delattr__(name)

    return {"__setattr__": __setattr__, "__delattr__": __delattr__}


def _state(self: Any) -> list[Any]:
    return [getattr(self, field.name) for field in dataclasses.fields(self)]


def _set_state(self: Any, state: list[Any]) -> None:
    for field, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, field.name, value)

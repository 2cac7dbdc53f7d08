"""As much of a step as can be read, so that one broken field hides nothing else that is wrong with it. What is made here is never run.

A field that could not be read raises `UnreadableError` when it is looked at: a check that needs it finds nothing, and all others are made
as they are in a sound step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, Field, PydanticUserError, ValidationError, WrapValidator, create_model, field_validator, model_validator

from agent_env.steps.contract import UnreadableError

M = TypeVar("M", bound=BaseModel)


class _Unreadable:
    """Stands where a value could not be read."""

    def __getattr__(self, name: str) -> Any:
        raise UnreadableError(name)

    def __len__(self) -> int:
        raise UnreadableError("its length")

    def __iter__(self) -> Iterator[Any]:
        raise UnreadableError("its members")

    def __getitem__(self, key: object) -> Any:
        raise UnreadableError(str(key))


_UNREADABLE = _Unreadable()


class _Partial:
    """What a class gets beside its own: fields that could not be read say so."""

    def __getattr__(self, name: str) -> Any:
        if name in getattr(type(self), "model_fields", ()):
            raise UnreadableError(name)
        return super().__getattr__(name)  # type: ignore[misc]  # Pydantic's, which type checkers are not shown


def as_far_as_readable(cls: type[M], data: Mapping[str, Any]) -> M | None:
    """An object of a class whose fields are those that are sound; None when nothing can be made of the data.

    A plug-in's class may do more than can be left out, and stumble over what isn't there: then nothing can be made either.
    """
    try:
        return _forgiving(cls).model_validate(dict(data))  # type: ignore[return-value]  # it is made from the class
    except (ValidationError, PydanticUserError, AttributeError, TypeError):
        return None


def broken_rules(model: BaseModel) -> Iterator[str]:
    """What rules across the fields of an object say, each by itself, as far as what they look at could be read."""
    for name, rule in type(model).__pydantic_decorators__.model_validators.items():
        check: Callable[[BaseModel], object] | None = getattr(_written_as(type(model)), name, None)
        if rule.info.mode == "after" and check is not None:
            try:
                check(model)
            except ValueError as error:
                yield str(error)
            except UnreadableError:
                pass


def _written_as(cls: type[BaseModel]) -> type[BaseModel]:
    """The class that a forgiving one was made from."""
    return next(base for base in cls.__mro__ if issubclass(base, BaseModel) and not issubclass(base, _Partial))


@cache
def _forgiving(cls: type[BaseModel]) -> type[BaseModel]:
    """The class with nothing that it insists on: no field is required, a broken one is left out, and no rule spans several."""
    fields: dict[str, Any] = {}
    for name, field in cls.model_fields.items():
        annotation: Any = Annotated[(_forgiven(field.annotation), *field.metadata)] if field.metadata else _forgiven(field.annotation)
        default = {"default_factory": field.default_factory} if field.default_factory else {"default": field.default}
        chosen: Any = {"default": _UNREADABLE} if field.is_required() else default
        fields[name] = (annotation, Field(**chosen, validation_alias=field.validation_alias))
    rules = [name for name, rule in cls.__pydantic_decorators__.model_validators.items() if rule.info.mode == "after"]
    validators: dict[str, Any] = {name: model_validator(mode="after")(_say_nothing) for name in rules}
    validators |= {"_each_field": field_validator("*", mode="wrap")(_kept_place), "_leave_out": model_validator(mode="after")(_leave_out)}
    bases: Any = (_Partial, cls)
    return create_model(cls.__name__, __base__=bases, __module__=__name__, __validators__=validators, **fields)


def _forgiven(annotation: Any) -> Any:
    """A type whose models are forgiving ones, also inside lists and unions."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return _forgiving(annotation)
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return Annotated[(_forgiven(inner[0]), *annotation.__metadata__)]
    of_union = origin in {Union, UnionType}
    new = tuple(_forgiven(each) if of_union else _forgiven_member(each) for each in inner)
    if new == inner:
        return annotation
    return Union[new] if of_union else origin[new]  # noqa: UP007  # of types that are only known now


def _forgiven_member(annotation: Any) -> Any:
    """The type of what is in a list, where one that can't be read leaves its place to the others."""
    new = _forgiven(annotation)
    return annotation if new == annotation else Annotated[new, WrapValidator(_kept_place)]


def _kept_place(value: Any, read: Callable[[Any], Any]) -> Any:
    try:
        return read(value)
    except (ValidationError, UnreadableError):
        return _UNREADABLE


def _say_nothing(model: M) -> M:
    return model


def _leave_out(model: M) -> M:
    for name in [name for name, value in model.__dict__.items() if value is _UNREADABLE]:
        del model.__dict__[name]
    return model

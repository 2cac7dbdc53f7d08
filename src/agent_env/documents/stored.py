"""What all stored documents have in common: an id, a type, a version, and names that were once spelled otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, ValidationError, model_serializer

from agent_env.documents.reading import at
from agent_env.documents.spelling import near
from agent_env.errors import Problem, ProblemsError

Json = Any


class Ref(BaseModel):
    """A reference to another document, pinned to a version unless it floats."""

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)

    id: str = Field(min_length=1)
    version: int | None = Field(default=None, ge=1)
    type: str | None = None

    @model_serializer(mode="wrap")
    def _without_absent(self, dump: SerializerFunctionWrapHandler) -> dict[str, Json]:
        return {name: value for name, value in dump(self).items() if value is not None}


class StoredDocument(BaseModel):
    """A document of a store. Unknown keys are kept; `created_at_utc` belongs to the store and is dropped on reading."""

    model_config = ConfigDict(frozen=True, extra="allow", defer_build=True)

    twins: ClassVar[Mapping[str, str]] = {}
    """Legacy spelling → the one we use. Both are written with the same value."""
    legacy_first: ClassVar[bool] = True
    """Which of two differing twins wins on reading (reference)."""
    sparse: ClassVar[frozenset[str]] = frozenset()
    """Fields that are not written when they are empty."""

    id: str = Field(min_length=1)
    type: str
    version: int | None = Field(default=None, ge=0)
    """None or 0 until it is stored."""

    @classmethod
    def read(cls, data: Mapping[str, Json], *, source: str | None = None, path: str = "$") -> Self:
        """A document from its JSON.

        Raises:
            ProblemsError: Everything wrong with it, with JSON paths.
        """
        values = {key: value for key, value in data.items() if key != "created_at_utc"}
        for legacy, name in cls.twins.items():
            old = values.pop(legacy, None)
            if old is not None and (cls.legacy_first or values.get(name) is None):
                values[name] = old
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise ProblemsError(validation_problems(error, source, path)) from error

    def to_json(self) -> dict[str, Json]:
        """The stored form, both spellings of what has two. Absent options are left out."""
        extra = self.model_extra or {}
        written = {
            name: value
            for name, value in self.model_dump(mode="json").items()
            if name in extra or not (value is None or (name in self.sparse and not value))
        }
        return {**written, **{legacy: written[name] for legacy, name in self.twins.items() if name in written}}


def read_by_type(
    classes: Mapping[str, type[StoredDocument]], data: Json, *, what: str, source: str | None, path: str = "$", default: str | None = None
) -> StoredDocument:
    """A document read by the class that its `type` names.

    Args:
        classes: Type → class.
        data: The document's JSON.
        what: Its kind in words, for the messages.
        source: Its file or id.
        path: Its JSON path.
        default: The type that a document without one has.

    Raises:
        ProblemsError: It is no object, has no known type, or is not what its type says.
    """
    if not isinstance(data, dict):
        raise ProblemsError([Problem(f"{what} is an object", source, path)])
    type_name = data.get("type", default)
    cls = classes.get(type_name) if isinstance(type_name, str) else None
    if cls is None:
        meant = near(type_name, classes) if isinstance(type_name, str) else None
        hint = f"did you mean {meant!r}?" if meant else f"known: {', '.join(sorted(classes))}"
        raise ProblemsError([Problem(f"unknown type of {what}: {type_name!r}", source, at(path, "type"), hint)])
    return cls.read({**data, "type": type_name}, source=source, path=path)


def validation_problems(error: ValidationError, source: str | None, path: str = "$") -> list[Problem]:
    """Pydantic's findings in our words and paths; values are left out, because they may be secrets."""
    problems = []
    for entry in error.errors(include_url=False, include_input=False):
        where = path
        for key in entry["loc"]:
            where = at(where, key)
        message = entry["msg"].removeprefix("Value error, ")
        problems.append(Problem(message[:1].lower() + message[1:], source, where))
    return problems

"""Values behave as those that `dataclasses` makes: each way that the house defines one, beside the library's own."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
import re
from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from agent_env.values import dataclass

WAYS: dict[str, dict[str, Any]] = {
    "Plain": {},
    "Frozen": {"frozen": True},
    "FrozenSlots": {"frozen": True, "slots": True},
    "Slots": {"slots": True},
    "ByIdentity": {"eq": False},
    "FrozenByIdentity": {"frozen": True, "eq": False, "repr": False},
}
DEEDS: dict[str, Callable[[Any], object]] = {
    "its signature": lambda cls: str(inspect.signature(cls)),
    "its annotations": lambda cls: cls.__init__.__annotations__,
    "its fields": lambda cls: [(field.name, field.type, field.init, field.kw_only) for field in dataclasses.fields(cls)],
    "its places in a pattern": lambda cls: cls.__match_args__,
    "the class's defaults": lambda cls: (cls.of_all, getattr(cls("a"), "count", None), hasattr(cls, "tags")),
    "made of one": lambda cls: dataclasses.asdict(cls("a")),
    "made of all": lambda cls: dataclasses.asdict(cls("a", 2, ["t"], "x", key="k")),
    "made anew": lambda cls: cls("a").tags is cls("a").tags,
    "too few": lambda cls: cls(),
    "too many": lambda cls: cls("a", 1, [], "x", "k"),
    "unknown": lambda cls: cls("a", other=1),
    "shown": lambda cls: repr(cls("a", secret="hidden")),
    "shown within itself": lambda cls: repr((box := cls("a"), box.tags.append(box))[0]),
    "equal": lambda cls: (cls("a") == cls("a"), cls("a") == cls("b"), cls("a") == cls("a", secret="x"), cls("a") == ("a",)),
    "not a number": lambda cls: cls(float("nan")) == cls(float("nan")),
    "hashed": lambda cls: hash(cls("a", tags=())) == hash(cls("a", tags=(), secret="x")),  # type: ignore[arg-type]
    "not hashed": lambda cls: len({cls("a"): 1}),
    "replaced": lambda cls: dataclasses.asdict(dataclasses.replace(cls("a", 3), label="b")),
    "copied": lambda cls: dataclasses.asdict(copy.copy(cls("a", 3, key="k"))),
    "pickled": lambda cls: dataclasses.asdict(pickle.loads(pickle.dumps(cls("a", 3, key="k")))),
    "set": lambda cls: setattr(cls("a"), "count", 3),
    "set beside its fields": lambda cls: setattr(cls("a"), "other", 3),
    "deleted": lambda cls: delattr(cls("a"), "count"),
    "inherited plainly": lambda cls: vars(type("Sub", (cls,), {})("a", 5)).get("count"),
    "inherited plainly, set": lambda cls: setattr(type("Sub", (cls,), {})("a", 5), "count", 3),
    "inherited plainly, set beside its fields": lambda cls: setattr(type("Sub", (cls,), {})("a", 5), "other", 3),
    "inherited as another": lambda cls: repr(another(cls, dataclass)("a", 5, more=2)),
    "inherited as the library's": lambda cls: repr(another(cls, dataclasses.dataclass)("a", 5, more=2)),
}

LOST_ITS_CLASS = {"set beside its fields", "inherited plainly, set beside its fields"}
"""What the library's frozen classes with slots answer with a fault of `super`, which still names the class before it got its slots."""


def box(decorator: Callable[..., Any], way: str) -> Any:
    """A class with a field of every kind."""

    class Box:
        """What is in it."""

        of_all: ClassVar[int] = 7
        label: Any
        count: int = 1
        tags: list[Any] = dataclasses.field(default_factory=list)
        secret: str = dataclasses.field(default="s", repr=False, compare=False)
        doubled: int = dataclasses.field(default=0, init=False)
        made: list[int] = dataclasses.field(default_factory=lambda: [1], init=False)
        key: str | None = dataclasses.field(default=None, kw_only=True)

        def __post_init__(self) -> None:
            object.__setattr__(self, "doubled", self.count * 2)

    Box.__name__ = Box.__qualname__ = way
    return decorator(**WAYS[way])(Box)


def another(cls: Any, decorator: Callable[..., Any]) -> Any:
    """A class of values that has one field more than another."""
    return decorator(frozen=cls.__dataclass_params__.frozen)(type("More", (cls,), {"__annotations__": {"more": "int"}, "more": 0}))


def outcome(deed: Callable[[Any], object], cls: Any) -> str:
    try:
        return re.sub(r"0x\w+|\S*\bBox\.", "", repr(deed(cls)))
    except Exception as error:  # noqa: BLE001 -- what is refused is part of what a class does
        return re.sub(r"\S*\bBox\.", "", f"{type(error).__name__}: {error}")


OURS = {way: box(dataclass, way) for way in WAYS}
globals().update(OURS)  # where pickling looks for them


@pytest.mark.parametrize("way", WAYS)
def test_a_value_behaves_as_the_library_s(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = {name: outcome(deed, OURS[way]) for name, deed in DEEDS.items()}
    theirs = box(dataclasses.dataclass, way)
    monkeypatch.setitem(globals(), way, theirs)
    compared = DEEDS.keys() - (LOST_ITS_CLASS if way == "FrozenSlots" else set())
    assert {name: ours[name] for name in compared} == {name: outcome(DEEDS[name], theirs) for name in compared}


def test_a_frozen_value_with_slots_says_what_can_not_be_set() -> None:
    assert outcome(DEEDS["set beside its fields"], OURS["FrozenSlots"]) == "FrozenInstanceError: cannot assign to field 'other'"
    assert outcome(DEEDS["inherited plainly, set beside its fields"], OURS["FrozenSlots"]) == "None"


def test_what_a_class_defines_itself_stays() -> None:
    @dataclass(frozen=True, slots=True)
    class Own:
        """Equal by one field, shown in its own way."""

        one: int
        two: int = 0

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Own) and self.one == other.one

        def __hash__(self) -> int:
            return hash(self.one)

        def __repr__(self) -> str:
            return f"<{self.one}>"

    assert Own(1, 2) == Own(1, 3)
    assert {Own(1, 2), Own(1, 3)} == {Own(1)}
    assert repr(Own(1)) == "<1>"


def test_a_class_without_a_text_is_told_by_its_fields() -> None:
    @dataclass
    class Bare:
        one: int
        two: int = 0

    assert Bare.__doc__ == "Bare(one, two)"
    assert OURS["Frozen"].__doc__ == "What is in it."

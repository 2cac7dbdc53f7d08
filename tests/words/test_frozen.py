"""Frozen values behave as the standard library's frozen dataclasses do."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import FrozenInstanceError, asdict, dataclass, field, fields, is_dataclass, replace
from typing import Any

import pytest

from agent_env.frozen import frozen


@frozen
class Ours:
    """A value."""

    name: str
    tags: Sequence[str] = ()
    notes: dict[str, int] = field(default_factory=dict, compare=False)
    hidden: str = field(default="x", repr=False)


@dataclass(frozen=True, slots=True)
class Standard:
    """The same, by the standard decorator."""

    name: str
    tags: Sequence[str] = ()
    notes: dict[str, int] = field(default_factory=dict, compare=False)
    hidden: str = field(default="x", repr=False)


@frozen
class OnlyNamed:
    """A value with a field that is given by name, a check, and text of its own."""

    low: int
    high: int = field(kw_only=True)

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ValueError("low is above high")

    def __repr__(self) -> str:
        return f"{self.low}…{self.high}"


@pytest.mark.parametrize("cls", [Ours, Standard])
def test_a_frozen_value_is_made_compared_hashed_and_shown_like_a_standard_one(cls: Any) -> None:
    value = cls("a", tags=("t",))
    assert (value.name, value.tags, value.notes, value.hidden) == ("a", ("t",), {}, "x")
    assert value == cls("a", ("t",), {"other": 1})
    assert value != cls("b", ("t",))
    assert value != ("a", ("t",), {}, "x")
    assert hash(value) == hash(cls("a", ("t",)))
    assert repr(value) == f"{cls.__name__}(name='a', tags=('t',), notes={{}})"
    assert cls("a").notes is not cls("a").notes
    assert cls.__match_args__ == ("name", "tags", "notes", "hidden")
    assert not hasattr(value, "__dict__")


@pytest.mark.parametrize("cls", [Ours, Standard])
def test_a_frozen_value_refuses_change_and_wrong_arguments(cls: Any) -> None:
    value = cls("a")
    with pytest.raises(FrozenInstanceError):
        value.name = "b"
    with pytest.raises(FrozenInstanceError):
        del value.name
    for arguments, named in [((), {}), (("a",), {"name": "a"}), (("a",), {"unknown": 1}), ((1, 2, 3, 4, 5), {})]:
        with pytest.raises(TypeError):
            cls(*arguments, **named)


@pytest.mark.parametrize("cls", [Ours, Standard])
def test_what_dataclasses_copy_and_pickle_do_with_values_works(cls: Any) -> None:
    value = cls("a", ("t",), {"n": 1}, "h")
    assert is_dataclass(cls)
    assert [entry.name for entry in fields(value)] == ["name", "tags", "notes", "hidden"]
    assert replace(value, name="b") == cls("b", ("t",), hidden="h")
    assert asdict(value) == {"name": "a", "tags": ("t",), "notes": {"n": 1}, "hidden": "h"}
    for other in (copy.copy(value), copy.deepcopy(value), pickle.loads(pickle.dumps(value))):
        assert other == value
        assert other.notes == {"n": 1}


def test_fields_by_name_only_checks_and_own_methods_are_kept() -> None:
    assert repr(OnlyNamed(1, high=2)) == "1…2"
    with pytest.raises(TypeError):
        OnlyNamed(1, 2)  # type: ignore[misc]
    with pytest.raises(ValueError, match="above"):
        OnlyNamed(3, high=2)


def test_a_class_that_is_never_used_compiles_no_constructor() -> None:
    program = (
        "import builtins, dataclasses\n"
        "from agent_env.frozen import frozen\n"
        "ran = []\n"
        "original = builtins.exec\n"
        "builtins.exec = lambda *args: (ran.append(args), original(*args))\n"
        "class A:\n"
        "    'Value.'\n"
        "    a: 'int' = 0\n"
        "A = frozen(A)\n"
        "before = len(ran)\n"
        "first, second = A(1), A(2)\n"
        "print(before, len(ran), first, second)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "0 1 A(a=1) A(a=2)"

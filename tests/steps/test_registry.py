"""The registry knows every type of the field, imports only what is used, and says what it can't run."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest

import agent_env
from agent_env.defaults import DEFAULT_LIMITS
from agent_env.errors import ConfigError, NotFoundError, ProblemsError, UnsupportedError
from agent_env.steps import EntityRef, OnResume, Registry, Step, read_step, step_class
from agent_env.steps.contract import StepResult
from agent_env.steps.limited import LimitDefault
from agent_env.steps.reference import step_reference
from agent_env.steps.registry import BUILT, CHECKS, KNOWN_TYPES, EntryPoint, configure, use


class Shout(Step, type="shout"):
    """A plug-in's step."""

    entity_refs: ClassVar[tuple[EntityRef, ...] | None] = None
    text: str = "hey"


class Whisper(Step, type="shout"):
    """Claims the same name."""


class Nameless(Step):
    """Has no type of its own."""


def point(name: str, cls: object, value: str = "plug:Shout") -> EntryPoint:
    return EntryPoint(name, value, lambda: cls)


OURS = {"restore_agent_state"}
"""Types that the reference does not have."""


def test_all_49_types_are_known_and_none_is_both_built_and_a_check() -> None:
    assert len(KNOWN_TYPES - OURS) == 49
    assert not set(BUILT) & set(CHECKS)


def test_what_a_task_leaves_out_is_what_this_installation_is_limited_to() -> None:
    named = set[str]()
    for type in sorted(BUILT):
        cls = Registry(entry_points=[]).step_class(type)
        for name, field in cls.model_fields.items():
            for mark in (each for each in field.metadata if isinstance(each, LimitDefault)):
                named.add(mark.name)
                assert field.default == mark.of(DEFAULT_LIMITS), f"{type}.{name}"
                twice = replace(DEFAULT_LIMITS, **{mark.name: getattr(DEFAULT_LIMITS, mark.name) * 2})
                silent, own = cls.model_construct(), cls.model_construct(**{name: 7})
                assert getattr(silent.under(twice), name) == 2 * field.default, f"{type}.{name}"
                assert getattr(own.under(twice), name) == 7, f"{type}.{name}"
                assert silent.under(DEFAULT_LIMITS) is silent
    assert named >= {"sandbox_memory_bytes", "sandbox_ttl_seconds", "review_seconds", "verify_shell_seconds", "judge_seconds"}


def test_no_step_takes_the_built_in_limits_past_the_configured_ones() -> None:
    for room in ("steps", "verifiers"):
        for file in Path(agent_env.__file__).with_name(room).rglob("*.py"):
            for line in file.read_text().splitlines():
                assert "DEFAULT_LIMITS." not in line or "LimitDefault(" in line, f"{file.name}: {line.strip()}"


@pytest.mark.parametrize("type", sorted(BUILT))
def test_every_step_class_declares_its_resume_and_references_in_its_own_body(type: str) -> None:
    cls = Registry(entry_points=[]).step_class(type)
    assert isinstance(cls.__dict__["on_resume"], OnResume)
    assert "entity_refs" in cls.__dict__
    assert "execute" in cls.__dict__
    assert cls.__doc__
    assert cls.__doc__ != Step.__doc__


def test_questions_to_people_and_agents_reattach_and_every_other_step_repeats() -> None:
    registry = Registry(entry_points=[])
    adopted = {"review", "prompt_agent"}
    assert {type: registry.step_class(type).on_resume for type in BUILT} == {
        type: OnResume.REATTACH if type in adopted else OnResume.REPEAT for type in BUILT
    }


@pytest.mark.parametrize(("type", "command"), sorted(CHECKS.items()))
def test_checks_for_authors_are_refused_with_the_command_that_makes_them(type: str, command: str) -> None:
    with pytest.raises(UnsupportedError, match=command):
        Registry(entry_points=[]).step_class(type)


def test_an_unknown_type_is_answered_with_a_near_spelling() -> None:
    with pytest.raises(NotFoundError, match="did you mean 'verify_sandbox'"):
        Registry(entry_points=[]).step_class("verify_sandbx")


def test_a_plugin_of_an_own_name_is_used() -> None:
    registry = Registry(entry_points=[point("shout", Shout)])
    assert registry.step_class("shout") is Shout
    assert "shout" in registry.types()


def test_a_plugin_may_bring_a_type_that_is_a_check_here() -> None:
    class Deployer(Step, type="verify_a2a_snapshot"):
        """Another package's way to ask people."""

    assert Registry(entry_points=[point("verify_a2a_snapshot", Deployer)]).step_class("verify_a2a_snapshot") is Deployer


def test_a_plugin_that_claims_a_builtin_name_is_skipped_and_the_message_says_so() -> None:
    registry = Registry(entry_points=[point("review", Shout)])
    assert registry.step_class("review").__module__ == "agent_env.steps.review"
    with pytest.raises(NotFoundError, match=r"plug:Shout was skipped: 'review' is built in"):
        registry.step_class("nothing")


def test_a_name_that_two_plugins_claim_belongs_to_neither() -> None:
    registry = Registry(entry_points=[point("shout", Shout), point("shout", Whisper, "other:Whisper")])
    with pytest.raises(NotFoundError, match="both claim 'shout'"):
        registry.step_class("shout")


def test_a_plugin_that_is_no_step_is_refused_with_its_module() -> None:
    with pytest.raises(UnsupportedError, match="plug:Shout"):
        Registry(entry_points=[point("shout", StepResult)]).step_class("shout")


HERE = __name__


@pytest.mark.parametrize(
    ("impls", "says"),
    [
        ("one:Two", "is a list"),
        ([1], "is a list"),
        (["nowhere.at.all:Thing"], "can't be imported"),
        (["json"], "can't be imported"),
        ([f"{HERE}:Nameless"], "no step type of its own"),
        (["json:JSONDecoder"], "not a subclass"),
        (["agent_env.steps.review:Review"], "built in"),
        ([f"{HERE}:Shout", f"{HERE}:Whisper"], "another entry has"),
    ],
)
def test_impls_of_the_configuration_are_checked_when_they_are_read(impls: object, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Registry(impls, entry_points=[])


def test_a_configured_class_may_take_a_plugins_name_and_that_is_noted() -> None:
    registry = Registry([f"{HERE}:Shout"], entry_points=[point("shout", Whisper, "other:Whisper")])
    assert registry.step_class("shout").__name__ == "Shout"
    assert "replaces plug-in other:Whisper" in registry.notes[0]


def test_what_the_configuration_adds_holds_for_the_whole_process() -> None:
    try:
        configure([f"{HERE}:Shout"])
        assert step_class("shout").__name__ == "Shout"
        configure(None)
        assert step_class("shout").__name__ == "Shout"
    finally:
        use(None)
    with pytest.raises(NotFoundError):
        step_class("shout")


def test_a_step_of_a_plugin_is_read_like_any_other() -> None:
    registry = Registry(entry_points=[point("shout", Shout)])
    step, warnings = read_step({"id": "s", "type": "shout", "text": "ho", "volume": 3}, source="t.json", registry=registry)
    assert step.to_dict()["text"] == "ho"
    assert [str(warning) for warning in warnings] == ["t.json: $.volume: unknown key 'volume' is kept and ignored"]
    with pytest.raises(ProblemsError, match=r"\$\.text: text is text, not a number"):
        read_step({"id": "s", "type": "shout", "text": 1}, source="t.json", registry=registry)


def test_only_the_modules_of_used_types_are_imported() -> None:
    code = """
import sys
from agent_env.steps import parse_step
parse_step({"id": "r", "type": "review"}, source="t")
loaded = {name for name in sys.modules if name.startswith(("agent_env.steps.", "agent_env.verifiers"))}
heavy = {"httpx", "sqlalchemy", "alembic", "aiohttp", "rich"} & set(sys.modules)
print(sorted(loaded & {"agent_env.steps.review", "agent_env.steps.run_code", "agent_env.verifiers.verify_sandbox"}), sorted(heavy))
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "['agent_env.steps.review'] []"


@pytest.mark.parametrize("step", step_reference(), ids=lambda step: step.type)
def test_the_reference_describes_every_field(step: object) -> None:
    assert step.doc
    fields = [*step.fields, *step.common]
    assert [field.name for field in fields if not field.description] == []
    assert [field.name for field in fields if not field.type] == []

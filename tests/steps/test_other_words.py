"""Keys that people know from Docker and Compose are mistakes with the right word, and are not ignored without one."""

from __future__ import annotations

from typing import Any

import pytest

from agent_env.errors import ProblemsError
from agent_env.steps.reading import accepted_keys
from agent_env.steps.registry import BUILT, read_step, step_class

CONTAINER: dict[str, Any] = {"id": "c", "type": "run_docker_container", "sandbox_name": "box", "image": "busybox"}
BOX: dict[str, Any] = {"id": "b", "type": "deploy_sandbox", "sandbox_name": "box", "sandbox_mode": "vm"}


@pytest.mark.parametrize(
    ("step", "key", "value", "meant"),
    [
        (CONTAINER, "command", "sleep 1000", "command_override"),
        (CONTAINER, "entrypoint", ["sh"], "command_override"),
        (CONTAINER, "env", {"A": "1"}, "env_vars"),
        (CONTAINER, "name", "web", "container_name"),
        (BOX, "memory", "1g", "memory_mb"),
        (BOX, "ports", [80], "exposed_ports"),
    ],
)
def test_another_systems_word_is_a_mistake_that_names_ours(step: dict[str, Any], key: str, value: Any, meant: str) -> None:
    with pytest.raises(ProblemsError) as caught:
        read_step({**step, key: value}, source="t.json", path="$[3]")
    *of_its_value, problem = caught.value.problems  # the value is judged as that of the word that is meant
    assert (problem.path, problem.hint) == (f"$[3].{key}", f"did you mean {meant!r}?")
    assert all(other.path == problem.path and meant in other.message for other in of_its_value)


def test_a_key_that_nobody_knows_is_still_kept_with_a_warning() -> None:
    step, warnings = read_step({**CONTAINER, "x_note": "kept"}, source="t.json")
    assert [warning.path for warning in warnings] == ["$.x_note"]
    assert step.to_dict()["x_note"] == "kept"


def test_other_words_lead_to_fields_and_are_none_themselves() -> None:
    for name in BUILT:
        cls = step_class(name)
        assert set(cls.other_words.values()) <= accepted_keys(cls), name
        assert not set(cls.other_words) & accepted_keys(cls), name


def test_where_a_key_is_missing_one_that_nobody_knows_is_told_too() -> None:
    with pytest.raises(ProblemsError) as told:
        read_step({"id": "work", "type": "run_code", "sandbox_name": "box", "code": "print()"}, source="t.json")
    assert [(problem.path, problem.message) for problem in told.value.problems] == [
        ("$", "script_artifact_id is missing"),
        ("$.code", "unknown key 'code'"),
    ]

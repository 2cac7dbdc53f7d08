"""One broken field of a step hides nothing else that is wrong with it, and nothing is told that only follows from it."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import model_validator

from agent_env.engine import plan_document
from agent_env.errors import ProblemsError
from agent_env.steps import Step
from agent_env.steps.partial import as_far_as_readable
from agent_env.steps.reading import read_fields
from agent_env.steps.registry import BUILT, step_class
from tests.steps.test_reading import WRITTEN

BROKEN: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
    "a rule across fields, beside a broken field": (
        {"type": "run_code", "sandbox_name": "box", "env_id": "mail", "script_artifact_id": 3},
        {".script_artifact_id": "is text", "": "at most one of env_id", ".env_id": "'mail'"},
    ),
    "every rule across fields, not only the first": (
        {"type": "run_docker_container", "sandbox_name": "box", "image": "a", "docker_context_url": "https://h/a.tgz", "network": "host",
         "extra_networks": ["b"], "command_override": "x", "keep_alive_with_base_command": True},
        {"": "at most one of docker_context_url and image", " ": "keep_alive_with_base_command", "  ": "extra_networks beside it"},
    ),
    "what a plan checks, beside a broken field": (
        {"type": "deploy_sandbox", "sandbox_name": "new", "sandbox_mode": "container", "image": "A B", "cpu": "many"},
        {".cpu": "is a number", ".sandbox_mode": "requires `image` and `port`", ".image": "image"},
    ),
    "the rule of an object inside, beside its own broken field": (
        {"type": "deploy_sandbox", "sandbox_name": "new", "sandbox_mode": "vm", "network_policy": {"mode": "open", "allow_hosts": ["*"]}},
        {".network_policy.mode": "must be one of", ".network_policy": "a bare `*`"},
    ),
    "each member of a list by itself": (
        {"type": "verify_sandbox", "sandbox_name": "box", "criteria": [
            {"type": "probe_file_contains", "paths": 3, "expected": "("}, 4, {"type": "bash_cmd_succeeds"},
            {"type": "probe_file_contains", "pths": ["a"], "expected": "["}]},
        {".criteria[0].paths": "is a list", ".criteria[0].expected": "no regular expression", ".criteria[1]": "is an object",
         ".criteria[2]": "bash_cmd is missing", ".criteria[3].pths": "did you mean 'paths'", ".criteria[3].expected": "no regular"},
    ),
    "each skill of a list, by each rule": (
        {"type": "add_skills", "agent_name": "nobody", "skills": [{"name": "a b", "description": "d", "body": 3}, {"body": "b",
         "object_url": "c"}, {"name": "c", "description": "d"}]},
        {".skills[0].body": "is text", ".skills[0]": "can't be a skill's", ".skills[1]": "one source", " .skills[1]": "needs a name",
         ".skills[2]": "a skill needs body", ".agent_name": "no earlier step provides"},
    ),
    "a target that is not known is looked for nowhere": (
        {"type": "collect_artifacts", "sandbox_name": "bux", "agent_name": "who", "artifact_paths": "x"},
        {".artifact_paths": "is a list", "": "at most one of sandbox_name", ".sandbox_name": "'bux'", ".agent_name": "'who'"},
    ),
    "a judge's criteria, labels and expressions": (
        {"type": "rubrics_verifier", "prompt_id": "nothing", "samples": 2, "output_format": "stars", "criteria": [{"id": "a", "title": "x"},
         {"id": "a", "title": "y"}], "oracle": [{"response": 3, "expected": {"z": 1}}], "trajectory_filter": {"evidence_exclude_pattern":
         "(", "frame_budget": "x"}},
        {".output_format": "must be one of", "": "an even number", ".criteria[1].id": "listed twice", ".oracle[0].response": "is text",
         ".oracle[0].expected": "not there", ".trajectory_filter.frame_budget": "whole number",
         ".trajectory_filter.evidence_exclude_pattern": "no regular expression", ".prompt_id": "no earlier step provides"},
    ),
}  # fmt: skip
"""A second step after one that deploys `box`, and everything that is said of it; blanks tell equal places from each other."""

BOX = {"id": "box", "type": "deploy_sandbox", "sandbox_name": "box", "sandbox_mode": "vm"}


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_field_hides_nothing_else_of_its_step(what: str) -> None:
    step, told = BROKEN[what]
    with pytest.raises(ProblemsError) as raised:
        plan_document([BOX, {"id": "x", **step}], source="t.json", task_id="t")
    found = raised.value.problems
    missing = {
        path: words
        for path, words in told.items()
        if not any(each.path == f"$[1]{path.strip()}" and words in f"{each.message} {each.hint}" for each in found)
    }
    assert missing == {}, raised.value
    assert len(found) == len(told), f"more is said than is wrong:\n{raised.value}"


def test_what_a_step_with_a_broken_field_provides_is_provided() -> None:
    check = {"type": "verify_sandbox", "criteria": [{"type": "probe_file_exists", "paths": ["x"]}]}
    steps = [{**BOX, "cpu": "many"}, {**BOX, "id": "odd", "sandbox_name": 3}, {"id": "a", **check, "sandbox_name": "box"}]
    more = {"id": "ask", "type": "prompt_agent", "prompt": "x", "snapshot_config": {"env_id": "mail"}}
    deploys = [{"id": "mail", "type": "deploy_env", "env_id": 7}, {"id": "agent", "type": "deploy_agent", "gpu": "x", "cpu": "much"}]
    with pytest.raises(ProblemsError) as raised:
        plan_document([*steps, {"id": "b", **check, "sandbox_name": "odd"}, *deploys, more], source="t.json", task_id="t")
    assert [each.path for each in raised.value.problems] == ["$[0].cpu", "$[1].sandbox_name", "$[4].env_id", "$[5].cpu"]


@pytest.mark.parametrize("type", BUILT)
def test_of_nothing_every_type_of_step_makes_as_much_as_can_be_read(type: str) -> None:
    cls = step_class(type)
    partial = as_far_as_readable(cls, {})
    assert isinstance(partial, cls)
    with pytest.raises(AttributeError):
        _ = partial.id


@pytest.mark.parametrize("written", WRITTEN, ids=lambda step: str(step["id"]))
def test_a_field_that_is_broken_leaves_the_others_as_they_are(written: dict[str, Any]) -> None:
    cls = step_class(written["type"])
    whole = vars(cls.model_validate(written))
    for name in written.keys() & cls.model_fields.keys() - {"type", "sandbox_name", "agent_name", "env_id", "id"}:
        partial = as_far_as_readable(cls, {**written, name: object()})
        assert partial is not None
        assert {key: str(value) for key, value in vars(partial).items() if key != name} == {
            key: str(value) for key, value in whole.items() if key != name
        }


class Stumbles(Step, type="t_stumbles"):
    """A plug-in's step that looks at its fields in a way of its own."""

    count: int
    half: int = 0

    @model_validator(mode="wrap")
    @classmethod
    def _halved(cls, data: Any, read: Any) -> Any:
        made = read(data)
        return made.model_copy(update={"half": made.count // 2})


def test_a_class_that_stumbles_over_what_is_not_there_is_told_of_as_far_as_pydantic_knows() -> None:
    with pytest.raises(ProblemsError) as raised:
        read_fields(Stumbles, {"id": "s", "count": "many", "timeout_seconds": -1}, source="t.json")
    assert [problem.path for problem in raised.value.problems] == ["$.timeout_seconds", "$.count"]

"""Agents that nobody stored: named by an alias, for the whole call or in a step, or meant because nobody is named."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from agent_env.bundles.named_agents import needs_of, with_agents, without_effect
from agent_env.config.values import ModelConfig
from agent_env.documents.task import parse_task
from agent_env.engine import plan_document, plan_task
from agent_env.engine.options import Stores
from agent_env.engine.preflight_models import ModelsAsked
from agent_env.errors import NotFoundError

OWN = "@local/agent-env/agents"


def _ids(stores: Stores) -> list[str]:
    return sorted(stores.documents.ids("agents"))


def _overrides(stores: Stores, step: dict[str, Any], overrides: dict[str, Any]) -> dict[str, Any]:
    plan = plan_document([{"id": "a", "type": "deploy_agent", **step}], source="t", task_id="t", artifacts=stores.artifacts)
    return with_agents([plan], overrides, stores, default_id=f"{OWN}/mini")


@pytest.mark.parametrize(
    ("step", "overrides", "written", "expected"),
    [
        ({}, {}, ["mini"], {}),
        ({"a2a_agent_id": "scripted"}, {}, ["scripted"], {"step_params": {"a": {"a2a_agent_id": f"{OWN}/scripted"}}}),
        ({"a2a_agent_id": f"{OWN}/scripted"}, {}, ["scripted"], {}),
        ({"a2a_agent_id": "scripted"}, {"a2a_agent_id": "mini"}, ["mini"], {"a2a_agent_id": f"{OWN}/mini"}),
        ({}, {"a2a_agent_id": "agents:scripted", "x": 1}, ["scripted"], {"a2a_agent_id": f"{OWN}/scripted", "x": 1}),
        (
            {"a2a_agent_id": "mini"},
            {"step_params": {"a": {"a2a_agent_id": "scripted", "y": 2}}},
            ["scripted"],
            {"step_params": {"a": {"a2a_agent_id": f"{OWN}/scripted", "y": 2}}},
        ),
        ({"a2a_agent_id": "somebody-elses"}, {}, [], {}),
    ],
)
def test_what_is_meant_is_written_and_named_by_its_id(
    stores: Stores, step: dict[str, Any], overrides: dict[str, Any], written: list[str], expected: dict[str, Any]
) -> None:
    assert _overrides(stores, step, overrides) == expected
    assert _ids(stores) == [f"{OWN}/{name}" for name in written]


def test_a_stored_agent_is_taken_before_an_alias_of_the_same_name(stores: Stores) -> None:
    stores.documents.put("agents", "scripted", "a2a_agent", {"docker_image_artifact": {"id": "x", "version": 1}})
    assert _overrides(stores, {"a2a_agent_id": "scripted"}, {}) == {}
    assert _ids(stores) == ["scripted"]


def test_a_task_without_agents_has_none_written(stores: Stores) -> None:
    plan = plan_document(
        [{"id": "s", "type": "deploy_sandbox", "sandbox_mode": "vm", "sandbox_name": "box"}],
        source="t",
        task_id="t",
        artifacts=stores.artifacts,
    )
    assert with_agents([plan], {}, stores, default_id=f"{OWN}/mini") == {}
    assert _ids(stores) == []


@pytest.mark.parametrize(("name", "hint"), [("minni", "did you mean 'mini'?"), ("whoever", "or one of claude-code, codex, ")])
def test_an_agent_for_every_task_that_nobody_knows_is_refused_with_what_there_is(stores: Stores, name: str, hint: str) -> None:
    with pytest.raises(NotFoundError) as told:
        _overrides(stores, {}, {"a2a_agent_id": name})
    assert hint in str(told.value)
    assert _ids(stores) == []


def test_an_agent_that_no_task_deploys_is_warned_about(stores: Stores) -> None:
    plans = [
        plan_document([step], source="t", task_id="t", artifacts=stores.artifacts)
        for step in (
            {"id": "s", "type": "deploy_sandbox", "sandbox_mode": "vm", "sandbox_name": "box"},
            {"id": "a", "type": "deploy_agent"},
        )
    ]
    assert without_effect(plans[:1], {"a2a_agent_id": "mini"}) == ["the agent 'mini' is not used: no step deploys an agent"]
    assert without_effect(plans, {"a2a_agent_id": "mini"}) == []
    assert without_effect(plans[:1], {}) == []


JUDGE = {"id": "r", "type": "rubrics_verifier", "prompt_id": "p", "criteria": [{"id": "c", "title": "it is right"}]}
ASKED = [{"id": "agent", "type": "deploy_agent", "a2a_agent_id": "scripted"}, {"id": "p", "type": "prompt_agent", "prompt": "[]"}]
ENDPOINT = ModelConfig(base_url="http://m")


@pytest.mark.parametrize(
    ("step", "model", "overrides", "said"),
    [
        ({"a2a_agent_id": "pi"}, ModelConfig(), {}, "the agent 'pi' asks a model, and none is configured"),
        ({}, ModelConfig(), {}, f"the agent '{OWN}/mini' asks a model, and none is configured"),
        ({"a2a_agent_id": "pi"}, ModelConfig(), {"a2a_agent_id": "codex"}, "the agent 'codex' asks a model, and none is configured"),
        ({"a2a_agent_id": "pi"}, ENDPOINT, {}, None),
        ({"a2a_agent_id": "pi"}, ModelConfig(), {"litellm_base_url": "http://m"}, None),
        ({"a2a_agent_id": "pi", "env_vars": {"ANTHROPIC_API_KEY": "env:KEY"}}, ModelConfig(), {}, None),
        ({"a2a_agent_id": "pi"}, ModelConfig(), {"step_params": {"a": {"a2a_agent_id": "scripted"}}}, None),
        ({"a2a_agent_id": "somebody-elses"}, ModelConfig(), {}, None),
        (JUDGE, ModelConfig(), {}, "the judge is a model, and none is configured"),
        (JUDGE, ENDPOINT, {}, "no model is named for the judge"),
        (JUDGE, ENDPOINT, {"judge_model": "m"}, None),
        (JUDGE, ModelConfig(base_url="http://m", roles={"judge": "m"}), {}, None),
        ({**JUDGE, "judge_a2a_agent_id": "scripted"}, ModelConfig(), {}, None),
        (
            {**JUDGE, "judge_a2a_agent_id": "scripted", "use_agent_judge": False},
            ModelConfig(),
            {},
            "the judge is a model, and none is configured",
        ),
    ],
)
def test_a_model_that_will_be_asked_and_that_nobody_configured_is_told_before_anything_is_built(
    stores: Stores, step: dict[str, Any], model: ModelConfig, overrides: dict[str, Any], said: str | None
) -> None:
    before = ASKED if step.get("type") == JUDGE["type"] else []
    steps = [*before, {"id": "a", "type": "deploy_agent", **step}]
    plan = plan_task(parse_task(steps, source="t", task_id="t"), source="t")
    asked = ModelsAsked(model, needs_of((), stores), f"{OWN}/mini")
    found = asked.missing({"t": plan, "again": plan}, overrides)
    assert [problem.message for problem in found] == ([] if said is None else [f"{said}, and 1 more step like it"])
    assert replace(asked, replayed=True).missing({"t": plan}, overrides) == []
    assert _ids(stores) == []

"""Agents that nobody stored: named by an alias, for the whole call or in a step, or meant because nobody is named."""

from __future__ import annotations

from typing import Any

import pytest

from agent_env.bundles.named_agents import with_agents, without_effect
from agent_env.engine import plan_document
from agent_env.engine.options import Stores
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

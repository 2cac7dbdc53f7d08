"""Records are the reference's, field for field."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_env.documents.records import RECORDS, DeployedAgent, DeployedContainer, DeployedEnvironment, DeployedSandbox, PromptResponse
from tests.documents.fuzzing import problems_of
from tests.documents.test_context import REFERENCE
from tests.documents.test_reading import JSON_VALUES

CARD_URL = "https://t.example/sandbox/7/.well-known/agent-env.json"


def test_a_sandbox_of_the_reference_is_written_as_it_was_read() -> None:
    record = REFERENCE["deployed_sandboxes"][0]  # type: ignore[index]
    assert DeployedSandbox.read(record).to_json() == record


def test_our_own_facts_are_written_only_when_they_say_something() -> None:
    box = DeployedSandbox(sandbox_name="b", sandbox_id="local-1", sandbox_mode="container", container_id="abc", placement="container")
    assert {"container_id": "abc", "placement": "container"}.items() <= box.to_json().items()
    assert "placement" not in DeployedSandbox(sandbox_name="b", sandbox_id="x", sandbox_mode="vm").to_json()


@pytest.mark.parametrize(
    ("record", "recorded"),
    [
        (DeployedSandbox(sandbox_name="b", sandbox_id="1", sandbox_mode="vm"), "vm"),
        (DeployedSandbox(sandbox_name="b", sandbox_id="1", sandbox_mode="container"), "container"),
        (DeployedAgent(agent_name="a", api_url="u"), "in_container"),
        (DeployedAgent(agent_name="a", api_url="u", on_host=True), "on_machine"),
        (DeployedAgent(agent_name="a", api_url="u", on_host=True, placement="in_container"), "in_container"),
    ],
)
def test_where_a_record_acts_is_a_fact_of_its_own_or_what_the_reference_says(record: Any, recorded: str) -> None:
    assert record.recorded == recorded


def test_a_gateway_record_carries_the_cards_address_and_name() -> None:
    card = {"name": "env4821", "additionalInterfaces": [{"url": "/x", "transport": "rest"}, {"url": "/v2/mcp", "transport": "mcp"}]}
    record = DeployedEnvironment(
        env_id="tickets", env_version=4, env_provider_type="gateway", environment_card=card, environment_card_url=CARD_URL, mcp_url="old"
    )
    data = record.to_json()
    assert data["mcp_url"] == "https://t.example/sandbox/7/v2/mcp"
    assert data["mcp_server_name"] == "env4821"
    assert data["gateway_mode"] == "performance"
    assert record.environment_url == "https://t.example/sandbox/7"


def test_c02_a_record_from_before_cards_keeps_its_stored_address() -> None:
    record = DeployedEnvironment(env_id="e", env_version=1, mcp_url="http://x/mcp")
    assert record.environment_url is None
    assert record.server_url == "http://x/mcp"


@pytest.mark.parametrize(
    ("fields", "shape"),
    [
        ({"env_provider_type": "gateway"}, "gateway"),
        ({"env_provider_type": "server"}, "sandbox"),
        ({}, "sandbox"),
        ({"env_provider_type": "plug"}, "plain"),
        ({"env_provider_type": "plug", "sandbox_id": "s"}, "sandbox"),
        ({"env_provider_type": "plug", "gateway_mode": "consistent"}, "plain"),
        ({"env_provider_type": "plug", "db_mcp_url": "u"}, "gateway"),
    ],
)
def test_the_class_of_an_environment_record_comes_from_its_data(fields: dict[str, Any], shape: str) -> None:
    record = DeployedEnvironment(env_id="e", env_version=1, **fields)
    assert record.shape == shape
    assert ("gateway_url" in record.to_json()) == (shape == "gateway")
    assert ("sandbox_ids" in record.to_json()) == (shape != "plain")


def test_a_prompt_response_has_both_spellings_and_prefers_the_legacy_one() -> None:
    response = PromptResponse.read(
        {"prompt_id": "p", "response": "r", "agent_trajectory_s3_uri": "old", "agent_trajectory_object_url": "new"}
    )
    assert response.agent_trajectory_object_url == "old"
    assert response.to_json()["agent_trajectory_s3_uri"] == response.to_json()["agent_trajectory_object_url"] == "old"


def test_unknown_keys_of_a_record_are_kept() -> None:
    data = {"container_name": "db", "sandbox_name": "box", "ports": [5432], "later": {"x": 1}}
    assert DeployedContainer.read(data).to_json()["later"] == {"x": 1}


@given(
    st.sampled_from(sorted(RECORDS)), st.dictionaries(st.sampled_from(["sandbox_name", "env_id", "metadata", "ports", "x"]), JSON_VALUES)
)
def test_any_object_ends_in_a_record_or_in_problems_with_paths(name: str, data: dict[str, Any]) -> None:
    found = problems_of(lambda: RECORDS[name].read(data, source="c.json", path="$.records[0]"))
    assert all(problem.file == "c.json" and (problem.path or "").startswith("$.records[0]") for problem in found)

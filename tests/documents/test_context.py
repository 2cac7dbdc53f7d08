"""A context goes through us without losing anything but secrets."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_env.documents.context import IDENTITIES, REQUIRED_KEYS, SCALARS, SECRET_KEYS, new_context, read_context, safe_context
from agent_env.errors import ProblemsError
from tests.documents.fuzzing import problems_of
from tests.documents.test_reading import JSON_VALUES

REFERENCE = {
    "deployed_envs": [],
    "deployed_agents": [],
    "deployed_sandboxes": [
        {
            "sandbox_name": "box",
            "sandbox_id": "local-d84960d0",
            "sandbox_mode": "vm",
            "sandbox_type": "local",
            "tunnel_urls": None,
            "vnc_url": None,
            "instance_id": None,
            "created_at_utc": None,
            "expires_at_utc": None,
            "network_policy": {"mode": "allow_all", "allow_hosts": [], "allow_cidrs": []},
        }
    ],
    "prompt_responses": [],
    "metadata": {"run_group_id": "d857", "script_results": {"r": [1, 1, 2, [], {}]}},
    "agent_model": None,
    "default_agent_model": None,
    "agent_artifact_id": None,
    "agent_harness": None,
    "instance_id": "@local/~/hello/hello-op63yvw7",
}


def test_a_new_context_has_the_references_shape() -> None:
    assert new_context(task_id="t") == {
        "deployed_envs": [],
        "deployed_agents": [],
        "deployed_sandboxes": [],
        "prompt_responses": [],
        "metadata": {"task_id": "t"},
        **dict.fromkeys(SCALARS),
    }


def test_a_context_that_the_reference_wrote_is_read_unchanged() -> None:
    assert read_context(json.loads(json.dumps(REFERENCE)), source="c.json") == REFERENCE


def test_missing_keys_are_filled_and_unknown_ones_kept() -> None:
    context = read_context({"metadata": None, "deployed_envs": None, "extra": {"x": [1, 1]}}, source="c.json")
    assert context == {**new_context(), "extra": {"x": [1, 1]}}


SMALL = (
    st.none()
    | st.booleans()
    | st.integers(0, 3)
    | st.text(max_size=3)
    | st.just([])
    | st.just({})
    | st.lists(st.integers(0, 1), max_size=3)
)


def records(required: tuple[str, ...]) -> st.SearchStrategy[dict[str, Any]]:
    return st.builds(
        lambda extra, given: {**extra, **given},
        st.dictionaries(st.text(), SMALL, max_size=2),
        st.fixed_dictionaries({name: st.text(max_size=3) if name in IDENTITIES else SMALL for name in required}),
    )


CONTEXTS = st.fixed_dictionaries(
    {name: st.lists(records(required), max_size=2) for name, required in REQUIRED_KEYS.items()}
    | {"metadata": st.dictionaries(st.text(), SMALL, max_size=4)}
    | {name: st.none() | st.text() for name in SCALARS},
    optional={"something_newer": SMALL},
)


@given(CONTEXTS)
def test_every_context_survives_the_round_trip_with_duplicates_and_empty_values(context: dict[str, Any]) -> None:
    assert read_context(json.loads(json.dumps(context)), source="c.json") == context


@given(SMALL | st.dictionaries(st.sampled_from([*REQUIRED_KEYS, "metadata", *SCALARS]), SMALL | st.lists(SMALL, max_size=2)))
def test_any_json_ends_in_a_context_or_in_problems_with_file_and_path(data: Any) -> None:
    found = problems_of(lambda: read_context(data, source="c.json"))
    assert all(problem.file == "c.json" and (problem.path or "").startswith("$") for problem in found)


def test_all_problems_of_a_context_are_found_at_once() -> None:
    with pytest.raises(ProblemsError) as error:
        read_context({"deployed_sandboxes": [{"sandbox_name": None}, 3], "metadata": [], "agent_model": 1}, source="c.json")
    assert [problem.path for problem in error.value.problems] == [
        "$.deployed_sandboxes[0]",
        "$.deployed_sandboxes[0]",
        "$.deployed_sandboxes[0].sandbox_name",
        "$.deployed_sandboxes[1]",
        "$.metadata",
        "$.agent_model",
    ]


@pytest.mark.parametrize(
    ("metadata", "path"),
    [
        ({"verifications": 5}, "$.metadata.verifications"),
        ({"verifications": {"v": {}, "w": 5, "x": None}}, "$.metadata.verifications.w"),
        ({"script_results": []}, "$.metadata.script_results"),
        ({"retry_resets": {"a": 1}}, "$.metadata.retry_resets"),
        ({"retry_resets": [{}, "x"]}, "$.metadata.retry_resets[1]"),
        ({"torn_down_sandbox_ids": "local-1"}, "$.metadata.torn_down_sandbox_ids"),
        ({"torn_down_sandbox_ids": ["local-1", 5]}, "$.metadata.torn_down_sandbox_ids"),
        ({"user_overrides": {"sandbox": 5, "ttl_seconds": 5}}, "$.metadata.user_overrides.sandbox"),
        ({"user_overrides": {"step_params": 5}}, "$.metadata.user_overrides.step_params"),
        ({"user_overrides": {"step_params": {"a": {}, "b b": 5, "c": None}}}, '$.metadata.user_overrides.step_params["b b"]'),
    ],
)
def test_metadata_that_steps_and_teardown_read_has_its_shape(metadata: dict[str, Any], path: str) -> None:
    (problem,) = problems_of(lambda: read_context({"metadata": {**metadata, "anything": [1]}}, source="c.json"))
    assert problem.path == path


def test_secret_keys_are_stripped_at_any_depth_and_references_stay() -> None:
    context = new_context(
        litellm_api_key="sk-1",
        deep=[{"remote_tokens": {"a": "b"}, "judge_litellm_api_key": "env:KEY", "usersim_api_key": "secret:K?fallback"}],
        user_overrides={"litellm_api_key": "secret:K", "model": "m"},
        _heartbeat_fn=print,
    )
    assert safe_context(context)["metadata"] == {
        "deep": [{"judge_litellm_api_key": "env:KEY"}],
        "user_overrides": {"litellm_api_key": "secret:K", "model": "m"},
    }


@given(
    st.recursive(JSON_VALUES, lambda inner: st.dictionaries(st.sampled_from([*sorted(SECRET_KEYS), "a"]), inner, max_size=3), max_leaves=8)
)
def test_stripping_changes_nothing_in_place_and_leaves_no_secret(value: Any) -> None:
    context = new_context(value=value)
    before = copy.deepcopy(context)
    safe = safe_context(context)
    assert context == before
    assert safe_context(safe) == safe

    def keys(item: Any) -> list[tuple[str, Any]]:
        if isinstance(item, dict):
            return [pair for key, member in item.items() for pair in ((key, member), *keys(member))]
        return [pair for member in item for pair in keys(member)] if isinstance(item, list) else []

    assert all(isinstance(member, str) and "?" not in member for key, member in keys(safe) if key in SECRET_KEYS)


def test_parts_without_secrets_are_shared_not_copied() -> None:
    big = {"rows": [{"n": i} for i in range(1000)]}
    assert safe_context(new_context(big=big))["metadata"]["big"] is big

"""A2A and the agents' extensions as values: both spellings, all states, contracts of cards, endings, trajectories."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from agent_env_sdk.wire import a2a_v1
from agent_env_sdk.wire.a2a import (
    AgentCard,
    Interface,
    Message,
    StatusUpdate,
    Task,
    TaskState,
    TaskStatus,
    Usage,
    ending_parts,
    interfaces,
    read_ending,
    read_update,
    rpc_address,
)
from agent_env_sdk.wire.agent_bodies import ChangelogApply, McpAdd, PeersSet, SkillBundle, SkillInline
from agent_env_sdk.wire.agent_extensions import (
    AGENT_CONFIG,
    MCP_CONFIG,
    SNAPSHOT,
    STANDARDS,
    TRAJECTORY,
    TRIGGERS,
    advertised,
    card_request_accepts,
    contract,
    endpoint_of,
    supported_config,
)
from agent_env_sdk.wire.parts import DataPart, FileBytes, FilePart, FileUri, TextPart
from agent_env_sdk.wire.trajectory import (
    EndEvent,
    MessageEvent,
    ReasoningEvent,
    ToolCallEvent,
    ToolResultEvent,
    UsageEvent,
    atif,
    dump_event,
    events_adapter,
)
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

OLD_CARD = {
    "name": "old", "description": "d", "version": "1", "url": "/a2a", "protocolVersion": "0.3.0", "preferredTransport": "JSONRPC",
    "defaultInputModes": ["text"], "defaultOutputModes": ["text"], "skills": [],
    "capabilities": {"streaming": False, "extensions": [
        {"uri": AGENT_CONFIG, "config": {"endpoint": "/conf", "methods": {"set": {"method": "POST", "request": {"supported": ["model"]}}}}},
    ]},
}  # fmt: skip
NEW_CARD = {
    "name": "new", "supportedInterfaces": [
        {"url": "https://x.example/rpc", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"},
        {"url": "https://x.example/grpc", "protocolBinding": "GRPC", "protocolVersion": "1.0"},
    ],
}  # fmt: skip

texts = st.text(min_size=1, max_size=8)
parts = st.lists(
    st.one_of(
        st.builds(TextPart, text=texts, metadata=st.none() | st.dictionaries(texts, st.integers(), min_size=1, max_size=2)),
        st.builds(DataPart, data=st.dictionaries(texts, st.integers() | texts, max_size=3)),
        st.builds(FilePart, file=st.builds(FileBytes, bytes=st.just("aGk="), mime_type=st.none() | texts, name=st.none() | texts)),
        st.builds(FilePart, file=st.builds(FileUri, uri=st.just("https://x.example/f"), name=st.none() | texts)),
    ),
    min_size=1,
    max_size=4,
)
messages = st.builds(
    Message,
    message_id=texts,
    role=st.sampled_from(["user", "agent"]),
    parts=parts,
    context_id=st.none() | texts,
    task_id=st.none() | texts,
)
tasks = st.builds(
    Task,
    id=texts,
    context_id=texts,
    status=st.builds(TaskStatus, state=st.sampled_from(TaskState), message=st.none() | messages),
    history=st.none() | st.lists(messages, min_size=1, max_size=2),
)


@given(tasks)
def test_a_task_survives_both_spellings(task: Task) -> None:
    assert read_update(json.loads(json.dumps(task.to_json()))) == task
    assert a2a_v1.read(json.loads(json.dumps(a2a_v1.dump(task)))) == task
    assert a2a_v1.read(json.loads(json.dumps(a2a_v1.dump_wrapped(task)))) == task


@given(messages)
def test_a_message_survives_both_spellings(message: Message) -> None:
    assert Message.model_validate(a2a_v1.read_message(a2a_v1.dump_message(message))) == message


@pytest.mark.parametrize("state", TaskState)
def test_a_streamed_state_says_whether_more_follows(state: TaskState) -> None:
    update = StatusUpdate(task_id="t", context_id="c", status=TaskStatus(state=state), final=state.settled)
    assert a2a_v1.read(a2a_v1.dump_wrapped(update)) == update
    assert state.terminal is (state.value in {"completed", "failed", "canceled", "rejected"})


@pytest.mark.parametrize(
    "wrong",
    [
        {"message": {"messageId": "1", "role": "ROLE_QUEEN", "parts": []}},
        {"message": {"messageId": "1", "role": "ROLE_USER", "parts": [{}]}},
        {"message": {"messageId": "1", "role": "ROLE_USER", "parts": ["x"]}},
        {"message": {"messageId": "", "role": "ROLE_USER", "parts": []}},
        [],
        {},
    ],
)
def test_what_is_not_of_the_wire_is_a_value_error(wrong: object) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - pydantic's own is one as well
        a2a_v1.read(wrong)


def test_cards_of_both_versions_say_where_to_speak() -> None:
    assert interfaces(AgentCard.model_validate(OLD_CARD)) == [Interface("/a2a", "0.3.0")]
    assert interfaces(AgentCard.model_validate(NEW_CARD)) == [Interface("https://x.example/rpc", "1.0")]
    assert [each.is_v1 for each in interfaces(AgentCard.model_validate({**OLD_CARD, **NEW_CARD}))] == [True, False]


@pytest.mark.parametrize(
    ("url", "path"),
    [("/a2a", "/a2a"), ("http://0.0.0.0:8000/rpc", "/rpc"), ("https://host", "/a2a"), ("https://host/", "/a2a"), ("/", "/")],
)
def test_only_the_path_of_a_cards_url_counts(url: str, path: str) -> None:
    assert rpc_address("https://tunnel.example/prefix/", url) == f"https://tunnel.example/prefix{path}"


def test_older_cards_say_config_for_params() -> None:
    card = AgentCard.model_validate(OLD_CARD)
    assert supported_config(card) == {"model"}
    assert endpoint_of(card, AGENT_CONFIG, "set") == "/conf"
    assert endpoint_of(card, MCP_CONFIG, "add") == "/ext/mcp-config"
    assert endpoint_of(card, SNAPSHOT, "apply-changelog") == "/ext/snapshot/changelog"
    assert endpoint_of(card, TRIGGERS, "decide") == "/ext/triggers/decide"


def test_an_entry_of_the_card_tells_fields_and_paths_as_deployed_clients_read_them() -> None:
    assert advertised(MCP_CONFIG, ["add", "list"]).params == {
        "endpoint": "/ext/mcp-config",
        "methods": {
            "add": {"method": "POST", "request": {"required": ["url"], "optional": ["headers", "name"]}},
            "list": {"method": "GET", "response": {"required": ["mcp_servers"]}},
        },
    }
    decide = advertised(TRIGGERS, ["decide"]).params
    assert decide is not None
    assert decide["methods"]["decide"]["endpoint"] == "/ext/triggers/decide"
    assert decide["methods"]["decide"]["request"] == {"required": ["turn"], "optional": ["solver_message", "context_id", "env_triggers"]}
    with pytest.raises(LookupError):
        advertised(MCP_CONFIG, ["forget"])


def test_a_contract_accepts_exactly_its_variants() -> None:
    skills = contract((SkillInline, SkillBundle))
    assert skills == {"required": ["name", "description"], "oneOf": [{"required": ["skill_md"]}, {"required": ["skill_bundle"]}]}
    assert card_request_accepts(skills, ["name", "description", "skill_md"])
    assert not card_request_accepts(skills, ["name", "description"])
    assert not card_request_accepts(skills, ["name", "description", "skill_md", "skill_bundle"])
    trajectory = contract(STANDARDS[TRAJECTORY].operations[0].requests)
    for fields in (["task_id"], ["context_id", "objects"], ["task_id", "after"], ["context_id", "after", "limit"]):
        assert card_request_accepts(trajectory, fields)
    for fields in (["task_id", "context_id"], ["after"], ["task_id", "after", "objects"]):
        assert not card_request_accepts(trajectory, fields)
    assert card_request_accepts({"supported": ["model"]}, ["model"])
    assert not card_request_accepts({"supported": ["model"]}, ["role"])


@pytest.mark.parametrize(
    ("body", "value"),
    [
        (McpAdd, {"url": ""}),
        (McpAdd, {"url": "http://x", "other": 1}),
        (SkillInline, {"name": "../x", "description": "", "skill_md": "x"}),
        (PeersSet, {"peers": [{"name": "a", "url": "u"}, {"name": "a", "url": "v"}]}),
    ],
)
def test_requests_are_closed_and_checked(body: type, value: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        body.model_validate(value)


def test_increments_must_increase() -> None:
    read = {"kind": "http-get", "url": "https://x.example/o", "expires_at": "2026-01-01T00:00:00Z"}
    entry = {"object": {"media_type": "application/gzip", "max_bytes": 9, "read": read}}
    assert len(ChangelogApply.model_validate({"increments": [{"sequence": 0, **entry}, {"sequence": 4, **entry}]}).increments) == 2
    with pytest.raises(ValidationError):
        ChangelogApply.model_validate({"increments": [{"sequence": 4, **entry}, {"sequence": 4, **entry}]})


def test_headers_with_keys_are_not_shown() -> None:
    assert "hush" not in repr(McpAdd(url="http://x", headers={"Authorization": "hush"}))


def test_an_ending_is_read_from_the_last_words_and_the_data() -> None:
    told = ending_parts(Usage(tool_call_count=2, input_tokens=5, cost_usd=0.5), "agent_error", "no.way", "it can't be done")
    ending = read_ending([TextPart(text="first"), TextPart(text="last"), DataPart(data={"structured_output": {"a": 1}}), *told])
    assert (ending.text, ending.structured_output, ending.error_code) == ("last", {"a": 1}, "no.way")
    assert ending.usage == Usage(tool_call_count=2, input_tokens=5, cost_usd=0.5)
    assert read_ending([DataPart(data={"tool_call_count": 3})]).usage.tool_call_count == 3
    assert read_ending([DataPart(data={"usage": {"input_tokens": 3.0, "output_tokens": 1.5}})]).usage == Usage(input_tokens=3)
    assert read_ending([DataPart(data={"usage": "much", "error_code": 7, "tool_call_count": True})]) == read_ending([])
    assert ending_parts(Usage()) == []


def test_events_fold_into_steps_of_an_open_standard() -> None:
    events = [
        MessageEvent(source="user", text="count"),
        ReasoningEvent(text="hm"),
        ToolCallEvent(call_id="1", name="shell", arguments={"command": "ls"}),
        UsageEvent(input_tokens=10, output_tokens=2),
        ToolResultEvent(call_id="1", content="a b"),
        MessageEvent(text="two"),
        UsageEvent(input_tokens=20, output_tokens=3),
        EndEvent(state="completed"),
    ]
    assert events_adapter.validate_python([dump_event(event) for event in events]) == events
    document = atif(events, session_id="c", agent_name="a", agent_version="1", model="m")
    assert [step["source"] for step in document["steps"]] == ["user", "agent", "agent"]
    assert document["steps"][1]["observation"] == {"results": [{"source_call_id": "1", "content": "a b"}]}
    assert document["final_metrics"] == {"total_prompt_tokens": 30, "total_completion_tokens": 5, "total_cost_usd": 0.0, "total_steps": 3}


def test_the_wire_is_light() -> None:
    script = (
        "import sys, agent_env_sdk.wire.agent_extensions, agent_env_sdk.wire.trajectory, agent_env_sdk.wire.a2a_v1; print(*sys.modules)"
    )
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert not {"httpx", "mcp", "starlette", "uvicorn", "a2a"} & set(loaded)

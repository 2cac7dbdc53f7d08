"""Arguments, results, schemas and annotations are the same through the gateway and direct, to the byte (must-show 4, I13)."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent_env.gateway import jsontext
from tests.gateway.parts import Client, Raw, agent, gateway, raw_server
from tests.gateway.raw_server import tool

EXAMPLES = 500
SCHEMA = {
    "type": "object",
    "properties": {"_x": {"type": "string"}, "model_config": {"type": "string"}, "größe": {"enum": [1, None, "é", "\u2028"]}},
    "additionalProperties": {"anyOf": [{"type": "string"}, {}]},
    "$defs": {"a": {"const": 1e400}},
}
TOOLS = [
    tool(
        "echo",
        title="Écho",
        inputSchema={**SCHEMA, "$defs": {}},
        outputSchema={"type": "object"},
        annotations={"readOnlyHint": False, "destructiveHint": True, "title": "x", "own": [1, {"a": None}]},
        icons=[{"src": "data:,x"}],
        _meta={"own/key": {"deep": [[[]]]}},
        execution={"taskSupport": "optional"},
    ),
    tool("_under"),
    tool("üñí"),
    tool("x" * 128),
]


@pytest.fixture(scope="module")
def echo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Client, Client, Raw]]:
    with (
        raw_server("echo", tools=TOOLS, behaviour={"echo": "raw", "keep_raw": False}) as server,
        gateway(tmp_path_factory.mktemp("echo"), server) as live,
        agent(live) as through,
        Client(f"{server.url}/mcp") as direct,
    ):
        yield through, direct, server


KEYS = st.text(max_size=12) | st.sampled_from(
    ["_x", "__proto__", "model_config", "name", "arguments", "_meta", "self", "id", "method", "NAME"]
)
TEXTS = st.text(max_size=40) | st.sampled_from(
    ['{"a":1}', "[1,2]", "null", "true", "1e5", '"quoted"', "", "\u0000", "\u2028\u2029", "\ud800", "\U0001f600", "data: x\n\nevent: y"]
)
NUMBERS = st.integers(-(10**30), 10**30) | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(KEYS, inner, max_size=5),
    max_leaves=25,
)


def spelled(value: object, seed: int) -> str:
    """The value as one of the texts that mean it."""
    source = random.Random(seed)
    indent = source.choice([None, None, 2, "\t"])
    separators = source.choice([None, (",", ":"), (" , ", " :  ")])
    text = json.dumps(value, indent=indent, separators=separators, ensure_ascii=source.random() < 0.5)
    try:
        text.encode()
    except UnicodeEncodeError:  # half a pair has no other spelling
        text = json.dumps(value, indent=indent, separators=separators)
    if source.random() < 0.3:
        text = text.replace("e+", "E+").replace("/", "\\/")
    return text


@settings(max_examples=EXAMPLES, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.dictionaries(KEYS, VALUES, max_size=6), st.integers(0, 10**6))
def test_random_arguments_and_results_are_the_same_through_the_gateway_and_direct_i13(
    echo: tuple[Client, Client, Raw], arguments: dict[str, object], seed: int
) -> None:
    through, direct, _ = echo
    text = spelled(arguments, seed)
    ours, theirs = through.call_raw("echo", text), direct.call_raw("echo", text)
    assert ours == theirs
    assert json.loads(ours)["result"]["structuredContent"]["raw"] == text


@pytest.mark.parametrize(
    "text",
    [
        '{"deep":' + "[" * 900 + "]" * 900 + "}",
        '{"long":"' + "x" * 3_000_000 + '"}',
        '{"many":[' + ",".join(f'"{n}"' for n in range(100_000)) + "]}",
        '{"number":1.0000000000000000000000000000000000001,"zero":-0.0,"big":123456789012345678901234567890}',
        '{"twice":1,"twice":2}',
        "{}",
        "{  }",
    ],
    ids=["deep", "long", "many", "numbers", "repeated key", "empty", "spaces"],
)
def test_large_deep_and_odd_arguments_are_the_same_through_the_gateway_and_direct(echo: tuple[Client, Client, Raw], text: str) -> None:
    through, direct, _ = echo
    assert through.call_raw("echo", text) == direct.call_raw("echo", text)


def test_what_tools_say_of_themselves_is_the_same_through_the_gateway_and_direct(echo: tuple[Client, Client, Raw]) -> None:
    through, direct, _ = echo
    message = '{"jsonrpc":"2.0","id":1,"method":"tools/list"}'
    ours, theirs = through.send(message).text, direct.send(message).text
    assert listed(ours) == listed(theirs)
    assert len(listed(ours)) == len(TOOLS)


def listed(answer: str) -> list[str]:
    start = answer.index('"tools"') + len('"tools":')
    return [answer[begin:end] for begin, end in jsontext.array_items(answer, start)]


@pytest.mark.parametrize("request_id", ['"a"', "7", '"\\u00e9"', "-1", '"1"', "9007199254740993"])
def test_a_request_s_id_comes_back_as_it_was_written(echo: tuple[Client, Client, Raw], request_id: str) -> None:
    through, _, _ = echo
    assert through.call_raw("echo", "{}", request_id).startswith(f'{{"jsonrpc":"2.0","id":{request_id},')


def test_answers_as_events_are_the_same_bytes(tmp_path: Path) -> None:
    with (
        raw_server("sse", tools=[tool("echo")], behaviour={"echo": "raw", "sse": "all"}) as server,
        gateway(tmp_path, server) as live,
        agent(live) as through,
        Client(f"{server.url}/mcp") as direct,
    ):
        text = '{"a": "data: x\\n\\n", "b":[1.50, -0]}'
        ours, theirs = json.loads(through.call_raw("echo", text)), json.loads(direct.call_raw("echo", text))
        assert ours["result"] == theirs["result"]
        assert ours["result"]["structuredContent"]["raw"] == text

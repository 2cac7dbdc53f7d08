"""The card: what is read of other people's cards, what ours look like on the wire, and where its paths lead."""

from __future__ import annotations

import pytest
from agent_env_sdk.wire import Capabilities, EnvironmentCard, Extension, Interface, Tool
from agent_env_sdk.wire.card import base_of, find_child, find_extension, find_method, join, mcp_path, methods, operations
from pydantic import ValidationError


def test_a_card_is_dumped_with_its_nulls_and_the_wires_names() -> None:
    card = EnvironmentCard(
        name="tickets",
        additional_interfaces=[Interface(url="/mcp", transport="mcp")],
        capabilities=Capabilities(
            operations=["data/get"], tools=[Tool(name="t", input_schema={"type": "object"})], extensions=[Extension(uri="urn:x")]
        ),
    )
    assert card.to_json() == {
        "name": "tickets",
        "protocolVersion": "1.0",
        "url": "/agentenv",
        "preferredTransport": "JSONRPC",
        "additionalInterfaces": [{"url": "/mcp", "transport": "mcp"}],
        "capabilities": {
            "extensions": [{"uri": "urn:x", "description": None, "params": None, "required": None}],
            "tools": [{"name": "t", "description": None, "inputSchema": {"type": "object"}}],
            "operations": ["data/get"],
        },
        "children_environments": None,
    }
    assert EnvironmentCard.model_validate(card.to_json()) == card


@pytest.mark.parametrize(
    "sparse",
    [{"name": "old"}, {"name": "old", "capabilities": None, "additionalInterfaces": None}, {"name": "old", "future": {"field": 1}}],
    ids=["nothing but a name", "nulls", "a field of a later version"],
)
def test_i18_older_and_newer_cards_are_read_as_what_they_say(sparse: dict) -> None:
    card = EnvironmentCard.model_validate(sparse)
    assert operations(card) == ("data/reset", "data/add", "data/get")
    assert mcp_path(card) == "/mcp"
    assert find_extension(card, "urn:x") is None


@pytest.mark.parametrize("wrong", [{}, {"name": ""}, {"name": None}, {"name": 3}, [], "card"])
def test_what_has_no_name_is_no_card(wrong: object) -> None:
    with pytest.raises(ValidationError):
        EnvironmentCard.model_validate(wrong)


def test_an_empty_list_of_operations_means_none() -> None:
    assert operations(EnvironmentCard(name="x", capabilities=Capabilities(operations=[]))) == ()


@pytest.mark.parametrize(
    ("interfaces", "path"),
    [
        ([], "/mcp"),
        ([("/a", "sse"), ("/v2/mcp", "mcp"), ("/b", "mcp")], "/v2/mcp"),
        ([("/a", "MCP")], "/mcp"),
        ([("", "mcp"), ("/second", "mcp")], "/second"),
    ],
)
def test_the_first_interface_that_says_mcp_and_has_an_address_is_taken(interfaces: list, path: str) -> None:
    card = EnvironmentCard(name="x", additional_interfaces=[Interface(url=url, transport=transport) for url, transport in interfaces])
    assert mcp_path(card) == path


@pytest.mark.parametrize(
    ("base", "path", "url"),
    [
        ("http://h:1", "/mcp", "http://h:1/mcp"),
        ("http://h:1/", "/mcp", "http://h:1/mcp"),
        ("http://h/sandbox/7", "/mcp", "http://h/sandbox/7/mcp"),
        ("http://h/sandbox/7", "mcp", "http://h/sandbox/7/mcp"),
    ],
)
def test_paths_are_concatenated_so_that_a_prefix_survives(base: str, path: str, url: str) -> None:
    assert join(base, path) == url


def test_a_cards_own_address_gives_the_base() -> None:
    assert base_of("https://h/sandbox/7/.well-known/agent-env.json") == "https://h/sandbox/7"


def test_a_leaf_is_its_own_child_and_a_composed_card_names_its_children() -> None:
    leaf = EnvironmentCard(name="a")
    assert find_child(leaf, "a") is leaf
    assert find_child(leaf, "b") is None
    composed = EnvironmentCard(name="env", children_environments=[leaf])
    assert find_child(composed, "a") == leaf
    assert find_child(composed, "env") is None


def test_methods_take_their_own_endpoint_and_verb_else_the_extensions_and_post() -> None:
    extension = Extension(
        uri="urn:x",
        params={"endpoint": "/e", "methods": {"one": {}, "two": {"method": "get", "endpoint": "/two", "request": {"type": "object"}}}},
    )
    assert [(m.name, m.verb, m.endpoint) for m in methods(extension)] == [("one", "POST", "/e"), ("two", "GET", "/two")]
    card = EnvironmentCard(name="x", capabilities=Capabilities(extensions=[extension]))
    assert find_method(card, "urn:x").name == "one"
    assert find_method(card, "urn:x", "two").request == {"type": "object"}


def test_an_extension_without_methods_is_one_post_and_a_declaration_is_none() -> None:
    assert [(m.name, m.verb, m.endpoint) for m in methods(Extension(uri="u", params={"endpoint": "/e"}))] == [(None, "POST", "/e")]
    assert list(methods(Extension(uri="u", params={"add": []}))) == []
    assert list(methods(Extension(uri="u"))) == []


def test_what_is_not_advertised_is_named_with_what_is() -> None:
    card = EnvironmentCard(
        name="x", capabilities=Capabilities(extensions=[Extension(uri="urn:x", params={"endpoint": "/e", "methods": {"one": {}}})])
    )
    with pytest.raises(LookupError, match="x does not advertise the extension urn:y"):
        find_method(card, "urn:y")
    with pytest.raises(LookupError, match="no method 'three'; it has one"):
        find_method(card, "urn:x", "three")

"""Parts, grants, JSON-RPC, errors, manifests and the fit check: the wire's values, held to its tables."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime
from typing import Any

import pytest
from agent_env_sdk.wire import (
    AgentEnvError,
    DataPart,
    FileBytes,
    FilePart,
    FileUri,
    IntakeDeclaration,
    IntakeFormat,
    ReadObject,
    RpcError,
    TextPart,
    WriteNamespaceGrant,
    dump_parts,
    misfits,
    parts_adapter,
    uploaded_part,
    uploaded_path,
)
from agent_env_sdk.wire.errors import read_error
from agent_env_sdk.wire.manifest import Action, Entity, InterfaceManifest, Operation, compatible
from agent_env_sdk.wire.names import normal_role
from agent_env_sdk.wire.rpc import failure, invalid_params, method_not_found, operation_failed, read_answer, read_request
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

GRANT: dict[str, Any] = {
    "root_path": "exports/7",
    "expires_at": "2030-01-01T00:00:00Z",
    "max_objects": 1,
    "max_object_bytes": 10,
    "max_total_bytes": 10,
    "write": {
        "kind": "http-post-policy",
        "url": "https://store/x",
        "fields": {"policy": "secret-policy"},
        "path_field": "key",
        "file_field": "file",
    },
}


def test_the_wire_costs_neither_mcp_nor_a_server_nor_a_client() -> None:
    code = "import sys, agent_env_sdk.wire as w; print(sorted({'mcp', 'starlette', 'uvicorn', 'httpx'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


@pytest.mark.parametrize(
    ("part", "wire"),
    [
        (TextPart(text="a"), {"kind": "text", "text": "a"}),
        (DataPart(data={"a": None}), {"kind": "data", "data": {"a": None}}),
        (
            FilePart(file=FileBytes(bytes="aGk=", mime_type="text/plain")),
            {"kind": "file", "file": {"bytes": "aGk=", "mimeType": "text/plain"}},
        ),
        (FilePart(file=FileUri(uri="file:///data/x", name="x")), {"kind": "file", "file": {"uri": "file:///data/x", "name": "x"}}),
    ],
    ids=["text", "data", "inline file", "addressed file"],
)
def test_parts_cross_the_wire_without_what_is_not_set(part: Any, wire: dict) -> None:
    assert dump_parts([part]) == [wire]
    assert dump_parts(parts_adapter.validate_python([wire])) == [wire]


@pytest.mark.parametrize("wrong", [{"kind": "video"}, {"text": "no kind"}, {"kind": "data", "data": [1]}, {"kind": "file", "file": {}}])
def test_what_is_no_part_is_refused(wrong: dict) -> None:
    with pytest.raises(ValidationError):
        parts_adapter.validate_python([wrong])


def test_i09_an_upload_is_marked_by_its_path() -> None:
    part = uploaded_part("tables/a.json", name="a.json", mime_type="application/json")
    assert dump_parts([part]) == [
        {
            "kind": "file",
            "file": {"uri": "tables/a.json", "name": "a.json", "mimeType": "application/json"},
            "metadata": {"urn:agentenv:data-objects/v1": {"path": "tables/a.json"}},
        }
    ]
    assert uploaded_path(part) == "tables/a.json"
    assert uploaded_path(TextPart(text="x")) is None
    assert uploaded_path(FilePart(file=FileUri(uri="x"))) is None


@pytest.mark.parametrize("path", ["", "/a", "a//b", "a/", "./a", "a/../b", "..", "a\\b", None, 3])
def test_a_path_that_could_leave_the_granted_root_is_refused(path: Any) -> None:
    with pytest.raises(ValueError, match="relative"):
        uploaded_path(FilePart(file=FileUri(uri="x"), metadata={"urn:agentenv:data-objects/v1": {"path": path}}))


def test_a_grant_shows_neither_its_address_nor_its_form() -> None:
    grant = WriteNamespaceGrant.model_validate(GRANT)
    assert grant.expires_at == datetime(2030, 1, 1, tzinfo=UTC)
    assert "secret-policy" not in repr(grant)
    assert "https://store" not in repr(grant)


@pytest.mark.parametrize(
    "change",
    [
        {"extra": 1},
        {"root_path": "../up"},
        {"expires_at": "2030-01-01T00:00:00+01:00"},
        {"expires_at": "2030-01-01T00:00:00"},
        {"max_objects": 0},
        {"max_objects": "1"},
        {"max_objects": True},
        {"write": {**GRANT["write"], "url": "http://store/x"}},
        {"write": {**GRANT["write"], "kind": "http-put"}},
    ],
    ids=str,
)
def test_grants_are_closed_and_strict(change: dict) -> None:
    with pytest.raises(ValidationError):
        WriteNamespaceGrant.model_validate({**GRANT, **change})


def test_an_object_larger_than_its_limit_is_refused_before_it_is_read() -> None:
    read = {"kind": "http-get", "url": "https://h/x", "expires_at": "2030-01-01T00:00:00Z"}
    ReadObject.model_validate({"media_type": "text/csv", "max_bytes": 5, "size_bytes": 5, "sha256": "0" * 64, "read": read})
    for wrong in ({"size_bytes": 6}, {"sha256": "A" * 64}, {"media_type": "text/csv; charset=utf-8"}):
        with pytest.raises(ValidationError):
            ReadObject.model_validate({"media_type": "text/csv", "max_bytes": 5, "read": read, **wrong})


@pytest.mark.parametrize(
    ("body", "code", "message", "request_id"),
    [
        (b"{", -32700, "parse error", None),
        (b"\xff", -32700, "parse error", None),
        (b"[" * 100_000, -32700, "parse error", None),
        (b"", -32600, "invalid request", None),
        (b"[]", -32600, "invalid request", None),
        (b'{"jsonrpc":"1.0","id":4,"method":"data/get"}', -32600, "invalid request", 4),
        (b'{"jsonrpc":"2.0","id":"a"}', -32600, "invalid request", "a"),
        (b'{"jsonrpc":"2.0","id":5,"method":"data/add","params":[1]}', -32602, "invalid_request", 5),
    ],
)
def test_i03_what_is_no_request_is_answered_with_the_wires_code_and_text(body: bytes, code: int, message: str, request_id: Any) -> None:
    with pytest.raises(RpcError) as refused:
        read_request(body)
    assert (refused.value.code, refused.value.message, refused.value.request_id) == (code, message, request_id)


def test_i03_absent_params_are_empty() -> None:
    assert read_request(b'{"jsonrpc":"2.0","id":1,"method":"data/get"}').params == {}
    assert read_request(b'{"jsonrpc":"2.0","id":1,"method":"data/get","params":null}').params == {}


def test_i03_errors_have_the_wires_bodies() -> None:
    assert failure(1, method_not_found("data/x")) == {
        "jsonrpc": "2.0",
        "id": 1,
        "error": {"code": -32601, "message": "method not found: data/x"},
    }
    assert failure(2, invalid_params("why"))["error"] == {"code": -32602, "message": "invalid_request", "data": {"detail": "why"}}
    assert failure(3, operation_failed("data/add", "boom"))["error"] == {"code": -32000, "message": "boom", "data": {"code": "add_failed"}}


def test_answers_are_read_back_with_their_code() -> None:
    assert read_answer({"jsonrpc": "2.0", "id": 1, "result": {}}) == {}
    with pytest.raises(RpcError) as failed:
        read_answer(failure(1, operation_failed("data/get", "boom")))
    assert (failed.value.code, failed.value.data) == (-32000, {"code": "get_failed"})
    for odd in (None, [], {"id": 1}, "x"):
        with pytest.raises(ValueError, match="not a JSON-RPC"):
            read_answer(odd)


@given(
    st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner))
)
def test_any_json_that_is_no_request_is_refused_and_nothing_else_happens(value: Any) -> None:
    with pytest.raises(RpcError) as refused:
        read_request(json.dumps(value).encode())
    assert refused.value.code in {-32600, -32602}


@pytest.mark.parametrize(
    ("body", "fields"),
    [
        (AgentEnvError("full", "no room", hint="wait").body(), ("full", "no room", False, "no", "wait")),
        ({"error": "text alone"}, ("http_502", "text alone", False, "unknown", None)),
        ({"error": {"code": "x", "applied": "maybe"}}, ("x", "the server answered with status 502", False, "unknown", None)),
        (None, ("http_502", "the server answered with status 502", False, "unknown", None)),
    ],
)
def test_an_error_body_is_read_as_far_as_it_goes(body: object, fields: tuple) -> None:
    error = read_error(body, 502)
    assert (error.code, error.message, error.retryable, error.applied, error.hint) == fields


@pytest.mark.parametrize(
    ("value", "role"), [(None, None), ("", None), ("  ", None), ("default", None), (" default ", None), (" analyst ", "analyst"), (3, None)]
)
def test_roles_are_stripped_and_default_is_no_role(value: object, role: str | None) -> None:
    assert normal_role(value) == role


@pytest.mark.parametrize(
    ("served", "supported", "fits"),
    [
        ("0.1.0", "0.1.9", True),
        ("0.2.0", "0.1.0", False),
        ("1.9.0", "1.0.0", True),
        ("2.0.0", "1.0.0", False),
        ("1.0", "1.0.0", False),
        (None, "0.1.0", False),
    ],
)
def test_manifests_of_one_major_fit_and_below_one_of_one_minor(served: object, supported: str, fits: bool) -> None:
    assert compatible(served, supported) is fits


def test_a_manifest_is_drawn_as_a_command_line() -> None:
    manifest = InterfaceManifest(
        service="shop",
        entities=[Entity(name="order", operations=[Operation(kind="read", tool="order_get"), Operation(kind="list", tool="order_list")])],
        actions=[Action(tool="close")],
    )
    cli = json.loads(manifest.cli().to_json())
    assert {verb: command["tool"] for verb, command in cli["entities"][0]["commands"].items()} == {"get": "order_get", "list": "order_list"}
    assert cli["actions"][0]["name"] == "close"
    assert (cli["interface"], cli["manifest_version"]) == ("cli", "0.1.0")
    assert InterfaceManifest.model_validate({"service": "s", "later": 1}).entities == []


DECLARED = IntakeDeclaration(add=[IntakeFormat(part="data", format="json", tables={"rows": {"required": ["id"]}, "free": {}})])


@pytest.mark.parametrize(
    ("declaration", "seed", "issues"),
    [
        (None, {"anything": [{}]}, []),
        ({"add": []}, {}, ["data/add does not take inline data in format json; it takes nothing"]),
        ({"add": [{"part": "file", "format": "zip"}]}, {}, ["data/add does not take inline data in format json; it takes file/zip"]),
        ({"add": [{"part": "data", "format": "json"}]}, {"x": [{}]}, []),
        (DECLARED.extension().params, {"rows": [{"id": 1, "more": 2}], "free": [{}], "scalar": 3}, []),
        (DECLARED.extension().params, {"rows": [{"id": 1}, {}]}, ["rows[1] lacks the required id"]),
        (DECLARED.extension().params, {"other": []}, ["collection 'other' is not taken; declared are free, rows"]),
    ],
)
def test_a_seed_is_held_against_what_is_declared_and_nothing_more(declaration: dict | None, seed: dict, issues: list[str]) -> None:
    assert misfits(declaration, seed) == issues

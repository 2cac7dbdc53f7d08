"""The published protocol package drives servers of our SDK, in each environment, through every operation that it has.

The packages live in environments of their own under `interop/` (`make interop`).
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.ports import free_port
from tests.sdk.https import Store

pytestmark = pytest.mark.timeout(300)
ROOT = Path(__file__).parents[2]
ENVIRONMENTS = ("mcp-1-oldest", "mcp-1", "mcp-2")
CLIENTS = {"oldest client": "mcp-1-oldest", "newest client": "mcp-1"}
SERVE = "from tests.sdk.environments import Stock; Stock().serve()"
SEED = {"items": [{"sku": "a", "qty": 3}, {"sku": "b", "qty": 1}]}
SEEN: dict[tuple[str, str], dict[str, Any]] = {}


def python(environment: str) -> str:
    found = ROOT / "interop" / environment / ".venv/bin/python"
    assert found.exists(), f"{found} is not there: run `make interop`"
    return str(found)


@contextmanager
def served(environment: str, certificate: Path, code: str = SERVE) -> Iterator[str]:
    """The SDK's server, on that environment's packages."""
    port = free_port()
    variables = {**os.environ, "MCP_HOST": "127.0.0.1", "MCP_PORT": str(port), "PYTHONPATH": str(ROOT), "SSL_CERT_FILE": str(certificate)}
    with subprocess.Popen([python(environment), "-c", code], env=variables, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        first = process.stderr.readline()
        try:
            assert "serves on port" in first, first + process.stderr.read()
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.communicate(timeout=60)


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    with Store() as opened:
        yield opened


@pytest.fixture(scope="module")
def servers(store: Store) -> Iterator[dict[str, str]]:
    with ExitStack() as held:
        yield {name: held.enter_context(served(name, store.certificate)) for name in ENVIRONMENTS}


@pytest.mark.parametrize("client", ["mcp-1", "mcp-2"])
@pytest.mark.parametrize("server", ENVIRONMENTS)
def test_i17_the_official_client_of_either_generation_speaks_to_a_server_in_any_environment(
    servers: dict[str, str], server: str, client: str
) -> None:
    command = [python(client), str(ROOT / "interop/official.py"), f"{servers[server]}/mcp", "AgentEnv-Role=boss"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=290, check=False)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["protocol"] == "2025-11-25"  # the newest of version 1 of the wire; a client that knows a later one falls back
    count = seen["tools"]["stock_count"]
    assert (count["title"], count["annotations"], count["_meta"]) == ("Count", {"readOnlyHint": True}, {"x.test/kind": "read"})
    assert count["outputSchema"] == {"type": "object", "properties": {"result": {"type": "integer"}}, "required": ["result"]}
    assert "audit" not in seen["tools"]
    assert seen["who"]["structuredContent"]["role"] == "boss"
    assert (seen["refused"]["isError"], seen["refused"]["structuredContent"]["code"]) == (True, "insufficient")
    assert seen["steps"]["content"][0]["text"] == "done"
    assert seen["progress"] == [[1, 2, "step 1"], [2, 2, "step 2"]]


@pytest.fixture(params=[(server, client) for server in ENVIRONMENTS for client in CLIENTS], ids=lambda pair: f"{pair[1]}, {pair[0]}")
def seen(request: pytest.FixtureRequest, servers: dict[str, str], store: Store) -> dict[str, Any]:
    """What the client saw of the server; it is run once for each pair."""
    server, client = request.param
    if (server, client) not in SEEN:
        store.objects.clear()
        form = {"kind": "http-post-policy", "url": f"{store.url}/", "fields": {}, "path_field": "key", "file_field": "content"}
        limits = {"max_objects": 1, "max_object_bytes": 1000, "max_total_bytes": 1000}
        grant = json.dumps({"root_path": "root", "expires_at": "2099-01-01T00:00:00Z", **limits, "write": form})
        command = [python(CLIENTS[client]), str(ROOT / "interop/drive.py"), servers[server], grant]
        done = subprocess.run(command, capture_output=True, text=True, timeout=290, check=False)
        assert done.returncode == 0, done.stderr
        SEEN[server, client] = {**json.loads(done.stdout), "stored": sorted(store.objects)}
    return SEEN[server, client]


def test_i17_the_card_is_read(seen: dict[str, Any]) -> None:
    assert seen["card"] == {
        "v1": True,
        "name": "stock",
        "operations": ["data/reset", "data/add", "data/get"],
        "take": ["sku", "qty"],
        "unknown": None,
        "mcp": "/mcp",
        "intake": {"add": [{"part": "data", "format": "json", "load": "additive"}]},
        "fits": [],
        "misfits": 1,
    }


def test_i17_data_is_reset_added_and_got(seen: dict[str, Any]) -> None:
    assert seen["data"] == [{"items": []}, SEED, SEED]
    add_nothing, add_wrong, unknown = seen["failures"]
    assert add_nothing.startswith("data/add failed: invalid_request ({'detail'")
    assert add_wrong.startswith("data/add failed: ")
    assert add_wrong.endswith("({'code': 'add_failed'})")
    assert unknown == "data/none failed: method not found: data/none (-32601)"


def test_i17_an_export_is_uploaded_under_the_clients_grant(seen: dict[str, Any]) -> None:
    uploads = "uploaded" in seen
    assert seen.get("uploaded", []) == ["stock/items.json"] * uploads
    assert seen["stored"] == ["/root/stock/items.json"] * uploads


def test_i17_extensions_are_invoked_and_their_errors_read(seen: dict[str, Any]) -> None:
    errors, coerced, access, *named = seen["extensions"]
    assert errors == {"tool_name": "t", "rate": 0.5}
    assert coerced == "int:7"
    assert access == {"role": "clerk", "disabled": ["stock_take"], "allowed": []}
    if "errors" in seen:
        assert named == [{"name": "s", "at": "2026-05-01"}]
        assert seen["errors"] == [
            [409, "busy", True, "no"],
            [500, "extension_failed", False, "unknown"],
            [400, "invalid_params", False, "no"],
        ]


def test_i17_manifests_are_read(seen: dict[str, Any]) -> None:
    assert seen["manifest"] == [True, "stock_count", 404]


def test_i17_tools_are_listed_and_called_in_a_role(seen: dict[str, Any]) -> None:
    if "tools" not in seen:
        assert "uploaded" not in seen, "only the oldest client has no session for tools"
        return
    assert {key: seen["tools"][key] for key in ("hidden", "listed", "protocol")} == {"hidden": [], "listed": True, "protocol": "2025-11-25"}
    counted, taken, who, crashed, unknown, unfit = seen["tools"]["calls"]
    assert counted == [False, "3"]
    assert taken == [True, "permission_denied: Tool 'stock_take' is disabled for role 'clerk'"]
    assert who == [False, "{"]
    assert crashed == [True, "Error executing tool crash: boom"]
    assert unknown == [True, "Unknown tool: none"]
    assert unfit[0]
    assert unfit[1].startswith("Error executing tool stock_count: sku: ")


def test_computers_pass_the_published_suite(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    report = tmp_path / "report.json"
    with served("mcp-2", store.certificate, "from tests.sdk.computers import Painted; Painted().serve()") as url:
        suite = [python("mcp-1"), "-m", "agentenv_protocol.computer.conformance", url, "--level", "basic", "--json", str(report)]
        done = subprocess.run(suite, capture_output=True, text=True, timeout=290, check=False)
    assert done.returncode == 0, done.stdout
    assert "painted: 26 passed, 0 failed" in done.stdout

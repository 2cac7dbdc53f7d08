"""What is loaded into an environment goes to the server that it is for, and nowhere else."""

from __future__ import annotations

import json
import shutil

import pytest

from tests.environment_steps.conftest import STOCK, User

pytestmark = pytest.mark.timeout(900)

SERVERS = {"crm": 1, "box": 2}
"""Server → how many of `a` its seed holds. One is called as the sandbox is."""
LARGE = 3_000_000
"""Bytes of padding, so that a seed is a file in the server's container."""
VERIFY = """
import json, os, urllib.request

def ask(url, method, params, session=None):
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()
    headers = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
    answer = urllib.request.urlopen(urllib.request.Request(url, body, {**headers, **({"mcp-session-id": session} if session else {})}))
    text = answer.read().decode()
    data = [line[5:] for line in text.splitlines() if line.startswith("data:")]
    return json.loads(data[-1] if data else text), answer.headers.get("mcp-session-id")

def verify(mcp_url):
    started = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "v", "version": "1"}}
    _, session = ask(mcp_url, "initialize", started)
    rows = []
    for server, count in {"crm": "1", "box": "2"}.items():
        said, _ = ask(mcp_url, "tools/call", {"name": server + "_count", "arguments": {"sku": "a"}}, session)
        text = said["result"]["content"][0]["text"]
        rows.append({"id": server, "result": text == count, "description": text})
    found = [os.path.join(at, name) for top in ("/data", "/tmp/data") for at, _, names in os.walk(top) for name in names]
    return [*rows, {"id": "nothing-on-the-machine", "result": not found, "description": str(found)}]
"""


def test_b15_seeds_go_to_their_servers_and_never_onto_the_machine(user: User) -> None:
    for server, count in SERVERS.items():
        shutil.copytree(STOCK, user.cwd / "b/envs" / server, ignore=shutil.ignore_patterns("__pycache__"))
        user.write(f"b/envs/{server}/env.toml", f'environment_name = "{server}"\n')
        seed = {"items": [{"sku": "a", "qty": count, "padding": "x" * LARGE}]}
        user.write(f"b/artifacts/start/{server}/seed.json", json.dumps(seed))
    user.write("b/envs/office/env.toml", 'type = "multi"\nname = "office"\nmcp_server_envs = ["crm", "box"]\n')
    user.write("b/artifacts/start/artifact.toml", 'type = "environment_universe"\n')
    user.write("b/artifacts/look/verify.py", VERIFY)
    nowhere = "test -z \"$(find /data /tmp/data /loaded -name '*seed*' 2>/dev/null)\""
    steps = [
        {"id": "machine", "type": "deploy_sandbox", "sandbox_name": "box", "sandbox_mode": "vm"},
        {"id": "env", "type": "deploy_env", "env_id": "office"},
        {"id": "load", "type": "load_artifact", "env_id": "office", "artifact_id": "start"},
        {"id": "look", "type": "env_outcome_verifier", "env_id": "office", "file_artifact_id": "look", "verifier_id": "look"},
        {
            "id": "sandbox",
            "type": "verify_sandbox",
            "sandbox_name": "box",
            "verifier_id": "sandbox",
            "criteria": [{"type": "bash_cmd_succeeds", "criterion": "no seed", "bash_cmd": nowhere}],
        },
    ]
    user.write("b/tasks/t.json", json.dumps(steps))
    (run,) = user.scores(user.cwd / "b")
    rows = user.context(run["run_id"])["metadata"].get("verifications", {})
    assert (run["error"], run["scores"]) == (None, {"look": 1.0, "sandbox": 1.0}), rows

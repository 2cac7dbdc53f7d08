"""An agent's environments: their tools under its own role, over a network that both are on or, without any, over its own loopback."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.agent_steps.conftest import AGENT, Operator

pytestmark = pytest.mark.timeout(900)

ECHO = "@local/agent-env/echo-mcp/echo"


def asks(name: str, *actions: dict[str, Any]) -> dict[str, Any]:
    return {"id": f"ask-{name}", "type": "prompt_agent", "agent_name": name, "prompt": json.dumps(list(actions)), "depends_on": [name]}


def test_agents_use_an_environment_under_their_own_roles_with_and_without_a_network(user: Operator) -> None:
    call = {"mcp": "*.echo", "arguments": {"text": "hello there"}}
    environment = {"id": "env", "type": "deploy_env", "env_id": ECHO}
    joined = {**AGENT, "id": "joined", "agent_name": "joined", "env_ids": [ECHO], "role": "worker", "depends_on": ["env"]}
    alone = {**joined, "id": "alone", "agent_name": "alone", "role": "helper", "network_policy": {"mode": "none"}}
    instruction = json.dumps([{"mcp": "*.echo", "arguments": {"text": "as I was told"}}])
    trigger = {
        "id": "reply",
        "when": {"type": "action", "tool": "echo", "where": {"text": {"equals": "hello there"}}},
        "actions": [{"type": "nl", "instruction": instruction}],
    }
    registers = {
        "type": "register_env_triggers",
        "env_id": ECHO,
        "watch_roles": ["worker"],
        "executor_agent_name": "alone",
        "triggers": [trigger],
    }
    looks = {"shell": "env; cat /proc/*/environ 2>/dev/null | tr '\\0' '\\n'; ls /sys/class/net"}
    steps = [
        environment,
        joined,
        alone,
        {**registers, "id": "register", "depends_on": ["joined", "alone"]},
        {**asks("joined", call, {"say": "{last}"}), "depends_on": ["register"]},
        {**registers, "id": "await", "await_fired": ["reply"], "depends_on": ["ask-joined"]},
        asks("alone", call, {"say": "{last}"}, looks, {"say": "{last}"}),
    ]
    (run,) = user.scores(user.bundle("b", t=steps))
    assert run["status"] == "completed", run["error"]
    told = user.told(run["run_id"])
    answers = {each["agent_name"]: each for each in told["prompt_responses"]}
    assert "hello there" in answers["joined"]["response"]
    assert "hello there" in answers["alone"]["response"]
    assert [line for line in answers["alone"]["response"].splitlines() if line in {"eth0", "lo"}] == ["lo"]
    assert {name: each["role"] for name, each in told["agents"].items()} == {"joined": "worker", "alone": "helper"}
    assert told["agents"]["alone"]["network_policy"]["mode"] == "none"
    assert not any("aet_" in path.read_text(errors="replace") for path in user.state.rglob("*") if path.is_file())

"""Agents that are put where something is already: onto a machine, into a container, beside a machine; and another provider."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from agent_env_sdk.testing.models import Call, Scenario, Step

from tests.agent_steps.conftest import MINI, SCRIPTED, Operator
from tests.kits.models import models

pytestmark = pytest.mark.timeout(900)

TINY = Path(__file__).parent / "tiny"
BOX = {"id": "box", "type": "deploy_sandbox", "sandbox_name": "box", "sandbox_mode": "vm"}


def ask(name: str, text: str = "hello") -> dict[str, Any]:
    return {"id": f"ask-{name}", "type": "prompt_agent", "agent_name": name, "prompt": text}


def looks(name: str, command: str) -> dict[str, Any]:
    criteria = [{"type": "bash_cmd_succeeds", "criterion": command, "bash_cmd": command}]
    return {"id": f"v-{name}", "type": "verify_sandbox", "agent_name": name, "verifier_id": name, "base_dir": "/", "criteria": criteria}


def test_agents_stand_on_a_machine_in_a_container_and_beside_a_machine_and_their_steps_act_there(user: Operator) -> None:
    told = json.dumps([{"shell": "hostname"}, {"say": "{last}"}])
    plays = [{"message": "more", "done": False, "mood": "calm"}, {"message": "", "done": True}]
    user_script = json.dumps({"turns": [[{"say": json.dumps(said)}] for said in plays]})
    on_box, tiny = {"sandbox_name": "box"}, {"a2a_agent_id": "tiny"}
    steps = [
        BOX,
        {"id": "job", "type": "run_docker_container", **on_box, "container_name": "job", "image": "python:3.12-slim",
         "command_override": "sleep 1000"},
        {"id": "a", "type": "install_agent", **on_box, **tiny, "agent_name": "a", "workspace_dir": "/app"},
        {"id": "b", "type": "install_agent", **on_box, **tiny, "agent_name": "b", "workspace_dir": "/srv", "container_name": "job"},
        {"id": "c", "type": "deploy_agent", "sandbox_name": "box", "a2a_agent_id": SCRIPTED, "agent_name": "c",
         "env_vars": {"AGENTENV_SCRIPT": user_script}},
        ask("a", "models"), ask("b", "models"), ask("c", told),
        {**ask("a"), "id": "talk", "max_conversation_turns": 5, "user_agent_name": "c"},
        looks("a", "test ! -f /.dockerenv && test -d /tmp/install-agent-a"),
        looks("b", "test -f /.dockerenv && test -d /tmp/install-agent-b"),
        looks("c", "test -f /.dockerenv && test -d /workspace"),
        {"id": "down", "type": "teardown_sandboxes", "agent_names": ["a", "b", "c"]},
        {**looks("a", "true"), "id": "still", "verifier_id": "still"},
    ]  # fmt: skip
    folder = user.bundle("b", t=steps)
    shutil.copytree(TINY, folder / "agents/tiny", ignore=shutil.ignore_patterns("__pycache__"))
    with models({"tiny": Scenario((), auxiliary="from-a-model")}) as server:
        user.env |= {"LITELLM_BASE_URL": server.base, "LITELLM_API_KEY": server.key("tiny")}
        (run,) = user.scores(folder)
    assert (run["status"], run["scores"]) == ("completed", {"a": 1.0, "b": 1.0, "c": 1.0, "still": 1.0}), run["error"]
    context = user.told(run["run_id"])
    *alone, talk = context["prompt_responses"]
    assert [parts and parts[0]["text"] for parts in talk["source_agent_per_turn_prompt_parts"]] == [None, "more"]
    assert context["metadata"]["models"]["user simulator"] == {"talk": None}
    assert context["metadata"]["usersim_turn_outputs"] == {"talk": [{"mood": "calm"}, None]}
    agents, answers = context["agents"], {each["agent_name"]: each["response"] for each in alone}
    # Both were given a token that they ask of whoever speaks to them, and another by which the broker lets them in.
    assert answers["a"].split()[2:] == ["/app", "True", "from-a-model"]
    assert answers["b"].split()[1:] == [agents["b"]["container_id"][:12], "/srv", "True", "from-a-model"]
    assert answers["c"] == agents["c"]["container_id"][:12]
    assert (agents["a"]["on_host"], agents["a"]["installed_container"], agents["a"]["placement"]) == (True, None, "on_machine")
    assert (agents["b"]["on_host"], agents["b"]["installed_container"], agents["b"]["placement"]) == (False, "job", "in_container")


@pytest.mark.slow
@pytest.mark.parametrize("network", ["auto", "machine"])
def test_agents_run_in_containers_without_an_engine_and_ask_models_also_on_this_machines_own_loopback(network: str, user: Operator) -> None:
    config = user.home / "config/agent-env/config.toml"
    config.parent.mkdir(parents=True, exist_ok=True)
    config.write_text(f'[sandbox.providers.rootfs.config]\nnetwork = "{network}"\n')
    agent = {"type": "deploy_agent", "a2a_agent_id": MINI, "sandbox_type": "rootfs"}
    names = ("one", "two")
    steps = [{**agent, "id": name, "agent_name": name} for name in names] + [ask(name) for name in names]
    looking = Step(calls=(Call("shell", {"command": "id -u"}),))
    with models({"s": Scenario((looking, Step("It is me.", last_contains="10001")))}) as server:
        user.env |= {"LITELLM_BASE_URL": server.base, "LITELLM_API_KEY": server.key("s")}
        (run,) = user.scores(user.bundle("b", t=[*steps, looks("one", "test -d /workspace")]), "--model", "m")
    assert (run["status"], run["scores"]) == ("completed", {"one": 1.0}), run["error"]
    told = user.told(run["run_id"])
    assert [each["response"] for each in told["prompt_responses"]] == ["It is me."] * 2
    assert {bool(each.get("shared_loopback")) for each in told["agents"].values()} == {network == "machine"}

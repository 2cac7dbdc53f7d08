"""Runs whose sandbox may reach what its task lists: from the task file to the run's events, through the command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent_env.keeper.client import recorded_owner
from tests.keeper.world import GOOD, web

STEPS = """[
  {{"id": "box", "type": "deploy_sandbox", "sandbox_name": "box", "sandbox_mode": "vm",
    "network_policy": {{"mode": "allowlist", "allow_hosts": ["{host}"]}}}},
  {{"id": "check", "type": "verify_sandbox", "sandbox_name": "box", "criteria": [
    {{"type": "bash_cmd_succeeds", "bash_cmd": "curl -sS http://{host}/ | grep good", "weight": 1}},
    {{"type": "bash_cmd_succeeds", "bash_cmd": "curl -sS http://evil.test/ | grep refused", "weight": 1}}]}}
]"""


class Person:
    """Somebody with a state folder and a configuration of their own."""

    def __init__(self, folder: Path, config: str) -> None:
        self.folder = folder
        self.state = folder / "state/agent-env"
        (folder / "config/agent-env").mkdir(parents=True)
        (folder / "config/agent-env/config.toml").write_text(config)
        self.environ = {
            **{name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ},
            "HOME": str(folder),
            "XDG_STATE_HOME": str(folder / "state"),
            "XDG_CONFIG_HOME": str(folder / "config"),
            "AGENT_ENV_LIMIT_KEEPER_IDLE_SECONDS": "0.5",
        }

    def cli(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "agent_env.cli", *words]
        return subprocess.run(command, check=False, env=self.environ, cwd=self.folder, capture_output=True, text=True, timeout=100)


@pytest.fixture(name="person")
def _person(tmp_path: Path) -> Iterator[Person]:
    tmp_path.chmod(0o755)
    made = Person(tmp_path, '[sandbox.providers.local.config]\nallow_private = ["127.5.0.0/16"]\n')
    yield made
    made.cli("gc", "--all")


def test_a_task_reaches_what_it_lists_and_its_run_says_what_it_was_refused(person: Person) -> None:
    with web(0) as (served,):
        (person.folder / "task.json").write_text(STEPS.format(host=f"{GOOD}:{served.port}"))
        done = person.cli("run", "task.json", "--json", "--keep", "--fail-under", "1")
        assert done.returncode == 0, done.stdout + done.stderr
        run_id = _run_id(json.loads(done.stdout))
        doctor = {check["name"]: check["detail"] for check in json.loads(person.cli("doctor", "--json").stdout)["checks"]}
        again = person.cli("exec", run_id, "--", "curl", "-sS", f"http://{GOOD}:{served.port}/kept")
        events = person.cli("runs", "logs", run_id, "--json").stdout
    assert "carries for local-" in doctor["keeper"]
    assert again.stdout == "good GET /kept 0"
    refused = [event["payload"] for event in json.loads(events)["events"] if event["kind"] == "egress_refused"]
    assert [(event["host"], event["port"]) for event in refused] == [("evil.test", 80)]
    removed = person.cli("gc", "--older-than", "0s")
    assert removed.returncode == 0, removed.stdout + removed.stderr
    assert not list((person.state / "keeper/places").iterdir())


def test_a_task_without_an_allow_list_starts_no_keeper(person: Person) -> None:
    done = person.cli("run", "hello")
    assert done.returncode == 0, done.stdout + done.stderr
    assert not (person.state / "keeper").exists()
    assert recorded_owner(person.state) is None


def _run_id(answer: Any) -> str:
    found = json.dumps(answer)
    return found[found.index("run-") :].split('"')[0]

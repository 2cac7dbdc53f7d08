"""The bundles that ship with agent-env run unattended on a bare machine, to the end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from agent_env.engine.names import ON_ENVIRONMENTS
from agent_env.steps import step_class
from agent_env.steps.registry import BUILT

SHIPPED = Path(str(files("agent_env_bundles")))


def run_bundle(name: str, home: Path, *arguments: str) -> dict[str, Any]:
    """Runs a shipped bundle the way a person does, in a home of its own."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("AGENT_ENV_", "XDG_"))}
    environ |= {"HOME": str(home), "XDG_STATE_HOME": str(home / "state"), "XDG_CONFIG_HOME": str(home / "config")}
    argv = [sys.executable, "-m", "agent_env.cli", *arguments]
    ran = subprocess.run(argv, env=environ, cwd=home, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    assert ran.returncode == 0, ran.stderr
    said: dict[str, Any] = json.loads(ran.stdout)
    return said


def test_hello_runs_to_a_score_of_1(tmp_path: Path) -> None:
    (run,) = run_bundle("hello", tmp_path, "run", "hello", "--json")["runs"]
    assert (run["status"], run["scores"], run["error"]) == ("completed", {"hello": 1.0}, None)


def test_the_tour_runs_every_check_to_1_and_leaves_its_review_alone(tmp_path: Path) -> None:
    (run,) = run_bundle("tour", tmp_path, "run", "tour", "--json")["runs"]
    assert (run["status"], run["error"]) == ("completed", None)
    assert run["scores"] == {"files": 1.0, "numbers": 1.0, "total": 1.0, "same": 1.0}


NEEDS_AN_ENGINE = {"run_docker_container", "run_container_unit_tests_verifier"}
"""The tour runs anywhere, so it leaves out what runs on a container engine only."""
NEEDS_AN_ENVIRONMENT = {"deploy_env", "env_outcome_verifier", *ON_ENVIRONMENTS}
NEEDS_AN_AGENT = {
    *("deploy_agent", "install_agent", "deploy_human_agent", "prompt_agent", "peer_agents", "add_skills", "register_agent_triggers"),
    *("snapshot_agent_state", "restore_agent_state", "agent_prompt_response_verifier", "rubrics_verifier"),
}


def tasks() -> list[Path]:
    return sorted(SHIPPED.glob("*/tasks/*.json"))


def test_the_tour_uses_every_type_of_step_that_runs() -> None:
    used = {step["type"] for path in tasks() if path.parts[-3] == "tour" for step in json.loads(path.read_text())}
    assert used == set(BUILT) - NEEDS_AN_ENGINE - NEEDS_AN_ENVIRONMENT - NEEDS_AN_AGENT
    unattended = {step["type"] for step in json.loads((SHIPPED / "tour/tasks/tour.json").read_text())}
    assert used - unattended == {"review"}


@pytest.mark.parametrize("path", tasks(), ids=lambda path: f"{path.parts[-3]}/{path.name}")
def test_shipped_tasks_use_no_field_that_the_reference_lacks_but_always_run(path: Path) -> None:
    for step in json.loads(path.read_text()):
        ours = step_class(step["type"]).own_fields | {"always_run"}
        assert set(step) & ours <= {"always_run"}

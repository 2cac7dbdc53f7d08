"""An agent that was written with the published package's SDK (A2A 0.3) is deployed, prompted and graded as it is: eight at once."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from agent_env.containers import EngineEndpoint
from tests.acceptance.conftest import code
from tests.acceptance.containers import in_engine, inspected
from tests.agent_steps.conftest import Operator, probe, python_base, user

__all__ = ["python_base", "user"]

pytestmark = pytest.mark.timeout(900)
FOLDER = Path(__file__).parents[2] / "interop/servers/published_agent"
CANARY = "sk-placeholder-canary-9d21"
ECHO = {"agent_name": "echo"}
WHERE = """
import pathlib, socket
def run(given):
    return [socket.gethostname(), pathlib.Path("/work/artifact/hello.txt").read_text()]
"""


def steps(sentinel: Path) -> list[dict[str, Any]]:
    return [
        {"id": "agent", "type": "deploy_agent", **ECHO, "a2a_agent_id": "echo", "system_prompt": "be brief",
         "env_vars": {"LITELLM_API_KEY": CANARY}},
        {"id": "load", "type": "load_artifact", **ECHO, "artifact_id": "greeting", "destination_path": "/work/artifact"},
        {"id": "ask", "type": "prompt_agent", **ECHO, "prompt": "hello to you"},
        {**code("where"), **ECHO, "sandbox_name": None},
        {"id": "in", "type": "verify_sandbox", **ECHO, "verifier_id": "in", "criteria": [
            probe("probe_file_contains", "/work/artifact/hello.txt", expected="^hello$")]},
        {"id": "out", "type": "verify_sandbox", **ECHO, "verifier_id": "out", "criteria": [probe("probe_file_exists", str(sentinel))]},
        {"id": "collect", "type": "collect_artifacts", **ECHO, "base_path": "/work/artifact", "artifact_paths": ["hello.txt"]},
    ]  # fmt: skip


def test_a_published_agent_is_deployed_prompted_and_graded_eight_at_once_and_torn_down_by_another_process(
    user: Operator, docker: EngineEndpoint, tmp_path: Path
) -> None:
    (tmp_path / "host-only").write_text("host")
    folder = user.bundle("b", {"where": WHERE}, t=steps(tmp_path / "host-only"))
    user.write("b/artifacts/greeting/hello.txt", "hello\n")
    shutil.copytree(FOLDER, folder / "agents/echo", ignore=shutil.ignore_patterns("__pycache__"))
    runs = user.scores(folder, "--attempts", "8", "--concurrency", "8", "--keep")
    assert [(run["status"], run["scores"], run["error"]) for run in runs] == [("completed", {"in": 1.0, "out": 0.0}, None)] * 8
    told = [user.told(run["run_id"]) for run in runs]
    for each in told:
        (answer,) = each["prompt_responses"]
        assert (answer["response"], answer["structured_output"]["prompted_by"]) == ("hello to you", "be brief")
        assert user.object(answer["agent_trajectory_object_url"]) == [{"heard": "hello to you"}]
        assert each["metadata"]["script_results"]["work"] == [each["agents"]["echo"]["container_id"][:12], "hello\n"]
    containers = {each["agents"]["echo"]["container_id"] for each in told}
    assert len(containers) == 8
    assert all(inspected(docker, each)["State"]["Running"] for each in containers)
    for run in runs:
        assert user("runs", "teardown", run["run_id"]).code == 0
    assert in_engine(docker, user) == []
    kept = b"".join(path.read_bytes() for path in user.state.rglob("*") if path.is_file() and path.name != "secrets.json")
    assert CANARY.encode() not in kept

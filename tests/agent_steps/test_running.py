"""Tasks with a deployed agent, from the command to its record."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from agent_env.containers import EngineEndpoint
from tests.acceptance.conftest import code, eventually, killed
from tests.acceptance.containers import inspected
from tests.agent_steps.conftest import AGENT, SOLVER, Operator, probe, prompt
from tests.busy import lasting

pytestmark = pytest.mark.timeout(900)

SCRIPTED_FOLDER = Path(__file__).parents[2] / "src/agent_env_bundles/agents/agents/scripted"
WHERE = "import os, socket\ndef run(given):\n    return [socket.gethostname(), os.getcwd(), os.getuid(), 'env' in given]\n"


def test_one_task_deploys_loads_asks_runs_verifies_and_collects_and_leaves_nothing(user: Operator, tmp_path: Any) -> None:
    sentinel = tmp_path / "host-only"
    sentinel.write_text("host")
    steps = [
        {**AGENT, "env_vars": {"LITELLM_API_KEY": "sk-placeholder-canary-3f1c"}, "enable_agent_changelog": True},
        {"id": "load", "type": "load_artifact", **SOLVER, "artifact_id": "greeting", "destination_path": "/work/artifact"},
        prompt({"progress": "reading"}, {"shell": "cat /work/artifact/hello.txt | tee /workspace/out.txt"}, {"say": "it says {last}"}),
        {**code("where"), **SOLVER, "sandbox_name": None},
        {"id": "in", "type": "verify_sandbox", **SOLVER, "verifier_id": "in", "base_dir": "/workspace", "criteria": [
            probe("probe_file_contains", "out.txt", expected="^hello$"),
            probe("probe_file_contains", "/work/artifact/hello.txt", expected="hello")]},
        {"id": "out", "type": "verify_sandbox", **SOLVER, "verifier_id": "out", "criteria": [probe("probe_file_exists", str(sentinel))]},
        {"id": "collect", "type": "collect_artifacts", **SOLVER, "base_path": "/workspace", "artifact_paths": ["out.txt"]},
        {"id": "save", "type": "snapshot_agent_state", "prompt_id": "ask", "artifact_id": "state"},
        {**AGENT, "id": "second", "agent_name": "second", "agent_snapshot_files_artifact_id": "state",
         "agent_snapshot_target_context_id": "again", "agent_changelog_object_url": "agent:solver", "depends_on": ["save"]},
        {**prompt({"shell": "cat out.txt"}, {"say": "{last}"}, id="more"), "agent_name": "second", "context_id": "again"},
        {"id": "judge", "type": "rubrics_verifier", "prompt_id": "ask", "judge_a2a_agent_id": "judge", "controls": False,
         "output_format": "rubric_evidence", "criteria": [{"id": "read", "title": "It read the file"}]},
    ]  # fmt: skip
    folder = user.bundle("b", {"where": WHERE}, t=steps)
    shutil.copytree(SCRIPTED_FOLDER, folder / "agents/judge")
    verdict = {"id": "c1", "justification": "it says so", "evidence": ["answer"], "evidence_status": "supported", "score": 1}
    script = json.dumps([{"say": json.dumps({"results": [verdict]})}])
    user.write("b/agents/judge/agent.toml", f"[default_env_vars]\nAGENTENV_SCRIPT = {json.dumps(script)}\n")
    user.write("b/artifacts/greeting/hello.txt", "hello\n")
    (run,) = user.scores(folder)
    assert (run["status"], run["scores"]) == ("completed", {"in": 1.0, "out": 0.0, "judge": 1.0}), run["error"]
    told = user.told(run["run_id"])
    judged = told["metadata"]["verifications"]["judge"]
    assert (judged["results"][0]["evidence"], judged["judge_usage"]["requests"]) == (["answer"], 1)
    assert list(told["agents"]) == ["solver", "second"], "a judge is none of the task's agents"
    answer, more = told["prompt_responses"]
    assert more["response"].strip() == "hello"
    (changes,), (rewound,) = told["metadata"]["agent_changelog"], told["metadata"]["agent_changelog_rewinds"]
    assert (changes["agent_name"], changes["roots"], rewound["increments"]) == ("solver", ["/workspace"], 1)
    assert rewound["object_url"] == f"{changes['object_url']}@1"
    (loaded,) = told["metadata"]["agent_loaded_snapshots"]
    assert (loaded["agent_name"], loaded["context_id"], loaded["source_artifact_version"]) == ("second", "again", 1)
    assert (answer["response"], answer["state"], answer["tool_call_count"]) == ("it says hello", "completed", 1)
    assert (answer["prompt_id"], answer["agent_name"], answer["error_type"]) == ("ask", "solver", None)
    agent = told["agents"]["solver"]
    assert told["metadata"]["script_results"]["work"] == [agent["container_id"][:12], "/workspace", 0, False]
    native = user.object(answer["agent_trajectory_object_url"])
    assert [event["type"] for event in native] == ["message", "tool_call", "tool_result", "message", "end"]
    assert answer["agent_trajectory_format"] == "agentenv-events/v1"
    atif = user.object(answer["agent_trajectory_atif_url"])
    assert atif["agent"]["name"] == "solver"
    assert atif["steps"][1]["tool_calls"][0]["function_name"] == "shell"
    conversation = user.object(told["metadata"]["a2a_conversations"]["ask"]["object_url"])
    assert [message["role"] for message in conversation["messages"]] == ["user", "agent"]
    kept = b"".join(path.read_bytes() for path in user.root.rglob("*") if path.is_file() and path.name not in {"secrets.json", "t.json"})
    assert b"sk-placeholder-canary-3f1c" not in kept


def test_killed_while_an_agent_works_the_run_goes_on_with_the_same_container_and_one_answer(user: Operator, docker: EngineEndpoint) -> None:
    works = prompt({"shell": "echo asked >> /workspace/log; sleep 4; echo done >> /workspace/log; cat /workspace/log"}, {"say": "{last}"})
    log = {"id": "log", "type": "verify_sandbox", **SOLVER, "verifier_id": "log", "base_dir": "/", "criteria": [
        {"type": "bash_cmd_succeeds", "bash_cmd": "test \"$(cat /workspace/log | tr '\\n' ' ')\" = 'asked done '"}]}  # fmt: skip
    process = user.start("run", user.bundle("b", t=[AGENT, works, log]), "--keep")
    run_id = user.running()
    eventually(lambda: user.asked(run_id), "a prompt that the agent has taken", 400)
    container = user.told(run_id)["agents"]["solver"]["container_id"]
    killed(process)
    assert inspected(docker, container)["State"]["Running"]
    resumed = user("resume", run_id, "--json")
    assert resumed.code == 0, resumed.all
    told = user.told(run_id)
    (answer,) = told["prompt_responses"]
    assert answer["response"].split() == ["asked", "done"]
    assert told["agents"]["solver"]["container_id"] == container
    assert told["metadata"]["verifications"]["log"]["score"] == 1
    assert [each["state"] for each in user.show(run_id)["resources"] if each["kind"] == "prompt"] == ["closed"]


def test_each_ending_of_a_turn_is_recorded_with_its_error_and_a_trajectory(user: Operator, docker: EngineEndpoint) -> None:
    """One deployed agent and a task for each ending, so that each has a run of its own."""
    del docker
    endings: dict[str, tuple[dict[str, Any], str, str, str]] = {
        "failed": ({"fail": {"code": "a.b", "message": "can't"}}, "failed", "agent_task_failed", "agent_error"),
        "rejected": ({"reject": True}, "rejected", "agent_task_failed", "agent_error"),
        "late": ({"hang": True}, "timed_out", "agent_turn_timeout", "agent_error"),
        "crashed": ({"crash": 3}, "lost", "agent_unreachable", "infra_error"),
    }
    tasks = {}
    for name, (action, _, _, _) in endings.items():
        limit = {"timeout_seconds": lasting(1.0)} if name == "late" else {}
        tasks[name] = [
            AGENT,
            prompt(
                {"progress": "so far"},
                {"record": {"type": "message", "text": "kept"}},
                {"sleep": 0.6},
                action,
                poll_interval_seconds=0.5,
                **limit,
            ),
        ]
    runs = {
        run["task"].removeprefix("tasks/").removesuffix(".json"): run
        for run in user.scores(user.bundle("b", **tasks), "--concurrency", "4")
    }
    for name, (_, state, error, fault) in endings.items():
        run = runs[name]
        assert (run["status"], run["error"]["code"]) == ("failed", error), (name, run)
        (answer,) = user.told(run["run_id"])["prompt_responses"]
        assert (answer["state"], answer["error_type"]) == (state, fault), (name, answer)
        native = user.object(answer["agent_trajectory_object_url"])
        assert "kept" in json.dumps(native) or "so far" in json.dumps(native), (name, native)
    assert "exited with code 3" in runs["crashed"]["error"]["message"], runs["crashed"]["error"]

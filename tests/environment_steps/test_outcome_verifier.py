"""Verifiers of outcomes: what they may return, what becomes of those that fail, and where they run."""

from __future__ import annotations

from typing import Any

import pytest

from tests.environment_steps.conftest import User

pytestmark = pytest.mark.timeout(900)

CASES = {
    "rows": (
        "def verify(mcp_url):\n    print('looked at', mcp_url)\n"
        "    return [{'id': 'a', 'result': True}, {'id': 'b', 'result': False, 'weight': 3}]\n"
    ),
    "of-the-run": (
        "async def verify(mcp_url, run):\n"
        "    try:\n        run.firings(env='other')\n        told = True\n"
        "    except Exception as error:\n        told = type(error).__name__\n"
        "    return ({'id': 'turns', 'result': run.turns == [], 'description': str(told)},)\n"
    ),
    "where": (
        "import os\nimport urllib.request\n"
        "def verify(mcp_url):\n"
        "    card = urllib.request.urlopen(mcp_url.removesuffix('/mcp') + '/.well-known/agent-env.json', timeout=10)\n"
        "    return [{'id': 'server', 'result': card.status == 200 and not os.path.exists('/srv/server.py')},\n"
        "            {'id': 'not-ours', 'result': 'AGENT_ENV_LIMIT_KEEPER_IDLE_SECONDS' not in os.environ,\n"
        "             'description': ' '.join(sorted(os.environ))}]\n"
    ),
    "silent": "def other(mcp_url):\n    return []\n",
    "no-rows": "def verify(mcp_url):\n    return 'fine'\n",
    "raises": "def verify(mcp_url):\n    raise RuntimeError('the shelf is bare')\n",
    "endless": "import time\ndef verify(mcp_url):\n    time.sleep(1000)\n",
    "no-python": "def verify(mcp_url:\n",
}


def steps(script: str, **fields: Any) -> list[dict[str, Any]]:
    verifier = {"id": "look", "type": "env_outcome_verifier", "env_id": "stock", "file_artifact_id": script, "verifier_id": "v", **fields}
    return [{"id": "env", "type": "deploy_env", "env_id": "stock"}, verifier]


def test_what_verifiers_return_is_scored_and_what_they_do_wrong_is_told(user: User) -> None:
    tasks = {name: steps(name) for name in CASES if name != "endless"}
    tasks["endless"] = steps("endless", timeout_seconds=1)
    tasks["weighted"] = steps("rows", score_aggregator="weighted_average")
    runs = {run["task"].removeprefix("tasks/").removesuffix(".json"): run for run in user.scores(user.stock(scripts=CASES, **tasks))}
    scores = {name: run["scores"] for name, run in runs.items() if run["status"] == "completed"}
    looked = user.context(runs["where"]["run_id"])["metadata"]["verifications"]["v"]["results"]
    assert [row["result"] for row in looked] == [True, True], looked
    assert scores == {"rows": {"v": 0.0}, "weighted": {"v": 0.25}, "of-the-run": {"v": 1.0}, "where": {"v": 1.0}}
    told = {name: (run["error"]["code"], run["error"]["message"]) for name, run in runs.items() if run["status"] != "completed"}
    assert {name: code for name, (code, _) in told.items()} == {
        "silent": "run_code_invalid",
        "no-rows": "run_code_invalid",
        "raises": "run_code_failed",
        "endless": "run_code_failed",
        "no-python": "run_code_failed",
    }
    for name, said in {
        "silent": "no function verify",
        "no-rows": "'fine'|\"fine\"",
        "raises": "the shelf is bare",
        "endless": "timed out after 1s",
        "no-python": "SyntaxError",
    }.items():
        assert any(each in told[name][1] for each in said.split("|")), told[name]
    metadata = user.context(runs["rows"]["run_id"])["metadata"]
    assert metadata["verifications"]["v"]["results"][1] == {"id": "b", "result": False, "weight": 3}
    assert "looked at http://127.0.0.1:" in str(metadata["script_logs"]["look"]["stdout"])


def test_what_can_be_told_before_anything_runs_is_told_then(user: User) -> None:
    folder = user.stock(t=steps("absent"), u=[steps("rows")[1]], scripts={"rows": CASES["rows"]})
    answer = user("bundle", "check", folder)
    assert answer.code != 0
    assert "absent" in answer.err
    assert "which no earlier step provides" in answer.err

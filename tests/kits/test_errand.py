"""The shipped errand, from the command to its score: with an oracle, with the default agent, and with real coding agents of npm's registry
and PyPI's, each recorded and played again without a model."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.agent_steps.conftest import Operator, python_base, user
from tests.kits.models import errand, models

__all__ = ["python_base", "user"]

pytestmark = pytest.mark.timeout(900)
PASSED = {"mailbox": 1.0, "note": 1.0}
NOWHERE = "http://127.0.0.1:9"
needs_npm = pytest.mark.skipif(shutil.which("npm") is None, reason="agentenv-capability-missing: npm")


def trajectory(user: Operator, run_id: str) -> list[dict[str, Any]]:
    """The steps of the run's only turn, without when they were and which conversation it was."""
    (answer,) = user.told(run_id)["prompt_responses"]
    steps = user.object(answer["agent_trajectory_atif_url"])["steps"]
    return [{name: value for name, value in step.items() if name != "timestamp"} for step in steps]


def test_the_errand_passes_with_its_oracle_which_needs_no_model(user: Operator) -> None:
    (run,) = user.scores("errand")
    assert (run["status"], run["scores"]) == ("completed", PASSED), run["error"]
    said = [step["message"] for step in trajectory(user, run["run_id"])]
    assert said[-1] == "The invoice is paid."


AGENTS = [
    "mini",
    pytest.param("codex", marks=needs_npm),
    *(pytest.param(name, marks=[needs_npm, pytest.mark.slow]) for name in ("opencode", "claude-code", "gemini", "pi")),
    pytest.param("openhands", marks=pytest.mark.slow),
]
MODELS = {"gemini": "gemini-2.5-flash"}
"""What an agent takes as a model, where not any name will do."""


@pytest.mark.parametrize("agent", AGENTS)
def test_the_errand_passes_with_an_agent_and_again_from_its_recording_without_a_model(user: Operator, tmp_path: Path, agent: str) -> None:
    user.env |= {"npm_config_cache": str(Path.home() / ".npm"), "PIP_CACHE_DIR": str(Path.home() / ".cache/pip")}
    recorded = tmp_path / "recorded"
    with models({"errand": errand(agent)}) as server:
        user.env |= {"LITELLM_BASE_URL": server.base, "LITELLM_API_KEY": server.key("errand")}
        user.env["AGENT_ENV_MODEL"] = MODELS.get(agent, "m")
        asked = ("errand", "--agent", agent)
        (run,) = user.scores(*asked, "--record", str(recorded))
        assert server.problems == []
        assert [each["step"] for each in server.requests if not each["auxiliary"]] == [0, 1, 2, 3]
        real_key = server.key("errand")
    assert (run["status"], run["scores"]) == ("completed", PASSED), run["error"]
    steps = trajectory(user, run["run_id"])
    assert [step["message"] for step in steps if step["source"] == "agent"][-1] == "The invoice is paid."
    # The real key is nowhere: neither in what is stored of the run, nor in the recording.
    everything = b"".join(path.read_bytes() for place in (user.state, recorded) for path in place.rglob("*") if path.is_file())
    assert real_key.encode() not in everything
    user.env |= {"LITELLM_BASE_URL": NOWHERE}
    del user.env["LITELLM_API_KEY"]
    (again,) = user.scores(*asked, "--replay", str(recorded))
    assert (again["status"], again["scores"]) == ("completed", PASSED), again["error"]
    assert json.dumps(trajectory(user, again["run_id"])) == json.dumps(steps)

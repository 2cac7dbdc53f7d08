"""The errand is killed in each of its steps and goes on: the same containers, one prompt, one grade."""

from __future__ import annotations

import pytest

from tests.acceptance.conftest import eventually, killed
from tests.agent_steps.conftest import Operator, python_base, user

__all__ = ["python_base", "user"]

pytestmark = pytest.mark.timeout(900)
STEPS = ["office", "agent", "ask", "mailbox", "note", "kept"]
LONGEST = 400


@pytest.mark.parametrize("step", [each if each == "mailbox" else pytest.param(each, marks=pytest.mark.slow) for each in STEPS])
def test_killed_in_a_step_the_errand_goes_on_with_one_prompt_and_one_grade(user: Operator, step: str) -> None:
    process = user.start("run", "errand", "--keep")
    run_id = user.running()

    def begun() -> bool:
        return any(each["step_id"] == step for each in user.show(run_id)["steps"]) or process.poll() is not None

    eventually(begun, f"the step {step}", LONGEST)
    killed(process)
    before = {each["agent_name"]: each["container_id"] for each in user.told(run_id).get("deployed_agents", [])}
    resumed = user("resume", run_id, "--json")
    assert resumed.code == 0, resumed.all
    told = user.told(run_id)
    # The check counts the messages that were sent: a second prompt would have sent a second one.
    assert {name: row["score"] for name, row in told["metadata"]["verifications"].items()} == {"mailbox": 1.0, "note": 1.0}
    assert len(told["prompt_responses"]) == 1
    assert len(told["deployed_agents"]) == 1
    if before:
        assert {each["agent_name"]: each["container_id"] for each in told["deployed_agents"]} == before
    assert user("runs", "teardown", run_id).code == 0

"""What is said about names stays readable, and is said soon, when a task has very many steps."""

from __future__ import annotations

import pytest

from agent_env.documents.task import parse_task
from agent_env.engine import plan_task
from agent_env.engine.names import SHOWN_NAMES
from agent_env.errors import ProblemsError

STEPS = 1500


def test_a_hint_lists_a_few_names_however_many_there_are() -> None:
    steps = [
        {
            "id": f"s{at}",
            "type": "aggregate_verifiers",
            "verifier_ids": ["absent"],
            "verifier_id": f"v{at}",
            "depends_on": [f"s{at - 1}"] if at else [],
        }
        for at in range(STEPS)
    ]
    with pytest.raises(ProblemsError) as caught:
        plan_task(parse_task(steps, source="task", task_id="t"), source="task")
    problems = caught.value.problems
    assert len(problems) == STEPS
    assert max(len(problem.hint or "") for problem in problems) < 20 * SHOWN_NAMES
    assert (problems[-1].hint or "").endswith(f"and {STEPS - 1 - SHOWN_NAMES} more")

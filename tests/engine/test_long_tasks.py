"""Tasks of very many steps: what planning and scheduling cost grows with their number, not with its square.

Costs are counted in function calls, so that no other program's work can be mistaken for ours.
"""

from __future__ import annotations

import asyncio
import cProfile
import pstats
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_env.documents.task import parse_task
from agent_env.engine import plan_task
from agent_env.engine.graph import build
from agent_env.engine.scheduler import Ended, Rule, Scheduler
from agent_env.engine.signals import Cancellation
from agent_env.errors import ProblemsError
from tests.engine.test_graph import edges, model_ancestors

FEW, MANY = 250, 2000
SLACK = 1.5
"""How much more than in proportion the calls may grow."""


def check(at, **more):
    criteria = [{"type": "probe_file_exists", "criterion": "there", "paths": ["x"]}]
    return {"id": f"s{at}", "type": "verify_sandbox", "sandbox_name": "box", "criteria": criteria, **more}


def box(at):
    return {"id": f"s{at}", "type": "deploy_sandbox", "sandbox_name": f"box{at}", "sandbox_mode": "vm"}


BOX = {"id": "s-1", "type": "deploy_sandbox", "sandbox_name": "box", "sandbox_mode": "vm"}
SHAPES = {
    "each after the one before": lambda at: check(at, depends_on=[f"s{at - 1}"]),
    "each after all earlier ones": check,
    "beside each other": lambda at: check(at, depends_on=["s-1"]),
    "each with a retry from the first": lambda at: check(at, depends_on=[f"s{at - 1}"], retry_config={"retry_from_step_id": "s-1"}),
    "each a sandbox of its own": box,
    "each with a name that nobody provides": lambda at: check(at, sandbox_name=f"absent{at}"),
    "sandboxes and names that nobody provides, by turns": lambda at: box(at) if at % 2 else check(at, sandbox_name=f"absent{at}"),
}


def planning(shape, count):
    steps = [BOX, *(SHAPES[shape](at) for at in range(count))]
    with suppress(ProblemsError):
        plan_task(parse_task(steps, source="t.json", task_id="t"), source="t.json")


def calls(work, *given):
    profile = cProfile.Profile()
    profile.runcall(work, *given)
    return pstats.Stats(profile).total_calls


@pytest.mark.parametrize("shape", SHAPES)
def test_planning_costs_in_proportion_to_the_steps(shape):
    planning(shape, 2)  # imports
    assert calls(planning, shape, MANY) < SLACK * MANY / FEW * calls(planning, shape, FEW)


class Instant:
    """Every attempt ends well at once."""

    async def attempt(self, step_id, *, retry, closing):
        return Ended(step_id, step_id)

    async def roll_back(self, failed, span, *, retry):
        raise AssertionError("nothing fails")


def driven(count):
    graph = build((f"s{at}", None) for at in range(count))
    rules = dict.fromkeys(graph.order, Rule())

    async def drive():
        return await Scheduler(graph, rules, Instant(), Cancellation()).drive()

    assert asyncio.run(drive()).left == ()


def test_scheduling_costs_in_proportion_to_the_steps():
    driven(2)
    assert calls(driven, MANY) < SLACK * MANY / FEW * calls(driven, FEW)


@given(edges(), st.data())
def test_names_are_certain_exactly_where_a_step_that_provides_them_is_waited_for(steps, data):
    """The sets of bits, against the plainest model."""
    asked = data.draw(st.sampled_from([name for name, _ in steps]))
    deploying = data.draw(st.lists(st.sampled_from([name for name, _ in steps]), unique=True))
    task = [
        {**(box(name) if name in deploying else check(name, sandbox_name=f"box{asked}")), "id": name}
        | ({} if parents is None else {"depends_on": parents})
        for name, parents in steps
    ]
    for document in task:
        if document["type"] == "deploy_sandbox":
            document["sandbox_name"] = f"box{document['id']}"
    missing = [
        f"$[{index}].sandbox_name"
        for index, (name, _) in enumerate(steps)
        if name not in deploying and not (asked in deploying and asked in model_ancestors(steps, name))
    ]
    try:
        plan_task(parse_task(task, source="t.json", task_id="t"), source="t.json")
        found = []
    except ProblemsError as error:
        found = [problem.path for problem in error.problems]
    assert found == missing

"""The container engine goes away in the middle of runs and comes back; and many containers begin at once."""

from __future__ import annotations

import asyncio
import random
import re
from pathlib import Path

import pytest

from agent_env.containers import EngineEndpoint
from agent_env.documents.task import parse_task
from agent_env.engine import RunOptions, plan_task
from agent_env.engine.opening import open_engine
from agent_env.stores.records import OPEN_STATES
from agent_env.waiting import poll
from tests.chaos.__main__ import grounds
from tests.chaos.containers import left_over
from tests.chaos.killing import folder
from tests.chaos.steps import outbox
from tests.chaos.victim import RUNS, Scene
from tests.chaos.wire import wire

WHOLE_SECONDS = 2.0
"""About how long an undisturbed pair of runs takes on containers: what moments are drawn from."""
CLEAR = {"engine_unavailable", "transport_lost", "sandbox_unavailable"}
"""All that a run may end as: what it says is that the engine went, that the connection broke, or that a place can't be reached."""


@pytest.mark.parametrize("number", range(3))
@pytest.mark.timeout(500)
def test_runs_recover_from_an_engine_that_goes_or_say_clearly_that_it_went(
    docker: EngineEndpoint, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    seed = random.SystemRandom().randrange(1_000_000)
    print(f"seed {seed}")
    with folder() as made:
        asyncio.run(_through_an_outage(docker, monkeypatch, Path(made), random.Random(seed + number)))


async def _through_an_outage(docker: EngineEndpoint, monkeypatch: pytest.MonkeyPatch, root: Path, chance: random.Random) -> None:
    scene = Scene(root, f"sqlite:///{root / 'state' / 'runs.db'}", grounds("containers"))
    scene.prepare()
    async with wire(docker, root / "engine.sock" if chance.random() < 0.5 else None) as line:
        monkeypatch.setenv("DOCKER_HOST", line.endpoint.url)
        async with open_engine(scene.config()) as engine:
            for run_id in RUNS:
                plan = plan_task(parse_task(scene.task(run_id), source="chaos.json", task_id="chaos"), artifacts=engine.stores.artifacts)
                await engine.submit(plan, RunOptions(run_id=run_id))
            runs = [asyncio.ensure_future(engine.resume(run_id)) for run_id in RUNS]
            await asyncio.wait(runs, timeout=chance.uniform(0, WHOLE_SECONDS))
            await line.cut()
            await asyncio.wait(runs, timeout=chance.uniform(0.2, 3))
            await line.mend()
            outcomes = await asyncio.gather(*runs)
            for outcome in outcomes:
                error = outcome.error or {}
                assert outcome.status == "completed" or error.get("code") in CLEAR, error
                assert outcome.status == "completed" or re.search("engine|connection", str(error.get("message"))), error
                rows = engine.stores.journal.load(outcome.run_id).attempts
                assert [row.step_id for row in rows if row.state == "running"] == []
                await engine.teardown(outcome.run_id)

            async def collected() -> bool | None:
                """Whatever is there when a collection begins is gone when it has ended.

                An engine may still be making what it was asked for before the wire was cut: that is there for the next one.
                """
                before = set(await left_over(root))
                report = await engine.gc(include_kept=True)
                assert report.clean, report.to_json()
                assert engine.stores.journal.resources(state=OPEN_STATES) == []
                after = set(await left_over(root))
                assert not before & after
                return True if not after else None

            await poll(collected, within_seconds=60, what="the last of what the engine was asked")


def at_once(count: int, rounds: int) -> None:
    """Deploys so many sandboxes at once, again and again; every one must work, and none may stay."""

    async def all_of_it(root: Path) -> None:
        scene = Scene(root, f"sqlite:///{root / 'state' / 'runs.db'}", grounds("containers"))
        scene.prepare()
        async with open_engine(scene.config()) as engine:
            for turn in range(rounds):
                ids = [f"run-many{turn:04}{number:04}" for number in range(count)]
                for run_id in ids:
                    outbox(root, run_id).mkdir(parents=True)
                    plan = plan_task(parse_task(scene.task(run_id), source="many.json", task_id="many"), artifacts=engine.stores.artifacts)
                    await engine.submit(plan, RunOptions(run_id=run_id))
                outcomes = await asyncio.gather(*(engine.resume(run_id) for run_id in ids))
                assert [(each.status, each.error) for each in outcomes] == [("completed", None)] * count
            assert (await engine.gc(include_kept=True)).clean
        assert not await left_over(root)

    with folder() as made:
        asyncio.run(all_of_it(Path(made)))


@pytest.mark.timeout(500)
def test_thirteen_deployments_at_once_all_work(docker: EngineEndpoint) -> None:
    at_once(13, 1)


@pytest.mark.slow
def test_thirteen_deployments_at_once_all_work_four_times(docker: EngineEndpoint) -> None:
    at_once(13, 4)

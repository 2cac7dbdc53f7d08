"""A deployment that is killed at any moment is taken up again, and leaves nothing."""

from __future__ import annotations

import random
import secrets
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agent_env.keeper.records import Records
from agent_env.stores.records import OPEN_STATES
from tests.engine.parts import engine_at
from tests.environments.bench import run
from tests.environments.beside import labelled
from tests.environments.test_placement import result

LONGEST = 6.0
"""Seconds into a run, at which most deployments are over."""


def killed(root: Path, provider: str, after: float) -> str:
    """Starts a run and kills it. Returns its id."""
    command = [sys.executable, "-m", "tests.environments.victim", str(root), provider]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    run_id = process.stdout.readline().strip()
    try:
        process.wait(timeout=after)
    except subprocess.TimeoutExpired:
        process.kill()
    process.wait()
    process.stdout.close()
    return run_id


def a_kill(root: Path, provider: str, seed: str) -> None:
    after = random.Random(seed).uniform(0.05, LONGEST)
    run_id = killed(root, provider, after)

    async def resumed() -> None:
        async with engine_at(root) as engine:
            outcome = await engine.resume(run_id)
            found, (record,) = result(outcome), outcome.context["deployed_envs"]
            assert found["card"] == record["environment_card"]["name"], seed
            assert not engine.stores.journal.resources(run_id, state=OPEN_STATES), seed

    run(resumed(), seconds=300)
    assert labelled(f"agentenv.run={run_id}") == {"containers": [], "networks": [], "volumes": []}, seed
    assert not [*Records(root).places()], seed


@pytest.mark.parametrize("provider", ["gateway"])
def test_d01_a_deployment_that_was_killed_is_taken_up_again_and_leaves_nothing(python_base: str, tmp_path: Path, provider: str) -> None:
    seed = secrets.token_hex(4)
    print(f"seed {seed}")
    a_kill(tmp_path / "state", provider, seed)


@pytest.mark.slow
@pytest.mark.parametrize("provider", ["gateway", "server"])
def test_d01_ten_deployments_that_were_killed(python_base: str, tmp_path: Path, provider: str) -> None:
    for number in range(10):
        seed = secrets.token_hex(4)
        print(f"seed {seed} at {time.monotonic():.0f}")
        a_kill(tmp_path / f"state{number}", provider, seed)

"""A seeded sample of what `make chaos` does at length."""

from __future__ import annotations

import secrets

import pytest

from agent_env.containers import EngineEndpoint
from tests.chaos.__main__ import cases, grounds


@pytest.mark.parametrize(("kind", "kills"), [("sqlite", 6), ("postgres", 4)])
@pytest.mark.timeout(600)
def test_d1_f1_killed_runs_go_on_to_the_same_end_and_leave_nothing(kind: str, kills: int) -> None:
    first = secrets.randbelow(1_000_000)
    print(f"first seed {first}: python -m tests.chaos --database {kind} --seed N")
    for case in cases(kind, kills=kills, first_seed=first):
        assert not case.wrong, f"python -m tests.chaos --database {kind} --seed {case.seed}"


@pytest.mark.timeout(600)
def test_d1_f1_killed_runs_on_containers_leave_nothing_and_touch_nothing_foreign(docker: EngineEndpoint) -> None:
    first = secrets.randbelow(1_000_000)
    print(f"first seed {first}: python -m tests.chaos --places containers --database sqlite --seed N")
    for case in cases("sqlite", kills=4, first_seed=first, ground=grounds("containers")):
        assert not case.wrong, f"python -m tests.chaos --places containers --database sqlite --seed {case.seed}"

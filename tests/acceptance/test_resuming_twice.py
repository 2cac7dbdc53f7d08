"""Two processes resume the same interrupted run at the same moment: exactly one goes on with it, and the other says who has it."""

from __future__ import annotations

import random
import re
import select

import pytest

from tests.acceptance.conftest import BOX, Home, check, eventually, killed

WAITING = "test -e /app/go || { touch /app/waits; until test -e /app/go; do read -t 0.05 _ <> <(:) || true; done; }"


def twice(home: Home, seed: int) -> None:
    """One case. What differs by the seed is how far apart the two begin."""
    chosen = random.Random(seed)
    folder = home.bundle(f"b{seed}", t=[BOX, check(WAITING, id="slow"), check("test -e /app/go", id="last")])
    first = home.start("run", folder, "--json")
    run_id = str(eventually(home.runs, "a run")[0]["run_id"])
    eventually(lambda: home("exec", run_id, "--", "test", "-e", "/app/waits").code == 0, "its slow step")
    killed(first)
    resumed = []
    for _ in range(2):
        resumed.append(home.start("resume", run_id, "--json"))
        select.select([], [], [], chosen.choice((0, 0, 0.01, 0.1)))
    loser = eventually(lambda: next((each for each in resumed if each.poll() is not None), None), "one that is refused")
    (winner,) = [each for each in resumed if each is not loser]
    said = b"".join(loser.communicate(timeout=80)).decode()
    assert loser.returncode not in (0, None), f"seed {seed}: {said}"
    assert "run_owned" in said, f"seed {seed}: {said}"
    assert re.search(rf"process {winner.pid}\b", said), f"seed {seed}: it does not say that {winner.pid} has it: {said}"
    assert winner.poll() is None, f"seed {seed}: both ended"
    assert home("exec", run_id, "--", "touch", "/app/go").code == 0
    out, err = winner.communicate(timeout=80)
    assert winner.returncode == 0, f"seed {seed}: {err.decode()}"
    assert b'"completed"' in out
    shown = home.show(run_id)
    assert shown["scores"] == {"slow": 1.0, "last": 1.0}
    assert home.left() == {}


@pytest.mark.parametrize("seed", range(3))
def test_two_resumes_at_the_same_moment_have_one_winner(home: Home, seed: int) -> None:
    twice(home, seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3, 20))
def test_two_resumes_at_the_same_moment_have_one_winner_twenty_times(home: Home, seed: int) -> None:
    twice(home, seed)

"""F13 as whoever runs us: what an earlier script left running forges no later script's result, for an ordinary user no more than for root.

Root's places have ids of their own; an ordinary user's share one id, and what runs in them is that user's to the kernel.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.sandboxes.people import WAYS, World, act
from tests.steps.bench import BenchRun, bench
from tests.steps.conftest import on_bench
from tests.steps.test_run_code import script
from tests.steps.test_run_code_hostile import DAEMON, DEEDS, told

TRIES = 4


@pytest.fixture(scope="module", autouse=True)
def _loaded(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Imports whatever a script needs: once a process is an ordinary user's, it may not look where the libraries are."""

    async def body(run: BenchRun) -> None:
        assert await told(run) == "genuine"

    on_bench(tmp_path_factory.mktemp("loading"), body)


async def forge(world: World, deed: str) -> Any:
    async with bench(world.home, deployed=False) as run:
        run.provider = world.provider()
        await run.do({"id": "box", "type": "deploy_sandbox", "sandbox_mode": "vm"})
        left = await run.do(script(run, DAEMON.replace("{deed}", DEEDS[deed].strip())))
        return left.value, [await told(run) for _ in range(TRIES)]


@pytest.mark.parametrize("deed", DEEDS)
@pytest.mark.parametrize("way", WAYS[-2:])
def test_f13_a_daemon_of_an_earlier_script_forges_no_result_of_an_ordinary_user(way: str, deed: str) -> None:
    left, results = act(way, forge, deed)
    assert left == "left"
    assert all(said == "genuine" or said.endswith("was changed in the place before it began") for said in results), results
    assert "genuine" in results or deed in {"rewrites whatever was staged", "writes result files"}

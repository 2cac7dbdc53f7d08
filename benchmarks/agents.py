"""Agents: what deploying one takes with its image there, what we add to a turn, and many conversations at once."""

from __future__ import annotations

import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import agent_env_bundles
from agent_env.agents.contract import End, Outgoing
from agent_env.agents.deploy import new_instance_id
from agent_env.images import BuildContext, BuildRequest, ImageReference
from benchmarks.measure import Figure, left_out, no_engine
from tests.environments.bench import World, world

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from agent_env.agents.live import RecordedAgent

ROUNDS, TURNS, CONVERSATIONS = 5, 200, 50
_WHAT = "scripted agent: deployed and answering, its image present"


def figures(bare: float) -> Iterator[Figure]:
    """The table's lines; `bare` is what a bare interpreter takes."""
    why = no_engine()
    if why is not None:
        yield left_out(_WHAT, why)
        return
    with tempfile.TemporaryDirectory(prefix="agent-env-bench-") as folder:
        yield from asyncio.run(_measured(Path(folder), bare))


@dataclass(frozen=True)
class _Bench:
    here: World

    @asynccontextmanager
    async def agent(self) -> AsyncIterator[tuple[RecordedAgent, float]]:
        """A deployed agent, and how long that took."""
        from agent_env.agents.contract import AgentPlan
        from agent_env.agents.deploy import deploy
        from agent_env.engine.agent_making import AgentMaking

        image = BuildRequest(BuildContext.of(_scripted()), ImageReference.parse("agentenv-bench/scripted:1"))
        plan = AgentPlan("bench", "bench", 1, image, instance_id=new_instance_id("bench"))
        making = AgentMaking(self.here.shared, attempt_id="attempt-1", sandbox_provider="local", tell=lambda _: None, env_id="")
        self.here.makings.append(making)
        started = time.perf_counter()
        live = await deploy(plan, making)
        seconds = time.perf_counter() - started
        try:
            yield live, seconds
        finally:
            await live.aclose()
            await making.remove(str(live.record.sandbox_id))


async def _measured(folder: Path, bare: float) -> list[Figure]:
    (folder / "state").mkdir()
    async with world(folder / "state") as here:
        bench = _Bench(here)
        async with bench.agent():
            pass  # the image is present from here on
        deployed = []
        for _ in range(ROUNDS):
            async with bench.agent() as (_, seconds):
                deployed.append(seconds)
        async with bench.agent() as (live, _):
            turn = await _turns(live)
            together = await _at_once(live)
    middle = statistics.median(deployed)
    return [
        Figure(_WHAT, middle, "s", 1.0, middle / bare, f"{min(deployed):.2f} to {max(deployed):.2f} s"),
        Figure("prompt round trip of an echo agent", turn * 1000, "ms", 30.0, note=f"median of {TURNS}, one after the other"),
        Figure(f"{CONVERSATIONS} conversations at once, each of 1 s", together, "s", note="one process"),
    ]


def _scripted() -> Path:
    return Path(agent_env_bundles.__file__).parent / "agents/agents/scripted"


def _message(name: str, *actions: dict[str, object]) -> Outgoing:
    return Outgoing([{"kind": "text", "text": json.dumps(actions)}], message_id=name, context_id=f"context-{name}")


async def _turns(live: RecordedAgent) -> float:
    times = []
    for number in range(TURNS):
        started = time.perf_counter()
        turn = await live.ask(_message(f"turn-{number}", {"say": "hello"}))
        times.append(time.perf_counter() - started)
        if turn.end is not End.COMPLETED:
            raise SystemExit(f"a turn failed: {turn}")
    return statistics.median(times)


async def _at_once(live: RecordedAgent) -> float:
    started = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for number in range(CONVERSATIONS):
            group.create_task(live.ask(_message(f"at-once-{number}", {"sleep": 1}, {"say": "hello"})))
    return time.perf_counter() - started

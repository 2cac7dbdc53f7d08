"""An engine that breaks connections while commands are started: nothing is done twice, and nothing is lost without a word."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

import pytest

from agent_env.containers import Engine, EngineEndpoint, attach, reduced
from agent_env.errors import InfrastructureError
from agent_env.places import Command, Ending, Place
from tests.acceptance.conftest import chance
from tests.acceptance.meddling import Fate, Request, meddler
from tests.container_engine import bench

__all__ = ["chance"]

COMMANDS = 25
DECK = [Fate.CUT_BEFORE, Fate.CUT_AFTER, Fate.PASSED, Fate.PASSED, Fate.PASSED]


def drops(chance: random.Random, cut: list[Fate]) -> Callable[[Request], Fate]:
    """Cuts off as many attaches before they reach the engine as after, and lets the others pass."""
    deck: list[Fate] = []

    def meddle(request: Request) -> Fate:
        if not re.search(r"/exec/\w+/start", request.path):
            return Fate.PASSED
        if not deck:
            deck.extend(chance.sample(DECK, len(DECK)))
        fate = deck.pop()
        if fate is not Fate.PASSED:
            cut.append(fate)
        return fate

    return meddle


@pytest.mark.parametrize("kind", ["with our helper", "that somebody else started"])
async def test_cc02_a_command_whose_attach_is_dropped_is_done_at_most_once_and_its_loss_is_said(
    kind: str, docker: EngineEndpoint, busybox: str, chance: random.Random
) -> None:
    cut: list[Fate] = []
    async with bench(docker, busybox) as here:
        home = await here.deploy()
        with meddler(docker, None, drops(chance, cut)) as between:
            told: dict[int, str] = {}
            for number in range(COMMANDS):
                async with Engine(between.endpoint) as engine:
                    told[number] = await _appended(engine, home.id, number, here.token if "helper" in kind else None)
        assert {Fate.CUT_BEFORE, Fate.CUT_AFTER} <= set(cut)
        # A command whose start was cut off may be on its way still: the last word is a later one's.
        lines = (await home.run(Command(["sh", "-c", "sync; cat /srv-lines"]))).stdout.decode().split()
    done = [int(line) for line in lines]
    assert len(done) == len(set(done)), "a command was run twice"
    assert {number for number, how in told.items() if how == "done"} <= set(done), "a command is said to be done and is not"
    lost = {number: how for number, how in told.items() if how != "done"}
    assert all(re.search("transport|unavailable|lost|broke|engine", how) for how in lost.values()), lost
    assert len(lost) <= len(cut)


async def _appended(engine: Engine, container_id: str, number: int, token: str | None) -> str:
    """Has one line appended; says `done`, or how it went wrong."""
    place: Place | None = None
    try:
        place = await (reduced(engine, container_id) if token is None else attach(engine, container_id, token=token, epoch=1))
        done = await place.run(Command(["sh", "-c", f"echo {number} >> /srv-lines"]))
    except InfrastructureError as error:
        return f"{type(error).__name__}: {error.code} {error}"
    finally:
        if place is not None:
            await place.aclose()
    if done.ending is Ending.LOST:
        return f"lost: {done.detail}"
    assert done.ok, done
    return "done"

"""Checks of what may go away: those that nobody is left for are not run, and count all the same."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from enum import StrEnum

import pytest

from agent_env.cli.checks import summed_up
from agent_env.conformance import Area, Findings, Result, Verdict, holds, run_each
from agent_env.errors import InfrastructureError


class Gate(StrEnum):
    SPEECH = "speech"
    MEMORY = "memory"


@dataclass
class Server:
    """One that goes away when this many checks were run."""

    lives: int
    asked: int = 0
    ran: list[str] = field(default_factory=list)

    async def unreachable(self) -> str | None:
        self.asked += 1
        return "Connection refused" if len(self.ran) > self.lives else None

    async def answer(self, name: str) -> None:
        self.ran.append(name)
        if len(self.ran) > self.lives:
            raise InfrastructureError("it broke off its answer")


SPEECH, MEMORY = Area[Server](Gate.SPEECH), Area[Server](Gate.MEMORY)


@SPEECH.check()
async def it_greets(server: Server) -> None:
    await server.answer("greets")
    holds(False, "it is silent")


@SPEECH.check()
async def it_takes_leave(server: Server) -> None:
    await server.answer("takes leave")


@MEMORY.check(advisory=True)
async def it_dreams(server: Server) -> None:
    await server.answer("dreams")


@MEMORY.check()
async def it_remembers(server: Server) -> None:
    await server.answer("remembers")


def verdicts(server: Server) -> list[Verdict]:
    async def body() -> list[Verdict]:
        return [verdict async for verdict in run_each(server, [*SPEECH.checks, *MEMORY.checks], seconds=60)]

    return asyncio.run(body())


@pytest.mark.parametrize(("lives", "ran"), [(-1, 0), (0, 1), (1, 2), (4, 4)])
def test_what_nobody_is_left_for_is_not_run_and_fails_its_gate(lives: int, ran: int) -> None:
    server = Server(lives)
    found = Findings(verdicts(server), [Gate.SPEECH, Gate.MEMORY])
    assert len(server.ran) == ran
    not_run = [verdict for verdict in found.verdicts if verdict.result is Result.NOT_RUN]
    assert len(not_run) == 4 - ran
    assert {(verdict.detail, verdict.counts) for verdict in not_run} <= {("Connection refused", True), ("Connection refused", False)}
    assert found.failed == ([Gate.SPEECH, Gate.MEMORY] if not_run else [Gate.SPEECH])
    assert found.skipped == []
    assert ("not run (Connection refused)" in summed_up(found)) is bool(not_run)
    # Whether anybody is there is asked at first, and after what may mean that nobody is.
    assert server.asked == (2 if not_run and ran else 1)

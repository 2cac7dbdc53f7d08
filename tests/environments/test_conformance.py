"""The conformance kit of servers: one that does everything passes, and each fault is found by the check that is about it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any

import pytest
from agent_env_sdk.environment import DataPart, Environment, ToolContext, add_data, environment, get_data, read_json, reset_data, tool
from agent_env_sdk.testing import serve_here
from pydantic import Field

from agent_env.defaults import DEFAULT_LIMITS
from agent_env.environments.client import EnvironmentClient
from agent_env.environments.conformance import CHECKS, REQUIRED, Gate, Report, Result, Subject, run_checks
from agent_env.environments.http import new_client

NOTE = Annotated[str, Field(description="What it says.")]


@environment(name="notes")
class Notes(Environment):
    """Notes, in order."""

    def __init__(self) -> None:
        self.notes: list[str] = ["first"]

    @reset_data
    def wipe(self) -> None:
        """Forgets everything."""
        self.notes.clear()

    @add_data
    def load(self, parts: list[Any]) -> None:
        """Takes notes."""
        for part in parts:
            self.notes += read_json(part)["notes"]

    @get_data
    def export(self) -> list[DataPart]:
        """Gives them."""
        return [DataPart(data={"notes": self.notes})]

    @tool()
    def write(self, text: NOTE, who: ToolContext) -> str:
        """Write a note."""
        del who
        self.notes.append(text)
        return "written"


class Forgetful(Notes):
    """Loads the first note only."""

    @add_data
    def load(self, parts: list[Any]) -> None:
        """Takes one note."""
        self.notes += read_json(parts[0])["notes"][:0]


class Sticky(Notes):
    """Is never empty."""

    @reset_data
    def wipe(self) -> None:
        """Keeps everything."""


class Terse(Notes):
    """Says nothing of its tools."""

    @tool()
    def erase(self, text: str) -> str:
        """"""
        return text


def examined(made: Environment, *, name: str | None = "notes", write: bool = True, only: Sequence[Gate] = tuple(Gate)) -> Report:
    """What the kit says of a server that runs in this process."""

    async def body() -> Report:
        async with serve_here(made) as served:
            client = EnvironmentClient(served.base, http=new_client(None, DEFAULT_LIMITS), name="notes", limits=DEFAULT_LIMITS)
            try:
                subject = Subject(client, name, may_write=write)
                checks = [check for check in CHECKS if check.gate in only]
                return Report([verdict async for verdict in run_checks(subject, checks)])
            finally:
                await client.aclose()

    return asyncio.run(asyncio.wait_for(body(), 60))


def results(report: Report) -> dict[str, Result]:
    return {verdict.check.id.partition("/")[2]: verdict.result for verdict in report.verdicts}


def against(report: Report) -> list[str]:
    return sorted(verdict.check.id.partition("/")[2] for verdict in report.verdicts if verdict.counts)


def test_a_server_of_the_sdk_passes_and_holds_afterwards_what_it_held() -> None:
    notes = Notes()
    report = examined(notes)
    assert (report.passed, against(report), report.skipped) == (True, [], [])
    assert notes.notes == ["first"]
    told = report.to_json()
    assert told["validation_gate"]["required_gates"] == [
        "reachability",
        "environment_card",
        "core_protocol",
        "mcp_tool_schema",
        "universe_roundtrip",
    ]
    assert len(told["checks"]) == len(CHECKS)


def test_data_is_not_touched_without_leave() -> None:
    notes = Notes()
    report = examined(notes, write=False)
    assert (report.passed, report.skipped) == (True, [Gate.ROUND_TRIP])
    assert notes.notes == ["first"]


@pytest.mark.parametrize(
    ("made", "name", "found", "gate"),
    [
        (Notes, "mail", ["its_card_names_it"], Gate.CARD),
        (Forgetful, "notes", ["what_it_exports_loads_again"], Gate.ROUND_TRIP),
        (Sticky, "notes", ["a_reset_empties_it"], Gate.ROUND_TRIP),
        (Terse, "notes", ["every_parameter_is_described", "every_tool_is_described"], Gate.TOOL_SCHEMA),
    ],
)
def test_a_fault_is_found(made: type[Environment], name: str, found: list[str], gate: Gate) -> None:
    report = examined(made(), name=name)
    assert set(found) <= set(against(report)), {v.check.id: v.detail for v in report.verdicts if v.detail}
    assert report.failed == [gate]
    assert not report.passed


def test_a_server_that_is_not_there_fails_and_never_raises() -> None:
    async def body() -> Report:
        client = EnvironmentClient("http://127.0.0.1:1", http=new_client(None, DEFAULT_LIMITS), name="nobody", limits=DEFAULT_LIMITS)
        try:
            return Report([verdict async for verdict in run_checks(Subject(client, may_write=True))])
        finally:
            await client.aclose()

    report = asyncio.run(asyncio.wait_for(body(), 100))
    assert not report.passed
    assert report.failed == [*REQUIRED]
    assert {(verdict.result, verdict.detail) for verdict in report.verdicts} == {
        (Result.NOT_RUN, "GET /ready of nobody: Connection refused")
    }

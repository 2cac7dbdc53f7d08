"""A model that is busy or away is asked again, as long as nothing was passed on; what it says of when is taken at its word."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from agent_env_sdk.testing.models import Fault, Scenario, Step

from agent_env.broker import Budget, Refusal
from tests.broker.world import BODIES, LIMITS, PATHS, desk


@pytest.mark.parametrize("status", [429, 503, 529])
async def test_a_busy_model_is_asked_again_and_the_agent_notices_nothing(tmp_path: Path, status: int) -> None:
    faults = (Fault("status", status=status, retry_after_seconds=0),) * 3
    async with desk(f"sqlite:///{tmp_path}/runs.db", tmp_path, {"busy": Scenario((Step("at last", faults=faults),))}) as here:
        token = await here.token(scenario="busy")
        answer = await here.ask(token, BODIES["anthropic-messages"], PATHS["anthropic-messages"])
        assert (answer.status_code, "at l" in answer.text) == (200, True)
        used = await here.used()
        assert (used.requests, used.problem, len(here.models.requests)) == (1, None, 4)


async def test_an_endpoint_that_asks_for_more_time_than_allowed_is_passed_on_at_once(tmp_path: Path) -> None:
    scenarios = {"busy": Scenario((Step("x", faults=(Fault("status", status=429, retry_after_seconds=3600),)),))}
    async with desk(f"sqlite:///{tmp_path}/runs.db", tmp_path, scenarios) as here:
        answer = await here.ask(await here.token(scenario="busy"))
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "3600")
        used = await here.used()
        assert (used.problem, len(here.models.requests)) == (Refusal.UNAVAILABLE, 1)


async def test_a_request_that_is_wrong_is_not_repeated(tmp_path: Path) -> None:
    scenarios = {"odd": Scenario((Step("x", faults=(Fault("status", status=400),)),))}
    async with desk(f"sqlite:///{tmp_path}/runs.db", tmp_path, scenarios) as here:
        assert (await here.ask(await here.token(scenario="odd"))).status_code == 400
        used = await here.used()
        assert (used.requests, used.problem, len(here.models.requests)) == (1, None, 1)


async def test_a_key_that_is_refused_is_a_fault_of_ours(tmp_path: Path) -> None:
    async with desk(f"sqlite:///{tmp_path}/runs.db", tmp_path) as here:
        assert (await here.ask(await here.token(scenario="nobody"))).status_code == 401
        used = await here.used()
        assert (used.problem, used.message) == (Refusal.KEY, "endpoint 'scripted' refuses the key (status 401)")


async def test_a_model_that_stays_away_is_an_infrastructure_fault_that_names_the_host(tmp_path: Path) -> None:
    limits = replace(LIMITS, model_attempts=2)
    async with desk(f"sqlite:///{tmp_path}/runs.db", tmp_path, limits=limits, budget=Budget(tokens=100)) as here:
        server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        here.models.base = f"http://127.0.0.1:{port}"
        answer = await here.ask(await here.token())
        server.close()
        assert (answer.status_code, answer.headers["x-should-retry"]) == (502, "true")
        assert f"endpoint 127.0.0.1:{port} can't be asked" in answer.json()["error"]["message"]
        used = await here.used()
        assert (used.problem, used.total_tokens) == (Refusal.UNAVAILABLE, 0)


async def test_a_stream_that_broke_off_before_its_first_byte_is_asked_for_again(tmp_path: Path) -> None:
    async with desk(f"sqlite:///{tmp_path}/runs.db", tmp_path) as here:
        asked = 0

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal asked
            await reader.readuntil(b"\r\n\r\n")
            asked += 1
            writer.write(
                b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 10\r\n\r\n" + b"data: 1\n\n\n" * (asked > 1)
            )
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        here.models.base = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        found = await here.ask(await here.token(), BODIES["openai-responses"], PATHS["openai-responses"])
        server.close()
        assert (found.status_code, found.text, asked) == (200, "data: 1\n\n\n", 2)

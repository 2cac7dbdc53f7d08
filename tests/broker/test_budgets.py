"""Budgets: a run stops at the exact limit, however many ask at once, from however many processes."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import httpx
import pytest
from agent_env_sdk.testing.models import Scenario, Step

from agent_env.broker import Budget, Price, Refusal
from agent_env.broker.accounts import Account, Accounts, Grant
from agent_env.broker.admission import Admitted, Refused, Wanted
from agent_env.broker.contract import Dialect
from agent_env.broker.dialects import SPELLINGS
from agent_env.stores import Database
from agent_env.stores.owners import Owner
from tests.broker.world import BODIES, HI, PATHS, Desk, desk

PRICES = {"m": Price(input=100_000.0, output=200_000.0)}
"""Ten tokens in and five out are two dollars."""


def codes(answers: list[httpx.Response]) -> Counter[str]:
    return Counter("ok" if each.status_code == 200 else each.json()["error"]["code"] for each in answers)


async def asked_at_once(here: Desk, token: str, times: int) -> list[httpx.Response]:
    async with asyncio.TaskGroup() as group:
        asking = [group.create_task(here.ask(token)) for _ in range(times)]
    return [each.result() for each in asking]


@pytest.mark.parametrize(
    ("budget", "let_through"),
    [
        (Budget(requests=5), 5),
        (Budget(requests=0), 0),
        (Budget(tokens=45), 3),
        (Budget(tokens=46), 4),
        (Budget(cost_usd=6.0), 3),
        (Budget(cost_usd=6.01), 4),
        (Budget(tokens=1000, requests=7, cost_usd=8.0), 4),
        (Budget(requests=6, concurrency=2), 6),
    ],
    ids=str,
)
async def test_a_budget_stops_at_its_exact_limit_however_many_ask_at_once(
    database_url: str, tmp_path: Path, budget: Budget, let_through: int
) -> None:
    async with desk(database_url, tmp_path, budget=budget, prices=PRICES) as here:
        token = await here.token()
        answers = await asked_at_once(here, token, 12)
        assert codes(answers) == Counter({"ok": let_through, Refusal.BUDGET: 12 - let_through})
        assert len(here.models.requests) == let_through
        used = await here.used()
        assert (used.requests, used.total_tokens, used.refused) == (let_through, 15 * let_through, 12 - let_through)
        assert used.cost_usd == (pytest.approx(2.0 * let_through) if let_through else None)
        last = await here.ask(token)
        assert (last.status_code, last.headers["x-should-retry"]) == (403, "false")
        assert "budget for models is used up" in last.json()["error"]["message"]
        assert (await here.used()).problem is Refusal.BUDGET


async def test_a_budget_holds_for_several_processes_together(database_url: str, tmp_path: Path) -> None:
    async with desk(database_url, tmp_path) as here:
        account = Account("shared", here.run_id, Budget(requests=7))
        await here.accounts.open(account)
        grant = Grant("f" * 24, "agent", "agent", account)
        wanted = Wanted(Dialect.CHAT, "m", "e", request_bytes=100)
        with Database.open(database_url) as other, Database.open(database_url) as third:
            several = [here.accounts, Accounts(other), Accounts(third)]
            found = await asyncio.gather(*(each.admit(grant, wanted) for _ in range(6) for each in several))
        assert Counter(type(each) for each in found) == {Admitted: 7, Refused: 11}


async def test_far_from_its_limit_calls_go_side_by_side_and_near_it_one_after_the_other(database_url: str, tmp_path: Path) -> None:
    owner = Owner.this_process()
    async with desk(database_url, tmp_path) as here:
        accounts = Accounts(here.db, owner)
        account = Account("a", here.run_id, Budget(tokens=100_000))
        await accounts.open(account)
        grant = Grant("f" * 24, "agent", "agent", account)
        wanted = Wanted(Dialect.CHAT, "m", "e", request_bytes=4000, ceiling=30_000)
        found = [await accounts.admit(grant, wanted) for _ in range(4)]
        assert [each if each == "wait" else type(each) for each in found] == [Admitted, Admitted, Admitted, "wait"]
        assert all(isinstance(each, Admitted) and each.ceiling is None for each in found[:3])


@pytest.mark.parametrize("dialect", sorted(PATHS))
async def test_the_call_that_could_cross_the_limit_is_told_to_answer_no_longer_than_what_is_left(tmp_path: Path, dialect: str) -> None:
    async with desk(f"sqlite:///{tmp_path}/runs.db", tmp_path, budget=Budget(tokens=40)) as here:
        token = await here.token()
        first = await here.ask(token, BODIES[dialect], PATHS[dialect])
        second = await here.ask(token, BODIES[dialect], PATHS[dialect])
        assert (first.status_code, second.status_code) == (200, 200)
        body = here.models.requests[1]["body"]
        names = ("max_completion_tokens", "max_output_tokens", "max_tokens", "maxOutputTokens")
        told = [value for name in names if (value := {**body, **body.get("generationConfig", {})}.get(name)) is not None]
        assert told == [15]  # 40 less the 15 of the first call, and the 10 that this request has itself


async def test_a_budget_of_money_lets_no_model_through_that_has_no_price(tmp_path: Path) -> None:
    async with desk(f"sqlite:///{tmp_path}/runs.db", tmp_path, budget=Budget(cost_usd=1.0), prices={"gpt-*": Price(1, 1)}) as here:
        token = await here.token()
        refused = await here.ask(token)
        assert refused.json()["error"]["code"] == Refusal.UNPRICED
        assert "no price for model 'm' (model.prices)" in refused.json()["error"]["message"]
        assert (await here.ask(token, {**HI, "model": "gpt-9"})).status_code == 200


async def test_no_more_calls_than_allowed_are_under_way_at_any_moment(tmp_path: Path) -> None:
    async with desk(f"sqlite:///{tmp_path}/runs.db", tmp_path, budget=Budget(concurrency=2)) as here:
        under_way = most = 0
        release = asyncio.Event()

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal under_way, most
            await reader.readuntil(b"\r\n\r\n")
            under_way += 1
            most = max(most, under_way)
            if under_way == 2:
                release.set()
            await release.wait()
            under_way -= 1
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}")
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        here.models.base = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        answers = await asked_at_once(here, await here.token(), 8)
        server.close()
        assert codes(answers) == Counter(ok=8)
        assert most == 2


async def test_calls_of_a_process_that_died_hold_no_room(database_url: str, tmp_path: Path) -> None:
    me = Owner.this_process()
    dead = Owner(2**22 - 1, 1, me.boot, me.machine, me.namespace, me.host, "keeper")
    async with desk(database_url, tmp_path, budget=Budget(concurrency=1, tokens=100_000)) as here:
        token = await here.token()
        grant = await asyncio.to_thread(here.accounts.find, token.split("-")[1])
        assert grant is not None
        assert isinstance(await Accounts(here.db, dead).admit(grant, Wanted(Dialect.CHAT, "m", "e", request_bytes=400)), Admitted)
        assert (await here.ask(token)).status_code == 200
        used = await here.used()
        assert (used.requests, used.estimated, used.input_tokens) == (2, 1, 110)


async def test_a_judge_has_a_budget_of_its_own(tmp_path: Path) -> None:
    scenarios = {"greet": Scenario((Step("hi"),))}
    async with desk(f"sqlite:///{tmp_path}/runs.db", tmp_path, scenarios, budget=Budget(requests=1)) as here:
        agent = await here.token("solver")
        assert codes([await here.ask(agent) for _ in range(2)]) == Counter({"ok": 1, Refusal.BUDGET: 1})
        here.account = Account(f"{here.run_id}/judge", here.run_id)
        judge = await here.token("judge", role="judge")
        assert (await here.ask(judge)).status_code == 200


@pytest.mark.parametrize(
    ("dialect", "body", "ceiling", "answers", "capped"),
    [
        (Dialect.CHAT, {"max_tokens": 9, "max_completion_tokens": 1, "n": 3}, 9, 3, {"max_tokens": 5, "max_completion_tokens": 5, "n": 3}),
        (Dialect.CHAT, {}, None, 1, {"max_completion_tokens": 5}),
        (
            Dialect.GEMINI,
            {"generation_config": {"max_output_tokens": 9, "candidate_count": 2}},
            *(9, 2),
            {"generation_config": {"max_output_tokens": 5, "candidate_count": 2}},
        ),
    ],
    ids=["both fields", "neither", "the other spelling"],
)
def test_the_longest_answer_is_read_and_bounded_however_a_request_spells_it(
    dialect: Dialect, body: dict[str, object], ceiling: int | None, answers: int, capped: dict[str, object]
) -> None:
    spelling = SPELLINGS[dialect]
    assert (spelling.ceiling(body), spelling.answers(body)) == (ceiling, answers)
    spelling.capped(body, 5)
    assert body == capped


async def test_several_answers_at_once_share_what_is_left(tmp_path: Path) -> None:
    async with desk(f"sqlite:///{tmp_path}/runs.db", tmp_path, budget=Budget(tokens=60)) as here:
        token = await here.token()
        asked = len((await here.ask(token, {**HI, "n": 3})).request.content) // 4  # the first: nothing is known yet of how long tokens are
        assert here.models.requests[0]["body"]["max_completion_tokens"] == (60 - asked) // 3
        refused = await here.ask(token, {**HI, "n": 50})
        assert refused.json()["error"]["code"] == Refusal.BUDGET
        assert "too little for 50 answers" in refused.json()["error"]["message"]
        assert (await here.ask(token)).status_code == 200


@pytest.mark.parametrize("told", [-7, 10**30, 7.5, True, "7", None])
def test_what_is_no_count_of_tokens_counts_nothing(told: object) -> None:
    assert SPELLINGS[Dialect.CHAT].counted({"usage": {"prompt_tokens": told, "completion_tokens": 3}}) == (0, 3, 0)

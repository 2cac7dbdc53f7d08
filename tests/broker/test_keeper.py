"""The broker in the keeper's own process: on this machine's loopback for places that share it, and told again after a kill."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path

import httpx
from agent_env_sdk.testing.models import Scenario, Step, serve_models

from agent_env.broker import Refusal
from agent_env.broker.accounts import Account, Accounts, Grant
from agent_env.broker.broker import proof_of
from agent_env.broker.contract import spelled_token
from agent_env.broker.endpoints import Endpoint, Endpoints
from agent_env.keeper import installed_status
from agent_env.keeper.telling import ModelsTold
from agent_env.stores import Database, Journal, NewRun
from agent_env.stores.installation import InstallationKey
from agent_env.waiting import poll
from tests.broker.world import HI, LIMITS
from tests.busy import within

GRANT = "c" * 24


async def test_a_place_that_shares_this_machines_loopback_is_served_there_also_by_a_keeper_that_replaces_a_killed_one(
    tmp_path: Path,
) -> None:
    limits = replace(LIMITS, keeper_idle_seconds=0.4, model_key_seconds=0.2)
    with Database.open(f"sqlite:///{tmp_path / 'runs.db'}") as db:
        run = await Journal(db).create_run(NewRun(run_id="run", task_id="task", instance_id="instance", task={}))
        accounts, key = Accounts(db), InstallationKey(tmp_path)
        account = Account(run.run_id, run.run_id)
        await accounts.open(account)
        await accounts.grant(Grant(GRANT, "agent", "agent", account, "known"))
        token = spelled_token(GRANT, proof_of(key, run.run_id, GRANT))
        told = ModelsTold(tmp_path, db.url, limits=limits)
        async with serve_models({"real": Scenario((Step("hello"),))}) as models, httpx.AsyncClient(timeout=within(20)) as http:

            async def asked(port: int | None) -> httpx.Response | None:
                try:
                    return await http.post(
                        f"http://127.0.0.1:{port}/v1/chat/completions", json=HI, headers={"authorization": f"Bearer {token}"}
                    )
                except httpx.TransportError:
                    return None

            try:
                port = await told.tell({}, listen=True)
                early = await asked(port)
                assert early is not None
                assert (early.status_code, early.json()["error"]["code"]) == (503, Refusal.KEY)  # the grant's endpoints were never told
                endpoints = Endpoints((Endpoint("e", models.base, models.key("real")),))
                assert await told.tell({"known": endpoints.plain()}) == port
                first = await asked(port)
                assert first is not None
                assert first.status_code == 200

                status = await installed_status(tmp_path)
                assert status.pid is not None
                os.kill(status.pid, signal.SIGKILL)

                async def again() -> httpx.Response | None:
                    answer = await asked(port)
                    return answer if answer is not None and answer.status_code == 200 else None

                await poll(again, within_seconds=within(20), what="an answer of the next keeper")
                assert (await installed_status(tmp_path)).pid != status.pid
            finally:
                await told.aclose()

        async def gone() -> bool | None:
            return (await installed_status(tmp_path)).pid is None or None

        await poll(gone, within_seconds=within(20), what="the keeper's end")

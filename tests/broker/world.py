"""A desk with everything but an agent: a scripted model server, the broker before it on a real socket, a run with its rows."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
from agent_env_sdk.testing.models import ModelServer, Scenario, Step, serve_models

from agent_env.broker import Budget, Price, Role, Usage
from agent_env.broker.accounts import Account, Accounts, Grant
from agent_env.broker.broker import Broker, proof_of
from agent_env.broker.contract import spelled_token
from agent_env.broker.endpoints import Endpoint, Endpoints
from agent_env.broker.serving import StreamPipe, serve
from agent_env.defaults import DEFAULT_LIMITS, Limits
from agent_env.redaction import Redactor
from agent_env.stores import Database, Journal, NewRun
from agent_env.stores.installation import InstallationKey
from tests.busy import within

LIMITS: Limits = replace(DEFAULT_LIMITS, model_retry_seconds=300.0, model_turn_seconds=300.0)
HI = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
PATHS = {
    "openai-chat": "/v1/chat/completions",
    "openai-responses": "/openai/v1/responses",
    "anthropic-messages": "/v1/messages",
    "gemini": "/gemini/v1beta/models/m:streamGenerateContent?alt=sse",
}
BODIES: Mapping[str, Mapping[str, Any]] = {
    "openai-chat": {**HI, "stream": True},
    "openai-responses": {"model": "m", "input": "hi", "stream": True},
    "anthropic-messages": {**HI, "stream": True, "max_tokens": 100},
    "gemini": {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]},
}


@dataclass
class Desk:
    """One run that asks for models."""

    models: ModelServer
    db: Database
    accounts: Accounts
    broker: Broker
    key: InstallationKey
    base: str
    run_id: str
    http: httpx.AsyncClient
    endpoints: dict[str, Endpoints]
    redactor: Redactor
    account: Account
    folder: Path
    told: list[str] = field(default_factory=list)

    async def token(self, holder: str = "agent", *, scenario: str = "greet", role: Role = "agent", **more: Any) -> str:
        """A token whose endpoint has that scenario's key."""
        name = f"to-{scenario}"
        endpoint = Endpoint("scripted", self.models.base, self.models.key(scenario), **more)
        self.tell(name, Endpoints((endpoint,), self.endpoints["prices"].prices))
        return await self.grant(holder, name, role=role)

    def tell(self, name: str, endpoints: Endpoints) -> None:
        self.endpoints[name] = endpoints
        self.redactor.add(*endpoints.secrets())

    async def grant(self, holder: str, name: str, *, role: Role = "agent") -> str:
        await self.accounts.open(self.account)
        grant_id = holder.encode().hex().ljust(24, "0")[:24]
        await self.accounts.grant(Grant(grant_id, holder, role, self.account, name))
        return spelled_token(grant_id, proof_of(self.key, self.run_id, grant_id))

    async def ask(self, token: str, body: Mapping[str, Any] = HI, path: str = "/v1/chat/completions", **more: Any) -> httpx.Response:
        return await self.http.post(f"{self.base}{path}", json=dict(body), headers={"authorization": f"Bearer {token}"}, **more)

    async def used(self, **which: Any) -> Usage:
        return await self.accounts.usage(self.run_id, **which)

    def written(self) -> str:
        """Everything that this desk's files hold, as text: the database, transcript and recordings."""
        self.db.write(lambda tx: tx.execute("SELECT 1 AS one"))
        return "".join(path.read_bytes().decode("latin-1") for path in self.folder.rglob("*") if path.is_file())


@asynccontextmanager
async def desk(
    url: str,
    folder: Path,
    scenarios: Mapping[str, Scenario] | None = None,
    *,
    budget: Budget | None = None,
    prices: Mapping[str, Price] | None = None,
    limits: Limits = LIMITS,
    **account: Any,
) -> AsyncIterator[Desk]:
    """The desk while the block runs. `account`: record, replay, keep."""
    scenarios = scenarios or {"greet": Scenario((Step("hello"),))}
    with Database.open(url) as db:
        run = await Journal(db).create_run(NewRun(run_id=secrets.token_hex(8), task_id="task", instance_id="instance", task={}))
        known: dict[str, Endpoints] = {"prices": Endpoints((), prices or {})}

        async def told(name: str) -> Endpoints | None:
            return known.get(name)

        redactor, key, accounts = Redactor(), InstallationKey(folder / "state"), Accounts(db)
        broker = Broker(accounts, key, told, redactor=redactor, limits=limits)
        opened = Account(run.run_id, run.run_id, budget or Budget(), transcript=str(folder / "models.jsonl"), **account)
        async with serve_models(scenarios) as models, _served(broker, limits) as base, httpx.AsyncClient(timeout=within(60)) as http:
            yield Desk(models, db, accounts, broker, key, base, run.run_id, http, known, redactor, opened, folder)
        await broker.aclose()


@asynccontextmanager
async def _served(broker: Broker, limits: Limits) -> AsyncIterator[str]:
    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(StreamPipe(reader, writer), broker, limits)
        finally:
            writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


def transcript(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "models.jsonl").read_text().splitlines()]

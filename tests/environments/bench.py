"""A run of our own, in which environments are deployed as a step would, and found again as another process would."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from agent_env.artifacts.image_artifacts import ImageSource
from agent_env.documents.records import DeployedEnvironment
from agent_env.engine import Engine
from agent_env.engine.making import RunMaking
from agent_env.engine.owned import OwnedRun
from agent_env.engine.resume import Resumption
from agent_env.engine.shared import Shared
from agent_env.engine.signals import Cancellation
from agent_env.environments.contract import DeployOptions, DeployPlan, LiveEnvironment, ServerPlan
from agent_env.environments.deploy import attach, deploy
from agent_env.environments.records import new_instance_id
from agent_env.images import BuildContext, BuildRequest, ImageReference
from tests.engine.parts import engine_at, planned
from tests.wheels import share_wheels

T = TypeVar("T")
HERE = Path(__file__).parent
STOCK = "agentenv-test/stock:1"


def stock_image() -> BuildRequest:
    """The stock-room server, built in the engine when its sources have changed."""
    return BuildRequest(BuildContext.of(HERE / "server"), ImageReference.parse(STOCK))


def stock_with(folder: Path, tag: str, **variables: str) -> BuildRequest:
    """The stock-room server with other variables."""
    folder.mkdir(parents=True)
    (folder / "server.py").write_bytes((HERE / "server/server.py").read_bytes())
    lines = [(HERE / "server/Dockerfile").read_text().strip()]
    lines += [f"ENV {name}={value}" for name, value in variables.items()]
    (folder / "Dockerfile").write_text("\n".join(lines) + "\n")
    return BuildRequest(BuildContext.of(folder), ImageReference.parse(f"agentenv-test/{tag}:1"))


def plan(*names: str, provider: str = "server", images: Mapping[str, ImageSource] | None = None, **fields: Any) -> DeployPlan:
    """Servers of these names, each the stock-room unless `images` says another."""
    servers = tuple(ServerPlan(name, (images or {}).get(name) or stock_image(), f"{name}-env", 1) for name in names)
    env_id = fields.pop("env_id", names[0] if names else "site")
    kind = fields.pop("kind", "multi" if len(names) > 1 else "mcp_server")
    options = fields.pop("options", None) or DeployOptions(**fields.pop("chosen", {}))
    return DeployPlan(env_id, 1, kind, provider, servers, instance_id=new_instance_id(env_id), step_id="env", options=options, **fields)


@dataclass
class World:
    """A run that this process owns."""

    engine: Engine
    shared: Shared
    run_id: str
    provider: str = "local"
    said: list[str] = field(default_factory=list)
    makings: list[RunMaking] = field(default_factory=list)

    def making(self, **changes: Any) -> RunMaking:
        given = {"attempt_id": "attempt-1", "sandbox_provider": self.provider, "tell": self.said.append, "env_id": "env", **changes}
        made = RunMaking(self.shared, **given)
        self.makings.append(made)
        return made

    async def deploy(self, wanted: DeployPlan) -> LiveEnvironment:
        return await deploy(wanted, self.making())

    async def attach(self, record: Mapping[str, Any] | DeployedEnvironment) -> LiveEnvironment:
        read = record if isinstance(record, DeployedEnvironment) else DeployedEnvironment.read(record)
        return await attach(read, self.making())


@asynccontextmanager
async def world(root: Path, *, provider: str = "local", run_id: str | None = None, keep: bool = False) -> AsyncIterator[World]:
    """A run with nothing in it, or an earlier one taken over. Unless `keep`, what it made is removed at the end."""
    share_wheels(root)
    async with engine_at(root) as engine:
        if run_id is None:
            run_id = await engine.submit(planned(engine, [{"id": "env", "type": "t_note", "log": str(root / "log")}]))
        lease = await engine.stores.journal.claim(run_id)
        owned = OwnedRun(engine._house, lease, Cancellation(), observer=None, asked=Resumption(), overrides={})
        shared = owned._share(engine.stores.journal.load(run_id))
        here = World(engine, shared, run_id, provider)
        try:
            yield here
        finally:
            for making in here.makings:
                await making.aclose()
            if not keep:
                report = await shared.sandboxes.destroy([row.id for row in shared.sandboxes.rows()])
                assert report.clean, report
            await shared.sandboxes.aclose()
            await engine.stores.journal.release(lease)


@dataclass(frozen=True)
class Deployed:
    """An environment that stays for a module's tests, each of which finds it again as another process would."""

    root: Path
    run_id: str
    record: dict[str, Any]
    provider: str = "local"

    @asynccontextmanager
    async def found(self) -> AsyncIterator[tuple[World, LiveEnvironment]]:
        async with world(self.root, provider=self.provider, run_id=self.run_id, keep=True) as here:
            live = await here.attach(self.record)
            try:
                yield here, live
            finally:
                await live.aclose()


@contextmanager
def standing(root: Path, wanted: DeployPlan, *, provider: str = "local") -> Iterator[Deployed]:
    """Deploys in a loop of its own, and removes at the end."""

    async def begin() -> Deployed:
        async with world(root, provider=provider, keep=True) as here:
            try:
                live = await here.deploy(wanted)
            except BaseException:  # nobody gets it: nothing of it may stay
                await here.shared.sandboxes.destroy([row.id for row in here.shared.sandboxes.rows()])
                raise
            try:
                return Deployed(root, here.run_id, live.record.to_json(), provider)
            finally:
                await live.aclose()

    async def end(run_id: str) -> None:
        async with world(root, run_id=run_id):
            pass

    made = run(begin())
    try:
        yield made
    finally:
        run(end(made.run_id))


def run(coroutine: Coroutine[Any, Any, T], seconds: float = 500) -> T:
    """In a loop of its own, and within a time that a busy machine needs."""
    return asyncio.run(asyncio.wait_for(coroutine, seconds))


def items(**quantities: int) -> list[dict[str, Any]]:
    """A part of the stock-room's data."""
    return [{"kind": "data", "data": {"items": [{"sku": sku, "qty": qty} for sku, qty in sorted(quantities.items())]}}]


def held(parts: list[dict[str, Any]]) -> dict[str, int]:
    """What exported parts say."""
    return {row["sku"]: row["qty"] for part in parts for row in part["data"]["items"]}

"""Environments and agents of a stored run, at hand of somebody who does not own the run: for people to look at, and to talk with."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from typing import TYPE_CHECKING

from agent_env.documents.records import DeployedAgent, DeployedEnvironment
from agent_env.documents.updates import Json
from agent_env.engine.context import Fold
from agent_env.engine.events import EventStream
from agent_env.engine.execution import committed_of
from agent_env.engine.shared import Shared
from agent_env.engine.teardown import PROMPT_KIND
from agent_env.errors import AgentEnvError, PlacementError
from agent_env.steps.prompting import ENDED
from agent_env.stores.owners import Owner
from agent_env.stores.records import OPEN_STATES, Lease
from agent_env.waiting import pause

if TYPE_CHECKING:
    from agent_env.agents import LiveAgent
    from agent_env.engine.owned import House
    from agent_env.environments import LiveEnvironment
    from agent_env.stores.records import ResourceRow, StoredRun


@asynccontextmanager
async def environment_of(house: House, stored: StoredRun, env_id: str | None) -> AsyncIterator[LiveEnvironment]:
    """A deployed environment. See `Engine.environment_of_run`."""
    async with _shared(house, stored) as shared:
        record = _environment(shared.context(), stored.run.run_id, env_id)
        yield await shared.live_environments().live(record, "", lambda _: None)


@asynccontextmanager
async def agent_of(house: House, stored: StoredRun, name: str | None) -> AsyncIterator[LiveAgent]:
    """A deployed agent. See `Engine.agent_of_run`."""
    async with _shared(house, stored) as shared:
        record = _agent(shared.context(), stored.run.run_id, name)
        yield await shared.live_agents().live(record, "", lambda _: None)


async def recorded_meanwhile(house: House, run_id: str) -> AsyncGenerator[Mapping[str, Json], None]:
    """What agents record of prompts that are under way. See `Engine.trajectory_of_run`."""
    journal, told = house.stores.journal, dict[str, int]()
    over = {row.id for row in _prompts(journal.resources(run_id)) if row.state not in OPEN_STATES}
    while True:
        stored = journal.load(run_id)
        for row in _prompts(stored.resources):
            if row.id in over:
                continue
            async with aclosing(_news(house, stored, row, told.get(row.id, 0))) as events:
                async for event in events:
                    told[row.id] = told.get(row.id, 0) + 1
                    yield {"agent": row.name, "message_id": row.id, "event": event}
            if row.facts.get(ENDED) or row.state not in OPEN_STATES:
                over.add(row.id)
        if stored.run.finished_at is not None:
            return
        await pause(house.limits.agent_poll_seconds)


async def _news(house: House, stored: StoredRun, row: ResourceRow, position: int) -> AsyncGenerator[Json, None]:
    """A prompt's events from a position on: as they were kept, once it has ended; until then as its agent tells them."""
    ended, task_id = row.facts.get(ENDED), row.facts.get("task_id")
    if ended is not None:
        objects = house.stores.objects
        kept = json.loads(objects.read(str(ended)))["trajectory"]["object_url"]
        for event in json.loads(objects.read(kept))[position:]:
            yield event
    elif task_id is not None:
        with suppress(AgentEnvError):  # an agent that is gone, or silent for now: what it told is kept at the prompt's end
            async with agent_of(house, stored, row.name) as agent, aclosing(agent.recorded_since(str(task_id), position)) as pages:
                async for events in pages:
                    for event in events:
                        yield event


def _prompts(rows: Iterable[ResourceRow]) -> list[ResourceRow]:
    return [row for row in rows if row.kind == PROMPT_KIND]


@asynccontextmanager
async def _shared(house: House, stored: StoredRun) -> AsyncIterator[Shared]:
    """The run as its record tells of it; its owner keeps its hold on it."""
    run = stored.run
    ended = (committed for row in stored.attempts if (committed := committed_of(row)))
    context = Fold.of(stored.context or {}, ended, stored.resets).context
    lease = Lease(run.run_id, run.epoch, Owner.this_process())
    shared = Shared(
        run_id=run.run_id,
        task_id=run.task_id,
        instance_id=run.instance_id,
        lease=lease,
        stores=house.stores,
        sandboxes=house.sandboxes(lease, stored),
        events=EventStream(lease, house.stores.journal, house.redactor, house.clock, []),
        redactor=house.redactor,
        limits=house.limits,
        clock=house.clock,
        environments=house.environments,
        agents=house.agents,
        model_settings=house.models,
        state_root=house.installation.state_root,
        context=lambda: context,
        overrides={},
    )
    try:
        yield shared
    finally:
        await shared.let_go()


def _environment(context: Mapping[str, Json], run_id: str, env_id: str | None) -> DeployedEnvironment:
    records = [DeployedEnvironment.read(each) for each in context.get("deployed_envs") or ()]
    named = [each for each in records if env_id is None or env_id in {each.env_id, each.env_id.rpartition("/")[2]}]
    if len(named) == 1:
        return named[0]
    raise _unclear(run_id, "environment", env_id, [each.env_id.rpartition("/")[2] for each in records])


def _agent(context: Mapping[str, Json], run_id: str, name: str | None) -> DeployedAgent:
    records = [DeployedAgent.read(each) for each in context.get("deployed_agents") or ()]
    named = [each for each in records if name in {None, each.agent_name}]
    if len(named) == 1:
        return named[0]
    raise _unclear(run_id, "agent", name, [each.agent_name for each in records])


def _unclear(run_id: str, kind: str, name: str | None, there: list[str]) -> PlacementError:
    what = f"no {kind} {name!r}" if name else f"no {kind}" if not there else f"several {kind}s"
    return PlacementError(f"run {run_id} has {what}", concerns=run_id, hint=f"its {kind}s: {', '.join(there) or 'none'}")

"""Events, places, environments and agents of a run, at hand of somebody who does not own it: for people to look at, and to talk with."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from agent_env.documents.records import DeployedAgent, DeployedContainer, DeployedEnvironment, DeployedSandbox
from agent_env.documents.updates import Json
from agent_env.engine import control
from agent_env.engine.events import Event, EventStream
from agent_env.engine.history import fold_of
from agent_env.engine.shared import Shared
from agent_env.engine.submission import learn_references
from agent_env.engine.teardown import PROMPT_KIND
from agent_env.errors import AgentEnvError, DeadlineError, PlacementError
from agent_env.places import Place, Shape
from agent_env.steps.prompting import ENDED
from agent_env.stores.owners import Owner
from agent_env.stores.records import OPEN_STATES, Lease
from agent_env.waiting import pause, poll

if TYPE_CHECKING:
    from agent_env.agents import LiveAgent
    from agent_env.engine.owned import House
    from agent_env.environments import LiveEnvironment
    from agent_env.stores.records import ResourceRow, StoredRun


async def events_of(house: House, run_id: str, after: int) -> AsyncGenerator[Event, None]:
    """A run's events. See `Engine.events`."""
    folder, journal = control.run_folder(house.installation.state_root, run_id), house.stores.journal
    last = after
    await _until_it_listens(house, run_id, folder)
    async for line in control.stream(folder, {"do": "events", "after": after}):
        last = line["seq"]
        yield Event(**line)
    while rows := journal.events(run_id, last):
        for row in rows:
            last = row.seq
            yield Event(row.run_id, row.seq, row.at, row.kind, row.step_id, row.payload)


async def _until_it_listens(house: House, run_id: str, folder: Path) -> None:
    """A run that has just begun opens its socket in a moment; one on another machine never does."""

    async def look() -> bool | None:
        return True if control.is_open(folder) or not house.stores.journal.is_owned(run_id) else None

    limits = house.limits
    with suppress(DeadlineError):
        await poll(look, within_seconds=limits.connect_seconds, what=f"the control socket of run {run_id}", limits=limits)


async def place_of(house: House, stored: StoredRun, name: str | None) -> Place:
    """A place of a sandbox, an agent or a container beside a machine. See `Engine.place_of_run`."""
    await asyncio.to_thread(learn_references, stored.task or {}, house.stores.secrets)
    run_id, context = stored.run.run_id, fold_of(stored).context
    agents = {str(r["agent_name"]): DeployedAgent.read(r) for r in context.get("deployed_agents") or ()}
    machines = {str(r["sandbox_name"]): DeployedSandbox.read(r) for r in context.get("deployed_sandboxes") or ()}
    own: dict[str, DeployedAgent | DeployedSandbox] = {**agents, **machines}
    records: dict[str, DeployedAgent | DeployedSandbox | DeployedContainer] = {**_containers(context, own), **own}
    if name is None and len(own) == 1:
        name = next(iter(own))
    record = records.get(name or "")
    if record is None or record.sandbox_id is None:
        there = ", ".join([*own, *(each for each in records if each not in own)])
        raise PlacementError(f"run {run_id} has no place {name!r}", concerns=run_id, hint=f"its places: {there or 'none'}")
    sandboxes = house.sandboxes(Lease(run_id, stored.run.epoch, Owner.this_process()), stored)
    if isinstance(record, DeployedContainer):
        return await (await sandboxes.hold(record.sandbox_id)).sandbox.container(str(record.container_id))
    held = await sandboxes.hold(record.sandbox_id, record.sandbox_type)
    beside = held.shape is Shape.MACHINE_BACKED and record.recorded in {"container", "in_container"}
    container_id = record.container_id or (await sandboxes.own_container(record.sandbox_id, held) if beside else None)
    return await (held.sandbox.machine() if container_id is None else held.sandbox.container(container_id))


def _containers(context: Mapping[str, Json], taken: Iterable[str]) -> dict[str, DeployedContainer]:
    """Containers that steps started beside a machine, each by its name; by `SANDBOX.NAME` where something else is called so."""
    recorded = (context.get("metadata") or {}).get("deployed_docker_containers") or ()
    found = [each for each in map(DeployedContainer.read, recorded) if each.container_id]
    count = Counter([*taken, *(each.container_name for each in found)])
    return {
        each.container_name if count[each.container_name] == 1 else f"{each.sandbox_name}.{each.container_name}": each for each in found
    }


@asynccontextmanager
async def environment_of(house: House, stored: StoredRun, env_id: str | None) -> AsyncIterator[LiveEnvironment]:
    """A deployed environment. See `Engine.environment_of_run`."""
    async with _shared(house, stored) as shared:
        record = _environment(shared.context(), stored.run.run_id, env_id)
        yield await shared.live_environments().live(record, "", lambda _: None)


@asynccontextmanager
async def agent_of(house: House, stored: StoredRun, name: str | None, *, needed: bool = True) -> AsyncIterator[LiveAgent]:
    """A deployed agent. See `Engine.agent_of_run`."""
    async with _shared(house, stored) as shared:
        record = _agent(shared.context(), stored.run.run_id, name)
        yield await shared.live_agents().live(record, "", lambda _: None, needed=needed)


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
            async with (
                agent_of(house, stored, row.name, needed=False) as agent,
                aclosing(agent.recorded_since(str(task_id), position)) as pages,
            ):
                async for events in pages:
                    for event in events:
                        yield event


def _prompts(rows: Iterable[ResourceRow]) -> list[ResourceRow]:
    return [row for row in rows if row.kind == PROMPT_KIND]


@asynccontextmanager
async def _shared(house: House, stored: StoredRun) -> AsyncIterator[Shared]:
    """The run as its record tells of it; its owner keeps its hold on it."""
    run = stored.run
    context = fold_of(stored).context
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

"""Changelogs of agents in a run: which artifact holds one, keeping it up while an agent works, and where a task says which is meant."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from agent_env.agents import changelogs
from agent_env.errors import AgentEnvError, InfrastructureError, NotFoundError, Problem, UserError
from agent_env.ids import derive_id, fs_safe
from agent_env.waiting import deadline, pause

if TYPE_CHECKING:
    from agent_env.agents import LiveAgent
    from agent_env.steps.contract import Plan, Run

Json = Any
_ARTIFACT, _AGENT = "artifact:", "agent:"
_DEPLOYMENT_CHARACTERS: Final = 8
"""Of an instance's id: what tells two deployments of an agent apart."""
_VERSIONED: Final = re.compile(r"(?P<id>.+)@(?P<version>[0-9]+)")


def artifact_of(run: Run, agent_name: str) -> str | None:
    """The artifact that holds an agent's changes, a file an increment; None of an agent that records none."""
    rows = [each for each in run.metadata.get("agent_changelog") or () if each.get("agent_name") == agent_name]
    return str(rows[-1]["object_url"]).removeprefix(_ARTIFACT) if rows else None


async def begun(run: Run, agent: LiveAgent) -> dict[str, Json]:
    """Has an agent record its changes. Returns what the run's context keeps of that. Raises as `changelogs.enable`."""
    roots = await changelogs.enable(agent, clock=run.clock, seconds=run.limits.agent_changelog_seconds)
    name, deployment = agent.record.agent_name, str(agent.record.instance_id)[-_DEPLOYMENT_CHARACTERS:]
    id = derive_id(run.instance_id, f"{fs_safe(name)}-{deployment}-agent-changelog")  # one deployed again begins anew
    return {"agent_name": name, "roots": list(roots), "transfer_mode": "staging", "object_url": f"{_ARTIFACT}{id}"}


async def rewound(run: Run, agent: LiveAgent, url: str, before: int | None) -> dict[str, Json]:
    """Has an agent replay recorded changes. Returns what the run's context keeps of that.

    Args:
        run: The run.
        agent: Who replays them.
        url: Where they are: `artifact:ID`, `artifact:ID@VERSION`, or `agent:NAME` for an agent of this run.
        before: Only those before this tool call.

    Raises:
        NotFoundError: There are none.
        UserError: The artifact is no changelog.
        AgentNotAdvertisedError: The agent can't.
        InfrastructureError: It could not.
    """
    id, version = _named(run, url)
    document = run.artifacts.get(id, version)
    run.used("artifacts", document.id, document.version, document.digest)
    try:
        stored = {name: ref for name, ref in run.artifacts.files(document.id, document.version).items() if _before(name, before)}
    except ValueError as error:
        raise UserError(f"artifact {id!r} is no changelog: {error}", hint="enable_agent_changelog makes them") from error
    files = {name: run.artifacts.path(ref) for name, ref in stored.items()}
    seconds = run.limits.agent_changelog_seconds
    context_id = await changelogs.apply(agent, files, limits=run.limits, clock=run.clock, seconds=seconds)
    return {
        "agent_name": agent.record.agent_name,
        "context_id": context_id,
        "up_to_tool_call_exclusive": before,
        "transfer_mode": "staging",
        "object_url": f"{_ARTIFACT}{document.id}@{document.version}",
        "increments": len(files),
    }


def _before(name: str, position: int | None) -> bool:
    sequence = changelogs.sequence_of(name)
    return position is None or sequence < position


def _named(run: Run, url: str) -> tuple[str, int | None]:
    if url.startswith(_AGENT):
        name = url.removeprefix(_AGENT)
        id = artifact_of(run, name)
        if id is None:
            raise NotFoundError(f"agent {name!r} of this run records no changes", hint="deploy it with enable_agent_changelog")
        return id, None
    found = _VERSIONED.fullmatch(url.removeprefix(_ARTIFACT))
    return (found["id"], int(found["version"])) if found else (url.removeprefix(_ARTIFACT), None)


def url_problems(url: str, plan: Plan, step_id: str) -> Iterator[Problem]:
    """What is wrong with where changes are said to be."""
    path = ".agent_changelog_object_url"
    if url.startswith(_AGENT):
        name = url.removeprefix(_AGENT)
        recording = plan.deployers(step_id, "deploy_agent", agent_name=name, enable_agent_changelog=True)
        if not recording and name not in [each.get("agent_name") for each in plan.preset("deployed_agents")]:
            yield Problem(f"no agent {name!r} that records its changes is deployed before", path=path)
    elif not url.startswith(_ARTIFACT):
        yield Problem(f"{url!r} names no changelog", path=path, hint="artifact:ID, artifact:ID@VERSION, or agent:NAME of this run")
    elif plan.artifacts is not None:
        found = _VERSIONED.fullmatch(url.removeprefix(_ARTIFACT))
        id, version = (found["id"], int(found["version"])) if found else (url.removeprefix(_ARTIFACT), None)
        if plan.artifact(id, version) is None:
            yield Problem(f"artifact {id!r} does not exist", path=path)


@dataclass
class Keeping:
    """Keeps up with what an agent records.

    Args:
        run: The step's run.
        agent: Who records.
        artifact_id: Where it is kept.
    """

    run: Run
    agent: LiveAgent
    artifact_id: str
    problem: AgentEnvError | None = None
    """Why the last look did not succeed."""
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    _looks: int = 0

    async def look(self) -> int:
        """Fetches what is new, and makes a version of the artifact of it. Returns how many increments came.

        Raises:
            InfrastructureError: It can't be had.
        """
        async with self._turn:
            self._looks += 1
            folder = self.run.scratch() / f"changes-{self._looks}"
            await asyncio.to_thread(folder.mkdir, parents=True)
            id, stored = self.artifact_id, dict[str, Any]()
            with suppress(NotFoundError):
                document = self.run.artifacts.get(id)
                stored = dict(self.run.artifacts.files(document.id, document.version))
            came = await changelogs.fetched(self.agent, folder, known=frozenset(stored), limits=self.run.limits)
            if came:
                await asyncio.to_thread(self.run.artifacts.put_universe, id, {**stored, **came})
                await changelogs.cleared(self.agent, sorted(came))
            return len(came)

    async def follow(self) -> None:
        """Looks now and then until it is cancelled; what can't be had now is had later."""
        while True:
            await pause(self.run.limits.agent_changelog_drain_seconds)
            with suppress(AgentEnvError):
                await self.look()


@asynccontextmanager
async def keeping(run: Run, agent: LiveAgent) -> AsyncIterator[Keeping | None]:
    """Keeps up with an agent's changes for as long as the block runs, and once more at its end. None: it records none.

    What is missing in the end is told by `problem`: the block's own ending comes first.
    """
    id = artifact_of(run, agent.record.agent_name)
    if id is None:
        yield None
        return
    kept = Keeping(run, agent, id)
    following = asyncio.ensure_future(kept.follow())
    try:
        yield kept
    finally:
        following.cancel()
        await asyncio.wait({following})
    try:
        async with deadline(run.limits.agent_changelog_seconds, "fetching what the agent changed"):
            await kept.look()
    except AgentEnvError as error:
        told = f"what agent {agent.record.agent_name!r} changed could not be fetched: {error.message}"
        kept.problem = InfrastructureError(told, concerns=agent.record.agent_name)


def changelog_rows(told: Mapping[str, Json]) -> Iterator[tuple[str, dict[str, Json]]]:
    """Lists of the run's metadata, and what is added to each."""
    for key, name in (("rewound", "agent_changelog_rewinds"), ("changelog", "agent_changelog"), ("loaded", "agent_loaded_snapshots")):
        if told.get(key):
            yield name, dict(told[key])

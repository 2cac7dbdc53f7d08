"""Agents as commands name them: what can be deployed, those of runs, and those at an address."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agent_env.cli.output import note
from agent_env.cli.stored import recorded_as_up
from agent_env.errors import TaskError, UsageError

if TYPE_CHECKING:
    from agent_env.agents import LiveAgent
    from agent_env.engine import Engine, RunOutcome
    from agent_env.stores.opening import Memory

AGENT = "agent"
"""What an agent is called that a command deploys."""


@dataclass(frozen=True)
class Deployment:
    """How commands deploy an agent."""

    what: str
    """A folder, BUNDLE:NAME, an alias, or a stored id."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Of the `deploy_agent` step."""
    environments: Sequence[str] = ()
    """Environments that it is to use; brought up before it."""
    sandbox: str | None = None
    name: str = AGENT

    async def steps(self, engine: Engine) -> list[dict[str, Any]]:
        """What brings it up; what is not stored yet is stored."""
        from agent_env.bundles.model import BundleKind
        from agent_env.cli.named_documents import written

        env_ids = [await written(BundleKind.ENV, each, engine.stores) for each in self.environments]
        agent_id = await written(BundleKind.AGENT, self.what, engine.stores)
        deployed = [{"id": f"env-{number}", "type": "deploy_env", "env_id": id} for number, id in enumerate(env_ids, 1)]
        agent = {"id": "agent", "type": "deploy_agent", "a2a_agent_id": agent_id, "agent_name": self.name, "env_ids": env_ids}
        return [*deployed, {**agent, **self.fields}]

    async def brought_up(self, engine: Engine, watcher: Any = None, *, why: str, begun: Callable[[], None] = lambda: None) -> RunOutcome:
        """A run that leaves the agent up.

        Args:
            engine: Runs it.
            watcher: Shows how it goes.
            why: What the run is called after the agent.
            begun: Called once all that it names is there.

        Raises:
            TaskError: It did not come up; nothing is left.
        """
        overrides = {"sandbox": self.sandbox} if self.sandbox else {}
        steps = await self.steps(engine)
        begun()
        return await kept(engine, steps, f"{self.what}/{why}", overrides, watcher)


async def kept(
    engine: Engine, steps: Sequence[Mapping[str, Any]], task_id: str, overrides: Mapping[str, Any], watcher: Any = None
) -> RunOutcome:
    """A run of these steps that leaves its places.

    Raises:
        TaskError: It failed; nothing is left.
    """
    from agent_env.engine import RunOptions, plan_document

    plan = plan_document(list(steps), source=task_id, task_id=task_id, artifacts=engine.stores.artifacts, overrides=overrides)
    run_id = await engine.submit(plan, RunOptions(keep=True, overrides=overrides))
    if watcher is not None:
        watcher.begin(run_id, task_id)
    outcome = await engine.execute(run_id, watcher)
    if outcome.status != "completed":
        await engine.teardown(run_id)
        raise not_up(outcome)
    return outcome


def not_up(outcome: RunOutcome) -> TaskError:
    """Why what a command was to bring up is not there, and where to look."""
    error = outcome.error or {}
    hints = [str(error["hint"])] if error.get("hint") else []
    message = str(error.get("message") or "it did not come up")
    return TaskError(message, concerns=outcome.run_id, hint="; ".join([*hints, f"agent-env runs show {outcome.run_id}"]))


@asynccontextmanager
async def for_a_while(
    engine: Engine, deployment: Deployment, why: str, *, begun: Callable[[], None] = lambda: None
) -> AsyncIterator[LiveAgent]:
    """An agent that is taken down when the block ends; `begun` as for `Deployment.brought_up`."""
    outcome = await deployment.brought_up(engine, why=why, begun=begun)
    try:
        async with engine.agent_of_run(outcome.run_id, deployment.name) as agent:
            yield agent
    finally:
        await engine.teardown(outcome.run_id)


@asynccontextmanager
async def at_hand(engine: Engine, target: str, deployment: Deployment, why: str) -> AsyncIterator[LiveAgent]:
    """The agent of `RUN[:AGENT]`, of an address, or one that is brought up for as long as the block runs."""
    from agent_env.cli.session import find_run

    if is_address(target):
        steps = [{"id": "there", "type": "deploy_human_agent", "agent_name": AGENT, "a2a_url": target}]
        outcome = await kept(engine, steps, f"{target}/{why}", {})
        async with engine.agent_of_run(outcome.run_id) as agent:
            yield agent
    elif target.startswith("run-"):
        run, _, name = target.partition(":")
        async with engine.agent_of_run(find_run(engine.stores, run).run_id, name or None) as agent:
            yield agent
    else:
        async with for_a_while(engine, deployment, why, begun=lambda: note(f"bringing up {target}")) as agent:
            yield agent


def is_address(target: str) -> bool:
    """Whether somebody's own server is meant."""
    return target.startswith(("http://", "https://"))


def variables_of(pairs: Sequence[str]) -> dict[str, str]:
    """`NAME=VALUE` texts as a table.

    Raises:
        UsageError: One is none.
    """
    found = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise UsageError(f"{pair!r} is not NAME=VALUE")
        found[name] = value
    return found


def deployed_of(memory: Memory) -> Iterator[dict[str, Any]]:
    """Agents of the newest runs whose sandboxes are recorded as being there."""
    for run_id, record in recorded_as_up(memory, "deployed_agents"):
        yield {
            "run": run_id,
            "agent": record["agent_name"],
            "agent_id": str(record.get("instance_id") or "").rpartition("-")[0],
            "a2a_url": record.get("a2a_url"),
            "role": record.get("role"),
        }

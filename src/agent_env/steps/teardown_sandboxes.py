"""`teardown_sandboxes`: gives sandboxes back before the run ends."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar, Self

from pydantic import field_validator, model_validator

from agent_env.documents.updates import ExtendMetadata, Json, Update
from agent_env.errors import AgentEnvError
from agent_env.steps import agent_changes
from agent_env.steps.contract import EntityRef, OnResume, Run, Step, StepResult
from agent_env.steps.fields import Texts


@dataclass(frozen=True, slots=True)
class SandboxesTornDown(StepResult):
    """What is gone."""

    sandbox_ids: tuple[str, ...]
    remarks: tuple[str, ...] = ()
    """Unknown names, and sandboxes that could not be removed."""

    def updates(self) -> tuple[Update, ...]:
        """Notes the ids; the records of what was deployed stay."""
        return (ExtendMetadata(("torn_down_sandbox_ids",), list(self.sandbox_ids)),)

    def summary(self) -> str:
        """How many, and what did not work."""
        return "; ".join((f"{len(self.sandbox_ids)} torn down", *self.remarks))


_GUEST = ("container_name", "on_host", "installed_container")
"""What a record of an agent has that was put beside or onto a machine of somebody else's."""


class TeardownSandboxes(Step, type="teardown_sandboxes"):
    """Tear down deployed sandboxes, agents and environments by name. Never fails the run; unknown names are only remarked."""

    on_resume: ClassVar[OnResume] = OnResume.REPEAT
    entity_refs: ClassVar[tuple[EntityRef, ...] | None] = (EntityRef("env", "env_ids[]"),)

    fail_task_on_error: bool = False
    """Always false: a sandbox that can't be removed now is removed when the run is torn down."""
    agent_names: Texts = ()
    """Agents whose sandboxes are torn down."""
    env_ids: Texts = ()
    """Environments whose sandboxes are torn down."""
    sandbox_names: Texts = ()
    """Sandboxes of `deploy_sandbox` steps."""

    @field_validator("fail_task_on_error")
    @classmethod
    def _forgiving(cls, value: bool) -> bool:
        if value:
            raise ValueError("must be false: a sandbox that can't be removed now is removed when the run is torn down")
        return value

    @model_validator(mode="after")
    def _names_something(self) -> Self:
        if not (self.agent_names or self.env_ids or self.sandbox_names):
            raise ValueError("names nothing to tear down; set agent_names, env_ids or sandbox_names")
        return self

    async def execute(self, run: Run) -> SandboxesTornDown:
        """Tears all of them down at once."""
        ids, remarks = self._named(run)
        for name in self.agent_names:
            remarks += await _changes_kept(run, name)
        gone: list[str] = []

        async def one(sandbox_id: str) -> None:
            try:
                await run.teardown_sandbox(sandbox_id)
                gone.append(sandbox_id)
            except AgentEnvError as error:
                remarks.append(f"{sandbox_id} could not be torn down: {error}")

        async with asyncio.TaskGroup() as group:
            for sandbox_id in ids:
                group.create_task(one(sandbox_id))
        for remark in remarks:
            run.progress(remark)
        return SandboxesTornDown(tuple(sandbox_id for sandbox_id in ids if sandbox_id in gone), tuple(remarks))

    def _named(self, run: Run) -> tuple[list[str], list[str]]:
        """The sandbox ids that the names stand for, each once, and remarks about names that stand for nothing."""
        ids: list[str] = []
        remarks: list[str] = []
        for list_name, key, names in (
            ("deployed_agents", "agent_name", self.agent_names),
            ("deployed_envs", "env_id", self.env_ids),
            ("deployed_sandboxes", "sandbox_name", self.sandbox_names),
        ):
            records = run.context.get(list_name) or ()
            for name in names:
                found = [record for record in records if record.get(key) == name]
                guests = [record for record in found if any(record.get(mark) for mark in _GUEST)]
                found = [record for record in found if record not in guests]
                remarks += [f"{name!r} stands in sandbox {record.get('sandbox_id')}, which is not its own and stays" for record in guests]
                if guests and not found:
                    continue
                if not found:
                    remarks.append(f"{name!r} is not in {list_name}")
                ids.extend(sandbox_id for record in found for sandbox_id in _sandbox_ids(record))
        return list(dict.fromkeys(ids)), remarks


async def _changes_kept(run: Run, agent_name: str) -> list[str]:
    """Fetches what an agent recorded before it goes. Returns a remark where that can't be had."""
    if agent_changes.artifact_of(run, agent_name) is None:
        return []
    try:
        async with agent_changes.keeping(run, await run.agent(agent_name)) as changes:
            pass
    except AgentEnvError as error:
        return [error.message]
    return [changes.problem.message] if changes is not None and changes.problem is not None else []


def _sandbox_ids(record: Json) -> Iterator[str]:
    if isinstance(record.get("sandbox_id"), str):
        yield record["sandbox_id"]
    yield from _texts((record.get("sandbox_ids") or {}).values())


def _texts(values: Iterable[Json]) -> Iterator[str]:
    for value in values:
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict):
            yield from _texts(value.values())

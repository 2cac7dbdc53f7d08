"""The environments of one run: deployed with what cleans up after a failure, and found again from their records, once in each process."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from agent_env.documents.records import DeployedEnvironment
from agent_env.documents.stored import Ref
from agent_env.engine.fallback import first_that_can, links
from agent_env.engine.making import RunMaking
from agent_env.engine.shared import Shared
from agent_env.environments.deploy import attach, deploy, plan_of
from agent_env.environments.lookup import StoredLookup
from agent_env.errors import InfrastructureError
from agent_env.steps.contract import EnvironmentRequest, Tell
from agent_env.waiting import deadline, shielded

if TYPE_CHECKING:
    from agent_env.environments import DeployPlan, LiveEnvironment


class Environments:
    """The environments of one run in this process.

    Args:
        shared: The run.
    """

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._live: dict[str, LiveEnvironment] = {}
        self._makings: list[RunMaking] = []
        self._locks: dict[str, asyncio.Lock] = {}

    async def deploy(
        self, request: EnvironmentRequest, attempt_id: str, tell: Tell, scratch: Path
    ) -> tuple[DeployedEnvironment, list[Used]]:
        """Deploys with the first provider of sandboxes that can.

        Returns:
            The record, and the documents that it was made from.

        Raises:
            ProblemsError: Its documents can't be deployed as asked.
            UnsupportedError: No provider of sandboxes can; says why of each.
            InfrastructureError: It did not come up; nothing of it is left.
        """
        shared = self._shared
        lookup = StoredLookup(shared.stores.artifacts, scratch, limits=shared.limits)
        plan = await asyncio.to_thread(partial(self._plan, request, lookup))
        chain = links(request.provider or shared.sandboxes.default_provider)

        async def make(name: str, passed_over: Sequence[str]) -> DeployedEnvironment:
            if passed_over:
                tell(f"{name}, because {'; '.join(passed_over)}")
            return await self._deploy_with(name, plan, attempt_id, tell)

        record = await first_that_can(chain, make, what=f"environment {request.env_id!r}", limits=shared.limits)
        return record, list(lookup.used)

    def _plan(self, request: EnvironmentRequest, lookup: StoredLookup) -> DeployPlan:
        document = lookup.environment(Ref(id=request.env_id, version=request.env_version))
        return plan_of(
            document,
            lookup,
            settings=self._shared.environments,
            options=request.options,
            step_id=request.step_id,
            metadata=request.metadata,
        )

    async def _deploy_with(self, provider: str, plan: DeployPlan, attempt_id: str, tell: Tell) -> DeployedEnvironment:
        making = RunMaking(self._shared, attempt_id=attempt_id, sandbox_provider=provider, tell=tell, env_id=plan.env_id)
        try:
            live = await deploy(replace(plan, sandbox=provider), making)
        except BaseException:  # a cancellation too must not leave half an environment
            seconds = self._shared.limits.teardown_seconds
            await shielded(self._undo(making), seconds=seconds, what=f"removing environment {plan.env_id!r}")
            raise
        self._makings.append(making)
        self._live[_key(live.record)] = live
        return live.record

    async def _undo(self, making: RunMaking) -> None:
        """Removes what a failed deployment had made. What resists keeps its open row, so teardown and gc find it."""
        await making.aclose()
        for sandbox_id in reversed(making.made):
            try:
                await making.remove(sandbox_id)
            except InfrastructureError as error:
                making.tell(f"left behind: {error.message}")

    async def live(self, record: DeployedEnvironment, attempt_id: str, tell: Tell) -> LiveEnvironment:
        """A deployed environment at hand, attached when this process does not have it yet.

        Raises:
            SandboxUnavailableError: Something of it is not running.
        """
        key = _key(record)
        async with self._locks.setdefault(key, asyncio.Lock()):
            if key not in self._live:
                provider = record.sandbox_type or links(self._shared.sandboxes.default_provider)[0]
                making = RunMaking(self._shared, attempt_id=attempt_id, sandbox_provider=provider, tell=tell, env_id=record.env_id)
                self._makings.append(making)
                async with deadline(self._shared.limits.deploy_seconds, f"reaching environment {record.env_id!r}"):
                    self._live[key] = await attach(record, making)
            return self._live[key]

    async def aclose(self) -> None:
        """Lets go of every connection; the environments go on."""
        while self._live:
            _, live = self._live.popitem()
            await live.aclose()
        while self._makings:
            await self._makings.pop().aclose()


Used = tuple[str, str, int, str]
"""Collection, id, version and digest of a document."""


def _key(record: DeployedEnvironment) -> str:
    return record.instance_id or f"{record.env_id} {record.sandbox_id} {record.environment_card_url}"

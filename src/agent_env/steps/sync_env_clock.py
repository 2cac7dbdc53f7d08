"""`sync_env_clock`: sets an environment's virtual time, and tells its servers where to ask for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from agent_env_sdk.wire.clock import ClockError, parse_instant, parse_rate
from agent_env_sdk.wire.names import CLOCK
from pydantic import Field

from agent_env.documents.updates import ExtendMetadata, Json, Update
from agent_env.errors import Problem, UnsupportedError, UserError
from agent_env.steps.contract import EntityRef, OnResume, Plan, Run, StepResult, apart
from agent_env.steps.environment_step import ON_AN_ENVIRONMENT, EnvironmentStep, entry, servers_of, unadvertised
from agent_env.steps.fields import Number, Seconds

if TYPE_CHECKING:
    from agent_env.environments import LiveEnvironment
    from agent_env.environments.client import EnvironmentClient


@dataclass(frozen=True, slots=True)
class ClockSet(StepResult):
    """The clock, and which servers follow it."""

    record: Mapping[str, Json]

    def updates(self) -> tuple[Update, ...]:
        """Adds it to the clocks that were set."""
        return (ExtendMetadata(("clock_configurations",), [dict(self.record)]),)

    def summary(self) -> str:
        """The time, and who was told."""
        synced = ", ".join(self.record["synced"]) or "no server follows it"
        return f"{self.record['virtual_time']} ({synced})"


class SyncEnvClock(EnvironmentStep, type="sync_env_clock"):
    """Set the virtual clock of an environment, and sync its servers with it."""

    on_resume: ClassVar[OnResume] = OnResume.REPEAT
    entity_refs: ClassVar[tuple[EntityRef, ...] | None] = ON_AN_ENVIRONMENT

    virtual_time: str
    """Now, as RFC 3339 with seconds and an offset: `2030-01-01T00:00:00Z`."""
    virtual_seconds_per_real_second: Annotated[Number, Field(ge=0)] = 1.0
    """How fast it goes; 0 is frozen."""
    tolerate_missing_sync_time: bool = True
    """Servers that can't follow a clock are skipped; false: they fail the step."""
    timeout_seconds: Seconds = 30.0
    """Limit of each request."""

    @property
    def deadline_seconds(self) -> float | None:
        """None: the limit is each request's."""
        return None

    def problems(self, plan: Plan) -> Iterator[Problem]:
        """The time and the rate must be ones."""
        del plan
        return apart(self._time_problems(), self._rate_problems())

    def _time_problems(self) -> Iterator[Problem]:
        try:
            parse_instant(self.virtual_time)
        except ClockError as error:
            yield Problem(str(error), path=".virtual_time", hint="such as 2030-01-01T00:00:00Z")

    def _rate_problems(self) -> Iterator[Problem]:
        try:
            parse_rate(self.virtual_seconds_per_real_second)
        except ClockError as error:
            yield Problem(str(error), path=".virtual_seconds_per_real_second")

    async def execute(self, run: Run) -> ClockSet:
        """Sets it, then syncs every server that offers to follow.

        Raises:
            UnsupportedError: The environment has no gateway, or a server can't follow and that is not tolerated.
            EnvironmentFailedError: The gateway or a server refuses.
        """
        live = await self.live(run)
        if not live.has_gateway:
            raise UnsupportedError(
                f"environment {self.env_id!r} has no gateway, and the clock is the gateway's",
                concerns=self.id,
                hint='deploy it with env_provider_type = "gateway"',
            )
        await self._set(live.control)
        state = await live.control.invoke(CLOCK, {}, method="state", timeout_seconds=self.timeout_seconds)
        url = state.get("env_get_time_url")
        if not isinstance(url, str):
            raise UserError(f"the gateway of environment {self.env_id!r} does not say where its time is asked for", concerns=self.id)
        synced, skipped = await self._synced(live, url)
        return ClockSet(
            entry(
                self,
                virtual_time=self.virtual_time,
                virtual_seconds_per_real_second=self.virtual_seconds_per_real_second,
                env_get_time_url=url,
                synced=synced,
                skipped=skipped,
            )
        )

    async def _set(self, gateway: EnvironmentClient) -> None:
        body: dict[str, Any] = {
            "virtual_time": self.virtual_time,
            "virtual_seconds_per_real_second": self.virtual_seconds_per_real_second,
        }
        await gateway.invoke(CLOCK, body, method="set_time", timeout_seconds=self.timeout_seconds)

    async def _synced(self, live: LiveEnvironment, url: str) -> tuple[list[str], list[dict[str, Json]]]:
        synced: list[str] = []
        skipped: list[dict[str, Json]] = []
        for name in servers_of(live):
            client = live.client(name)
            why = await unadvertised(client, CLOCK)
            if why is None:
                await client.invoke(CLOCK, {"env_get_time_url": url}, timeout_seconds=self.timeout_seconds)
                synced.append(name)
            elif self.tolerate_missing_sync_time:
                skipped.append({"service": name, "environment": name, "reason": why})
            else:
                raise UnsupportedError(
                    f"server {name!r} of environment {self.env_id!r} can't follow a clock ({why})",
                    concerns=self.id,
                    hint="tolerate_missing_sync_time skips it",
                )
        return synced, skipped

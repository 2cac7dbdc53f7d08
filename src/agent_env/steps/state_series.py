"""`snapshot_config` of `prompt_agent`: the agent's state again and again while it works, and at the end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Annotated, Any, Final, Self

from agent_env_sdk.wire.encoding import json_bytes
from pydantic import BaseModel, ConfigDict, Field, model_validator

from agent_env.errors import AgentEnvError, DeadlineError, InfrastructureError
from agent_env.ids import derive_id, fs_safe
from agent_env.steps import agent_states
from agent_env.steps.fields import OptionalName, Seconds, Whole
from agent_env.waiting import deadline, pause

if TYPE_CHECKING:
    from agent_env.agents import LiveAgent
    from agent_env.steps.contract import Run

Json = Any
_IN_FLIGHT_SECONDS: Final = 15.0
"""How much longer than its own limit a capture that is under way is waited for (reference)."""


class SnapshotConfig(BaseModel):
    """When an agent's state is saved while it works."""

    model_config = ConfigDict(frozen=True, extra="allow", defer_build=True)

    interval_seconds: Seconds | None = None
    """How often; absent: not by time."""
    at_end: bool = True
    """When the last turn is over; one that can't be had then fails the step."""
    per_turn: bool = False
    """After each turn that is followed by another."""
    env_id: OptionalName = None
    """Also export what this environment's servers hold."""
    timeout_seconds: Seconds = 300.0
    """Limit of each capture, all of it."""
    max_snapshots: Annotated[Whole, Field(ge=1)] = 24
    """How many beside that of the end."""

    @model_validator(mode="after")
    def _at_some_time(self) -> Self:
        if not (self.at_end or self.per_turn or self.interval_seconds):
            raise ValueError("says no time at all; with at_end false it needs interval_seconds or per_turn")
        return self


class Series:
    """The captures of one prompt.

    Args:
        run: The step's run.
        agent: Whose state.
        config: When.
        step_id: The prompt's step.
        context_id: The conversation.
    """

    def __init__(self, run: Run, agent: LiveAgent, config: SnapshotConfig, *, step_id: str, context_id: str) -> None:
        self._run, self._agent, self._config, self._step_id, self._context_id = run, agent, config, step_id, context_id
        self._artifact_id = derive_id(run.instance_id, f"{fs_safe(step_id)}-agent-state")
        self._began = time.monotonic()
        self._one_at_a_time = asyncio.Lock()
        self._interior = 0
        self._turn = 1
        self.rows: list[dict[str, Json]] = []
        """What the run's context keeps of each capture, in the order in which they were begun."""

    @asynccontextmanager
    async def following(self) -> AsyncIterator[None]:
        """Captures by time for as long as the block runs; one that is under way then is waited for, unless the block failed."""
        task = asyncio.ensure_future(self._by_time()) if self._config.interval_seconds else None
        try:
            yield
            with suppress(DeadlineError):  # it stays as it is then: cut off
                async with deadline(self._config.timeout_seconds + _IN_FLIGHT_SECONDS, "the capture under way"), self._one_at_a_time:
                    pass
        finally:
            if task is not None:
                task.cancel()
                await asyncio.wait({task})

    async def _by_time(self) -> None:
        """Until the most are taken; a capture that is under way when the block ends is the last."""
        every = self._config.interval_seconds
        assert every is not None
        while self._interior < self._config.max_snapshots:
            await pause(every)
            await self._interim()
        self._skipped("there are max_snapshots already")

    async def turn_over(self, number: int) -> None:
        """A turn is over, and another one follows.

        Args:
            number: Of the turn, from 1.
        """
        self._turn = number
        if self._config.per_turn:
            if self._interior < self._config.max_snapshots:
                await self._interim()
            else:
                self._skipped("there are max_snapshots already")
        self._turn = number + 1

    async def end(self, number: int) -> AgentEnvError | None:
        """The last turn is over. Returns what is wrong where its state could not be had.

        Args:
            number: Of that turn, from 1.
        """
        self._turn = number
        if not self._config.at_end:
            return None
        row = await self._capture(final=True)
        if row["capture_status"] != "failed":
            return None
        return InfrastructureError(f"the agent's state at the end could not be saved: {row['capture_reason']}", concerns=self._step_id)

    async def _interim(self) -> None:
        self._interior += 1
        await self._capture(final=False)

    async def _capture(self, *, final: bool) -> dict[str, Json]:
        async with self._one_at_a_time:
            row = self._row(final=final)
            self.rows.append(row)
            problems: list[str] = []
            try:
                async with deadline(self._config.timeout_seconds, "saving the agent's state"):
                    folder = self._run.scratch() / f"state-{len(self.rows)}"
                    seconds = self._config.timeout_seconds
                    told = await agent_states.saved(self._run, self._agent, self._context_id, self._artifact_id, folder, seconds=seconds)
                    row |= {**told, "trajectory_object_url": None, "capture_status": "ok", "capture_reason": None}
                    await self._beside(row, problems)
            except AgentEnvError as error:
                problems.append(error.message)
            if problems:
                row["capture_status"] = "partial" if row.get("bundle_object_url") else "failed"
                row["capture_reason"] = "; ".join(problems)
            self._run.progress(f"state saved: {row['capture_status']}")
            return row

    async def _beside(self, row: dict[str, Json], problems: list[str]) -> None:
        """The conversation's trajectory, and what the environment holds: without them a capture is only partial."""
        trajectory = await self._agent.trajectory(context_id=self._context_id)
        if trajectory is None:
            problems.append("the agent tells no trajectory of the conversation")
        else:
            stored = await asyncio.to_thread(self._run.objects.put, json_bytes(list(trajectory.events)), media_type="application/json")
            row |= {"trajectory_object_url": stored.url, "trajectory_s3_uri": stored.url}
        if self._config.env_id is None:
            return
        from agent_env.steps.snapshot_env import SnapshotEnv

        universe = derive_id(self._run.instance_id, f"{fs_safe(self._step_id)}-env-state")
        exporting = SnapshotEnv(id=self._step_id, env_id=self._config.env_id, snapshot_id=universe)
        try:
            version = await exporting.taken(self._run, self._run.scratch() / f"env-{len(self.rows)}")
        except AgentEnvError as error:
            problems.append(f"the environment's state: {error.message}")
        else:
            row |= {"env_universe_id": universe, "env_universe_version": version}

    def _skipped(self, why: str) -> None:
        self.rows.append({**self._row(final=False), "capture_status": "skipped", "capture_reason": why})

    def _row(self, *, final: bool) -> dict[str, Json]:
        return {
            "source_agent_name": self._agent.record.agent_name,
            "source_context_id": self._context_id,
            "capture_step_id": self._step_id,
            "elapsed_s": round(time.monotonic() - self._began, 3),
            "is_final": final,
            "turn": self._turn,
            "capture_status": "failed",
            "capture_reason": "it was cut off",
        }

"""`reset_env`: an environment back to the data that this run had loaded into it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from agent_env_sdk.wire.names import RESET

from agent_env.errors import PlacementError, UnsupportedError
from agent_env.steps.contract import EntityRef, OnResume, Run, StepResult
from agent_env.steps.environment_step import ON_AN_ENVIRONMENT, EnvironmentStep
from agent_env.steps.seeding import load_again


@dataclass(frozen=True, slots=True)
class EnvironmentReset(StepResult):
    """Which servers hold what now. It adds nothing to the context."""

    emptied: Sequence[str] = ()
    loaded: Sequence[str] = ()
    remark: str = ""

    def summary(self) -> str:
        """How each server was put back."""
        parts = [f"{what} {', '.join(names)}" for what, names in (("loaded", self.loaded), ("emptied", self.emptied)) if names]
        return self.remark or "; ".join(parts) or "nothing to reset"


class ResetEnv(EnvironmentStep, type="reset_env"):
    """Reset an environment: servers that this run had loaded are loaded again with the same data, the others are emptied."""

    on_resume: ClassVar[OnResume] = OnResume.REPEAT
    entity_refs: ClassVar[tuple[EntityRef, ...] | None] = ON_AN_ENVIRONMENT

    fail_task_on_error: bool = False
    """By default the steps that depend on this one run also when it failed."""

    async def execute(self, run: Run) -> EnvironmentReset:
        """Loads again, then empties what was never loaded.

        Raises:
            UnsupportedError: A server that was never loaded can't be emptied.
            EnvironmentFailedError: A server refused; the message says what it holds now.
        """
        try:
            live = await self.live(run)
        except PlacementError as error:
            return EnvironmentReset(remark=f"nothing to reset: {error.message}")
        report = await load_again(run, live)
        others = sorted({part.name: key for key, part in live.parts.items() if part.name not in report.loaded}.items())
        unable = [name for name, key in others if RESET not in await live.client(key).operations()]
        if unable:
            raise UnsupportedError(
                f"servers {', '.join(unable)} of environment {self.env_id!r} can't be emptied",
                concerns=self.id,
                hint="load data into them in this run, and that is what a reset brings back",
            )
        await asyncio.gather(*(live.client(key).reset() for _, key in others))
        return EnvironmentReset([name for name, _ in others], report.loaded)

"""What a step says of how much of a trajectory its judge sees, and of which pictures."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from agent_env.errors import Problem
from agent_env.steps.contract import apart
from agent_env.steps.fields import Whole
from agent_env.verifiers.judging.material import Shown
from agent_env.verifiers.judging.screenshots import Actions, Choice


class TrajectoryFilter(BaseModel):
    """What of a trajectory the judge sees."""

    model_config = ConfigDict(frozen=True, extra="allow", defer_build=True)

    include_tool_calls: bool = True
    """The agent's calls of tools."""
    include_tool_call_results: bool = True
    """What they came to, each cut to `limits.judge_result_characters`."""
    include_response: bool = True
    """What the agent said."""
    include_thinking: bool = False
    """What it thought."""
    compaction_type: Literal["default", "screenshot"] = "default"
    """`screenshot` also shows pictures that tools gave, as far as models take them; `default` says where there was one."""
    screenshot_last_n: Annotated[Whole, Field(ge=1, le=50)] = 3
    """How many of the last pictures, with `final_frames`."""
    frame_strategy: Literal["final_frames", "per_criterion"] = "final_frames"
    """Which pictures: the last ones (also `last_n`), or for each criterion those whose surroundings share the rarest words with it."""
    frame_budget: Annotated[Whole, Field(ge=6, le=95)] = 90
    """How many pictures at most, with `per_criterion`."""
    trajectory_text: Literal["full", "action_log"] | None = None
    """The trajectory's text beside pictures: all of it, or a line a call. By default all with `final_frames`, else lines."""
    evidence_exclude_pattern: str | None = None
    """Pictures of calls that match this expression are not shown, with `per_criterion`."""
    always_show_actions: dict[str, str] = Field(default_factory=dict)
    """Label → expression: calls that match are listed in any case, under that label."""
    action_log_max_lines: Annotated[Whole, Field(ge=10)] = 120
    """How many other calls are listed."""

    @field_validator("frame_strategy", mode="before")
    @classmethod
    def _older_name(cls, value: Any) -> Any:
        return "final_frames" if value == "last_n" else value

    @property
    def shown(self) -> Shown:
        """What of each step."""
        return Shown(
            tool_calls=self.include_tool_calls,
            tool_call_results=self.include_tool_call_results,
            response=self.include_response,
            thinking=self.include_thinking,
        )

    @property
    def pictures(self) -> Choice | None:
        """Which pictures; None shows none."""
        if self.compaction_type == "default":
            return None
        return Choice(self.frame_strategy, self.screenshot_last_n, self.frame_budget, self.evidence_exclude_pattern or None)

    @property
    def actions(self) -> Actions | None:
        """The list of calls; None where the whole text is shown."""
        text = self.trajectory_text or ("action_log" if self.frame_strategy == "per_criterion" else "full")
        if self.compaction_type == "default" or text == "full":
            return None
        return Actions(self.action_log_max_lines, self.always_show_actions)

    def problems(self) -> Iterator[Problem]:
        """Expressions that are none, by paths relative to the filter."""
        return apart(self._shown_problems(), self._excluded_problems())

    def _shown_problems(self) -> Iterator[Problem]:
        for label, pattern in self.always_show_actions.items():
            yield from _expression_problems(pattern, f".always_show_actions.{label}")

    def _excluded_problems(self) -> Iterator[Problem]:
        if self.evidence_exclude_pattern is not None:
            yield from _expression_problems(self.evidence_exclude_pattern, ".evidence_exclude_pattern")


def _expression_problems(pattern: str, path: str) -> Iterator[Problem]:
    try:
        re.compile(pattern)
    except re.error as error:
        yield Problem(f"is no regular expression: {error}", path=path)

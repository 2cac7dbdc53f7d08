"""`modify_env_tool_access`: which role may use which tools of an environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from agent_env_sdk.wire.names import DISABLE_TOOL, ENABLE_TOOL
from pydantic import Field, field_validator

from agent_env.documents.updates import ExtendMetadata, Json, Update
from agent_env.steps.contract import EntityRef, OnResume, Run, StepResult
from agent_env.steps.environment_step import ON_AN_ENVIRONMENT, EnvironmentStep, entry
from agent_env.steps.fields import Texts

_URIS = {"disable": DISABLE_TOOL, "enable": ENABLE_TOOL}


@dataclass(frozen=True, slots=True)
class AccessChanged(StepResult):
    """The change, and the role's own rules after it."""

    change: Mapping[str, Json]

    def updates(self) -> tuple[Update, ...]:
        """Adds it to what was changed."""
        return (ExtendMetadata(("tool_access_changes",), [dict(self.change)]),)

    def summary(self) -> str:
        """What was done to whom."""
        return f"{self.change['action']} {', '.join(self.change['tools_requested'])} for {self.change['role']}"


class ModifyEnvToolAccess(EnvironmentStep, type="modify_env_tool_access"):
    """Disable or enable tools of an environment for a role."""

    on_resume: ClassVar[OnResume] = OnResume.REPEAT
    entity_refs: ClassVar[tuple[EntityRef, ...] | None] = ON_AN_ENVIRONMENT

    action: Literal["disable", "enable"]
    """What is done."""
    role: str = Field(min_length=1)
    """Whose rules change; `*` means every role, `default` agents without one."""
    tools: Annotated[Texts, Field(min_length=1)]
    """Names of tools; `*` means all of them."""

    @field_validator("role")
    @classmethod
    def _not_blank(cls, value: str) -> str:
        if not value.strip():
            raise ValueError("is blank")
        return value

    async def execute(self, run: Run) -> AccessChanged:
        """Tells the environment.

        Raises:
            NotAdvertisedError: It has no tool access to change: a lone server that does not offer it.
            EnvironmentFailedError: It refuses.
        """
        live = await self.live(run)
        rules = await live.control.invoke(_URIS[self.action], {"role": self.role, "tools": list(self.tools)}, method=self.action)
        after = {key: list(rules.get(key) or ()) for key in ("disabled", "allowed")}
        change = entry(self, action=self.action, role=self.role, tools_requested=list(self.tools), role_state_after=after)
        return AccessChanged(change)

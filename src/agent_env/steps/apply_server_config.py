"""`apply_server_config`: calls extensions of an environment's servers, such as one that injects failures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pydantic import AliasChoices, BaseModel, ConfigDict, Field

from agent_env.documents.updates import ExtendMetadata, Json, Update
from agent_env.errors import AgentEnvError, TaskError
from agent_env.steps.contract import EntityRef, OnResume, Run, StepResult
from agent_env.steps.environment_step import NO_CARD, NOT_ADVERTISED, ON_AN_ENVIRONMENT, EnvironmentStep, entry, named_servers, unadvertised
from agent_env.steps.fields import Seconds

_REASONS = {NO_CARD: NO_CARD, NOT_ADVERTISED: "extension_not_advertised"}
"""As this step's records spell them (reference)."""


class ApplyServerConfigError(TaskError):
    """A directive could not be applied; those before it were."""


class Directive(BaseModel):
    """One call."""

    model_config = ConfigDict(frozen=True, extra="allow", populate_by_name=True, defer_build=True)

    service: str = Field(validation_alias=AliasChoices("service", "environment"), min_length=1)
    """The server by its name; `*` means every MCP server."""
    uri: str = Field(min_length=1)
    """The extension; its first method is called."""
    args: dict[str, Any] = Field(default_factory=dict)
    """Its arguments."""


@dataclass(frozen=True, slots=True)
class Configured(StepResult):
    """What was applied and what was skipped, also where a later directive failed."""

    applied: Sequence[Mapping[str, Json]] = ()
    skipped: Sequence[Mapping[str, Json]] = ()
    error: AgentEnvError | None = None

    def updates(self) -> Iterator[Update]:
        """Adds what was applied, and what was skipped."""
        for name, entries in (("server_config_changes", self.applied), ("server_config_skipped", self.skipped)):
            if entries:
                yield ExtendMetadata((name,), [dict(each) for each in entries])

    def summary(self) -> str:
        """How many calls."""
        return f"{len(self.applied)} applied" + (f", {len(self.skipped)} skipped" if self.skipped else "")

    def failure(self) -> AgentEnvError | None:
        """What a directive met."""
        return self.error


class ApplyServerConfig(EnvironmentStep, type="apply_server_config"):
    """Call extensions of an environment's servers, one after the other."""

    on_resume: ClassVar[OnResume] = OnResume.REPEAT
    entity_refs: ClassVar[tuple[EntityRef, ...] | None] = ON_AN_ENVIRONMENT

    directives: Annotated[tuple[Directive, ...], Field(min_length=1)]
    """What to call: `service` (a server's name, or `*`), `uri` (the extension), `args`."""
    timeout_seconds: Seconds = 30.0
    """Limit of each call."""
    tolerate_unadvertised: bool = False
    """A server that does not offer the extension is skipped and noted, instead of failing the step."""

    @property
    def deadline_seconds(self) -> float | None:
        """None: the limit is each call's."""
        return None

    async def execute(self, run: Run) -> Configured:
        """Calls them in order. What was applied before a failure is recorded.

        Raises:
            UserError: A directive names a server that the environment does not have; then none was called.
        """
        live = await self.live(run)
        calls = [(directive, name) for directive in self.directives for name in named_servers(live, directive.service, self.id)]
        applied: list[Mapping[str, Json]] = []
        skipped: list[Mapping[str, Json]] = []
        for directive, name in calls:
            record = entry(self, service=name, environment=name, uri=directive.uri, args=directive.args)
            reason = _REASONS.get(await unadvertised(live.client(name), directive.uri) or "")
            if reason is not None and self.tolerate_unadvertised:
                skipped.append({**record, "reason": reason})
                continue
            try:
                if reason is not None:
                    raise ApplyServerConfigError(
                        f"server {name!r} does not offer {directive.uri} ({reason})",
                        concerns=self.id,
                        hint="tolerate_unadvertised skips it",
                    )
                result = await live.client(name).invoke(directive.uri, directive.args, timeout_seconds=self.timeout_seconds)
            except AgentEnvError as error:
                return Configured(applied, skipped, error)
            applied.append({**record, "result": result})
        return Configured(applied, skipped)

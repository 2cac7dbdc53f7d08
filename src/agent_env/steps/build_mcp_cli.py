"""`build_mcp_cli`: a command-line program over an environment's tools, as an artifact that agents can be given."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from agent_env_sdk.wire.manifest import CliManifest, compatible
from pydantic import Field, ValidationError, model_validator

from agent_env.documents.stored import Ref
from agent_env.documents.updates import Json, SetMetadata, Update
from agent_env.errors import AgentEnvError, UnsupportedError, UserError
from agent_env.ids import derive_id
from agent_env.steps.contract import EntityRef, OnResume, Run, StepResult
from agent_env.steps.environment_step import EnvironmentStep, servers_of

if TYPE_CHECKING:
    from agent_env.environments import LiveEnvironment

PROGRAM = "main.py"
_CLI = "cli"
_COMMAND = re.compile(r"[a-zA-Z][a-zA-Z0-9_-]*")


@dataclass(frozen=True, slots=True)
class CliBuilt(StepResult):
    """The program's artifact."""

    id: str
    version: int
    command: str
    entities: int

    def updates(self) -> tuple[Update, ...]:
        """Where `add_skills` and people look."""
        return (SetMetadata(("cli_artifact",), {"id": self.id, "version": self.version, "type": "cli"}),)

    def summary(self) -> str:
        """The command, and how it groups tools."""
        groups = f", {self.entities} groups of commands" if self.entities else ""
        return f"{self.command}: {self.id} v{self.version}{groups}"


class BuildMcpCli(EnvironmentStep, type="build_mcp_cli"):
    """Build a command-line program for an environment's tools: grouped as its servers' manifests say, else one command a tool."""

    on_resume: ClassVar[OnResume] = OnResume.REPEAT
    entity_refs: ClassVar[tuple[EntityRef, ...] | None] = (
        EntityRef("env", "env_id"),
        EntityRef("artifact", "cli_artifact_id", role="output", artifact_type="cli"),
    )

    command_name: str = Field(pattern=f"^{_COMMAND.pattern}$")
    """What the program is called."""
    cli_artifact_id: str = ""
    """The artifact's id; `<env_id>__cli` by default."""

    @model_validator(mode="before")
    @classmethod
    def _named(cls, data: Any) -> Any:
        if isinstance(data, Mapping) and not data.get("cli_artifact_id") and isinstance(data.get("env_id"), str):
            return {**data, "cli_artifact_id": derive_id(data["env_id"], _CLI)}
        return data

    async def execute(self, run: Run) -> CliBuilt:
        """Reads the manifests, writes the program, and stores it.

        Raises:
            UnsupportedError: The environment has no gateway, which the program speaks with.
            UserError: A manifest is another server's, or can't be read.
        """
        live = await self.live(run)
        if not live.has_gateway:
            raise UnsupportedError(
                f"environment {self.env_id!r} has no gateway, and the program speaks with one",
                concerns=self.id,
                hint='deploy it with env_provider_type = "gateway"',
            )
        manifests = [found for name in servers_of(live) if (found := await self._manifest(run, live, name)) is not None]
        groups = dict(_groups(manifests))
        source = program(self.command_name, groups)
        folder = run.scratch() / "cli"
        folder.mkdir(exist_ok=True)
        path = folder / PROGRAM
        path.write_text(source, encoding="utf-8")
        path.chmod(0o755)
        environment = Ref(id=live.record.env_id, version=live.record.env_version)
        stored = await asyncio.to_thread(
            run.artifacts.put_cli,
            self.cli_artifact_id,
            {PROGRAM: path},
            entrypoint=PROGRAM,
            command_name=self.command_name,
            environment=environment,
        )
        return CliBuilt(stored.id, stored.version, self.command_name, len(groups))

    async def _manifest(self, run: Run, live: LiveEnvironment, name: str) -> CliManifest | None:
        """A server's own word on its commands; none that can be had means flat commands (reference)."""
        client = live.client(name)
        try:
            if _CLI not in await client.interfaces():
                return None
            raw = await client.manifest(_CLI)
        except AgentEnvError as error:
            run.progress(f"{name} says nothing of its commands: {error.message}")
            return None
        try:
            manifest = CliManifest.model_validate(raw)
        except ValidationError as error:
            raise UserError(f"the manifest of {name!r} can't be read: {error.errors()[0]['msg']}", concerns=self.id) from error
        if manifest.service != name:
            raise UserError(f"the manifest of {name!r} is of {manifest.service!r}", concerns=self.id)
        if not compatible(manifest.manifest_version):
            run.progress(f"the manifest of {name} is of version {manifest.manifest_version}, which is not understood")
            return None
        return manifest


def _groups(manifests: list[CliManifest]) -> Iterator[tuple[str, dict[str, str]]]:
    """Entity → command → tool; actions stand by themselves."""
    for manifest in manifests:
        data = json.loads(manifest.to_json())
        for entity in data.get("entities") or ():
            yield str(entity["entity"]), {name: str(command["tool"]) for name, command in (entity.get("commands") or {}).items()}
        actions = {str(action["name"]): str(action["tool"]) for action in data.get("actions") or ()}
        if actions:
            yield "", actions


def program(command: str, groups: Mapping[str, Mapping[str, Json]]) -> str:
    """The program's source: Python of the standard library alone."""
    template = Path(__file__).with_name("mcp_cli.py").read_text(encoding="utf-8")
    begin, end = "# settings\n", "# end of settings\n"
    head, _, rest = template.partition(begin)
    settings = f"COMMAND = {command!r}\nGROUPS: dict[str, dict[str, str]] = {json.dumps(groups, sort_keys=True)}\n"
    return head + settings + rest.partition(end)[2]

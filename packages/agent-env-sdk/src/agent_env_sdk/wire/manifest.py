"""Interface manifests: a server's entities and actions, from which command lines and pages are drawn."""

from __future__ import annotations

import re
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field

MANIFEST_VERSION: Final = "0.1.0"
OperationKind = Literal["list", "read", "create", "update", "delete"]
CLI_VERBS: Final[dict[str, str]] = {"list": "list", "read": "get", "create": "create", "update": "update", "delete": "delete"}
"""How a command line calls each kind of operation."""

_VERSION = re.compile(r"([0-9]+)\.([0-9]+)\.([0-9]+)")


def compatible(served: object, supported: str = MANIFEST_VERSION) -> bool:
    """Whether a manifest of version `served` can be read: the same major, and below 1 the same minor."""
    theirs, ours = (_VERSION.fullmatch(version) if isinstance(version, str) else None for version in (served, supported))
    if theirs is None or ours is None:
        return False
    deciding = 2 if ours[1] == "0" else 1
    return theirs.groups()[:deciding] == ours.groups()[:deciding]


class _Lenient(BaseModel):
    """Fields of a newer producer are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True, defer_build=True)


class FieldSpec(_Lenient):
    """One field of an entity, as the tools show it."""

    name: str
    type: str
    format: str | None = None
    enum: list[str] | None = None
    description: str | None = None
    required: bool = False
    read_only: bool = False


class Relationship(_Lenient):
    """A field that points to another entity."""

    field: str
    references: str
    many: bool = False


class ParamSpec(_Lenient):
    """One argument of a tool."""

    name: str
    type: str
    item_type: str | None = None
    required: bool = False
    enum: list[str] | None = None


class Operation(_Lenient):
    """What can be done to an entity, and by which tool."""

    kind: OperationKind
    tool: str
    summary: str | None = None
    description: str | None = None
    required: list[str] = Field(default_factory=list)
    params: list[ParamSpec] = Field(default_factory=list)


class Action(_Lenient):
    """A tool that belongs to no entity."""

    tool: str
    description: str | None = None
    params: list[ParamSpec] = Field(default_factory=list)


class Entity(_Lenient):
    """A kind of record."""

    name: str
    fields: list[FieldSpec] = Field(default_factory=list)
    relationships: list[Relationship] = Field(default_factory=list)
    operations: list[Operation] = Field(default_factory=list)


class CliCommand(_Lenient):
    """An entity's command."""

    tool: str
    summary: str | None = None
    description: str | None = None
    params: list[ParamSpec] = Field(default_factory=list)


class CliEntity(_Lenient):
    """An entity's commands, by verb."""

    entity: str
    commands: dict[str, CliCommand] = Field(default_factory=dict)


class CliAction(_Lenient):
    """A tool as a command of its own."""

    name: str
    tool: str
    description: str | None = None
    params: list[ParamSpec] = Field(default_factory=list)


class _Manifest(_Lenient):
    service: str
    manifest_version: str = MANIFEST_VERSION

    def to_json(self) -> str:
        """The manifest as text that is the same each time, without what isn't set."""
        return self.model_dump_json(indent=2, exclude_none=True) + "\n"


class CliManifest(_Manifest):
    """A server as a command line."""

    interface: Literal["cli"] = "cli"
    entities: list[CliEntity] = Field(default_factory=list)
    actions: list[CliAction] = Field(default_factory=list)


class InterfaceManifest(_Manifest):
    """A server's entities and actions."""

    entities: list[Entity] = Field(default_factory=list)
    actions: list[Action] = Field(default_factory=list)

    def cli(self) -> CliManifest:
        """The same as a command line."""
        return CliManifest(
            service=self.service,
            manifest_version=self.manifest_version,
            entities=[CliEntity(entity=entity.name, commands=_commands(entity)) for entity in self.entities],
            actions=[CliAction(name=action.tool, **action.model_dump()) for action in self.actions],
        )


def _commands(entity: Entity) -> dict[str, CliCommand]:
    return {CLI_VERBS[operation.kind]: CliCommand.model_validate(operation.model_dump()) for operation in entity.operations}

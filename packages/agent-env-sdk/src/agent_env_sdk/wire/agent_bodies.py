"""What is sent to an agent's extensions and what they answer. Requests are closed: a field that isn't known is refused."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StrictInt, field_validator, model_validator

from .grants import ReadObject, RelativePath, Uploaded, WriteNamespaceGrant, WriteObject

SKILL_NAME: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"
INCREMENT_NAME: Final = r"^[0-9]{6}(\.[A-Za-z0-9][A-Za-z0-9._-]*)?$"
"""Names of a changelog's increments: the zero-based position of the tool call, and more after a dot."""
MAX_PAGE_EVENTS: Final = 1000
MAX_PAGE_BYTES: Final = 4 * 1024 * 1024
"""A page of live events is no longer than this, except that its first event always fits."""

Text = Annotated[str, Field(min_length=1)]
Position = Annotated[StrictInt, Field(ge=0)]


class Body(BaseModel):
    """A closed object of the wire."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


class McpAdd(Body):
    """`mcp-config` add, and our upsert (PUT), where a name must be told."""

    url: Text
    headers: dict[str, str] | None = Field(default=None, repr=False)
    name: Text | None = None


class McpUpsert(McpAdd):
    """The server of that name, whether it was there before or not."""

    name: Text


class McpRemove(Body):
    """Takes a server away; one that isn't there is no error."""

    name: Text


class SkillInline(Body):
    """A skill of one file."""

    name: str = Field(pattern=SKILL_NAME)
    description: str
    skill_md: Text


class SkillFile(Body):
    """One file of a bundle."""

    path: RelativePath
    object: ReadObject


class SkillFiles(Body):
    """A bundle's files, by grants."""

    max_total_bytes: Annotated[StrictInt, Field(gt=0)]
    files: list[SkillFile] = Field(min_length=1)

    @model_validator(mode="after")
    def _whole(self) -> Self:
        paths = [file.path for file in self.files]
        if len(set(paths)) != len(paths):
            raise ValueError("paths must be unique")
        if "SKILL.md" not in paths:
            raise ValueError("a bundle needs SKILL.md at its root")
        if sum(file.object.max_bytes for file in self.files) > self.max_total_bytes:
            raise ValueError("the files' max_bytes sum to more than max_total_bytes")
        return self


class SkillBundle(Body):
    """A skill of several files."""

    name: str = Field(pattern=SKILL_NAME)
    description: str
    skill_bundle: SkillFiles


class TrajectoryObjects(Body):
    """Where the trajectory is to be uploaded."""

    trajectory: WriteObject

    @field_validator("trajectory")
    @classmethod
    def _json(cls, value: WriteObject) -> WriteObject:
        if value.media_type != "application/json":
            raise ValueError("media_type must be application/json")
        return value


class OfTask(Body):
    """The trajectory of a task."""

    task_id: Text


class OfTaskObjects(OfTask):
    """The trajectory of a task, uploaded."""

    objects: TrajectoryObjects


class OfContext(Body):
    """The trajectory of a conversation."""

    context_id: Text


class OfContextObjects(OfContext):
    """The trajectory of a conversation, uploaded."""

    objects: TrajectoryObjects


class OfTaskPage(OfTask):
    """A page of a task's events, while it runs or later."""

    after: Position
    limit: Annotated[StrictInt, Field(ge=1, le=MAX_PAGE_EVENTS)] = MAX_PAGE_EVENTS


class OfContextPage(OfContext):
    """A page of a conversation's events."""

    after: Position
    limit: Annotated[StrictInt, Field(ge=1, le=MAX_PAGE_EVENTS)] = MAX_PAGE_EVENTS


class TrajectoryUploaded(Body):
    """What the upload came to."""

    trajectory: Uploaded


TrajectoryState = Literal["pending", "running", "completed", "failed", "canceled"]


class TrajectoryPage(Body):
    """Events from a position on."""

    context_id: str
    task_id: str | None
    state: TrajectoryState
    format: str | None = None
    events: list[Any]
    next: int
    has_more: bool


class SnapshotTargets(Body):
    """Where a snapshot goes; both objects are opaque."""

    trajectory: WriteObject
    workspace: WriteObject | None = None


class SnapshotSources(Body):
    """Where a snapshot comes from."""

    trajectory: ReadObject
    workspace: ReadObject | None = None


class SnapshotSave(Body):
    """Saves a conversation and the workspace."""

    context_id: Text
    objects: SnapshotTargets


class SnapshotLoad(Body):
    """Takes a saved conversation up, under its own id or another."""

    objects: SnapshotSources
    target_context_id: Text | None = None


class ChangelogEnable(Body):
    """Records what each tool call changes."""

    write_namespace: WriteNamespaceGrant
    roots: list[str] | None = None


class Increment(Body):
    """What one tool call changed."""

    sequence: Position
    object: ReadObject


class ChangelogApply(Body):
    """Replays recorded changes, in order."""

    increments: list[Increment] = Field(max_length=10000)
    resume_conversation: bool = False
    target_context_id: Text | None = None

    @field_validator("increments")
    @classmethod
    def _increasing(cls, value: list[Increment]) -> list[Increment]:
        numbers = [increment.sequence for increment in value]
        if any(later <= earlier for earlier, later in pairwise(numbers)):
            raise ValueError("sequences must increase strictly")
        return value


class Peer(Body):
    """An agent that this one may speak to."""

    name: Text
    url: Text
    card: dict[str, Any] = Field(default_factory=dict)
    description: str | None = None
    headers: dict[str, str] | None = Field(default=None, repr=False)
    """Sent to the peer, such as its bearer token; for agents whose card tells the feature `headers`."""


class PeersSet(Body):
    """The whole table of peers; an empty one clears it."""

    peers: list[Peer]

    @field_validator("peers")
    @classmethod
    def _unique(cls, value: list[Peer]) -> list[Peer]:
        if len({peer.name for peer in value}) != len(value):
            raise ValueError("names of peers must be unique")
        return value


class Nothing(Body):
    """An empty object."""

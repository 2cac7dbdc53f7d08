"""What a bundle is once its folder has been read: frozen values, no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from agent_env.documents.task import TaskDocument
from agent_env.documents.updates import Json
from agent_env.errors import Problem


class BundleKind(StrEnum):
    """The six kinds of entry, in the order in which they are listed and written."""

    ENV = "env"
    AGENT = "agent"
    ARTIFACT = "artifact"
    SKILL = "skill"
    TASK = "task"
    EVAL = "eval"


@dataclass(frozen=True, slots=True)
class KindRules:
    """How entries of a kind look on disk and where their documents are kept."""

    folder: str
    collection: str
    suffix: str | None = None
    """Ending of an entry's file; None means that an entry is a folder."""
    config: str | None = None
    """The toml that an entry's folder may hold."""
    default_type: str | None = None


KINDS: Mapping[BundleKind, KindRules] = {
    BundleKind.ENV: KindRules("envs", "envs", config="env.toml", default_type="mcp_server"),
    BundleKind.AGENT: KindRules("agents", "agents", config="agent.toml", default_type="a2a_agent"),
    BundleKind.ARTIFACT: KindRules("artifacts", "artifacts", config="artifact.toml"),
    BundleKind.SKILL: KindRules("skills", "artifacts", default_type="skill"),
    BundleKind.TASK: KindRules("tasks", "tasks", suffix=".json", default_type="task"),
    BundleKind.EVAL: KindRules("evals", "evals", suffix=".toml", default_type="eval"),
}
RANK: Mapping[BundleKind, int] = {kind: rank for rank, kind in enumerate(BundleKind)}
REFERENCED_AS: Mapping[BundleKind, str] = {
    BundleKind.ENV: "env",
    BundleKind.AGENT: "agent",
    BundleKind.ARTIFACT: "artifact",
    BundleKind.SKILL: "artifact",
    BundleKind.TASK: "task",
}
"""The word by which other documents refer to an entry of a kind; nothing refers to an eval."""
COLLECTION_OF: Mapping[str, str] = {"env": "envs", "agent": "agents", "artifact": "artifacts", "task": "tasks"}
"""The word of a reference → the collection where its documents are."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One environment, agent, artifact, skill, task or eval of a bundle."""

    kind: BundleKind
    name: str
    id: str
    path: str
    """Relative to the bundle's root, in POSIX spelling: `tasks/hello.json`, `artifacts/greeting`."""
    type: str
    config: Mapping[str, Json] = field(default_factory=dict)
    """The entry's toml; nothing where there is none."""
    task: TaskDocument | None = None
    """A task's document, as written; only for tasks."""
    found: tuple[Problem, ...] = ()
    """What is wrong with the task's steps or their graph, so that its document is one that was mended: it is planned, and never run."""
    files: Mapping[str, Path] = field(default_factory=dict)
    """What a folder entry holds, beside its own toml: POSIX path in NFC → the real file."""
    folder: Path | None = None
    """Where it lies, for what is built from there."""

    @property
    def config_file(self) -> str:
        """The file that the entry's configuration stands in, relative to the root."""
        rules = KINDS[self.kind]
        return f"{self.path}/{rules.config}" if rules.config else self.path

    @property
    def sort_key(self) -> tuple[int, str]:
        """By kind, then by name."""
        return RANK[self.kind], self.name


@dataclass(frozen=True, slots=True)
class Settings:
    """What `bundle.toml` says about the bundle as a whole."""

    name: str | None = None
    """An identity that does not depend on where the folder is."""
    description: str | None = None
    agent: str | None = None
    model: str | None = None
    sandbox: str | None = None


@dataclass(frozen=True, slots=True)
class Bundle:
    """A parsed folder."""

    root: Path
    name: str
    id_root: str
    description: str | None
    entries: tuple[Entry, ...]
    settings: Settings = Settings()
    ignored: tuple[str, ...] = ()
    """What was not understood and skipped, relative to the root."""
    aliases: Mapping[str, Mapping[str, tuple[str, ...]]] = field(default_factory=dict)
    """`agents` and `envs` → folder name → aliases; they take effect once the bundle is installed."""
    broken: frozenset[tuple[BundleKind, str]] = frozenset()
    """Entries that are there and could not be read: what names them is not wrong."""
    warnings: tuple[Problem, ...] = ()

    @property
    def broken_names(self) -> frozenset[str]:
        """Names and ids of entries that could not be read."""
        names = frozenset(name for _, name in self.broken)
        return names | {f"{self.id_root}/{name}" for name in names}

    def of(self, kind: BundleKind) -> tuple[Entry, ...]:
        """The entries of a kind, by name."""
        return tuple(entry for entry in self.entries if entry.kind is kind)

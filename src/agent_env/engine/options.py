"""What an engine is given, and what a run is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from agent_env.documents.updates import Json

if TYPE_CHECKING:
    from agent_env.artifacts import Artifacts
    from agent_env.sandboxes.contract import Provider
    from agent_env.stores import Database, Documents, Journal, Objects, Secrets

Providers = Callable[[str], "Provider"]
"""Name → sandbox provider."""


@dataclass(frozen=True)
class Stores:
    """The memory that an engine works with."""

    db: Database
    documents: Documents
    objects: Objects
    journal: Journal
    secrets: Secrets
    artifacts: Artifacts
    certain: bool = True
    """They are those that are configured; else what is not here may be there."""

    @property
    def known_artifacts(self) -> Artifacts | None:
        """The artifacts; None where nobody can tell which there are."""
        return self.artifacts if self.certain else None


@dataclass(frozen=True)
class RunOptions:
    """How one run differs from the task as written."""

    seed: Mapping[str, Json] = field(default_factory=dict)
    """`<key>` in any text of a step becomes the value. Without one, the seed that the context holds is used."""
    metadata: Mapping[str, Json] = field(default_factory=dict)
    """Added to the context's metadata."""
    context: Mapping[str, Json] | None = None
    """What the run starts with (`--context-json`); the sandboxes that it names are adopted."""
    start_step: int = 0
    """Position of the first step to run; those before it count as done."""
    end_step: int | None = None
    """Position of the first step not to run."""
    keep: bool = False
    """Leave the places when the run has ended by itself."""
    pause_on_failure: bool = False
    """Leave the places when the run has failed, so that it can be looked at and resumed."""
    group_id: str | None = None
    """What belongs together: the attempts of one call."""
    attempt_index: int = 0
    """Which of several runs of the same task this is."""
    overrides: Mapping[str, Json] = field(default_factory=dict)
    """`user_overrides`. Secrets in it are used and never stored."""
    attempt_count: int = 1
    bundle_id: str | None = None
    bundle_path: str | None = None
    """Where the task comes from; only for people, a resume does not need it."""
    work_key: str | None = None
    """What this run is for, by content: a later call for the same work finds it, wherever the task's files are by then."""
    call: Mapping[str, Json] = field(default_factory=dict)
    """Of which call it is, by digests: a later call goes on with the group of the same work alone."""
    record: str | None = None
    """A folder that the answers of models are recorded in, absolute."""
    replay: str | None = None
    """A folder that they come from, with no model; absolute."""
    model_budget: Mapping[str, Json] = field(default_factory=dict)
    """What the run's agents may use of models, over `model.budget`."""
    run_id: str | None = None
    """Chosen by the caller; None makes one."""

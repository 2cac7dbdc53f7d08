"""Whose a recorded place is: this installation's, or that of the one whose state folder was copied to this one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from agent_env.errors import PlaceLostError, PlacementError
from agent_env.stores.identity import HOME_LABEL

if TYPE_CHECKING:
    from agent_env.config import Config
    from agent_env.stores.identity import Identity
    from agent_env.stores.records import ResourceRow

_SQLITE = "sqlite:///"


@dataclass(frozen=True)
class Elsewhere:
    """Another installation, which a place belongs to."""

    why: str
    """That it does, as the end of a sentence about the place."""
    path: Path | None
    """Its state folder; None where that is not found any more."""

    def remedy(self, run_id: str) -> str:
        """How a place of that run is removed."""
        if self.path is not None:
            return f"AGENT_ENV_STATE_ROOT={quote(str(self.path))} agent-env runs teardown {run_id} removes it there"
        return (
            f"remove it with that state folder, wherever it is now; where there is none any more: agent-env runs show {run_id} --context"
            " > context.json, then agent-env runs teardown --context-json context.json"
        )

    def lost(self, row: ResourceRow) -> PlaceLostError:
        """The error of who wants to go on in the place."""
        return PlaceLostError(f"sandbox {row.name!r} ({row.id}): {self.why}", concerns=row.id, hint=self.remedy(row.run_id))


@dataclass(frozen=True)
class Ownership:
    """How an installation tells its own places from those that its state folder knows as a copy."""

    identity: Identity
    alone: bool
    """No other installation records places in its run database."""

    @classmethod
    def of(cls, config: Config, identity: Identity) -> Ownership:
        """That of the installation with this configuration."""
        url, root = config.database_url, config.state_root.resolve()
        inside = url.startswith(_SQLITE) and Path(url.removeprefix(_SQLITE).partition("?")[0]).resolve().is_relative_to(root)
        return cls(identity, inside)

    def elsewhere(self, labels: Mapping[str, str]) -> Elsewhere | None:
        """Whose a place with these labels is; None for this installation's, and for that of another one on its run database."""
        home = labels.get(HOME_LABEL, self.identity.home)
        if home == self.identity.home:
            return None
        origin = self.identity.origin(home)
        if origin is None:
            why = "it belongs to another installation: this state folder was copied or moved after it was made"
            return Elsewhere(why, None) if self.identity.old and self.alone else None
        path = origin.path
        if path is None:
            why = f"it belongs to another installation, which was in {origin.paths[-1]} and of which this state folder is a copy"
            return Elsewhere(why, None)
        return Elsewhere(f"it belongs to the installation in {path}, of which this state folder is a copy", path)

    def is_only_copied(self, labels: Mapping[str, str]) -> bool:
        """Another installation records a place with these labels too, in a run database of its own: nothing is lost with this record."""
        return self.alone and self.elsewhere(labels) is not None

    def refuse(self, row: ResourceRow) -> None:
        """Raises `PlacementError` where a place is not this installation's to go on with."""
        if (elsewhere := self.elsewhere(row.labels)) is not None:
            raise PlacementError(f"sandbox {row.name!r} ({row.id}): {elsewhere.why}", concerns=row.id, hint=elsewhere.remedy(row.run_id))

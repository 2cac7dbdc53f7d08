"""An agent, as stored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import Field

from agent_env.documents.stored import Ref, StoredDocument, read_by_type

Json = Any
METADATA_KEYS = ("default_model", "min_disk_size_gb", "takes_credentials")
"""What an author may say; validators add keys of their own."""
_MOVED = ("min_disk_size_gb", "default_model")


class AgentDocument(StoredDocument):
    """A container that speaks A2A."""

    type: Literal["a2a_agent"] = "a2a_agent"
    docker_image_artifact: Ref
    default_env_vars: dict[str, str] = Field(default_factory=dict)
    """Variables of every deployment, the weakest of all."""
    metadata: dict[str, Json] = Field(default_factory=dict)

    @classmethod
    def read(cls, data: Mapping[str, Json], *, source: str | None = None, path: str = "$") -> Self:
        """An agent from its JSON. Keys that once stood at the top move into `metadata`, where a present one wins."""
        values = dict(data)
        moved = {key: value for key in _MOVED if (value := values.pop(key, None)) is not None}
        if moved and isinstance(values.get("metadata", {}), dict):
            values["metadata"] = {**moved, **values.get("metadata", {})}
        return super().read(values, source=source, path=path)

    @property
    def default_model(self) -> str | None:
        """The model that it uses where nobody says another."""
        model = self.metadata.get("default_model")
        return model if isinstance(model, str) else None

    @property
    def min_disk_size_gb(self) -> float:
        """The least disk that it needs."""
        size = self.metadata.get("min_disk_size_gb")
        return float(size) if isinstance(size, int | float) and not isinstance(size, bool) else 0.0

    @property
    def takes_credentials(self) -> bool:
        """Model credentials are given to it."""
        return self.metadata.get("takes_credentials") is not False


AGENT_TYPES: Mapping[str, type[StoredDocument]] = {"a2a_agent": AgentDocument}


def read_agent(data: Json, *, source: str | None = None, path: str = "$") -> StoredDocument:
    """An agent's document.

    Raises:
        ProblemsError: Everything wrong with it.
    """
    return read_by_type(AGENT_TYPES, data, what="an agent", source=source, path=path, default="a2a_agent")

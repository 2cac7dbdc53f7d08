"""Agents of a bundle: their documents. Nothing here looks at a store."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from agent_env.documents.updates import Json

if TYPE_CHECKING:
    from agent_env.bundles.references import Reference, ResolvedEntry

AGENT_IMAGE = "agent_image"
"""What an agent's image is called beside it."""


def agent_body(resolved: ResolvedEntry, version: Callable[[Reference], int]) -> dict[str, Json]:
    """An agent's stored document, in the reference's shape, without what the store itself keeps.

    Args:
        resolved: The agent.
        version: Of each document that it refers to.
    """
    from agent_env.documents.agent import AgentDocument

    entry, (image,) = resolved.entry, resolved.by_key["image"]
    body: dict[str, Json] = {
        "id": entry.id,
        "docker_image_artifact": {"id": image.id, "version": version(image), "type": "docker_image"},
        "default_env_vars": dict(entry.config.get("default_env_vars") or {}),
        "metadata": dict(entry.config.get("metadata") or {}),
    }
    stored = AgentDocument.read(body, source=entry.path).to_json()
    return {key: value for key, value in stored.items() if key not in ("id", "type", "version")}

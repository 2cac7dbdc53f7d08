"""Artifacts: files, folders, images, seed data, programs and skills as versioned documents over content-addressed objects.

Importing one name does not import the rest: most runs download nothing and unpack nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent_env.lazy import names_of

if TYPE_CHECKING:
    from agent_env.artifacts.artifacts import Artifacts as Artifacts
    from agent_env.artifacts.document import ArtifactDocument as ArtifactDocument
    from agent_env.artifacts.document import FileRef as FileRef
    from agent_env.artifacts.document import Source as Source
    from agent_env.artifacts.fetching import Downloaded as Downloaded
    from agent_env.artifacts.fetching import download as download
    from agent_env.artifacts.payload import expand_payload as expand_payload
    from agent_env.artifacts.urls import NamedUrl as NamedUrl
    from agent_env.artifacts.urls import name_urls as name_urls
    from agent_env.artifacts.urls import shown_url as shown_url

_MODULES = {
    "artifacts": ("Artifacts",),
    "document": ("ArtifactDocument", "FileRef", "Source"),
    "fetching": ("Downloaded", "download"),
    "payload": ("expand_payload",),
    "urls": ("NamedUrl", "name_urls", "shown_url"),
}

__getattr__, __dir__ = names_of(__name__, _MODULES)

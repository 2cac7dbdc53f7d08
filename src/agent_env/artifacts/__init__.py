"""Artifacts: files, folders, images, seed data, programs and skills as versioned documents over content-addressed objects.

Importing one name does not import the rest: most runs download nothing and unpack nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agent_env.artifacts.artifacts import ArtifactDocument as ArtifactDocument
    from agent_env.artifacts.artifacts import Artifacts as Artifacts
    from agent_env.artifacts.artifacts import FileRef as FileRef
    from agent_env.artifacts.artifacts import Source as Source
    from agent_env.artifacts.fetching import Downloaded as Downloaded
    from agent_env.artifacts.fetching import download as download
    from agent_env.artifacts.payload import expand_payload as expand_payload
    from agent_env.artifacts.urls import NamedUrl as NamedUrl
    from agent_env.artifacts.urls import name_urls as name_urls
    from agent_env.artifacts.urls import shown_url as shown_url

_HOME = {
    "ArtifactDocument": "artifacts",
    "Artifacts": "artifacts",
    "Downloaded": "fetching",
    "FileRef": "artifacts",
    "NamedUrl": "urls",
    "Source": "artifacts",
    "download": "fetching",
    "expand_payload": "payload",
    "name_urls": "urls",
    "shown_url": "urls",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(_HOME)

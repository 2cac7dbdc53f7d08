"""Artifacts: files, folders, images, seed data, programs and skills as versioned documents over content-addressed objects."""

from agent_env.artifacts.artifacts import ArtifactDocument, Artifacts, FileRef, Source
from agent_env.artifacts.download import Downloaded, download
from agent_env.artifacts.payload import expand_payload
from agent_env.artifacts.urls import NamedUrl, name_urls, shown_url

__all__ = [
    "ArtifactDocument",
    "Artifacts",
    "Downloaded",
    "FileRef",
    "NamedUrl",
    "Source",
    "download",
    "expand_payload",
    "name_urls",
    "shown_url",
]

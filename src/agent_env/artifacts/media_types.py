"""Media types by extension: a table of our own, because the system's differs from machine to machine and digests must not."""

from __future__ import annotations

from collections.abc import Mapping

from agent_env.documents.artifact import DEFAULT_CONTENT_TYPE

MEDIA_TYPES: Mapping[str, str] = {
    "bz2": "application/x-bzip2",
    "c": "text/x-c",
    "css": "text/css",
    "csv": "text/csv",
    "db": "application/vnd.sqlite3",
    "docx": "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
    "eml": "message/rfc822",
    "gif": "image/gif",
    "gz": "application/gzip",
    "htm": "text/html",
    "html": "text/html",
    "jpeg": "image/jpeg",
    "jpg": "image/jpeg",
    "js": "text/javascript",
    "json": "application/json",
    "jsonl": "application/jsonl",
    "log": "text/plain",
    "md": "text/markdown",
    "mp3": "audio/mpeg",
    "mp4": "video/mp4",
    "parquet": "application/vnd.apache.parquet",
    "pdf": "application/pdf",
    "png": "image/png",
    "pptx": "application/vnd.openxmlformats-officedocument.presentationml.presentation",
    "py": "text/x-python",
    "sh": "application/x-sh",
    "sql": "application/sql",
    "sqlite": "application/vnd.sqlite3",
    "svg": "image/svg+xml",
    "tar": "application/x-tar",
    "tgz": "application/gzip",
    "toml": "application/toml",
    "tsv": "text/tab-separated-values",
    "txt": "text/plain",
    "wav": "audio/wav",
    "webp": "image/webp",
    "xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
    "xml": "application/xml",
    "yaml": "application/yaml",
    "yml": "application/yaml",
    "zip": "application/zip",
}


def media_type(filename: str) -> str:
    """The media type of a file by its extension; `application/octet-stream` when unknown."""
    return MEDIA_TYPES.get(filename.rpartition(".")[2].lower(), DEFAULT_CONTENT_TYPE)

"""Files that a command reads and writes for its user."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from agent_env.errors import UsageError


def read_document(path: Path) -> Any:
    """A JSON file, strictly read.

    Raises:
        ProblemsError: It is missing, a folder, no UTF-8 or no JSON; names the file and the place.
    """
    from agent_env.defaults import DEFAULT_LIMITS
    from agent_env.documents.reading import read_json

    return read_json(path, limit_bytes=DEFAULT_LIMITS.document_bytes)


RESULTS = "results.json"
"""What `run --output FOLDER` writes beside the contexts."""


def read_context_file(path: Path) -> dict[str, Any]:
    """A run context, also one that another implementation wrote."""
    from agent_env.documents.context import read_context

    return read_context(read_document(path), source=str(path))


def write_private(path: Path, data: bytes) -> None:
    """Writes a file whole or not at all, readable by its user alone: results may hold what agents saw.

    Raises:
        UsageError: It can't be written; names the file and the reason.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        beside.replace(path)
    except OSError as error:
        with suppress(OSError):
            beside.unlink()
        raise UsageError(f"{path} can't be written: {error.strerror}", hint="choose another --output") from error


def check_writable(path: Path) -> None:
    """Makes the folder of a file that is to be written, and looks whether the file can be.

    Raises:
        UsageError: It can't; names the file and the reason.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{path} can't be written: {error.strerror}", hint="choose another --output") from error
    if path.is_dir():
        raise UsageError(f"{path} is a folder, not a file", hint="choose another --output")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise UsageError(f"{path} can't be written: {path.parent} may not be changed by this user", hint="choose another --output")

"""Files that a command reads and writes for its user."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from agent_env.errors import UsageError
from agent_env.ids import run_id_problem


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
    """Looks whether a file can be written, in a folder that may have to be made first. None is left, so that what is refused leaves none.

    Raises:
        UsageError: It can't; names the file and the reason.
    """
    refused = partial(UsageError, hint="choose another --output")
    missing = [folder for folder in (path.parent, *path.parent.parents) if not os.path.lexists(folder)]
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)  # tried out: what may be made where, only the system knows
        if path.is_dir():
            raise refused(f"{path} is a folder, not a file")
        if not os.access(path.parent, os.W_OK | os.X_OK):
            raise refused(f"{path} can't be written: {path.parent} may not be changed by this user")
    except OSError as error:
        raise refused(f"{path} can't be written: {error.strerror}") from error
    finally:
        with suppress(OSError):  # somebody else uses it by now
            for folder in missing:
                folder.rmdir()


def put_aside(folder: Path, group_id: str | None) -> Path | None:
    """Moves the results of a call of another group, and the contexts that they name, into a folder of that group's name.

    So what is in the folder itself is of one call. Files that no results name are left where they are.

    Args:
        folder: Where results are about to be written.
        group_id: Whose.

    Returns:
        The folder that they are in now; None where there was nothing to move.

    Raises:
        UsageError: They can't be moved; names the file and the reason.
    """
    group, names = _named_there(folder / RESULTS)
    if group is None or group == group_id:
        return None
    aside = folder / group
    try:
        aside.mkdir(mode=0o700, exist_ok=True)
        for name in (*names, RESULTS):
            if (folder / name).is_file():
                (folder / name).replace(aside / name)
    except OSError as error:
        raise UsageError(f"{aside} can't be written: {error.strerror}", hint="choose another --output") from error
    return aside


def _named_there(results: Path) -> tuple[str | None, list[str]]:
    """The group that a file of results is of, and the files beside it that it names; nothing of a file that is none of ours."""
    try:
        found = json.loads(results.read_bytes())
        group = str(found["group_id"])
        names = [str(run["context"]) for run in found["runs"] if run.get("context")]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None, []
    if run_id_problem(group) is not None:
        return None, []
    return group, [name for name in names if Path(name).name == name]

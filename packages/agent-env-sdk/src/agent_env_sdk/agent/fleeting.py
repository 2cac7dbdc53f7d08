"""Folders for what no restart needs to find again: each goes with the object that it belongs to, at the latest when the process ends."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from pathlib import Path


def fleeting_folder(owner: object, prefix: str) -> Path:
    """A new folder for this user's eyes alone, which is removed when nobody has its owner any more, or the process exits.

    Args:
        owner: What it belongs to. A process that is killed, or ended by a signal that it does not handle, leaves it.
        prefix: What its name begins with.
    """
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    weakref.finalize(owner, _remove, folder, os.getpid())
    return folder


def _remove(folder: Path, process: int) -> None:
    if os.getpid() == process:  # what this process has forked is not to take it away
        shutil.rmtree(folder, ignore_errors=True)

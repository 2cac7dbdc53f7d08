"""Wheels that tests have fetched, for all homes: what an image needs is had once a machine, not once a test."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def share_wheels(state: Path) -> None:
    """Has an installation's state folder share them."""
    shared = Path(tempfile.gettempdir()) / f"agent-env-test-wheels-{os.getuid()}"
    shared.mkdir(mode=0o700, exist_ok=True)
    here = state / "images/wheelhouses"
    here.parent.mkdir(parents=True, exist_ok=True)
    if not here.is_symlink():
        here.symlink_to(shared)

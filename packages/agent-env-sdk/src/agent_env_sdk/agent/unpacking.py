"""Unpacks archives that somebody else may have made: nothing of them comes to lie outside of the folder."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterator
from pathlib import Path

_MODES = 0o755
"""What remains of a member's rights, as of `tarfile.tar_filter`: no set-id bit, and nothing that others may write."""


def unpack(archive: tarfile.TarFile, folder: Path) -> None:
    """Unpacks an archive as `tarfile.tar_filter` wants it, which Python has from 3.11.4 on (and Debian 12's Python has not).

    Raises:
        tarfile.TarError: A member would lie outside of the folder; what came before it is there.
        OSError: It can't be written.
    """
    if hasattr(tarfile, "tar_filter"):
        archive.extractall(folder, filter="tar")
    else:
        folder.mkdir(parents=True, exist_ok=True)
        archive.extractall(folder, members=_within(archive, os.path.realpath(folder)))


def _within(archive: tarfile.TarFile, root: str) -> Iterator[tarfile.TarInfo]:
    """Each member is looked at after those before it were written, so that links among them are followed."""
    for member in archive:
        member.name = member.name.lstrip("/" + os.sep)
        where = os.path.realpath(f"{root}/{member.name}")
        if os.path.commonpath([root, where]) != root:
            raise tarfile.ExtractError(f"{member.name!r} would lie outside of the folder")
        member.mode &= _MODES
        yield member

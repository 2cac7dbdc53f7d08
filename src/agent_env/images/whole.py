"""Files that several builds may write and read at the same moment: they are there whole, or not at all."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator
from pathlib import Path

from agent_env.errors import StorageError


@contextlib.contextmanager
def written(path: Path) -> Iterator[Path]:
    """A path beside `path` to write to; what was written takes its name at the end of the block.

    Raises:
        StorageError: It can't be written.
    """
    aside = path.with_name(f".{secrets.token_hex(8)}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        yield aside
        aside.replace(path)
    except OSError as error:
        raise StorageError(f"{path} can't be written: {error.strerror}", concerns=str(path)) from error
    finally:
        with contextlib.suppress(OSError):
            aside.unlink()

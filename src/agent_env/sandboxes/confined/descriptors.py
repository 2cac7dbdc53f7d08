"""Content as descriptors: what a starting place is told without a file, an argument or an environment variable."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def in_memory(content: bytes) -> Iterator[int]:
    """A readable descriptor of the content, at its beginning. Never on a disk; gone with its last reader."""
    descriptor = os.memfd_create("agentenv")
    try:
        done = 0
        while done < len(content):
            done += os.pwrite(descriptor, content[done:], done)  # its position stays at the beginning
        yield descriptor
    finally:
        os.close(descriptor)

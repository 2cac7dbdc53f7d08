"""Ports for servers that have to be told theirs before they begin."""

from __future__ import annotations

import secrets
import socket
from contextlib import suppress

FIRST, COUNT = 10_000, 8_000
"""Below those that the product publishes, and those that a kernel gives to whoever names none: it gives away a free one at any moment."""


def free_port() -> int:
    """One that nobody listens on, and that nobody is given who doesn't ask for it."""
    while True:
        port = FIRST + secrets.randbelow(COUNT)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port

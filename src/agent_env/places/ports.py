"""The ports of this machine that places are published on."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator

from agent_env.places.endpoint import LOOPBACK

FIRST_PORT, LAST_PORT = 20000, 29999
"""(reference) Below the kernel's own ephemeral ports and Kubernetes' node ports."""
_TRIES = 200


def candidates(count: int = _TRIES) -> Iterator[int]:
    """Ports to try, each once, in an order that no two processes share."""
    yield from random.SystemRandom().sample(range(FIRST_PORT, LAST_PORT + 1), count)


def is_free(port: int) -> bool:
    """Whether nobody listens on a port of this machine's loopback now. Who binds it next decides."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
        return True

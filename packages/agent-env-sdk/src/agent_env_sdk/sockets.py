"""Listening sockets of the servers that the SDK runs."""

from __future__ import annotations

import socket
from typing import Final

BACKLOG: Final = 2048


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; on `::` it takes IPv4 as well, which asyncio's own sockets don't.

    Raises:
        OSError: The port can't be had.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # TCP is named, since asyncio spares small answers the kernel's waiting (Nagle) only on sockets that say so.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family is socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, host != "::")
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise OSError(error.errno, f"can't listen on {host} port {port}: {error.strerror}") from error
    return listener

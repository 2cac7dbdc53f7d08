"""Publishes ports of a place on this machine's loopback, through the place's own networking."""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections.abc import Sequence
from pathlib import Path

from agent_env.defaults import Limits
from agent_env.errors import InfrastructureError
from agent_env.places.endpoint import LOOPBACK
from agent_env.places.helper.greeting import connected_socket
from agent_env.waiting import deadline

FIRST_PORT, LAST_PORT = 20000, 29999
"""(reference) Below the kernel's own ephemeral ports and Kubernetes' node ports."""
_GUEST = "10.0.2.100"
_TRIES = 200
_ANSWER_BYTES = 4096


async def publish(api: Path, ports: Sequence[int], *, limits: Limits) -> dict[int, int]:
    """Forwards a port of this machine's loopback to each port of the place.

    What listens on all addresses inside, or on its network's one, is reached; what listens on the place's loopback alone is not.

    Args:
        api: The socket of the place's slirp4netns.
        ports: Ports inside.
        limits: `connect_seconds` bounds each request.

    Returns:
        Port inside → port on loopback. A port that somebody else takes meanwhile is replaced by another.

    Raises:
        InfrastructureError: No port could be had.
    """
    candidates = random.SystemRandom().sample(range(FIRST_PORT, LAST_PORT + 1), _TRIES)
    published: dict[int, int] = {}
    refusal = ""
    for served in dict.fromkeys(ports):
        while served not in published:
            if not candidates:
                raise InfrastructureError(f"no port of {FIRST_PORT} to {LAST_PORT} could be published: {refusal}")
            port = candidates.pop()
            refusal = await _forward(api, port, served, limits)
            if not refusal:
                published[served] = port
    return published


async def _forward(api: Path, port: int, served: int, limits: Limits) -> str:
    """Asks for one forwarding. Returns why it was refused; empty when it stands."""
    arguments = {"proto": "tcp", "host_addr": LOOPBACK, "host_port": port, "guest_addr": _GUEST, "guest_port": served}
    request = json.dumps({"execute": "add_hostfwd", "arguments": arguments}).encode()
    async with deadline(limits.connect_seconds, f"publishing port {served}"):
        try:
            reader, writer = await asyncio.open_unix_connection(sock=connected_socket(api))
            writer.write(request)
            writer.write_eof()
            answer = json.loads(await reader.read(_ANSWER_BYTES))
            writer.close()
        except (OSError, ValueError) as error:
            raise InfrastructureError(f"port {served} can't be published: {error}") from error
    return json.dumps(answer["error"]) if "error" in answer else ""


def write_port_map(work_dir: Path, ports: dict[int, int]) -> None:
    """The file by which other tools know a sandbox's ports. Whatever stands at its name is replaced, not followed."""
    folder = os.open(work_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fresh = f".port-map-{os.getpid()}"
        handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644, dir_fd=folder)
        with open(handle, "w") as file:
            json.dump({str(served): port for served, port in ports.items()}, file)
        os.replace(fresh, ".port-map.json", src_dir_fd=folder, dst_dir_fd=folder)
    finally:
        os.close(folder)

"""Ports of a place on this machine's loopback, found again after reopening."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import Iterator

import pytest

from agent_env.places import Command, Completed
from agent_env.sandboxes.confined import publish
from agent_env.waiting import poll
from tests.ports import free_port
from tests.sandboxes.people import MINE, World, spec, world

SERVER = "import http.server as h; h.ThreadingHTTPServer(('0.0.0.0', {port}), h.SimpleHTTPRequestHandler).serve_forever()"
BACKGROUND = 'exec python3 -c "$1" >/dev/null 2>&1 &'


@pytest.fixture(name="here")
def _here() -> Iterator[World]:
    with world("root" if os.geteuid() == 0 else "user without bubblewrap") as made:
        yield made


async def fetch(port: int) -> bytes | None:
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /which HTTP/1.0\r\n\r\n")
        answer = await reader.read()
        writer.close()
    except OSError:
        return None
    return answer.rpartition(b"\r\n\r\n")[2] or None


async def two_places_with_the_same_ports(here: World) -> None:
    provider = here.provider()
    made = [await provider.create(spec(f"{MINE}-port{number}", ports=(18765, 18080))) for number in (1, 2)]
    try:
        for number, sandbox in enumerate(made, 1):
            place = await sandbox.machine()
            for port in (18765, 18080):
                script = f"mkdir -p /app/{port} && cd /app/{port} && printf '{number} {port}' > which && {{ {BACKGROUND} }}"
                done: Completed = await place.run(Command(["sh", "-c", script, "sh", SERVER.format(port=port)]))
                assert done.ok
        for number, sandbox in enumerate(made, 1):
            again = await here.provider().attach(f"{MINE}-port{number}", epoch=2, token=f"t-{MINE}-port{number}")
            assert again.published == sandbox.published
            await again.aclose()
            for port, mapped in sandbox.published.host_ports.items():
                assert publish.FIRST_PORT <= mapped <= publish.LAST_PORT
                assert sandbox.published.tunnels[port] == f"http://127.0.0.1:{mapped}"
                assert await poll(lambda mapped=mapped: fetch(mapped), within_seconds=60, what="the server") == f"{number} {port}".encode()
            written = json.loads((sandbox.work_dir / ".port-map.json").read_text())
            assert written == {str(port): mapped for port, mapped in sandbox.published.host_ports.items()}
    finally:
        for number, sandbox in enumerate(made, 1):
            await sandbox.aclose()
            await provider.destroy(f"{MINE}-port{number}")
    assert here.left() == []


def test_c03_two_places_serve_the_same_ports_each_its_own(here: World) -> None:
    if here.provider().machine.slirp is None:
        pytest.skip("agentenv-capability-missing: slirp4netns")
    asyncio.run(two_places_with_the_same_ports(here))


def test_d4_a_port_that_is_taken_is_replaced_by_another(here: World, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        free = free_port()

        class Choice:
            def sample(self, population: range, count: int) -> list[int]:
                return [free, taken.getsockname()[1]]

        monkeypatch.setattr(publish.random, "SystemRandom", Choice)

        async def run() -> dict[int, int]:
            sandbox = await here.provider().create(spec(f"{MINE}-taken", ports=(8000,)))
            await sandbox.aclose()
            await here.provider().destroy(f"{MINE}-taken")
            return dict(sandbox.published.host_ports)

        ports = asyncio.run(run())
        assert ports == ({8000: free} if here.provider().machine.slirp else {8000: 8000})

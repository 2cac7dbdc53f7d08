"""A small server in the place and a small client here, to see who reaches a published port under which URL."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

from agent_env.errors import DeadlineError
from agent_env.places import Command
from agent_env.sandboxes.conformance.bench import Bench, Room
from agent_env.sandboxes.conformance.case import CapabilityMissingError
from agent_env.waiting import deadline, poll

_SERVER = r"""
import http.server, sys, threading
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = ("%s %s" % (self.server.marker, self.path)).encode()
        self.send_response(200); self.send_header("Content-Length", str(len(body))); self.end_headers(); self.wfile.write(body)
    def log_message(self, *a): pass
for pair in sys.argv[2:]:
    port, marker = pair.split("=")
    server = http.server.ThreadingHTTPServer((sys.argv[1], int(port)), Answer); server.marker = marker
    threading.Thread(target=server.serve_forever, daemon=True).start()
print("serving", flush=True)
threading.Event().wait()
"""
_FETCH = "import sys, urllib.request; sys.stdout.buffer.write(urllib.request.urlopen(sys.argv[1]).read())"
_ANSWER_BYTES = 1 << 16


async def python(room: Room) -> str:
    """The interpreter of the place.

    Raises:
        CapabilityMissingError: It has none.
    """
    found = await room.text("command -v python3 || command -v python || true")
    if not found:
        raise CapabilityMissingError("python3 in the place")
    return found


@asynccontextmanager
async def serving(room: Room, markers: Mapping[int, str], *, address: str = "0.0.0.0") -> AsyncIterator[None]:
    """A server on each port that answers `GET` with its marker and the path that it saw."""
    pairs = [f"{port}={marker}" for port, marker in markers.items()]
    process = await room.place.start(Command([await python(room), "-c", _SERVER, address, *pairs]))
    try:
        async for _, piece in process.output():
            if b"serving" in piece:
                break
        yield
    finally:
        await process.aclose()


async def fetch(url: str, bench: Bench) -> tuple[int, str]:
    """Status and body of a `GET` from this process. Names below `localhost` are loopback (RFC 6761), whatever the resolver says."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if host == "localhost" or host.endswith(".localhost"):
        host = "127.0.0.1"
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    async with deadline(bench.limits.connect_seconds, f"an answer of {url}"):
        secure = parts.scheme == "https"
        reader, writer = await asyncio.open_connection(
            host, parts.port or (443 if secure else 80), ssl=secure or None, server_hostname=parts.hostname if secure else None
        )
        try:
            writer.write(f"GET {target} HTTP/1.1\r\nHost: {parts.netloc}\r\nConnection: close\r\n\r\n".encode())
            answer = b""
            while len(answer) < _ANSWER_BYTES and (piece := await reader.read(_ANSWER_BYTES)):
                answer += piece
        finally:
            writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    status = head.split(b" ", 2)[1:2]
    return int(status[0]) if status else 0, body.decode(errors="replace")


async def fetched(url: str, bench: Bench) -> str:
    """The body, once the service answers with success: a proxy may connect before its server listens (PO-02)."""
    said = "nothing"

    async def answered() -> str | None:
        nonlocal said
        with contextlib.suppress(OSError, DeadlineError):
            status, body = await fetch(url, bench)
            if status == 200:
                return body
            said = f"status {status}"
        return None

    return await poll(answered, within_seconds=bench.limits.connect_seconds, what=f"an answer of {url} (it said {said})")


async def fetched_inside(room: Room, url: str) -> str:
    """The body, as a process of the place reaches the URL."""
    done = await room.place.run(Command([await python(room), "-c", _FETCH, url]))
    return done.stdout.decode(errors="replace") if done.ok else f"{done.ending} {done.exit_code}: {done.stderr[-300:]!r}"

"""A world of its own for a scenario: a process in fresh network and mount namespaces, with its own name server and its own internet."""

from __future__ import annotations

import asyncio
import ctypes
import os
import socket
import struct
import subprocess
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from agent_env.defaults import DEFAULT_LIMITS, Limits
from agent_env.documents.network import NetworkMode, NetworkPolicy
from agent_env.keeper.client import recorded_owner
from agent_env.places import Place
from agent_env.sandboxes.local.provider import LocalProvider
from agent_env.sandboxes.local.sandbox import LocalSandbox
from agent_env.waiting import poll
from tests.sandboxes.people import MINE, World, in_child, spec, world

LIMITS: Limits = replace(DEFAULT_LIMITS, keeper_idle_seconds=0.4)
GOOD = "127.5.0.1"
"""Stands for the public internet: the installation's configuration lets places reach it."""
OWN = ("10.9.0.1/32", "169.254.169.254/32", "8.7.6.5/32", "fd00::1/128", "2606:4700::99/128")
"""Addresses of this machine that no place may reach."""
_NEW_USER, _NEW_NET, _NEW_MOUNT = 0x10000000, 0x40000000, 0x20000
_PRIVATE, _BIND = 0x44000, 0x1000


def provider(here: World, *, limits: Limits = LIMITS, allow_private: Sequence[str] = ("127.5.0.0/16",)) -> LocalProvider:
    environ = {**os.environ, "HOME": str(here.home), "AGENT_ENV_LOCAL_SANDBOX_DIR": str(here.work)}
    return LocalProvider(here.state, limits=limits, options={"allow_private": list(allow_private)}, environ=environ)


@asynccontextmanager
async def allowed(
    here: World, hosts: Sequence[str] = (), cidrs: Sequence[str] = (), *, name: str = f"{MINE}-allowed", limits: Limits = LIMITS
) -> AsyncIterator[tuple[LocalSandbox, Place]]:
    """A place that may reach what is listed."""
    policy = NetworkPolicy(mode=NetworkMode.ALLOWLIST, allow_hosts=tuple(hosts), allow_cidrs=tuple(cidrs))
    made = await provider(here, limits=limits).create(spec(name, network=policy))
    try:
        yield made, await made.machine()
    finally:
        await made.aclose()
        await provider(here).destroy(name)


async def keeper_gone(here: World) -> None:
    await keeper_of_gone(here.state)


async def keeper_of_gone(state: Path) -> None:
    async def gone() -> bool | None:
        return True if recorded_owner(state) is None else None

    await poll(gone, within_seconds=60, what="the keeper to go when it is idle")


# An internet of one's own


def apart(scenario: Callable[..., Any], *arguments: object) -> Any:
    """Runs a scenario in a network of its own, whose name server is `Names`. Its first argument is the world."""
    with world("root" if os.geteuid() == 0 else "user") as here:

        async def work() -> Any:
            try:
                return await scenario(here, *arguments)
            finally:
                await keeper_gone(here)

        return in_child(lambda: asyncio.run(work()), ordinary=False, prepare=_own_network)


def _own_network() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    uid, gid = os.geteuid(), os.getegid()
    ordinary = _NEW_USER if uid else 0
    assert libc.unshare(_NEW_NET | _NEW_MOUNT | ordinary) == 0, os.strerror(ctypes.get_errno())
    if ordinary:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
        Path("/proc/self/gid_map").write_text(f"0 {gid} 1")
    with tempfile.NamedTemporaryFile("w", suffix=".conf", delete=False) as file:
        file.write("nameserver 127.0.0.1\noptions timeout:2 attempts:1\n")
    assert libc.mount(b"none", b"/", None, _PRIVATE, None) == 0
    assert libc.mount(os.fsencode(file.name), b"/etc/resolv.conf", None, _BIND, None) == 0
    Path(file.name).unlink()
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    for address in OWN:
        subprocess.run(["ip", "address", "add", address, "dev", "lo"], check=True)


class Names(threading.Thread):
    """A name server on 127.0.0.1:53. A name with several answers gives one after the other."""

    def __init__(self, table: Mapping[str, Sequence[str]]) -> None:
        super().__init__(daemon=True)
        self._table = {name: list(addresses) for name, addresses in table.items()}
        self.asked: list[str] = []
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 53))
        self.start()

    def run(self) -> None:
        while True:
            query, caller = self._socket.recvfrom(512)
            self._socket.sendto(self._answer(query), caller)

    def _answer(self, query: bytes) -> bytes:
        labels, at = [], 12
        while query[at]:
            labels.append(query[at + 1 : at + 1 + query[at]].decode())
            at += 1 + query[at]
        kind = struct.unpack_from(">H", query, at + 1)[0]
        name = ".".join(labels).lower()
        family = {1: socket.AF_INET, 28: socket.AF_INET6}.get(kind)
        addresses = [text for text in self._table.get(name, []) if (":" in text) == (family == socket.AF_INET6)]
        records = b""
        if addresses:
            text = addresses[0]
            if family == socket.AF_INET:
                self.asked.append(name)
                self._table[name].append(self._table[name].pop(self._table[name].index(text)))
            data = socket.inet_pton(family or socket.AF_INET, text)
            records = struct.pack(">HHHIH", 0xC00C, kind, 1, 0, len(data)) + data
        flags = 0x8180 if name in self._table else 0x8183
        return query[:2] + struct.pack(">HHHHH", flags, 1, bool(records), 0, 0) + query[12 : at + 5] + records


@dataclass
class Web:
    """A web server on every address of this machine. On `GOOD` it is the internet, elsewhere it is what nobody may reach."""

    port: int
    secret_hits: list[str]
    hosts: list[str]


@contextmanager
def web(*ports: int) -> Iterator[list[Web]]:
    """Serves on those ports while the block runs."""
    servers, webs = [], []
    for port in ports:
        found = Web(port, [], [])
        server = _Server(("::", port), _handler(found))
        found.port = server.server_address[1]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        webs.append(found)
    try:
        yield webs
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()


class _Server(ThreadingHTTPServer):
    address_family = socket.AF_INET6
    daemon_threads = True


def _handler(found: Web) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            at = self.connection.getsockname()[0].removeprefix("::ffff:")
            length = int(self.headers.get("Content-Length", 0))
            body = self.rfile.read(length)
            found.hosts.append(self.headers.get("Host", ""))
            if at != GOOD:
                found.secret_hits.append(f"{at} {self.path}")
            text = f"{'good' if at == GOOD else 'SECRET'} {self.command} {self.path} {len(body)}".encode()
            if self.path.startswith("/to?"):
                self.send_response(302)
                self.send_header("Location", self.path.removeprefix("/to?"))
            else:
                self.send_response(200)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(text)

        def log_message(self, *_: object) -> None:
            return

    for verb in ("GET", "POST", "HEAD", "PUT"):
        setattr(Handler, f"do_{verb}", Handler.answer)
    return Handler

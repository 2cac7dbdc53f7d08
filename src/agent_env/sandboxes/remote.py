"""Places on machines that are elsewhere, derived from one primitive: run a program and speak with it as a byte stream.

The helper is sent over the first stream and started there; from then on each connection is one stream of `helper connect`. Nothing of a
place's contract is left to the provider, and nothing here knows one.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from struct import Struct
from typing import TYPE_CHECKING, NoReturn

from agent_env.defaults import DEFAULT_LIMITS, KIB, Limits
from agent_env.documents.network import NetworkPolicy
from agent_env.errors import InfrastructureError, UnsupportedError
from agent_env.places import Place, PlaceKind, Published
from agent_env.places.helper import HelperConfig, HelperPlace, binary_path
from agent_env.places.helper.connection import Connection
from agent_env.places.helper.greeting import open_connection
from agent_env.sandboxes.contract import ByteStream, Level, OpenStream, SandboxInfo
from agent_env.waiting import deadline

if TYPE_CHECKING:
    from agent_env.containers import Engine

FOLDER = PurePosixPath("/var/lib/agentenv")
"""Where the helper and its socket are in the machine, for root alone."""
_CHUNK = 64 * KIB
_LENGTH = Struct("<I")
_LINE_BYTES = 4 * KIB
_FAILED = "failed: "

_ARRIVE = r"""
umask 077
mkdir -p "$1" && cd "$1" || { echo "failed: $1 can't be made"; exit 1; }
uname -m || { echo "failed: uname does not tell its architecture"; exit 1; }
read -r name size || exit 1
if [ ! -x "$name" ]; then
  echo send
  head -c "$size" > "$name.$$" && [ "$(wc -c < "$name.$$")" -eq "$size" ] && chmod 0700 "$name.$$" && mv "$name.$$" "$name" ||
    { rm -f "$name.$$"; echo "failed: the helper can't be stored in $1"; exit 1; }
fi
ln -sf "$name" helper
echo stored
exec "./$name" listen helper.sock
"""
"""Needs `sh` and the commands that every small userland has. Each side waits for the other's word, so that no program reads too far."""


async def start_helper(
    open_stream: OpenStream, config: HelperConfig, *, concerns: str, folder: PurePosixPath = FOLDER, limits: Limits = DEFAULT_LIMITS
) -> None:
    """Sends the helper to a machine and starts it there, in one stream. The token travels inside it, in no argument and no variable.

    Args:
        open_stream: Runs a program on the machine, as root where it has one.
        config: What the helper is told.
        concerns: The machine, for messages.
        folder: Where it is kept; its last parts are made.
        limits: `deploy_seconds` bounds the whole.

    Raises:
        UnsupportedError: There is no helper for the machine's architecture.
        InfrastructureError: It can't be stored or started; the message says what the machine answered.
        DeadlineError: No answer in time.
    """
    told = config.encode()
    async with deadline(limits.deploy_seconds, f"starting the helper in {concerns}"):
        stream = await open_stream(["sh", "-c", _ARRIVE, "sh", str(folder)])
        try:
            talk = _Talk(stream, concerns)
            binary = await asyncio.to_thread(binary_path(await talk.word()).read_bytes)
            digest = hashlib.sha256(binary).hexdigest()[:16]
            await stream.send(f"agentenv-helper-{digest} {len(binary)}\n".encode())
            if await talk.expect("send", "stored") == "send":
                try:
                    for at in range(0, len(binary), _CHUNK):
                        await stream.send(binary[at : at + _CHUNK])
                except InfrastructureError:
                    await talk.word()  # why it takes no more is what it said last
                    raise
                await talk.expect("stored")
            await stream.send(_LENGTH.pack(len(told)) + told)
            await talk.expect("ready")
            await talk.end()  # a machine that ends what a stream that is closed had started must not take the helper for that
        finally:
            await _let_go(stream, limits)


async def _let_go(stream: ByteStream, limits: Limits) -> None:
    """Closes a stream. One that does not close in time, or breaks, is nobody's concern any more."""
    with contextlib.suppress(InfrastructureError, OSError):
        async with deadline(limits.cleanup_seconds, "the end of a stream"):
            await stream.aclose()


class _Talk:
    """The lines that a program answers."""

    def __init__(self, stream: ByteStream, concerns: str) -> None:
        self._stream = stream
        self._concerns = concerns
        self._bytes = b""

    async def line(self) -> str:
        while b"\n" not in self._bytes:
            piece = await self._stream.receive()
            if not piece or len(self._bytes) > _LINE_BYTES:
                said = self._bytes.decode(errors="replace").strip()
                self._failed(f"it ended with {said!r}" if said else "it ended without a word")
            self._bytes += piece
        line, _, self._bytes = self._bytes.partition(b"\n")
        return line.decode(errors="replace").strip()

    async def word(self) -> str:
        """What it answers, unless that is why it failed."""
        line = await self.line()
        if line.startswith(_FAILED):
            self._failed(line.removeprefix(_FAILED))
        return line

    async def expect(self, *words: str) -> str:
        word = await self.word()
        if word not in words:
            self._failed(f"it said {word!r}")
        return word

    async def end(self) -> None:
        while await self._stream.receive():
            pass

    def _failed(self, why: str) -> NoReturn:
        raise InfrastructureError(
            f"the helper can't be started in {self._concerns}: {why}",
            concerns=self._concerns,
            hint="the machine needs sh, head, wc, uname and a folder that programs may be run from",
        )


class RemotePlace(HelperPlace):
    """A place whose helper is reached through a byte stream. Made by `connect_helper`."""

    def __init__(
        self, connection: Connection, bridge: Bridge, *, place_id: str, kind: PlaceKind, labels: Mapping[str, str], limits: Limits
    ) -> None:
        super().__init__(connection, place_id=place_id, kind=kind, labels=labels, limits=limits)
        self._bridge = bridge

    async def aclose(self) -> None:
        """Lets go of the connection and of its stream. What runs there goes on."""
        await super().aclose()
        await self._bridge.aclose()


async def connect_helper(
    open_stream: OpenStream,
    *,
    place_id: str,
    kind: PlaceKind = PlaceKind.MACHINE,
    labels: Mapping[str, str],
    token: str,
    epoch: int,
    folder: PurePosixPath = FOLDER,
    limits: Limits = DEFAULT_LIMITS,
) -> RemotePlace:
    """Connects to a machine's helper and becomes its owner for this epoch: from the process that started it, or from any later one.

    Args:
        open_stream: Runs a program on the machine, as root where it has one.
        place_id: The place's identity, for messages and records.
        kind: Machine, or the container that the sandbox is.
        labels: The run, sandbox and installation that it belongs to.
        token: The place's token, as its helper was told.
        epoch: The caller's epoch; connections of an older one are cut.
        folder: Where the helper is.
        limits: Deadlines and sizes.

    Raises:
        SandboxUnavailableError: No helper runs there, or the token does not fit.
        SupersededError: A later owner has taken the place over.
        DeadlineError: No answer.
    """
    concerns = f"{kind} {place_id}"
    async with deadline(limits.connect_seconds, f"opening a stream to {concerns}"):
        stream = await open_stream([str(folder / "helper"), "connect", str(folder / "helper.sock")])
    here, there = socket.socketpair()
    bridge = Bridge(there, stream, limits)
    try:
        connection = await open_connection(here, concerns=concerns, token=token, epoch=epoch, limits=limits)
    except BaseException:  # whatever went wrong, the stream must not stay
        await bridge.aclose()
        raise
    return RemotePlace(connection, bridge, place_id=place_id, kind=kind, labels=labels, limits=limits)


class Bridge:
    """Carries bytes between a socket and a stream, both ways, until either of them ends. It owns both."""

    def __init__(self, link: socket.socket, stream: ByteStream, limits: Limits) -> None:
        link.setblocking(False)
        self._limits = limits
        self._link = link
        self._stream = stream
        self._work = asyncio.ensure_future(self._carry())

    async def _carry(self) -> None:
        lanes = [asyncio.ensure_future(self._up()), asyncio.ensure_future(self._down())]
        try:
            await asyncio.wait(lanes, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for lane in lanes:
                lane.cancel()
            await asyncio.gather(*lanes, return_exceptions=True)
            self._link.close()  # the connection over it tells its callers that the transport is lost
            await _let_go(self._stream, self._limits)

    async def _up(self) -> None:
        loop = asyncio.get_running_loop()
        while data := await loop.sock_recv(self._link, _CHUNK):
            await self._stream.send(data)

    async def _down(self) -> None:
        loop = asyncio.get_running_loop()
        while data := await self._stream.receive():
            await loop.sock_sendall(self._link, data)

    async def aclose(self) -> None:
        """Ends both ways."""
        self._work.cancel()
        await asyncio.gather(self._work, return_exceptions=True)


@dataclass(frozen=True)
class RemoteSandbox:
    """A sandbox that is one remote place: all that a handle needs, as values."""

    info: SandboxInfo
    place: Place
    levels: Mapping[str, Level]
    published: Published
    network: NetworkPolicy

    async def machine(self) -> Place:
        """The machine, or the sandbox itself where it is a container."""
        return self.place

    async def engine(self) -> Engine:
        """There is none.

        Raises:
            UnsupportedError: Always.
        """
        raise UnsupportedError(
            f"sandbox {self.info.sandbox_id} has no container engine",
            concerns=self.info.sandbox_id,
            hint="`agent-env provider list` shows which providers run containers",
        )

    async def container(self, container_id: str) -> Place:
        """There is none.

        Raises:
            UnsupportedError: Always.
        """
        raise UnsupportedError(
            f"sandbox {self.info.sandbox_id} has no container engine, so no container {container_id}", concerns=self.info.sandbox_id
        )

    async def aclose(self) -> None:
        """Lets go of the connection; the sandbox goes on."""
        await self.place.aclose()

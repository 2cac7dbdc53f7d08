"""Reaches the internet for a place: resolves a name, checks every address, and connects to the very address that it checked."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum

from agent_env.defaults import Limits
from agent_env.errors import DeadlineError
from agent_env.keeper.policy import Address, Policy, literal, normal_host, shown_host
from agent_env.waiting import deadline

Resolve = Callable[[str], Awaitable[Sequence[str]]]
"""Host name → addresses as text. Raises OSError when there are none."""

_DISCARD = 9
_MOST_ADDRESSES = 8
_READ_AHEAD = 64 << 10
_RESOLVING_AT_ONCE = 32


@dataclass(frozen=True, slots=True)
class Refusal:
    """The policy forbids it."""

    host: str
    """As it may be shown."""
    port: int
    why: str

    @property
    def text(self) -> str:
        """For whoever asked."""
        return f"{self.host}:{self.port} is refused: {self.why}"


class Trouble(StrEnum):
    """Why something that is allowed could not be reached."""

    UNRESOLVED = "unresolved"
    CLOSED = "closed"
    UNREACHABLE = "unreachable"
    SLOW = "slow"


@dataclass(frozen=True, slots=True)
class Unreached:
    """It is allowed, and could not be reached."""

    trouble: Trouble
    text: str


@dataclass(frozen=True, slots=True)
class Reached:
    """An open connection to the outside. Its holder closes it."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def close(self) -> None:
        """Ends it, both ways."""
        self.writer.close()

    def abort(self) -> None:
        """Ends it and lets what is unsent go."""
        self.writer.transport.abort()


class Outside:
    """The way out, shared by all places."""

    def __init__(self, limits: Limits, resolve: Resolve | None = None) -> None:
        self._limits = limits
        self._threads = ThreadPoolExecutor(_RESOLVING_AT_ONCE, thread_name_prefix="resolve")
        self._resolve = resolve or self._look_up

    async def reach(self, policy: Policy, host: str, port: int) -> Reached | Refusal | Unreached:
        """Connects to a host on behalf of a place.

        Args:
            policy: What the place may reach.
            host: As the client wrote it.
            port: From 1 to 65535.
        """
        shown = shown_host(host)
        normal = normal_host(host)
        if normal is None:
            return Refusal(shown, port, "that is no host name, or an address in an unusual spelling")
        problem = policy.target_problem(normal, port)
        if problem is not None:
            return Refusal(shown, port, problem)
        addresses = await self._addresses(normal)
        if isinstance(addresses, Unreached):
            return addresses
        allowed, problems = [], []
        for address in addresses:
            why = policy.address_problem(address) or self._own_problem(address, policy)
            if why is None:
                allowed.append(address)
            else:
                problems.append(f"{address}: {why}" if literal(normal) is None else why)
        if not allowed:
            leads = "it leads to " if literal(normal) is None else ""
            return Refusal(shown, port, f"{leads}{problems[0]}")
        return await self._connect(allowed, shown, port)

    async def to_host(self, port: int) -> Reached | Unreached:
        """Connects to a listener on this machine's own loopback, which the installation itself named."""
        return await self._connect([ipaddress.IPv4Address("127.0.0.1")], "this machine", port)

    def close(self) -> None:
        """Lets go of the threads; look-ups that hang are not waited for."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _addresses(self, host: str) -> list[Address] | Unreached:
        known = literal(host)
        if known is not None:
            return [known]
        try:
            async with deadline(self._limits.connect_seconds, f"resolving {host}"):
                found = await self._resolve(host)
        except DeadlineError as error:
            return Unreached(Trouble.SLOW, error.message)
        except (OSError, UnicodeError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            return Unreached(Trouble.UNRESOLVED, f"{host} can't be resolved: {reason}")
        unique = dict.fromkeys(ipaddress.ip_address(text) for text in found if "%" not in text)
        return [*unique][:_MOST_ADDRESSES] or Unreached(Trouble.UNRESOLVED, f"{host} can't be resolved: it has no address")

    async def _look_up(self, host: str) -> Sequence[str]:
        def ask() -> list[str]:
            return [str(entry[4][0]) for entry in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)]

        return await asyncio.get_running_loop().run_in_executor(self._threads, ask)

    def _own_problem(self, address: Address, policy: Policy) -> str | None:
        """A public address that this machine itself has leads to its own services, as loopback does."""
        if _is_own(address) and not any(address.version == net.version and address in net for net in policy.allow_private):
            return "it is an address of the machine that runs this sandbox"
        return None

    async def _connect(self, addresses: Sequence[Address], shown: str, port: int) -> Reached | Unreached:
        trouble = Unreached(Trouble.UNREACHABLE, f"{shown}:{port} can't be reached")
        share = self._limits.connect_seconds / min(len(addresses), 2)
        try:
            async with deadline(self._limits.connect_seconds, f"connecting to {shown}:{port}"):
                for address in addresses:
                    try:
                        async with deadline(share, f"connecting to {shown}:{port}"):
                            return await _open(address, port)
                    except ConnectionRefusedError:
                        trouble = Unreached(Trouble.CLOSED, f"nothing listens at {shown}:{port}")
                    except OSError as error:
                        trouble = Unreached(Trouble.UNREACHABLE, f"{shown}:{port} can't be reached: {error.strerror or error}")
                    except DeadlineError as error:
                        trouble = Unreached(Trouble.SLOW, error.message)
        except DeadlineError as error:
            return Unreached(Trouble.SLOW, error.message)
        return trouble


async def _open(address: Address, port: int) -> Reached:
    family = socket.AF_INET6 if address.version == 6 else socket.AF_INET
    link = socket.socket(family, socket.SOCK_STREAM)
    try:
        link.setblocking(False)
        with contextlib.suppress(OSError):
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await asyncio.get_running_loop().sock_connect(link, (str(address), port))
        reader, writer = await asyncio.open_connection(sock=link, limit=_READ_AHEAD)
    except BaseException:  # a cancellation too must not leave the socket
        link.close()
        raise
    return Reached(reader, writer)


def _is_own(address: Address) -> bool:
    """The kernel reaches an address of its own from that very address. Nothing is sent."""
    family = socket.AF_INET6 if address.version == 6 else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((str(address), _DISCARD))
            return ipaddress.ip_address(probe.getsockname()[0]) == address
        except OSError:
            return False

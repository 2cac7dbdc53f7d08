"""What the rest of agent-env knows of the keeper: that a place's relays stand when `carry` returns, also after somebody killed it."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import subprocess
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from agent_env import errors
from agent_env.defaults import DEFAULT_LIMITS, Limits
from agent_env.errors import DeadlineError, InfrastructureError, SandboxUnavailableError
from agent_env.keeper.records import MOST_TOLD, Carried, FromHost, Records
from agent_env.keeper.wiring import egress_of
from agent_env.places.helper.greeting import connected_socket
from agent_env.stores.owners import Life, Owner
from agent_env.waiting import back_off, deadline, poll

if TYPE_CHECKING:
    from agent_env.documents.network import NetworkPolicy

SOCKET, STARTING, WHO, LOG = "keeper.sock", "starting.lock", "keeper.json", "keeper.log"
_LINE_BYTES = 64 << 10
_LOG_BYTES = 1 << 20
_ASKED_AGAIN = 2
_LONGEST_PAUSE = 4
"""As an attempt's number: two seconds. A helper holds connections for thirty while there is no keeper."""
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
_KEPT_VARIABLES = (
    *("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "TZ", "XDG_RUNTIME_DIR", "LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONHOME"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", *_PROXIES, *(name.lower() for name in _PROXIES)),  # for the way to models
)
_NOBODY = (FileNotFoundError, ConnectionRefusedError)

_KINDS: Mapping[str, type[InfrastructureError]] = {
    kind.code: kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, InfrastructureError)
}
"""What it may say that it met, each as the kind that it is here."""

Tell = Callable[[Mapping[str, Any]], None]
"""Called with `host`, `port` and `why` of something that a place was refused."""


@dataclass(frozen=True)
class KeeperStatus:
    """The keeper of an installation, for a person."""

    pid: int | None = None
    """None when none runs."""
    places: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """What it carries for: connections at this moment, and refusals so far."""
    recorded: tuple[str, ...] = ()
    """Places with a record."""


async def carry(state_root: Path, carried: Carried, *, limits: Limits = DEFAULT_LIMITS) -> None:
    """Has the keeper carry for a place, started if need be. Writes it down first; asking again changes nothing.

    Raises:
        SandboxUnavailableError: The place is gone, or a port of it is taken.
        PortTakenError: A port of this machine is.
        InfrastructureError: The keeper can't be started, or refuses.
        DeadlineError: It does not answer.
    """
    records, place = Records(state_root), carried.place
    async with deadline(limits.deploy_seconds, f"the keeper's relays for sandbox {place}"):
        for _ in range(_ASKED_AGAIN):
            await asyncio.to_thread(records.write, carried)
            answer = await _ask(records.folder, {"do": "sync", "place": place}, limits)
            if answer.get("carried"):
                return
            # A keeper that just started has tried by itself, and forgotten it: the next one to ask hears why.
    raise SandboxUnavailableError(f"sandbox {place} is gone, so nothing is carried for it", concerns=place)


async def carry_egress(
    state_root: Path,
    place: str,
    reach: Mapping[str, str],
    policy: NetworkPolicy,
    *,
    allow_private: Sequence[str] = (),
    ports: Mapping[int, int] | None = None,
    limits: Limits = DEFAULT_LIMITS,
) -> None:
    """Has the keeper hold a place's allow-list. Raises as `carry`.

    Args:
        state_root: The installation's state folder.
        place: The id that the place's relay token was derived from.
        reach: How its helper is reached; see `reaching`.
        policy: Of mode `allowlist`, without `policy_problems`.
        allow_private: Ranges that the installation's configuration lets places reach although they are not public.
        ports: Port of the place → port of this machine's loopback that leads there.
        limits: Deadlines.
    """
    published = (FromHost(port, to) for to, port in (ports or {}).items())
    await carry(state_root, Carried(place, reach, (egress_of(policy, allow_private), *published)), limits=limits)


async def drop(state_root: Path, place: str, *, limits: Limits = DEFAULT_LIMITS) -> bool:
    """Has nothing carried for a place any more, nor for what stands beside it (`<place>.<name>`). Starts no keeper for that.

    Returns:
        Whether anything was.

    Raises:
        DeadlineError: The keeper does not answer; the record is gone all the same.
    """
    records = Records(state_root)
    named = [place, *(other for other in records.places() if other.startswith(f"{place}."))]
    gone = [each for each in named if await asyncio.to_thread(records.remove, each)]
    for each in gone:
        with contextlib.suppress(*_NOBODY, ConnectionError):
            async with deadline(limits.connect_seconds, "the keeper's answer"), _connected(records.folder) as (reader, writer):
                await _request(reader, writer, {"do": "sync", "place": each})
    return bool(gone)


async def installed_status(state_root: Path, *, limits: Limits = DEFAULT_LIMITS) -> KeeperStatus:
    """What the installation's keeper carries. Starts none.

    Raises:
        DeadlineError: It does not answer.
    """
    records = Records(state_root)
    recorded = tuple(records.places())
    try:
        async with deadline(limits.connect_seconds, "the keeper's answer"), _connected(records.folder) as (reader, writer):
            answer = await _request(reader, writer, {"do": "status"})
    except (*_NOBODY, ConnectionError):
        return KeeperStatus(recorded=recorded)
    return KeeperStatus(answer["pid"], answer["places"], recorded)


def stale_records(state_root: Path, *, remove: bool) -> tuple[str, ...]:
    """Places whose record is for an earlier boot or a time that is up, and that nobody reads because no keeper runs."""
    records = Records(state_root)
    found = [place for place in records.places() if (carried := records.read(place)) is None or carried.over]
    for place in found if remove else ():
        records.remove(place)
    return tuple(found)


class Watch:
    """Stands by for one place: hears what is refused, and has a keeper that was killed replaced at once.

    Owned by a handle on the sandbox: `start`, then `aclose`.
    """

    def __init__(self, state_root: Path, place: str, *, limits: Limits = DEFAULT_LIMITS) -> None:
        self._records = Records(state_root)
        self._place = place
        self._limits = limits
        self._task: asyncio.Task[None] | None = None
        self._tell: Tell | None = None
        self._untold: deque[Mapping[str, Any]] = deque(maxlen=MOST_TOLD)

    def start(self, tell: Tell | None = None) -> Self:
        """Begins, or changes who is told. What nobody was told yet is told then."""
        self._tell = tell or self._tell
        while self._tell is not None and self._untold:
            self._tell(self._untold.popleft())
        if self._task is None:
            self._task = asyncio.ensure_future(self._stand_by())
        return self

    async def aclose(self) -> None:
        """Ends; what was refused until now is told first."""
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.wait({self._task})
        self._task = None
        with contextlib.suppress(OSError, ValueError, InfrastructureError):  # what is left then is told to the next one who stands by
            folder, seconds = self._records.folder, self._limits.answer_margin_seconds
            async with deadline(seconds, "the keeper's last word"), _connected(folder) as (reader, writer):
                answer = await _request(reader, writer, {"do": "rest", "place": self._place})
            for refused in answer["refused"]:
                self._hear({"refused": refused})

    async def _stand_by(self) -> None:
        attempt, loop = 1, asyncio.get_running_loop()
        while self._records.read(self._place) is not None:
            begun = loop.time()
            try:
                await _ask(self._records.folder, {"do": "sync", "place": self._place}, self._limits)
                async with _connected(self._records.folder) as (reader, writer):
                    await _request(reader, writer, {"do": "watch", "place": self._place})
                    while line := await reader.readline():
                        self._hear(json.loads(line))
            except (OSError, ValueError, InfrastructureError):
                pass  # a keeper that can't be had now: the place is without its relays until one can
            attempt = attempt + 1 if loop.time() - begun < self._limits.answer_margin_seconds else 1
            if attempt > 1:
                await back_off(min(attempt, _LONGEST_PAUSE), limits=self._limits)

    def _hear(self, answer: Mapping[str, Any]) -> None:
        refused = answer.get("refused")
        if refused and self._tell is not None:
            self._tell(refused)
        elif refused:
            self._untold.append(refused)


# Asking


async def _ask(folder: Path, request: Mapping[str, Any], limits: Limits) -> Mapping[str, Any]:
    """One request to the keeper, which is started if there is none.

    Raises:
        InfrastructureError: It refuses, or can't be started.
        DeadlineError: It does not answer.
    """
    async with deadline(limits.deploy_seconds, "the keeper"):
        while True:
            try:
                async with _connected(folder) as (reader, writer):
                    return await _request(reader, writer, request)
            except (*_NOBODY, ConnectionError):
                await _start(folder, limits)


async def _request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: Mapping[str, Any]) -> Mapping[str, Any]:
    writer.write(json.dumps(request, separators=(",", ":")).encode() + b"\n")
    await writer.drain()
    line = await reader.readline()
    if not line:
        raise ConnectionResetError("the keeper went")
    answer: Mapping[str, Any] = json.loads(line)
    if "error" in answer:
        kind = _KINDS.get(answer["error"].get("code", ""), InfrastructureError)
        raise kind(f"the keeper: {answer['error'].get('message', 'refused')}")
    return answer


@asynccontextmanager
async def _connected(folder: Path) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_unix_connection(sock=connected_socket(folder / SOCKET), limit=_LINE_BYTES)
    try:
        yield reader, writer
    finally:
        writer.close()


# Starting


async def _start(folder: Path, limits: Limits) -> None:
    """Starts a keeper, unless somebody else just does. Returns when one may be there.

    Raises:
        InfrastructureError: It did not start; the message says why.
        DeadlineError: It took too long.
    """
    async with _starting(folder, limits) as ours:
        if not ours:
            return
        words = [f"{name}={getattr(limits, name)}" for name in limits.names() if getattr(limits, name) != getattr(DEFAULT_LIMITS, name)]
        said = await asyncio.to_thread(_spawn, folder, words, limits.deploy_seconds)
    if said == "taken":  # by one that is just about to go, or to listen
        await back_off(2, limits=limits)
    elif said != "ready":
        raise InfrastructureError(
            f"the keeper did not start: {said.removeprefix('failed: ') or 'it ended at once'}", hint=f"{folder / LOG} says more"
        )


@asynccontextmanager
async def _starting(folder: Path, limits: Limits) -> AsyncIterator[bool]:
    """Only one process of an installation starts a keeper at a time. Says False when there is one by then."""
    handle = os.open(folder / STARTING, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)

    async def turn() -> bool | None:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False if _listens(folder) else None
        return not _listens(folder)

    try:
        yield await poll(turn, within_seconds=limits.deploy_seconds, what="somebody else's start of the keeper", limits=limits)
    finally:
        os.close(handle)


def _listens(folder: Path) -> bool:
    """Somebody takes connections there."""
    try:
        connected_socket(folder / SOCKET).close()
    except OSError:
        return False
    return True


def _spawn(folder: Path, words: list[str], seconds: float) -> str:
    """In a worker thread. Returns what the keeper said of its start."""
    environment = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
    log = folder / LOG
    fresh = log.exists() and log.stat().st_size > _LOG_BYTES
    with open(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | (os.O_TRUNC if fresh else 0) | os.O_CLOEXEC, 0o600), "ab") as file:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "agent_env.keeper", str(folder.parent), *words],
            env=environment,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=file,
            start_new_session=True,
        )
    try:
        said, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired as error:
        process.kill()
        process.communicate()
        raise DeadlineError(f"the keeper did not start within {seconds:g} s", hint=f"{log} says more") from error
    return said.decode(errors="replace").strip()


def recorded_owner(state_root: Path) -> Owner | None:
    """The process that the journal names as the keeper, if it lives."""
    try:
        data = json.loads((Records(state_root).folder / WHO).read_text())
        data.pop("protocol", None)
        owner = Owner.from_json(data)
    except (OSError, ValueError, TypeError):
        return None
    return owner if owner.life() is Life.ALIVE else None

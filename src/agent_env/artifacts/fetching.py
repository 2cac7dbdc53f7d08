"""Fetching URLs over HTTP(S): bounded in size and time, retried, hashed, and never to where a sandbox may not reach."""

from __future__ import annotations

import asyncio
import hashlib
import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from agent_env.artifacts.urls import NamedUrl, admission_problem, shown_url
from agent_env.defaults import DEFAULT_LIMITS, Limits
from agent_env.documents.network import NetworkPolicy
from agent_env.errors import DeadlineError, InfrastructureError, StorageError, TransferError, UserError
from agent_env.waiting import back_off, deadline

if TYPE_CHECKING:
    import httpx

_WORTH_AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504})
_MAX_REDIRECTS = 10


@dataclass(frozen=True, slots=True)
class Downloaded:
    """A file that was fetched."""

    url: str
    filename: str
    path: Path
    size: int
    sha256: str


async def download(
    urls: Sequence[NamedUrl],
    into: Path,
    *,
    network: NetworkPolicy | None = None,
    machine: bool = False,
    limits: Limits = DEFAULT_LIMITS,
    progress: Callable[[Downloaded], None] = lambda _: None,
) -> list[Downloaded]:
    """Fetches every URL into a folder, several at once; the first failure cancels the others.

    Args:
        urls: What to fetch and how to name it; see `urls.name_urls`.
        into: An existing folder of this machine. A file appears under its name only once it is whole.
        network: The policy of the sandbox on whose behalf it is fetched, held on every redirect too.
        machine: This machine's own addresses may be contacted. A task must not reach them through us.
        limits: `download_seconds` for each file with all its attempts, `download_bytes`, `download_attempts`, `download_streams`.
        progress: Told of each finished file.

    Returns:
        In the order of `urls`.

    Raises:
        TransferError: The server refused, or every attempt failed; the message holds no query and no password.
        DeadlineError: A file took longer than it may.
        UserError: The policy forbids the host, or the file is too large.
    """
    if not urls:
        return []
    turns = asyncio.Semaphore(limits.download_streams)
    async with _client(limits, network, machine) as client:

        async def one(url: NamedUrl) -> Downloaded:
            async with turns, deadline(limits.download_seconds, f"downloading {url.shown}"):
                done = await _with_attempts(client, url, into, limits)
            progress(done)
            return done

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(one(url)) for url in urls]
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from errors
    return [task.result() for task in tasks]


def _client(limits: Limits, network: NetworkPolicy | None, machine: bool) -> httpx.AsyncClient:
    import httpx

    async def admit(request: httpx.Request) -> None:
        host = request.url.host
        problem = admission_problem(host, await _addresses(host, request.url.port or 443), network, machine=machine)
        if problem:
            raise UserError(f"{shown_url(str(request.url))} must not be fetched: {problem}", hint="load it as an artifact instead")

    return httpx.AsyncClient(
        follow_redirects=True,
        max_redirects=_MAX_REDIRECTS,
        timeout=httpx.Timeout(limits.connect_seconds, read=limits.download_seconds),
        headers={"Accept-Encoding": "identity"},
        event_hooks={"request": [admit]},
    )


async def _addresses(host: str, port: int) -> list[str]:
    """What a host's name resolves to here; nothing when it doesn't (a proxy may know better, and the connection will say)."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    return [str(entry[4][0]) for entry in found]


async def _with_attempts(client: httpx.AsyncClient, url: NamedUrl, into: Path, limits: Limits) -> Downloaded:
    for attempt in range(1, limits.download_attempts + 1):
        if attempt > 1:
            await back_off(attempt, limits=limits)
        try:
            return await _fetch(client, url, into, limits)
        except _AttemptError as error:
            last = error
    raise TransferError(
        f"{url.shown} could not be fetched: {last} ({limits.download_attempts} attempts)", concerns=url.filename
    ) from last.__cause__


class _AttemptError(InfrastructureError):
    """An attempt failed in a way that another one may not."""


async def _fetch(client: httpx.AsyncClient, url: NamedUrl, into: Path, limits: Limits) -> Downloaded:
    import httpx

    partial = into / f".{url.filename[:180]}.{os.urandom(6).hex()}.part"
    try:
        async with client.stream("GET", url.url) as response:
            if response.status_code in _WORTH_AGAIN:
                raise _AttemptError(f"the server answered {response.status_code}")
            if not response.is_success:
                raise TransferError(f"{url.shown} could not be fetched: the server answered {response.status_code}", concerns=url.filename)
            size, sha256 = await _save(response, partial, url, limits)
        target = into / url.filename
        partial.rename(target)
        return Downloaded(url.url, url.filename, target, size, sha256)
    except httpx.TooManyRedirects as error:
        raise TransferError(f"{url.shown} redirects more than {_MAX_REDIRECTS} times", concerns=url.filename) from error
    except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
        raise TransferError(f"{url.shown} leads to an address that can't be fetched", concerns=url.filename) from error
    except httpx.HTTPError as error:
        raise _AttemptError(f"{type(error).__name__}") from error
    except DeadlineError:
        raise
    except OSError as error:
        raise StorageError(f"{url.filename} could not be written: {error.strerror}", concerns=str(into)) from error
    finally:
        partial.unlink(missing_ok=True)


async def _save(response: httpx.Response, partial: Path, url: NamedUrl, limits: Limits) -> tuple[int, str]:
    digest, size = hashlib.sha256(), 0
    with partial.open("xb") as file:
        async for chunk in response.aiter_raw():
            size += len(chunk)
            if size > limits.download_bytes:
                hint = "raise the limit download_bytes"
                raise UserError(f"{url.shown} is larger than {limits.download_bytes} bytes", concerns=url.filename, hint=hint)
            digest.update(chunk)
            file.write(chunk)
    return size, digest.hexdigest()

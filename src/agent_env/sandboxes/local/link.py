"""Where this provider meets the helper: its configuration, and the connection to it."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from agent_env.defaults import Limits
from agent_env.errors import SandboxUnavailableError
from agent_env.places.helper.connection import Connection, connected_socket, open_connection
from agent_env.places.helper.protocol import HelperConfig
from agent_env.sandboxes.contract import SandboxSpec

APP = PurePosixPath("/app")
_NO_TOKEN = "-"
"""A helper wants a token. Without one of its own, a sandbox is guarded by the permissions of its socket's folder."""


def token_of(token: str) -> str:
    """What the helper is greeted with."""
    return token or _NO_TOKEN


@contextmanager
def config(spec: SandboxSpec, environment: Mapping[str, str], *, limited: bool = False, cwd: PurePosixPath | Path = APP) -> Iterator[int]:
    """The helper's configuration as a readable descriptor: token, epoch, deadline, and the place's environment and folder."""
    # The helper may go a little over the commands' limit, so that a place full of processes can still be looked at and emptied.
    rlimits = {resource.RLIMIT_NPROC: spec.processes} if spec.processes and limited else {}
    told = HelperConfig(
        token=token_of(spec.token), epoch=spec.epoch, ttl_seconds=spec.ttl_seconds, env=environment, cwd=str(cwd), rlimits=rlimits
    )
    descriptor = os.memfd_create("agentenv-config")
    try:
        with open(descriptor, "wb", buffering=0, closefd=False) as file:
            file.write(told.encode())
        os.lseek(descriptor, 0, os.SEEK_SET)
        yield descriptor
    finally:
        os.close(descriptor)


def payload(helper: str, listener: int, config_descriptor: int) -> list[str]:
    """What runs as the place's first process."""
    return [helper, "serve", "--fd", str(listener), "--config-fd", str(config_descriptor)]


async def connect(socket: Path, *, sandbox_id: str, epoch: int, token: str, limits: Limits) -> Connection:
    """A connection to a place's helper, which takes the place over for that epoch.

    Raises:
        SandboxUnavailableError: Nobody listens there, or the token does not fit.
        SupersededError: A later owner has it.
        DeadlineError: It does not answer.
    """
    concerns = f"sandbox {sandbox_id}"
    try:
        link = connected_socket(socket)  # a local socket that listens takes it at once
    except OSError as error:
        raise SandboxUnavailableError(f"{concerns} is gone: {error.strerror}", concerns=sandbox_id) from error
    return await open_connection(link, concerns=concerns, token=token_of(token), epoch=epoch, limits=limits)

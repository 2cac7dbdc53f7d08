"""Where this provider meets the helper: its configuration, and the connection to it."""

from __future__ import annotations

import resource
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from agent_env.defaults import Limits
from agent_env.errors import SandboxUnavailableError
from agent_env.places.helper.connection import Connection, ask
from agent_env.places.helper.greeting import connected_socket, open_connection
from agent_env.places.helper.protocol import U64, Frame, HelperConfig
from agent_env.sandboxes.confined.launch import log_tail
from agent_env.sandboxes.contract import SandboxSpec

APP = PurePosixPath("/app")
_NO_TOKEN = "-"
"""A helper wants a token. Without one of its own, a sandbox is guarded by the permissions of its socket's folder."""


def token_of(token: str) -> str:
    """What the helper is greeted with."""
    return token or _NO_TOKEN


def config(
    spec: SandboxSpec,
    environment: Mapping[str, str],
    *,
    counted: bool = False,
    limited: bool = False,
    network_seconds: float = 0.0,
    starter: bool = False,
    cwd: PurePosixPath | Path = APP,
    relay_token: str = "",
) -> HelperConfig:
    """What the helper of a machine is told: token, epoch, deadline, and the place's environment and folder.

    Args:
        spec: The sandbox.
        environment: The place's.
        counted: Its number of processes is held by a resource limit.
        limited: See `HelperConfig`, as the rest.
        network_seconds: As there.
        starter: As there.
        cwd: As there.
        relay_token: As there.
    """
    # The helper may go a little over the commands' limit, so that a place full of processes can still be looked at and emptied.
    rlimits = {resource.RLIMIT_NPROC: spec.processes} if spec.processes and counted else {}
    return HelperConfig(
        token=token_of(spec.token),
        epoch=spec.epoch,
        ttl_seconds=spec.ttl_seconds,
        env=environment,
        cwd=str(cwd),
        relay_token=relay_token,
        rlimits=rlimits,
        starter=starter,
        limited=limited,
        network_seconds=network_seconds,
        demanded=spec.network is not None,
    )


def payload(helper: str, listener: int, config_descriptor: int, guardian: int | None = None, counter: int | None = None) -> list[str]:
    """What runs as the place's first process.

    Args:
        helper: The program, as the place sees it.
        listener: The descriptor of the socket that it listens on.
        config_descriptor: Its configuration's.
        guardian: Its end of the socket to that; see `launch.between`.
        counter: What counts its processes that the kernel ends for memory; see `limits.oom_counter`.
    """
    words = [helper, "serve", "--fd", str(listener), "--config-fd", str(config_descriptor)]
    further = {"--guardian-fd": guardian, "--memory-fd": counter}
    return words + [word for option, number in further.items() if number is not None for word in (option, str(number))]


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


async def wake_network(socket: Path, log: Path, spec: SandboxSpec, limits: Limits) -> None:
    """Has a place's networking started before a command asks for it.

    Raises:
        SandboxUnavailableError: It can't be started; the message ends with the last lines of the log.
        DeadlineError: The helper does not answer.
    """
    connection = await connect(socket, sandbox_id=spec.sandbox_id, epoch=spec.epoch, token=spec.token, limits=limits)
    try:
        await await_network(connection, log, limits)
    finally:
        connection.close()


async def await_network(connection: Connection, log: Path, limits: Limits) -> None:
    """Has the networking of a place started and waits for it, as a command does. Raises as `wake_network`."""
    seconds = limits.connect_seconds + limits.answer_margin_seconds
    answer, _ = await ask(connection, Frame.NETWORK, b"", seconds=seconds)
    if not U64.unpack_from(answer)[0]:
        message = f"the network of {connection.concerns} could not be set up{log_tail(log)}"
        raise SandboxUnavailableError(message, concerns=connection.concerns)

"""Waits for servers: connects as soon as something listens, asks as soon as it connects, and gives up at once when the place has ended."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from agent_env.defaults import Limits
from agent_env.environments.tunnel import Tunnels
from agent_env.errors import AgentEnvError, DeadlineError, SandboxUnavailableError, TransportLostError, UnsupportedError
from agent_env.waiting import poll

if TYPE_CHECKING:
    from agent_env.environments.client import EnvironmentClient
    from agent_env.places import Place


async def listening(place: Place, port: int, *, what: str, seconds: float, limits: Limits) -> None:
    """Waits until something listens on a port of a place's loopback.

    Raises:
        ContainerNotRunningError: The container has ended; the message has the end of its log.
        SandboxUnavailableError: The place is gone.
        DeadlineError: Nothing listens in time.
    """
    wait = min(limits.environment_listen_seconds, seconds)

    async def connects() -> bool | None:
        try:
            return await answers(place, port, wait_seconds=wait) or None
        except TransportLostError:  # cut while it was asked: either the place has just ended, and says how, or it is asked again
            await alive(place)
            return None

    await poll(connects, within_seconds=seconds, what=f"{what} to listen on port {port}", limits=eager(limits))


async def answers(place: Place, port: int, *, wait_seconds: float = 0.0) -> bool:
    """Whether something listens on a port of a place's loopback, now or within a while.

    Raises:
        ContainerNotRunningError: The container has ended; the message has the end of its log.
        SandboxUnavailableError: The place is gone.
    """
    if not isinstance(place, Tunnels):
        raise UnsupportedError(f"nothing can be reached in {place.id}: it has no helper of ours")
    try:
        stream = await place.open_tcp(port, wait_seconds=wait_seconds)
    except SandboxUnavailableError as error:
        if type(error) is not SandboxUnavailableError:  # not merely that nobody listens: the place itself is over
            raise
        return False
    await stream.aclose()
    return True


async def card_of(client: EnvironmentClient, *, place: Place | None, seconds: float) -> dict[str, object]:
    """Waits for a server's card.

    Args:
        client: Speaks with the server.
        place: Its place, which is looked at when the server does not answer.
        seconds: How long it may take.

    Raises:
        ContainerNotRunningError: Its container has ended.
        DeadlineError: There is no card in time; says what was answered last.
    """
    last: AgentEnvError | None = None

    async def card() -> dict[str, object] | None:
        nonlocal last
        try:
            return await client.raw_card(refresh=True)
        except AgentEnvError as error:
            last = error
            if place is not None:
                await alive(place)
            return None

    try:
        return await poll(card, within_seconds=seconds, what=f"the card of {client.name}", limits=eager(client.limits))
    except DeadlineError as error:
        raise DeadlineError(f"{error.message}: {last.message if last else 'it does not answer'}", concerns=client.name) from error


async def alive(place: Place) -> None:
    """Asks a place whether it still is one.

    Raises:
        SandboxUnavailableError: It has ended, or is gone; of a container, with the end of its log.
    """
    try:
        await place.ledger()
    except SandboxUnavailableError:
        raise
    except AgentEnvError:
        return


def eager(limits: Limits) -> Limits:
    """A server's start takes a second: whoever waits for it looks more often than for most things."""
    return replace(limits, poll_max_seconds=limits.environment_poll_seconds)

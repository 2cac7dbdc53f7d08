"""A container engine for one agent: in a privileged container beside it, on a network that only the two are on.

Whatever the agent starts there is that engine's, and goes with it. The engine listens without TLS: nobody else is on the network.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import httpx

from agent_env.agents.contract import ContainerWanted
from agent_env.agents.deploy import container_called
from agent_env.environments.http import new_client
from agent_env.environments.readiness import alive, listening
from agent_env.environments.tunnel import PlaceTransport
from agent_env.errors import InternalError, TransportLostError, UnsupportedError, UserError
from agent_env.places import Shape
from agent_env.places.endpoint import LOOPBACK
from agent_env.steps.requests import GRANT_HINT
from agent_env.waiting import poll

if TYPE_CHECKING:
    from agent_env.agents.live import RecordedAgent
    from agent_env.engine.agent_making import AgentMaking
    from agent_env.places import Place
    from agent_env.steps.contract import AgentRequest

VARIABLE: Final = "DOCKER_HOST"
"""Where clients of Docker look for an engine."""
PORT: Final = 2375
"""Docker's own, without TLS."""


def called(agent_name: str) -> str:
    """The container's name beside the agent, its network's, and its host name there."""
    return f"docker-{container_called(agent_name)}"[:63].rstrip("-")


def variables(agent_name: str) -> dict[str, str]:
    """What the agent is told of it."""
    return {VARIABLE: f"tcp://{called(agent_name)}:{PORT}"}


async def refuse(request: AgentRequest, granted: frozenset[str], making: AgentMaking) -> None:
    """Refuses an agent that may not or can't have one.

    Raises:
        UserError: This user's configuration does not grant it; says what would.
        UnsupportedError: The provider of its sandbox has no place for a container beside it.
    """
    why = request.refusal(granted)
    if why is not None:
        raise UserError(why, concerns=request.agent_name, hint=GRANT_HINT)
    if (await making.capabilities()).shape is not Shape.MACHINE_BACKED:
        raise UnsupportedError(
            f"{making.sandbox_provider} runs an agent as its sandbox alone, and has no container engine to run another one beside it",
            concerns=request.agent_name,
            hint="use a provider with a container engine, such as 'local'",
        )


async def given(live: RecordedAgent, making: AgentMaking, image: str, *, cpu: float, memory_bytes: int) -> None:
    """Starts the engine beside an agent, puts both on a network, and waits until it answers.

    Args:
        live: The agent, which was told `variables`.
        making: Makes containers beside it.
        image: The engine's.
        cpu: Cores that it and all that it runs may use.
        memory_bytes: As much memory.

    Raises:
        InfrastructureError: It can't be had or does not come up: not every machine lets containers be made within one.
    """
    record = live.record
    name, sandbox_id = called(record.agent_name), str(record.sandbox_id)
    making.tell(f"starting a container engine for agent {record.agent_name}")
    wanted = ContainerWanted(
        name,
        image,
        env={"DOCKER_TLS_CERTDIR": ""},
        networks=(name,),
        restart=True,
        cpu=cpu,
        memory_bytes=memory_bytes,
        privileged=True,
    )
    place = await making.container(sandbox_id, wanted)
    network = await making.network(sandbox_id, name)
    if network is None:
        raise InternalError(f"network {name!r} of sandbox {sandbox_id} was made and is not there")
    await making.join(sandbox_id, await live.place(), network)
    await _ready(place, making, name)


async def _ready(place: Place, making: AgentMaking, name: str) -> None:
    seconds = making.limits.agent_ready_seconds
    await listening(place, PORT, what=name, seconds=seconds, limits=making.limits)

    async def here() -> Place:
        return place

    async with new_client(PlaceTransport(here), making.limits) as http:

        async def answers() -> bool | None:
            try:
                return (await http.get(f"http://{LOOPBACK}:{PORT}/_ping")).status_code == 200 or None
            except (httpx.TransportError, TransportLostError):
                await alive(place)
                return None

        await poll(answers, within_seconds=seconds, what=f"{name} to answer")

"""From a plan to an agent that answers, and from a record to the same agent in any process."""

from __future__ import annotations

import ipaddress
import secrets
import string
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from agent_env_sdk.wire.a2a import HOST_VARIABLE, PORT_VARIABLE, TOKEN_VARIABLE, AgentCard, interfaces

from agent_env.agents.contract import A2A_PORT, AgentPlan, ContainerWanted, Making
from agent_env.agents.faults import AgentFailedError, AgentUnreachableError
from agent_env.agents.live import RecordedAgent
from agent_env.documents.records import DeployedAgent
from agent_env.environments.readiness import alive, eager, listening
from agent_env.errors import AgentEnvError, DeadlineError, InfrastructureError, UnsupportedError
from agent_env.places import Shape
from agent_env.places.endpoint import LOOPBACK
from agent_env.waiting import poll

if TYPE_CHECKING:
    from agent_env.places import Place

Json = Any
ROLE_VARIABLE = "AGENT_ENV_ROLE"
"""Under which role generated command lines of an environment's tools speak (reference)."""
_LETTERS = string.ascii_lowercase + string.digits


def new_instance_id(agent_id: str) -> str:
    """An id of a deployment: the agent's, and eight characters (reference)."""
    return f"{agent_id}-{''.join(secrets.choice(_LETTERS) for _ in range(8))}"


def container_called(agent_name: str) -> str:
    """What an agent's container beside a machine is called there."""
    plain = "".join(letter if letter.isascii() and (letter.isalnum() or letter in "_.-") else "-" for letter in agent_name)
    return f"a2a-{plain.strip('-.') or 'agent'}"[:63]


async def deploy(plan: AgentPlan, making: Making) -> RecordedAgent:
    """Deploys with the one provider of sandboxes that `making` stands for, and waits for the card.

    What it had made when it fails is the caller's to remove.

    Raises:
        UnsupportedError: The provider can't.
        ContainerNotRunningError: The agent's container ended; the message has the end of its log.
        DeadlineError: There is no card in time.
        AgentFailedError: It serves no card that can be read.
        InfrastructureError: It could not be made.
    """
    token = making.agent_token(plan.instance_id, plan.sandbox_id)
    told = {TOKEN_VARIABLE: token, **plan.secrets}
    host = LOOPBACK if plan.shared_loopback else "0.0.0.0"
    env = {**({ROLE_VARIABLE: plan.role} if plan.role else {}), **plan.env, HOST_VARIABLE: host, PORT_VARIABLE: str(plan.port)}
    making.tell(f"starting agent {plan.agent_name}")
    stands = await (_alone(plan, making, env, told) if plan.sandbox_id is None else _beside(plan, making, env, told))
    record = DeployedAgent(
        agent_name=plan.agent_name,
        api_url=stands.url,
        sandbox_id=stands.sandbox_id,
        sandbox_type=stands.sandbox_type,
        a2a_url=stands.url,
        instance_id=plan.instance_id,
        role=plan.role,
        network_policy=plan.network.model_dump(mode="json") if plan.network is not None else None,
        container_id=stands.container_id,
        container_name=stands.container_name,
        placement="in_container",
        a2a_port=plan.port if plan.port != A2A_PORT else None,
        agent_id=plan.agent_id,
        agent_version=plan.agent_version,
        brokered=plan.brokered,
        shared_loopback=plan.shared_loopback,
        default_model=plan.default_model,
    )
    return await when_ready(RecordedAgent(record, making, shape=stands.shape, token=token), making)


@dataclass(frozen=True, slots=True)
class _Stands:
    sandbox_id: str
    sandbox_type: str
    shape: Shape
    url: str
    container_id: str | None
    container_name: str | None = None


async def _alone(plan: AgentPlan, making: Making, env: dict[str, str], told: dict[str, str]) -> _Stands:
    """In a sandbox of its own."""
    held = await making.agent_sandbox(plan, env=env, secrets=told)
    sandbox = held.sandbox
    url = sandbox.published.tunnels.get(plan.port)
    if url is None:
        raise InfrastructureError(f"sandbox {sandbox.info.sandbox_id} does not publish port {plan.port}", concerns=plan.agent_name)
    container = sandbox.info.facts.get("container_id") if held.shape is Shape.MACHINE_BACKED else None
    return _Stands(sandbox.info.sandbox_id, held.provider.name, held.shape, url, str(container) if container else None)


async def _beside(plan: AgentPlan, making: Making, env: dict[str, str], told: dict[str, str]) -> _Stands:
    """Beside the machine of a sandbox that is there already."""
    held = await making.hold(str(plan.sandbox_id), plan.sandbox_type)
    if held.shape is not Shape.MACHINE_BACKED:
        raise UnsupportedError(
            f"sandbox {plan.sandbox_id} is itself a container, so no agent can be put beside it",
            concerns=plan.agent_name,
            hint="name a sandbox of mode 'vm', or none",
        )
    name = container_called(plan.agent_name)
    wanted = ContainerWanted(
        name,
        plan.image,
        env=env,
        secrets=told,
        references=plan.references,
        ports=(plan.port,),
        relayed=True,
        cpu=plan.cpu,
        memory_bytes=plan.memory_bytes,
    )
    place = await making.container(held.sandbox.info.sandbox_id, wanted)
    url = f"http://{LOOPBACK}:{place.ports[plan.port]}"
    return _Stands(held.sandbox.info.sandbox_id, held.provider.name, held.shape, url, place.id, name)


async def attach(record: DeployedAgent, making: Making) -> RecordedAgent:
    """A deployed agent from its record, in any process. Nothing is asked of the agent itself.

    Raises:
        SandboxUnavailableError: Its sandbox is gone.
    """
    if record.sandbox_id is None:
        return RecordedAgent(record, making, shape=None, token=None)
    held = await making.hold(record.sandbox_id, record.sandbox_type)
    token = making.agent_token(record.instance_id or record.sandbox_id, record.sandbox_id)
    return RecordedAgent(record, making, shape=held.shape, token=token)


async def when_ready(live: RecordedAgent, making: Making) -> RecordedAgent:
    """The agent, once it has shown its card, which its record keeps; one that does not get ready is closed.

    Its container's end is noticed at once.

    Raises:
        ContainerNotRunningError: The agent's container ended; the message has the end of its log.
        DeadlineError: There is no card in time.
        AgentFailedError: It serves no card that can be read.
    """
    try:
        card = await _card(live, await live.place(), making.limits.agent_ready_seconds)
        live.recorded(a2a_card=dict(live.client.raw_card or {}))
        _tell_of_strange_addresses(card, live, making)
    except BaseException:  # nobody gets this one
        await live.aclose()
        raise
    return live


async def _card(live: RecordedAgent, place: Place, seconds: float) -> AgentCard:
    last: AgentEnvError | None = None

    async def asked() -> AgentCard | None:
        nonlocal last
        try:
            return await live.card(refresh=True)
        except AgentUnreachableError as error:
            last = error
        except AgentFailedError as error:
            if error.reason in {"no_card", "bad_card"}:
                raise
            last = error
        await alive(place)
        return None

    name = live.record.agent_name
    # Asked before anybody can answer: what asking takes of this process is there by the time somebody does.
    if (card := await asked()) is not None:
        return card
    await listening(place, live.port, what=f"agent {name!r}", seconds=seconds, limits=live.client.limits)
    try:
        return await poll(asked, within_seconds=seconds, what="the agent's card", limits=eager(live.client.limits))
    except DeadlineError as error:
        why = last.message if last else "it does not answer"
        raise DeadlineError(f"{error.message}: {why}", concerns=name) from error


def _tell_of_strange_addresses(card: AgentCard, live: RecordedAgent, making: Making) -> None:
    """An agent can't know where it is reached, so its card's hosts are not used; whoever reads the card elsewhere should know."""
    strange = {each.url for each in interfaces(card) if (host := urlsplit(each.url).hostname) and not _is_here(host)}
    for url in sorted(strange):
        making.tell(f"agent {live.record.agent_name}: its card names {url}; it is reached at {live.record.api_url} instead")


def _is_here(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback or ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return host == "localhost"

"""Makes containers and finds them again: the helper as their first process, told by its first caller what the place is."""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import PurePosixPath
from typing import Any

from agent_env.containers import archives, networks, objects, volumes
from agent_env.containers.engine import Engine
from agent_env.containers.objects import remove_container
from agent_env.containers.place import ContainerPlace, Facts
from agent_env.containers.spec import HELPER_FOLDER, HOME, SHARED, TOLD, ContainerSpec, ImageFacts, Plan, Told, engine_config
from agent_env.containers.state import not_running
from agent_env.errors import (
    AgentEnvError,
    DeadlineError,
    EngineFailedError,
    EngineRefusedError,
    ImageNotFoundError,
    LaunchError,
    NotFoundError,
    PlaceLostError,
    PortTakenError,
    SandboxUnavailableError,
    TransferError,
    TransportLostError,
    UnsupportedError,
    UsageError,
)
from agent_env.places.place import Upload
from agent_env.places.ports import candidates, is_free
from agent_env.waiting import poll, shielded

_MARK = PurePosixPath("/.dockerenv")
HOST_NAME = "host.docker.internal"
"""The engine's machine, as a container names it."""


async def image_facts(engine: Engine, image: str) -> ImageFacts:
    """What a present image says about its containers.

    Raises:
        ImageNotFoundError: The engine has no such image. Nothing is pulled here.
    """
    async with engine.asking(f"looking at the image {image}", missing=ImageNotFoundError, concerns=image) as docker:
        found: dict[str, Any] = await docker.images.inspect(image)
        config = found.get("Config") or {}
        return ImageFacts(
            id=str(found["Id"]),
            architecture=str(found.get("Architecture") or ""),
            user=str(config.get("User") or ""),
            cwd=str(config.get("WorkingDir") or "/"),
            entrypoint=tuple(_words(config.get("Entrypoint"))),
            argv=tuple(_words(config.get("Cmd"))),
            volumes=tuple(config.get("Volumes") or ()),
            env=variables(config.get("Env") or ()),
        )


def _words(value: object) -> Sequence[str]:
    return ["/bin/sh", "-c", value] if isinstance(value, str) else [str(word) for word in value] if isinstance(value, list) else []


def variables(lines: Sequence[str]) -> dict[str, str]:
    """An engine's `NAME=value` lines."""
    pairs = (line.partition("=") for line in lines)
    return {name: value for name, equals, value in pairs if equals}


async def deploy(engine: Engine, spec: ContainerSpec) -> ContainerPlace:
    """Makes a container, starts it, and tells its helper what it is. A failure leaves nothing behind.

    Args:
        engine: The engine; the image is there already.
        spec: The container.

    Returns:
        Its place, connected, with the image's own command running.

    Raises:
        UsageError: The spec contradicts itself.
        UnsupportedError: This engine can't make it.
        ImageNotFoundError: The image is not there.
        LaunchError: The image's own command can't be started.
        EngineFailedError: The engine could not make or start it.
        PortTakenError: A port that was asked for is in use, or none could be had.
    """
    problems = spec.problems()
    if problems:
        raise UsageError("; ".join(problems), concerns=spec.name)
    facts, helper = await asyncio.gather(image_facts(engine, spec.image), volumes.helper_mount(engine))
    spec = await _within(engine, spec)
    taken = [mount.target for mount in spec.mounts] + list(spec.temporary)
    plan = Plan(spec, facts, _told(spec, facts), helper, volumes.image_volumes(facts, spec.name, taken))
    async with _undone_unless_kept(engine, lambda: _remove_volumes(engine, plan)) as made:
        await volumes.create_all(engine, plan.volumes, spec.labels)
        container_id, ports = await _placed(engine, plan)
        async with _undone_unless_kept(engine, lambda: remove_container(engine, container_id)) as runs:
            env = {**facts.env, **spec.env, "HOSTNAME": container_id[:12]}
            recorded = Facts(container_id, spec.name, spec.labels, plan.told, env, ports, spec.memory_bytes)
            place = await _configured(engine, spec, recorded, facts)
            runs.kept = made.kept = True
    return place


@dataclass(slots=True)
class _Keeping:
    kept: bool = False


@contextlib.asynccontextmanager
async def _undone_unless_kept(
    engine: Engine, undo: Callable[[], Coroutine[object, object, object]], *, wanted: bool = True
) -> AsyncIterator[_Keeping]:
    """Whatever goes wrong in the block, also a cancellation: what is half made is of no use to anybody."""
    keeping = _Keeping(kept=not wanted)
    try:
        yield keeping
    finally:
        if not keeping.kept:
            with contextlib.suppress(AgentEnvError):  # what is left carries labels, and gc finds it
                await shielded(undo(), seconds=engine.limits.cleanup_seconds, what="removing what was half made")


async def _remove_volumes(engine: Engine, plan: Plan) -> None:
    for mount in plan.volumes:
        await objects.remove(engine, objects.Listed("volume", mount.source, mount.source))


async def _configured(engine: Engine, spec: ContainerSpec, known_facts: Facts, image: ImageFacts) -> ContainerPlace:
    place = ContainerPlace(engine, known_facts, token=spec.token, epoch=spec.epoch, secrets=spec.secrets, relay_token=spec.relay_token)
    async with _undone_unless_kept(engine, place.aclose) as connected:
        try:
            await place.configure()
        except LaunchError as error:
            architecture = (await engine.info()).architecture
            if image.architecture in {"", architecture}:
                raise
            hint = f"the image is built for {image.architecture}, the engine's machine is {architecture}: use an image for {architecture}"
            raise UnsupportedError(error.message, concerns=place.name, hint=hint) from error
        except (SandboxUnavailableError, TransportLostError, DeadlineError) as error:
            raise await place._explained(error) from error
        connected.kept = True
    return place


async def _within(engine: Engine, spec: ContainerSpec) -> ContainerSpec:
    """The spec as this engine can keep it: a limit is a limit, and more than the machine has is none."""
    info = await engine.info()
    if info.os != "linux":
        raise UnsupportedError(f"the container engine runs {info.os} containers; ours are Linux ones", concerns=str(engine.endpoint))
    if spec.disk_bytes and "disk" not in info.limits:
        spec = replace(spec, disk_bytes=0)
    if "cpu" not in info.limits:  # an engine without that control group may start nothing that asks for it
        spec = replace(spec, cpu=0.0)
    elif info.cpus:
        spec = replace(spec, cpu=min(spec.cpu, float(info.cpus)))
    if spec.network not in {"none", "host"} and HOST_NAME not in spec.hosts and info.names_its_host is not None:
        spec = replace(spec, hosts={**spec.hosts, HOST_NAME: info.names_its_host})
    return spec


def _told(spec: ContainerSpec, facts: ImageFacts) -> Told:
    return Told(
        command=facts.command(spec),
        user=(facts.user if spec.user is None else spec.user) or "0:0",
        cwd=(facts.cwd if spec.cwd is None else spec.cwd) or "/",
        hold=spec.hold or not facts.command(spec),
        new_privileges=spec.privileges.new_privileges or spec.privileges.privileged,
        all_capabilities=spec.privileges.privileged,
        socket=f"agentenv-{secrets.token_hex(8)}",
        secrets=sorted(spec.secrets),
        restart=spec.restart,
    )


async def _placed(engine: Engine, plan: Plan) -> tuple[str, dict[int, int]]:
    """A running container with its ports, on its network. A shared network that is gone or full before it is joined is made again."""
    spec = plan.spec
    if spec.network != SHARED:
        return await _started(engine, plan)
    lost: AgentEnvError | None = None
    for _ in range(engine.limits.network_attempts):
        network = await networks.network_for_one(engine, spec.labels[HOME], f"net-{spec.name}-{secrets.token_hex(3)}", spec.labels)
        own = network.labels.get(networks.KIND) == "own"
        undo = partial(objects.remove, engine, objects.Listed("network", network.id, network.name))
        try:
            async with _undone_unless_kept(engine, undo, wanted=own) as joined:
                found = await _started(engine, replace(plan, spec=replace(spec, network=network.id)))
                joined.kept = True
                return found
        except (EngineRefusedError, EngineFailedError, NotFoundError) as error:
            if own or isinstance(error, PortTakenError) or await networks.can_be_joined(engine, network):
                raise
            lost = error
    raise EngineFailedError(
        f"the shared network went or filled up {engine.limits.network_attempts} times while {spec.name} was about to join it: {lost}",
        concerns=spec.name,
    )


async def _started(engine: Engine, plan: Plan) -> tuple[str, dict[int, int]]:
    """A running container with its ports. One whose port somebody took meanwhile is made again with others."""
    spec = plan.spec
    here = (await engine.info()).on_this_machine
    numbers = (port for port in candidates() if not here or is_free(port))
    wanted = [port for port in dict.fromkeys(spec.ports) if port not in spec.host_ports]
    refusal: PortTakenError | None = None
    for _ in range(engine.limits.port_attempts):
        ports = {**spec.host_ports, **dict(zip(wanted, numbers, strict=False))}
        if len(ports) < len(wanted) + len(spec.host_ports):
            break
        container_id = await _created(engine, spec, engine_config(plan, ports))
        try:
            async with _undone_unless_kept(engine, partial(remove_container, engine, container_id)) as started:
                await _mark(engine, container_id)
                for network in spec.further_networks:
                    await networks.join(engine, network, container_id, spec.aliases, concerns=spec.name)
                await _start(engine, plan, container_id)
                await _publishes(engine, container_id, spec.name, ports)
                started.kept = True
        except PortTakenError as error:
            if not wanted:
                raise
            refusal = error
        else:
            return container_id, ports
    raise refusal or PortTakenError(f"no free port is left for {spec.name}", concerns=spec.name)


async def _mark(engine: Engine, container_id: str) -> None:
    """By this file programs everywhere know that they are in a container; of the engines, Podman has another of its own alone."""
    if (await engine.info()).kind == "podman":
        with contextlib.suppress(TransferError):  # a root that can't be written
            await archives.put(engine, container_id, [Upload(_MARK, b"", mode=0o755)], (0, 0))


async def _publishes(engine: Engine, container_id: str, name: str, ports: Mapping[int, int]) -> None:
    """That every port is published: on a network without a way out, an engine says nothing and publishes nothing."""
    if not ports:
        return
    found = await objects.inspect(engine, container_id)
    with engine.reading(f"looking at the container {name}", concerns=name):
        bound = found["NetworkSettings"].get("Ports") or {}
        lacking = [port for port in ports if not bound.get(f"{port}/tcp")]
    if lacking:
        refused = EngineRefusedError(
            f"the container engine does not publish the ports {lacking} of {name}",
            concerns=name,
            hint="its network has no way out (`internal`), and on such a one nothing is published",
        )
        raise await not_running(engine, container_id, name, otherwise=refused)  # of one that has ended, nothing is published either


async def _created(engine: Engine, spec: ContainerSpec, body: Mapping[str, object]) -> str:
    async def make() -> str:
        missing = ImageNotFoundError if spec.network in {"none", "bridge", "host"} else EngineRefusedError
        async with engine.asking(f"making the container {spec.name}", missing=missing, concerns=spec.name) as docker:
            platform = {"platform": spec.platform} if spec.platform else {}
            made = await docker._query_json("containers/create", method="POST", data=body, params={"name": spec.name, **platform})
            return str(made["Id"])

    # A create that was asked for is done, whoever is cancelled meanwhile: only its answer tells what is to be removed.
    making = asyncio.ensure_future(make())
    try:
        return await asyncio.shield(making)
    except asyncio.CancelledError:
        with contextlib.suppress(AgentEnvError):
            await shielded(_undo_creation(engine, making), seconds=engine.limits.cleanup_seconds, what=f"removing {spec.name}")
        raise


async def _undo_creation(engine: Engine, making: asyncio.Future[str]) -> None:
    await remove_container(engine, await making)


async def _start(engine: Engine, plan: Plan, container_id: str) -> None:
    spec = plan.spec

    async def start() -> None:
        async with engine.asking(f"starting the container {spec.name}", concerns=spec.name) as docker:
            await docker.containers.container(container_id).start()

    volume = volumes.helper_volume((await engine.info()).architecture)
    there = volume in engine.filled  # before: others fill it at the same time
    try:
        await start()
    except PortTakenError:
        raise
    except (EngineFailedError, EngineRefusedError, NotFoundError):
        if not await volumes.is_filled(engine, container_id):
            await volumes.fill(engine, plan.image, volumes.home_labels(spec.labels))
        elif there:
            raise  # so that was not why
        await start()
    engine.filled.add(volume)


async def attach(
    engine: Engine,
    container_id: str,
    *,
    token: str,
    epoch: int,
    secrets: Mapping[str, str] | None = None,
    relay_token: str = "",
) -> ContainerPlace:
    """The place of a container that we made, usually in another process; an owner of an older epoch loses its hold.

    A container that was started again meanwhile is told again what it is, and its own command started.

    Args:
        engine: The engine.
        container_id: The engine's id. A name is no identity.
        token: The place's token.
        epoch: The caller's epoch.
        secrets: What it was told besides its environment, in case it has to be told again.
        relay_token: What lets relays in; as `secrets`.

    Raises:
        PlaceLostError: There is no container with this id.
        ContainerNotRunningError: It is not running; nothing else takes its part.
        SupersededError: A later owner has it.
        UsageError: We did not make it.
    """
    facts = await known(engine, container_id)
    return await reached(engine, facts, token=token, epoch=epoch, secrets=secrets, relay_token=relay_token)


async def reached(
    engine: Engine, facts: Facts, *, token: str, epoch: int, secrets: Mapping[str, str] | None = None, relay_token: str = ""
) -> ContainerPlace:
    """The same, of a container of which it is known what is recorded on it (`known`)."""
    place = ContainerPlace(engine, facts, token=token, epoch=epoch, secrets=secrets or {}, relay_token=relay_token)
    async with _undone_unless_kept(engine, place.aclose) as connected:
        await place.ready()
        connected.kept = True
    return place


async def start_again(engine: Engine, container_id: str) -> None:
    """Starts a container that has ended, or is just ending; whoever attaches next tells it again what it is.

    Raises:
        NotFoundError: It was removed.
        DeadlineError: It has not ended, or is paused.
        InfrastructureError: It can't be started.
    """

    async def ended() -> bool | None:
        state = (await objects.inspect(engine, container_id))["State"]
        return True if state.get("Status") == "exited" else None

    seconds = engine.limits.engine_stop_seconds
    await poll(ended, within_seconds=seconds, what=f"the end of the container {container_id[:12]}", limits=engine.limits)
    async with engine.asking("starting a container again", concerns=container_id) as docker:
        await docker.containers.container(container_id).start()


async def known(engine: Engine, container_id: str) -> Facts:
    """What is recorded on a container of ours.

    Raises:
        PlaceLostError: There is no container with this id.
        UsageError: We did not make it: a name, or somebody else's.
    """
    try:
        found = await objects.inspect(engine, container_id)
    except NotFoundError as error:
        raise PlaceLostError(f"the container {container_id[:12]} no longer exists", concerns=container_id) from error
    if not re.fullmatch(r"[0-9a-f]{12,64}", container_id) or not str(found["Id"]).startswith(container_id):
        raise UsageError(f"{container_id!r} names a container; it is told by its id", concerns=container_id)
    with engine.reading(f"looking at the container {container_id[:12]}", concerns=container_id):
        return facts_of(found)


def facts_of(found: Mapping[str, Any]) -> Facts:
    """The same, from what `inspect` says.

    Raises:
        UsageError: We did not make it.
    """
    config = found["Config"]
    labels = {name: str(value) for name, value in (config.get("Labels") or {}).items()}
    told = Told.of_label(labels.get(TOLD, ""))
    name = str(found["Name"]).lstrip("/")
    if told is None or not any(mount.get("Destination") == HELPER_FOLDER for mount in found.get("Mounts") or ()):
        raise UsageError(f"the container {name!r} has no helper: it was not made by agent-env", concerns=name)
    host = found.get("HostConfig") or {}
    bindings = host.get("PortBindings") or {}
    ports = {int(port.split("/")[0]): int(bound[0]["HostPort"]) for port, bound in bindings.items() if bound and bound[0].get("HostPort")}
    env = {**variables(config.get("Env") or ()), "HOSTNAME": str(found["Id"])[:12]}
    return Facts(str(found["Id"]), name, labels, told, env, ports, int(host.get("Memory") or 0))

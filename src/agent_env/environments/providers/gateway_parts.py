"""What stands behind a gateway, wherever it stands: names, ports, variables, and the gateway's configuration."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agent_env_sdk.wire.names import DATABASE_VARIABLE, HOST_VARIABLE, LEGACY_NAME_VARIABLE, NAME_VARIABLE, PORT_VARIABLE

from agent_env.documents.records import DeployedPart
from agent_env.environments.contract import DOOR, DeployPlan, Making, ServerPlan
from agent_env.environments.records import GATEWAY
from agent_env.environments.website import backend_name
from agent_env.errors import EngineRefusedError, UnsupportedError, UserError
from agent_env.places import Shape

if TYPE_CHECKING:
    from agent_env.artifacts.image_artifacts import ImageSource
    from agent_env.containers import Engine
    from agent_env.places import Place
    from agent_env.sandboxes.contract import Capabilities

DATABASE_LABEL = "agentenv.database"
"""Of a server's image: `postgres` says that it keeps its data in the environment's database."""
PATH_LABEL = "agentenv.mcp-path"
"""Of a server's image: where a server without a card speaks MCP."""
_POSTGRES = "postgres"
_PATH = re.compile(r"/?[\w.~!$&'()*+,;=:@%-]+(?:/[\w.~!$&'()*+,;=:@%-]+)*/?|/", re.ASCII)
"""A URL's path (RFC 3986, 3.3), without empty segments; its first slash may be left out."""
_HIGHEST_PORT = 65535
LOCAL_POSTGRES = "local_postgres"


@dataclass(frozen=True, slots=True)
class ImageSays:
    """What a server's image says about the server."""

    id: str
    port: int = DOOR
    mcp_path: str | None = None
    database: bool = False


@dataclass
class Standing:
    """What stands, ready to be recorded."""

    own: DeployedPart
    place: Place
    """The gateway's."""
    sandbox_type: str
    parts: dict[str, DeployedPart] = field(default_factory=dict)
    with_card: set[str] = field(default_factory=set)
    """Servers that answered with a card of their own."""
    urls: dict[str, str] = field(default_factory=dict)


def says(image: str, *, labels: Mapping[str, str], exposed: Iterable[str], name: str) -> ImageSays:
    """What an image's configuration says about the server in it.

    A server listens where the wire says, unless its image exposes another port and not that one.

    Args:
        image: How containers are made of it: an id, or a name.
        labels: Its labels.
        exposed: Its exposed ports, such as `8000/tcp`; without a protocol it is TCP.
        name: What people call it.

    Raises:
        UserError: It says something that can't be used; all of it at once.
    """
    problems = []
    ports = {text.partition("/")[0] for text in exposed if text.partition("/")[2] in {"", "tcp"}}
    if wrong := sorted(port for port in ports if not (port.isascii() and port.isdecimal() and 0 < int(port) <= _HIGHEST_PORT)):
        problems.append(f"exposes {', '.join(map(repr, wrong))}, which is no port")
    path, database = labels.get(PATH_LABEL), labels.get(DATABASE_LABEL)
    if path is not None and not _PATH.fullmatch(path):
        problems.append(f"has the label {PATH_LABEL}={path!r}, which is no path")
    if database not in {None, _POSTGRES}:
        problems.append(f"has the label {DATABASE_LABEL}={database!r}, and there is only {_POSTGRES!r}")
    if problems:
        hint = "build the image again with labels and ports that can be used, or without them"
        raise UserError(f"the image {name} {', and '.join(problems)}", concerns=name, hint=hint)
    numbers = sorted(map(int, ports))
    port = numbers[0] if len(numbers) == 1 else DOOR
    return ImageSays(image, port, path, database is not None)


async def image_says(engine: Engine, image_id: str, name: str) -> ImageSays:
    """The same of an image of an engine."""
    async with engine.asking("looking at an image", missing=EngineRefusedError, concerns=image_id) as docker:
        found: dict[str, Any] = await docker.images.inspect(image_id)
        config = found.get("Config") or {}
        return says(image_id, labels=config.get("Labels") or {}, exposed=config.get("ExposedPorts") or (), name=name)


def refuse_elsewhere(plan: DeployPlan, making: Making, capabilities: Capabilities) -> None:
    """Containers beside a machine answer on that machine's loopback, and are led to from this one's.

    Raises:
        UnsupportedError: The provider's machines are not on this one.
    """
    if capabilities.shape is Shape.MACHINE_BACKED and not (capabilities.containers and capabilities.on_this_machine):
        told = [note.removeprefix("no containers: ") for note in capabilities.notes if "container" in note]
        why = (
            f"run no containers{f' ({told[0]})' if told else ''}"
            if not capabilities.containers
            else "are elsewhere, and an environment's containers stand beside machines here"
        )
        others = [repr(name) for name in ("local", "rootfs") if name != making.sandbox_provider]
        raise UnsupportedError(
            f"environment {plan.env_id!r} can't stand beside the machines of {making.sandbox_provider!r}: they {why}",
            concerns=plan.env_id,
            hint=f"agent-env doctor says what this machine lacks; or deploy it with {' or '.join(others)}",
        )


def wants_database(plan: DeployPlan) -> bool:
    """Whether a database is asked for, as far as documents, options and what images are built of tell."""
    from agent_env.images import BuildRequest

    texts = [server.image.context.dockerfile_text() for server in plan.servers if isinstance(server.image, BuildRequest)]
    asked = plan.options.env_state_type == LOCAL_POSTGRES or bool(plan.database) or bool(plan.websites)
    return asked or any(f"{DATABASE_LABEL}=postgres" in text for text in texts)


def needs_database(plan: DeployPlan, said: Iterable[ImageSays]) -> bool:
    """Whether a database stands beside the servers: it costs seconds and memory, so only where something asks for it."""
    return wants_database(plan) or any(each.database for each in said)


def server_variables(server: ServerPlan, port: int, *, database: bool) -> dict[str, str]:
    """What a server is told that anybody may see (reference); the database's address is told in confidence."""
    told = {
        HOST_VARIABLE: "0.0.0.0",
        PORT_VARIABLE: str(port),
        NAME_VARIABLE: server.name,
        LEGACY_NAME_VARIABLE: server.name,
    }
    return told if database else {**told, DATABASE_VARIABLE: f"sqlite:////tmp/{server.name}.sqlite"}


def gateway_name(plan: DeployPlan) -> str:
    """The name that agents see: the document's, else one drawn anew for each deployment (reference)."""
    return plan.name or f"env{secrets.randbelow(10_000):04d}"


def gateway_variables(
    plan: DeployPlan, name: str, servers: list[Mapping[str, object]], *, agent_door: str, control_door: str, clock_url: str
) -> dict[str, str]:
    """The gateway's configuration; no secret is in it."""
    from agent_env.gateway.config import CONFIG_VARIABLE, GatewayConfig

    config = GatewayConfig.model_validate(
        {
            "name": name,
            "servers": servers,
            "agent_doors": [agent_door],
            "control_doors": [control_door],
            "mode": plan.options.gateway_mode,
            "namespacing": plan.options.namespacing,
            "unauthenticated_role": plan.options.unauthenticated_role,
            "hosts": [GATEWAY],
            "clock_url": clock_url,
        }
    )
    return {CONFIG_VARIABLE: json.dumps(config.model_dump(mode="json"), separators=(",", ":"))}


def website_key(plan: DeployPlan, name: str) -> str:
    """What a website is called among an environment's parts: its name, unless a server has that."""
    return f"{name}-website" if any(server.name == name for server in plan.servers) else name


def website_entry(name: str, backend: str, frontend: str) -> Mapping[str, object]:
    """A website as the gateway is told of it."""
    return {"name": name, "url": backend, "website": True, "frontend": frontend}


async def have_image(making: Making, sandbox_id: str, image: ImageSource) -> ImageSays:
    """Has a server's image present, and asks what it says."""
    image_id = await making.image(sandbox_id, image)
    return await image_says(await making.engine(sandbox_id), image_id, image if isinstance(image, str) else str(image.name))


def backend_url(name: str, port: int) -> str:
    """A website's backend, as its neighbours call it."""
    return f"http://{backend_name(name)}:{port}"

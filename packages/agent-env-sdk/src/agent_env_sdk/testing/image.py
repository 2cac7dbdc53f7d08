"""Serving an environment from its image, as a container of the local engine, reached over the engine's socket."""

from __future__ import annotations

import os
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final
from urllib.parse import urlsplit

import anyio
import httpx

from agent_env_sdk.wire.names import CARD_PATH, PORT

from .client import CALL_SECONDS, Client

ENGINE_SECONDS: Final = 60.0
READY_SECONDS: Final = 180.0
SOCKET: Final = "/var/run/docker.sock"


class ImageError(RuntimeError):
    """The image could not be served; the message has the engine's reason and the end of the container's log."""


@asynccontextmanager
async def serve_image(
    image: str, variables: Mapping[str, str] | None = None, *, port: int = PORT, ready_seconds: float = READY_SECONDS
) -> AsyncIterator[Client]:
    """Serves an image that the local engine has, while the block runs; the container is removed afterwards.

    Args:
        image: Its reference.
        variables: Environment variables of the container.
        port: Where the server listens in it.
        ready_seconds: How long it may take to give its card.

    Raises:
        ImageError: The engine can't be reached or has no such image, or the container ended or gave no card in time.
    """
    async with _engine() as engine:
        container = await _created(engine, image, variables or {}, port)
        try:
            await _asked(engine, "POST", f"/containers/{container}/start")
            published = await _published(engine, container, port)
            async with httpx.AsyncClient(timeout=CALL_SECONDS) as http:
                client = Client(f"http://127.0.0.1:{published}", http)
                await _ready(engine, container, client, ready_seconds)
                yield client
        finally:
            with anyio.CancelScope(shield=True), anyio.move_on_after(ENGINE_SECONDS):
                await engine.delete(f"/containers/{container}", params={"force": "true", "v": "true"})


@asynccontextmanager
async def _engine() -> AsyncIterator[httpx.AsyncClient]:
    host = urlsplit(os.environ.get("DOCKER_HOST") or f"unix://{SOCKET}")
    transport = httpx.AsyncHTTPTransport(uds=host.path) if host.scheme == "unix" else None
    base = "http://engine" if transport else f"http://{host.netloc}"
    async with httpx.AsyncClient(transport=transport, base_url=base, timeout=ENGINE_SECONDS) as engine:
        yield engine


async def _created(engine: httpx.AsyncClient, image: str, variables: Mapping[str, str], port: int) -> str:
    exposed = f"{port}/tcp"
    body = {
        "Image": image,
        "Env": [f"{name}={value}" for name, value in variables.items()],
        "ExposedPorts": {exposed: {}},
        "Labels": {"agent-env-sdk.test": "1"},
        "HostConfig": {"PortBindings": {exposed: [{"HostIp": "127.0.0.1", "HostPort": ""}]}, "Init": True},
    }
    answer = await _asked(engine, "POST", "/containers/create", params={"name": f"agent-env-test-{uuid.uuid4().hex[:12]}"}, json=body)
    return str(answer.json()["Id"])


async def _published(engine: httpx.AsyncClient, container: str, port: int) -> str:
    state = (await _asked(engine, "GET", f"/containers/{container}/json")).json()
    bindings = state["NetworkSettings"]["Ports"].get(f"{port}/tcp")
    if not bindings:
        raise ImageError(f"the container published no port {port}: {await _log(engine, container)}")
    return str(bindings[0]["HostPort"])


async def _ready(engine: httpx.AsyncClient, container: str, client: Client, seconds: float) -> None:
    """Waits for the card, and notices when the container ends instead."""
    card = f"{client.base}{CARD_PATH}"
    pause = 0.02
    with anyio.move_on_after(seconds):
        while True:
            try:
                if (await client.http.get(card)).is_success:
                    return
            except httpx.TransportError:
                pass
            state = (await _asked(engine, "GET", f"/containers/{container}/json")).json()["State"]
            if not state["Running"]:
                raise ImageError(f"the container ended with exit code {state['ExitCode']}: {await _log(engine, container)}")
            await anyio.sleep(pause)  # nothing tells when a server starts to listen
            pause = min(pause * 2, 1.0)
    raise ImageError(f"no card at {CARD_PATH} within {seconds:g} s: {await _log(engine, container)}")


async def _log(engine: httpx.AsyncClient, container: str) -> str:
    params = {"stdout": "true", "stderr": "true", "tail": "30"}
    raw = (await _asked(engine, "GET", f"/containers/{container}/logs", params=params)).content
    lines, rest = [], raw
    while len(rest) >= 8:  # frames: a stream's number, three zeros, a length, the text
        length = int.from_bytes(rest[4:8], "big")
        lines.append(rest[8 : 8 + length].decode(errors="replace"))
        rest = rest[8 + length :]
    return "".join(lines).strip() or "its log is empty"


async def _asked(engine: httpx.AsyncClient, verb: str, path: str, **more: Any) -> httpx.Response:
    try:
        response = await engine.request(verb, path, **more)
    except httpx.TransportError as error:
        raise ImageError(f"the container engine can't be reached: {error} (set DOCKER_HOST, or start Docker or Podman)") from error
    if response.is_error:
        try:
            reason = response.json().get("message", "")
        except ValueError:
            reason = response.text
        raise ImageError(f"the container engine refused {verb} {path}: {reason.strip()}")
    return response

"""Looks at the engine from beside the product, with its own Python client: what is there, what it shows, and a container that joins in."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import docker
import psutil
from docker import DockerClient

from tests.container_engine import engine_endpoint


@contextmanager
def engine() -> Iterator[DockerClient]:
    """A client of the engine that the tests use."""
    client = docker.DockerClient(base_url=engine_endpoint().url)
    try:
        yield client
    finally:
        client.close()


def labelled(label: str) -> dict[str, list[str]]:
    """What the engine has with a label, stopped or not."""
    found = {"label": label}
    with engine() as client:
        return {
            "containers": [each["Id"] for each in client.api.containers(all=True, filters=found)],
            "networks": [each["Id"] for each in client.api.networks(filters=found)],
            "volumes": [each["Name"] for each in client.api.volumes(filters=found)["Volumes"] or ()],
        }


def shown(containers: Sequence[str]) -> str:
    """Everything that the engine tells of containers."""
    with engine() as client:
        return json.dumps([client.api.inspect_container(each) for each in containers])


def logged(containers: Sequence[str]) -> str:
    """What containers have printed."""
    with engine() as client:
        return "".join(client.api.logs(each).decode(errors="replace") for each in containers)


def restart(container: str) -> None:
    """As somebody's hand would."""
    with engine() as client:
        client.api.restart(container, timeout=1)


def ended(container: str) -> None:
    """Killed as by somebody's hand, and the engine knows."""
    with engine() as client:
        client.api.kill(container)
        client.api.wait(container)


def kill(container: str, *, innermost: bool) -> None:
    """SIGKILL, from outside: of a container's first process, or of the last in the line of its children."""
    with engine() as client:
        process = psutil.Process(client.api.inspect_container(container)["State"]["Pid"])
    while innermost and (children := process.children()):
        process = children[0]
    process.kill()


def joining(image: str, network: str, command: Sequence[str]) -> str:
    """What a command prints in a container that joins a network, as an agent's does."""
    with engine() as client:
        return client.containers.run(image, list(command), network=network, remove=True).decode()

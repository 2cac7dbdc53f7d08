"""The same for containers: no network but loopback, and the way out over the helper that is their first process."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from agent_env.containers import ContainerPlace, EngineEndpoint
from agent_env.documents.network import NetworkMode, NetworkPolicy
from agent_env.keeper import (
    EGRESS_PORT,
    Carried,
    ToHost,
    Watch,
    carry,
    carry_egress,
    drop,
    in_container,
    installed_status,
    proxy_environment,
    relay_token,
)
from agent_env.places import Command
from tests.container_engine import bench
from tests.keeper.world import GOOD, LIMITS, keeper_of_gone, web

NAME = "agent-local-fenced"
ASK = 'printf "GET %s HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n\\r\\n" "$2" | nc -w 20 127.0.0.1 "$1" || echo failed'


@asynccontextmanager
async def fenced(endpoint: EngineEndpoint, image: str, state: Path, hosts: Sequence[str]) -> AsyncIterator[ContainerPlace]:
    policy = NetworkPolicy(mode=NetworkMode.ALLOWLIST, allow_hosts=tuple(hosts))
    async with bench(endpoint, image) as here:
        place = await here.deploy(env=dict(proxy_environment()), relay_token=relay_token(state, NAME))
        try:
            await carry_egress(state, NAME, in_container(place), policy, allow_private=["127.5.0.0/16"], limits=LIMITS)
            yield place
        finally:
            await drop(state, NAME)
    await keeper_of_gone(state)


async def fetch(place: ContainerPlace, url: str, port: int = EGRESS_PORT) -> str:
    """Status and body of a request that is sent to a port of the container's loopback."""
    answer = (await place.run(Command(["sh", "-c", ASK, "sh", str(port), url]))).stdout.decode()
    return f"{answer[9:12]} {answer.rpartition(chr(10))[2]}" if answer.startswith("HTTP/1.1") else answer


async def test_np01_a_container_of_an_allow_list_reaches_what_is_listed_and_nothing_else(
    docker: EngineEndpoint, busybox: str, tmp_path: Path
) -> None:
    with web(0) as (served,):
        async with fenced(docker, busybox, tmp_path, [f"{GOOD}:{served.port}"]) as place:
            assert await fetch(place, f"http://{GOOD}:{served.port}/x") == "200 good GET /x 0"
            for host in ("172.17.0.1", "169.254.169.254", "10.0.0.1", "127.0.0.2", "evil.test"):
                assert (await fetch(place, f"http://{host}:{served.port}/")).startswith("403")
            around = f"echo | nc -w 5 172.17.0.1 {served.port} && echo reached; ls /sys/class/net; echo $HTTPS_PROXY"
            direct = await place.run(Command(["sh", "-c", around]))
            assert direct.stdout.decode().split() == ["lo", f"http://127.0.0.1:{EGRESS_PORT}"]
            assert served.secret_hits == []


async def test_a_keeper_that_was_killed_carries_for_a_container_again(docker: EngineEndpoint, busybox: str, tmp_path: Path) -> None:
    with web(0) as (served,):
        async with fenced(docker, busybox, tmp_path, [f"{GOOD}:{served.port}"]) as place:
            watch = Watch(tmp_path, NAME, limits=LIMITS).start()
            pid = (await installed_status(tmp_path)).pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            assert await fetch(place, f"http://{GOOD}:{served.port}/again") == "200 good GET /again 0"
            await watch.aclose()


async def test_a_listener_of_this_machine_is_reached_inside_a_container_that_has_no_network(
    docker: EngineEndpoint, busybox: str, tmp_path: Path
) -> None:
    with web(0) as (served,):
        async with fenced(docker, busybox, tmp_path, [GOOD]) as place:
            await carry(tmp_path, Carried(NAME, in_container(place), (ToHost(18765, served.port),)), limits=LIMITS)
            answers = await asyncio.gather(*(fetch(place, f"/{number}", 18765) for number in range(8)))
            assert answers == [f"200 SECRET GET /{number} 0" for number in range(8)]

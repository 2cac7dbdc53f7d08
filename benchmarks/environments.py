"""Environments: from the start of their deployment to the first tool call, and what a server and a gateway cost of that."""

from __future__ import annotations

import asyncio
import os
import secrets
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

import agent_env_bundles
from agent_env.containers import Engine, open_engine, remove_all
from agent_env.environments.contract import DeployOptions, DeployPlan, ServerPlan
from agent_env.environments.records import GATEWAY, new_instance_id
from agent_env.images import BuildContext, BuildRequest, ImageReference
from benchmarks.measure import Figure, left_out, no_engine
from tests.environments.bench import World, world

ROUNDS = 3
"""Of each, in turns, so that whatever else the machine does falls on all alike."""
CALLS = 200
FOUR = ("echo", "mail", "crm", "desk")
_WHAT = "echo environment: deployment to first tool call"


def figures(bare: float) -> Iterator[Figure]:
    """The table's lines; `bare` is what a bare interpreter takes."""
    why = no_engine()
    if why is not None:
        yield left_out(_WHAT, why)
        return
    with tempfile.TemporaryDirectory(prefix="agent-env-bench-") as folder:
        yield from asyncio.run(_measured(Path(folder), bare))


async def _measured(folder: Path, bare: float) -> list[Figure]:
    (folder / "state").mkdir()
    image = BuildRequest(BuildContext.of(_echo()), ImageReference.parse("agentenv-bench/echo:1"))
    times: dict[str, list[float]] = {"lone": [], "one": [], "four": [], "two": [], "five": []}
    used: dict[str, list[float]] = {"echo": [], GATEWAY: []}
    async with world(folder / "state") as here:
        await _deployed(here, image, ("echo",), "gateway")  # images are present from here on
        for _ in range(ROUNDS):
            times["lone"].append(await _deployed(here, image, ("echo",), "server", used))
            times["one"].append(await _deployed(here, image, ("echo",), "gateway", used))
            times["four"].append(await _deployed(here, image, FOUR, "gateway", used))
            async with open_engine() as engine:
                for bare_name, count in (("two", 2), ("five", 5)):  # an environment's containers: its servers, and its gateway
                    times[bare_name].append(await _bare_seconds(engine, str(image.name), count))
        call = await _call_seconds(here, image)
    lone, one, four, two, five = (statistics.median(each) for each in times.values())
    return [
        Figure("echo server alone: deployment to first tool call", lone, "s", ratio=lone / bare, note=_spread(times["lone"])),
        Figure(_WHAT, one, "s", 1.5, one / bare, f"behind a gateway, images present; {_spread(times['one'])}"),
        Figure("four servers, beside one", four / one, "×", 1.3, note=f"{four:.2f} s; {os.cpu_count()} cores"),
        Figure(
            "  the engine's own: five containers beside two",
            five / two,
            "×",
            note=f"created and started, nothing run: {two:.2f} s, {five:.2f} s",
        ),
        *(Figure(f"  processor time of {name} by then", min(seconds), "s", note=_spread(seconds)) for name, seconds in used.items()),
        Figure("tool call through a place's helper and the gateway", call * 1000, "ms", note=f"median of {CALLS}, one after the other"),
    ]


def _spread(times: Sequence[float]) -> str:
    return f"{min(times):.2f} to {max(times):.2f} s"


def _echo() -> Path:
    return Path(agent_env_bundles.__file__).parent / "echo-mcp/envs/echo"


def _plan(image: BuildRequest, names: Sequence[str], provider: str) -> DeployPlan:
    servers = tuple(ServerPlan(name, image) for name in names)
    kind: Literal["mcp_server", "multi"] = "mcp_server" if len(names) == 1 else "multi"
    options = DeployOptions(namespacing=len(names) > 1)
    return DeployPlan("bench", 1, kind, provider, servers, instance_id=new_instance_id("bench"), options=options)


async def _deployed(
    here: World, image: BuildRequest, names: Sequence[str], provider: str, used: Mapping[str, list[float]] | None = None
) -> float:
    """Deploys, calls a tool, removes. Returns how long the first two took together.

    Args:
        here: The run.
        image: Of every server.
        names: The servers.
        provider: Behind a gateway, or alone.
        used: By part, the processor time of its container until then, which depends little on what else the machine does.
    """
    started = time.perf_counter()
    live = await here.deploy(_plan(image, names, provider))
    try:
        async with live.control.mcp() as session:
            tool = next(str(each["name"]) for each in await session.tools() if str(each["name"]).endswith("echo"))
            result = await session.call(tool, {"text": "hello"})
        seconds = time.perf_counter() - started
        if result.get("isError") is True:
            raise SystemExit(f"the tool failed: {result}")
        for name, found in (used or {}).items():
            part = live.record.parts.get(name)
            if part is not None and part.container_id is not None:
                found.append(await _processor_seconds(await here.makings[-1].engine(part.sandbox_id), part.container_id))
        return seconds
    finally:
        await live.aclose()
        await here.makings[-1].remove(str(live.record.sandbox_id))


async def _bare_seconds(engine: Engine, image: str, count: int) -> float:
    """How long the engine takes to create and start containers at once that do nothing, on a network of their own."""
    home = f"bench-{secrets.token_hex(6)}"
    labels = {"agentenv.home": home, "agentenv.sandbox": home}
    host = {"NetworkMode": home}
    body = {"Image": image, "Entrypoint": ["sleep", "1000"], "Cmd": [], "Labels": labels, "HostConfig": host}

    async def start() -> None:
        async with engine.asking("starting a container by the engine alone") as docker:
            await (await docker.containers.create(body)).start()

    try:
        async with engine.asking("making a network by the engine alone") as docker:
            await docker.networks.create({"Name": home, "Labels": labels})
        began = time.perf_counter()
        await asyncio.gather(*(start() for _ in range(count)))
        return time.perf_counter() - began
    finally:
        await remove_all(engine, {"agentenv.home": home})


async def _processor_seconds(engine: Engine, container_id: str) -> float:
    async with engine.asking("asking what a container used") as docker:
        said = await docker._query_json(f"containers/{container_id}/stats", params={"stream": "0", "one-shot": "1"})
    return float(said["cpu_stats"]["cpu_usage"]["total_usage"]) / 1e9


async def _call_seconds(here: World, image: BuildRequest) -> float:
    live = await here.deploy(_plan(image, ("echo",), "gateway"))
    try:
        async with live.control.mcp() as session:
            times = []
            for _ in range(CALLS):
                started = time.perf_counter()
                await session.call("echo", {"text": "hello"})
                times.append(time.perf_counter() - started)
            return statistics.median(times)
    finally:
        await live.aclose()
        await here.makings[-1].remove(str(live.record.sandbox_id))

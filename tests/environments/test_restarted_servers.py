"""A lone server that was started again, and a command that was: rules of tools hold, and loads end once."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from agent_env.documents.records import DeployedEnvironment
from agent_env.environments.by_url import UrlEnvironment
from agent_env.environments.client import EnvironmentClient
from agent_env.environments.http import new_client
from agent_env.environments.rules import tell_again
from tests.environments.bench import run, world
from tests.environments.test_client import LIMITS
from tests.gateway.parts import HTTP, ROOT, eventually
from tests.ports import free_port

PARTS = [{"kind": "data", "data": {"row": 1}}]
LOAD = """
import asyncio, sys
from tests.environments.test_restarted_servers import PARTS, client
asyncio.run(client(sys.argv[1]).load(PARTS))
"""


def client(url: str) -> EnvironmentClient:
    return EnvironmentClient(url, http=new_client(None, LIMITS), name="slow", limits=LIMITS)


@dataclass
class Slow:
    folder: Path
    port: int
    process: subprocess.Popen[bytes]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def begun(self) -> int:
        log = self.folder / "begun"
        return len(log.read_text()) if log.exists() else 0

    def end(self) -> None:
        self.process.kill()
        self.process.wait()

    def restart(self) -> None:
        self.end()
        self.process = launched(self.folder, self.port)


def launched(folder: Path, port: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.environments.slow_loader", str(port), str(folder)]
    return subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL)


def answers(url: str) -> bool:
    try:
        return HTTP.get(f"{url}/.well-known/agent-env.json").status_code == 200
    except httpx.HTTPError:
        return False


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[Slow]:
    port = free_port()
    made = Slow(tmp_path, port, launched(tmp_path, port))
    try:
        eventually(lambda: answers(made.url))
        yield made
    finally:
        made.end()


def test_a_load_that_a_killed_command_began_is_taken_up_and_not_begun_again(slow: Slow) -> None:
    command = subprocess.Popen([sys.executable, "-c", LOAD, slow.url], cwd=ROOT)
    eventually(lambda: slow.begun() == 1)
    command.kill()
    command.wait()

    async def body() -> list[object]:
        again = client(slow.url)
        await again.load(PARTS, report=lambda _: (slow.folder / "go").touch())  # it is told of it, so it goes on
        held = await again.get()
        await again.load([{"kind": "data", "data": {"row": 2}}])
        await again.load(PARTS)  # the same once more is another load
        try:
            return [held, await again.get()]
        finally:
            await again.aclose()

    first, last = run(body())
    assert [part["data"] for part in first] == [part["data"] for part in last] == [{"row": 1}]
    assert slow.begun() == 3


def test_a_load_whose_server_was_started_again_is_begun_anew(slow: Slow) -> None:
    async def body() -> list[dict[str, object]]:
        speaking = client(slow.url)
        loading = asyncio.create_task(speaking.load(PARTS))
        await asyncio.to_thread(eventually, lambda: slow.begun() == 1)
        await asyncio.to_thread(slow.restart)
        await asyncio.to_thread(eventually, lambda: slow.begun() == 2)
        (slow.folder / "go").touch()
        await loading
        try:
            return [part["data"] for part in await speaking.get()]
        finally:
            await speaking.aclose()

    assert run(body()) == [{"row": 1}]


def test_rules_are_told_again_to_another_life_of_a_server_and_to_one_that_a_command_comes_back_to(slow: Slow) -> None:
    changes = [
        {"step_id": "a", "env_id": "slow", "action": "disable", "role": "eve", "tools_requested": ["*"]},
        {"step_id": "b", "env_id": "slow", "action": "enable", "role": "eve", "tools_requested": ["one"]},
        {"step_id": "c", "env_id": "else", "action": "enable", "role": "eve", "tools_requested": ["other"]},
    ]
    card = HTTP.get(f"{slow.url}/.well-known/agent-env.json").json()
    record = DeployedEnvironment.read(
        {
            "env_id": "slow",
            "env_version": 1,
            "env_provider_type": "server",
            "environment_card_url": f"{slow.url}/.well-known/agent-env.json",
            "environment_card": card,
            "mcp_url": f"{slow.url}/mcp",
        }
    )

    async def names(live: UrlEnvironment) -> list[str]:
        async with live.client().mcp(headers={"AgentEnv-Role": "eve"}) as session:
            return [str(tool["name"]) for tool in await session.tools()]

    async def body() -> None:
        async with world(slow.folder / "state") as here:
            live = await UrlEnvironment.found(record, here.making())
            told: dict[str, str] = {}
            assert await names(live) == ["one", "other"]
            await tell_again(live, changes, told)
            assert await names(live) == ["one"]
            slow.restart()
            await asyncio.to_thread(eventually, lambda: answers(slow.url))
            assert await names(live) == ["one", "other"]
            await tell_again(live, changes, {})  # as the next process does
            assert await names(live) == ["one"]
            await live.aclose()

    run(body())

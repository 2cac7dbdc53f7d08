"""Where `run_code` on an environment acts, and how it finds the environment there: whole runs, by the ids of the table."""

from __future__ import annotations

import asyncio
import json
import random
import secrets
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from agent_env.artifacts.image_artifacts import put_context
from agent_env.documents.updates import AppendRecord
from agent_env.engine import Engine
from agent_env.environments.registry import environment_provider
from agent_env.images import BuildContext
from agent_env.steps.contract import Step
from tests.engine import parts
from tests.engine.parts import Noted, engine_at, started
from tests.environments.bench import HERE, run, stock_with
from tests.environments.test_websites import pages
from tests.wheels import share_wheels

SCRIPT = r"""
import http.client, json, os, socket, stat, urllib.parse, urllib.request

def rpc(url, session, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    request.add_header("accept", "application/json, text/event-stream")
    if session:
        request.add_header("mcp-session-id", session)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return answer.headers.get("mcp-session-id"), answer.read().decode()

def tools(url):
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "script", "version": "1"}}
    session, _ = rpc(url, None, {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello})
    rpc(url, session, {"jsonrpc": "2.0", "method": "notifications/initialized"})
    _, text = rpc(url, session, {"jsonrpc": "2.0", "id": 2, "method": "tools/list", "params": {}})
    line = next(line for line in text.splitlines() if '"tools"' in line)
    return len(json.loads(line.removeprefix("data:"))["result"]["tools"])

def card(base):
    with urllib.request.urlopen(base + "/.well-known/agent-env.json", timeout=60) as answer:
        return json.load(answer)

def run(given):
    here = os.path.dirname(os.path.abspath(__file__))
    found = {"keys": sorted(given), "host": socket.gethostname(), "uid": os.getuid(), "folder": here}
    found["marked"] = os.path.exists("/srv/server.py")
    found["mode"] = stat.S_IMODE(os.stat(here).st_mode)
    env = given.get("env")
    if env:
        found["env"] = env
        found["card"] = card(env["url"])["name"]
        found["known"] = card("http://127.0.0.1:18765")["name"]
        found["tools"] = tools(env["mcp_url"])
    return found
"""
FILES = {"Dockerfile": HERE / "server/Dockerfile", "server.py": HERE / "server/server.py"}


class Adopt(Step, type="t_agent"):
    """Records an agent on a sandbox's machine."""

    on: str

    async def execute(self, run):  # type: ignore[no-untyped-def]
        record = run.sandbox(self.on)
        agent = {"agent_name": "solver", "api_url": None, "sandbox_id": record.sandbox_id, "sandbox_type": "local", "on_host": True}
        return Noted((AppendRecord("deployed_agents", agent),))


def deployment(env: str = "env", sandbox: str | None = None) -> dict[str, Any]:
    return {"id": "deploy", "type": "deploy_env", "env_id": env, **({"sandbox_type": sandbox} if sandbox else {})}


def code(name: str = "work", **target: Any) -> dict[str, Any]:
    return {"id": name, "type": "run_code", "script_artifact_id": "script", "timeout_seconds": 120, **target}


@asynccontextmanager
async def house(root: Path, *, provider: str, count: int = 1) -> AsyncIterator[Engine]:
    """An installation with an environment in its stores, and the script."""
    share_wheels(root)
    async with engine_at(root) as engine:
        artifacts = engine.stores.artifacts
        image = put_context(artifacts, "stock__image", BuildContext.of(HERE / "server"))
        artifacts.put_file("script", SCRIPT.encode(), filename="script.py")
        ref = {"id": image.id, "version": image.version, "type": "docker_image"}
        for number in range(count):
            name = "tickets" if number == 0 else f"tickets{number}"
            body = {"metadata": {}, "docker_image_artifact": ref, "environment_name": name, "env_provider_type": provider}
            engine.stores.documents.put("envs", "env" if number == 0 else f"env{number}", "mcp_server", body)
        yield engine


@pytest.fixture(autouse=True)
def package() -> Iterator[None]:
    """The test package's provider as if it were installed."""
    folder, step = str(HERE / "plugins"), f"{Adopt.__module__}:Adopt"
    sys.path.insert(0, folder)
    parts.IMPLS.append(step)
    yield
    sys.path.remove(folder)
    parts.IMPLS.remove(step)
    environment_provider.cache_clear()


def result(outcome: Any, name: str = "work") -> dict[str, Any]:
    assert outcome.status == "completed", outcome.error
    return dict(outcome.context["metadata"]["script_results"][name])


PROVIDERS = [("gateway", "/mcp", 5), ("server", "/mcp", 2), ("stall", "/v2/mcp", 2)]


@pytest.mark.parametrize(("provider", "path", "tools"), PROVIDERS)
def test_c01_c02_c05_c06_c09_a_script_finds_card_and_mcp_endpoint(
    python_base: str, tmp_path: Path, provider: str, path: str, tools: int
) -> None:
    """The first page of tools alone is asked for: a lone server's has two."""

    async def body() -> None:
        async with house(tmp_path / "state", provider=provider) as engine:
            outcome = await started(engine, [deployment(), code(env_id="env")])
            found, record = result(outcome), outcome.context["deployed_envs"][0]
            assert found["keys"] == ["args", "env", "results"]
            assert found["env"]["id"] == "env"
            assert found["env"]["mcp_url"] == f"{found['env']['url']}{path}"
            assert found["env"]["url"] == record["environment_card_url"].removesuffix("/.well-known/agent-env.json")
            assert 20000 <= int(found["env"]["url"].rpartition(":")[2]) < 30000
            assert found["card"] == found["known"] == record["environment_card"]["name"]
            assert found["tools"] == tools
            assert record["env_provider_type"] == provider
            assert found["uid"] == 0
            assert not found["marked"], "it ran in a container"

    run(body())


def test_c01_scripts_elsewhere_are_told_of_no_environment(python_base: str, tmp_path: Path) -> None:
    async def body() -> None:
        async with house(tmp_path / "state", provider="server") as engine:
            box = {"id": "box", "type": "deploy_sandbox", "sandbox_name": "box", "sandbox_mode": "vm"}
            steps = [deployment(), box, {"id": "agent", "type": "t_agent", "on": "box"}]
            outcome = await started(engine, [*steps, code("on", sandbox_name="box"), code("by", agent_name="solver")])
            assert result(outcome, "on")["keys"] == ["args", "results"]
            assert result(outcome, "by")["keys"] == ["args", "results"]

    run(body())


@pytest.mark.parametrize("provider", ["server", "gateway"])
def test_c08_where_the_sandbox_is_the_container_the_script_runs_in_the_environments_own(
    python_base: str, tmp_path: Path, provider: str
) -> None:
    async def body() -> None:
        async with house(tmp_path / "state", provider=provider) as engine:
            outcome = await started(engine, [deployment(sandbox="rootfs"), code(env_id="env")])
            found, record = result(outcome), outcome.context["deployed_envs"][0]
            assert found["env"]["url"] == "http://127.0.0.1:18765"
            assert found["env"]["mcp_url"] == "http://127.0.0.1:18765/mcp"
            assert found["card"] == found["known"] == record["environment_card"]["name"]
            assert found["marked"] is (provider == "server"), "it ran in another container"
            assert found["mode"] == 0o700

    run(body())


def test_c06_two_runs_at_once_each_find_their_own_at_the_well_known_port(python_base: str, tmp_path: Path) -> None:
    async def body() -> None:
        async with house(tmp_path / "state", provider="server", count=2) as engine:
            runs = [started(engine, [deployment(env), code(env_id=env)]) for env in ("env", "env1")]
            found = [result(outcome) for outcome in await asyncio.gather(*runs)]
            assert [each["known"] for each in found] == ["tickets", "tickets1"]

    run(body())


def test_a_chain_goes_on_to_the_provider_that_can(python_base: str, postgres_image: str, tmp_path: Path) -> None:
    async def body() -> None:
        async with house(tmp_path / "state", provider="gateway") as engine:
            artifacts = engine.stores.artifacts
            images = [
                put_context(artifacts, name, context)
                for name, context in (
                    ("backend__image", stock_with(tmp_path / "backend", "backend").context),
                    ("pages__image", pages(tmp_path / "pages").context),
                )
            ]
            backend, frontend = ({"id": each.id, "version": each.version, "type": "docker_image"} for each in images)
            body = {"backend_docker_image_artifact": backend, "frontend_docker_image_artifact": frontend, "environment_name": "shop"}
            engine.stores.documents.put("envs", "site", "website", {"metadata": {}, "env_provider_type": "gateway", **body})
            outcome = await started(engine, [deployment("site", sandbox="rootfs,local"), code(env_id="site")])
            record = outcome.context["deployed_envs"][0]
            assert result(outcome)["card"] == record["environment_card"]["name"]
            assert record["sandbox_type"] == "local"
            assert "servicedb" in record["parts"]

    run(body())


async def crowd(root: Path, at_once: int, rounds: int, seed: str) -> None:
    """Many deployments at once, some behind a gateway and some alone: each script reaches its own environment, and nothing is left."""
    source = random.Random(seed)
    async with house(root / "gateway", provider="gateway") as behind, house(root / "server", provider="server") as alone:
        for _ in range(rounds):
            chosen = [source.choice([behind, alone]) for _ in range(at_once)]
            outcomes = await asyncio.gather(*(started(engine, [deployment(), code(env_id="env")]) for engine in chosen))
            found = [result(outcome) for outcome in outcomes]
            records = [outcome.context["deployed_envs"][0] for outcome in outcomes]
            assert [each["card"] for each in found] == [record["environment_card"]["name"] for record in records], seed
            assert [each["known"] for each in found] == [each["card"] for each in found], seed
            for of_each in (
                [record["sandbox_id"] for record in records],
                [each["folder"] for each in found],
                [each["env"]["url"] for each in found],
            ):
                assert max(Counter(of_each).values()) == 1, seed
            assert all(each["mode"] == 0o700 for each in found), seed
            assert all(outcome.teardown.clean for outcome in outcomes), seed


def test_c09_c10_three_deployments_at_once_never_mix(python_base: str, tmp_path: Path) -> None:
    seed = secrets.token_hex(4)
    print(f"seed {seed}")
    run(crowd(tmp_path, 3, 1, seed))


@pytest.mark.slow
def test_c09_c10_thirteen_deployments_at_once_four_times(python_base: str, tmp_path: Path) -> None:
    seed = secrets.token_hex(4)
    print(f"seed {seed}")
    run(crowd(tmp_path, 13, 4, seed), seconds=1800)


def test_the_script_is_one_that_anybody_could_have_written() -> None:
    assert "agent_env" not in SCRIPT.replace("agent-env.json", "")
    assert json.dumps(SCRIPT)

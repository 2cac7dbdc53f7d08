"""Three servers behind a gateway, beside a machine: who gets where, what is shown to whom, and what happens when one of them dies."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path

import httpx
import pytest

from agent_env.containers import EngineEndpoint
from agent_env.defaults import DEFAULT_LIMITS
from agent_env.documents.records import DeployedEnvironment
from agent_env.environments.contract import AgentAccess, Life, LiveEnvironment, TellsLife
from agent_env.environments.deploy import deploy
from agent_env.environments.faults import EnvironmentFailedError, ToolNameClashError
from agent_env.environments.http import new_client
from agent_env.environments.mcp_client import McpSession
from agent_env.errors import AgentEnvError, ContainerNotRunningError, PlacementError
from agent_env.keeper import recorded_owner
from agent_env.places import Command, Place, View
from agent_env.waiting import poll
from tests.environments.bench import Deployed, held, items, plan, run, standing, stock_with, world
from tests.environments.beside import ended, joining, kill, logged, restart, shown
from tests.environments.test_lone_server import FETCH

SERVERS = ("tickets", "mail", "crm")


@pytest.fixture(scope="module")
def office(python_base: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployed]:
    """Three servers behind a gateway."""
    with standing(tmp_path_factory.mktemp("office") / "state", plan(*SERVERS, provider="gateway", env_id="office", name="office")) as made:
        yield made


async def listed(access: AgentAccess) -> list[str]:
    """The tools that whoever has this access sees."""
    async with new_client(None, DEFAULT_LIMITS) as http:
        session = McpSession(access.url, http, name="agent", headers=access.headers)
        await session.open()
        try:
            return [str(tool["name"]) for tool in await session.tools()]
        finally:
            await session.aclose()


def test_its_record_is_that_of_a_gateway_environment(office: Deployed) -> None:
    record = DeployedEnvironment.read(office.record)
    assert record.shape == "gateway"
    assert record.server_name == "office"
    assert record.sandbox_ids == {"gateway_server": record.sandbox_id}
    assert record.gateway_url == record.environment_url
    assert record.gateway_mode == "performance"
    card = record.environment_card or {}
    assert [child["name"] for child in card["children_environments"]] == list(SERVERS)
    assert [child["url"] for child in card["children_environments"]] == [f"/svc/mcp-{name}/agentenv" for name in SERVERS]
    assert list(record.parts) == [*SERVERS, "gateway"]


def test_no_secret_is_in_the_record_or_can_be_looked_up_in_the_engine(office: Deployed) -> None:
    async def keys() -> list[str]:
        async with office.found() as (here, live):
            sandbox_id = str(live.record.sandbox_id)
            access = await live.agent_access("boss")
            return [here.makings[0].derive(sandbox_id, "gateway"), access.headers["Authorization"].removeprefix("Bearer ")]

    told = run(keys())
    ids = [part["container_id"] for part in office.record["parts"].values()]
    for secret in told:
        assert secret not in shown(ids) + logged(ids) + json.dumps(office.record)


def test_c05_a_reopened_one_gives_the_same_answers_as_the_live_one(office: Deployed) -> None:
    async def answers(live: LiveEnvironment) -> object:
        places = [(await live.place(name)).id for name in (None, *SERVERS)]
        return live.script_urls(), places, await live.agent_access("boss"), sorted(live.parts), live.has_gateway

    async def body() -> None:
        async with office.found() as (_, live):
            first = await answers(live)
            await live.client("mail").load(items(a=1))
        async with office.found() as (_, again):
            assert await answers(again) == first
            assert held(await again.client("mail").get()) == {"a": 1}
            assert held(await again.client("crm").get()) == {}

    run(body())


def test_c06_a_script_reaches_the_whole_environment_without_a_token(office: Deployed) -> None:
    async def body() -> None:
        async with office.found() as (_, live):
            url, _ = live.script_urls()
            machine = await live.machine()
            asked = [f"{base}/.well-known/agent-env.json" for base in (url, "http://127.0.0.1:18765")]
            done = await machine.run(Command(["python3", "-c", FETCH, *asked]))
            assert done.stdout.decode().split() == ["office", "office"], done.stderr

    run(body())


def test_an_agents_token_is_its_role_and_without_one_nobody_comes_in(office: Deployed) -> None:
    async def body() -> None:
        async with office.found() as (_, live):
            boss = await live.agent_access("boss", view=View.PROCESS)
            clerk = await live.agent_access("clerk", view=View.PROCESS)
            assert len(await listed(boss)) == 15
            await live.control.invoke("urn:agentenv:disable-tool/v1", {"role": "clerk", "tools": ["mail_take"]})
            assert "mail_take" not in await listed(clerk)
            assert "mail_take" in await listed(boss)
            with pytest.raises(EnvironmentFailedError, match="401"):
                await listed(AgentAccess(boss.url, {}, None))
            forged = boss.headers["Authorization"][:-4] + "AAAA"
            with pytest.raises(EnvironmentFailedError, match="401"):
                await listed(AgentAccess(boss.url, {"Authorization": forged}, None))

    run(body())


def test_an_agents_network_holds_the_gateways_agent_door_and_nothing_else(
    office: Deployed, docker: EngineEndpoint, python_base: str
) -> None:
    """A container that joins as an agent does: no server by name or address, no control door, and the gateway's other addresses neither."""
    script = r"""
import concurrent.futures, socket, sys

def look(pair):
    host, port = pair.rsplit(":", 1)
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
        return f"open {pair}"
    except OSError:
        return f"shut {pair}"

with concurrent.futures.ThreadPoolExecutor(32) as pool:
    print(*pool.map(look, sys.argv[1:]), sep="\n")
"""

    async def network() -> str:
        async with office.found() as (_, live):
            return str((await live.agent_access()).network)

    addresses = [_address(part["container_id"]) for part in office.record["parts"].values()]
    targets = ["gateway:18765", "gateway:18766", *(f"{name}:18765" for name in SERVERS)]
    targets += [f"{address}:{port}" for found in addresses for address in found for port in (18765, 18766)]
    said = joining(python_base, run(network()), ["python3", "-c", script, *targets])
    reached = {line.split()[1] for line in said.splitlines() if line.startswith("open")}
    on_front = _address(office.record["parts"]["gateway"]["container_id"])[0]
    assert reached == {"gateway:18765", f"{on_front}:18765"}, said


def _address(container_id: str) -> list[str]:
    """Its addresses; that on the agents' network first, where it has one there."""
    networks = json.loads(shown([container_id]))[0]["NetworkSettings"]["Networks"]
    return [networks[name]["IPAddress"] for name in sorted(networks, key=lambda name: not name.startswith("front-"))]


def test_servers_of_one_name_of_tool_are_refused_and_the_tool_is_named(python_base: str, tmp_path: Path) -> None:
    images = {name: stock_with(tmp_path / name, f"stock-same-{name}", STOCK_PREFIX="same") for name in ("a", "b")}

    async def body() -> None:
        async with world(tmp_path / "state") as here:
            with pytest.raises(ToolNameClashError, match=r"'same_count' of a and b"):
                await deploy(plan("a", "b", provider="gateway", images=images), here.making())

    run(body())


def test_with_namespacing_both_are_there_under_their_servers_names(python_base: str, tmp_path: Path) -> None:
    images = {name: stock_with(tmp_path / name, f"stock-same-{name}", STOCK_PREFIX="same") for name in ("a", "b")}

    async def body() -> None:
        async with world(tmp_path / "state") as here:
            live = await here.deploy(plan("a", "b", provider="gateway", images=images, chosen={"namespacing": True}))
            names = [str(tool["name"]) for tool in await live.control.tools()]
            assert len(names) == len(set(names)) == 10
            assert len([name for name in names if name.endswith("same_count")]) == 2

    run(body())


def test_a_server_that_ends_while_it_starts_is_told_with_its_log(python_base: str, tmp_path: Path) -> None:
    image = stock_with(tmp_path / "image", "stock-broken", STOCK_BROKEN="1")

    async def body() -> None:
        async with world(tmp_path / "state") as here:
            with pytest.raises(ContainerNotRunningError, match="the shelf is broken"):
                await deploy(plan("tickets", "bad", provider="gateway", images={"bad": image}), here.making())

    run(body())


def test_a_declared_mcp_path_is_where_the_server_is_spoken_with(python_base: str, tmp_path: Path) -> None:
    image = stock_with(tmp_path / "image", "stock-v2", STOCK_MCP_PATH="/v2/mcp")

    async def body() -> None:
        async with world(tmp_path / "state") as here:
            live = await here.deploy(plan("tickets", provider="gateway", images={"tickets": image}))
            assert len(await live.control.tools()) == 5
            assert len(await live.client().tools()) == 5

    run(body())


def test_an_environment_of_several_servers_wants_one_named(office: Deployed) -> None:
    async def body() -> None:
        async with office.found() as (_, live):
            with pytest.raises(PlacementError, match=r"several servers \(crm, mail, tickets\)"):
                live.client()

    run(body())


def test_a_gateway_that_is_started_again_has_its_rules_and_the_agents_come_back(office: Deployed) -> None:
    async def body() -> None:
        async with office.found() as (_, live):
            await live.control.invoke("urn:agentenv:disable-tool/v1", {"role": "clerk", "tools": ["crm_take"]})
        await asyncio.to_thread(restart, office.record["container_id"])
        async with office.found() as (_, live):
            clerk = await live.agent_access("clerk", view=View.PROCESS)

            async def back() -> list[str] | None:
                try:
                    return await listed(clerk)
                except AgentEnvError:
                    return None

            tools = await poll(back, within_seconds=60, what="the gateway")
            assert "crm_take" not in tools
            assert "crm_count" in tools
            async with httpx.AsyncClient() as http:
                assert (await http.get(str(office.record["environment_card_url"]))).json()["name"] == "office"

    run(body())


@pytest.mark.parametrize("innermost", [True, False])
def test_a_gateway_that_was_killed_is_started_again_by_whoever_needs_it_and_knows_what_it_knew(office: Deployed, innermost: bool) -> None:
    async def body() -> None:
        async with office.found() as (world, live):
            await live.control.invoke("urn:agentenv:disable-tool/v1", {"role": "clerk", "tools": ["mail_take"]})
            before = await live.life()
            kill(office.record["container_id"], innermost=innermost)
            now = await poll(lambda: changed(live, before), within_seconds=60, what="another life of the gateway")
            assert {name: each for name, each in now.started.items() if name != "gateway"} == {
                name: each for name, each in before.started.items() if name != "gateway"
            }
            assert now.ended == {}
            assert "mail_take" not in await listed(await live.agent_access("clerk", view=View.PROCESS))
            async with httpx.AsyncClient() as http:
                assert (await http.get(str(office.record["environment_card_url"]))).json()["name"] == "office"
            assert any("starting gateway again" in said for said in world.said) is not innermost

    run(body())


def test_a_gateway_that_ends_just_when_a_new_keeper_is_asked_to_carry_for_it_is_started_again(
    office: Deployed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The keeper hears of the end before whoever looked at the gateway a moment ago."""

    async def body() -> None:
        async with office.found() as (world, live):
            before = await lives(live)
            making, met = world.makings[-1], 0
            ask = making.relay

            async def relay(sandbox_id: str, place: Place, name: str, ports: Mapping[int, int]) -> None:
                nonlocal met
                met += 1
                if met == 1:
                    keeper = recorded_owner(office.root)
                    assert keeper is not None
                    os.kill(keeper.pid, signal.SIGKILL)
                    ended(office.record["container_id"])
                await ask(sandbox_id, place, name, ports)

            monkeypatch.setattr(making, "relay", relay)
            now = await lives(live)
            assert now.ended == {}
            assert now.started["gateway"] != before.started["gateway"]
            assert any("starting gateway again" in said for said in world.said)
            async with httpx.AsyncClient() as http:
                assert (await http.get(str(office.record["environment_card_url"]))).json()["name"] == "office"

    run(body())


async def lives(live: LiveEnvironment) -> Life:
    assert isinstance(live, TellsLife)
    return await live.life()


async def changed(live: LiveEnvironment, before: Life) -> Life | None:
    now = await lives(live)
    return now if now.started != before.started else None


def test_the_address_of_the_whole_outlives_a_kill_of_what_carries_it(office: Deployed) -> None:
    async def body() -> None:
        async with office.found():
            keeper = recorded_owner(office.root)
            assert keeper is not None
            os.kill(keeper.pid, signal.SIGKILL)
            async with httpx.AsyncClient() as http:

                async def answers() -> str | None:
                    try:
                        return str((await http.get(str(office.record["environment_card_url"]))).json()["name"])
                    except httpx.TransportError:
                        return None

                assert await poll(answers, within_seconds=60, what="the control door") == "office"

    run(body())


def test_one_dead_server_leaves_the_others_and_is_told_by_its_log(office: Deployed) -> None:
    """And is whole again for whoever comes next, in whatever order."""

    async def body() -> None:
        async with office.found() as (_, live):
            crm = (await live.place("crm")).id
            with pytest.raises(AgentEnvError):
                await live.client("crm").call("crm_die")
            with pytest.raises(ContainerNotRunningError, match="exited with code 7"):
                await (await live.place("crm")).ledger()
            result = await live.control.call("mail_count", {"sku": "a"})
            assert result["isError"] is False
            assert list((await live.life()).ended) == ["crm"]
            await asyncio.to_thread(restart, crm)

            async def whole() -> bool | None:
                try:
                    return (not (await live.life()).ended and bool(await live.client("crm").tools())) or None
                except AgentEnvError:
                    return None

            await poll(whole, within_seconds=60, what="the server that was started again")

    run(body())

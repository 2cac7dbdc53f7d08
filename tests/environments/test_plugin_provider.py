"""Environments of a provider that a package brings: found by its entry point, written against the contract alone."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_env.documents.records import DeployedEnvironment
from agent_env.environments.deploy import attach, deploy, problems
from agent_env.environments.registry import environment_provider, provider_types
from agent_env.errors import AgentEnvError, ConfigError, InfrastructureError, PlacementError, UnsupportedError, UserError
from agent_env.places import Command, View
from tests.environments.bench import HERE, Deployed, held, items, plan, run, standing, world
from tests.environments.test_lone_server import FETCH


@pytest.fixture(scope="module", autouse=True)
def package() -> Iterator[None]:
    """The package as if it were installed."""
    folder = str(HERE / "plugins")
    sys.path.insert(0, folder)
    environment_provider.cache_clear()
    try:
        yield
    finally:
        sys.path.remove(folder)
        environment_provider.cache_clear()


@pytest.fixture(scope="module")
def stall(package: None, python_base: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployed]:
    """An environment of that provider."""
    with standing(tmp_path_factory.mktemp("stall") / "state", plan("tickets", provider="stall")) as made:
        yield made


def test_it_is_found_by_its_entry_point_beside_the_built_in_ones() -> None:
    assert {"gateway", "server", "stall"} <= set(provider_types())
    assert environment_provider("stall").type == "stall"


@pytest.mark.parametrize(
    ("name", "error", "told"),
    [
        ("stal", UserError, "there is no provider of environments 'stal'"),
        ("stall_broken", UnsupportedError, "the stall is closed"),
        ("stall_misnamed", ConfigError, "its type is 'other'"),
    ],
)
def test_one_that_can_not_be_used_is_told_with_its_package(name: str, error: type[AgentEnvError], told: str) -> None:
    with pytest.raises(error, match=told):
        environment_provider(name)


def test_an_option_that_it_does_not_take_is_refused_before_anything_is_made() -> None:
    found = [str(problem) for problem in problems(plan("tickets", provider="stall", chosen={"gateway_mode": "consistent"}))]
    assert len(found) == 1
    assert "takes no option 'gateway_mode'" in found[0]
    assert not [*problems(plan("tickets", provider="stall", chosen={"memory_bytes": 1, "ttl_seconds": 60}))]


def test_c09_a_script_finds_card_and_mcp_endpoint_where_the_record_says(stall: Deployed) -> None:
    async def body() -> None:
        async with stall.found() as (_, live):
            url, mcp_url = live.script_urls()
            assert mcp_url == f"{url}/v2/mcp"
            machine = await live.machine()
            done = await machine.run(Command(["python3", "-c", FETCH, f"{url}/.well-known/agent-env.json"]))
            assert done.stdout.decode().split() == ["tickets"], done.stderr
            await live.client().load(items(a=1))
            assert held(await live.client("tickets").get()) == {"a": 1}
            assert len(await live.control.tools()) == 5
            assert (await live.agent_access("boss", view=View.PROCESS)).url == stall.record["mcp_url"]
            assert (await (await live.place()).run(Command(["hostname"]))).ok

    run(body())


def test_a_record_that_later_steps_could_not_use_is_refused(python_base: str, tmp_path: Path) -> None:
    async def body() -> None:
        async with world(tmp_path / "state") as here:
            with pytest.raises(InfrastructureError, match=r"its record can't be used.*no card of 'tickets'"):
                await deploy(plan("tickets", provider="stall_vague"), here.making())

    run(body())


def test_c02_a_record_from_before_cards_has_its_stored_endpoint_and_no_address(tmp_path: Path) -> None:
    old = DeployedEnvironment.read({"env_id": "old", "env_version": 1, "mcp_url": "http://10.0.0.9:18765/mcp", "mcp_server_name": "old"})

    async def body() -> None:
        async with world(tmp_path / "state") as here:
            live = await attach(old, here.making())
            assert live.script_urls() == (None, "http://10.0.0.9:18765/mcp")
            assert (await live.agent_access("boss", view=View.PROCESS)).headers == {"AgentEnv-Role": "boss"}
            with pytest.raises(PlacementError, match="without a sandbox"):
                await live.machine()
            with pytest.raises(PlacementError, match="has no place"):
                await live.place()

    run(body())


def test_a_gateway_record_from_elsewhere_finds_each_server_under_the_gateway(tmp_path: Path) -> None:
    children = [{"name": "mail", "url": "/svc/mcp-mail/agentenv"}, {"name": "crm", "url": "/svc/mcp-crm/agentenv"}]
    there = DeployedEnvironment.read(
        {
            "env_id": "office",
            "env_version": 1,
            "env_provider_type": "gateway",
            "environment_card_url": "https://t.example/sandbox/7/.well-known/agent-env.json",
            "environment_card": {"name": "office", "children_environments": children},
            "gateway_url": "https://t.example/sandbox/7",
        }
    )

    async def body() -> None:
        async with world(tmp_path / "state") as here:
            live = await attach(there, here.making())
            assert sorted(live.parts) == ["crm", "mail"]
            assert live.has_gateway
            assert live.client("mail").base_url == "https://t.example/sandbox/7/svc/mcp-mail"
            assert live.control.base_url == "https://t.example/sandbox/7"
            assert await live.control.mcp_url() == "https://t.example/sandbox/7/mcp"
            with pytest.raises(PlacementError, match="did you mean 'mail'"):
                live.client("mial")

    run(body())

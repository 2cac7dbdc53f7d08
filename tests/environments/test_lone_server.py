"""One server alone, beside a machine of the local provider: deployed, found again, reached from everywhere, and gone when it is done."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from agent_env.config import Config
from agent_env.documents.records import DeployedEnvironment
from agent_env.environments.deploy import deploy
from agent_env.environments.faults import EnvironmentFailedError
from agent_env.environments.readiness import card_of
from agent_env.errors import AgentEnvError, ContainerNotRunningError, PlacementError, ProblemsError
from agent_env.places import Command, View
from tests.engine import parts
from tests.environments.bench import Deployed, held, items, plan, run, standing, stock_with, world
from tests.environments.beside import labelled, restart, shown

WORD = "a-word-that-nobody-can-derive"
FETCH = """
import json, sys, urllib.request
for url in sys.argv[1:]:
    with urllib.request.urlopen(url, timeout=60) as answer:
        print(json.load(answer)["name"])
"""


@pytest.fixture(scope="module")
def lone(python_base: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployed]:
    """A lone server with some data in it."""
    wanted = plan("tickets", chosen={"secrets": {"STOCK_WORD": WORD}})
    with standing(tmp_path_factory.mktemp("lone") / "state", wanted) as made:
        yield made


def test_its_record_is_that_of_a_sandbox_environment(lone: Deployed) -> None:
    record = DeployedEnvironment.read(lone.record)
    assert record.shape == "sandbox"
    assert record.env_provider_type == "server"
    assert record.instance_id is not None
    assert record.instance_id.startswith("tickets-")
    assert record.sandbox_ids == {"mcp_server": {"tickets": record.sandbox_id}}
    assert record.mcp_url == record.server_url == f"{record.environment_url}/mcp"
    assert record.environment_card is not None
    assert record.environment_card["x-unknown"] == {"kept": True}
    assert record.deploy_step_id == "env"
    assert "gateway_url" not in lone.record


def test_c05_a_reopened_one_gives_the_same_answers_as_the_live_one(lone: Deployed) -> None:
    async def body() -> None:
        async with lone.found() as (_, live):
            await live.client().load(items(a=1))
            first = (live.script_urls(), (await live.place()).id, live.endpoint("tickets").seen_from(View.MACHINE))
        async with lone.found() as (_, again):
            assert ((again.script_urls()), (await again.place()).id, again.endpoint("tickets").seen_from(View.MACHINE)) == first
            assert held(await again.client().get()) == {"a": 1}

    run(body())


def test_c06_a_script_reaches_it_at_its_address_and_at_the_well_known_one(lone: Deployed) -> None:
    async def body() -> None:
        async with lone.found() as (_, live):
            url, mcp_url = live.script_urls()
            machine = await live.machine()
            asked = [f"{base}/.well-known/agent-env.json" for base in (url, "http://127.0.0.1:18765")]
            done = await machine.run(Command(["python3", "-c", FETCH, *asked]))
            assert done.stdout.decode().split() == ["tickets", "tickets"], done.stderr
            assert mcp_url == f"{url}/mcp"

    run(body())


def test_c06_this_machines_own_well_known_port_stays_free(lone: Deployed) -> None:
    with pytest.raises(httpx.ConnectError):
        httpx.get("http://127.0.0.1:18765/.well-known/agent-env.json", timeout=5)
    assert 20000 <= int(str(lone.record["environment_card_url"]).split(":")[2].split("/")[0]) < 30000


def test_an_agent_joins_its_network_and_finds_it_by_name(lone: Deployed) -> None:
    async def body() -> None:
        async with lone.found() as (_, live):
            access = await live.agent_access("boss")
            assert access.url == "http://tickets:18765/mcp"
            assert access.headers == {"AgentEnv-Role": "boss"}
            assert access.name == "tickets"
            assert access.network
            near = await live.agent_access(view=View.PROCESS)
            assert near.url == lone.record["mcp_url"]
            assert near.headers == {}

    run(body())


def test_a_part_that_it_does_not_have_is_named_with_those_that_it_has(lone: Deployed) -> None:
    async def body() -> None:
        async with lone.found() as (_, live):
            with pytest.raises(PlacementError, match=r"has no server 'ticket'; it has tickets.*did you mean"):
                live.client("ticket")

    run(body())


@pytest.mark.parametrize(
    ("variables", "error", "told"),
    [
        ({"STOCK_NAME": "other"}, EnvironmentFailedError, "has a card named 'other'"),
        ({"STOCK_BROKEN": "1"}, ContainerNotRunningError, "the shelf is broken"),
    ],
)
def test_a_server_that_is_not_what_its_document_says_leaves_nothing(
    python_base: str, tmp_path: Path, variables: dict[str, str], error: type[AgentEnvError], told: str
) -> None:
    image = stock_with(tmp_path / "image", "stock-broken", **variables)

    async def body() -> list[str]:
        async with world(tmp_path / "state") as here:
            making = here.making()
            with pytest.raises(error, match=told):
                await deploy(plan("tickets", images={"tickets": image}), making)
            return list(making.made)

    (made,) = run(body())
    assert labelled(f"agentenv.sandbox={made}") == {"containers": [], "networks": [], "volumes": []}


def test_a_multi_is_not_for_the_lone_server_and_nothing_is_made_to_find_out(tmp_path: Path) -> None:
    async def body() -> None:
        async with world(tmp_path / "state") as here:
            making = here.making()
            with pytest.raises(ProblemsError, match="deploys one mcp_server"):
                await deploy(plan("a", "b"), making)
            assert making.made == []

    run(body())


def test_c05_c06_where_a_container_plays_the_machine_the_addresses_work_inside_it(
    python_base: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = parts.config_at
    provider = {"config": {"isolation": "container", "machine_image": python_base}}

    def in_container(root: Path, **limits: object) -> Config:
        config = plain(root, **limits)
        return replace(config, values={**config.values, "sandbox.providers.local": provider})

    monkeypatch.setattr(parts, "config_at", in_container)
    with standing(tmp_path / "state", plan("tickets")) as made:

        async def body() -> None:
            async with made.found() as (_, live):
                url, _ = live.script_urls()
                asked = [f"{base}/.well-known/agent-env.json" for base in (url, "http://127.0.0.1:18765")]
                machine = await live.machine()
                done = await machine.run(Command(["python3", "-c", FETCH, *asked]))
                assert done.stdout.decode().split() == ["tickets", "tickets"], done.stderr
                assert (await live.place()).id != machine.id

        run(body())


def test_c05_one_that_was_started_again_is_where_it_was(lone: Deployed) -> None:
    restart(lone.record["container_id"])

    async def body() -> None:
        async with lone.found() as (_, live):
            card = await card_of(live.client(), place=await live.place(), seconds=60)
            assert card["name"] == "tickets"
            url, _ = live.script_urls()
            done = await (await live.machine()).run(Command(["python3", "-c", FETCH, f"{url}/.well-known/agent-env.json"]))
            assert done.stdout.decode().split() == ["tickets"], done.stderr
            async with live.client().request("GET", "/environ") as answer:  # what it was told in confidence it was told again
                assert json.loads(await answer.aread())["STOCK_WORD"] == WORD
        assert WORD not in json.dumps(lone.record) + shown([lone.record["container_id"]])

    run(body())


def test_a_dead_server_is_told_by_its_container_and_its_log(lone: Deployed) -> None:
    """Last of the module: it ends the server."""

    async def body() -> None:
        async with lone.found() as (_, live):
            with pytest.raises(AgentEnvError):
                await live.client().call("tickets_die")
            with pytest.raises(ContainerNotRunningError, match=r"exited with code 7.*stock tickets serves"):
                await (await live.place()).ledger()

    run(body())

"""A website beside a server of its name: one data, two faces, and one address."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_env.environments.contract import WebsitePlan
from agent_env.environments.load import load_seeds
from agent_env.images import BuildContext, BuildRequest, ImageReference
from agent_env.places import Command, View
from tests.environments.bench import Deployed, held, plan, run, standing, stock_with
from tests.environments.test_loading import seed


def pages(folder: Path) -> BuildRequest:
    """A frontend that is nothing but pages."""
    folder.mkdir()
    (folder / "index.html").write_text("<h1>the shop</h1>")
    lines = ["FROM python:3.12-slim", "COPY index.html /pages/index.html"]
    (folder / "Dockerfile").write_text("\n".join([*lines, 'CMD ["python", "-m", "http.server", "80", "--directory", "/pages"]', ""]))
    return BuildRequest(BuildContext.of(folder), ImageReference.parse("agentenv-test/pages:1"))


@pytest.fixture(scope="module")
def shop(python_base: str, postgres_image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployed]:
    """A server, a website of its name, and one of its own."""
    folder = tmp_path_factory.mktemp("shop")
    backend, frontend = stock_with(folder / "backend", "backend"), pages(folder / "pages")
    sites = [WebsitePlan(name, backend, frontend) for name in ("tickets", "shop")]
    wanted = plan("tickets", provider="gateway", env_id="office", kind="multi", name="office", websites=tuple(sites))
    with standing(folder / "state", wanted) as made:
        yield made


def test_its_pages_are_under_the_gateways_address_for_whoever_may(shop: Deployed) -> None:
    urls = shop.record["website_frontend_urls"]
    assert urls == {name: f"{shop.record['gateway_url']}/website/{name}/" for name in ("tickets", "shop")}

    async def body() -> None:
        async with shop.found() as (_, live):
            fetch = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1], timeout=30).read().decode())"
            done = await (await live.machine()).run(Command(["python3", "-c", fetch, urls["shop"]]))
            assert "the shop" in done.stdout.decode(), done.stderr
            tools = [tool["name"] for tool in await live.control.tools()]
            assert "list_website_urls" in tools

    run(body())


def test_a_website_is_a_part_beside_the_server_of_its_name(shop: Deployed) -> None:
    async def body() -> None:
        async with shop.found() as (_, live):
            assert {key: part.kind for key, part in live.parts.items()} == {
                "tickets": "mcp_server",
                "tickets-website": "website",
                "shop": "website",
            }
            async with live.client("shop").request("GET", "/environ") as answer:
                told = json.loads(await answer.aread())
            assert (told["PORT"], told["ENVIRONMENT_NAME"]) == ("8000", "shop")
            assert told["DATABASE_URL"].startswith("postgresql://shop:")
            assert (await live.agent_access("boss", view=View.PROCESS)).name == "office"

    run(body())


def test_loads_for_a_shared_name_go_to_the_server(shop: Deployed, tmp_path: Path) -> None:
    async def body() -> None:
        async with shop.found() as (here, live):
            report = await load_seeds(live, [seed(tmp_path, "tickets", a=1), seed(tmp_path, "shop", b=2)], tell=here.said.append)
            assert report.loaded == ("tickets", "shop")
            holds = {key: held(await live.client(key).get()) for key in live.parts}
            assert holds == {"tickets": {"a": 1}, "tickets-website": {}, "shop": {"b": 2}}
            staged = await (await live.place("shop")).run(Command(["cat", "/tmp/data/seed data.json"]))
            assert json.loads(staged.stdout)["items"] == [{"sku": "b", "qty": 2}]

    run(body())

"""Seed data goes into every server of an environment or into none."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from agent_env.environments.contract import LiveEnvironment
from agent_env.environments.faults import EnvironmentFailedError
from agent_env.environments.load import load_seeds
from agent_env.environments.transfers import Seed, legacy_state, save_part
from agent_env.errors import PlacementError
from agent_env.places import Command
from tests.environments.bench import Deployed, held, items, plan, run, standing, stock_with


@pytest.fixture(scope="module")
def pair(python_base: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployed]:
    """Two servers behind a gateway."""
    with standing(tmp_path_factory.mktemp("pair") / "state", plan("tickets", "mail", provider="gateway", env_id="pair")) as made:
        yield made


def seed(folder: Path, name: str, filename: str = "seed data.json", **quantities: int) -> Seed:
    """A file of the stock-room's data."""
    path = folder / f"{name}.json"
    path.write_text(json.dumps({"items": [{"sku": sku, "qty": qty} for sku, qty in quantities.items()]}))
    return Seed(name, filename, path)


async def holds(live: LiveEnvironment) -> dict[str, dict[str, int]]:
    return {name: held(await live.client(name).get()) for name in live.parts}


def test_all_servers_hold_their_data_and_nothing_else(pair: Deployed, tmp_path: Path) -> None:
    async def body() -> None:
        async with pair.found() as (here, live):
            await live.client("tickets").load(items(old=1))
            done: list[str] = []
            seeds = [seed(tmp_path, "tickets", a=1, b=2), seed(tmp_path, "mail", c=3)]
            report = await load_seeds(live, seeds, tell=here.said.append, loaded=done.append)
            assert report.loaded == ("tickets", "mail")
            assert sorted(done) == ["mail", "tickets"]
            assert await holds(live) == {"tickets": {"a": 1, "b": 2}, "mail": {"c": 3}}
            staged = await (await live.place("mail")).run(Command(["cat", "/data/seed data.json"]))
            assert json.loads(staged.stdout) == {"items": [{"sku": "c", "qty": 3}]}
            elsewhere = await (await live.machine()).run(Command(["test", "-e", "/data"]))
            assert elsewhere.exit_code == 1

    run(body())


def test_when_one_fails_every_server_holds_what_it_held_before(pair: Deployed, tmp_path: Path) -> None:
    async def body() -> None:
        async with pair.found() as (here, live):
            await live.client("tickets").load(items(before=1))
            await live.client("mail").load(items(before=2))
            await live.client("mail").invoke("urn:agentenv:set-failures/v1", {"add": 1})
            seeds = [seed(tmp_path, "tickets", a=1), seed(tmp_path, "mail", c=3)]
            with pytest.raises(EnvironmentFailedError, match=r"mail: data/add of mail failed: the shelf broke.*hold again") as told:
                await load_seeds(live, seeds, tell=here.said.append)
            assert told.value.applied == "no"
            assert await holds(live) == {"tickets": {"before": 1}, "mail": {"before": 2}}

    run(body())


def test_a_state_that_could_not_be_put_back_is_told(pair: Deployed, tmp_path: Path) -> None:
    async def body() -> None:
        async with pair.found() as (here, live):
            await live.client("mail").load(items(before=2))
            await live.client("mail").invoke("urn:agentenv:set-failures/v1", {"add": 2})
            with pytest.raises(EnvironmentFailedError, match="is lost: mail") as told:
                await load_seeds(live, [seed(tmp_path, "mail", c=3)], tell=here.said.append)
            assert told.value.applied == "unknown"

    run(body())


def test_data_for_a_server_that_is_not_there_is_left_out_and_said_so(pair: Deployed, tmp_path: Path) -> None:
    async def body() -> None:
        async with pair.found() as (here, live):
            seeds = [seed(tmp_path, "calendar", x=1), seed(tmp_path, "mail", c=4)]
            report = await load_seeds(live, seeds, tell=here.said.append)
            assert (report.loaded, report.skipped) == (("mail",), ("calendar",))
            assert any("calendar" in line for line in here.said)

    run(body())


def test_data_that_is_for_another_than_the_only_server_is_an_error(python_base: str, tmp_path: Path) -> None:
    with standing(tmp_path / "state", plan("tickets")) as lone:

        async def body() -> None:
            async with lone.found() as (here, live):
                with pytest.raises(PlacementError, match="has one server, 'tickets', and the data is for mail"):
                    await load_seeds(live, [seed(tmp_path, "mail", c=4)], tell=here.said.append)
                report = await load_seeds(live, [seed(tmp_path, "tickets", c=4)], tell=here.said.append)
                assert report.loaded == ("tickets",)
                assert held(await live.client().get()) == {"c": 4}

        run(body())


def test_exports_become_files_whatever_form_they_have(pair: Deployed, tmp_path: Path) -> None:
    async def body() -> None:
        async with pair.found() as (_, live):
            mail = live.client("mail")
            data = await save_part(mail, {"kind": "data", "data": {"ü": 1}}, tmp_path, name="one")
            assert json.loads(data.path.read_text()) == {"ü": 1}
            inline = {"kind": "file", "file": {"bytes": "AAEC", "name": "../up.bin", "mimeType": "application/x-thing"}}
            saved = await save_part(mail, inline, tmp_path, name="two")
            assert (saved.path.read_bytes(), saved.path.parent, saved.name) == (b"\x00\x01\x02", tmp_path, "up.bin")
            own = await save_part(mail, {"kind": "file", "file": {"uri": "environ", "name": "e.json"}}, tmp_path, name="three")
            assert json.loads(own.path.read_text())["ENVIRONMENT_NAME"] == "mail"
            marked = {"kind": "file", "file": {"uri": "x/y"}, "metadata": {"urn:agentenv:data-objects/v1": {"path": "x/y"}}}
            assert (await save_part(mail, marked, tmp_path, name="four")).object_url == "x/y"
            for uri in ("s3://bucket/key", "file:///etc/passwd", "gs://b/k"):
                with pytest.raises(EnvironmentFailedError, match="where nobody may look"):
                    await save_part(mail, {"kind": "file", "file": {"uri": uri}}, tmp_path, name="five")
            for host in ("127.0.0.1:1", "localhost:1", "169.254.169.254", "[::1]:1", "[::ffff:127.0.0.1]:1"):
                with pytest.raises(EnvironmentFailedError, match="must not be fetched: it is an address of this machine"):
                    await save_part(mail, {"kind": "file", "file": {"uri": f"http://{host}/x?key=1"}}, tmp_path, name="five")
            mail.limits = replace(mail.limits, download_bytes=9)
            with pytest.raises(EnvironmentFailedError, match="is larger than 9 bytes"):
                await save_part(mail, {"kind": "file", "file": {"uri": "environ", "name": "e.json"}}, tmp_path, name="five")
            for path in ("../x", "/x", "a//b", "a\\b"):
                marked = {"kind": "file", "file": {"uri": path}, "metadata": {"urn:agentenv:data-objects/v1": {"path": path}}}
                with pytest.raises(EnvironmentFailedError, match="no plain path"):
                    await save_part(mail, marked, tmp_path, name="six")

    run(body())


def test_a_server_from_before_cards_deploys_loads_and_exports_too(python_base: str, tmp_path: Path) -> None:
    image = stock_with(tmp_path / "image", "stock-old", STOCK_CARDLESS="1")
    wanted = plan("old", "new", provider="gateway", env_id="pair", images={"old": image})
    with standing(tmp_path / "state", wanted) as made:

        async def body() -> None:
            async with made.found() as (here, live):
                assert [child["name"] for child in (live.record.environment_card or {})["children_environments"]] == ["new"]
                report = await load_seeds(live, [seed(tmp_path, "old", a=7), seed(tmp_path, "new", b=8)], tell=here.said.append)
                assert report.loaded == ("old", "new")
                counted = await live.control.call("old_count", {"sku": "a"})
                assert counted["content"][0]["text"] == "7"
                exported = await legacy_state(live.client("old"), tmp_path, name="old-state")
                assert json.loads(exported.path.read_text())["items"] == [{"sku": "a", "qty": 7}]

        run(body())

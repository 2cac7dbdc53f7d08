"""Published ports: nobody shares one, one that is taken is replaced, its address is the one that is bound, and ready means answered."""

from __future__ import annotations

import asyncio
import json
import os
import random
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import ProxyHandler, build_opener

import pytest

from agent_env.containers import EngineEndpoint, labelled, reduced
from agent_env.places import Command
from agent_env.stores.installation import home_of
from tests.acceptance.boxes import box_image
from tests.acceptance.conftest import BOX, Home, check, clean_up, ended, eventually
from tests.acceptance.containers import asked, in_engine, inspected
from tests.acceptance.meddling import Fate, Request, meddler
from tests.container_engine import bench
from tests.sandboxes.people import spec, world

__all__ = ["box_image"]

SERVED = 8000
FETCH = build_opener(ProxyHandler({})).open


@pytest.fixture(autouse=True)
def _nothing_left(home: Home, docker: EngineEndpoint) -> Iterator[None]:
    home.env["AGENT_ENV_LIMIT_KEEPER_IDLE_SECONDS"] = "0.2"
    yield
    collected = home("gc", "--kept")
    left = in_engine(docker, home)
    if left:
        clean_up(home)
    assert (collected.code, left) == (0, []), collected.all


def deploy(image: str, number: int = 0, **fields: Any) -> dict[str, Any]:
    mode = {"sandbox_mode": "container", "image": image, "port": SERVED}
    return {"id": f"box{number}", "type": "deploy_sandbox", "sandbox_name": f"box{number}", **mode, **fields}


async def _at_once(count: int) -> list[int]:
    """The ports of so many machine places that were made at the same time."""
    with world("root" if os.geteuid() == 0 else "user without bubblewrap") as own:
        provider = own.provider()
        names = [f"local-many{number}" for number in range(count)]
        try:
            # As many as one command has at work; each of the others begins when one of them is done.
            gate = asyncio.Semaphore(32)

            async def one(name: str) -> int:
                async with gate:
                    sandbox = await provider.create(spec(name, ports=(SERVED,), memory_bytes=64 << 20, processes=8))
                    await sandbox.aclose()
                    return int(sandbox.published.host_ports[SERVED])

            return await asyncio.gather(*(one(name) for name in names))
        finally:
            await asyncio.gather(*(provider.destroy(name) for name in names))
            await provider.aclose()
            assert own.left() == []


def test_f23_of_two_hundred_machines_that_begin_at_once_no_two_have_one_port() -> None:
    ports = asyncio.run(_at_once(200))
    assert len(set(ports)) == 200
    assert {20000 <= port <= 29999 for port in ports} == {True}


async def _containers_at_once(docker: EngineEndpoint, image: str, count: int) -> list[int]:
    async with bench(docker, image) as here:
        gate = asyncio.Semaphore(16)

        async def one() -> int:
            async with gate:
                return (await here.deploy(network="bridge", ports=[SERVED])).ports[SERVED]

        ports = await asyncio.gather(*(one() for _ in range(count)))
        bound = [
            int((await client_ports(here.engine, each.id))[f"{SERVED}/tcp"][0]["HostPort"])
            for each in await labelled(here.engine, here.labels)
            if each.kind == "container"
        ]
        assert sorted(bound) == sorted(ports)
        return list(ports)


async def client_ports(engine: Any, container_id: str) -> Any:
    async with engine.asking("looking") as client:
        return (await client._query_json(f"containers/{container_id}/json"))["NetworkSettings"]["Ports"]


def test_f23_po01_containers_that_begin_at_once_have_ports_of_their_own(docker: EngineEndpoint, box_image: str) -> None:
    assert len(set(asyncio.run(_containers_at_once(docker, box_image, 24)))) == 24


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_f23_po01_two_hundred_containers_that_begin_at_once_have_ports_of_their_own(docker: EngineEndpoint, box_image: str) -> None:
    assert len(set(asyncio.run(_containers_at_once(docker, box_image, 200)))) == 200


class Thief:
    """Binds the port that a container is about to be published on, between the choice and the start."""

    def __init__(self, chance: random.Random, *, of_three: int) -> None:
        self.stolen: dict[int, socket.socket] = {}
        self._chance = chance
        self._of_three = of_three

    def __call__(self, request: Request) -> Fate:
        if request.method == "POST" and "/containers/create" in request.path and self._chance.randrange(3) < self._of_three:
            for bound in (json.loads(request.body).get("HostConfig", {}).get("PortBindings") or {}).values():
                self._take(int(bound[0]["HostPort"]))
        return Fate.PASSED

    def _take(self, port: int) -> None:
        taken = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            taken.bind(("127.0.0.1", port))
            taken.listen()
        except OSError:  # somebody was quicker
            taken.close()
        else:
            self.stolen[port] = taken

    def give_back(self) -> None:
        for each in self.stolen.values():
            each.close()


def test_po04_ports_that_are_taken_between_choice_and_start_cost_nobody_his_sandbox(
    home: Home, docker: EngineEndpoint, box_image: str, tmp_path: Path, chance: random.Random
) -> None:
    thief = Thief(chance, of_three=1)
    folders = [home.bundle(f"b{at}", **{f"t{n}": [deploy(box_image)] for n in range(5)}) for at in range(4)]
    try:
        with meddler(docker, tmp_path, thief) as between:
            home.env["DOCKER_HOST"] = between.endpoint.url
            started = [home.start("run", folder, "--keep", "--json") for folder in folders]
            answers = [ended(each) for each in started]
            assert [answer.code for answer in answers] == [0] * 4, "\n".join(answer.all for answer in answers)
            assert thief.stolen, "no port was taken, so nothing was shown"
            mine = [
                each for each in asked(docker, lambda e: labelled(e, {"agentenv.home": home_of(home.state)})) if each.kind == "container"
            ]
            assert (len(mine), {each.state for each in mine}) == (20, {"running"})
            bound = {each.id: inspected(docker, each.id)["NetworkSettings"]["Ports"][f"{SERVED}/tcp"][0]["HostPort"] for each in mine}
            assert len(set(bound.values())) == 20
            assert not {int(port) for port in bound.values()} & thief.stolen.keys()
            for answer in answers:
                (record,) = home.context(answer.json["runs"][0]["run_id"])["deployed_sandboxes"]
                assert record["tunnel_urls"][str(SERVED)] == f"http://127.0.0.1:{bound[record['container_id']]}"
            assert home("gc", "--kept").code == 0
    finally:
        thief.give_back()


# `localhost` as machines have it on which IPv6 comes first: a resolver that knows the name by its IPv6 address alone.
SIX_FIRST = """
import socket
_asked = socket.getaddrinfo

def getaddrinfo(host, *more, **named):
    return _asked("::1" if host in ("localhost", b"localhost") else host, *more, **named)

socket.getaddrinfo = getaddrinfo
"""


@pytest.mark.parametrize("where", ["bridge", "no network", "machine"])
def test_po05_an_address_that_is_handed_out_is_the_one_that_is_bound_whatever_localhost_means(
    where: str, home: Home, docker: EngineEndpoint, box_image: str
) -> None:
    home.write("six/sitecustomize.py", SIX_FIRST)
    home.env["PYTHONPATH"] = str(home.cwd / "six")
    if where == "machine":
        serve = check("cd /usr && (python3 -m http.server -b 0.0.0.0 8000 >/dev/null 2>&1 &)")
        box: dict[str, Any] = {**BOX, "exposed_ports": [SERVED]}
        steps = [box, serve]
    else:
        steps = [deploy(box_image, **({"network_policy": {"mode": "none"}} if where == "no network" else {}))]
        steps.append({**check("httpd -p 8000 -h /srv"), "sandbox_name": "box0", "base_dir": "/"})
    answer = home("run", home.bundle(t=steps), "--keep", "--json")
    assert answer.code == 0, answer.all
    run_id = answer.json["runs"][0]["run_id"]
    (record,) = home.context(run_id)["deployed_sandboxes"]
    url = record["tunnel_urls"][str(SERVED)]
    parts = urlsplit(url)
    assert (parts.hostname, parts.port in _bound_here()) == ("127.0.0.1", True)
    if where == "bridge":
        bound = inspected(docker, record["container_id"])["NetworkSettings"]["Ports"][f"{SERVED}/tcp"]
        assert {(each["HostIp"], int(each["HostPort"])) for each in bound} == {(parts.hostname, parts.port)}
    assert answered(f"{url}/{'inside' if where != 'machine' else ''}")
    assert "localhost" not in json.dumps(home.context(run_id))
    assert home("runs", "teardown", run_id).code == 0


def _bound_here() -> set[int]:
    """The ports that somebody listens on, on loopback by IPv4."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return {int(row[1].split(":")[1], 16) for row in rows if row[3] == "0A" and row[1].startswith("0100007F:")}


def answered(url: str) -> bool:
    """Waits for an answer of a URL."""

    def answer() -> bool:
        try:
            with FETCH(url, timeout=20) as said:
                return bool(said.read())
        except OSError:
            return False

    return bool(eventually(answer, f"an answer of {url}"))


# The engine's proxy takes connections from the start, and resets them while nobody listens behind it.
LATE = "until [ -e /go ]; do sleep 0.05; done; mkdir /w; echo ready > /w/index.html; exec httpd -f -p 8000 -h /w"
READY = """
python3 -c '
import pathlib, urllib.request
tries = pathlib.Path("/app/tries")
tries.write_text(tries.read_text() + "x" if tries.exists() else "x")
urllib.request.build_opener(urllib.request.ProxyHandler({})).open("http://127.0.0.1:8000/", timeout=5).read()
'
"""


def test_po02_ready_is_what_answers_and_not_what_takes_a_connection(home: Home, docker: EngineEndpoint, box_image: str) -> None:
    beside = {"id": "late", "type": "run_docker_container", "sandbox_name": "box", "container_name": "late", "image": box_image}
    fetch = "import urllib.request as u; [u.urlopen('http://127.0.0.1:8000/').read() for _ in range(100)]"
    first = check(f'python3 -c "{fetch}"', id="first")
    steps = [BOX, {**beside, "ports": [SERVED], "command_override": LATE, "ready_command": READY}, first]
    process = home.start("run", home.bundle(t=steps), "--keep", "--json")
    tries = eventually(lambda: next(iter(home.places.glob("*/app/tries")), None), "the first try")
    eventually(lambda: len(tries.read_text()) > 2, "more tries")
    run_id = home.runs()[0]["run_id"]
    assert "deployed_docker_containers" not in home.context(run_id)["metadata"], "it is said to be ready although nobody listens"
    (late,) = (each for each in asked(docker, lambda e: labelled(e, {"agentenv.home": home_of(home.state)})) if each.kind == "container")
    _touched(docker, late.id)
    answer = ended(process)
    assert (answer.code, answer.json["runs"][0]["scores"]) == (0, {"first": 1.0}), answer.all
    assert home("runs", "teardown", run_id).code == 0


def _touched(docker: EngineEndpoint, container_id: str) -> None:
    """Lets the server begin, by somebody else's hand."""

    async def touch(engine: Any) -> None:
        assert (await (await reduced(engine, container_id)).run(Command(["touch", "/go"], user="0:0"))).ok

    asked(docker, touch)


def test_po02_a_server_that_never_listens_is_told_at_the_limit_and_nothing_is_left(
    home: Home, docker: EngineEndpoint, box_image: str
) -> None:
    home.env["AGENT_ENV_LIMIT_CONTAINER_READY_SECONDS"] = "2"
    beside = {"id": "late", "type": "run_docker_container", "sandbox_name": "box", "container_name": "late", "image": box_image}
    steps = [BOX, {**beside, "ports": [SERVED], "command_override": LATE, "ready_command": READY}]
    answer = home("run", home.bundle(t=steps), "--json")
    (run,) = answer.json["runs"]
    assert (run["status"], run["scores"]) == ("failed", {})
    assert "was not ready within 2 s" in run["error"]["message"]
    assert in_engine(docker, home) == []

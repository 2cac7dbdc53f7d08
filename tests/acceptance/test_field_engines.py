"""Field cases about engines, as wide as they were reported: many calls at once, which engine is meant, and what one lacks."""

from __future__ import annotations

import asyncio
import json
import os
import socketserver
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from agent_env.containers import ContainerPlace, EngineEndpoint, reduced
from agent_env.errors import ContainerNotRunningError
from agent_env.places import Command, Place
from agent_env.sandboxes.local.examine import examine
from tests.acceptance.boxes import box_image
from tests.acceptance.conftest import Home
from tests.busy import within
from tests.container_engine import Bench, bench
from tests.sandboxes.people import World, act

__all__ = ["box_image"]

EXECS, CONTAINERS = 64, 8
"""Of the case."""


@pytest.mark.parametrize("by", ["helper", "engine"])
def test_cc01_commands_at_once_in_a_few_containers_wait_for_no_connection(docker: EngineEndpoint, box_image: str, by: str) -> None:
    async def body() -> None:
        async with bench(docker, box_image) as here:
            made = await asyncio.gather(*(here.deploy(network="none") for _ in range(CONTAINERS)))

            async def seen(place: ContainerPlace) -> Place:
                return place if by == "helper" else await reduced(here.engine, place.id)

            places = await asyncio.gather(*(seen(each) for each in made))
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                async with asyncio.timeout(within(10)):
                    sleep = Command(["sh", "-c", "sleep 1; echo done"])
                    done = await asyncio.gather(*(places[number % CONTAINERS].run(sleep) for number in range(EXECS)))
            assert [(each.exit_code, each.stdout) for each in done] == [(0, b"done\n")] * EXECS
            assert told == []

    asyncio.run(body())


@pytest.mark.slow
@pytest.mark.parametrize("by", ["helper", "engine"])
def test_cc01_a_command_that_says_nothing_for_more_than_a_minute_returns_its_result(
    docker: EngineEndpoint, box_image: str, by: str
) -> None:
    async def body() -> None:
        async with bench(docker, box_image) as here:
            made = await here.deploy(network="none")
            place: Place = made if by == "helper" else await reduced(here.engine, made.id)
            done = await place.run(Command(["sh", "-c", "sleep 70; echo done"]))
            assert (done.exit_code, done.stdout) == (0, b"done\n")

    asyncio.run(body())


def test_po01_one_that_ends_before_its_port_is_known_says_so_at_once_with_the_end_of_its_log(
    docker: EngineEndpoint, box_image: str
) -> None:
    async def body() -> None:
        async with bench(docker, box_image) as here:
            with pytest.raises(ContainerNotRunningError, match=r"exited with code 3(.|\n)*boom"):
                await asyncio.wait_for(asked_to_its_end(here), within(2))

    asyncio.run(body())


async def asked_to_its_end(here: Bench) -> None:
    place = await here.deploy(argv=("sh", "-c", "echo boom >&2; exit 3"), network="bridge", ports=[8080])
    while True:
        await place.ledger()


# which engine is meant


class FakeEngine(socketserver.ThreadingUnixStreamServer):
    """Answers like an engine that has nothing, and counts."""

    daemon_threads = True

    def __init__(self, path: Path, *, speaks: bool = True) -> None:
        self.calls: list[str] = []
        self.speaks = speaks
        super().__init__(str(path), _Answering)


class _Answering(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FakeEngine

    def do_GET(self) -> None:
        self.server.calls.append(self.path)
        if "version" in self.path:
            body: object = {"ApiVersion": "1.41", "Version": "20", "Os": "linux", "Arch": "amd64", "MinAPIVersion": "1.12"}
        elif "info" in self.path:
            body = {"OSType": "linux", "Architecture": "x86_64", "NCPU": 2, "MemTotal": 1 << 30, "Name": "fake", "Driver": "overlay2"}
        else:
            body = {"Volumes": []} if "volumes" in self.path else []
        data = b"OK" if "_ping" in self.path else json.dumps(body).encode()
        self.send_response(200 if self.server.speaks else 418)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def address_string(self) -> str:
        return "a unix socket"

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: the test counts."""


@contextmanager
def fake_engine(path: Path, *, speaks: bool = True) -> Iterator[FakeEngine]:
    with FakeEngine(path, speaks=speaks) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def named(home: Home, socket: Path) -> None:
    """An active context of the user's."""
    home.write("../home/.docker/config.json", {"currentContext": "other", "auths": {}})
    meta = {"Name": "other", "Endpoints": {"docker": {"Host": f"unix://{socket}", "SkipTLSVerify": False}}}
    home.write("../home/.docker/contexts/meta/d9298a10d1b0735837dc4bd85dac641b0f3cef27a47e5d53a54f2f3f5b2fcffa/meta.json", meta)


@pytest.mark.parametrize("variable", [True, False])
def test_se05_every_part_of_a_command_speaks_with_the_engine_that_is_meant_and_with_no_other(
    home: Home, tmp_path: Path, variable: bool
) -> None:
    with fake_engine(tmp_path / "context.sock") as of_context, fake_engine(tmp_path / "variable.sock") as of_variable:
        named(home, tmp_path / "context.sock")
        home.env["DOCKER_HOST"] = f"unix://{tmp_path}/variable.sock"
        if not variable:
            del home.env["DOCKER_HOST"]
        meant, other = (of_variable, of_context) if variable else (of_context, of_variable)
        listed, looked, collected = home("image", "list", "--json"), home("doctor", "--json"), home("gc")
        assert listed.code == collected.code == 0, listed.all + collected.all
        (found,) = [check for check in looked.json["checks"] if check["name"] == "container engine"]
        assert found["ok"], found
        assert any("images" in call for call in meant.calls)
        assert any("_ping" in call for call in meant.calls)
        assert other.calls == []


def test_se05_a_socket_that_nobody_listens_on_is_named_and_no_other_engine_takes_its_part(home: Home, tmp_path: Path) -> None:
    with fake_engine(tmp_path / "left.sock"), fake_engine(tmp_path / "context.sock") as other:
        named(home, tmp_path / "context.sock")
        os.link(tmp_path / "left.sock", tmp_path / "stale.sock")
    with fake_engine(tmp_path / "living.sock") as living:
        home.env["DOCKER_HOST"] = f"unix://{tmp_path}/stale.sock"
        pulled = home("image", "pull", "busybox:1")
        assert (pulled.code, "stale.sock" in pulled.err, "Traceback" in pulled.err) == (1, True, False), pulled.all
        assert living.calls == other.calls == []


# what one lacks


def test_im05_a_preflight_says_what_is_the_matter_with_each_engine(home: Home, tmp_path: Path) -> None:
    def looked(socket: str) -> tuple[bool, str]:
        home.env["DOCKER_HOST"] = f"unix://{tmp_path}/{socket}"
        (found,) = [check for check in home("doctor", "--json").json["checks"] if check["name"] == "container engine"]
        return found["ok"], f"{found['detail']} {found['hint']}"

    with fake_engine(tmp_path / "old.sock"), fake_engine(tmp_path / "odd.sock", speaks=False):
        assert looked("old.sock")[0], "an old engine, without buildx and compose, is one all the same"
        ok, said = looked("odd.sock")
        assert (ok, "odd.sock" in said, "no container engine" in said) == (False, True, True)
    ok, said = looked("down.sock")
    assert (ok, "down.sock" in said, "start a container engine" in said) == (False, True, True)


def test_im05_an_engine_that_does_not_let_this_user_in_is_told_as_that_with_the_way_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def looked(world: World) -> tuple[str, str]:
        (found,) = [each for each in await asyncio.to_thread(examine) if each.name == "container engine"]
        assert not found.ok
        return found.detail, found.hint

    with TemporaryDirectory() as folder, fake_engine(Path(folder) / "closed.sock") as engine:
        Path(folder).chmod(0o755)
        (Path(folder) / "closed.sock").chmod(0o600 if os.geteuid() == 0 else 0)
        monkeypatch.setenv("DOCKER_HOST", f"unix://{folder}/closed.sock")
        detail, hint = act("user without bubblewrap", looked)
        assert engine.calls == []
    assert ("closed.sock" in detail, "does not let this user in" in detail) == (True, True)
    assert "group that owns the socket" in hint


def test_im05_a_plain_build_asks_no_client_of_the_engine_s_own(home: Home, docker: EngineEndpoint, box_image: str) -> None:
    called = home.cwd / "called"
    for program in ("docker", "docker-buildx", "docker-compose", "buildctl", "podman"):
        path = home.write(f"bin/{program}", f"#!/bin/sh\necho {program} >> {called}\nexit 1\n")
        path.chmod(0o755)
    home.env |= {"PATH": f"{home.cwd / 'bin'}:{home.env['PATH']}", "DOCKER_HOST": docker.url}
    home.write("context/Dockerfile", f"FROM {box_image}\nRUN echo built > /built\n")
    built = home("image", "build", home.cwd / "context", "-q")
    assert built.code == 0, built.all
    assert not called.exists()
    assert home("image", "gc", "--all").code == 0

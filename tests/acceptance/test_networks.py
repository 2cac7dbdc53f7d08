"""Networks of tasks: none is left, however many tasks there are and however they end; and a policy holds from the first moment."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from agent_env.containers import EngineEndpoint
from tests.acceptance.boxes import box_image
from tests.acceptance.conftest import BOX, Home, check, clean_up, code
from tests.acceptance.containers import in_engine
from tests.acceptance.meddling import Answered, Fate, Request, meddler
from tests.container_engine import archive_of, busybox_root, ensure

__all__ = ["box_image"]


@pytest.fixture(autouse=True)
def _nothing_left(home: Home, docker: EngineEndpoint) -> Iterator[None]:
    home.env["AGENT_ENV_LIMIT_KEEPER_IDLE_SECONDS"] = "0.2"
    yield
    collected = home("gc", "--kept")
    left = in_engine(docker, home)
    if left:
        clean_up(home)
    assert (collected.code, left) == (0, []), collected.all


def networked(image: str, number: int) -> list[dict[str, Any]]:
    """A tiny task with a network of its own. Every third of them fails."""
    beside = {"id": "c", "type": "run_docker_container", "sandbox_name": "box", "container_name": "c", "image": image, "network": "own"}
    ending = {**check("true"), "container_name": "c", "base_dir": "/"}
    if number % 3 == 0:
        ending = {**beside, "id": "check", "container_name": "d", "image": "localhost:1/nobody/has:this"}
    return [BOX, beside, ending]


def many(home: Home, docker: EngineEndpoint, image: str, count: int, at_once: int) -> None:
    tasks = {f"t{number:02}": networked(image, number) for number in range(count)}
    answer = home("run", home.bundle(f"b{at_once}", **tasks), "--concurrency", str(at_once), "--json")
    ended = {run["task"]: run for run in answer.json["runs"]}
    assert len(ended) == count
    for number in range(count):
        run = ended[f"tasks/t{number:02}.json"]
        if number % 3 == 0:
            assert (run["status"], run["scores"], "nobody/has" in run["error"]["message"]) == ("failed", {}, True), run
        else:
            assert (run["status"], run["scores"]) == ("completed", {"check": 1.0}), run
    assert in_engine(docker, home) == []


def test_lc09_many_tasks_with_networks_of_which_some_fail_leave_none(home: Home, docker: EngineEndpoint, box_image: str) -> None:
    many(home, docker, box_image, 24, 8)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_lc09_forty_tasks_one_after_another_and_forty_at_once_leave_no_network(home: Home, docker: EngineEndpoint, box_image: str) -> None:
    many(home, docker, box_image, 40, 8)
    many(home, docker, box_image, 40, 1)


NO_RANGE = b'{"message": "Pool overlaps with other one on this address space"}'


def test_lc09_an_engine_without_a_free_address_range_is_told_with_the_cause_and_the_way_out(
    home: Home, docker: EngineEndpoint, box_image: str, tmp_path: Path
) -> None:
    def refuse(request: Request) -> Fate | Answered:
        own = request.path.endswith("/networks/create") and json.loads(request.body)["Labels"].get("agentenv.network") == "own"
        return Answered(403, NO_RANGE) if own else Fate.PASSED

    with meddler(docker, tmp_path, refuse) as between:
        home.env["DOCKER_HOST"] = between.endpoint.url
        answer = home("run", home.bundle(t=networked(box_image, 1)))
    assert answer.code == 1
    assert "no address range of ours is free" in answer.all
    assert "agent-env gc" in answer.all
    assert home.runs()[0]["scores"] == {}


# What an image does first of all, before anybody else has a word: it calls this machine.
CALLS = 'while :; do for at in host.docker.internal 172.17.0.1 $AT; do echo x | nc -w 1 "$at" "$PORT"; done; sleep 0.1; done'


@contextmanager
def listener() -> Iterator[tuple[int, list[str]]]:
    """A server of this machine on every address, and whoever came."""
    came: list[str] = []
    server = socket.create_server(("0.0.0.0", 0))

    def serve() -> None:
        with suppress(OSError):
            while True:
                link, address = server.accept()
                came.append(address[0])
                link.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield server.getsockname()[1], came
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        thread.join(10)


@pytest.fixture(scope="module")
def caller_image(docker: EngineEndpoint) -> str:
    """An image whose own command calls this machine from its first moment."""
    files = {**busybox_root(), "bin/bash": b'#!/bin/sh\nexec /bin/sh "$@"\n', "bin/calls": f"#!/bin/sh\n{CALLS}\n".encode()}
    return ensure(docker, "agentenv-test/caller:1", lambda: archive_of(files, modes={"tmp": 0o1777}), ['CMD ["/bin/calls"]'])


DENIED: tuple[dict[str, Any], ...] = ({"mode": "none"}, {"mode": "allowlist", "allow_hosts": ["example.org"]})


def test_np03_a_containers_policy_holds_from_the_first_moment_of_its_own_command(
    home: Home, docker: EngineEndpoint, caller_image: str
) -> None:
    with listener() as (port, came):
        variables = {"PORT": str(port), "AT": _own_address()}

        def deploy(name: str, **fields: Any) -> dict[str, Any]:
            mode = {"sandbox_mode": "container", "image": caller_image, "port": 8000, "env_vars": variables}
            return {"id": name, "type": "deploy_sandbox", "sandbox_name": name, **mode, **fields}

        def calls_a_while(name: str) -> dict[str, Any]:
            return {**check("sleep 1; pidof nc sleep", id=f"look-{name}"), "sandbox_name": name, "base_dir": "/"}

        steps = [deploy(f"closed{at}", network_policy=policy) for at, policy in enumerate(DENIED)]
        steps += [calls_a_while(f"closed{at}") for at in range(len(DENIED))]
        answer = home("run", home.bundle("closed", t=steps), "--json")
        assert answer.code == 0, answer.all
        assert came == []
        answer = home("run", home.bundle("open", t=[deploy("open"), calls_a_while("open")]), "--json")
        assert answer.code == 0, answer.all
        assert came, "nobody is reached even without a policy, so nothing was shown"


def _own_address() -> str:
    """The address that this machine would speak to the world from."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, suppress(OSError):
        probe.connect(("192.0.2.1", 9))  # reserved for documentation: nothing is sent
        return str(probe.getsockname()[0])
    return "127.0.0.1"


INSTALLS = """
import socket
def run(given):
    reached = []
    for at in given["args"]["addresses"]:
        try:
            socket.create_connection((at, given["args"]["port"]), 2).close()
            reached.append(at)
        except OSError:
            pass
    return reached
"""


def test_np03_each_machine_has_the_policy_of_its_own_step_whatever_one_before_it_had(home: Home, docker: EngineEndpoint) -> None:
    with listener() as (port, came):
        args = {"addresses": [_own_address(), "127.0.0.1", "10.0.2.2"], "port": port}

        def pair(name: str, policy: dict[str, Any]) -> list[dict[str, Any]]:
            box = {**BOX, "id": name, "sandbox_name": name, "network_policy": policy}
            return [box, {**code("installs", f"in-{name}", args=args), "sandbox_name": name}]

        steps = [*pair("open", {"mode": "allow_all"}), *pair("closed", {"mode": "none"}), *pair("listed", DENIED[1])]
        answer = home("run", home.bundle(scripts={"installs": INSTALLS}, t=steps), "--json", "--keep")
        assert answer.code == 0, answer.all
        found = home.context(answer.json["runs"][0]["run_id"])["metadata"]["script_results"]
        assert (found["in-closed"], found["in-listed"]) == ([], [])
        # Beyond a gateway somebody of the world outside may answer; if it led to our listener, that would have noticed.
        assert len(came) == len(set(found["in-open"]) - {"10.0.2.2"})


@pytest.mark.parametrize("policy", DENIED, ids=lambda policy: str(policy["mode"]))
def test_np03_a_policy_that_a_provider_can_not_hold_is_refused_and_never_ignored(policy: dict[str, Any], home: Home) -> None:
    refused = home("run", home.bundle(t=[{**BOX, "network_policy": policy}, check("true")]), "--unsafe-host", "--json")
    assert refused.code != 0
    assert f"can't hold a network policy of mode '{policy['mode']}'" in refused.all
    assert [run["scores"] for run in home.runs()] in ([], [{}])
    assert home.left() == {}

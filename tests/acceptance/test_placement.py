"""Every step acts where it says, in containers: placement A and B, each step in a process of its own, beside decoys."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest

from agent_env.containers import EngineEndpoint
from agent_env.containers.container import HOST_NAME
from agent_env.places.endpoint import is_local, with_host
from tests.acceptance.boxes import box_image, python_image, worker_image
from tests.acceptance.conftest import BOX, Home, check, clean_up, code, eventually, killed
from tests.acceptance.containers import decoy, in_engine, inspected, removed, told
from tests.acceptance.session import AGENT, Session, probe
from tests.acceptance.test_ports import answered
from tests.container_engine import archive_of, busybox_root, ensure
from tests.steps.test_load_urls import served

__all__ = ["box_image", "python_image", "worker_image"]

CONTAINER = {**BOX, "sandbox_mode": "container", "port": 8000}


@pytest.fixture(autouse=True)
def _nothing_left(home: Home, docker: EngineEndpoint) -> Iterator[None]:
    yield
    collected = home("gc", "--kept")
    left = in_engine(docker, home)
    if left:
        clean_up(home)
    assert (collected.code, left) == (0, []), collected.all


def test_a01_a03_b10_po01_po08_a_reopened_sandbox_is_the_same_container_with_the_same_ports(
    home: Home, docker: EngineEndpoint, box_image: str
) -> None:
    box = Session(home, box_image)
    first, tunnels = box.container_id, box.record["tunnel_urls"]
    assert box.scored(f'test "$(hostname)" = {first[:12]}', "uname -s | grep -x Linux", "test -f /.dockerenv")["score"] == 1
    assert (box.record["container_id"], box.record["placement"], box.record["sandbox_mode"]) == (first, "container", "container")
    bound = inspected(docker, first)["NetworkSettings"]["Ports"]["8000/tcp"]
    assert {f"http://{each['HostIp']}:{each['HostPort']}" for each in bound} == {tunnels["8000"]}
    assert {each["HostIp"] for each in bound} == {"127.0.0.1"}
    assert 20000 <= int(tunnels["8000"].rpartition(":")[2]) <= 29999
    box.teardown()
    context = home.write(
        "unknown.json", json.dumps({**box.context, "deployed_sandboxes": [{**box.record, "sandbox_id": "local-deadbeef"}]})
    )
    assert home("task", "create", home.write("t.json", json.dumps([check("true")])), "--id", "later", "--skip-validation").code == 0
    unknown = home("task", "run", "--id", "later", "--context-json", context)
    assert unknown.code != 0
    assert "local-deadbeef" in unknown.all


def test_c05_a_port_is_pinned_at_create_and_the_same_after_a_restart(home: Home, docker: EngineEndpoint, box_image: str) -> None:
    box = Session(home, box_image)
    url = box.record["tunnel_urls"]["8000"]
    told(docker, box.container_id, "restart")
    assert box.scored("httpd -p 8000 -h /srv")["score"] == 1
    bound = inspected(docker, box.container_id)["NetworkSettings"]["Ports"]["8000/tcp"]
    assert {f"http://{each['HostIp']}:{each['HostPort']}" for each in bound} == {url} == {box.record["tunnel_urls"]["8000"]}
    assert answered(f"{url}/inside")
    box.teardown()


def test_c07_a_service_of_this_machine_is_reached_from_a_container_by_a_name_of_it(home: Home, python_image: str) -> None:
    """The name stands for this machine inside alone: what a container is told never comes back as an address of it."""
    box = Session(home, python_image)
    with served("0.0.0.0") as base:
        url = f"http://127.0.0.1:{urlsplit(base).port}/x?y"
        inside = with_host(url, HOST_NAME)
        assert is_local(url)
        assert not is_local(inside)
        fetch = "python3 -c 'import sys, urllib.request as u; print(u.urlopen(sys.argv[1], timeout=5).read().decode())'"
        assert box.scored(f"{fetch} '{inside}' | grep -xF '/x?y'", f"! {fetch} '{url}' 2>/dev/null")["score"] == 1
    assert HOST_NAME not in json.dumps(box.record)
    box.teardown()


def test_a02_the_marker_is_for_others_and_the_database_is_not_needed_to_go_on(home: Home, docker: EngineEndpoint, box_image: str) -> None:
    box = Session(home, box_image)
    (marker,) = home.places.glob("*/.agent-container-mode")
    assert marker.read_text() == box.name
    marker.unlink()
    assert box.scored("test -f /srv/inside")["score"] == 1
    for path in home.state.glob("*.db*"):
        path.unlink()
    assert box.scored(f'test "$(hostname)" = {box.container_id[:12]}')["score"] == 1
    box.teardown()
    assert home.folders() == in_engine(docker, home) == []


def test_a02_a10_a_sandbox_known_by_its_marker_alone_is_verified_and_torn_down(
    home: Home, docker: EngineEndpoint, box_image: str, tmp_path: Path
) -> None:
    sandbox_id = "local-0badcafe"
    folder = home.places / f"agent-env-{sandbox_id}-feed"
    folder.mkdir(parents=True)
    home.places.chmod(0o700)
    (folder / ".agent-container-mode").write_text(f"agent-{sandbox_id}")
    record = {"sandbox_name": "box", "sandbox_id": sandbox_id, "sandbox_mode": "container", "sandbox_type": "local"}
    context = home.write("elsewhere.json", json.dumps({"deployed_sandboxes": [record]}))
    steps = [{**check("test -f /srv/inside", 'test "$IMAGE" = box'), "base_dir": "/"}]
    assert home("task", "create", home.write("t.json", json.dumps(steps)), "--id", "t", "--skip-validation").code == 0
    with decoy(docker, box_image, f"agent-{sandbox_id}") as theirs:
        answer = home("task", "run", "--id", "t", "--context-json", context, "--keep", "--json")
        assert (answer.code, answer.json["runs"][0]["scores"]) == (0, {"check": 1.0}), answer.all
        facts = json.loads((home.state / "sandboxes" / sandbox_id / "facts.json").read_text())
        assert facts["container_id"] == theirs
        again = home("runs", "teardown", "--context-json", context, "--json")
        assert again.json["removed"] == [sandbox_id], again.all
        assert home.folders() == []
        with pytest.raises(Exception, match="No such container"):
            inspected(docker, theirs)


def test_a06_se02_values_reach_the_container_byte_for_byte(home: Home, docker: EngineEndpoint, box_image: str) -> None:
    plain = {"A": "/app sudo apt", "B": "a'b\"c\\d", "C": "one\ntwo\n\tthree ", "D": "$(touch /x) $HOME `id` # no", "E": "é=", "F": ""}
    box = Session(home, box_image, env_vars={**plain, "API_KEY": "canary-7c1f0e9a55"})
    for name, value in plain.items():
        assert box.sh(f'printf "%s|" "${name}"') == f"{value}|"
    assert box.sh('printf "%s" "$API_KEY" | sha256sum').split()[0] == hashlib.sha256(b"canary-7c1f0e9a55").hexdigest()
    assert "canary-7c1f0e9a55" not in json.dumps(inspected(docker, box.container_id))
    kept = b"".join(
        path.read_bytes() for path in home.root.rglob("*") if path.is_file() and path.name != "secrets.json" and "t1-" not in path.name
    )
    assert b"canary-7c1f0e9a55" not in kept


WHERE = "import os, socket\ndef run(given):\n    return [socket.gethostname(), os.getcwd(), os.getuid(), 'env' in given]\n"


@pytest.mark.parametrize("gone", ["stopped", "removed"])
def test_a09_b14_a_container_that_is_gone_is_an_error_even_beside_a_decoy(
    gone: str, home: Home, docker: EngineEndpoint, box_image: str
) -> None:
    box = Session(home, box_image)
    if gone == "stopped":
        told(docker, box.container_id, "stop")
    else:
        removed(docker, box.container_id)
    name = "a2a-agent-x" if gone == "stopped" else box.name
    with decoy(docker, box_image, f"{name}-{os.getpid()}" if gone == "stopped" else name, "sleep 1000") as theirs:
        for step in (
            {"id": "v", "type": "verify_sandbox", "criteria": [probe("probe_file_exists", "/srv/inside")]},
            {"id": "c", "type": "collect_artifacts", "base_path": "/srv"},
        ):
            for target in ({"sandbox_name": "box"}, {"agent_name": AGENT}):
                failed = box.do({**step, **target}, fails=True)
                assert f"Agent container '{box.name}' is not running" in failed.all
                assert "Running containers: [" in failed.all
                assert "verifications" not in home.context(box.run_id)["metadata"]
        box.teardown()
        assert inspected(docker, theirs)["State"]["Running"]


def test_a09_b14_a_container_that_dies_between_steps_is_no_score(home: Home, docker: EngineEndpoint, python_image: str) -> None:
    # The image's own command is what the container is for: it ends, and with it the container.
    steps = [
        {**CONTAINER, "image": python_image},
        code("die"),
        {**check("true"), "base_dir": "/", "fail_task_on_error": False},
    ]
    die = "import os, signal\ndef run(i):\n    for p in os.listdir('/proc'):\n        try:\n            if p.isdigit() and b'sleep' in open(f'/proc/{p}/cmdline', 'rb').read():\n                os.kill(int(p), 9)\n        except OSError:\n            pass\n    import time\n    time.sleep(30)\n"  # noqa: E501
    answer = home("run", home.bundle("b", {"die": die}, t=steps), "--json")
    (run,) = answer.json["runs"]
    assert run["scores"] == {}
    assert "is not running" in answer.all


@pytest.mark.parametrize("gone", ["the whole state folder", "nothing, but another database"])
def test_a11_a12_a18_teardown_from_an_empty_database_takes_this_sandbox_and_no_other(
    gone: str, home: Home, docker: EngineEndpoint, box_image: str, tmp_path: Path
) -> None:
    other = Home(tmp_path / "two")
    try:
        theirs, mine = Session(other, box_image), Session(home, box_image)
        context = home.write("mine.json", json.dumps(mine.context))
        env = {}
        if gone == "the whole state folder":
            import shutil

            shutil.rmtree(home.state)
        else:
            env = {"XDG_STATE_HOME": str(tmp_path / "elsewhere")}
        foreign = home("runs", "teardown", "--context-json", home.write("theirs.json", json.dumps(theirs.context)), "--json", env=env)
        assert foreign.json["removed"] == []
        report = home("runs", "teardown", "--context-json", context, "--json", env=env)
        assert report.json["removed"] == [mine.sandbox_id], report.all
        assert (home.folders(), in_engine(docker, home)) == ([], [])
        again = home("runs", "teardown", "--context-json", context, "--json", env=env)
        assert (again.code, again.json["removed"], again.json["failed"]) == (0, [], {})
        assert home("gc", "--kept").code == 0
        assert theirs.sh("cat /srv/inside") == "only the container has it\n"
        theirs.teardown()
        assert other.left() == {}
    finally:
        clean_up(other)


def test_a13_runs_at_the_same_instant_never_mix(home: Home, docker: EngineEndpoint, box_image: str) -> None:
    def task(name: str) -> list[dict[str, Any]]:
        write = {**check(f"echo {name} > /srv/mine; hostname > /srv/host; sleep 0.3", id="w"), "base_dir": "/srv"}
        read = {**check(f"test $(cat /srv/mine) = {name}", "test $(cat /srv/host) = $(hostname)", id="r"), "base_dir": "/srv"}
        return [{**CONTAINER, "image": box_image}, write, read]

    answer = home("run", home.bundle(**{f"t{n}": task(f"n{n}") for n in range(8)}), "--concurrency", "8", "--json")
    assert answer.code == 0, answer.all
    assert [run["scores"] for run in answer.json["runs"]] == [{"w": 1.0, "r": 1.0}] * 8
    assert (home.left(), in_engine(docker, home)) == ({}, [])


LONG = """
import json, pathlib, time
def run(given):
    began = pathlib.Path("/srv/began")
    if began.exists():
        return "resumed"
    began.touch()
    time.sleep(45)
    return "orphan"
"""


def test_a14_killed_during_code_in_a_container_the_run_goes_on_in_the_same_one(
    home: Home, docker: EngineEndpoint, python_image: str
) -> None:
    steps = [{**CONTAINER, "image": python_image}, code("long"), {**check("test -f /srv/began"), "base_dir": "/"}]
    process = home.start("run", home.bundle("b", {"long": LONG}, t=steps), "--keep")
    run_id = eventually(lambda: [run["run_id"] for run in home.runs()], "a run")[0]
    record = eventually(lambda: (home.context(run_id).get("deployed_sandboxes") or [None])[0], "a container")
    eventually(lambda: home("exec", f"{run_id}:box", "--", "test", "-f", "/srv/began").code == 0, "the script")
    killed(process)
    assert inspected(docker, record["container_id"])["State"]["Running"]
    assert home("gc").code == 0
    resumed = home("resume", run_id, "--json")
    assert resumed.code == 0, resumed.all
    context = home.context(run_id)
    assert context["metadata"]["script_results"]["work"] == "resumed"
    assert context["deployed_sandboxes"][0]["container_id"] == record["container_id"]
    listing = home("exec", f"{run_id}:box", "--", "sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '")
    assert "runner.py" not in listing.out.replace("cat /proc", "")
    assert home("runs", "teardown", run_id).code == 0
    assert (home.left(), in_engine(docker, home)) == ({}, [])


def test_a16_fi13_an_image_needs_nothing_but_a_kernel_and_what_is_missing_is_named(home: Home, docker: EngineEndpoint) -> None:
    program = busybox_root()["bin/busybox"]
    image = ensure(
        docker, "agentenv-test/bare:2", lambda: archive_of({"busybox": program}), ['ENTRYPOINT ["/busybox", "sleep"]', 'CMD ["100000"]']
    )
    box = Session(home, image)
    assert home("artifact", "put", home.write("u/a.txt", "hello\n"), "--id", "u").code == 0
    box.do({"id": "load", "type": "load_artifact", "sandbox_name": "box", "artifact_id": "u", "destination_path": "/data"})
    criteria = [probe("probe_file_contains", "/data/a.txt", expected="^hello$"), probe("probe_dir_exists", "/data")]
    box.do({"id": "v", "type": "verify_sandbox", "sandbox_name": "box", "criteria": criteria})
    assert box.metadata["verifications"]["v"]["score"] == 1
    box.do({"id": "c", "type": "collect_artifacts", "sandbox_name": "box", "base_path": "/data"})
    assert list(box.metadata["collected_artifacts"]["c"]["artifacts"]) == ["a.txt"]
    assert home("exec", f"{box.run_id}:box", "--", "/busybox", "echo", "alive").out == "alive\n"
    shell = box.do({**check("true"), "base_dir": "/"}, fails=True)
    assert "bash" in shell.all
    assert home("artifact", "put", home.write("w/run.py", WHERE), "--id", "where").code == 0
    python = box.do({"id": "code", "type": "run_code", "script_artifact_id": "where", "sandbox_name": "box"}, fails=True)
    assert "python3" in python.all


def test_b01_what_a_container_needs_is_asked_before_anything_starts(home: Home, box_image: str) -> None:
    bare = {**BOX, "sandbox_mode": "container"}
    for step, said in (({**bare, "image": box_image}, "add port"), ({**bare, "port": 1}, "add image"), (bare, "image and port")):
        refused = home("run", home.bundle("n", t=[step]))
        assert (refused.code, said in refused.all) == (2, True), refused.all
    twice = home("run", home.bundle("w", t=[{**CONTAINER, "image": box_image}, {**CONTAINER, "id": "two", "image": box_image}]))
    assert (twice.code, "already deployed" in twice.all) == (2, True)
    none = home("run", home.bundle("e", t=[{**CONTAINER, "image": box_image}]), env={"DOCKER_HOST": "unix:///nowhere/docker.sock"})
    assert none.code != 0
    assert "/nowhere/docker.sock" in none.all
    missing = home("run", home.bundle("m", t=[{**CONTAINER, "image": "localhost:1/nobody/has:this"}]), "--json")
    assert missing.code != 0
    assert home.runs() == [] or home.left() == {}


def test_b06_b07_the_same_name_on_a_machine_and_in_a_container(home: Home, box_image: str) -> None:
    both = {"machine": {**BOX, "sandbox_name": "machine", "id": "m"}, "box": {**CONTAINER, "image": box_image}}
    for name in both:
        home.write(f"b/artifacts/{name}/here.txt", name)
    steps: list[dict[str, Any]] = list(both.values())
    for name in both:
        at = {"sandbox_name": name}
        steps.append({"id": f"l-{name}", "type": "load_artifact", "artifact_id": name, "destination_path": "/app/x", **at})
        criteria = [probe("probe_file_contains", "/app/x/here.txt", expected=f"^{name}$")]
        steps.append({"id": f"v-{name}", "type": "verify_sandbox", "criteria": criteria, **at})
        steps.append({"id": f"c-{name}", "type": "collect_artifacts", "base_path": "/app/x", **at})
    answer = home("run", home.bundle(t=steps), "--keep", "--json")
    assert answer.code == 0, answer.all
    run = answer.json["runs"][0]
    assert run["scores"] == {"v-machine": 1.0, "v-box": 1.0}
    collected = home.context(run["run_id"])["metadata"]["collected_artifacts"]
    for name in both:
        assert collected[f"c-{name}"]["artifacts"]["here.txt"] == f"sha256:{hashlib.sha256(name.encode()).hexdigest()}"
    (inside,) = home.places.rglob("app/x/here.txt")
    assert inside.read_text() == "machine"
    assert home("runs", "teardown", run["run_id"]).code == 0


@pytest.mark.parametrize("policy", [{"mode": "none"}, {"mode": "allowlist", "allow_hosts": ["example.org"]}])
def test_np01_po07_a_container_that_must_not_reach_the_network_is_reached_on_its_port(
    policy: dict[str, Any], home: Home, docker: EngineEndpoint, box_image: str
) -> None:
    home.env["AGENT_ENV_LIMIT_KEEPER_IDLE_SECONDS"] = "0.2"
    box = Session(home, box_image, network_policy=policy)
    assert list(inspected(docker, box.container_id)["NetworkSettings"]["Networks"]) == ["none"]
    assert (
        box.scored("httpd -p 8000 -h /srv", "! wget -Y off -T 2 -qO- http://172.17.0.1/", "! wget -Y off -T 2 -qO- http://1.1.1.1/")[
            "score"
        ]
        == 1
    )
    with urlopen(f"{box.record['tunnel_urls']['8000']}/inside", timeout=20) as answer:
        assert answer.read() == b"only the container has it\n"
    box.teardown()
    assert (home.left(), in_engine(docker, home)) == ({}, [])

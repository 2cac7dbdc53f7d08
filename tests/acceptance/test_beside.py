"""Containers beside a sandbox's machine: built or named, talking with each other, reached from the machine, gone with the sandbox."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from agent_env.containers import EngineEndpoint
from agent_env.defaults import DEFAULT_LIMITS
from tests.acceptance.boxes import box_image
from tests.acceptance.conftest import BOX, Home, check, clean_up
from tests.acceptance.containers import decoy, in_engine, inspected

__all__ = ["box_image"]

DOCKERFILE = """FROM {image}
COPY page.txt /www/index.html
ARG WHAT
ENV WHAT=$WHAT
RUN test "$WHAT" = built
CMD ["httpd", "-f", "-p", "8080", "-h", "/www"]
"""


@pytest.fixture(autouse=True)
def _nothing_left(home: Home, docker: EngineEndpoint) -> Iterator[None]:
    home.env["AGENT_ENV_LIMIT_KEEPER_IDLE_SECONDS"] = "0.2"
    yield
    collected = home("gc", "--kept")
    left = in_engine(docker, home)
    if left:
        clean_up(home)
    assert (collected.code, left) == (0, []), collected.all


def beside(name: str, **fields: Any) -> dict[str, Any]:
    return {"id": name, "type": "run_docker_container", "sandbox_name": "box", "container_name": name, **fields}


def context(home: Home, image: str) -> None:
    home.write("b/artifacts/ctx/build/Dockerfile", DOCKERFILE.format(image=image))
    home.write("b/artifacts/ctx/page.txt", "hello from the web\n")


def build(**fields: Any) -> dict[str, Any]:
    made = {"docker_context_artifact_id": "ctx", "dockerfile_path": "build/Dockerfile", "build_args": {"WHAT": "built"}}
    return beside("web", **made, ports=[8080], network="net1", **fields)


def inside(name: str, *commands: str, id: str) -> dict[str, Any]:
    return {**check(*commands, id=id), "container_name": name, "base_dir": "/"}


def test_b11_containers_beside_a_machine_are_built_reached_and_removed_with_it(home: Home, docker: EngineEndpoint, box_image: str) -> None:
    context(home, box_image)
    steps = [
        BOX,
        build(ready_command="python3 -c 'import urllib.request as u; u.urlopen(\"http://127.0.0.1:8080/index.html\")'"),
        beside("peer", image=box_image, network="net1", env_vars={"A": "q r", "API_KEY": "canary-4d2a90b1cc"}),
        inside("peer", "wget -qO- http://web:8080/index.html | grep web", 'test "$A" = "q r" && test -n "$API_KEY"', id="in"),
        {"id": "load", "type": "load_artifact", "sandbox_name": "box", "container_name": "peer", "artifact_id": "ctx",
         "destination_path": "/w"},
        {"id": "col", "type": "collect_artifacts", "sandbox_name": "box", "container_name": "peer", "base_path": "/w"},
        {"id": "tests", "type": "run_container_unit_tests_verifier", "sandbox_name": "box", "container_name": "peer",
         "command": "echo 0.5 > /reward; echo out; echo err >&2; echo $TOKEN; exit 3", "reward_path": "/reward",
         "setup_commands": ["true"], "env_vars": {"TOKEN": "canary-88c1f0e2ab"}},
    ]  # fmt: skip
    answer = home("run", home.bundle(t=steps), "--keep", "--json")
    assert answer.code == 0, answer.all
    (run,) = answer.json["runs"]
    assert run["scores"] == {"in": 1.0, "tests": 0.5}
    metadata = home.context(run["run_id"])["metadata"]
    web, peer = metadata["deployed_docker_containers"]
    assert (web["container_name"], web["ports"], web["network"], peer["image_tag"]) == ("web", [8080], "net1", box_image)
    assert "canary-4d2a90b1cc" not in json.dumps(inspected(docker, peer["container_id"]))
    assert sorted(metadata["collected_artifacts"]["col"]["artifacts"]) == ["build/Dockerfile", "page.txt"]
    tests = metadata["verifications"]["tests"]
    assert (tests["exit_code"], tests["extracted_files"], tests["stdout_head"], tests["stderr_head"]) == (
        3,
        {"/reward": 0.5},
        "out\n***\n",
        "err\n",
    )
    told = home("runs", "logs", run["run_id"], "--step", "tests", "--json").json["events"]
    assert [each["printed"] for each in told if "printed" in each] == [{"stdout": "out\n***", "stderr": "err"}]
    used = home("runs", "show", run["run_id"], "--json").json["used"]
    images = {each["id"]: each["digest"] for each in used if each["collection"] == "images"}
    assert images[box_image] == inspected(docker, peer["container_id"])["Image"]
    assert len(images) == 2, "the other one was built"
    kept = [path.read_bytes() for path in (home.state / "objects").rglob("*") if path.is_file()]
    assert b"out\n***\n" in kept
    assert not [each for each in kept if b"canary-88c1f0e2ab" in each]
    assert len([each for each in in_engine(docker, home) if each.startswith("container")]) == 2
    assert home("exec", f"{run['run_id']}:peer", "--", "cat", "/w/page.txt").out == "hello from the web\n"
    assert home("cp", f"{run['run_id']}:web:/www/index.html", "-").out == "hello from the web\n"
    assert "its places: box, web, peer" in home("exec", f"{run['run_id']}:other", "--", "true").err
    assert home("runs", "teardown", run["run_id"]).code == 0
    assert (home.left(), in_engine(docker, home)) == ({}, [])


def test_b11_a_container_that_this_run_did_not_start_is_refused(home: Home, docker: EngineEndpoint, box_image: str) -> None:
    steps = [BOX, beside("mine", image=box_image), inside("theirs", "true", id="v")]
    assert "which no earlier step provides" in home("run", home.bundle("p", t=steps)).all
    answer = home("run", home.bundle(t=steps[:2]), "--keep", "--json")
    assert answer.code == 0, answer.all
    known = home.context(answer.json["runs"][0]["run_id"])
    sandbox_id = known["deployed_sandboxes"][0]["sandbox_id"]
    assert home("task", "create", home.write("t.json", json.dumps(steps[2:])), "--id", "t", "--skip-validation").code == 0
    with decoy(docker, box_image, f"theirs-{sandbox_id}") as other:
        refused = home("task", "run", "--id", "t", "--context-json", home.write("c.json", json.dumps(known)), "--keep")
        assert refused.code != 0
        assert "'mine'" in refused.all
        assert inspected(docker, other)["State"]["Running"]


@pytest.mark.parametrize("fields", [{"privileged": True}, {"volumes": ["/etc:/host"]}, {"network": "host"}, {"cap_add": ["SYS_ADMIN"]}])
def test_what_reaches_this_machine_needs_this_users_own_word(fields: dict[str, Any], home: Home, box_image: str) -> None:
    refused = home("run", home.bundle(t=[BOX, beside("c", image=box_image, **fields)]), "--json")
    assert refused.code != 0
    assert "sandbox.container_privileges" in refused.all
    assert home.runs() == []


def test_lc11_runs_that_start_containers_of_the_same_name_run_at_once(home: Home, docker: EngineEndpoint, box_image: str) -> None:
    steps = [BOX, beside("same", image=box_image, network="net"), inside("same", "true", id="v")]
    answer = home("run", home.bundle(a=steps, b=steps, c=steps), "--concurrency", "3", "--json")
    assert answer.code == 0, answer.all
    assert [run["scores"] for run in answer.json["runs"]] == [{"v": 1.0}] * 3
    assert in_engine(docker, home) == []


def test_containers_meet_on_every_network_that_they_share_also_when_they_start_at_once(home: Home, box_image: str) -> None:
    def serving(name: str, network: str, *further: str) -> dict[str, Any]:
        said = {"command_override": "httpd -f -p 8080 -h /srv", "network": network, "extra_networks": further, "depends_on": ["box"]}
        return beside(name, image=box_image, **said)

    def gets(name: str) -> str:
        return f"for i in $(seq 50); do timeout 5 wget -qO- http://{name}:8080/inside && exit; sleep 0.1; done; exit 1"

    steps = [
        BOX,
        serving("a", "one"),
        serving("b", "two"),
        serving("both", "one", "two", "three"),
        serving("late", "two", "three"),
        inside("both", gets("a"), gets("b"), gets("late"), id="meets"),
        {**inside("a", gets("both"), "! timeout 5 wget -qO- http://b:8080/inside", id="apart"), "depends_on": ["a", "b", "both"]},
    ]
    answer = home("run", home.bundle(t=steps), "--json")
    assert (answer.code, answer.json["runs"][0]["scores"]) == (0, {"meets": 1.0, "apart": 1.0}), answer.all


def test_lc03_a_container_that_fails_is_not_waited_for(home: Home, box_image: str) -> None:
    ends = beside("ends", image=box_image, command_override="echo boom >&2; exit 3", ready_command="false")
    answer = home("run", home.bundle(t=[BOX, ends]), "--json")
    (run,) = answer.json["runs"]
    assert run["error"]["code"] == "container_not_running", answer.all
    assert "exited with code 3" in run["error"]["message"]
    assert "boom" in run["error"]["message"]
    assert run["duration_seconds"] < DEFAULT_LIMITS.container_ready_seconds


def test_what_this_user_grants_is_given(home: Home, docker: EngineEndpoint, box_image: str) -> None:
    config = home.home / "config/agent-env/config.toml"
    config.parent.mkdir(parents=True)
    config.write_text('[sandbox]\ncontainer_privileges = ["volumes"]\n')
    steps = [
        BOX,
        beside("c", image=box_image, volumes=["/etc:/host:ro", "own:/data"]),
        inside("c", "test -f /host/passwd && touch /data/x", id="v"),
    ]
    answer = home("run", home.bundle(t=steps), "--json")
    assert (answer.code, answer.json["runs"][0]["scores"]) == (0, {"v": 1.0}), answer.all
    assert in_engine(docker, home) == []


def test_failing_tests_are_recorded_and_fail_the_run(home: Home, box_image: str) -> None:
    tests = {"id": "tests", "type": "run_container_unit_tests_verifier", "sandbox_name": "box", "container_name": "c"}
    steps = [BOX, beside("c", image=box_image), {**tests, "command": "echo broken >&2; exit 7"}]
    answer = home("run", home.bundle(t=steps), "--json")
    (run,) = answer.json["runs"]
    assert (run["status"], run["scores"]) == ("failed", {"tests": 0.0})
    assert "broken" in answer.all


def test_images_are_built_while_the_first_steps_still_work(home: Home, box_image: str) -> None:
    context(home, box_image)
    steps = [BOX, check("sleep 6", id="first", shell_timeout_seconds=60), build()]
    answer = home("run", home.bundle(t=steps), "--json")
    assert answer.code == 0, answer.all
    events = home("runs", "logs", answer.json["runs"][0]["run_id"], "--json").json["events"]
    built = [each["seq"] for each in events if each["step_id"] == "web" and "step 1 of" in str(each["payload"].get("message"))]
    (first_done,) = [each["seq"] for each in events if each["step_id"] == "first" and each["kind"] == "step_done"]
    assert built[0] < first_done

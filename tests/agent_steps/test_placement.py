"""Placement A with a real deployed agent: every step that names it acts in its container, live and from other processes, alone and many."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
from pathlib import Path
from typing import Any

import pytest

from agent_env.containers import Engine, EngineEndpoint
from tests.acceptance.boxes import box_image
from tests.acceptance.conftest import code, eventually, killed
from tests.acceptance.containers import asked, decoy, in_engine, inspected, told
from tests.agent_steps.conftest import AGENT, SOLVER, Operator, probe, prompt

__all__ = ["box_image"]

pytestmark = pytest.mark.timeout(900)

MAKES = """
import hashlib, os, pathlib, socket
def run(given):
    base = pathlib.Path("/work/out")
    (base / "deep/er").mkdir(parents=True)
    files = {"big.bin": os.urandom(20 << 20), "empty": b"", "deep/er/mit leer zeichen é.txt": b"x\\n", "root-only": b"of root\\n"}
    for name, data in files.items():
        (base / name).write_bytes(data)
    (base / "root-only").chmod(0o600)
    (base / "outside").symlink_to("/etc/passwd")
    made = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    facts = [socket.gethostname(), os.getcwd(), os.getuid(), "env" in given, os.environ.get("ODD")]
    loaded = os.stat("/work/artifact/hello.txt")
    return {"made": made, "facts": facts, "owner": [loaded.st_uid, os.stat("/work/artifact").st_uid]}
"""
ODD = "/app sudo 'a' \"b\"\n$(touch /x) `id` é "
BASH = {"type": "bash_cmd_succeeds"}


def verify(id: str, *criteria: dict[str, Any], base: str = "/work/out") -> dict[str, Any]:
    return {"id": id, "type": "verify_sandbox", **SOLVER, "verifier_id": id, "base_dir": base, "criteria": list(criteria)}


def bash(command: str) -> dict[str, Any]:
    return {**BASH, "criterion": command, "bash_cmd": command}


def flow(sentinel: Path) -> list[dict[str, Any]]:
    """Load, ask, run, verify (1), verify what only the host has (0), collect."""
    inside = [probe("probe_file_contains", "root-only", expected="^of root$"), probe("probe_dir_exists", "deep/er")]
    as_user = ["test $(id -u) = 10001", "! cat root-only 2>/dev/null", "uname -s | grep -x Linux", "test -f /.dockerenv"]
    return [
        {**AGENT, "env_vars": {"ODD": ODD}},
        {"id": "load", "type": "load_artifact", **SOLVER, "artifact_id": "greeting", "destination_path": "/work/artifact"},
        prompt({"shell": "hostname > /tmp/said; printf %s \"$ODD\" | sha256sum"}, {"say": "{last}"}),
        {**code("makes"), **SOLVER, "sandbox_name": None},
        verify("in", *inside, *map(bash, as_user), bash("test $(cat /tmp/said) = $(hostname)")),
        verify("out", probe("probe_file_exists", str(sentinel)), base="/"),
        {"id": "collect", "type": "collect_artifacts", **SOLVER, "base_path": "/work/out"},
    ]  # fmt: skip


def bundle(user: Operator, tmp_path: Path) -> Path:
    sentinel = tmp_path / "only-the-host-has-it"
    sentinel.write_text("host")
    user.write("b/artifacts/greeting/hello.txt", "hello\n")
    return user.bundle("b", {"makes": MAKES}, t=flow(sentinel))


def check_flow(user: Operator, run: dict[str, Any]) -> str:
    """Everything that one run of it has to show; returns its container."""
    assert (run["status"], run["scores"]) == ("completed", {"in": 1.0, "out": 0.0}), run["error"]
    context = user.told(run["run_id"])
    container = str(context["agents"]["solver"]["container_id"])
    result = context["metadata"]["script_results"]["work"]
    assert result["facts"] == [container[:12], "/workspace", 0, False, ODD]
    assert result["owner"] == [10001, 10001]
    assert context["prompt_responses"][0]["response"].split()[0] == hashlib.sha256(ODD.encode()).hexdigest()
    collected = context["metadata"]["collected_artifacts"]["collect"]["artifacts"]
    assert {name: url.removeprefix("sha256:") for name, url in collected.items()} == result["made"]
    return container


def test_a04_a05_a06_a07_a08_a16_a17_an_agents_steps_act_in_its_container_and_leave_nothing_on_the_host(
    user: Operator, tmp_path: Path
) -> None:
    folder = bundle(user, tmp_path)
    before = {path.name for path in Path(os.environ.get("TMPDIR", "/tmp")).iterdir()}
    answer = user("run", folder, "--keep", "--json")
    assert answer.code == 0, answer.all
    (run,) = answer.json["runs"]
    check_flow(user, run)
    (place,) = user.places.glob("agent-env-*")
    assert {path.name for path in place.iterdir()} <= {".agent-container-mode", ".agentenv", ".ports.json", ".port-map.json"}, [
        *place.iterdir()
    ]
    fresh = {path.name for path in Path(os.environ.get("TMPDIR", "/tmp")).iterdir()} - before
    assert not [name for name in fresh if "runner" in name or "makes" in name or "hello" in name]
    assert user("runs", "teardown", run["run_id"]).code == 0


@pytest.mark.parametrize("count", [2, pytest.param(8, marks=pytest.mark.slow)])
def test_a13_agents_at_the_same_instant_never_mix(count: int, user: Operator, tmp_path: Path) -> None:
    runs = user.scores(bundle(user, tmp_path), "--attempts", str(count), "--concurrency", str(count))
    assert len({check_flow(user, run) for run in runs}) == count


class Kept:
    """A deployed agent that stays; each call of `do` is a process of its own that knows its context alone."""

    def __init__(self, user: Operator) -> None:
        self.user = user
        answer = self._run([AGENT])
        assert answer.code == 0, answer.all
        self.run_id = user.runs()[0]["run_id"]
        self.context = user.context(self.run_id)
        (self.record,) = self.context["deployed_agents"]
        self.name = f"agent-{self.record['sandbox_id']}"

    def _run(self, steps: list[dict[str, Any]], *more: str | Path) -> Any:
        task = f"t-{secrets.token_hex(3)}"
        made = self.user("task", "create", self.user.write(f"{task}.json", json.dumps(steps)), "--id", task, "--skip-validation")
        assert made.code == 0, made.all
        return self.user("task", "run", "--id", task, *more, "--keep", "--json")

    def do(self, *steps: dict[str, Any], agent: dict[str, Any] | None = None) -> Any:
        context = {**self.context, "deployed_agents": [agent or self.record]}
        return self._run(list(steps), "--context-json", self.user.write(f"c-{secrets.token_hex(3)}.json", json.dumps(context)))


def test_a01_a02_a03_a09_a10_a11_a12_a18_a19_a_reopened_agent_is_the_same_container_and_none_other(
    user: Operator, docker: EngineEndpoint, box_image: str, tmp_path: Path
) -> None:
    here = Kept(user)
    container = here.record["container_id"]
    (marker,) = user.places.glob("*/.agent-container-mode")
    assert marker.read_text() == here.name
    bound = inspected(docker, container)["NetworkSettings"]["Ports"]["8000/tcp"]
    assert {f"http://{each['HostIp']}:{each['HostPort']}" for each in bound} == {here.record["a2a_url"]}
    marker.unlink()
    same = bash(f"test $(hostname) = {container[:12]}")
    ask = prompt({"shell": "hostname"}, {"say": "{last}"})
    # Without the marker, and from a record that has no container id: found once, by the sandbox and its label.
    bare = {name: value for name, value in here.record.items() if name not in {"container_id", "placement"}}
    answer = here.do(verify("v", same, base="/"), ask, agent=bare)
    assert answer.code == 0, answer.all
    assert answer.json["runs"][0]["scores"] == {"v": 1.0}
    responses = user.context(user.runs()[0]["run_id"])["prompt_responses"]
    assert responses[0]["response"] == container[:12]
    unknown = here.do(verify("v", same, base="/"), agent={**bare, "sandbox_id": "local-deadbeef"})
    assert unknown.code != 0
    assert "local-deadbeef" in unknown.all
    another = Operator(tmp_path / "two")
    assert (another("gc", "--kept").code, another("agent", "rm", here.run_id).code != 0) == (0, True)
    assert inspected(docker, container)["State"]["Running"], "another home's hand"
    told(docker, container, "stop")
    with decoy(docker, box_image, f"a2a-agent-x-{os.getpid()}", "sleep 1000") as theirs:
        for step in (
            verify("v", probe("probe_file_exists", "/etc/passwd")),
            {"id": "c", "type": "collect_artifacts", **SOLVER, "base_path": "/etc"},
            ask,
        ):
            failed = here.do(step)
            assert failed.code != 0, failed.all
            assert f"'{here.name}' is not running" in failed.all, failed.all
            assert "verifications" not in user.context(user.runs()[0]["run_id"])["metadata"]
        validated = user("agent", "validate", f"{here.run_id}:solver")
        assert (validated.code != 0, f"'{here.name}' is not running" in validated.all) == (True, True), validated.all
        context = user.write("mine.json", json.dumps(here.context))
        shutil.rmtree(user.state / "runs", ignore_errors=True)
        for path in user.state.glob("*.db*"):
            path.unlink()
        report = user("runs", "teardown", "--context-json", context, "--json")
        assert report.json["removed"] == [here.record["sandbox_id"]], report.all
        again = user("runs", "teardown", "--context-json", context, "--json")
        assert (again.code, again.json["removed"]) == (0, []), again.all
        assert (user.folders(), in_engine(docker, user)) == ([], [])
        assert inspected(docker, theirs)["State"]["Running"]


LONG = """
import os, pathlib, time
def run(given):
    began = pathlib.Path("/workspace/began")
    if began.exists():
        return {"by": "resumed", "orphan": pathlib.Path("/proc", began.read_text()).exists()}
    began.write_text(str(os.getpid()))
    time.sleep(45)
    return {"by": "orphan"}
"""


def has_begun(docker: EngineEndpoint, container_id: str) -> bool:
    """Seen from outside: the file that the script makes first."""

    async def changes(engine: Engine) -> list[str]:
        async with engine.asking("looking at a container", concerns=container_id) as client:
            return [str(each["Path"]) for each in await client._query_json(f"containers/{container_id}/changes")]

    return "/workspace/began" in asked(docker, changes)


@pytest.mark.parametrize("by", ["resume", pytest.param("context", marks=pytest.mark.slow)])
def test_a14_killed_while_code_runs_in_an_agent_what_goes_on_stops_the_orphan_in_the_same_container(
    by: str, user: Operator, docker: EngineEndpoint
) -> None:
    """By `resume`, and by a run of its own with the context of the killed one, which adopts the agent's place."""
    user.write("long/run.py", LONG)
    assert user("artifact", "put", str(user.cwd / "long"), "--id", "long").code == 0
    steps = [AGENT, {**code("long"), **SOLVER, "sandbox_name": None}, verify("v", bash("test -f began"), base="/workspace")]
    assert user("task", "create", user.write("t.json", json.dumps(steps)), "--id", "t", "--skip-validation").code == 0
    process = user.start("task", "run", "--id", "t", "--keep")
    run_id = user.running()
    record = eventually(lambda: (user.context(run_id).get("deployed_agents") or [None])[0], "an agent", 400)
    container = record["container_id"]
    eventually(lambda: has_begun(docker, container), "the script")
    killed(process)
    assert inspected(docker, container)["State"]["Running"]
    if by == "resume":
        gone_on = user("resume", run_id, "--json")
        last = run_id
    else:
        context = user.write("c.json", json.dumps(user("task", "get-instance", "--id", run_id, "--json").json["context"]))
        gone_on = user("task", "run", "--id", "t", "--start-step", "1", "--context-json", context, "--keep", "--json")
        last = gone_on.json["runs"][0]["run_id"]
    assert gone_on.code == 0, gone_on.all
    told = user.told(last)
    assert told["metadata"]["script_results"]["work"] == {"by": "resumed", "orphan": False}
    assert told["agents"]["solver"]["container_id"] == container
    if by == "context":  # the old one has nothing of it any more
        assert user("gc").code == 0
        user("runs", "teardown", run_id)
        assert inspected(docker, container)["State"]["Running"]
    assert user("runs", "teardown", last).code == 0
    assert in_engine(docker, user) == []

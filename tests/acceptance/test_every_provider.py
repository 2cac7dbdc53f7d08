"""The placement rows that hold on every provider: this machine's engine, an unpacked image, an engine beside a machine elsewhere.

Each step is a process of its own, which knows the context that the one before it has left, and no more.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from agent_env.containers import EngineEndpoint, labelled
from tests.acceptance.boxes import WORKER_MODES, WORKER_OWNERS, box_image, python_image, worker_image, worker_of, worker_root
from tests.acceptance.conftest import BOX, Home
from tests.acceptance.containers import asked, decoy, in_engine, inspected, told
from tests.acceptance.session import AGENT, TARGETS, Session, probe
from tests.container_engine import archive_of
from tests.providers.cloud import PLUGINS, configuration, machines
from tests.providers.conftest import cloud_folder, cloud_options
from tests.rootfs.images import archive
from tests.rootfs.test_images import folder
from tests.steps.test_load_urls import own_address, served

__all__ = ["box_image", "cloud_folder", "cloud_options", "folder", "python_image", "worker_image"]


@dataclass
class Ground:
    """A provider with a user who has sandboxes there."""

    provider: str
    home: Home
    image: Callable[[str], str]
    """`worker` or `python` → the image's name, as this provider takes it."""
    end: Callable[[Session], None]
    """Ends what a sandbox runs, by somebody else's hand."""
    docker: EngineEndpoint | None = None
    sessions: list[Session] | None = None

    def deploy(self, kind: str, **fields: Any) -> Session:
        made = Session(self.home, self.image(kind), provider=self.provider, **fields)
        assert self.sessions is not None
        self.sessions.append(made)
        return made


EVERY = ("local", "rootfs", "remote_engines")
on_podman_too = pytest.mark.parametrize("ground", [*EVERY, "podman"], indirect=True)
"""Podman (F24) is slow to start containers: the rows that show most of it."""


@pytest.fixture(params=EVERY)
def ground(request: pytest.FixtureRequest, home: Home) -> Iterator[Ground]:
    """One provider after the other. What a test deploys is torn down, and nothing of it is left."""
    made: Ground = {"local": _local, "rootfs": _rootfs, "remote_engines": _remote, "podman": _podman}[request.param](request, home)
    made.sessions = []
    yield made
    for session in made.sessions:
        session.teardown()
    assert (home.left(), in_engine(made.docker, home) if made.docker is not None else []) == ({}, [])
    if made.provider == "remote_engines":
        assert machines(request.getfixturevalue("cloud_folder")) == []


def _local(request: pytest.FixtureRequest, home: Home) -> Ground:
    docker = request.getfixturevalue("docker")

    def stop(box: Session) -> None:
        told(docker, box.container_id, "stop")

    return Ground("local", home, lambda kind: str(request.getfixturevalue(f"{kind}_image")), stop, docker)


def _rootfs(request: pytest.FixtureRequest, home: Home) -> Ground:
    if os.geteuid() != 0:
        pytest.skip("agentenv-capability-missing: users.many")
    apart = request.getfixturevalue("folder")

    def image(kind: str) -> str:
        if kind == "python":
            return f"docker-daemon:{request.getfixturevalue('python_image')}"
        layer = archive_of(worker_root(), modes=WORKER_MODES, owners=WORKER_OWNERS)
        words = {"Env": ["PATH=/bin", "IMAGE=box"], "Cmd": ["sleep", "100000"], "User": "worker", "WorkingDir": "/home/worker"}
        return archive(apart, layer, **words)

    def end(box: Session) -> None:
        # The place ends with its command, perhaps before this one could tell how it went.
        home("exec", f"{box.run_id}:box", "--", "sh", "-c", "kill -9 $(pidof sleep)")

    return Ground("rootfs", home, image, end)


def _podman(request: pytest.FixtureRequest, home: Home) -> Ground:
    docker = request.getfixturevalue("podman")
    home.env["DOCKER_HOST"] = docker.url

    def stop(box: Session) -> None:
        told(docker, box.container_id, "stop")

    return Ground("local", home, lambda _: worker_of(docker), stop, docker)


def _remote(request: pytest.FixtureRequest, home: Home) -> Ground:
    local = _local(request, home)
    config = home.home / "config/agent-env/config.toml"
    config.parent.mkdir(parents=True)
    config.write_text(configuration(request.getfixturevalue("cloud_options"), remote_engines=""))
    home.env["PYTHONPATH"] = str(PLUGINS)
    return Ground("remote_engines", home, local.image, local.end, local.docker)


@on_podman_too
def test_f24_a04_a05_b07_b08_probes_look_inside_as_root_and_commands_run_as_the_images_user(ground: Ground, tmp_path: Path) -> None:
    outside = tmp_path / "only-the-host"
    outside.write_text("host\n")
    box = ground.deploy("worker")
    criteria = [
        probe("probe_file_exists", "/srv/inside"),
        probe("probe_file_exists", "/.dockerenv"),
        probe("probe_file_exists", str(outside)),
        probe("probe_file_contains", "/root-only", expected="^secret of root$"),
        {"type": "bash_cmd_succeeds", "criterion": "user", "bash_cmd": 'test "$(id -u)" = 1001 && pwd | grep -x /srv && uname -s'},
        {"type": "bash_cmd_succeeds", "criterion": "closed", "bash_cmd": "cat /root-only"},
    ]
    step = {"type": "verify_sandbox", "criteria": criteria, "base_dir": "/srv", "score_aggregator": "weighted_average"}
    box.do(*({**step, "id": id, **target} for id, target in TARGETS.items()))
    for id in TARGETS:
        found = box.metadata["verifications"][id]["results"]
        assert [each["result"] for each in found] == [True, True, False, True, True, False], found


def test_a07_b07_b08_b09_what_is_collected_is_what_the_sandbox_has_and_nothing_in_it_changes(ground: Ground) -> None:
    box = ground.deploy("worker")
    box.sh(
        "mkdir -p /home/worker/out/deep/er '/home/worker/out/a b' && cd /home/worker/out && : > empty && printf 'x y' > 'a b/ü n.txt' && "
        "head -c 20971520 /dev/urandom > deep/er/random && printf '\\000\\377' > bin && ln -s /etc/passwd leads-out"
    )
    snapshot = (
        "find /home /srv /etc /root-only -type f -exec sha256sum {} + 2>/dev/null | sort; "
        "find / -xdev -newer /home/worker/out/bin -type f 2>/dev/null"
    )
    before = box.sh(snapshot)
    sums = dict(line.split("  ", 1)[::-1] for line in box.sh("cd /home/worker/out && find . -type f -exec sha256sum {} +").splitlines())
    tree = {"type": "collect_artifacts", "base_path": "/home/worker/out"}
    root = {"type": "collect_artifacts", "base_path": "/", "artifact_paths": ["root-only"]}
    box.do(*({**step, "id": f"{name}-{id}", **target} for id, target in TARGETS.items() for name, step in (("t", tree), ("r", root))))
    digest = hashlib.sha256(b"secret of root\n").hexdigest()
    for id in TARGETS:
        got = {name: box.metadata["collected_artifacts"][f"{name}-{id}"]["artifacts"] for name in "tr"}
        assert {f"./{name}": url.removeprefix("sha256:") for name, url in got["t"].items()} == sums
        assert got["r"] == {"root-only": f"sha256:{digest}"}
    assert box.sh(snapshot) == before


WHERE = """
import os, pathlib, socket

def run(given):
    here = pathlib.Path(__file__).resolve().parent
    private = [oct(folder.stat().st_mode & 0o777) for folder in (here, here.parent)]
    if given["args"].get("fails"):
        raise SystemExit("it fails")
    return {"host": socket.gethostname(), "cwd": os.getcwd(), "user": os.getuid(), "env": "env" in given, "private": "0o700" in private}
"""


def test_a08_b12_c10_code_runs_in_the_sandbox_as_root_from_a_private_folder_and_leaves_nothing(ground: Ground) -> None:
    box = ground.deploy("python")
    assert ground.home("artifact", "put", ground.home.write("where/run.py", WHERE), "--id", "where").code == 0
    code = {"type": "run_code", "script_artifact_id": "where"}
    host = box.sh("hostname").strip()
    box.do(*({**code, "id": id, **target} for id, target in TARGETS.items()))
    wanted = {"host": host, "cwd": "/srv", "user": 0, "env": False, "private": True}
    assert [box.metadata["script_results"][id] for id in TARGETS] == [wanted] * 2
    assert host in {box.container_id[:12], box.sandbox_id}
    for target in TARGETS.values():
        assert "it fails" in box.do({**code, "id": "again", "args": {"fails": True}, **target}, fails=True).all
    assert box.sh("ls -A /tmp/agent_env_run_code 2>/dev/null | wc -l").strip() == "0"
    assert not list(Path("/tmp").glob(f"*{box.sandbox_id}*"))
    if ground.provider == "local":
        (folder,) = ground.home.places.iterdir()
        assert sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()) == [
            ".agent-container-mode",
            ".agentenv/sandbox.json",
            ".port-map.json",
        ]


@on_podman_too
def test_f24_a09_b14_a_sandbox_that_is_gone_is_an_error_and_never_a_score(ground: Ground) -> None:
    box = ground.deploy("worker")
    ground.end(box)
    steps = (
        {"id": "v", "type": "verify_sandbox", "criteria": [probe("probe_file_exists", "/srv/inside")]},
        {"id": "c", "type": "collect_artifacts", "base_path": "/srv"},
    )
    for step, target in zip(steps, TARGETS.values(), strict=True):
        said = box.do({**step, **target}, fails=True).all
        if ground.docker is not None:
            assert f"Agent container '{box.name}' is not running" in said
            assert "Running containers: [" in said
        assert box.sandbox_id in said
        assert "verifications" not in ground.home.context(box.run_id)["metadata"]


def test_a10_a_machine_without_a_recorded_container_guesses_nothing(ground: Ground) -> None:
    machine = {**BOX, "sandbox_type": ground.provider}
    answer = ground.home("run", ground.home.bundle(t=[machine]), "--keep", "--json")
    if ground.provider == "rootfs":
        assert answer.code != 0
        assert "makes no sandbox of mode 'vm'" in answer.all
        return
    run_id = answer.json["runs"][0]["run_id"]
    context = ground.home.context(run_id)
    sandbox_id = context["deployed_sandboxes"][0]["sandbox_id"]
    agent = {"agent_name": AGENT, "api_url": None, "sandbox_id": sandbox_id, "sandbox_type": ground.provider, "on_host": False}
    file = ground.home.write("c.json", json.dumps({**context, "deployed_agents": [agent]}))
    steps = [{"id": "v", "type": "verify_sandbox", "agent_name": AGENT, "criteria": [probe("probe_file_exists", "/srv/inside")]}]
    assert ground.home("task", "create", ground.home.write("t.json", json.dumps(steps)), "--id", "t", "--skip-validation").code == 0
    assert ground.docker is not None
    image = ground.image("box")
    with decoy(ground.docker, image, f"agent-{sandbox_id}"), decoy(ground.docker, image, f"a2a-agent-{os.getpid()}-{ground.provider}"):
        failed = ground.home("task", "run", "--id", "t", "--context-json", file, "--json")
    assert failed.code != 0
    assert "recorded as in_container, without a container id" in failed.all
    assert failed.json["runs"][0]["scores"] == {}
    assert ground.home("runs", "teardown", run_id).code == 0
    assert ground.home("gc", "--kept").code == 0


def test_a10_a_record_without_an_id_is_resolved_once_and_pinned(ground: Ground) -> None:
    box = ground.deploy("worker")
    for record in (*box.context["deployed_sandboxes"], *box.context["deployed_agents"]):
        record.pop("container_id", None)
    host = box.container_id[:12] or box.sandbox_id
    assert box.scored(f'test "$(hostname)" = {host}', agent_name=AGENT, sandbox_name=None)["score"] == 1


@on_podman_too
def test_f24_a17_b02_b03_b04_b05_what_is_loaded_is_the_users_and_nothing_is_on_the_host(ground: Ground) -> None:
    home, box = ground.home, ground.deploy("worker")
    for name in ("sub/a.txt", "b.txt"):
        home.write(f"u/{name}", name)
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as zipped:
        zipped.writestr("root/etc/conf", "from root")
        zipped.writestr("data.json", json.dumps({"files": [{"path": "etc/conf", "content": "no"}, {"path": "more", "content": "yes"}]}))
    hostile = io.BytesIO()
    with zipfile.ZipFile(hostile, "w") as zipped:
        zipped.writestr("root/../../../work/evil", "x")
    seeds = {"seed": packed, "hostile": hostile}
    put = [("u", home.cwd / "u", ())]
    put += [
        (name, home.write(f"{name}.zip", each.getvalue()), ("--type", "environment", "--environment-name", "m"))
        for name, each in seeds.items()
    ]
    for id, path, more in put:
        assert home("artifact", "put", path, "--id", id, *more).code == 0
    load = {"type": "load_artifact"}
    with served(own_address()) as base:
        urls = [f"{base}/a/data.csv?x=1", f"{base}/b/data.csv", f"{base}/n%20m.txt"]
        for id, target in TARGETS.items():
            box.do(
                {**load, "id": f"u-{id}", "artifacts": [{"id": "u"}], "destination_path": f"/work/{id}", **target},
                {**load, "id": f"r-{id}", "artifacts": [{"id": "u"}], "destination_path": f"/root/closed-{id}", "owner": "0:0", **target},
                {**load, "id": f"d-{id}", "artifact_id": "u", **target},
                {**load, "id": f"w-{id}", "urls": urls, "destination_path": f"/fetched/{id}", **target},
                {**load, "id": f"s-{id}", "artifact_id": "seed", "destination_path": f"/seed/{id}", **target},
            )
            refused = box.do({**load, "id": "bad", "artifact_id": "hostile", "destination_path": f"/evil/{id}", **target}, fails=True)
            assert "leads outside" in refused.all
    said = box.scored(
        *(
            f"cd {at} && test $(stat -c %U {file}) = worker && test $(cat {file}) = {file}"
            for at in ("/work/as-sandbox", "/work/as-agent", "/loaded", "/tmp/file_artifacts")
            for file in ("sub/a.txt", "b.txt")
        ),
        *(f"echo more >> /work/{id}/b.txt && touch /work/{id}/sub/new" for id in TARGETS),
        *(f"test $(stat -c %u /root/closed-{id}/b.txt) = 0" for id in TARGETS),
        *(f"test \"$(ls /fetched/{id} | tr '\\n' '|')\" = 'data-1.csv|data.csv|n m.txt|'" for id in TARGETS),
        *(f"cd /seed/{id} && test $(stat -c %U more) = worker && test \"$(cat etc/conf more)\" = 'from rootyes'" for id in TARGETS),
        "test ! -e /work/evil",
        'test "$(ls -A /tmp)" = file_artifacts',
    )
    assert said["score"] == 1, [each for each in said["results"] if each["result"] is not True]
    assert not any(Path(at).exists() for at in ("/work/as-sandbox", "/fetched", "/seed"))
    assert not [path for name in ("a.txt", "data.csv", "conf") for path in home.places.rglob(name) if ground.provider != "rootfs"]


@on_podman_too
def test_f24_a01_a03_b10_its_ports_answer_here_and_are_the_same_when_it_is_reopened(ground: Ground) -> None:
    from tests.acceptance.test_ports import answered

    box = ground.deploy("worker", port=8000)
    first = box.record["tunnel_urls"]["8000"]
    box.do({**_serving(), "sandbox_name": "box"})
    assert answered(f"{first}/inside")
    box.do({"id": "again", "type": "verify_sandbox", "sandbox_name": "box", "criteria": [probe("probe_file_exists", "/srv/inside")]})
    assert box.record["tunnel_urls"]["8000"] == first
    assert answered(f"{first}/inside")


def _serving() -> dict[str, Any]:
    criterion = {"type": "bash_cmd_succeeds", "criterion": "serves", "bash_cmd": "httpd -p 8000 -h /srv"}
    return {"id": "serve", "type": "verify_sandbox", "base_dir": "/", "criteria": [criterion]}


def test_a11_a12_teardown_from_another_process_takes_what_a_deploy_made_and_no_other(ground: Ground) -> None:
    mine, other = ground.deploy("worker"), ground.deploy("worker")
    mine.teardown()
    assert ground.home("runs", "teardown", mine.run_id).code == 0
    assert other.sh("cat /srv/inside") == "only the container has it\n"
    if ground.docker is not None:
        found = asked(ground.docker, lambda engine: labelled(engine, {"agentenv.sandbox": mine.sandbox_id}))
        assert list(found) == []
        assert inspected(ground.docker, other.container_id)["State"]["Running"]

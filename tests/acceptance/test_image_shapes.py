"""Images of every shape as a task meets them: each works, or the run says why not; and nothing of any is left.

A root that can't be written is no property of an image: tests/containers holds that.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from agent_env.containers import Engine, EngineEndpoint
from tests.acceptance.conftest import Home, check
from tests.acceptance.containers import asked, in_engine
from tests.acceptance.session import Session
from tests.container_engine import archive_of, busybox_root, ensure
from tests.images.laboratory import saved

BASH = b'#!/bin/sh\nexec /bin/sh "$@"\n'
FOREIGN = b"\x7fELF\x02\x01\x01" + bytes(9) + (2).to_bytes(2, "little") + (183).to_bytes(2, "little") + bytes(44)
"""The head of a program for arm64."""


@dataclass(frozen=True)
class Shape:
    """An image, and how a task in it must end."""

    image: str
    files: Mapping[str, bytes | str | None]
    changes: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    """Must succeed there."""
    error: str | None = None
    """Of the run; None when it completes."""
    owners: Mapping[str, int] = field(default_factory=dict)
    architecture: str | None = None
    """Of an image that is loaded rather than imported, which engines take for their own."""


def with_shell(**more: bytes | str | None) -> dict[str, bytes | str | None]:
    return {**busybox_root(), "bin/bash": BASH, "app": None, **more}


STAYS = 'CMD ["sleep","100000"]'
SHAPES: dict[str, Shape] = {
    "scratch": Shape("shape-scratch", {"data": b""}),
    "scratch-command": Shape("shape-scratch", {"data": b""}, commands=("true",), error="bash could not be started"),
    "busybox": Shape("shape-busybox", with_shell(), (STAYS,), ("test $(id -u) = 0", "grep -q loaded /app/note.txt")),
    "ends-at-once": Shape(
        "shape-ends", with_shell(), ('CMD ["sh","-c","exit 7"]',), ("true",), "is not running: it has exited with code 7"
    ),
    "non-root": Shape(
        "shape-worker",
        with_shell(),
        (STAYS, "USER worker", "WORKDIR /home/worker"),
        ("test $(id -u) = 1001", "echo x > /app/mine", "! echo x > /etc/mine"),
        owners={"app": 1001},
    ),
    "volumes": Shape(
        "shape-volumes",
        with_shell(**{"data": None, "data/kept": b"of the image"}),
        (STAYS, "VOLUME /data /other"),
        ("cat /data/kept", "echo x > /other/y"),
    ),
    "other-architecture": Shape(
        "shape-arm", {"run": FOREIGN}, error="built for arm64, the engine.s machine is amd64|arm64.*amd64", architecture="arm64"
    ),
}


def tagged(docker: EngineEndpoint, shape: Shape) -> str:
    """The image in the engine."""
    tag = f"agentenv-test/{shape.image}:1"
    root = archive_of(shape.files, modes={"tmp": 0o1777, "run": 0o755}, owners={"home/worker": 1001, **shape.owners})
    if shape.architecture is None:
        return ensure(docker, tag, lambda: root, shape.changes)

    async def load(engine: Engine) -> None:
        await engine.ready()
        archive = saved([root], names=[tag], architecture=shape.architecture, Cmd=["/run"])
        async with engine.asking("loading", seconds=60) as client:
            answer = await client.session.post(engine.url("images/load"), data=archive, headers={"Content-Type": "application/x-tar"})
            assert answer.status == 200, await answer.text()

    asked(docker, load)
    return tag


@pytest.fixture
def nothing_left(home: Home, docker: EngineEndpoint) -> Iterator[None]:
    """No container, volume, network or anonymous volume more than before."""
    before = asked(docker, nameless)
    yield
    assert not in_engine(docker, home)
    assert not asked(docker, nameless) - before


async def nameless(engine: Engine) -> set[str]:
    """Volumes that nobody named, which an engine makes of an image's own: those that nobody uses, as ours would be by now."""
    async with engine.asking("listing volumes") as client:
        found = (await client._query_json("volumes", params={"filters": '{"dangling":["true"]}'}))["Volumes"] or []
    return {each["Name"] for each in found if re.fullmatch(r"[0-9a-f]{64}", each["Name"])}


def test_mustshow6_every_shape_of_image_works_or_says_why_and_leaves_nothing(
    home: Home, docker: EngineEndpoint, nothing_left: None
) -> None:
    home.write("b/artifacts/note/note.txt", "loaded\n")
    tasks = {name: task(tagged(docker, shape), shape) for name, shape in SHAPES.items()}
    answer = home("run", home.bundle(**tasks), "--json", "--concurrency", "3")
    ended = {run["task"].removeprefix("tasks/").removesuffix(".json"): run for run in answer.json["runs"]}
    wrong = []
    for name, shape in SHAPES.items():
        error = (ended[name].get("error") or {}).get("message", "")
        if shape.error is None and ended[name]["scores"] != {"look": 1.0}:
            wrong.append(f"{name}: {ended[name]['status']} {ended[name]['scores']} {error}")
        if shape.error is not None and not re.search(shape.error, error):
            wrong.append(f"{name}: {ended[name]['status']} {error!r} does not say {shape.error!r}")
    assert not wrong, "\n".join(wrong)


def task(image: str, shape: Shape) -> list[dict[str, Any]]:
    """A file goes in, is looked at, commands run, and files come out."""
    commands = [{"type": "bash_cmd_succeeds", "criterion": text, "bash_cmd": text} for text in shape.commands]
    there = {"type": "probe_file_contains", "criterion": "loaded", "paths": ["/app/note.txt"], "expected": "loaded"}
    verify = {"type": "verify_sandbox", "verifier_id": "look", "base_dir": "/", "criteria": [there, *commands]}
    on = {"sandbox_name": "box"}
    return [
        {"id": "box", "type": "deploy_sandbox", **on, "sandbox_mode": "container", "image": image, "port": 8000},
        {"id": "load", "type": "load_artifact", **on, "artifact_id": "note", "destination_path": "/app"},
        {"id": "look", **verify, **on},
        {"id": "out", "type": "collect_artifacts", **on, "base_path": "/app"},
    ]


BUSYBOX_ONLY = {**busybox_root(), "app": None}
STATIC = {"busybox": busybox_root()["bin/busybox"]}


@dataclass(frozen=True)
class Userland:
    """What an image has, and what the steps that need more than it has say."""

    words: tuple[str, ...]
    """A command that needs no shell."""
    lacks: Mapping[str, str]
    """Step → what it names."""


USERLANDS = {
    "busybox": Userland(("/bin/busybox", "echo", "$HOME *"), {"verify": "bash", "code": "python3"}),
    "debian": Userland(("/bin/echo", "$HOME *"), {"code": "python3"}),
    "scratch": Userland(("/busybox", "echo", "$HOME *"), {"verify": "bash", "code": "python3"}),
}


def staying(docker: EngineEndpoint, image: str) -> str:
    """The same image with a command that stays."""

    async def make(engine: Engine) -> None:
        async with engine.asking("making an image that stays") as client:
            made = await client._query_json("containers/create", method="POST", data={"Image": image})
            named = {"container": made["Id"], "repo": "agentenv-test/userland-debian", "tag": "1", "changes": STAYS}
            await client._query_json("commit", method="POST", params=named)
            await client.containers.container(made["Id"]).delete(force=True)

    asked(docker, make)
    return "agentenv-test/userland-debian:1"


@pytest.mark.parametrize("name", USERLANDS)
def test_im08_a_command_and_files_need_nothing_of_the_image_and_a_step_that_does_says_what(
    name: str, home: Home, docker: EngineEndpoint, nothing_left: None, request: pytest.FixtureRequest
) -> None:
    userland = USERLANDS[name]
    image = {
        "busybox": lambda: ensure(docker, "agentenv-test/userland-busybox:1", lambda: archive_of(BUSYBOX_ONLY, modes={"tmp": 0o1777})),
        "debian": lambda: staying(docker, request.getfixturevalue("debian")),
        "scratch": lambda: ensure(docker, "agentenv-test/userland-scratch:2", lambda: archive_of(STATIC)),
    }[name]()
    box = Session(home, image)
    answer = home("exec", f"{box.run_id}:box", "--", *userland.words)
    assert answer.out == "$HOME *\n", answer.all
    assert home("artifact", "put", home.write("u/deep/a b.bin", bytes(range(256))), "--id", "u").code == 0
    on = {"sandbox_name": "box"}
    box.do({"id": "load", "type": "load_artifact", "artifact_id": "u", "destination_path": "/data", **on})
    box.do({"id": "out", "type": "collect_artifacts", "base_path": "/data", **on})
    (digest,) = box.metadata["collected_artifacts"]["out"]["artifacts"].values()
    assert digest == f"sha256:{hashlib.sha256(bytes(range(256))).hexdigest()}"
    there = {"type": "probe_dir_exists", "criterion": "there", "paths": ["/data"]}
    box.do({"id": "look", "type": "verify_sandbox", "criteria": [there], **on})
    assert box.metadata["verifications"]["look"]["score"] == 1
    assert home("artifact", "put", home.write("code/run.py", "def run(given):\n    return 1\n"), "--id", "code").code == 0
    asking = {"verify": {**check("true"), "base_dir": "/"}, "code": {"id": "code", "type": "run_code", "script_artifact_id": "code", **on}}
    for step, fields in asking.items():
        answer = box.do(fields, fails=step in userland.lacks)
        assert userland.lacks.get(step, "") in answer.all
    assert ("check" in box.metadata["verifications"]) is ("verify" not in userland.lacks)
    box.teardown()

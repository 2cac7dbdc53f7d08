"""`agent-env image`, as a user types it."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_env.containers import Engine, EngineEndpoint
from agent_env.images.engine_api import EngineApi
from agent_env.images.oci.store import ImageStore
from tests.cli.conftest import Cli
from tests.images.laboratory import door, layout, publish, tar_of


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    made = Cli(tmp_path)
    made.env["DOCKER_HOST"] = f"unix://{tmp_path}/no-engine.sock"
    return made


@pytest.fixture
def engine(cli: Cli, docker: EngineEndpoint, busybox: str) -> Iterator[Cli]:
    cli.env["DOCKER_HOST"] = docker.url
    yield cli
    cli("image", "gc", "--all")


def drop(endpoint: EngineEndpoint, image: str) -> None:
    """Removes an image that was pulled, which the product never does."""

    async def work() -> None:
        async with Engine(endpoint) as client:
            await EngineApi(client).ask("DELETE", f"images/{image}", params={"force": "1"})

    asyncio.run(work())


def name() -> str:
    return f"agentenv-test/c{secrets.token_hex(5)}"


def test_a_folder_is_built_listed_and_removed(engine: Cli, busybox: str) -> None:
    engine.write("Dockerfile", f"FROM {busybox}\nARG WHO\nRUN echo hello $WHO > /{secrets.token_hex(4)}\n")
    built = engine("image", "build", "-t", f"{(tag := name())}:1", "--build-arg", "WHO=you", "--json")
    assert built.code == 0, built.all
    assert built.json["name"] == f"{tag}:1"
    assert "[1/6]" in built.err or "[1/5]" in built.err
    listed = engine("image", "list", "--json").json
    assert listed["engine"] is None
    assert [(row["id"], row["names"], row["containers"], row["foreign_names"]) for row in listed["images"]] == [
        (built.json["id"], [f"{tag}:1"], 0, [])
    ]
    (row,) = [row for row in engine("image", "list").out.splitlines() if row.startswith(f"{tag}:1")]
    size = engine("image", "list", "--json").json["images"][0]["size_bytes"]
    assert size > 0
    assert " 0 B" not in row.partition("  ")[2].split("  ")[1], "its size is that of all layers, also where it shares them"
    planned = engine("image", "gc", "--all", "--dry-run")
    assert f"image {tag}:1: would be removed" in planned.out
    done = engine("image", "gc", "--all", "--json").json
    assert [row["names"] for row in done["images"]["removed"]] == [[f"{tag}:1"]]
    assert engine("image", "list", "--json").json["images"] == []
    assert engine("image", "gc").out == "nothing to remove\n"


def test_without_a_name_the_folder_and_its_content_name_it_and_the_same_is_built_once(engine: Cli, busybox: str) -> None:
    engine.write("Dockerfile", f"FROM {busybox}\nRUN echo {secrets.token_hex(4)} > /x\n")
    first, second = engine("image", "build", "--json", "-q"), engine("image", "build", "--json", "-q")
    assert first.json == second.json
    assert first.err == ""
    path, _, tag = first.json["name"].partition(":")
    assert path.startswith("local/")
    assert first.json["sources"].startswith(tag)


def test_a_failing_build_shows_its_step_and_log_and_exits_with_1(engine: Cli, busybox: str) -> None:
    engine.write("Dockerfile", f"FROM {busybox}\nRUN echo the reason; exit 4\n")
    done = engine("image", "build", "-q")
    assert done.code == 1
    assert "RUN echo the reason; exit 4" in done.err
    assert "  the reason" in done.err
    assert engine("image", "build", "-q", "--json").json["error"]["code"] == "image_build"


def test_im03_a_secret_build_argument_is_refused_and_not_shown(engine: Cli, busybox: str) -> None:
    engine.write("Dockerfile", f"FROM {busybox}\n")
    done = engine("image", "build", "--build-arg", "API_KEY=canary-value")
    assert done.code == 2
    assert "API_KEY looks like a secret" in done.err
    assert "canary-value" not in done.all


def test_a_password_of_the_configuration_reaches_the_registry_and_nothing_else(engine: Cli, docker: EngineEndpoint, registry: str) -> None:
    image = publish(registry, [tar_of(("f", secrets.token_bytes(100)))])
    with door(registry, user="me", password="canary-in-config") as gate:
        engine.write(".agentenv/config.toml", f'[images.registries."{gate.address}"]\nusername = "me"\npassword = "env:REGISTRY_PASS"\n')
        env = {"REGISTRY_PASS": "canary-in-config", "AGENT_ENV_TRUSTED_FOLDERS": str(engine.cwd), "AGENT_ENV_TRUST": str(engine.cwd)}
        wanted = image.name.replace(registry, gate.address)
        assert engine("trust", engine.cwd).code == 0
        unpacked = engine("image", "pull", "--unpack", wanted, "--json", "--debug", env=env)
        assert unpacked.code == 0, unpacked.all
        pulled = engine("image", "pull", wanted, "--json", "--debug", env=env)
        assert pulled.code == 0, pulled.all
        assert pulled.json["pinned"].endswith(image.digest)
        pushed = engine("image", "push", f"{gate.address}/{name()}:2", "--source", pulled.json["id"], "--debug", env=env)
        assert pushed.code == 0, pushed.all
        drop(docker, pulled.json["id"])
        assert f":2@{image.digest[:6]}" in pushed.out
        stored = b"".join(path.read_bytes() for path in (engine.home / "state").rglob("*") if path.is_file())
        assert "canary-in-config" not in unpacked.all + pulled.all + pushed.all + stored.decode(errors="replace")
        wrong = engine("image", "pull", "--unpack", "--newest", wanted, env={**env, "REGISTRY_PASS": "wrong-canary"})
        assert "wrong-canary" not in wrong.all


def test_without_an_engine_images_are_unpacked_listed_and_removed_all_the_same(cli: Cli) -> None:
    place = f"oci:{layout(cli.cwd / 'layout', [tar_of(('bin/x', b'x'))], Cmd=['x'], User='7')}"
    done = cli("image", "pull", "--unpack", place, "--json")
    assert done.code == 0, done.all
    assert (Path(done.json["root"]) / "bin/x").read_text() == "x"
    assert (done.json["cmd"], done.json["user"], done.json["owners"]) == (["x"], "7", os.geteuid() == 0)
    listed = cli("image", "list", "--json").json
    assert "no-engine.sock" in listed["engine"]
    assert [(row["location"], row["bytes"], row["pins"]) for row in listed["unpacked"]] == [(place, 1, [])]
    assert "without the container engine" in cli("image", "list").err
    assert cli("image", "gc", "--json").json["unpacked"]["removed"] == []
    store = ImageStore(cli.home / "state/agent-env")
    asyncio.run(store.unpacked(place, pinned_by="sandbox/1"))
    assert "unpacked images: 1 left: sandboxes are made of them" in cli("image", "gc", "--all").out
    store.release("sandbox/1")
    assert [row["location"] for row in cli("image", "gc", "--all", "--json").json["unpacked"]["removed"]] == [place]
    assert not Path(done.json["root"]).exists()


@pytest.mark.parametrize("command", [["build", "."], ["pull", "x:1"], ["push", "x:1"]])
def test_im05_what_needs_an_engine_says_that_there_is_none(cli: Cli, command: list[str]) -> None:
    cli.write("Dockerfile", "FROM scratch\n")
    done = cli("image", *command)
    assert done.code == 1
    assert "no-engine.sock" in done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize(
    ("command", "word"),
    [
        (["pull", "No Name"], "no image name"),
        (["build", "absent"], "is no folder"),
        (["build", ".", "-f", "nope"], "does not exist"),
        (["build", ".", "-t", "Bad"], "no image name"),
        (["build", ".", "--build-arg", "x"], "NAME=VALUE"),
        (["build", ".", "--platform", "a/b/c/d"], "no platform"),
        (["pull", "--unpack", "oci:absent"], "no OCI layout"),
    ],
)
def test_what_is_wrong_with_the_arguments_is_said_without_an_engine(cli: Cli, command: list[str], word: str) -> None:
    cli.write("Dockerfile", "FROM scratch\n")
    done = cli("image", *command)
    assert done.code == 2, done.all
    assert word in done.err


def test_gc_of_the_installation_removes_what_failed_builds_left_and_what_is_above_the_budget(engine: Cli, busybox: str) -> None:
    engine.write("Dockerfile", f"FROM {busybox}\nRUN head -c 100000 /dev/urandom > /{secrets.token_hex(4)}\n")
    assert engine("image", "build", "-q", "-t", (kept := f"{name()}:1")).code == 0
    engine.write("Dockerfile", f"FROM {busybox}\nRUN echo {secrets.token_hex(4)} > /x\nRUN exit 3\n")
    assert engine("image", "build", "-q").code == 1
    planned, done = engine("gc", "--dry-run", "--json"), engine("gc", "--json")
    assert done.json["images"] == planned.json["images"]
    assert (done.json["images"]["built"], done.json["images"]["layers"]) == ([], 1)
    assert engine("gc").out == "nothing to remove\n"
    above = {"AGENT_ENV_LIMIT_IMAGE_BUDGET_BYTES": "1", "AGENT_ENV_LIMIT_GC_GRACE_SECONDS": "0"}
    assert engine("gc", "--json", env={**above, "AGENT_ENV_LIMIT_GC_GRACE_SECONDS": "3600"}).json["images"]["built"] == []
    assert f"image {kept}: would be removed" in engine("gc", "--dry-run", env=above).out
    assert f"image {kept}: removed" in engine("gc", env=above).out
    assert engine("image", "list", "--json").json["images"] == []


def test_gc_without_an_engine_has_only_unpacked_images_to_collect(cli: Cli) -> None:
    answer = cli("gc", "--json")
    assert answer.code == 0
    assert answer.json["images"] == {"built": [], "layers": 0, "unpacked": [], "bytes": 0}


def test_a_torn_down_sandbox_has_its_image_no_more(cli: Cli, tmp_path: Path, busybox: str, docker: EngineEndpoint) -> None:
    cli.env["DOCKER_HOST"] = docker.url
    box = {"id": "box", "type": "deploy_sandbox", "sandbox_name": "box", "sandbox_mode": "container", "image": busybox, "port": 80}
    task = cli.write("task.json", [{**box, "sandbox_type": "rootfs"}])
    run = cli("run", task, "--keep", "--json")
    assert run.code == 0, run.all
    above = {"AGENT_ENV_LIMIT_IMAGE_LAYERS_BYTES": "0"}
    (record,) = cli("image", "list", "--json").json["unpacked"]
    assert len(record["pins"]) == 1
    assert cli("gc", "--json", env=above).json["images"]["unpacked"] == []
    assert cli("runs", "teardown", run.json["runs"][0]["run_id"]).code == 0
    assert [row["pins"] for row in cli("image", "list", "--json").json["unpacked"]] == [[]]
    assert len(cli("gc", "--json", env=above).json["images"]["unpacked"]) == 1

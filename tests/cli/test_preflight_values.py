"""Image names that are none, images that are nowhere, and secrets without a value are told before anything starts, all at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agent_env.containers import EngineEndpoint
from tests.cli.conftest import Cli
from tests.cli.test_preflight import LOOKING, RUNNING, file
from tests.images.laboratory import debian_registry

DRY: list[str] = ["run FILE --dry-run", "run BUNDLE --dry-run"]
CLOSED = "127.0.0.1:1"
"""Nobody listens on the first port of this machine."""


def container(**fields: Any) -> dict[str, Any]:
    box = {"id": "box", "type": "deploy_sandbox", "sandbox_name": "box", "sandbox_mode": "container", "port": 80, "image": "busybox"}
    return {**box, **fields}


@pytest.mark.parametrize("way", [*RUNNING, *LOOKING])
def test_what_can_be_no_image_is_a_mistake_everywhere(cli: Cli, way: str) -> None:
    if way in {"task run", "task validate"}:  # the task is refused when it is stored
        answer = cli("task", "create", file(cli, container(image="Not A Name")), "--id", "t")
    else:
        answer = cli(*{**RUNNING, **LOOKING}[way](cli, container(image="Not A Name")))
    assert answer.code == 2, answer.err
    assert "$[0].image" in answer.err


@pytest.mark.parametrize("image", ["Upper", "a:b:c", "x@sha256:12", "host:99999/x", "docker://", "oci:"])
def test_every_kind_of_impossible_name_is_told_with_its_place(cli: Cli, image: str) -> None:
    answer = cli("run", file(cli, container(image=image)), "--dry-run")
    assert answer.code == 2, answer.err
    assert "$[0].image" in answer.err


@pytest.mark.parametrize("field", ["image", "image_tag"])
def test_what_can_be_no_image_of_a_container_beside_a_machine_is_a_mistake(cli: Cli, field: str) -> None:
    box = {"id": "box", "type": "deploy_sandbox", "sandbox_name": "box", "sandbox_mode": "vm"}
    steps = [box, {"id": "c", "type": "run_docker_container", "sandbox_name": "box", field: "oci:/some/where"}]
    answer = cli("run", cli.write("task.json", steps), "--dry-run")
    assert answer.code == 2
    assert f"$[1].{field}" in answer.err


def test_what_a_seed_is_still_to_fill_is_no_mistake_yet(cli: Cli) -> None:
    task = file(cli, container(image="Python:<version>", env_vars={"TOKEN": "env:<name>"}))
    assert "$[0].image" not in cli("run", task, "--dry-run").err


@pytest.mark.parametrize("way", DRY)
def test_an_image_that_its_registry_lacks_is_told_with_its_place(cli: Cli, docker: EngineEndpoint, tmp_path: Path, way: str) -> None:
    (tmp_path / "registry").mkdir()
    with debian_registry(tmp_path / "registry") as address:
        answer = cli(*RUNNING[way](cli, container(image=f"{address}/nobody/has:this")))
    assert answer.code == 2
    assert "$[0].image" in answer.err
    assert f"{address} has no image {address}/nobody/has:this" in answer.err


@pytest.mark.parametrize("way", LOOKING)
def test_an_image_that_its_registry_lacks_is_warned_about_and_refused_when_strict(
    cli: Cli, docker: EngineEndpoint, tmp_path: Path, way: str
) -> None:
    (tmp_path / "registry").mkdir()
    with debian_registry(tmp_path / "registry") as address:
        command = LOOKING[way](cli, container(image=f"{address}/nobody/has:this"))
        answer = cli(*command)
        strict = cli(*command, "--strict")
    assert answer.code == 0
    assert "has no image" in answer.err
    assert strict.code == 2


@pytest.mark.parametrize("way", [*DRY, *LOOKING])
def test_an_image_whose_registry_is_not_reached_is_only_warned_about(cli: Cli, docker: EngineEndpoint, way: str) -> None:
    image = f"{CLOSED}/x:1"
    command = {**RUNNING, **LOOKING}[way](cli, container(image=image))
    answer = cli(*command)
    assert answer.code == 0, answer.err
    assert f"nobody could say whether there is an image {image}" in answer.all
    assert any("nobody could say" in warning for warning in cli(*command, "--json").json["warnings"])
    assert cli(*command, *(["--strict"] if way in LOOKING else [])).code == 0


def test_an_image_that_the_engine_holds_asks_nobody(cli: Cli, busybox: str) -> None:
    answer = cli("run", file(cli, container(image=busybox)), "--dry-run")
    assert answer.code == 0, answer.err
    assert "nobody could say" not in answer.all


def test_an_image_that_is_only_a_context_and_was_not_built_is_nowhere(cli: Cli, docker: EngineEndpoint) -> None:
    answer = cli("run", file(cli, container(image="local/never-built:0123456789abcdef")), "--dry-run")
    assert answer.code == 2
    assert "was not built here" in answer.err


def test_an_image_that_a_step_of_the_same_task_builds_is_not_missing(cli: Cli, docker: EngineEndpoint) -> None:
    box = {"id": "box", "type": "deploy_sandbox", "sandbox_name": "box", "sandbox_mode": "vm"}
    built = {"id": "b", "type": "run_docker_container", "sandbox_name": "box", "docker_context_url": "https://example.org/context.zip"}
    used = {"id": "u", "type": "run_docker_container", "sandbox_name": "box", "container_name": "two", "image": "local/mine:latest"}
    answer = cli("run", cli.write("task.json", [box, {**built, "image_tag": "local/mine"}, used]), "--dry-run")
    assert answer.code == 0, answer.err


@pytest.mark.parametrize("image", ["oci:{0}/nowhere", "docker-archive:{0}/nowhere.tar"])
def test_a_file_of_this_machine_that_is_not_there_is_told(cli: Cli, image: str) -> None:
    task = file(cli, container(image=image.format(cli.cwd), sandbox_type="rootfs"))
    answer = cli("run", task, "--dry-run")
    assert answer.code == 2
    assert "$[0].image" in answer.err
    assert "nowhere" in answer.err


@pytest.mark.parametrize("reference", ["secret:NOBODY/KEPT", "env:NOBODY_SET_THIS"])
@pytest.mark.parametrize("way", RUNNING)
def test_a_secret_without_a_value_is_told_before_anything_runs(cli: Cli, busybox: str, way: str, reference: str) -> None:
    answer = cli(*RUNNING[way](cli, container(image=busybox, env_vars={"TOKEN": reference})))
    assert answer.code == 2
    assert "$[0].env_vars.TOKEN" in answer.err
    assert f"{reference} has no value" in answer.err
    assert cli("runs", "list", "--json").json == {"runs": []}


@pytest.mark.parametrize("way", LOOKING)
def test_a_secret_without_a_value_is_warned_about_where_documents_are_checked(cli: Cli, busybox: str, way: str) -> None:
    command = LOOKING[way](cli, container(image=busybox, env_vars={"TOKEN": "secret:NOBODY/KEPT"}))
    answer = cli(*command)
    assert answer.code == 0
    assert "secret:NOBODY/KEPT has no value" in answer.err
    assert cli(*command, "--strict").code == 2


def test_a_stored_image_that_is_only_a_name_is_looked_for_too(cli: Cli, docker: EngineEndpoint) -> None:
    steps = [
        {"id": "box", "type": "deploy_sandbox", "sandbox_name": "box", "sandbox_mode": "vm"},
        {"id": "c", "type": "run_docker_container", "sandbox_name": "box", "docker_context_artifact_id": "server"},
    ]
    cli.write("bundle/tasks/t.json", steps)
    cli.write("bundle/artifacts/server/artifact.toml", f'type = "docker_image"\nref = "{CLOSED}/x:1"\n')
    answer = cli("run", cli.cwd / "bundle", "--dry-run")
    assert answer.code == 0, answer.err
    assert f"$[1].docker_context_artifact_id: nobody could say whether there is an image {CLOSED}/x:1" in answer.all


@pytest.mark.parametrize("reference", ["secret:NOBODY?fallback", "env:NOBODY_SET_THIS?secret:NOBODY?x", "env:HOME", "plain"])
def test_a_default_or_a_value_is_enough(cli: Cli, busybox: str, reference: str) -> None:
    answer = cli("run", file(cli, container(image=busybox, env_vars={"TOKEN": reference})), "--dry-run")
    assert answer.code == 0, answer.err


def test_everything_is_told_at_once_with_file_and_place(cli: Cli, docker: EngineEndpoint) -> None:
    steps = [
        container(env_vars={"A": "env:NOBODY_SET_THIS", "B": "secret:NOBODY"}, image="local/never-built:1"),
        container(id="two", sandbox_name="two", env_vars={"A": "secret:OTHER"}, image="local/never-built:1", sandbox_type="lcal"),
    ]
    said = cli("run", cli.write("task.json", json.dumps(steps)), "--dry-run").err
    for expected in (
        "env:NOBODY_SET_THIS has no value",
        "secret:NOBODY has no value",
        "secret:OTHER has no value",
        "'lcal'",
        "$[1].env_vars.A",
    ):
        assert expected in said
    assert said.count("task.json") >= 4

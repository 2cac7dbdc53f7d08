"""What can't be deployed is told before any step, with a provider that can."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agent_env.artifacts.image_artifacts import put_context, put_reference
from agent_env.images import BuildContext, ImageReference
from tests.engine.parts import engine_at, planned
from tests.environments.bench import HERE, run

NOWHERE = "unix:///nowhere/docker.sock"


async def told(root: Path, *, sandbox: str | None, built: bool = True, website: bool = False, **fields: Any) -> list[str]:
    """What a preflight says of a task that deploys one server, or one website."""
    async with engine_at(root) as engine:
        artifacts = engine.stores.artifacts
        if built:
            image = put_context(artifacts, "stock__image", BuildContext.of(HERE / "server"))
        else:
            image = put_reference(artifacts, "stock__image", ImageReference.parse("registry.example/stock:1"))
        ref = {"id": image.id, "version": image.version, "type": "docker_image"}
        body = {"metadata": {}, "docker_image_artifact": ref, "environment_name": "tickets", "env_provider_type": "gateway"}
        if website:
            images = {"backend_docker_image_artifact": ref, "frontend_docker_image_artifact": ref}
            body = {**images, "metadata": {}, "environment_name": "tickets", "env_provider_type": "gateway"}
        engine.stores.documents.put("envs", "env", "website" if website else "mcp_server", body)
        step = {"id": "deploy", "type": "deploy_env", "env_id": "env", **({"sandbox_type": sandbox} if sandbox else {}), **fields}
        found = await engine.preflight({"task.json": planned(engine, [step])})
        return [str(problem) for problem in found.problems]


def test_c08_an_image_that_must_be_built_is_refused_where_images_are_run_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", NOWHERE)
    (problem,) = run(told(tmp_path / "state", sandbox="rootfs"))
    assert problem.startswith("task.json: $[0]: no sandboxes can be made for the environment: rootfs: it runs images by name")
    assert "those of tickets have to be built first" in problem


def test_the_provider_that_can_is_named(python_base: str, tmp_path: Path) -> None:
    (problem,) = run(told(tmp_path / "state", sandbox="rootfs", website=True))
    assert "needs machines for websites" in problem
    assert "deploy it with 'local'" in problem


def test_an_image_that_has_a_name_may_run_by_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", NOWHERE)
    assert run(told(tmp_path / "state", sandbox="rootfs", built=False)) == []


def test_without_an_engine_no_server_stands_beside_a_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", NOWHERE)
    (problem,) = run(told(tmp_path / "state", sandbox="local", built=False))
    assert f"local: it runs no containers beside its machines, because no container engine answers at {NOWHERE}" in problem
    assert "start a container engine" in problem
    assert "or deploy it with 'rootfs'" in problem


def test_a_chain_is_refused_only_where_none_of_it_can(python_base: str, tmp_path: Path) -> None:
    assert run(told(tmp_path / "state", sandbox="rootfs,local", website=True)) == []


def test_a_database_stands_beside_a_machine_or_in_a_sandbox_of_its_own(python_base: str, tmp_path: Path) -> None:
    for sandbox in ("rootfs", "local"):
        assert run(told(tmp_path / sandbox, sandbox=sandbox, env_state_type="local_postgres")) == []

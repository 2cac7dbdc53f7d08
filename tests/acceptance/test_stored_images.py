"""A container beside a machine, of an image that is an artifact: built from its context, loaded from an archive, or known by its name."""

from __future__ import annotations

import asyncio
import gzip
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_env.artifacts import Artifacts
from agent_env.config.loading import DATABASE_FILE
from agent_env.containers import Engine, EngineEndpoint
from agent_env.documents.artifact_kinds import DockerImageArtifact
from agent_env.images.engine_api import EngineApi
from agent_env.images.held import inspect
from agent_env.stores import Database, Documents, Objects
from tests.acceptance.boxes import box_image
from tests.acceptance.conftest import BOX, Home
from tests.acceptance.test_beside import beside, inside

__all__ = ["box_image"]


@pytest.fixture
def tag(docker: EngineEndpoint) -> Iterator[str]:
    """A name that the engine does not have, and has not afterwards."""
    name = f"agentenv-test/stored-{secrets.token_hex(5)}:1"
    yield name
    asyncio.run(_removed(docker, name))


async def _removed(docker: EngineEndpoint, name: str) -> None:
    async with Engine(docker) as engine:
        if await inspect(EngineApi(engine), name) is not None:
            await EngineApi(engine).ask("DELETE", f"images/{name}", params={"noprune": "1", "force": "1"})


async def _saved(docker: EngineEndpoint, image: str, name: str, into: Path) -> None:
    """An archive of an image under a name, which the engine then has no more."""
    async with Engine(docker) as engine:
        api = EngineApi(engine)
        await api.ask("POST", f"images/{image}/tag", params={"repo": name.partition(":")[0], "tag": name.partition(":")[2]})
        with gzip.open(into, "wb", compresslevel=1) as out:
            async with api.content(f"images/{name}/get", seconds=60) as chunks:
                async for chunk in chunks:
                    out.write(chunk)
    await _removed(docker, name)


async def _has(docker: EngineEndpoint, name: str) -> bool:
    async with Engine(docker) as engine:
        return await inspect(EngineApi(engine), name) is not None


def stored(home: Home, image: DockerImageArtifact, archive: Path | None = None) -> None:
    """Puts an image into the stores of a home, as another system wrote it."""
    with Database.open(f"sqlite:///{home.state / DATABASE_FILE}") as db:
        objects = Objects(home.state / "objects", db)
        url = objects.put_file(archive, media_type="application/gzip").url if archive else None
        Artifacts(Documents(db), objects).put_image(image.model_copy(update={"tar_gz_object_url": url}))


def of(artifact: str) -> list[dict[str, object]]:
    return [BOX, beside("c", docker_context_artifact_id=artifact, command_override="sleep 1000"), inside("c", "test -e /bin/sh", id="in")]


def test_an_image_of_the_bundle_is_built_and_run(home: Home, docker: EngineEndpoint, box_image: str) -> None:
    home.write("b/artifacts/server/Dockerfile", f'FROM {box_image}\nCOPY word /word\nCMD ["sleep", "1000"]\n')
    home.write("b/artifacts/server/word", "built\n")
    steps = [BOX, beside("c", docker_context_artifact_id="server"), inside("c", "grep built /word", id="in")]
    answer = home("run", home.bundle(t=steps), "--json")
    assert answer.code == 0, answer.all
    assert answer.json["runs"][0]["scores"] == {"in": 1.0}
    assert home("image", "gc", "--all").code == 0


def test_an_image_that_is_stored_as_an_archive_is_loaded(
    home: Home, docker: EngineEndpoint, box_image: str, tag: str, tmp_path: Path
) -> None:
    assert home("runs", "list").code == 0
    asyncio.run(_saved(docker, box_image, tag, tmp_path / "image.tar.gz"))
    stored(home, DockerImageArtifact(id="server", image_name=tag), tmp_path / "image.tar.gz")
    answer = home("run", home.bundle(t=of("server")), "--json")
    assert answer.code == 0, answer.all
    assert answer.json["runs"][0]["scores"] == {"in": 1.0}
    assert asyncio.run(_has(docker, tag))


def test_an_image_that_is_stored_as_a_name_is_used_as_it_is(home: Home, docker: EngineEndpoint, box_image: str) -> None:
    assert home("runs", "list").code == 0
    stored(home, DockerImageArtifact(id="server", image_name=box_image))
    answer = home("run", home.bundle(t=of("server")), "--json")
    assert answer.code == 0, answer.all
    assert answer.json["runs"][0]["scores"] == {"in": 1.0}


def test_an_archive_that_is_none_is_said_so(home: Home, docker: EngineEndpoint, tag: str, tmp_path: Path) -> None:
    assert home("runs", "list").code == 0
    (tmp_path / "image.tar.gz").write_bytes(gzip.compress(b"no archive"))
    stored(home, DockerImageArtifact(id="server", image_name=tag), tmp_path / "image.tar.gz")
    answer = home("run", home.bundle(t=of("server")), "--json")
    assert answer.code == 1
    assert f"the archive of {tag}" in answer.all

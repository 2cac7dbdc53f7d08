"""What a task's environments are made of is on its way from the beginning of a run, also what no document names."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent_env.artifacts.image_artifacts import put_context
from agent_env.engine.prefetch import prefetching
from agent_env.images import BuildContext, BuildRequest
from tests.busy import within
from tests.engine.parts import planned
from tests.environments.bench import run, world

SERVER, GATEWAY, DATABASE = "the server", "agent-env/gateway", "postgres:16-alpine"


class Fetching:
    """A provider that notes what it is asked to have at hand."""

    def __init__(self) -> None:
        self.asked: asyncio.Queue[str] = asyncio.Queue()

    async def prepare_image(self, name: str, tell: Any) -> None:
        self.asked.put_nowait(name)

    async def build_image(self, request: BuildRequest, tell: Any) -> None:
        self.asked.put_nowait(GATEWAY if request.name.path == GATEWAY else SERVER)


async def fetched(root: Path, label: str, provider: str, fields: dict[str, Any], count: int) -> tuple[set[str], set[str]]:
    """What is fetched for a task that deploys an environment of one server, and with which provider of sandboxes."""
    context = root / "context"
    context.mkdir()
    (context / "Dockerfile").write_text(f"FROM scratch\n{label}\n")
    async with world(root / "state") as here:
        stores = here.engine.stores
        image = put_context(stores.artifacts, "image", BuildContext.of(context))
        ref = {"id": image.id, "version": image.version, "type": "docker_image"}
        body = {"metadata": {}, "docker_image_artifact": ref, "environment_name": "tickets", "env_provider_type": provider}
        stores.documents.put("envs", "env", "mcp_server", body)
        plan = planned(here.engine, [{"id": "deploy", "type": "deploy_env", "env_id": "env", **fields}])
        fetching, chosen = Fetching(), set()

        def providers(name: str) -> Any:
            chosen.add(name)
            return fetching

        shared = replace(here.shared, overrides={"sandbox": "of sandboxes alone", "env_sandbox": "of environments"})
        async with prefetching(plan, (), shared, providers, "local"):
            found = {await asyncio.wait_for(fetching.asked.get(), within(20)) for _ in range(count)}
        assert fetching.asked.empty()
        return found, chosen


@pytest.mark.parametrize(
    ("label", "provider", "fields", "images"),
    [
        ("LABEL a=b", "gateway", {}, {SERVER, GATEWAY}),
        ("LABEL a=b", "server", {}, {SERVER}),
        ("LABEL a=b", "gateway", {"env_state_type": "local_postgres"}, {SERVER, GATEWAY, DATABASE}),
        ("LABEL agentenv.database=postgres", "gateway", {}, {SERVER, GATEWAY, DATABASE}),
    ],
    ids=["behind a gateway", "alone", "with a database that the step asks for", "with one that its image asks for"],
)
def test_all_images_of_an_environment_are_fetched_at_time_zero_with_its_own_provider(
    tmp_path: Path, label: str, provider: str, fields: dict[str, Any], images: set[str]
) -> None:
    assert run(fetched(tmp_path, label, provider, fields, len(images))) == (images, {"of environments"})

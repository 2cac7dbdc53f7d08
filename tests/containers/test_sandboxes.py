"""Sandboxes that are containers, as the provider makes them: what stands in the way is told as it is, and what is there is left alone."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent_env.containers import ContainerSpec, Engine, EngineEndpoint, deploy
from agent_env.errors import AgentEnvError, EngineUnavailableError, SandboxUnavailableError, UnsupportedError, UserError
from agent_env.places import Command
from agent_env.sandboxes.contract import SandboxSpec
from agent_env.sandboxes.local.provider import LocalProvider
from agent_env.stores.installation import home_of
from tests.acceptance.boxes import box_image

__all__ = ["box_image"]

CANARY = "canary-" + secrets.token_hex(6)
WAYS: dict[str, Mapping[str, Any]] = {"a container": {}, "a container that plays a machine": {"isolation": "container"}}


@asynccontextmanager
async def provider_in(root: Path, environ: Mapping[str, str], **options: Any) -> AsyncIterator[LocalProvider]:
    made = LocalProvider(root, options=options, environ={"HOME": str(root), **environ})
    try:
        yield made
    finally:
        await made.aclose()


def spec_in(root: Path, image: str, *, machine: bool = False) -> SandboxSpec:
    sandbox_id = f"local-{secrets.token_hex(6)}"
    labels = {"agentenv.home": home_of(root), "agentenv.sandbox": sandbox_id}
    return SandboxSpec(sandbox_id, mode="vm" if machine else "container", image=None if machine else image, labels=labels, token="t")


@pytest.mark.parametrize("way", WAYS)
async def test_who_asks_for_an_id_that_exists_is_refused_and_the_one_that_has_it_goes_on(
    way: str, docker: EngineEndpoint, box_image: str, tmp_path: Path
) -> None:
    options = {**WAYS[way], **({"machine_image": box_image} if WAYS[way] else {})}
    async with provider_in(tmp_path, {"DOCKER_HOST": docker.url}, **options) as provider:
        spec = spec_in(tmp_path, box_image, machine=bool(WAYS[way]))
        first = await provider.create(spec)
        try:
            with pytest.raises(UserError, match="exists already"):
                await provider.create(spec)
            place = await (first.machine() if WAYS[way] else first.container(str(first.info.facts["container_id"])))
            assert (await place.run(Command(["echo", "lives"]))).stdout == b"lives\n"
        finally:
            await first.aclose()
            assert await provider.destroy(spec.sandbox_id)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("environ", "kind"),
    [
        ({"DOCKER_HOST": "unix:///nowhere/docker.sock"}, EngineUnavailableError),
        ({"DOCKER_HOST": "tcp://127.0.0.1:1"}, EngineUnavailableError),
        ({"DOCKER_HOST": "ssh://somewhere"}, UnsupportedError),
    ],
)
async def test_an_engine_that_is_away_is_no_fault_of_the_task_and_one_that_we_can_not_speak_with_is(
    environ: Mapping[str, str], kind: type[AgentEnvError], way: str, tmp_path: Path
) -> None:
    async with provider_in(tmp_path, environ, **WAYS[way]) as provider:
        spec = spec_in(tmp_path, "whatever", machine=bool(WAYS[way]))
        assert provider.problems(spec, await provider.capabilities()), "while a task is planned, it is told"
        with pytest.raises(kind, match="engine"):
            await provider.create(spec)


async def restart(docker: EngineEndpoint, container_id: str) -> None:
    async with Engine(docker) as engine, engine.asking("restarting", seconds=60) as client:
        await client.containers.container(container_id).restart(timeout=0)


READ = Command(["sh", "-c", 'printf "%s" "$KEY"'])


@pytest.mark.parametrize("way", WAYS)
async def test_one_that_was_started_again_is_told_its_secrets_by_whoever_knows_them(
    way: str, docker: EngineEndpoint, box_image: str, tmp_path: Path
) -> None:
    options = {**WAYS[way], **({"machine_image": box_image} if WAYS[way] else {})}
    environ = {"DOCKER_HOST": docker.url}
    async with provider_in(tmp_path, environ, **options) as maker, provider_in(tmp_path, environ, **options) as later:
        spec = replace(spec_in(tmp_path, box_image, machine=bool(WAYS[way])), secrets={"KEY": CANARY})
        made = await maker.create(spec)
        try:
            container = made._place.id
            await made.aclose()
            await restart(docker, container)
            with pytest.raises(SandboxUnavailableError, match="started again by somebody, and the values of KEY"):
                await later.attach(spec.sandbox_id, epoch=2, token="t")
            later.remember(spec.sandbox_id, {"KEY": CANARY})
            again = await later.attach(spec.sandbox_id, epoch=2, token="t")
            assert (await again._place.run(READ)).stdout == CANARY.encode()
            await again.aclose()
        finally:
            assert await maker.destroy(spec.sandbox_id)


async def test_a_container_beside_a_machine_is_told_its_secrets_again(
    docker: EngineEndpoint, box_image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENT_ENV_LOCAL_SANDBOX_DIR", str(tmp_path / "sandboxes"))
    async with provider_in(tmp_path, {"DOCKER_HOST": docker.url}) as provider:
        spec = spec_in(tmp_path, box_image, machine=True)
        made = await provider.create(spec)
        try:
            engine = await made.engine()
            asked = ContainerSpec(f"side-{spec.sandbox_id}", box_image, spec.labels, "t", role="side", secrets={"KEY": CANARY})
            side = await deploy(engine, asked)
            await side.aclose()
            await restart(docker, side.id)
            provider.remember(side.id, {"KEY": CANARY})
            assert (await (await made.container(side.id)).run(READ)).stdout == CANARY.encode()
        finally:
            await made.aclose()
            assert await provider.destroy(spec.sandbox_id)


ANSWERS = {
    "nothing": (b"", EngineUnavailableError),
    "that it is being started": (b"HTTP/1.0 503 Service Unavailable\r\n\r\n", EngineUnavailableError),
    "something else": (b"220 mail.example ESMTP\r\n", UnsupportedError),
}


@pytest.mark.parametrize("says", ANSWERS)
async def test_an_engine_that_goes_while_it_is_asked_is_away_and_what_is_none_is_not(says: str, tmp_path: Path) -> None:
    words, kind = ANSWERS[says]

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(words)
        writer.close()

    async with (
        await asyncio.start_unix_server(answer, tmp_path / "socket"),
        provider_in(tmp_path, {"DOCKER_HOST": f"unix://{tmp_path / 'socket'}"}) as provider,
    ):
        with pytest.raises(kind, match="engine"):
            await provider.create(spec_in(tmp_path, "whatever"))


async def test_a_machine_needs_no_engine_to_be_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENT_ENV_LOCAL_SANDBOX_DIR", str(tmp_path / "sandboxes"))
    async with provider_in(tmp_path, {"DOCKER_HOST": "unix:///nowhere/docker.sock"}) as provider:
        await provider.capabilities()
        assert provider.away(spec_in(tmp_path, "", machine=True)) is None

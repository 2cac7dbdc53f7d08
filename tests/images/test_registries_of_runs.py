"""Credentials for registries that stand in the configuration are used by runs, whoever fetches the image."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from agent_env.config import Config
from agent_env.engine.opening import open_engine, providers_of
from agent_env.errors import ImageUnavailableError
from agent_env.images import Credentials, KnownKeyring
from agent_env.sandboxes.contract import PreparesImages
from agent_env.stores.secrets import Secret
from tests.engine.parts import config_at, started
from tests.images.laboratory import Bench, door

PASSWORD = "of-the-registry"


@asynccontextmanager
async def guarded(lab: Bench, registry: str) -> AsyncIterator[tuple[str, str]]:
    """A registry that lets nobody in without the password, and an image that is in it alone."""
    with door(registry, user="me", password=PASSWORD) as gate:
        keyring = KnownKeyring({gate.address: Credentials("me", Secret(PASSWORD))})
        images, name = lab.images(keyring=keyring), await lab.load("guarded")
        pushed = f"{gate.address}/{name}"
        await images.push(pushed, source=name)
        await lab.drop(pushed)
        await lab.drop(name)
        yield gate.address, pushed
        await lab.drop(pushed)


def with_registries(config: Config, table: dict[str, dict[str, str]]) -> Config:
    return replace(config, values={**config.values, "images.registries": table})


async def test_a_run_is_let_in_by_what_the_configuration_says_and_nobody_reads_the_password(
    here, registry: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "nothing"))
    monkeypatch.setenv("OF_REGISTRY", PASSWORD)
    async with here() as lab, guarded(lab, registry) as (address, name):
        knows = with_registries(config_at(tmp_path / "state"), {address: {"username": "me", "password": "env:OF_REGISTRY"}})
        for provider_name in ("local", "rootfs"):
            for config in (config_at(tmp_path / "state"), knows):
                provider = providers_of(config)(provider_name)
                assert isinstance(provider, PreparesImages)
                try:
                    await provider.prepare_image(name, lab.told)
                    assert config is knows
                except ImageUnavailableError:
                    assert config is not knows, provider_name
                finally:
                    await provider.aclose()
            await lab.drop(name)
        machine = {"id": "box", "type": "deploy_sandbox", "sandbox_name": "box", "sandbox_mode": "vm"}
        beside = {"id": "beside", "type": "run_docker_container", "sandbox_name": "box", "container_name": "beside", "image": name}
        async with open_engine(knows) as engine:
            outcome = await started(engine, [machine, beside])
        assert outcome.status == "completed", outcome
        assert PASSWORD not in repr(lab.events)

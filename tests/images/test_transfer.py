"""Pulling, pushing, naming and pinning through the real engine, from and to a real registry."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from dataclasses import replace
from pathlib import Path

import pytest

from agent_env.documents.outcomes import Kind, kind_of
from agent_env.errors import ImageNotFoundError, ImagePlatformError, ImageUnavailableError, StorageError, UserError
from agent_env.images import Credentials, DockerKeyring, ImageReference, KnownKeyring, Stage
from agent_env.images.answers import meaning
from agent_env.stores.secrets import Secret
from tests.busy import within
from tests.images.laboratory import QUICK, Bench, door, publish, tar_of


async def pushed(lab: Bench, registry: str, tag: str = "1") -> ImageReference:
    """An image in a registry, and no more in the engine."""
    images, name = lab.images(), await lab.load(tag)
    pinned = await images.push(f"{registry}/{name}", source=name)
    await lab.drop(f"{registry}/{name}")
    await lab.drop(name)
    assert await images.held(str(pinned.untagged())) is None
    return pinned


async def test_an_image_goes_to_a_plain_registry_of_this_machine_and_comes_back_by_tag_and_by_digest(here, registry: str) -> None:
    async with here() as lab:
        pinned = await pushed(lab, registry)
        assert pinned.registry == registry
        assert pinned.digest is not None
        for name in (pinned, pinned.with_digest(None)):
            got = await lab.images().get(name, tell=lab.told)
            assert await lab.images().held(str(pinned.with_digest(None))) is not None
            assert got.pin(pinned.with_digest(None)) == pinned
            await lab.drop(pinned.tagged_name)
        assert any(event.stage is Stage.MOVING for event in lab.events)  # how many bytes an engine tells of depends on its pace


async def test_im09_an_image_that_is_here_costs_no_request(here, registry: str) -> None:
    async with here() as lab:
        pinned = await pushed(lab, registry)
        with door(registry) as gate:
            name = ImageReference.parse(f"{gate.address}/{lab.name}:1")
            await lab.images().get(name)
            assert gate.requests
            gate.requests.clear()
            for known in (name, name.with_digest(pinned.digest)):
                await lab.images().get(known)
            assert await lab.images().pin(name) == name.with_digest(pinned.digest)
            assert gate.requests == []
            await lab.drop(name.tagged_name)


async def test_im09_a_local_tag_is_used_when_its_registry_can_not_be_reached(here, registry: str) -> None:
    async with here() as lab:
        await pushed(lab, registry)
        with door(registry) as gate:
            name = f"{gate.address}/{lab.name}:1"
            held = await lab.images().get(name)
        for newest in (False, True):
            assert (await lab.images().get(name, newest=newest, tell=lab.told)).id == held.id
        assert any("the one that is here is used" in event.message for event in lab.events)
        await lab.drop(name)


async def test_a_tag_that_moved_is_only_noticed_when_the_newest_is_asked_for(here, registry: str) -> None:
    async with here() as lab:
        name = f"{registry}/{lab.name}:1"
        await pushed(lab, registry)
        first = await lab.images().get(name)
        second = await lab.images().held(await lab.load("2"))
        assert second is not None
        await lab.images().push(name, source=second.id)
        await lab.images().tag(first, ImageReference.parse(name))
        assert (await lab.images().get(name)).id == first.id
        assert (await lab.images().get(name, newest=True)).id == second.id


@pytest.mark.parametrize("name", ["127.0.0.1:1/x:1", "127.0.0.1:1/x@sha256:" + "0" * 64])
async def test_im09_an_absent_image_fails_fast_with_its_name(here, name: str) -> None:
    async with here() as lab:
        begin = time.monotonic()
        with pytest.raises(ImageUnavailableError) as caught:
            await lab.images().get(name)
        assert time.monotonic() - begin < within(5)
        assert name in str(caught.value.concerns)
        assert kind_of(caught.value) is Kind.INFRASTRUCTURE


async def test_a_name_that_its_registry_does_not_have_is_not_asked_for_again_and_again(here, registry: str) -> None:
    async with here() as lab:
        with door(registry) as gate, pytest.raises(ImageNotFoundError, match=r"there is no image .*/absent:1"):
            await lab.images().get(f"{gate.address}/absent:1")
        assert len([request for request in gate.requests if "/manifests/" in request]) <= 2


async def test_what_is_only_a_context_is_never_pulled(here) -> None:
    async with here() as lab:
        with pytest.raises(ImageNotFoundError, match="built from its context"):
            await lab.images().get("local/x-0123456789ab:0123456789abcdef")


async def test_f11_a_registry_that_stumbles_is_asked_again_within_bounds(here, registry: str) -> None:
    async with here() as lab:
        await pushed(lab, registry)
        refusals = iter([503, 429])
        with door(registry, fault=lambda method, path: next(refusals, None) if "/manifests/" in path else None) as gate:
            got = await lab.images().get(f"{gate.address}/{lab.name}:1", tell=lab.told)
            await lab.drop(f"{gate.address}/{lab.name}:1")
        assert got.size_bytes > 0
        assert any(event.stage is Stage.RETRYING for event in lab.events)
        twice = lab.images(limits=replace(QUICK, image_pull_attempts=2))
        refusing = door(registry, fault=lambda method, path: 429 if "/manifests/" in path else None)
        with refusing as gate, pytest.raises(ImageUnavailableError, match="limits how often it is asked"):
            await twice.get(f"{gate.address}/{lab.name}:1")


async def test_a_password_goes_with_the_call_and_nowhere_else(
    here, registry: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    password = "canary-of-a-registry-p4ss"
    async with here() as lab:
        built = await lab.load()
        with door(registry, user="me", password=password) as gate:
            keyring = KnownKeyring({gate.address: Credentials("me", Secret(password))})
            name = f"{gate.address}/{lab.name}:1"
            with pytest.raises(ImageUnavailableError) as refused:
                await lab.images().push(name, source=built)
            assert "docker login" in (refused.value.hint or "")
            pinned = await lab.images(keyring=keyring).push(name, source=built, tell=lab.told)
            await lab.drop(name)
            await lab.drop(f"{lab.name}:1")
            with pytest.raises((ImageUnavailableError, ImageNotFoundError)):
                await lab.images().get(name)
            got = await lab.images(keyring=keyring).get(pinned, tell=lab.told)
            child = lab.request(f"FROM {name}\nCOPY f /f\n", {"f": "f"}, tag="2")
            await lab.drop(name)
            await lab.images(keyring=keyring).build(child, lab.told)
            facts = await lab.api.ask("GET", f"images/{lab.name}:2/json")
            history = await lab.api.ask("GET", f"images/{lab.name}:2/history")
            assert gate.authorizations
            await lab.drop(name)
        stored = b"".join(path.read_bytes() for path in (tmp_path / "state").rglob("*") if path.is_file())
        everywhere = [
            json.dumps([facts, history]),
            repr(lab.events),
            repr(refused.value),
            caplog.text,
            stored.decode(errors="replace"),
            repr(got),
        ]
        assert not [place for place in everywhere if password in place]
        assert not (tmp_path / ".docker").exists()


async def test_what_docker_login_left_is_read_and_never_written(here, registry: str, tmp_path: Path) -> None:
    async with here() as lab:
        built = await lab.load()
        with door(registry, user="me", password="canary") as gate:
            config = tmp_path / "docker" / "config.json"
            config.parent.mkdir()
            config.write_text(json.dumps({"auths": {gate.address: {"auth": "bWU6Y2FuYXJ5"}}}))
            before, seen = config.read_bytes(), []
            keyring = DockerKeyring.of_user({"DOCKER_CONFIG": str(config.parent)}, seen=seen.append)
            await lab.images(keyring=keyring).push(f"{gate.address}/{lab.name}:1", source=built)
            await lab.drop(f"{gate.address}/{lab.name}:1")
        assert config.read_bytes() == before
        assert [path.name for path in config.parent.iterdir()] == ["config.json"]
        assert "canary" in seen


async def test_im06_an_image_of_another_machine_is_refused_with_both_named(here) -> None:
    async with here() as lab:
        name = await lab.load(platform="s390x")
        with pytest.raises(ImagePlatformError, match=f"{name} is made for linux/s390x, and the container engine runs linux/"):
            await lab.images().get(name)


async def test_an_image_that_never_was_in_a_registry_can_not_be_pinned_and_the_hint_says_how(here) -> None:
    async with here() as lab:
        await lab.load()
        with pytest.raises(ImageNotFoundError, match="no digest to pin it to") as caught:
            await lab.images().pin(f"{lab.name}:1")
        assert "image push" in (caught.value.hint or "")
        with pytest.raises(UserError):
            await lab.images().get("No Name")


async def test_cc01_many_pulls_of_one_image_ask_its_registry_once(here, registry: str) -> None:
    async with here() as lab:
        await pushed(lab, registry)
        with door(registry) as gate:
            name = f"{gate.address}/{lab.name}:1"
            got = await asyncio.gather(*(lab.images().get(name) for _ in range(12)))
            await lab.drop(name)
        assert len({image.id for image in got}) == 1
        assert gate.blobs()
        assert len(gate.blobs()) == len(set(gate.blobs()))


async def test_f20_a_pull_that_does_not_fit_is_refused_by_what_the_registry_says_of_its_size(here, registry: str) -> None:
    async with here() as lab:
        free = (await lab.images().space()).free_bytes()
        if free is None:
            pytest.skip("agentenv-capability-missing: engine_on_this_machine")
        tight = lab.images(limits=replace(QUICK, image_free_bytes=free // 4))
        large = publish(registry, [tar_of(("f", b"f"))], claimed=free)
        with door(registry) as gate, pytest.raises(StorageError, match="must stay free"):
            await tight.get(large.name.replace(registry, gate.address))
        assert gate.blobs() == [request for request in gate.blobs() if request.endswith(large.id)]
        small = await lab.load()
        await lab.images().push(f"{registry}/{small}", source=small)
        await lab.drop(f"{registry}/{small}")
        assert (await tight.get(f"{registry}/{small}")).size_bytes > 0


@pytest.mark.parametrize(
    ("said", "error", "again"),
    [
        ("toomanyrequests: You have reached your pull rate limit", ImageUnavailableError, True),
        ("no matching manifest for linux/arm64 in the manifest list entries", ImagePlatformError, False),
        ("manifest for x:1 not found: manifest unknown: manifest unknown", ImageNotFoundError, False),
        ("pull access denied for x, repository does not exist or may require 'docker login'", ImageNotFoundError, False),
        ("Head \"https://r/v2/x/manifests/1\": unauthorized: authentication required", ImageUnavailableError, False),
        ("denied: requested access to the resource is denied", ImageUnavailableError, False),
        ("Get \"https://r/v2/\": dial tcp: lookup r on 10.0.0.1:53: no such host", ImageUnavailableError, True),
        ("Get \"https://r/v2/\": http: server gave HTTP response to HTTPS client", ImageUnavailableError, False),
        ("Get \"https://r/v2/\": net/http: TLS handshake timeout", ImageUnavailableError, True),
        ("write /var/lib/docker/tmp/x: no space left on device", StorageError, False),
        ("received unexpected HTTP status: 503 Service Unavailable", ImageUnavailableError, True),
    ],
)  # fmt: skip
def test_each_refusal_of_an_engine_has_its_meaning(said: str, error: type[Exception], again: bool) -> None:
    found = meaning(said, "r/x:1", "r")
    assert type(found.error) is error
    assert found.again is again
    assert said in found.error.message
    assert found.error.hint

"""Our own client of registries, against a real one and one that is made difficult."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from agent_env.errors import ImageNotFoundError, ImagePlatformError, ImageUnavailableError, TransferError, UnsupportedError
from agent_env.images import Credentials, ImageReference, KnownKeyring, Platform
from agent_env.images.oci.manifests import ACCEPTED, Descriptor, ImageConfig, Index, Manifest, chain_of, parse_manifest
from agent_env.images.oci.registry import Registry
from agent_env.images.oci.sources import RegistrySource
from agent_env.images.reference import digest_of
from agent_env.stores.secrets import Secret
from tests.images.laboratory import QUICK, Door, Published, config_of, door, publish, publish_index, tar_of


def layer(size: int = 200_000) -> bytes:
    return tar_of(("f", os.urandom(size)))


def named(gate: Door, image: Published) -> ImageReference:
    return ImageReference.parse(image.name.replace(image.name.partition("/")[0], gate.address))


async def test_an_image_is_found_by_tag_and_by_digest_and_what_came_is_verified(registry: str) -> None:
    image = publish(registry, [layer(), layer()], Cmd=["sh"])
    for name in (image.name, image.name.rpartition(":")[0] + "@" + image.digest):
        async with Registry(registry) as client:
            found = await RegistrySource(client, ImageReference.parse(name)).find(Platform.here())
        assert (found.id, found.digest, found.config.cmd) == (image.id, image.digest, ("sh",))
        assert [one.blob.digest for one in found.layers if one.blob] == image.blobs


async def test_an_index_is_followed_to_the_machines_own_platform(registry: str) -> None:
    repository = f"agentenv-test/index{os.urandom(4).hex()}"
    images = [(publish(registry, [layer(100)], repository=repository, tag=arch, architecture=arch), arch) for arch in ("amd64", "arm64")]
    publish_index(registry, repository, "both", images)
    async with Registry(registry) as client:
        source = RegistrySource(client, ImageReference.parse(f"{registry}/{repository}:both"))
        for image, arch in images:
            assert (await source.find(Platform("linux", arch))).id == image.id
        with pytest.raises(ImagePlatformError, match="not made for linux/s390x, only for linux/amd64, linux/arm64"):
            await source.find(Platform("linux", "s390x"))


async def test_a_blob_that_breaks_off_goes_on_where_it_was(registry: str, tmp_path: Path) -> None:
    image = publish(registry, [layer(600_000)])
    breaks = iter([200_000, 150_000])
    with door(registry, cut=lambda method, path: next(breaks, None) if "/blobs/" in path else None) as gate:
        async with Registry(gate.address, limits=QUICK) as client:
            seen: list[int] = []
            size = len(blob_of(registry, image))
            await client.blob(named(gate, image), Descriptor(image.blobs[0], size), tmp_path / "blob", seen.append)
    assert digest_of((tmp_path / "blob").read_bytes()) == image.blobs[0]
    assert len(gate.blobs()) == 3
    assert seen == sorted(seen)


def blob_of(registry: str, image: Published) -> bytes:
    import httpx

    return httpx.get(
        f"http://{registry}/v2/{image.name.split('/', 1)[1].rpartition(':')[0]}/blobs/{image.blobs[0]}", trust_env=False
    ).content


@pytest.mark.parametrize("ranges", [True, False])
async def test_what_a_killed_process_had_fetched_is_not_fetched_again_if_the_registry_can(
    registry: str, tmp_path: Path, ranges: bool
) -> None:
    image = publish(registry, [layer(500_000)])
    whole = blob_of(registry, image)
    for left in (whole[:300_000], whole, b"x" * 300_000, whole + b"more"):
        (tmp_path / "blob").write_bytes(left)
        with door(registry, ranges=ranges) as gate:
            async with Registry(gate.address, limits=QUICK) as client:
                await client.blob(named(gate, image), Descriptor(image.blobs[0], len(whole)), tmp_path / "blob")
        assert (tmp_path / "blob").read_bytes() == whole
        assert len(gate.blobs()) == {300_000: 1, len(whole): 0}.get(len(left), 1) + (left[:1] == b"x" and ranges)


async def test_a_blob_that_is_altered_on_its_way_is_never_taken(registry: str, tmp_path: Path) -> None:
    image = publish(registry, [layer()])
    with door(registry, spoil=True) as gate:
        async with Registry(gate.address, limits=replace(QUICK, image_pull_attempts=2)) as client:
            with pytest.raises(ImageUnavailableError, match="something else than sha256"):
                await client.blob(named(gate, image), Descriptor(image.blobs[0], len(blob_of(registry, image))), tmp_path / "blob")
            with pytest.raises(TransferError, match="more than the 10 bytes"):
                await client.blob(named(gate, image), Descriptor(image.blobs[0], 10), tmp_path / "other")
    assert (tmp_path / "blob").read_bytes() == b""


@pytest.mark.parametrize("bearer", [True, False])
async def test_a_registry_that_asks_for_a_password_gets_it_once_and_no_other_gets_it(registry: str, bearer: bool) -> None:
    image = publish(registry, [layer(100)])
    with door(registry, user="me", password="canary-pass", bearer=bearer) as gate, door(registry) as other:
        keyring = KnownKeyring({gate.address: Credentials("me", Secret("canary-pass"))})
        async with Registry(gate.address, keyring=keyring) as client:
            found = await RegistrySource(client, named(gate, image)).find(Platform.here())
            assert found.id == image.id
        assert len([request for request in gate.requests if request.startswith("GET /token")]) == bearer
        async with Registry(other.address, keyring=keyring) as client:
            await RegistrySource(client, named(other, image)).find(Platform.here())
        assert other.authorizations == []
        wrong = KnownKeyring({gate.address: Credentials("me", Secret("wrong-pass"))})
        for keys, word in ((wrong, "refuses"), (None, "asks who is there|refuses")):
            async with Registry(gate.address, keyring=keys) as client:
                with pytest.raises(ImageUnavailableError, match=word) as caught:
                    await RegistrySource(client, named(gate, image)).find(Platform.here())
            assert "wrong-pass" not in f"{caught.value!r} {caught.value.__cause__!r}"


@contextmanager
def scripted(status: int, headers: dict[str, str], body: bytes = b"") -> Iterator[str]:
    """A registry that always says the same."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            self.send_response(status)
            for key, value in headers.items():
                self.send_header(key, value)
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET  # noqa: N815

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("realm", ["http://collector.example/token", "ftp://127.0.0.1/x", "", "http://127.0.0.1.example/x"])
async def test_a_password_is_not_sent_to_an_address_that_anybody_can_listen_to(realm: str) -> None:
    with scripted(401, {"WWW-Authenticate": f'Bearer realm="{realm}",service="s"'}) as address:
        keyring = KnownKeyring({address: Credentials("me", Secret("canary"))})
        async with Registry(address, keyring=keyring, limits=QUICK) as client:
            with pytest.raises(ImageUnavailableError, match="which is not safe"):
                await client.manifest(ImageReference.parse(f"{address}/x:1"))


@pytest.mark.parametrize("said", [b"[]", b"null", b'"x"', b"<html>", b"[" * 100_000, b'{"token": ""}', b"\xff"])
async def test_an_answer_that_holds_no_token_is_told_as_that(said: bytes) -> None:
    with scripted(200, {}, said) as tokens, scripted(401, {"WWW-Authenticate": f'Bearer realm="http://{tokens}/",service="s"'}) as address:
        async with Registry(address, limits=QUICK) as client:
            with pytest.raises(ImageUnavailableError, match="no token"):
                await client.manifest(ImageReference.parse(f"{address}/x:1"))


async def test_what_stands_for_a_password_is_sent_on_to_nobody_else() -> None:
    with (
        scripted(200, {}, b'{"token": "taken"}') as other,
        scripted(307, {"Location": f"http://{other}/"}) as tokens,
        scripted(401, {"WWW-Authenticate": f'Bearer realm="http://{tokens}/",service="s"'}) as address,
    ):
        keyring = KnownKeyring({address: Credentials("me", Secret(""), Secret("canary"))})
        async with Registry(address, keyring=keyring, limits=QUICK) as client:
            with pytest.raises(ImageUnavailableError, match="no token, HTTP 307"):
                await client.manifest(ImageReference.parse(f"{address}/x:1"))


async def test_a_manifest_that_is_too_large_or_not_its_digest_is_refused() -> None:
    reference = "x@sha256:" + "0" * 64
    with scripted(200, {}, b"x" * 5000) as address:
        async with Registry(address, limits=replace(QUICK, image_manifest_bytes=1000)) as client:
            with pytest.raises(UnsupportedError, match="more than 1000 bytes"):
                await client.manifest(ImageReference.parse(f"{address}/x:1"))
        async with Registry(address, limits=QUICK) as client:
            with pytest.raises(TransferError, match="another manifest"):
                await client.manifest(ImageReference.parse(f"{address}/{reference}"))


@pytest.mark.parametrize(
    ("status", "error"),
    [(404, ImageNotFoundError), (403, ImageUnavailableError), (500, ImageUnavailableError), (418, ImageUnavailableError)],
)
async def test_each_status_has_its_meaning(status: int, error: type[Exception]) -> None:
    with scripted(status, {}) as address:
        async with Registry(address, limits=replace(QUICK, image_pull_attempts=2)) as client:
            with pytest.raises(error, match=f"{address}"):
                await client.manifest(ImageReference.parse(f"{address}/x:1"))


async def test_nobody_behind_an_address_of_this_machine_is_said_at_once() -> None:
    async with Registry("127.0.0.1:1") as client:
        with pytest.raises(ImageUnavailableError, match=r"127\.0\.0\.1:1 can't be reached"):
            await client.manifest(ImageReference.parse("127.0.0.1:1/x:1"))


def test_a_manifest_of_another_kind_says_what_is_wrong() -> None:
    digest = "sha256:" + "0" * 64
    part = f'{{"digest": "{digest}", "size": 1}}'
    foreign = f'{{"digest": "{digest}", "size": 1, "mediaType": "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip"}}'
    cases = {
        b"no json": "no JSON",
        b"[]": "describes no image",
        b'{"schemaVersion": 1, "fsLayers": []}': "version 1",
        b'{"layers": []}': "no manifest of an image",
        b'{"config": {"digest": "x", "size": 1}}': "without a digest",
        f'{{"config": {part}, "layers": [{foreign}]}}'.encode(): "Windows",
    }
    for data, word in cases.items():
        with pytest.raises(UnsupportedError, match=word):
            parse_manifest(data, "", "x")
    assert isinstance(parse_manifest(f'{{"config": {part}, "layers": [{part}]}}'.encode(), "", "x"), Manifest)
    assert "manifest.list" in ACCEPTED


def test_arm_variants_are_chosen_from_the_newest_down() -> None:
    entries = tuple(Descriptor(f"sha256:{n}", 1, "", Platform("linux", "arm", f"v{n}")) for n in (6, 7))
    assert Index(entries).choose(Platform("linux", "arm", "v7"), "x").digest == "sha256:7"
    assert Index(entries).choose(Platform("linux", "arm", "v6"), "x").digest == "sha256:6"
    assert Index(entries).choose(Platform("linux", "arm"), "x").digest == "sha256:7"


def test_a_configuration_is_read_in_both_spellings_of_its_commands() -> None:
    facts = {"Entrypoint": "run", "Cmd": ["a", "b"], "Env": ["A=1=2", "B"], "User": "app:app", "WorkingDir": "/w", "Labels": {"x": "y"}}
    more = {"ExposedPorts": {"80/tcp": {}}, "Volumes": {"/data": {}}, "StopSignal": "SIGINT"}
    config = ImageConfig.parse(config_of([b""], **facts, **more), "x")
    assert (config.entrypoint, config.cmd, config.env) == (("run",), ("a", "b"), {"A": "1=2", "B": ""})
    assert (config.user, config.workdir, config.exposed_ports, config.volumes) == ("app:app", "/w", ("80/tcp",), ("/data",))
    assert (dict(config.labels), config.stop_signal, str(config.platform)) == ({"x": "y"}, "SIGINT", "linux/amd64")


def test_the_digest_of_a_stack_is_the_one_that_the_specification_says() -> None:
    one, two = "sha256:" + "1" * 64, "sha256:" + "2" * 64
    assert chain_of([one]) == one
    assert chain_of([one, two]) == digest_of(f"{one} {two}".encode())


ODD: tuple[Any, ...] = (None, 1, "x", [], [1], [None], {}, {"a": 1}, "\ud800", 1e999)
WHOLE: dict[str, Any] = {
    "architecture": "amd64",
    "os": "linux",
    "config": {"Env": ["A=1"], "Cmd": ["x"], "Labels": {"a": "b"}, "Volumes": {"/d": {}}, "ExposedPorts": {"80/tcp": {}}},
    "rootfs": {"diff_ids": [digest_of(b"")]},
}
PART = {"digest": digest_of(b""), "size": 1, "platform": {"os": "linux", "architecture": "amd64"}, "annotations": {"a": "b"}}


@pytest.mark.parametrize("what", [WHOLE, {"config": PART, "layers": [PART]}, {"manifests": [PART]}], ids=["config", "manifest", "index"])
def test_whatever_somebody_wrote_for_a_description_is_read_or_refused(what: dict[str, Any]) -> None:
    read = ImageConfig.parse if what is WHOLE else lambda data, where: parse_manifest(data, "", where)
    refused = []
    for spoilt in _spoilt(what):
        try:
            read(json.dumps(spoilt).encode(), "here")
        except UnsupportedError as error:
            refused.append(error.message)
    assert len(refused) > len(ODD)
    assert [message for message in refused if not message.startswith("here ")] == []
    with pytest.raises(UnsupportedError, match="no JSON"):
        read(b"[" * 100_000, "here")


def _spoilt(value: Any) -> Iterator[Any]:
    """A document with something odd in one place, for each place."""
    yield from ODD
    if isinstance(value, dict):
        for key, inner in value.items():
            yield {other: found for other, found in value.items() if other != key}
            yield from ({**value, key: odd} for odd in _spoilt(inner))
    elif isinstance(value, list):
        for odd in _spoilt(value[0]):
            yield [odd]

"""What answers where an engine should, and is none: each request says so, with where that is and what to look at."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from agent_env.containers import Engine, EngineEndpoint, objects, volumes
from agent_env.containers.container import image_facts
from agent_env.defaults import DEFAULT_LIMITS
from agent_env.errors import EngineFailedError, EngineUnavailableError, TransportLostError
from agent_env.images.credentials import KnownKeyring
from agent_env.images.engine_api import EngineApi, rows
from agent_env.images.held import inspect, labelled
from agent_env.images.progress import Progress, Stage
from agent_env.images.reference import ImageReference
from agent_env.images.transfer import pull
from tests.busy import within

STRANGE = {
    "a page": (b"text/html", b"<html>log in</html>"),
    "a page that is said to be JSON": (b"application/json", b"<html>log in</html>"),
    "half of an answer": (b"application/json", b'{"Id": ['),
    "nothing of what is asked": (b"application/json", b'{"a": 1}'),
    "no value": (b"application/json", b"null"),
    "a text": (b"application/json", b'"x"'),
    "rows that are none": (b"application/json", b'["x", 1, null]'),
    "parts that are none": (b"application/json", b'{"Id": "f", "Config": ["x"], "State": 1, "IPAM": "x", "Volumes": ["x"], "Images": [1]}'),
}
ASKED: dict[str, Callable[[Engine], Awaitable[Any]]] = {
    "what it is": lambda engine: engine.info(),
    "containers": lambda engine: objects.containers(engine, {"a": "b"}),
    "networks": lambda engine: objects.networks(engine, {"a": "b"}),
    "volumes": lambda engine: objects.volumes(engine, {"a": "b"}),
    "a container": lambda engine: objects.inspect(engine, "f" * 64),
    "an image": lambda engine: image_facts(engine, "x"),
    "an image that is held": lambda engine: inspect(EngineApi(engine), "x"),
    "images that are held": lambda engine: labelled(EngineApi(engine), "home"),
    "what installed the helper": lambda engine: volumes.remove_cut_installs(engine, "home", before=0),
}
MEANT = {("volumes", "nothing of what is asked"), ("images that are held", "no value")}
"""Answers that say that there is none: some engines write an empty list so."""


@asynccontextmanager
async def answering(path: Path, kind: bytes, body: bytes, *, status: int = 200, said: int | None = None) -> AsyncIterator[Engine]:
    """An engine whose version is known, and that answers everything else so."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        length = len(body) if said is None else said
        writer.write(b"HTTP/1.1 %d Said\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n%s" % (status, kind, length, body))
        writer.close()

    async with await asyncio.start_unix_server(serve, path), Engine(EngineEndpoint(f"unix://{path}")) as engine:
        engine.docker.api_version = "v1.41"
        yield engine


@pytest.mark.parametrize("asked", ASKED)
async def test_an_answer_that_no_engine_gives_names_who_gave_it_and_what_to_look_at(tmp_path: Path, asked: str) -> None:
    for what, (kind, body) in STRANGE.items():
        if (asked, what) in MEANT:
            continue
        path = tmp_path / f"{len(what)}.sock"
        async with answering(path, kind, body) as engine:
            with pytest.raises(EngineFailedError, match="does not answer as a container engine does") as told:
                await ASKED[asked](engine)
        assert str(path) in told.value.message, what
        assert "DOCKER_HOST" in str(told.value.hint), what


async def test_a_refusal_that_no_engine_gives_and_an_image_that_is_none_are_told_the_same_way(tmp_path: Path) -> None:
    async with answering(tmp_path / "a", b"application/json", b'{"error": "no route"}', status=502) as engine:
        with pytest.raises(EngineFailedError, match="does not answer as"):
            await objects.networks(engine, {"a": "b"})
    for status, kind, body in (
        (200, b"application/json", b"{"),
        (200, b"application/json", b'{"x": []}'),
        (502, b"text/html", b"<html>"),
        (503, b"application/json", b""),
    ):
        async with answering(tmp_path / f"b{status}{len(body)}", kind, body, status=status) as engine:
            with pytest.raises(EngineFailedError, match="does not answer as"):
                await EngineApi(engine).ask("GET", "images/x/json", read=rows)
    async with answering(tmp_path / "c", b"application/json", b'"x"\n') as engine:
        with pytest.raises(EngineFailedError, match="does not answer as"):
            _ = [event async for event in EngineApi(engine).events("build", seconds=within(5))]


async def test_a_refusal_of_an_engine_names_what_was_asked_of_whom(tmp_path: Path) -> None:
    async with answering(tmp_path / "s", b"application/json", b'{"message": "no such thing"}', status=500) as engine:
        with pytest.raises(EngineFailedError, match=r"^GET images/json, asked of unix://.*/s .*says 'no such thing' \(HTTP 500\)"):
            await EngineApi(engine).ask("GET", "images/json")


async def test_an_answer_that_is_cut_off_names_the_engine_and_what_to_look_at(tmp_path: Path) -> None:
    async with answering(tmp_path / "cut", b"application/json", b'{"Id": ', said=100) as engine:
        with pytest.raises(TransportLostError, match=f"the container engine at unix://{tmp_path}/cut .*broke while") as told:
            await objects.inspect(engine, "f" * 64)
    assert "doctor" in str(told.value.hint)


@pytest.mark.parametrize(
    ("rootless", "controllers", "held"),
    [
        (True, [], set()),  # version 1 of control groups
        (True, ["memory", "pids"], {"memory", "processes"}),  # what systemd delegates to a user by itself
        (False, [], {"memory", "cpu", "processes"}),
    ],
)
async def test_f24_what_podman_may_not_limit_for_an_ordinary_user_is_not_said_to_be_limited(
    tmp_path: Path, rootless: bool, controllers: list[str], held: set[str]
) -> None:
    """Its answer to `info` tells what root could, whoever runs it."""
    info = {"OSType": "linux", "MemoryLimit": True, "CPUCfsQuota": True, "PidsLimit": True, "SecurityOptions": ["name=rootless"] * rootless}
    said = {**info, "host": {"cgroupControllers": controllers, "security": {"rootless": rootless}}}
    async with answering(tmp_path / "podman.sock", b"application/json", json.dumps(said).encode()) as engine:
        engine._is_podman = True
        assert (await engine.info()).limits == held


async def test_a_pull_that_its_engine_breaks_off_is_tried_again_and_one_that_nobody_answers_is_not(tmp_path: Path) -> None:
    asked: list[str] = []
    told: list[Progress] = []
    pulled = b'{"status": "Downloading", "id": "a", "progressDetail": {"current": 1, "total": 2}}\n'

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append((await reader.readuntil(b"\r\n\r\n")).split()[1].decode())
        length = len(pulled) + (1 if len(asked) < 3 else 0)  # the first two end before they are whole
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (length, pulled))
        writer.close()

    limits = replace(DEFAULT_LIMITS, retry_backoff_seconds=0.01)
    reference, keyring = ImageReference.parse("localhost:1/some/image:1"), KnownKeyring({})
    async with Engine(EngineEndpoint(f"unix://{tmp_path}/engine"), limits=limits) as engine:
        engine.docker.api_version = "v1.41"
        pulling = partial(pull, EngineApi(engine), reference, platform=None, keyring=keyring, limits=limits, tell=told.append)
        with pytest.raises(EngineUnavailableError):
            await pulling()
        async with await asyncio.start_unix_server(serve, tmp_path / "engine"):
            await pulling()
    assert [path.partition("?")[0] for path in asked] == ["/v1.41/images/create"] * 3
    assert [each.stage for each in told].count(Stage.RETRYING) == 2


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ([("Pulling fs layer", {}), ("Downloading", {"current": 1, "total": 9}), ("Pull complete", {})], [(1, 9), (9, 9)]),
        ([("Pulling fs layer", {}), ("Extracting", {"current": 1, "total": 9}), ("Pull complete", {})], [(9, 9)]),
        ([("Download complete", {"current": 9, "total": 9})], [(9, 9)]),  # Podman's
        ([("Extracting", {"current": 2, "units": "s"}), ("Pull complete", {})], [(0, None)]),  # with containerd's store of images
        ([("Already exists", {})], [(0, None)]),
    ],
)
async def test_bytes_of_a_layer_count_as_moved_however_little_its_engine_says_on_the_way(
    tmp_path: Path, said: list[tuple[str, dict[str, Any]]], told: list[tuple[int, int | None]]
) -> None:
    seen: list[Progress] = []
    lines = "".join(json.dumps({"status": status, "id": "a", "progressDetail": detail}) + "\n" for status, detail in said)
    reference, keyring = ImageReference.parse("localhost:1/some/image:1"), KnownKeyring({})
    async with answering(tmp_path / "engine", b"application/json", lines.encode()) as engine:
        await pull(EngineApi(engine), reference, platform=None, keyring=keyring, limits=DEFAULT_LIMITS, tell=seen.append)
    assert [(each.done_bytes, each.total_bytes) for each in seen] == told

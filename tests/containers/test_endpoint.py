"""The engine is found as its own tools find it, and what is wrong with it is said by its address."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import socket
import stat
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from agent_env.containers import Engine, EngineEndpoint, engine_problem, find_endpoint, open_engine, remove_container
from agent_env.containers.endpoint import usual_sockets
from agent_env.defaults import DEFAULT_LIMITS
from agent_env.documents.outcomes import Kind, kind_of
from agent_env.errors import (
    ConfigError,
    DeadlineError,
    EngineConflictError,
    EngineDeniedError,
    EngineFailedError,
    EngineRefusedError,
    EngineUnavailableError,
    ImageNotFoundError,
    PortTakenError,
    StorageError,
    TransportLostError,
    UnsupportedError,
)
from agent_env.sandboxes.local.engines import Engines
from tests.busy import within

Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter, str], Awaitable[None]]


def context(home: Path, name: str, host: str, *, tls: bool = False, skip: bool = False) -> None:
    digest = hashlib.sha256(name.encode()).hexdigest()
    meta = home / ".docker/contexts/meta" / digest
    meta.mkdir(parents=True)
    (meta / "meta.json").write_text(json.dumps({"Name": name, "Endpoints": {"docker": {"Host": host, "SkipTLSVerify": skip}}}))
    if tls:
        (home / ".docker/contexts/tls" / digest / "docker").mkdir(parents=True)


def current(home: Path, name: str) -> None:
    (home / ".docker").mkdir(exist_ok=True)
    (home / ".docker/config.json").write_text(json.dumps({"currentContext": name, "auths": {}}))


@pytest.mark.parametrize(
    ("environ", "chosen"),
    [
        ({"DOCKER_HOST": "tcp://h:1", "DOCKER_CONTEXT": "two"}, "tcp://h:1"),
        ({"DOCKER_HOST": "/run/x.sock"}, "unix:///run/x.sock"),
        ({"DOCKER_CONTEXT": "two"}, "unix:///two.sock"),
        ({}, "unix:///one.sock"),
    ],
)
def test_se05_variables_go_before_the_context_that_is_in_use(environ: dict[str, str], chosen: str, tmp_path: Path) -> None:
    context(tmp_path, "one", "unix:///one.sock")
    context(tmp_path, "two", "unix:///two.sock")
    current(tmp_path, "one")
    assert find_endpoint(environ, tmp_path).url == chosen


def test_a_context_brings_its_certificates_and_a_variable_names_them(tmp_path: Path) -> None:
    context(tmp_path, "far", "tcp://far:2376", tls=True, skip=True)
    found = find_endpoint({"DOCKER_CONTEXT": "far"}, tmp_path)
    assert found.certificates is not None
    assert found.certificates.is_dir()
    assert not found.verify
    secure = {"DOCKER_HOST": "tcp://h:1", "DOCKER_TLS_VERIFY": "1"}
    named = find_endpoint({**secure, "DOCKER_CERT_PATH": str(tmp_path)}, tmp_path)
    assert named.certificates == tmp_path
    with pytest.raises(ConfigError, match=r"no folder .*/absent") as told:
        find_endpoint({**secure, "DOCKER_CERT_PATH": f"{tmp_path}/absent"}, tmp_path)
    assert "DOCKER_CERT_PATH" in str(told.value.hint)


def test_what_is_named_and_cannot_be_used_is_an_error_and_never_another_engine(tmp_path: Path) -> None:
    current(tmp_path, "absent")
    with pytest.raises(ConfigError, match="'absent' does not exist"):
        find_endpoint({}, tmp_path)
    (tmp_path / ".docker/config.json").write_text("{")
    with pytest.raises(ConfigError, match="can't be read"):
        find_endpoint({}, tmp_path)
    with pytest.raises(UnsupportedError, match="ssh"):
        find_endpoint({"DOCKER_HOST": "ssh://somebody@far"}, tmp_path)
    with pytest.raises(UnsupportedError, match="has a user or a password") as refused:
        find_endpoint({"DOCKER_HOST": "tcp://me:canary-7d1e@far:2375"}, tmp_path)
    assert "canary-7d1e" not in str(refused.value)


def test_the_socket_that_answers_goes_before_one_that_only_exists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stale, living = tmp_path / "stale.sock", tmp_path / "living.sock"
    with socket.socket(socket.AF_UNIX) as first:
        first.bind(str(stale))
    monkeypatch.setattr("agent_env.containers.endpoint.usual_sockets", lambda *_: iter([tmp_path / "absent", stale, living]))
    assert find_endpoint({}, tmp_path).socket == stale
    with socket.socket(socket.AF_UNIX) as second:
        second.bind(str(living))
        second.listen()
        assert find_endpoint({}, tmp_path).socket == living
    monkeypatch.setattr("agent_env.containers.endpoint.usual_sockets", lambda *_: iter([]))
    with pytest.raises(EngineUnavailableError, match="no container engine is here"):
        find_endpoint({}, tmp_path)


def test_podmans_socket_and_those_of_rootless_engines_are_looked_at(tmp_path: Path) -> None:
    found = [str(path) for path in usual_sockets({"XDG_RUNTIME_DIR": "/run/user/7"}, tmp_path)]
    assert {"/run/podman/podman.sock", "/run/user/7/podman/podman.sock", "/run/user/7/docker.sock"} <= set(found)


# what an engine's trouble means


VERSION = {"ApiVersion": "1.41", "Version": "20"}


@asynccontextmanager
async def fake(tmp_path: Path, answer: Answer, *, version: object = VERSION, **limits: float) -> AsyncIterator[Engine]:
    """An engine that answers its version, and otherwise as told."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                while (await reader.readline()).strip():
                    continue
                path = line.decode().split(" ")[1]
                if path.endswith("/version"):
                    assert version is not None, "it was asked for its version"
                    await say(writer, 200, version)
                else:
                    await answer(reader, writer, line.decode())
        except ConnectionError:
            return
        finally:
            writer.close()

    server = await asyncio.start_unix_server(serve, tmp_path / "s")
    async with server, Engine(EngineEndpoint(f"unix://{tmp_path}/s"), limits=replace(DEFAULT_LIMITS, **limits)) as engine:
        yield engine


async def say(writer: asyncio.StreamWriter, status: int, body: object) -> None:
    data = json.dumps(body).encode()
    writer.write(f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
    await writer.drain()


@pytest.mark.parametrize(
    ("ping", "version", "kind"),
    [
        ("Api-Version: 1.41\r\nServer: Libpod/4.3.1 (linux)", None, "podman"),
        ("Api-Version: 1.41\r\nServer: Docker/20.10.24 (linux)", None, "docker"),
        (None, {"ApiVersion": "1.41", "Components": [{"Name": "Podman Engine"}]}, "podman"),
        (None, {"ApiVersion": "1.41"}, "docker"),
    ],
)
async def test_whose_an_engine_is_its_ping_says_and_its_version_only_where_no_ping_gets_through(
    ping: str | None, version: dict[str, object] | None, kind: str, tmp_path: Path
) -> None:
    asked = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, line: str) -> None:
        path = line.split(" ")[1]
        asked.append(path)
        if path == "/_ping" and ping is not None:
            writer.write(f"HTTP/1.1 200 OK\r\n{ping}\r\nContent-Length: 2\r\n\r\nOK".encode())
        else:
            said = {"OSType": "linux", "host": {"security": {"rootless": False}}}
            await say(writer, 403 if path == "/_ping" else 200, {"message": "x"} if path == "/_ping" else said)

    async with fake(tmp_path, answer, version=version) as engine:
        told = await engine.info()
    assert (told.kind, told.api, told.os) == (kind, "1.41", "linux")
    assert [path for path in asked if "/libpod/" not in path] == ["/_ping", "/v1.41/info"]
    assert len(asked) == (3 if kind == "podman" else 2)


CASES = [
    (404, "No such image: x", ImageNotFoundError, Kind.INVALID),
    (400, "invalid reference", EngineRefusedError, Kind.INVALID),
    (403, "denied", EngineRefusedError, Kind.INVALID),
    (409, "Conflict. The name is already in use", EngineConflictError, Kind.INFRASTRUCTURE),
    (
        500,
        "Bind for 127.0.0.1:80 failed: port is already allocated",
        PortTakenError,
        Kind.INFRASTRUCTURE,
    ),
    (500, "write /x: no space left on device", StorageError, Kind.STORAGE),
    (500, "could not find an available, non-overlapping IPv4 address pool among the defaults", EngineFailedError, Kind.INFRASTRUCTURE),
    (403, "Pool overlaps with other one on this address space", EngineConflictError, Kind.INFRASTRUCTURE),
    (500, "something else", EngineFailedError, Kind.INFRASTRUCTURE),
]


@pytest.mark.parametrize(("status", "message", "error", "kind"), CASES)
async def test_an_engines_refusals_have_one_meaning_each(
    status: int, message: str, error: type[Exception], kind: Kind, tmp_path: Path
) -> None:
    async with fake(tmp_path, lambda _reader, writer, _line: say(writer, status, {"message": message})) as engine:
        with pytest.raises(error) as told:
            async with engine.asking("doing it", missing=ImageNotFoundError) as client:
                await client.images.inspect("x")
        assert kind_of(told.value) is kind
        assert message in str(told.value)
        assert "doing it failed" in str(told.value)


async def test_an_engine_that_breaks_off_or_hangs_is_told_apart_from_one_that_is_not_there(tmp_path: Path) -> None:
    async def breaks(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter, _line: str) -> None:
        writer.transport.abort()

    async def hangs(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter, _line: str) -> None:
        await reader.read()

    async with fake(tmp_path, breaks) as engine:
        with pytest.raises(TransportLostError):
            async with engine.asking("listing") as client:
                await client.containers.list()
    (tmp_path / "s").unlink(missing_ok=True)
    async with fake(tmp_path, hangs, engine_seconds=0.3) as engine:
        with pytest.raises(DeadlineError) as told:
            async with engine.asking("listing") as client:
                await client.containers.list()
        assert kind_of(told.value) is Kind.DEADLINE


async def test_f05_a_removal_that_is_never_answered_is_bounded(tmp_path: Path) -> None:
    async def hangs_on_delete(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, line: str) -> None:
        if line.startswith("DELETE"):
            await reader.read()
        else:
            await say(writer, 200, {"Id": "c", "Name": "/c"})

    async with fake(tmp_path, hangs_on_delete, engine_seconds=0.3) as engine:
        async with asyncio.timeout(within(5)):
            with pytest.raises(DeadlineError):
                await remove_container(engine, "c" * 64)


async def test_an_engine_that_does_not_speak_tls_as_it_should_is_told_as_that_by_whoever_asks(tmp_path: Path) -> None:
    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(plain, "127.0.0.1", 0) as server:
        url = f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        environ = {"DOCKER_HOST": url, "DOCKER_TLS_VERIFY": "1", "DOCKER_CERT_PATH": str(tmp_path)}
        engines = Engines(environ, DEFAULT_LIMITS)
        found = await engines.problem()
        assert found is not None
        with pytest.raises(EngineUnavailableError) as told:
            await engines.client().info()
        await engines.aclose()
    for why, hint in ((found.why, found.hint), (told.value.message, str(told.value.hint))):
        assert (url in why, "not permitted" in why, "DOCKER_CERT_PATH" in hint) == (True, False, True), why


async def test_a_dead_socket_is_an_engine_that_does_not_answer(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(tmp_path / "s"))
    for path in (tmp_path / "s", tmp_path / "absent"):
        async with Engine(EngineEndpoint(f"unix://{path}")) as engine:
            with pytest.raises(EngineUnavailableError, match="no container engine answers") as told:
                await engine.info()
            assert kind_of(told.value) is Kind.INFRASTRUCTURE
            assert str(path) in str(told.value)
            assert await engine_problem(engine) == str(told.value)


@pytest.mark.skipif(os.geteuid() != 0, reason="agentenv-capability-missing: root")
async def test_a_socket_that_this_user_may_not_use_is_said_to_be_so(tmp_path: Path) -> None:
    async with fake(tmp_path, lambda _reader, writer, _line: say(writer, 200, {})):
        for folder in [tmp_path, *list(tmp_path.parents)[:-2]]:
            folder.chmod(stat.S_IMODE(folder.stat().st_mode) | 0o011)
        (tmp_path / "s").chmod(0o600)
        pid = os.fork()
        if pid == 0:
            os.setresuid(65534, 65534, 65534)
            code = 1
            try:
                asyncio.run(_ask(tmp_path / "s"))
            except EngineDeniedError as error:
                code = 0 if "does not let this user in" in str(error) and kind_of(error) is Kind.INVALID else 2
            finally:
                os._exit(code)
        _, status = await asyncio.to_thread(os.waitpid, pid, 0)
        assert os.waitstatus_to_exitcode(status) == 0


async def _ask(path: Path) -> None:
    async with Engine(EngineEndpoint(f"unix://{path}")) as engine:
        await engine.info()


async def test_the_real_engine_says_what_it_is(docker: EngineEndpoint) -> None:
    async with open_engine() as engine:
        info = await engine.info()
        assert info.kind in {"docker", "podman"}
        assert info.architecture in {"amd64", "arm64"}
        assert info.os == "linux"
        assert info.cpus > 0
        assert {"memory", "cpu"} <= info.limits

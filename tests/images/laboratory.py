"""A real registry, a door in front of it that can be made difficult, and images of an engine that leave nothing behind."""

from __future__ import annotations

import asyncio
import base64
import gzip
import http.client
import io
import json
import os
import re
import secrets
import shutil
import subprocess
import tarfile
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from agent_env.defaults import DEFAULT_LIMITS, Limits
from agent_env.images import BuildContext, BuildRequest, ImageReference, Images, Progress
from agent_env.images.engine_api import EngineAnswerError, EngineApi
from agent_env.images.oci.manifests import OCI_INDEX, OCI_MANIFEST
from agent_env.images.reference import digest_of

QUICK = replace(DEFAULT_LIMITS, retry_backoff_seconds=0.01, retry_backoff_max_seconds=0.05, image_free_bytes=0)
"""The product's limits, with retries that do not make a test wait."""


@contextmanager
def ordinary_user(folder: Path, uid: int = 65534) -> Iterator[None]:
    """Acts on files as somebody who is not root, in a folder of theirs."""
    if os.geteuid() != 0:
        yield
        return
    folder.chmod(0o755)
    os.chown(folder, uid, uid)
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)


@contextmanager
def debian_registry(storage: Path, passwords: Path | None = None) -> Iterator[str]:
    """Debian's `docker-registry` on a free port of the loopback; its address. With a file of `htpasswd` it lets in whom that names."""
    program = shutil.which("docker-registry")
    if program is None:
        pytest.skip("agentenv-capability-missing: docker_registry")
    config = storage / "config.yml"
    config.write_text(
        "version: 0.1\nlog: {level: info}\nstorage: {delete: {enabled: true}, filesystem: {rootdirectory: "
        f"{storage / 'data'}}}}}\nhttp: {{addr: '127.0.0.1:0'}}\n"
        + (f"auth: {{htpasswd: {{realm: ours, path: {passwords}}}}}\n" if passwords is not None else "")
    )
    environ = {key: value for key, value in os.environ.items() if "proxy" not in key.lower()}
    process = subprocess.Popen(
        [program, "serve", config], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environ
    )
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if found := re.search(rb"listening on (127\.0\.0\.1:\d+)", line):
                break
        else:
            pytest.fail("docker-registry did not start")
        threading.Thread(target=lambda: [None for _ in process.stdout or ()], daemon=True).start()
        yield found[1].decode()
    finally:
        process.kill()
        process.wait()


@dataclass
class Door:
    """A proxy before a registry: counts, asks for passwords, breaks off."""

    behind: str
    address: str = ""
    user: str | None = None
    password: str = ""
    bearer: bool = False
    """Tokens instead of the password itself."""
    requests: list[str] = field(default_factory=list)
    authorizations: list[str] = field(default_factory=list)
    fault: Callable[[str, str], int | None] = lambda method, path: None
    """A status that is answered instead."""
    cut: Callable[[str, str], int | None] = lambda method, path: None
    """After so many bytes of an answer the connection breaks."""
    spoil: bool = False
    """Blobs arrive with one byte changed."""
    held: str | None = None
    """A blob's digest, of which only the first half comes until `free` is set."""
    free: threading.Event = field(default_factory=threading.Event)
    ranges: bool = True

    @property
    def token(self) -> str:
        return "token-of-" + base64.b64encode(f"{self.user}:{self.password}".encode()).hex()

    def blobs(self) -> list[str]:
        """Requests for blobs, as they came."""
        return [request for request in self.requests if request.startswith("GET") and "/blobs/" in request]


@contextmanager
def door(behind: str, **options: Any) -> Iterator[Door]:
    """The proxy on a free port of the loopback."""
    made = Door(behind, **options)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            pass

        def handle_one_request(self) -> None:
            try:
                super().handle_one_request()
            except (ConnectionError, TimeoutError):
                self.close_connection = True

        def answer(self) -> None:
            body = self.body()
            made.requests.append(f"{self.command} {self.path}")
            if self.path.startswith("/token"):
                self.give_token()
            elif not self.let_in():
                self.refuse()
            elif (status := made.fault(self.command, self.path)) is not None:
                self.say(status, b"{}", {"Content-Type": "application/json"})
            else:
                self.pass_on(body)

        do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = answer  # noqa: N815

        def body(self) -> bytes:
            if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
                chunks = []
                while size := int(self.rfile.readline().split(b";")[0], 16):
                    chunks.append(self.rfile.read(size))
                    self.rfile.readline()
                self.rfile.readline()
                return b"".join(chunks)
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))

        def let_in(self) -> bool:
            said = self.headers.get("Authorization", "")
            if said:
                made.authorizations.append(said)
            if made.user is None:
                return True
            return said == (f"Bearer {made.token}" if made.bearer else self.basic())

        def basic(self) -> str:
            return "Basic " + base64.b64encode(f"{made.user}:{made.password}".encode()).decode()

        def refuse(self) -> None:
            realm = f'Bearer realm="http://{made.address}/token",service="door"' if made.bearer else 'Basic realm="door"'
            self.say(401, b'{"errors":[{"code":"UNAUTHORIZED"}]}', {"WWW-Authenticate": realm, "Content-Type": "application/json"})

        def give_token(self) -> None:
            right = self.headers.get("Authorization") == self.basic()
            self.say(
                200 if right else 401, f'{{"token":"{made.token}"}}'.encode() if right else b"{}", {"Content-Type": "application/json"}
            )

        def pass_on(self, body: bytes) -> None:
            connection = http.client.HTTPConnection(made.behind)
            left_out = {"authorization", "transfer-encoding", "content-length"}
            passed = {name: ", ".join(self.headers.get_all(name, [])) for name in self.headers if name.lower() not in left_out}
            if not made.ranges:
                passed.pop("Range", None)
            connection.request(self.command, self.path, body, {**passed, "Content-Length": str(len(body))})
            response = connection.getresponse()
            data = response.read()
            connection.close()
            if made.spoil and "/blobs/" in self.path and data:
                data = data[:-1] + bytes([data[-1] ^ 1])
            skipped = {"transfer-encoding", "connection", "content-length"}
            head = {k: v for k, v in response.getheaders() if k.lower() not in skipped}
            length = response.getheader("Content-Length") if self.command == "HEAD" else None
            self.say(response.status, data, head, length)

        def say(self, status: int, data: bytes, headers: Mapping[str, str], length: str | None = None) -> None:
            self.send_response(status)
            for key, value in headers.items():
                self.send_header(key, value)
            self.send_header("Content-Length", length or str(len(data)))
            self.end_headers()
            if self.command == "HEAD":
                return
            limit = made.cut(self.command, self.path)
            if made.held is not None and self.path.endswith(made.held):
                self.wfile.write(data[: len(data) // 2])
                self.wfile.flush()
                made.free.wait(30)
                data = data[len(data) // 2 :]
            self.wfile.write(data if limit is None else data[:limit])
            if limit is not None:
                self.close_connection = True

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    made.address = f"127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield made
    finally:
        server.shutdown()
        server.server_close()


@dataclass
class Bench:
    """Images of a home of its own, in the real engine."""

    engine: Any
    root: Path
    base: str
    home: str = field(default_factory=lambda: f"test-{secrets.token_hex(6)}")
    name: str = field(default_factory=lambda: f"agentenv-test/t{secrets.token_hex(5)}")
    events: list[Progress] = field(default_factory=list)

    @property
    def api(self) -> EngineApi:
        return EngineApi(self.engine)

    def images(self, *, home: str | None = None, state: Path | None = None, limits: Limits = QUICK, **options: Any) -> Images:
        return Images(self.engine, state_root=state or self.root / "state", home=home or self.home, limits=limits, **options)

    def folder(self, dockerfile: str, files: Mapping[str, str | bytes] | None = None, name: str = "context") -> Path:
        root = self.root / name
        root.mkdir(exist_ok=True)
        for path, content in {"Dockerfile": dockerfile.replace("BASE", self.base), **(files or {})}.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_bytes(content if isinstance(content, bytes) else content.encode())
        return root

    def request(self, dockerfile: str, files: Mapping[str, str | bytes] | None = None, *, tag: str = "1", **options: Any) -> BuildRequest:
        context = BuildContext.of(self.folder(dockerfile, files, f"context-{secrets.token_hex(3)}"))
        return BuildRequest(context, ImageReference.parse(f"{self.name}:{tag}"), **options)

    def told(self, event: Progress) -> None:
        self.events.append(event)

    async def run(self, image: str, *argv: str) -> str:
        """What a command prints in a container of an image."""
        made = await self.api.ask(
            "POST", "containers/create", json={"Image": image, "Cmd": list(argv), "Tty": True, "Labels": {"agentenv.home": self.home}}
        )
        try:
            await self.api.ask("POST", f"containers/{made['Id']}/start")
            await self.api.ask("POST", f"containers/{made['Id']}/wait")
            async with self.api.content(f"containers/{made['Id']}/logs", params={"stdout": "1", "stderr": "1"}) as chunks:
                return b"".join([chunk async for chunk in chunks]).decode().replace("\r\n", "\n")
        finally:
            await self.api.ask("DELETE", f"containers/{made['Id']}", params={"force": "1"})

    async def load(self, tag: str = "1", *, platform: str = "amd64", **config: Any) -> str:
        """An image of one small layer that is like no other; its name. Much quicker than a build."""
        name = f"{self.name}:{tag}"
        archive = saved([tar_of(("unique", secrets.token_bytes(2000)))], names=[name], architecture=platform, **config)

        async def data() -> AsyncIterator[bytes]:
            yield archive

        async for _ in self.api.events("images/load", seconds=60, data=data()):
            pass
        return name

    async def running(self, word: str) -> bool:
        """A container runs a command with this word, or did and is still there."""
        rows = await self.api.ask("GET", "containers/json", params={"all": "1"})
        return any(word in row["Command"] for row in rows)

    async def all_gone(self, word: str) -> None:
        """Waits until no such container is left."""

        async def gone() -> bool:
            return not await self.running(word)

        await until(gone)

    async def clean(self) -> None:
        """Removes every trace: images by label and name, layers by the ledger."""
        left = set()
        for row in await self.api.ask("GET", "images/json", params={"all": "1"}):  # once: the engine weighs every image that it lists
            names = [*(row.get("RepoTags") or ()), *(row.get("RepoDigests") or ())]
            labelled = (row.get("Labels") or {}).get("dev.agentenv.home", "") == self.home
            if labelled or any(self.name in name for name in names):
                left.add(row["Id"])
        for _ in range(4):  # what was made from another must go before it
            left = {id for id in left if not await self.drop(id)}
        for state in [self.root / "state", *self.root.glob("state-*")]:
            await (await self.images(state=state).space()).gc(everything=True)

    async def drop(self, name: str) -> bool:
        """Removes an image, unless others are made from it; whether it is gone."""
        try:
            await self.api.ask("DELETE", f"images/{name}", params={"force": "1"})
        except EngineAnswerError as error:
            return error.status == httpx.codes.NOT_FOUND
        return True


def tar_of(*members: tuple[str, Any], **common: Any) -> bytes:
    """A layer: (name, content) for files; (name, TarInfo) for everything else."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, content in members:
            info = content if isinstance(content, tarfile.TarInfo) else tarfile.TarInfo(name)
            info.name = name
            for key, value in common.items():
                setattr(info, key, value)
            data = content if isinstance(content, bytes) else b""
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def config_of(layers: list[bytes], *, architecture: str = "amd64", **config: Any) -> bytes:
    """An image's configuration."""
    diff_ids = [digest_of(layer) for layer in layers]
    facts = {"architecture": architecture, "os": "linux", "config": config, "rootfs": {"type": "layers", "diff_ids": diff_ids}}
    return json.dumps(facts).encode()


def saved(layers: list[bytes], *, names: list[str], **config: Any) -> bytes:
    """A `docker save` archive."""
    facts = config_of(layers, **config)
    id = digest_of(facts).removeprefix("sha256:")
    listed = [{"Config": f"{id}.json", "RepoTags": names, "Layers": [f"{number}/layer.tar" for number in range(len(layers))]}]
    files = [(f"{id}.json", facts), *((f"{number}/layer.tar", layer) for number, layer in enumerate(layers))]
    return tar_of(*files, ("manifest.json", json.dumps(listed).encode()))


def entry(kind: bytes, **facts: Any) -> tarfile.TarInfo:
    """A member that is no plain file."""
    info = tarfile.TarInfo()
    info.type = kind
    info.mode = 0o755 if info.isdir() else info.mode  # so that whoever runs the tests may look into it
    for key, value in facts.items():
        setattr(info, key, value)
    return info


async def until(condition: Callable[[], Awaitable[object]], within: float = 120.0) -> None:
    """Waits for what another task, process or engine does."""
    deadline = time.monotonic() + within
    while not await condition():
        assert time.monotonic() < deadline, "it did not happen"
        await asyncio.sleep(0.05)


@asynccontextmanager
async def bench(engine: Any, root: Path, base: str) -> AsyncIterator[Bench]:
    """A bench, of which nothing is left."""
    made = Bench(engine, root, base)
    try:
        yield made
    finally:
        await made.clean()


@dataclass
class Published:
    """An image in a registry, made without any engine."""

    name: str
    digest: str
    id: str
    blobs: list[str]


def publish(
    registry: str,
    layers: list[bytes],
    *,
    tag: str = "1",
    repository: str | None = None,
    pack: Callable[[bytes], bytes] = gzip.compress,
    claimed: int | None = None,
    **config: Any,
) -> Published:
    """Puts an image of these layers into a registry."""
    repository = repository or f"agentenv-test/p{secrets.token_hex(5)}"
    facts, packed = config_of(layers, **config), [pack(layer) for layer in layers]
    with httpx.Client(base_url=f"http://{registry}", trust_env=False) as client:
        for blob in {*packed, facts}:
            upload = client.post(f"/v2/{repository}/blobs/uploads/")
            place = httpx.URL(upload.headers["Location"])
            done = client.put(place.copy_merge_params({"digest": digest_of(blob)}), content=blob)
            assert done.status_code == 201, done.text
        manifest = manifest_of(facts, packed, claimed=claimed)
        done = client.put(f"/v2/{repository}/manifests/{tag}", content=manifest, headers={"Content-Type": OCI_MANIFEST})
        assert done.status_code == 201, done.text
    return Published(f"{registry}/{repository}:{tag}", digest_of(manifest), digest_of(facts), [digest_of(blob) for blob in packed])


def publish_index(registry: str, repository: str, tag: str, entries: list[tuple[Published, str]]) -> str:
    """Puts an index of images for several platforms into a registry; its digest."""
    with httpx.Client(base_url=f"http://{registry}", trust_env=False) as client:
        manifests = []
        for image, architecture in entries:
            data = client.get(f"/v2/{repository}/manifests/{image.digest}", headers={"Accept": OCI_MANIFEST}).content
            assert digest_of(data) == image.digest
            platform = {"os": "linux", "architecture": architecture}
            manifests.append({"mediaType": OCI_MANIFEST, "digest": image.digest, "size": len(data), "platform": platform})
        unknown = {**manifests[0], "platform": {"os": "unknown", "architecture": "unknown"}}
        index = json.dumps({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": [unknown, *manifests]}).encode()
        done = client.put(f"/v2/{repository}/manifests/{tag}", content=index, headers={"Content-Type": OCI_INDEX})
        assert done.status_code == 201, done.text
    return digest_of(index)


def manifest_of(facts: bytes, packed: list[bytes], *, claimed: int | None = None) -> bytes:
    """A manifest of a configuration and its layers' blobs; `claimed` is a size that it gives each instead of the true one."""
    kind = "application/vnd.oci.image.layer.v1.tar+gzip"
    layers = [{"mediaType": kind, "digest": digest_of(blob), "size": claimed or len(blob)} for blob in packed]
    config = {"mediaType": "application/vnd.oci.image.config.v1+json", "digest": digest_of(facts), "size": len(facts)}
    return json.dumps({"schemaVersion": 2, "mediaType": OCI_MANIFEST, "config": config, "layers": layers}).encode()


def layout(folder: Path, layers: list[bytes], *, name: str | None = None, **config: Any) -> Path:
    """An OCI layout folder of one image, or one image more in it."""
    facts, packed = config_of(layers, **config), [gzip.compress(layer) for layer in layers]
    manifest = manifest_of(facts, packed)
    (folder / "blobs/sha256").mkdir(parents=True, exist_ok=True)
    for blob in (*packed, facts, manifest):
        (folder / "blobs" / digest_of(blob).replace(":", "/")).write_bytes(blob)
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    index = folder / "index.json"
    known = json.loads(index.read_text())["manifests"] if index.exists() else []
    entry = {"mediaType": OCI_MANIFEST, "digest": digest_of(manifest), "size": len(manifest)}
    entry |= {"annotations": {"org.opencontainers.image.ref.name": name}} if name else {}
    index.write_text(json.dumps({"schemaVersion": 2, "manifests": [*known, entry]}))
    return folder

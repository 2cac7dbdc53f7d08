"""A real container engine for tests: the one that runs here, else one that is started once; with images that are made from packages.

Everything that a test makes carries a home of its own, and is removed with it.
"""

from __future__ import annotations

import asyncio
import fcntl
import io
import json
import os
import resource
import secrets
import shutil
import subprocess
import tarfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from agent_env.containers import ContainerPlace, ContainerSpec, Engine, EngineEndpoint, deploy, engine_problem, find_endpoint, remove_all
from agent_env.defaults import DEFAULT_LIMITS, Limits
from agent_env.errors import AgentEnvError, DeadlineError, EngineFailedError, ImageNotFoundError
from agent_env.waiting import poll
from tests.chaos.wire import wire

ROOT = Path(__file__).parents[1]
MISSING = "agentenv-capability-missing: docker_daemon"
BUSYBOX = "agentenv-test/busybox:2"
DEBIAN = "agentenv-test/debian:1"
NEAR_AND_FAR = pytest.mark.parametrize("far", [False, True], ids=["by itself", "through its engine"])
"""How a container is reached; see `bench`."""


@cache
def engine_endpoint() -> EngineEndpoint:
    """Where the engine listens; the test is skipped where none can be had."""
    with suppress(OSError):
        subprocess.run(["sh", ROOT / "tools/start-test-engine.sh"], check=False, stdin=subprocess.DEVNULL, capture_output=True, timeout=60)
    try:
        endpoint = find_endpoint(os.environ, Path.home())
    except AgentEnvError as error:
        pytest.skip(f"{MISSING} ({error})")

    if why := problem_of(endpoint):
        pytest.skip(f"{MISSING} ({why})")
    return endpoint


@pytest.fixture(scope="session")
def docker() -> EngineEndpoint:
    """The engine's address."""
    return engine_endpoint()


PODMAN_CONFIG = """[containers]
default_ulimits = ["nofile=%d:%d", "nproc=4096:4096"]
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
%s
"""


@pytest.fixture(scope="session")
def podman() -> EngineEndpoint:
    """A second engine for the same code: Podman's Docker-compatible socket, served once by root and left running, as Docker's is."""
    if shutil.which("podman") is None or os.geteuid() != 0:
        pytest.skip("agentenv-capability-missing: podman")
    folder = Path("/run/agent-env-test-podman")
    folder.mkdir(exist_ok=True)
    endpoint = EngineEndpoint(f"unix://{folder}/socket")
    with only_one("podman"):
        if problem_of(endpoint):
            files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
            runtime = 'runtime = "runc"' if shutil.which("runc") or Path("/usr/sbin/runc").exists() else ""
            (folder / "containers.conf").write_text(PODMAN_CONFIG % (files, files, runtime))
            (folder / "socket").unlink(missing_ok=True)
            subprocess.Popen(
                ["podman", "system", "service", "--time=0", endpoint.url],
                env={**os.environ, "CONTAINERS_CONF": str(folder / "containers.conf")},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            why = asyncio.run(answering(endpoint))
            if why:
                pytest.skip(f"agentenv-capability-missing: podman ({why})")
    return endpoint


async def answering(endpoint: EngineEndpoint) -> str | None:
    """Why an engine that was just started does not answer, or None."""

    async def probe() -> bool | None:
        async with Engine(endpoint) as engine:
            return True if await engine_problem(engine) is None else None

    try:
        await poll(probe, within_seconds=60, what="the start of the engine")
    except DeadlineError as error:
        return str(error)
    return None


def problem_of(endpoint: EngineEndpoint) -> str | None:
    """Why an engine can't be used, or None."""

    async def problem() -> str | None:
        async with Engine(endpoint) as engine:
            why: str | None = await engine_problem(engine)
            return why

    return asyncio.run(problem())


@contextmanager
def only_one(name: str) -> Iterator[None]:
    """Holds a lock across the workers of a test session."""
    path = Path("/tmp") / f"agent-env-test-{os.getuid()}-{name}.lock"
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


async def import_image(engine: Engine, archive: bytes | Path, tag: str, changes: Sequence[str] = ()) -> None:
    """Makes an image of a root file system."""
    repository, _, version = tag.partition(":")
    query = [("fromSrc", "-"), ("repo", repository), ("tag", version or "latest"), *(("changes", change) for change in changes)]
    await engine.ready()
    data = archive if isinstance(archive, bytes) else archive.open("rb")
    async with engine.asking(f"importing {tag}", seconds=120) as client:
        answer = await client.session.post(engine.url("images/create"), params=query, data=data)
        text = await answer.text()
    assert answer.status == 200, text
    assert '"error"' not in text, text
    if (await engine.info()).kind == "podman":  # it names what it imports after itself, and looks for it elsewhere
        made = json.loads(text.splitlines()[-1])["status"]
        async with engine.asking(f"tagging {tag}") as client:
            await client._query_json(f"images/{made}/tag", method="POST", params={"repo": repository, "tag": version or "latest"})


async def has_image(engine: Engine, tag: str) -> bool:
    try:
        async with engine.asking("looking", missing=ImageNotFoundError) as client:
            await client.images.inspect(tag)
    except ImageNotFoundError:
        return False
    return True


def ensure(endpoint: EngineEndpoint, tag: str, make: Callable[[], bytes | Path], changes: Sequence[str] = ()) -> str:
    """The tag of an image that is there now."""

    async def have() -> None:
        async with Engine(endpoint) as engine:
            if not await has_image(engine, tag):
                await import_image(engine, make(), tag, changes)

    with only_one("images"), ThreadPoolExecutor(1) as apart:  # also from within an event loop
        apart.submit(asyncio.run, have()).result()
    return tag


def archive_of(
    files: Mapping[str, bytes | str | None], *, modes: Mapping[str, int] | None = None, owners: Mapping[str, int] | None = None
) -> bytes:
    """A root file system: path → content, or a link's target (`str`), or a folder (`None`)."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.mode = (modes or {}).get(name, 0o755)
            member.uid = member.gid = (owners or {}).get(name, 0)
            if content is None:
                member.type = tarfile.DIRTYPE
                archive.addfile(member)
            elif isinstance(content, str):
                member.type, member.linkname = tarfile.SYMTYPE, content
                archive.addfile(member)
            else:
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def busybox_root() -> dict[str, bytes | str | None]:
    """BusyBox with its links and the least of an /etc."""
    program = Path(shutil.which("busybox") or "/bin/busybox")
    if not program.exists():
        pytest.skip("agentenv-capability-missing: busybox")
    names = subprocess.run([program, "--list"], capture_output=True, text=True, check=True).stdout.split()
    users = b"root:x:0:0:root:/root:/bin/sh\nworker:x:1001:1001::/home/worker:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n"
    files: dict[str, bytes | str | None] = {"bin": None, "etc": None, "tmp": None, "root": None, "home": None, "home/worker": None}
    files |= {"bin/busybox": program.read_bytes(), "etc/passwd": users, "etc/group": b"root:x:0:\nworker:x:1001:\nextra:x:1500:worker\n"}
    return files | {f"bin/{name}": "busybox" for name in names if name != "busybox"}


@pytest.fixture(scope="session")
def busybox(docker: EngineEndpoint) -> str:
    """An image with BusyBox and users root, worker (1001) and nobody."""
    return busybox_of(docker)


def busybox_of(endpoint: EngineEndpoint) -> str:
    """That image on any engine."""

    def make() -> bytes:
        return archive_of(busybox_root(), modes={"tmp": 0o1777}, owners={"home/worker": 1001})

    return ensure(endpoint, BUSYBOX, make, ['CMD ["sh"]', "ENV IMAGE=busybox"])


@pytest.fixture(scope="session")
def debian(docker: EngineEndpoint, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A small Debian, as a distribution's image is: bash, coreutils, no Python."""

    def make() -> Path:
        if shutil.which("mmdebstrap") is None or os.geteuid() != 0:
            pytest.skip("agentenv-capability-missing: mmdebstrap")
        path = tmp_path_factory.mktemp("debian") / "root.tar"
        options = ["--quiet", "--variant=minbase", "--aptopt=APT::Install-Recommends false", "--dpkgopt=path-exclude=/usr/share/doc/*"]
        subprocess.run(["mmdebstrap", *options, "bookworm", path], check=True, stdin=subprocess.DEVNULL, capture_output=True, timeout=250)
        return path

    return ensure(docker, DEBIAN, make, ['CMD ["bash"]', "ENV LANG=C.UTF-8"])


@dataclass
class Bench:
    """An engine with a home of its own, in which a test makes containers."""

    engine: Engine
    image: str
    home: str = field(default_factory=lambda: f"test-{secrets.token_hex(6)}")
    token: str = field(default_factory=lambda: secrets.token_hex(16))
    places: list[ContainerPlace] = field(default_factory=list)

    @property
    def labels(self) -> dict[str, str]:
        return {"agentenv.home": self.home}

    def spec(self, **changes: Any) -> ContainerSpec:
        sandbox = f"local-{secrets.token_hex(6)}"
        role = changes.get("role", "agent")
        given = {"name": f"{role}-{sandbox}", "image": self.image, "token": self.token, "role": role, "argv": ("sleep", "1000"), **changes}
        return ContainerSpec(**{**given, "labels": {**self.labels, "agentenv.sandbox": sandbox, **changes.get("labels", {})}})

    async def deploy(self, **changes: Any) -> ContainerPlace:
        place = await deploy(self.engine, self.spec(**changes))
        self.places.append(place)
        return place


async def pause(engine: Engine, container_id: str) -> None:
    """Pauses a container. An engine may find that it can't on a machine that is busy, and has changed nothing then."""

    async def paused() -> bool | None:
        try:
            async with engine.asking("pausing", seconds=60) as client:
                await client.containers.container(container_id).pause()
        except EngineFailedError:
            return None
        return True

    await poll(paused, within_seconds=100, what="a pause")


@asynccontextmanager
async def bench(endpoint: EngineEndpoint, image: str, limits: Limits = DEFAULT_LIMITS, *, far: bool = False) -> AsyncIterator[Bench]:
    """A bench, of which nothing is left. A far one's engine is as if on another machine: containers are reached through it alone."""
    async with AsyncExitStack() as stack:
        found = (await stack.enter_async_context(wire(endpoint))).endpoint if far else endpoint
        engine = await stack.enter_async_context(Engine(found, limits=limits))
        made = Bench(engine, image)
        try:
            yield made
        finally:
            await asyncio.gather(*(place.aclose() for place in made.places))
            removed = await remove_all(engine, made.labels)
            assert not removed.left

"""Containers: what a command, a copy, a look and a start cost, beside the engine's own API, its command line and its Python SDK."""

from __future__ import annotations

import asyncio
import io
import os
import secrets
import shutil
import statistics
import subprocess
import tarfile
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, cast

from agent_env.containers import ContainerPlace, ContainerSpec, Engine, deploy, engine_problem, open_engine, remove_all
from agent_env.containers.networks import shared_network
from agent_env.containers.objects import remove_container
from agent_env.defaults import DEFAULT_LIMITS, MIB
from agent_env.errors import AgentEnvError
from agent_env.ids import new_sandbox_id
from agent_env.places import Command, Place
from agent_env.sandboxes.contract import SandboxSpec
from agent_env.sandboxes.registry import provider
from agent_env.steps.contract import Run
from agent_env.verifiers.verify_sandbox import VerifySandbox
from benchmarks.measure import Figure, left_out, peak_growth_mib

IMAGE = "agentenv-bench/busybox:1"
ROUNDS, HELPER_EACH, OTHERS_EACH = 20, 40, 2
"""Everything is measured in turns, so that whatever else the machine does falls on all alike."""
AT_ONCE = 1000
SMALL_FILES = 1000
LARGE_BYTES = 1 << 30
STARTS, OTHERS_EVERY = 41, 4
"""An engine's own start takes a tenth more or less from one to the next. The other ways take their turn more rarely."""
COPIES = 7
TRUE = ("/bin/true",)
WAYS = {"helper": "a command in a container", "api": "  by the engine's API", "cli": "  by docker exec", "sdk": "  by the docker SDK"}


def figures(bare: float) -> Iterator[Figure]:
    """All of them, or one line that says why there are none."""
    del bare
    try:
        found = asyncio.run(_measure())
    except AgentEnvError as error:
        found = [left_out("containers", f"{error}")]
    yield from found


async def _measure() -> list[Figure]:
    async with open_engine() as engine:
        why = await engine_problem(engine)
        program = shutil.which("busybox")
        if why is not None or program is None:
            return [left_out("containers", why or "there is no busybox on the PATH to make an image of")]
        await _have_image(engine, Path(program))
        async with _scene(engine) as scene:
            found = await _commands(scene)
            found += await _together(scene)
            found += await _small_files(scene)
            found += await _large_file(scene)
            found += await _probes(scene)
            return found + await _starts(scene)


@dataclass
class Scene:
    """A container to measure in, and whose objects are this benchmark's."""

    engine: Engine
    home: str
    folder: Path
    place: ContainerPlace = field(init=False)
    cli: str | None = field(default_factory=lambda: shutil.which("docker"))
    sdk: Any = None

    @property
    def labels(self) -> dict[str, str]:
        """Of everything that is made here."""
        return {"agentenv.home": self.home, "agentenv.sandbox": self.home}

    def spec(self, network: str = "none") -> ContainerSpec:
        """One more container."""
        name = f"agent-{new_sandbox_id('local')}"
        command = ("sleep", "100000")
        return ContainerSpec(name=name, image=IMAGE, labels=self.labels, token=secrets.token_hex(16), argv=command, network=network)

    def container(self) -> Any:
        """The same container, for the SDK."""
        return self.sdk.containers.get(self.place.id)


@asynccontextmanager
async def _scene(engine: Engine) -> AsyncIterator[Scene]:
    with tempfile.TemporaryDirectory(prefix="agent-env-bench-") as folder:
        os.chmod(folder, 0o711)  # noqa: PTH101 - before anything is measured
        scene = Scene(engine, f"bench-{secrets.token_hex(6)}", Path(folder), sdk=_sdk(engine))
        os.environ["AGENT_ENV_LOCAL_SANDBOX_DIR"] = f"{folder}/sandboxes"
        try:
            scene.place = await deploy(engine, scene.spec())
            yield scene
            await scene.place.aclose()
        finally:
            await remove_all(engine, {"agentenv.home": scene.home})
            if scene.sdk is not None:
                scene.sdk.close()


def _sdk(engine: Engine) -> Any:
    """The engine's Python SDK at the same engine, where it is installed."""
    try:
        import docker  # type: ignore[import-untyped]
    except ImportError:
        return None
    return docker.DockerClient(base_url=engine.endpoint.url)


async def _have_image(engine: Engine, program: Path) -> None:
    await engine.ready()
    repository, _, tag = IMAGE.partition(":")
    query = {"fromSrc": "-", "repo": repository, "tag": tag, "changes": 'CMD ["sleep","100000"]'}
    async with engine.asking("importing the benchmark's image", seconds=60) as docker:
        answer = await docker.session.post(engine.url("images/create"), params=query, data=_root_of(program))
        await answer.read()


def _root_of(program: Path) -> bytes:
    """A root file system of one static program."""
    applets = subprocess.run([program, "--list"], capture_output=True, text=True, check=True).stdout.split()
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name in ("bin", "etc", "tmp", "app"):
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
            archive.addfile(folder)
        _add(archive, "bin/busybox", program.read_bytes())
        _add(archive, "etc/passwd", b"root:x:0:0:root:/root:/bin/sh\n")
        for name in applets:
            link = tarfile.TarInfo(f"bin/{name}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            if name != "busybox":
                archive.addfile(link)
    return buffer.getvalue()


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(content), 0o755
    archive.addfile(member, io.BytesIO(content))


async def _seconds(action: Callable[[], Awaitable[object]]) -> float:
    started = time.perf_counter()
    await action()
    return time.perf_counter() - started


def _rows(what: str, times: Sequence[float], unit: float = 1000, promise: tuple[float, float] | None = None) -> list[Figure]:
    ordered = sorted(times)
    median, tail = statistics.median(ordered) * unit, ordered[min(int(len(ordered) * 0.99), len(ordered) - 1)] * unit
    most = (None, None) if promise is None else promise
    return [Figure(what, median, "ms", most[0]), Figure("  its 99th percentile", tail, "ms", most[1], note=f"of {len(ordered)}")]


# commands


async def _commands(scene: Scene) -> list[Figure]:
    ways: dict[str, tuple[int, Callable[[], Awaitable[object]]]] = {
        "helper": (HELPER_EACH, lambda: _ran(scene.place)),
        "api": (OTHERS_EACH, lambda: _engine_exec(scene.engine, scene.place.id)),
    }
    if scene.cli is not None:
        ways["cli"] = (OTHERS_EACH, lambda: _cli(scene, "exec", scene.place.id, *TRUE))
    if scene.sdk is not None:
        ways["sdk"] = (OTHERS_EACH, lambda: asyncio.to_thread(scene.container().exec_run, list(TRUE)))
    times: dict[str, list[float]] = {way: [] for way in ways}
    for turn in range(ROUNDS + 1):
        for way, (count, action) in ways.items():
            taken = [await _seconds(action) for _ in range(count)]
            times[way] += taken if turn else []
    found = []
    for way, taken in times.items():
        found += _rows(WAYS[way], taken, promise=(2, 6) if way == "helper" else None)
    return found + _absent(scene, "  by docker exec", "  by the docker SDK")


def _absent(scene: Scene, cli: str, sdk: str) -> list[Figure]:
    found = [] if scene.cli is not None else [left_out(cli, "there is no docker client on the PATH")]
    return found + ([] if scene.sdk is not None else [left_out(sdk, "the package `docker` is not installed")])


async def _ran(place: Place) -> None:
    done = await place.run(Command(TRUE))
    if not done.ok:
        raise SystemExit(f"{TRUE[0]} ended as {done}")


async def _engine_exec(engine: Engine, container_id: str) -> None:
    """As any client of the engine does it: make, start, read to the end, ask for the exit code."""
    async with engine.asking("running a command") as docker:
        made = await docker.containers.container(container_id).exec(list(TRUE))
        async with made.start(detach=False) as stream:
            while await stream.read_out() is not None:
                pass
        if (await made.inspect())["ExitCode"] != 0:
            raise SystemExit("a command by the engine's API failed")


async def _cli(scene: Scene, *words: str) -> None:
    environment = {**os.environ, "DOCKER_HOST": scene.engine.endpoint.url}
    silent = asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(str(scene.cli), *words, env=environment, stdin=silent, stdout=silent)
    if await process.wait() != 0:
        raise SystemExit(f"docker {' '.join(words)} failed")


async def _together(scene: Scene) -> list[Figure]:
    seconds = await _seconds(lambda: asyncio.gather(*(_ran(scene.place) for _ in range(AT_ONCE))))
    return [Figure(f"{AT_ONCE} commands at once in one container", seconds * 1000, "ms", note=f"{seconds / AT_ONCE * 1000:.2f} ms each")]


# files


async def _small_files(scene: Scene) -> list[Figure]:
    script = f"mkdir -p /app/small; i=0; while [ $i -lt {SMALL_FILES} ]; do echo file $i > /app/small/$i.txt; i=$((i+1)); done"
    await scene.place.run(Command(["sh", "-c", script]))
    paths = [PurePosixPath(f"/app/small/{number}.txt") for number in range(SMALL_FILES)]
    ours, theirs = [], []
    for _ in range(COPIES):
        ours.append(await _collected(scene, paths))
        theirs.append(await _archived(scene, "/app/small", unpack=True))
    return _against(f"{SMALL_FILES} files out of a container", "the engine's archive, unpacked", ours, theirs, 1.3)


async def _large_file(scene: Scene) -> list[Figure]:
    await scene.place.run(Command(["dd", "if=/dev/zero", "of=/app/large", "bs=1M", f"count={LARGE_BYTES // MIB}"], timeout_seconds=300))
    ours, theirs, growth = [], [], 0.0
    for _ in range(COPIES):
        with peak_growth_mib() as grown:
            ours.append(await _collected(scene, [PurePosixPath("/app/large")]))
        growth = max(growth, grown())
        theirs.append(await _archived(scene, "/app/large", unpack=False))
    await scene.place.remove([PurePosixPath("/app/large")])
    found = _against("1 GiB out of a container", "the engine's archive, to a file", ours, theirs, 1.3)
    return [*found, Figure("  memory that it takes", growth, "MiB", 16)]


def _against(what: str, other: str, ours: Sequence[float], theirs: Sequence[float], promise: float) -> list[Figure]:
    mine, other_median = statistics.median(ours), statistics.median(theirs)
    note = f"{other}: {other_median * 1000:.1f} ms"
    return [Figure(what, mine * 1000, "ms", note=note), Figure("  to that", mine / other_median, "×", promise)]


def _into() -> str | None:
    """Where copies go: memory where there is enough of it, so that the disk of this machine is not what is measured."""
    memory = Path("/dev/shm")
    return str(memory) if memory.is_dir() and shutil.disk_usage(memory).free > 4 * LARGE_BYTES else None


async def _collected(scene: Scene, paths: Sequence[PurePosixPath]) -> float:
    """Seconds of a copy by us."""
    with tempfile.TemporaryDirectory(prefix="agent-env-bench-", dir=_into()) as into:
        started = time.perf_counter()
        found = await scene.place.get(paths, Path(into))
        seconds = time.perf_counter() - started
    if not all(isinstance(path, Path) for path in found.values()):
        raise SystemExit("a file was not collected")
    return seconds


async def _archived(scene: Scene, path: str, *, unpack: bool) -> float:
    """Seconds of a copy by the engine's own stream, kept as it comes or as files."""
    await scene.engine.ready()
    with tempfile.TemporaryDirectory(prefix="agent-env-bench-", dir=_into()) as into:
        started, kept = time.perf_counter(), Path(into, "archive")
        async with scene.engine.asking("copying", seconds=600) as docker:
            where = scene.engine.url(f"containers/{scene.place.id}/archive")
            async with docker.session.get(where, params={"path": path}) as answer:
                with kept.open("wb") as file:  # noqa: ASYNC230 - opens at once; what blocks is written apart
                    async for piece in answer.content.iter_chunked(MIB):
                        await asyncio.to_thread(file.write, piece)
        if unpack:
            with tarfile.open(kept) as archive:
                await asyncio.to_thread(archive.extractall, Path(into, "files"), filter="data")
        return time.perf_counter() - started


# looks


@dataclass
class _Look:
    """The least of a run: a place to look at."""

    where: ContainerPlace
    folder: Path
    quiesce: str = "leave"
    limits: Any = DEFAULT_LIMITS

    async def place(self, *_: object) -> ContainerPlace:
        return self.where

    def scratch(self) -> Path:
        return Path(tempfile.mkdtemp(dir=self.folder))

    def progress(self, *_: object, **__: object) -> None:
        return


async def _probes(scene: Scene) -> list[Figure]:
    there = [{"type": "probe_file_exists", "criterion": "there", "paths": [f"small/{number}.txt"]} for number in range(50)]
    says = [
        {"type": "probe_file_contains", "criterion": "says", "paths": [f"small/{number}.txt"], "expected": f"file {number}"}
        for number in range(50)
    ]
    step = VerifySandbox.model_validate(
        {"id": "look", "type": "verify_sandbox", "sandbox_name": "box", "verifier_id": "look", "criteria": there + says}
    )
    run, before = cast(Run, _Look(scene.place, scene.folder)), scene.place._connection._next
    seconds = await _seconds(lambda: _looked(step, run))
    trips = scene.place._connection._next - before
    return [Figure("100 probes of a container", seconds * 1000, "ms"), Figure("  round trips", trips, "", 2)]


async def _looked(step: VerifySandbox, run: Run) -> None:
    scored = await step.execute(run)
    if scored.scores()["look"] != 1.0:
        raise SystemExit("a probe failed")


# starts


async def _starts(scene: Scene) -> list[Figure]:
    network = (await shared_network(scene.engine, scene.home)).id
    local = provider("local", state_root=scene.folder / "state", limits=DEFAULT_LIMITS)
    bare, ours, cli, sdk = [], [], [], []
    try:
        for turn in range(STARTS + 1):
            ours.append(await _sandbox(local, scene))
            bare.append(await _bare_start(scene, network))
            if scene.cli is not None and turn % OTHERS_EVERY == 0:
                cli.append(await _cli_start(scene, network))
            if scene.sdk is not None and turn % OTHERS_EVERY == 0:
                sdk.append(await _sdk_start(scene, network))
    finally:
        await local.aclose()
    found = _against("a container-mode sandbox", "the engine's create and start", ours[1:], bare[1:], 1.25)
    found += [Figure("  by docker run", statistics.median(cli[1:]) * 1000, "ms")] if cli else []
    found += [Figure("  by the docker SDK", statistics.median(sdk[1:]) * 1000, "ms")] if sdk else []
    return found + _absent(scene, "  by docker run", "  by the docker SDK")


async def _sandbox(maker: Any, scene: Scene) -> float:
    """A sandbox from the call to its first usable moment; its removal is not counted."""
    sandbox_id = new_sandbox_id(maker.name)
    labels = {**scene.labels, "agentenv.sandbox": sandbox_id}
    spec = SandboxSpec(sandbox_id, mode="container", image=IMAGE, token=secrets.token_hex(16), labels=labels)
    started = time.perf_counter()
    sandbox = await maker.create(spec)
    seconds = time.perf_counter() - started
    await sandbox.aclose()
    await maker.destroy(spec.sandbox_id)
    return seconds


async def _bare_start(scene: Scene, network: str) -> float:
    body = {"Image": IMAGE, "Labels": scene.labels, "HostConfig": {"NetworkMode": network}}
    started = time.perf_counter()
    async with scene.engine.asking("making a bare container") as docker:
        made = await docker.containers.create(body, name=f"bare-{secrets.token_hex(6)}")
        await made.start()
    seconds = time.perf_counter() - started
    await remove_container(scene.engine, made.id)
    return seconds


async def _cli_start(scene: Scene, network: str) -> float:
    name = f"cli-{secrets.token_hex(6)}"
    labels = [word for pair in scene.labels.items() for word in ("--label", "=".join(pair))]
    seconds = await _seconds(lambda: _cli(scene, "run", "--detach", "--network", network, "--name", name, *labels, IMAGE))
    await remove_container(scene.engine, name)
    return seconds


async def _sdk_start(scene: Scene, network: str) -> float:
    started = time.perf_counter()
    made = await asyncio.to_thread(scene.sdk.containers.run, IMAGE, detach=True, network=network, labels=scene.labels)
    seconds = time.perf_counter() - started
    await remove_container(scene.engine, made.id)
    return seconds

"""`run_docker_container`: a container beside the machine of a sandbox, built from a context or made of an image that exists."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, ClassVar, Self

from pydantic import Field, field_validator, model_validator

from agent_env.defaults import GIB, KIB, MIB
from agent_env.documents.network import NetworkMode, NetworkPolicy
from agent_env.documents.records import DeployedContainer
from agent_env.documents.updates import ExtendMetadata, Update
from agent_env.errors import DeadlineError, Problem, TaskError, UserError
from agent_env.places import Command, Deed
from agent_env.steps.contract import ContainerRequest, EntityRef, OnResume, Plan, Run, Step, StepResult, apart
from agent_env.steps.deploy_sandbox import Port, variables
from agent_env.steps.fields import SECRET, SECRET_URLS, USABLE, OptionalName, Texts, Whole
from agent_env.steps.image_names import image_problems
from agent_env.steps.requests import NETWORK_HINT, Volume, network_problem
from agent_env.steps.targets import SandboxTarget
from agent_env.waiting import poll

if TYPE_CHECKING:
    from agent_env.artifacts import ArtifactDocument, Artifacts
    from agent_env.artifacts.image_artifacts import ImageSource
    from agent_env.defaults import Limits
    from agent_env.images import BuildRequest

LIST = "deployed_docker_containers"
"""Where the context's metadata records them."""
_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]{0,62}")
_SIZE = re.compile(r"([0-9]+)\s*([bkmg]?)b?", re.IGNORECASE)
_UNITS: Mapping[str, int] = {"": 1, "b": 1, "k": KIB, "m": MIB, "g": GIB}
_NOT_FURTHER = re.compile(r"host|none|container:.*")


@dataclass(frozen=True, slots=True)
class ContainerStarted(StepResult):
    """The record of the new container."""

    record: DeployedContainer

    def updates(self) -> tuple[Update, ...]:
        """Adds the record."""
        return (ExtendMetadata((LIST,), [self.record.to_json()]),)

    def summary(self) -> str:
        """Which container, of which image."""
        return f"{self.record.container_name}: {self.record.image_tag}"


class RunDockerContainer(Step, type="run_docker_container"):
    """Run a container beside a sandbox's machine: built from a Dockerfile's context, or of an image that exists."""

    on_resume: ClassVar[OnResume] = OnResume.REPEAT
    entity_refs: ClassVar[tuple[EntityRef, ...] | None] = (
        EntityRef("artifact", "docker_context_artifact_id", version_field="docker_context_artifact_version"),
    )
    user_fields: ClassVar[frozenset[str]] = frozenset({"docker_context_url"})
    own_fields: ClassVar[frozenset[str]] = frozenset({"image"})
    other_words: ClassVar[Mapping[str, str]] = {
        "command": "command_override",
        "cmd": "command_override",
        "entrypoint": "command_override",
        "env": "env_vars",
        "environment": "env_vars",
        "name": "container_name",
        "dockerfile": "dockerfile_path",
        "build": "docker_context_artifact_id",
        "context": "docker_context_artifact_id",
        "networks": "extra_networks",
        "mounts": "volumes",
        "capabilities": "cap_add",
    }

    sandbox_name: str = Field(min_length=1)
    """The deployed sandbox (`vm` mode) beside whose machine it runs, and with which it goes."""
    container_name: str = "task-container"
    """Its name for later steps, and for other containers on its network."""
    docker_context_artifact_id: OptionalName = None
    """What to build: a universe of files, or a `.zip` file; or a stored image (`docker_image`), built, fetched or loaded."""
    docker_context_artifact_version: Annotated[Whole, Field(ge=1)] | None = None
    """Its version; the newest when absent."""
    docker_context_url: Annotated[OptionalName, SECRET_URLS] = None
    """What to build: a `.zip` to fetch. One with a password is an `env:NAME` or `secret:KEY`."""
    image: OptionalName = None
    """In place of a context: an image that is here or in its registry."""
    dockerfile_path: str = "Dockerfile"
    """The Dockerfile, below the context's root."""
    image_tag: OptionalName = None
    """What the built image is called; a name made of its content when absent."""
    build_args: dict[str, str] = Field(default_factory=dict)
    """Arguments of the build. Never secrets: they stay readable in the image."""
    ports: tuple[Port, ...] = ()
    """Ports that it serves. They answer on the loopback of the sandbox's machine, under the same numbers."""
    env_vars: Annotated[dict[str, str] | None, SECRET, USABLE] = None
    """Environment variables; `env:NAME` and `secret:KEY` are resolved, and told to the container alone."""
    command_override: OptionalName = None
    """Shell text that runs in place of the image's entrypoint and command."""
    keep_alive_with_base_command: bool = False
    """The container stays when the image's own command has ended."""
    network: OptionalName = None
    """A network of this name, shared with the sandbox's other containers on it; `none`; `container:<name>`; `host` (a privilege)."""
    extra_networks: Texts = ()
    """Further networks to join."""
    ready_command: OptionalName = None
    """Shell text that is run on the sandbox's machine, again and again, until it succeeds."""
    devices: Texts = ()
    """Devices of the machine; a privilege."""
    cap_add: Texts = ()
    """Kernel capabilities beyond the usual ones; a privilege."""
    privileged: bool = False
    """Everything; a privilege."""
    volumes: Texts = ()
    """`name:/folder[:ro]`, a volume that goes with the sandbox; `/of/the/machine:/folder[:ro]` is a privilege."""
    shm_size: str | int | None = None
    """Size of /dev/shm: bytes, or with a unit (`64m`, `1g`)."""

    @field_validator("container_name")
    @classmethod
    def _usable_name(cls, value: str) -> str:
        if not _NAME.fullmatch(value):
            raise ValueError("is 1 to 63 letters, digits, dots, dashes and underscores, and begins with a letter or digit")
        return value

    @field_validator("shm_size")
    @classmethod
    def _readable_size(cls, value: str | int | None) -> str | int | None:
        if isinstance(value, str) and not _SIZE.fullmatch(value.strip()):
            raise ValueError(f"{value!r} is no size; write bytes, or 64m")
        return value

    @field_validator("volumes")
    @classmethod
    def _usable_volumes(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        folders = [Volume.parse(text).folder for text in value]
        twice = next((folder for folder in folders if folders.count(folder) > 1), None)
        if twice is not None:
            raise ValueError(f"puts two volumes at {twice}")
        return value

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        sources = [name for name in ("docker_context_artifact_id", "docker_context_url", "image") if getattr(self, name)]
        if len(sources) > 1:
            raise ValueError(f"set at most one of {' and '.join(sources)}")
        return self

    @model_validator(mode="after")
    def _one_command(self) -> Self:
        if self.command_override and self.keep_alive_with_base_command:
            raise ValueError("set at most one of command_override and keep_alive_with_base_command")
        return self

    @model_validator(mode="after")
    def _networks(self) -> Self:
        odd = next((name for name in self.extra_networks if _NOT_FURTHER.fullmatch(name)), None)
        if odd is not None:
            raise ValueError(f"extra_networks can't hold {odd!r}")
        if self.extra_networks and self.network is not None and _NOT_FURTHER.fullmatch(self.network):
            raise ValueError(f"network {self.network!r} can't have extra_networks beside it")
        return self

    @model_validator(mode="after")
    def _ports_of_its_own(self) -> Self:
        if self.ports and self.network is not None and self.network != "host" and _NOT_FURTHER.fullmatch(self.network):
            raise ValueError(f"network {self.network!r} gives the container no ports of its own: leave ports out, or name a network")
        return self

    def problems(self, plan: Plan) -> Iterator[Problem]:
        """Something must be built or named; its sandbox must have a machine; its name must be its own."""
        return apart(
            self._something_named(),
            self._image_name(),
            self._image_tag(),
            self._context(plan),
            self._machine(plan),
            self._own_name(plan),
        )

    def _something_named(self) -> Iterator[Problem]:
        if not (self.docker_context_artifact_id or self.docker_context_url or self.image):
            yield Problem("names nothing to run; set image, docker_context_artifact_id or docker_context_url")

    def _image_name(self) -> Iterator[Problem]:
        yield from image_problems(self.image, ".image", only_names=True)

    def _image_tag(self) -> Iterator[Problem]:
        yield from image_problems(self.image_tag, ".image_tag", only_names=True)

    def _context(self, plan: Plan) -> Iterator[Problem]:
        context = self.docker_context_artifact_id
        if context and plan.artifacts is not None and plan.artifact(context, self.docker_context_artifact_version) is None:
            message = f"artifact {context!r} does not exist"
            yield Problem(message, path=".docker_context_artifact_id", hint="agent-env artifact list")

    def _machine(self, plan: Plan) -> Iterator[Problem]:
        for deployer in plan.deployers(self.id, "deploy_sandbox", sandbox_name=self.sandbox_name):
            if getattr(deployer, "sandbox_mode", "vm") != "vm":
                message = f"sandbox {self.sandbox_name!r} is a container, and containers run beside machines"
                yield Problem(message, path=".sandbox_name", hint="deploy it with sandbox_mode 'vm'")
            elif problem := network_problem(_network_mode(deployer), self.sandbox_name, [self.network, *self.extra_networks]):
                yield Problem(problem, path=".sandbox_name", hint=NETWORK_HINT)

    def _own_name(self, plan: Plan) -> Iterator[Problem]:
        for other in plan.deployers(self.id, self.type_name, sandbox_name=self.sandbox_name, container_name=self.container_name):
            message = f"container {self.container_name!r} is already started on {self.sandbox_name!r} by step {other.id!r}"
            yield Problem(message, path=".container_name", hint="give one of them another name")

    def images(self, artifacts: Artifacts, folder: Path, limits: Limits) -> Sequence[str | BuildRequest]:
        """Its image, or what it is built from where that is an artifact."""
        if self.image:
            return (self.image,)
        from agent_env.images import SavedImage

        id = self.docker_context_artifact_id
        document = artifacts.find(id, self.docker_context_artifact_version) if id else None
        if document is None:
            return ()
        source = self._source(artifacts, document, folder, limits)
        return () if isinstance(source, SavedImage) else (source,)

    async def execute(self, run: Run) -> ContainerStarted:
        """Has it built or fetched, started and, where a `ready_command` is given, ready.

        Raises:
            UserError: It wants a privilege that this user's configuration does not grant.
            ImageBuildError: The Dockerfile, or a command in it, failed.
            ContainerNotRunningError: Its command failed before it was ready.
            TaskError: It did not become ready in time.
        """
        env, secrets = variables(self.env_vars, run)
        references = {name: text for name, text in (self.env_vars or {}).items() if name in secrets}
        image = self.image or await self._made(run)
        request = replace(self.request(), image=image, env=env, secrets=secrets, references=references)
        record = await run.start_container(request)
        if self.ready_command:
            await self._ready(run, record, self.ready_command)
        return ContainerStarted(record)

    def request(self) -> ContainerRequest:
        """What it asks for, but for what is only known when it runs: a built image, and the values of its variables."""
        return ContainerRequest(
            sandbox_name=self.sandbox_name,
            container_name=self.container_name,
            image=self.image or "",
            entrypoint=["/bin/sh", "-c"] if self.command_override else None,
            argv=[self.command_override] if self.command_override else None,
            hold=self.keep_alive_with_base_command,
            ports=self.ports,
            network=self.network,
            extra_networks=self.extra_networks,
            devices=self.devices,
            capabilities=self.cap_add,
            privileged=self.privileged,
            volumes=self.volumes,
            shared_memory_bytes=_bytes(self.shm_size),
        )

    async def _made(self, run: Run) -> ImageSource:
        root = run.scratch() / "context"
        root.mkdir(exist_ok=True)
        if self.docker_context_url:
            await self._fetch(run, run.secret(self.docker_context_url), root)
            return await asyncio.to_thread(self._request, root)
        if not self.docker_context_artifact_id:
            raise UserError(f"step {self.id!r} names nothing to run", hint="set image, docker_context_artifact_id or docker_context_url")
        document = run.artifacts.get(self.docker_context_artifact_id, self.docker_context_artifact_version)
        run.used("artifacts", document.id, document.version, document.digest)
        return await asyncio.to_thread(self._source, run.artifacts, document, root, run.limits)

    def _source(self, artifacts: Artifacts, document: ArtifactDocument, root: Path, limits: Limits) -> ImageSource:
        """What the artifact's image is had from: its own form where it is an image, else the files that it is built from."""
        from agent_env.artifacts.image_artifacts import image_source
        from agent_env.images import BuildRequest, ImageReference

        if document.type != "docker_image":
            self._lay_out(artifacts, document, root, limits)
            return self._request(root)
        source = image_source(artifacts, document, root, limits=limits)
        if not isinstance(source, BuildRequest):
            return source
        named = ImageReference.parse(self.image_tag) if self.image_tag else source.name
        return replace(source, name=named, build_args=self.build_args)

    def _request(self, root: Path) -> BuildRequest:
        from agent_env.images import BuildContext, BuildRequest, ImageReference, context_name

        context = BuildContext.of(root, self.dockerfile_path)
        named = ImageReference.parse(self.image_tag) if self.image_tag else context_name(self.container_name, context.source_digest(None))
        return BuildRequest(context, named, build_args=self.build_args)

    def _lay_out(self, artifacts: Artifacts, document: ArtifactDocument, root: Path, limits: Limits) -> None:
        """The context's files: those of a universe, or those of its only file where that is a zip."""
        files = artifacts.files(document.id, document.version)
        single = next(iter(files), "")
        if len(files) == 1 and single.endswith(".zip"):
            _unpack(artifacts.read(files[single]), single, root, limits)
            return
        for name, ref in files.items():
            _write(root, name, artifacts.read(ref), 0o755 if ref.mode & 0o111 else 0o644)

    async def _fetch(self, run: Run, url: str, root: Path) -> None:
        from agent_env.artifacts import download, name_urls
        from agent_env.artifacts.urls import shown_url

        record = run.sandbox(self.sandbox_name)
        policy = NetworkPolicy.model_validate(record.network_policy) if record.network_policy else None
        into = run.scratch() / "downloads"
        into.mkdir(exist_ok=True)
        (got,) = await download(
            name_urls([{"url": url, "filename": "context.zip"}], source=self.id), into, network=policy, limits=run.limits
        )
        await asyncio.to_thread(_unpack, got.path.read_bytes(), shown_url(url), root, run.limits)

    async def _ready(self, run: Run, record: DeployedContainer, text: str) -> None:
        place = await run.place(SandboxTarget(self.sandbox_name), Deed.RUN_CODE)
        said = b""

        async def succeeds() -> bool | None:
            nonlocal said
            done = await place.run(Command(["sh", "-c", text], attempt=run.attempt_id, output_limit_bytes=4 * KIB))
            said = done.stderr or done.stdout
            if not done.ok and (failure := await run.container_failure(record)) is not None:
                raise failure
            return True if done.ok else None

        what = f"container {self.container_name!r} to be ready"
        try:
            await poll(succeeds, within_seconds=run.limits.container_ready_seconds, what=what, limits=run.limits)
        except DeadlineError as error:
            shown = said.decode("utf-8", "replace").strip()[-500:]
            message = f"container {self.container_name!r} was not ready within {run.limits.container_ready_seconds:g} s"
            raise TaskError(f"{message}: its ready_command said {shown!r}" if shown else message, concerns=self.id) from error


def _network_mode(deployer: Step) -> NetworkMode:
    policy = getattr(deployer, "network_policy", None)
    return policy.mode if isinstance(policy, NetworkPolicy) else NetworkMode.ALLOW_ALL


def _bytes(size: str | int | None) -> int:
    found = _SIZE.fullmatch(str(size).strip()) if size is not None else None
    return int(found[1]) * _UNITS[found[2].lower()] if found else 0


def _unpack(data: bytes, source: str, root: Path, limits: Limits) -> None:
    from agent_env.artifacts.zips import unzip

    for name, content in unzip(data, source=source, limits=limits):
        _write(root, name, content, 0o644)


def _write(root: Path, name: str, content: bytes, mode: int) -> None:
    """A file of the context. Names are plain and relative already; a link is never met, because nothing but files is written here."""
    path = root / PurePosixPath(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    path.chmod(mode)

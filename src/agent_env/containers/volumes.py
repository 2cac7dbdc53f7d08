"""Volumes: the one that carries the helper into every container, and named ones in place of an image's anonymous ones."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import io
import json
import secrets
import tarfile
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from agent_env.containers.engine import Engine
from agent_env.containers.objects import Listed, label_filter, remove, remove_container
from agent_env.containers.spec import HELPER_FOLDER, HOME, ROLE, ImageFacts, Mount
from agent_env.containers.state import log_tail
from agent_env.errors import EngineConflictError, EngineFailedError
from agent_env.places.helper.binary import binary_path
from agent_env.waiting import shielded

HELPER_LABEL = "agentenv.helper"
_INSTALLER = "/agentenv-install"


@cache
def helper_bytes(architecture: str) -> bytes:
    """The helper's program for an engine's architecture.

    Raises:
        UnsupportedError: There is none.
    """
    return binary_path(architecture).read_bytes()


@cache
def helper_volume(architecture: str) -> str:
    """The name of the volume that holds exactly this helper, shared by every installation on the engine."""
    return f"agentenv-helper-{hashlib.sha256(helper_bytes(architecture)).hexdigest()[:16]}"


async def helper_mount(engine: Engine) -> Mount:
    """The helper's volume as every container sees it: read-only. It may be empty still; see `fill`."""
    architecture = (await engine.info()).architecture
    name = helper_volume(architecture)
    if name not in engine.filled:
        await create(engine, name, {HELPER_LABEL: name})
    return Mount(HELPER_FOLDER, name, read_only=True)


async def is_filled(engine: Engine, container_id: str) -> bool:
    """Whether a container, running or not, has the helper."""
    async with engine.asking("looking for the helper in a container") as docker:
        where = engine.url(f"containers/{container_id}/archive")
        answer = await docker.session.head(where, params={"path": f"{HELPER_FOLDER}/helper"})
        answer.close()
    return answer.status == 200


async def fill(engine: Engine, facts: ImageFacts, labels: Mapping[str, str]) -> None:
    """Puts the helper into its volume, whole or not at all, whoever else does the same and whenever this is killed.

    A container that is never seen again copies its own program into the volume under a fresh name and renames it.

    Args:
        engine: The engine.
        facts: Any image that is present; nothing of it is run.
        labels: Of the installation: a copying container that a kill leaves is found by them.

    Raises:
        EngineFailedError: The copy ended badly.
    """
    architecture = (await engine.info()).architecture
    volume = helper_volume(architecture)
    config: dict[str, Any] = {
        "Image": facts.id,
        "Entrypoint": [_INSTALLER, "install", HELPER_FOLDER],
        "Cmd": [],
        "User": "0:0",
        "Labels": {**labels, ROLE: "helper"},
        "Healthcheck": {"Test": ["NONE"]},
        "HostConfig": {
            "NetworkMode": "none",
            "CapDrop": ["ALL"],
            "CapAdd": ["CHOWN", "DAC_OVERRIDE", "FOWNER"],
            "Mounts": [{"Type": "volume", "Source": volume, "Target": HELPER_FOLDER, "VolumeOptions": {"NoCopy": True}}],
        },
    }
    name = f"helper-{secrets.token_hex(6)}"
    async with engine.asking("making the container that installs the helper", concerns=volume) as docker:
        made = (await docker.containers.create(config, name=name)).id
    try:
        async with engine.asking("installing the helper", concerns=volume) as docker:
            container = docker.containers.container(made)
            body, kind = _archive(helper_bytes(architecture)), {"Content-Type": "application/x-tar"}
            async with docker._query(f"containers/{made}/archive", method="PUT", params={"path": "/"}, data=body, headers=kind):
                await container.start()
            code = (await container.wait()).get("StatusCode")
        if code != 0:
            said = await log_tail(engine, made)
            raise EngineFailedError(f"the helper could not be installed ({code}): {said}", concerns=volume)
    finally:
        await shielded(remove_container(engine, made), seconds=engine.limits.cleanup_seconds, what="removing the helper's installer")
    engine.filled.add(volume)


async def remove_cut_installs(engine: Engine, home: str, *, before: float) -> list[str]:
    """Removes the containers of an installation that were to fill the helper's volume and whose maker is gone.

    Args:
        engine: The engine.
        home: The installation.
        before: Seconds of the Unix epoch; one that was made later may be at work.

    Returns:
        Their ids.
    """
    async with engine.asking("listing containers") as docker:
        found = await docker._query_json("containers/json", params={"all": "1", **label_filter({HOME: home, ROLE: "helper"})})
        cut = [str(each["Id"]) for each in found if each["Created"] < before]
    return [each for each in cut if await remove_container(engine, each)]


async def remove_old_helpers(engine: Engine) -> list[str]:
    """Removes the volumes of helpers other than this version's that no container uses. Whoever still wants one fills it again.

    Returns:
        Their names.
    """
    current, gone = helper_volume((await engine.info()).architecture), []
    async with engine.asking("listing volumes") as docker:
        found = await docker._query_json("volumes", params={"filters": json.dumps({"label": [HELPER_LABEL]})})
        names = [str(each["Name"]) for each in found.get("Volumes") or []]
    for name in names:
        if name == current:
            continue
        with contextlib.suppress(EngineConflictError):  # in use
            if await remove(engine, Listed("volume", name, name)):
                gone.append(name)
    return gone


def _archive(program: bytes) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        member = tarfile.TarInfo(_INSTALLER.lstrip("/"))
        member.size, member.mode = len(program), 0o755
        archive.addfile(member, io.BytesIO(program))
    return buffer.getvalue()


def image_volumes(facts: ImageFacts, container_name: str, taken: Sequence[str]) -> list[Mount]:
    """Named volumes in place of the anonymous ones that an engine would make, which nobody would find again.

    Args:
        facts: The image.
        container_name: Unique on the engine; the volumes are named after it.
        taken: Folders where something else is mounted.
    """
    folders = sorted({folder.rstrip("/") or "/" for folder in facts.volumes} - set(taken))
    return [Mount(folder, f"{container_name}-volume-{index}") for index, folder in enumerate(folders) if folder != "/"]


async def create(engine: Engine, name: str, labels: Mapping[str, str]) -> None:
    """Makes a volume; one that exists stays as it is."""
    async with engine.asking(f"making the volume {name}", concerns=name) as docker:
        await docker._query_json("volumes/create", method="POST", data={"Name": name, "Labels": dict(labels)})


async def create_all(engine: Engine, mounts: Sequence[Mount], labels: Mapping[str, str]) -> None:
    """Makes the volumes of these mounts."""
    await asyncio.gather(*(create(engine, mount.source, labels) for mount in mounts))


def home_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """Of a container's labels, those that say whose installation it is."""
    return {HOME: labels[HOME]}

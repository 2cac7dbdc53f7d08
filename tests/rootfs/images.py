"""Images for the provider `rootfs`, made of packages without any engine, and the people who use them."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from agent_env.places import Command, Completed
from agent_env.sandboxes import SandboxSpec
from agent_env.sandboxes.rootfs import making, stacking
from agent_env.sandboxes.rootfs.provider import RootfsProvider
from tests.container_engine import archive_of, busybox_root
from tests.images.laboratory import entry, saved, tar_of
from tests.sandboxes import people

SANDBOX = f"rootfs-{os.getpid()}"
"""What sandboxes are called here: processes are found, and ended, by that name, those of another worker's tests as well."""
STAYS = ["sleep", "100000"]
WAYS = tuple(way for way in people.WAYS if way != "user with bubblewrap")
OWNED = {"home/worker": 1001}


def busybox(folder: Path, *layers: bytes, name: str = "image", **config: Any) -> str:
    """A `docker save` archive of BusyBox, with further layers and words of its configuration; its location."""
    base = archive_of(busybox_root(), modes={"tmp": 0o1777}, owners=OWNED)
    return archive(folder, base, *layers, name=name, **{"Env": ["PATH=/bin", "IMAGE=busybox"], "Cmd": STAYS, **config})


def archive(folder: Path, *layers: bytes, name: str = "image", **config: Any) -> str:
    """A `docker save` archive; its location."""
    path = folder / f"{name}.tar"
    path.write_bytes(saved([*layers], names=[f"{name}:1"], **config))
    path.chmod(0o644)
    return f"docker-archive:{path}"


def link(name: str, target: str) -> bytes:
    """A layer of one symbolic link."""
    return tar_of((name, entry(tarfile.SYMTYPE, linkname=target)))


def provider(world: people.World, **options: object) -> RootfsProvider:
    """A provider as a new process of this person would make it."""
    environ = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": str(world.home), "AGENT_ENV_LOCAL_SANDBOX_DIR": str(world.work)}
    return RootfsProvider(world.state, options=options, environ=environ)


def spec(image: str, sandbox_id: str = SANDBOX, **changes: Any) -> SandboxSpec:
    """A sandbox of an image with limits that a test machine can bear."""
    given = {"memory_bytes": 512 << 20, "disk_bytes": 1 << 30, "processes": 64, "token": "t", "labels": {"agentenv.home": "h"}}
    return SandboxSpec(sandbox_id, **{"mode": "container", "image": image, **given, **changes})


def act(way: str, scenario: Callable[..., Awaitable[Any]], *arguments: object, prepare: Callable[[], None] = lambda: None) -> Any:
    """Runs a scenario as that person; the helper is where that person can run it."""

    def ready() -> None:
        prepare()
        from tests.sandboxes.people import provider as patched

        for module in (making, stacking):
            module.binary_path = lambda architecture=None: patched.binary_path()  # type: ignore[attr-defined]

    return people.act(way, scenario, *arguments, prepare=ready)


async def said(made: RootfsProvider, given: SandboxSpec, *argv: str, **how: Any) -> Completed:
    """What one command answers in a fresh sandbox, which is removed."""
    sandbox = await made.create(given)
    try:
        return await (await sandbox.machine()).run(Command(list(argv), **how))
    finally:
        with suppress(Exception):
            await sandbox.aclose()
        await made.destroy(given.sandbox_id)


def left(world: people.World) -> list[str]:
    """What is left of sandboxes in this person's folders."""
    folders = (world.work, world.state / "rootfs/sandboxes")
    found = [path for folder in folders for path in folder.rglob("*") if path.name.startswith(("agent-env-", "rootfs-", "."))]
    return [str(path) for path in found]

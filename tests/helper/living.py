"""A real helper for a test: the committed binary, as an ordinary process or as PID 1 of its own namespaces."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from agent_env.defaults import DEFAULT_LIMITS, Limits
from agent_env.places import PlaceKind
from agent_env.places.helper import HelperConfig, HelperPlace, binary_path, connect

TOKEN = secrets.token_hex(16)
UNSHARE = ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc")
ENV = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8"}
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="agentenv-capability-missing: root")
"""To become other users, or to look into a process that lets nobody of its own user do so."""


@dataclass
class Living:
    """A helper that runs, and the folder that its socket and the test's files are in."""

    process: subprocess.Popen[bytes]
    folder: Path
    config: HelperConfig

    @property
    def socket(self) -> Path:
        return self.folder / "helper.sock"

    async def connect(self, *, epoch: int = 1, token: str | None = None, limits: Limits = DEFAULT_LIMITS) -> HelperPlace:
        return await connect(
            self.socket,
            place_id="test",
            kind=PlaceKind.MACHINE,
            labels={"a": "b"},
            token=token or self.config.token,
            epoch=epoch,
            limits=limits,
        )


def launch(
    folder: Path,
    config: HelperConfig,
    *,
    prefix: Sequence[str] = (),
    binary: Path | None = None,
    guardian: socket.socket | None = None,
    counter: int | None = None,
) -> Living:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(folder / "helper.sock"))
    listener.listen(16)
    read_end, write_end = os.pipe()
    argv = [*prefix, str(binary or binary_path()), "serve", "--fd", str(listener.fileno()), "--config-fd", str(read_end)]
    kept = [listener.fileno(), read_end]
    if guardian is not None:
        kept.append(guardian.fileno())
        argv += ["--guardian-fd", str(guardian.fileno())]
    if counter is not None:
        kept.append(counter)
        argv += ["--memory-fd", str(counter)]
    process = subprocess.Popen(argv, pass_fds=kept, stdin=subprocess.DEVNULL)
    os.close(read_end)
    with os.fdopen(write_end, "wb") as config_pipe:
        config_pipe.write(config.encode())
    listener.close()
    return Living(process, folder, config)


def launch_anywhere(config: HelperConfig, *, prefix: Sequence[str] = ()) -> Living:
    return launch(Path(tempfile.mkdtemp(prefix="helper-test-")), config, prefix=prefix)


def end(living: Living) -> None:
    if living.process.poll() is None:
        # `unshare` takes no notice of SIGTERM while it waits; its death is its child's
        living.process.send_signal(signal.SIGKILL if "unshare" in living.process.args else signal.SIGTERM)
        try:
            living.process.wait(10)
        except subprocess.TimeoutExpired:
            living.process.kill()
            living.process.wait()
    shutil.rmtree(living.folder, ignore_errors=True)


@asynccontextmanager
async def helper(
    *, prefix: Sequence[str] = (), limits: Limits = DEFAULT_LIMITS, config: HelperConfig | None = None
) -> AsyncIterator[tuple[Living, HelperPlace]]:
    config = config or HelperConfig(token=TOKEN, env=ENV)
    living = launch_anywhere(config, prefix=prefix)
    try:
        place = await living.connect(limits=limits)
        try:
            yield living, place
        finally:
            await place.aclose()
    finally:
        await asyncio.to_thread(end, living)


def short(**changes: float) -> Limits:
    return replace(DEFAULT_LIMITS, **changes)  # type: ignore[arg-type]


def tagged(tag: str) -> list[int]:
    """Processes whose environment holds a tag."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if tag.encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found

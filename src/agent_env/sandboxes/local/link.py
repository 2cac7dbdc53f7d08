"""Where this provider meets the helper: its binary, its configuration, and the connection to it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from agent_env.defaults import Limits
from agent_env.places import Place
from agent_env.sandboxes.contract import SandboxSpec

APP = PurePosixPath("/app")


def helper_binary() -> Path:
    """The helper for this machine."""
    raise SystemError


@contextmanager
def config(spec: SandboxSpec, environment: Mapping[str, str], *, cwd: PurePosixPath | Path = APP) -> Iterator[int]:
    """The helper's configuration as a readable descriptor: token, epoch, deadline, and the place's environment and folder."""
    descriptor = os.memfd_create("config")
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def payload(helper: str, listener: int, config: int) -> list[str]:
    """What runs as the place's first process."""
    return [helper, "serve", "--fd", str(listener), "--config-fd", str(config)]


async def connect(socket: Path, *, place_id: str, labels: Mapping[str, str], epoch: int, token: str, limits: Limits) -> Place:
    """A connection to the helper."""
    raise SystemError

"""Images that tasks of tests run: small, made from packages once, with what steps need of a place."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from agent_env.containers import EngineEndpoint
from tests.container_engine import archive_of, busybox_root, ensure

BOX = "agentenv-test/box:1"
WORKER = "agentenv-test/worker:1"
PYTHON = "agentenv-test/python:2"
_BASH = b'#!/bin/sh\nexec /bin/sh "$@"\n'
STAYS = ['CMD ["sleep", "100000"]', "ENV IMAGE=box"]


def box_root() -> dict[str, bytes | str | None]:
    return {**busybox_root(), "bin/bash": _BASH, "srv": None, "srv/inside": b"only the container has it\n"}


def worker_root() -> dict[str, bytes | str | None]:
    return {**box_root(), "root-only": b"secret of root\n"}


WORKER_MODES, WORKER_OWNERS = {"tmp": 0o1777, "root-only": 0o600}, {"home/worker": 1001}


@pytest.fixture(scope="session")
def box_image(docker: EngineEndpoint) -> str:
    """BusyBox that stays, with a `bash`."""
    return ensure(docker, BOX, lambda: archive_of(box_root(), modes={"tmp": 0o1777}), [*STAYS, "WORKDIR /srv"])


@pytest.fixture(scope="session")
def worker_image(docker: EngineEndpoint) -> str:
    """The same with a user that is not root (1001), and a file that only root may read."""
    return worker_of(docker)


def worker_of(endpoint: EngineEndpoint) -> str:
    """That image on any engine."""

    def make() -> bytes:
        return archive_of(worker_root(), modes=WORKER_MODES, owners=WORKER_OWNERS)

    return ensure(endpoint, WORKER, make, [*STAYS, "USER worker", "WORKDIR /home/worker"])


@pytest.fixture(scope="session")
def python_image(docker: EngineEndpoint, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Debian with bash and Python that stays."""

    def make() -> Path:
        if shutil.which("mmdebstrap") is None or os.geteuid() != 0:
            pytest.skip("agentenv-capability-missing: mmdebstrap")
        path = tmp_path_factory.mktemp("python") / "root.tar"
        options = ["--quiet", "--variant=minbase", "--include=python3", "--aptopt=APT::Install-Recommends false"]
        paths = [f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in ("doc", "locale", "man")]
        subprocess.run(
            ["mmdebstrap", *options, *paths, "bookworm", path], check=True, stdin=subprocess.DEVNULL, capture_output=True, timeout=300
        )
        return path

    return ensure(docker, PYTHON, make, ['CMD ["sleep", "100000"]', "ENV LANG=C.UTF-8", "WORKDIR /srv"])

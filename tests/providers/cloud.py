"""The fake cloud as a process, and its package as something that is installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PLUGINS = Path(__file__).with_name("plugins")
"""A folder that is on the path: a package with its metadata, as an installer would leave it."""


@contextmanager
def cloud(folder: Path) -> Iterator[dict[str, str]]:
    """A cloud that keeps its machines in a folder; gives the options that its providers need."""
    folder.mkdir(parents=True, exist_ok=True)
    process = subprocess.Popen(
        [sys.executable, "-m", "agentenv_fake_cloud.cloud", str(folder)],
        stdout=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(PLUGINS)},
    )
    try:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())
    finally:
        process.terminate()
        process.wait(60)


def machines(folder: Path) -> list[str]:
    """What is left of a cloud's machines."""
    return sorted(path.name for part in ("machines", "state/sandboxes") for path in (folder / part).glob("*"))


def configuration(options: dict[str, str], **names: str) -> str:
    """A configuration for the cloud's providers, by name; a value is the `impl`, empty for none."""
    lines = []
    for name, impl in (names or {"remote_paths": "", "remote_subdomains": ""}).items():
        lines += [f"[sandbox.providers.{name}]", *([f'impl = "{impl}"'] if impl else [])]
        lines += [f"[sandbox.providers.{name}.config]", *(f'{key} = "{value}"' for key, value in options.items())]
    return "\n".join(lines) + "\n"

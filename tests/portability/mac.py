"""Runs the product, or parts of its tests, in a process that looks like one on a Mac. See faked/sitecustomize.py for what that is."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
FAKED = Path(__file__).parent / "faked"


@dataclass(frozen=True)
class Mac:
    """A person's Mac, with folders of its own."""

    folder: Path
    docker_host: str = "unix:///nowhere/docker.sock"
    variables: Mapping[str, str] = field(default_factory=dict)

    def environment(self) -> dict[str, str]:
        """Of its processes."""
        kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
        home = self.folder / "home"
        home.mkdir(parents=True, exist_ok=True)
        made = {"HOME": str(home), "XDG_STATE_HOME": str(self.folder / "state"), "PYTHONPATH": str(FAKED), "DOCKER_HOST": self.docker_host}
        return {**kept, **made, "PYTHONDONTWRITEBYTECODE": "1", **self.variables}

    def configure(self, text: str) -> None:
        """Writes the person's own configuration."""
        path = self.folder / "home/.config/agent-env/config.toml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def python(self, *words: str, seconds: float = 90, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        """Runs Python with these arguments; errors are told with its output."""
        return subprocess.run(
            [sys.executable, *words],
            env=self.environment(),
            cwd=cwd or self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )

    def agent_env(self, *words: str, seconds: float = 90) -> subprocess.CompletedProcess[str]:
        """Runs the command."""
        return self.python("-m", "agent_env.cli", *words, seconds=seconds)

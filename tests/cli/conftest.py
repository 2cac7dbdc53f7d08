"""Builders of the command-line tests: the real command in a process of its own, with a home of its own."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests import warm
from tests.warm import AGENT_ENV

__all__ = ["AGENT_ENV", "LONGEST", "Answer", "Cli", "cli"]

LONGEST = 240


@dataclass(frozen=True)
class Answer:
    """What one command said."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def all(self) -> str:
        return self.out + self.err


class Cli:
    """Runs `agent-env` as a user with an empty home would."""

    longest: float = LONGEST
    """Seconds that a command may take."""

    def __init__(self, root: Path) -> None:
        root.chmod(0o755)
        self.home = root / "home"
        self.cwd = root / "work"
        self.home.mkdir()
        self.cwd.mkdir()
        self.env = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("AGENT_ENV", "XDG_", "LITELLM", "_AGENT_ENV", "PYTHONPATH"))},
            "HOME": str(self.home),
            "XDG_STATE_HOME": str(self.home / "state"),
            "XDG_CONFIG_HOME": str(self.home / "config"),
            "PATH": f"{AGENT_ENV.parent}:{os.environ['PATH']}",
        }

    def __call__(
        self, *argv: str | Path, cwd: Path | None = None, stdin: bytes = b"", env: Mapping[str, str | None] | None = None
    ) -> Answer:
        done = warm.run([*map(str, argv)], cwd=cwd or self.cwd, env=self.environ(env), stdin=stdin, seconds=self.longest)
        return Answer(done.returncode, done.stdout.decode(), done.stderr.decode())

    def start(self, *argv: str | Path, env: Mapping[str, str | None] | None = None) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [AGENT_ENV, *map(str, argv)],
            cwd=self.cwd,
            env=self.environ(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def environ(self, changes: Mapping[str, str | None] | None = None) -> dict[str, str]:
        return {name: value for name, value in {**self.env, **(changes or {})}.items() if value is not None}

    def write(self, name: str, content: str | bytes | list[Any] | dict[str, Any]) -> Path:
        path = self.cwd / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[Cli]:
    made = Cli(tmp_path)
    yield made
    places = made.home / "state/agent-env/sandboxes"
    if places.is_dir() and any(places.iterdir()):  # what a test kept goes with it, or its processes stay for a day
        made("gc", "--kept")

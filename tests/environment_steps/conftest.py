"""A user whose bundles have environments: the real command, the real engine, and nothing left on either afterwards."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent_env.containers import EngineEndpoint
from tests.acceptance.conftest import Home, Steps, clean_up
from tests.acceptance.containers import in_engine
from tests.environments.conftest import postgres_image, python_base
from tests.wheels import share_wheels

__all__ = ["postgres_image", "python_base"]

LONGEST = 600
"""An image may have to be built first."""
STOCK = Path(__file__).parents[1] / "environments/server"


class User(Home):
    """A home that shares the wheels which other tests have fetched."""

    longest = LONGEST

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.env["AGENT_ENV_LIMIT_KEEPER_IDLE_SECONDS"] = "0.2"
        share_wheels(self.state)

    def scores(self, what: str | Path, *options: str) -> list[dict[str, Any]]:
        """Runs it; every run with its status, scores and error."""
        answer = self("run", what, "--json", *options)
        assert answer.out, answer.all
        return [{name: run[name] for name in ("task", "status", "scores", "error", "run_id")} for run in answer.json["runs"]]

    def stock(self, name: str = "b", scripts: dict[str, str] | None = None, env: str = "", **tasks: Steps) -> Path:
        """A bundle with the stock-room server of the standard library, and a file of Python for each script."""
        folder = self.cwd / name
        shutil.copytree(STOCK, folder / "envs/stock", ignore=shutil.ignore_patterns("__pycache__"))
        (folder / "envs/stock/env.toml").write_text(env or 'environment_name = "stock"\nenv_provider_type = "server"\n')
        for script, text in (scripts or {}).items():
            self.write(f"{name}/artifacts/{script}/verify.py", text)
        for task, steps in tasks.items():
            self.write(f"{name}/tasks/{task}.json", json.dumps(steps))
        return folder


@pytest.fixture
def user(tmp_path: Path, docker: EngineEndpoint, python_base: str) -> Iterator[User]:
    """A user of whom nothing is left in the end: no process, no folder, nothing in the engine."""
    del python_base
    made = User(tmp_path / "one")
    tmp_path.chmod(0o755)
    yield made
    collected = made("gc", "--kept")
    left, engine = made.left(), in_engine(docker, made)
    if left or engine:
        clean_up(made)
    assert (collected.code, left, engine) == (0, {}, []), collected.all

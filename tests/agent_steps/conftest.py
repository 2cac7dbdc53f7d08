"""A user whose tasks deploy agents: the real command, the real engine, and nothing left on either afterwards."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent_env.containers import EngineEndpoint
from tests.acceptance.conftest import clean_up, eventually
from tests.acceptance.containers import in_engine
from tests.environment_steps.conftest import User
from tests.environments.conftest import python_base
from tests.sdk.conftest import pytest_pyfunc_call

__all__ = ["pytest_pyfunc_call", "python_base"]

SCRIPTED, MINI = "@local/agent-env/agents/scripted", "@local/agent-env/agents/mini"
AGENT = {"id": "agent", "type": "deploy_agent", "agent_name": "solver", "a2a_agent_id": SCRIPTED}
SOLVER = {"agent_name": "solver"}


def prompt(*actions: dict[str, Any], id: str = "ask", **fields: Any) -> dict[str, Any]:
    """A prompt that tells a scripted agent what to do."""
    return {"id": id, "type": "prompt_agent", **SOLVER, "prompt": json.dumps(list(actions)), **fields}


def probe(kind: str, path: str, **fields: Any) -> dict[str, Any]:
    return {"type": kind, "criterion": path, "paths": [path], **fields}


class Operator(User):
    """A user of agents."""

    def told(self, run_id: str) -> dict[str, Any]:
        """The run's context and its agents by name."""
        context = self.context(run_id)
        return {**context, "agents": {each["agent_name"]: each for each in context["deployed_agents"]}}

    def object(self, url: str) -> Any:
        """What an object holds."""
        name = url.removeprefix("sha256:")
        return json.loads((self.state / "objects" / name[:2] / name[2:]).read_bytes())

    def asked(self, run_id: str) -> dict[str, Any] | None:
        """The row of a prompt that an agent has taken."""
        rows = self.show(run_id)["resources"]
        return next((row for row in rows if row["kind"] == "prompt" and row["state"] == "live"), None)

    def running(self) -> str:
        return str(eventually(lambda: [run["run_id"] for run in self.runs()], "a run")[0])


@pytest.fixture
def user(tmp_path: Path, docker: EngineEndpoint, python_base: str) -> Iterator[Operator]:
    """A user of whom nothing is left in the end: no process, no folder, nothing in the engine."""
    del python_base
    made = Operator(tmp_path / "one")
    tmp_path.chmod(0o755)
    yield made
    collected = made("gc", "--kept")
    left, engine = made.left(), in_engine(docker, made)
    if left or engine:
        clean_up(made)
    assert (collected.code, left, engine) == (0, {}, []), collected.all

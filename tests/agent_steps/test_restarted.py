"""An agent whose container somebody starts again is told again what only it was told, and asks models as before; one that was
installed there is started again."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest
from agent_env_sdk.testing.models import Call, Scenario, Step

from agent_env.containers import EngineEndpoint
from tests.acceptance.containers import told
from tests.agent_steps.conftest import MINI, Operator
from tests.agent_steps.test_installing import TINY
from tests.busy import within
from tests.cli.conftest import AGENT_ENV
from tests.kits.models import models

pytestmark = pytest.mark.timeout(900)

KEY = "canary-of-the-user"
LOOK = Step(calls=(Call("shell", {"command": 'printf %s "$KEY" | sha256sum'}),))
FOUND = Step("It is there.", last_contains=hashlib.sha256(KEY.encode()).hexdigest())


class Talk:
    """A conversation that one process holds, across whatever becomes of the agent's container."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def ask(self) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("Look.\n")
        self._process.stdin.flush()
        return self._process.stdout.readline().strip()


@contextmanager
def talk(user: Operator, target: str) -> Iterator[Talk]:
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [AGENT_ENV, "agent", "chat", target, "--model", "m"], cwd=user.cwd, env=user.environ(), stdin=pipe, stdout=pipe, text=True
    ) as process:
        yield Talk(process)
        process.communicate(timeout=within(60))


def test_an_agent_that_was_started_again_has_its_token_its_secrets_and_its_models(user: Operator, docker: EngineEndpoint) -> None:
    user.env["TEST_KEY"] = KEY
    agent = {"type": "deploy_agent", "a2a_agent_id": MINI, "env_vars": {"KEY": "env:TEST_KEY"}}
    steps = [
        {"id": "box", "type": "deploy_sandbox", "sandbox_name": "box", "sandbox_mode": "vm"},
        {**agent, "id": "a", "agent_name": "alone"},
        {**agent, "id": "b", "agent_name": "beside", "sandbox_name": "box"},
        {"id": "job", "type": "run_docker_container", "sandbox_name": "box", "container_name": "job", "image": "python:3.12-slim",
         "command_override": "sleep 1000"},
        {"id": "c", "type": "install_agent", "sandbox_name": "box", "container_name": "job", "a2a_agent_id": "tiny", "agent_name": "inside",
         "workspace_dir": "/srv"},
    ]  # fmt: skip
    folder = user.bundle("b", t=steps)
    shutil.copytree(TINY, folder / "agents/tiny", ignore=shutil.ignore_patterns("__pycache__"))
    with models({"s": Scenario((LOOK, FOUND) * 2, auxiliary="from-a-model")}) as server:
        user.env |= {"LITELLM_BASE_URL": server.base, "LITELLM_API_KEY": server.key("s")}
        (run,) = user.scores(folder, "--model", "m", "--keep")
        run_id, agents = run["run_id"], user.told(run["run_id"])["agents"]
        installed = agents.pop("inside")["container_id"]
        told(docker, installed, "restart")
        answer = user("agent", "chat", f"{run_id}:inside", "-m", "models")
        assert answer.out.split() == ["models", installed[:12], "/srv", "True", "from-a-model"], answer.all
        with talk(user, f"{run_id}:beside") as held:
            assert held.ask() == "It is there."
            told(docker, agents["beside"]["container_id"], "restart")
            assert held.ask() == "It is there.", "a process that had it at hand"
        for name, record in agents.items():
            told(docker, record["container_id"], "restart")
            answer = user("agent", "chat", f"{run_id}:{name}", "-m", "Look.", "--model", "m")
            assert answer.out.strip() == "It is there.", answer.all
            assert httpx.post(f"{record['a2a_url']}/a2a", json={}, timeout=within(30)).status_code == 401
        assert server.problems == []
    assert user("runs", "teardown", run_id).code == 0

"""An agent whose container somebody starts again is told again what only it was told, and asks models as before."""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest
from agent_env_sdk.testing.models import Call, Scenario, Step

from agent_env.containers import EngineEndpoint
from tests.acceptance.containers import told
from tests.agent_steps.conftest import MINI, Operator
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
    ]
    with models({"s": Scenario((LOOK, FOUND) * 2)}) as server:
        user.env |= {"LITELLM_BASE_URL": server.base, "LITELLM_API_KEY": server.key("s")}
        (run,) = user.scores(user.bundle("b", t=steps), "--model", "m", "--keep")
        run_id, agents = run["run_id"], user.told(run["run_id"])["agents"]
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

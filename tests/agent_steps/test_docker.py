"""A container engine of an agent's own: refused unless the user's configuration grants it, and then reached by that agent alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from agent_env.agents.contract import ContainerWanted
from agent_env.config import Config
from agent_env.config.loading import DATABASE_FILE
from agent_env.containers import EngineEndpoint
from agent_env.defaults import DEFAULT_LIMITS
from agent_env.documents.task import parse_task
from agent_env.engine import RunOptions, agent_docker, plan_task
from agent_env.engine.opening import open_engine
from agent_env.engine.preflight import PRIVILEGES_KEY
from tests.agent_steps.conftest import AGENT, Operator, prompt
from tests.agent_steps.test_running import SCRIPTED_FOLDER
from tests.container_engine import archive_of, busybox_root, ensure

pytestmark = pytest.mark.timeout(300)

DOCKER = {**AGENT, "enable_docker": True}
SERVES = 'CMD ["busybox", "httpd", "-f", "-p", "2375", "-h", "/srv"]'
ASKS = """python3 -c 'import os, urllib.request as web
print(web.urlopen(os.environ["DOCKER_HOST"].replace("tcp:", "http:") + "/_ping").read().decode())'"""


def test_it_is_refused_before_anything_starts_unless_this_user_grants_it(user: Operator) -> None:
    refused = user("run", user.bundle("b", t=[DOCKER]), "--json")
    assert refused.code != 0
    assert "sandbox.container_privileges = ['privileged']" in refused.all
    held = user("run", user.bundle("c", t=[{**DOCKER, "network_policy": {"mode": "none"}}]), "--json")
    assert "no network policy can be held" in held.all
    assert user.runs() == []


async def test_the_agent_finds_it_on_a_network_of_their_own(
    user: Operator, docker: EngineEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in that answers as an engine does, without the privileges that not every machine can give."""
    wanted: list[ContainerWanted] = []

    def ordinary(*args: Any, **fields: Any) -> ContainerWanted:
        wanted.append(ContainerWanted(*args, **fields))
        return replace(wanted[-1], privileged=False)

    monkeypatch.setattr(agent_docker, "ContainerWanted", ordinary)
    image = ensure(docker, "agentenv-test/engine-stand-in:1", lambda: archive_of({**busybox_root(), "srv/_ping": b"OK"}), [SERVES])
    granted = {PRIVILEGES_KEY: ["privileged"], "agents.docker_image": image}
    config = Config(user.state, DEFAULT_LIMITS, f"sqlite:///{user.state / DATABASE_FILE}", values=granted)
    put = user("agent", "put", "--id", "plays", "--dockerfile", str(SCRIPTED_FOLDER / "Dockerfile"))
    assert put.code == 0, put.all
    down = {"id": "down", "type": "teardown_sandboxes", "agent_names": ["solver"]}
    steps = [{**DOCKER, "a2a_agent_id": "plays"}, prompt({"shell": ASKS}, {"say": "{last}"}), down]
    async with open_engine(config) as engine:
        plan = plan_task(parse_task(steps, source="t.json", task_id="t"), source="t.json", artifacts=engine.stores.artifacts)
        done = await engine.execute(await engine.submit(plan, RunOptions()))
        rows = engine.stores.journal.resources(done.run_id)
    assert done.status == "completed", done.error
    assert done.context["prompt_responses"][0]["response"].strip() == "OK"
    assert [(each.name, each.privileged, each.restart) for each in wanted] == [("docker-a2a-solver", True, True)]
    assert {row.state for row in rows} == {"closed"}

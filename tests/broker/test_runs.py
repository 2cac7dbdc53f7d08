"""Runs with real places: the key is nowhere, budgets stop a run, a killed keeper is told again, a replay needs no model."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from agent_env_sdk.testing.models import Fault, Scenario, Step, serve_models

from agent_env.broker import ModelAccess
from agent_env.broker.accounts import Accounts
from agent_env.config import Config, ModelConfig
from agent_env.containers import EngineEndpoint
from agent_env.documents.task import parse_task
from agent_env.engine import Engine, RunOptions, plan_task
from agent_env.engine.models import RunModels
from agent_env.engine.opening import open_engine
from agent_env.engine.shared import Shared
from agent_env.keeper import installed_status
from agent_env.steps.registry import configure
from agent_env.stores.secrets import Secrets
from tests.broker.spying import Crash, Spy
from tests.container_engine import archive_of, busybox_root, ensure
from tests.engine.parts import LIMITS, Watcher

HALVES = ("scn-0real", secrets.token_hex(6))
KEY = "".join(HALVES)
"""This process's own: a neighbour's commands have theirs in their environments, and all processes are looked at."""
IMPLS = [f"{kind.__module__}:{kind.__qualname__}" for kind in (Spy, Crash)]
HI = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}]})
SCENARIO = Scenario((Step("the answer"), Step("never")))


@asynccontextmanager
async def installation(root: Path, base: str, **model: Any) -> AsyncIterator[Engine]:
    configure(IMPLS)
    named = ModelConfig(base_url=base, api_key="env:J_MODEL_KEY", default="m", **model)
    limits = replace(LIMITS, keeper_idle_seconds=0.4)
    config = Config(root, limits, f"sqlite:///{root / 'runs.db'}", model=named, values={"task_steps.impls": IMPLS})
    async with open_engine(config) as engine:
        yield engine


async def outcome(engine: Engine, steps: list[dict[str, Any]], watcher: Watcher | None = None, **options: Any) -> Any:
    plan = plan_task(parse_task(steps, source="t.json", task_id="task"), source="t.json", artifacts=engine.stores.artifacts)
    run_id = await engine.submit(plan, RunOptions(**options))
    return await engine.execute(run_id, watcher)


def seen_by(done: Any, step: str = "spy") -> Mapping[str, Any]:
    found: Mapping[str, Any] = done.context["metadata"]["seen"][step]
    return found


def everything_of(root: Path) -> str:
    """What the state folder holds, except for the file that is the user's own place for secrets."""
    return "".join(each.read_bytes().decode("latin-1") for each in root.rglob("*") if each.is_file() and not each.is_symlink())


def processes() -> str:
    """What the process list tells of every process of this machine, the keeper among them."""
    found = ""
    for each in Path("/proc").glob("[0-9]*"):
        try:
            told = (each / "cmdline").read_bytes() + (each / "environ").read_bytes()
            found += told.decode("latin-1")
        except OSError:
            continue
    return found


@pytest.fixture(scope="session")
def staying(docker: EngineEndpoint) -> str:
    """An image with BusyBox whose command goes on."""
    return ensure(docker, "agentenv-test/staying:1", lambda: archive_of(busybox_root(), modes={"tmp": 0o1777}), ['CMD ["sleep", "3600"]'])


def told_by_engine(container: str) -> str:
    questions = (["inspect", container], ["logs", container], ["top", container], ["diff", container])
    return "".join(subprocess.run(["docker", *each], capture_output=True, text=True, check=False).stdout for each in questions)


async def test_a_confined_place_that_prints_all_it_sees_and_asks_everywhere_does_not_find_the_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("J_MODEL_KEY", KEY)
    watcher = Watcher()
    echo = Scenario((Step("the answer", faults=(Fault("echo_key", status=400),) * 2),))
    async with serve_models({KEY.removeprefix("scn-"): echo}) as models, installation(tmp_path, models.base) as engine:
        steps = [
            {"id": "crash", "type": "t_crash", "fail_task_on_error": False},
            {"id": "spy", "type": "t_spy", "halves": HALVES, "calls": [HI, HI], "judge": True},
        ]
        done = await outcome(engine, steps, watcher, keep=True)
        assert (done.error["step_id"], done.error["message"]) == (
            "crash",
            "the model could not be asked (status 400): the key *** is refused",
        )
        said = seen_by(done)
        assert "the key *** is refused" in said["answers"][0]
        assert "the answer" in said["answers"][1]
        assert (said["judged"], said["requests"], said["problem"]) == ("the answer", 2, None)
        assert models.requests  # and so the key did arrive
        shown = json.dumps(said) + "".join(map(repr, watcher.events)) + json.dumps(done.context, default=str) + str(done.error)
        running = processes()
        turns = await Accounts(engine.stores.db).by_turn(done.run_id)
        assert [(holder, role, turn, used.requests) for holder, role, turn, used in turns] == [
            ("crash", "judge", None, 1), ("spy", "agent", "turn-1", 2), ("spy", "judge", None, 1),
        ]  # fmt: skip
        await engine.teardown(done.run_id)
    for where, text in {"the run": shown, "processes": running, "files": everything_of(tmp_path)}.items():
        assert KEY not in text, f"the key is in {where}"
    assert said["token"] == "***"  # what a place was given is a secret of the run too
    lines = [json.loads(line) for line in (tmp_path / "transcripts" / f"{done.run_id}.jsonl").read_text().splitlines()]
    assert [(line["holder"], line["role"], line["turn"]) for line in lines[:2]] == [("crash", "judge", None), ("spy", "agent", "turn-1")]


async def test_a_container_that_prints_all_it_sees_does_not_find_the_key_nor_does_whoever_inspects_it(
    staying: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("J_MODEL_KEY", KEY)
    async with serve_models({KEY.removeprefix("scn-"): SCENARIO}) as models, installation(tmp_path, models.base) as engine:
        step = {"id": "spy", "type": "t_spy", "mode": "container", "image": staying, "halves": HALVES, "calls": [HI]}
        done = await outcome(engine, [step], keep=True)
        assert done.status == "completed", done.error
        said = seen_by(done)
        assert "the answer" in said["answers"][0]
        container = done.context["deployed_sandboxes"][0]["container_id"]
        inspected = told_by_engine(container)
        shown = json.dumps(said) + inspected + processes() + json.dumps(done.context, default=str)
        await engine.teardown(done.run_id)
    assert KEY not in shown
    assert KEY not in everything_of(tmp_path)


async def test_a_run_stops_at_its_budget_and_is_replayed_without_a_model_to_the_same_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("J_MODEL_KEY", KEY)
    steps = [{"id": "spy", "type": "t_spy", "calls": [HI] * 4, "judge": True}]
    kept = str(tmp_path / "kept")
    async with (
        serve_models({KEY.removeprefix("scn-"): SCENARIO}) as models,
        installation(tmp_path / "one", models.base, budget={"requests": 3}) as engine,
    ):
        recorded = seen_by(await outcome(engine, steps, record=kept))
    assert len(models.requests) == 4  # three of the agent, one of its judge
    monkeypatch.delenv("J_MODEL_KEY")
    async with installation(tmp_path / "two", "http://127.0.0.1:9", budget={"requests": 3}) as engine:
        replayed = seen_by(await outcome(engine, steps, replay=kept))
    assert recorded["problem"] == "budget_exceeded"
    assert "HTTP/1.1 403" in recorded["answers"][3]
    assert {**replayed, "seen": None} == {**recorded, "seen": None}


async def test_a_keeper_that_was_killed_is_told_again_and_serves_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("J_MODEL_KEY", KEY)
    async with serve_models({KEY.removeprefix("scn-"): SCENARIO}) as models, installation(tmp_path, models.base) as engine:
        killed: list[int] = []

        async def kill() -> None:
            pid = (await installed_status(tmp_path)).pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            killed.append(pid)

        monkeypatch.setattr(Spy, "between", staticmethod(kill))
        done = await outcome(engine, [{"id": "spy", "type": "t_spy", "calls": [HI, HI]}])
    assert done.status == "completed", done.error
    assert killed
    assert all("the answer" in answer for answer in seen_by(done)["answers"])


async def test_what_an_agent_is_handed_without_the_broker_is_found_again_by_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that whoever goes on with the run can tell it to a container that was started again."""
    monkeypatch.setenv("J_MODEL_KEY", KEY)
    headers = {"x-team": "literal-77aa"}
    settings = ModelConfig(base_url="http://user:word@127.0.0.1:9", api_key="sk-literal-5c1e", headers=headers, broker=False, default="m")
    async with installation(tmp_path, "http://127.0.0.1:9") as engine:

        def models(settings: ModelConfig) -> RunModels:
            overrides: Mapping[str, Any] = {}
            shared = SimpleNamespace(model_settings=settings, stores=engine.stores, state_root=tmp_path, overrides=overrides)
            return RunModels(cast("Shared", shared))

        assert models(replace(settings, api_key="env:J_MODEL_KEY")).reference_of(KEY) == "env:J_MODEL_KEY"
        access = ModelAccess(str(settings.base_url), str(settings.api_key), headers=headers, brokered=False)
        handed = {value: models(settings).reference_of(value) for value in access.variables().values()}
    assert len(handed) == 3
    assert all(reference.startswith("secret:") and value not in reference for value, reference in handed.items())
    another = Secrets(engine.stores.secrets.file)
    assert [another.resolve(reference).reveal() for reference in handed.values()] == list(handed)

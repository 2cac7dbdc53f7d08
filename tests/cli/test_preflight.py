"""What this machine can't do of a task is told before anything is written or run, by every command that looks at tasks."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Cli

UNKNOWN: dict[str, Any] = {"id": "box", "type": "deploy_sandbox", "sandbox_name": "box", "sandbox_mode": "vm", "sandbox_type": "lcal"}
UNABLE: dict[str, Any] = {**UNKNOWN, "sandbox_type": "elsewhere"}
PROVIDER = """
from agent_env.places import Shape
from agent_env.sandboxes.contract import Capabilities


class Elsewhere:
    name = "elsewhere"

    def __init__(self, state_root, *, limits, options):
        pass

    async def capabilities(self):
        return Capabilities(Shape.MACHINE_BACKED, frozenset({"allow_all"}))

    def problems(self, spec, capabilities):
        return ["elsewhere has no machines today"]

    async def create(self, spec):
        raise NotImplementedError

    async def attach(self, sandbox_id, *, epoch, token):
        raise NotImplementedError

    async def destroy(self, sandbox_id):
        return False

    async def list(self, labels):
        for nothing in ():
            yield nothing

    async def aclose(self):
        pass
"""


@pytest.fixture(autouse=True)
def provider(cli: Cli) -> None:
    """An installed package brings a provider that can make nothing."""
    site = cli.home / "site"
    info = site / "elsewhere-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "elsewhere.py").write_text(PROVIDER)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: elsewhere\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[agent_env.sandbox_providers]\nelsewhere = elsewhere:Elsewhere\n")
    cli.env["PYTHONPATH"] = str(site)


def file(cli: Cli, box: dict[str, Any]) -> Path:
    path = cli.cwd / "task.json"
    path.write_text(json.dumps([box]))
    return path


def bundle(cli: Cli, box: dict[str, Any]) -> Path:
    folder = cli.cwd / "bundle"
    (folder / "tasks").mkdir(parents=True)
    (folder / "tasks" / "t.json").write_text(json.dumps([box]))
    return folder


def stored(cli: Cli, box: dict[str, Any]) -> str:
    assert cli("task", "create", file(cli, box), "--id", "t").code == 0
    return "t"


RUNNING: dict[str, Callable[[Cli, dict[str, Any]], list[str | Path]]] = {
    "run FILE": lambda cli, box: ["run", file(cli, box)],
    "run FILE --dry-run": lambda cli, box: ["run", file(cli, box), "--dry-run"],
    "run BUNDLE": lambda cli, box: ["run", bundle(cli, box)],
    "run BUNDLE --dry-run": lambda cli, box: ["run", bundle(cli, box), "--dry-run"],
    "task run": lambda cli, box: ["task", "run", "--id", stored(cli, box)],
}
LOOKING: dict[str, Callable[[Cli, dict[str, Any]], list[str | Path]]] = {
    "bundle check": lambda cli, box: ["bundle", "check", bundle(cli, box)],
    "task validate": lambda cli, box: ["task", "validate", "--id", stored(cli, box)],
}


@pytest.mark.parametrize("way", RUNNING)
def test_what_would_run_is_refused_with_the_reason_of_each_provider(cli: Cli, way: str) -> None:
    answer = cli(*RUNNING[way](cli, UNABLE))
    assert answer.code == 2
    assert "$[0]" in answer.err
    assert "no sandbox can be made for it (elsewhere: elsewhere has no machines today)" in answer.err
    assert cli("runs", "list", "--json").json == {"runs": []}


@pytest.mark.parametrize("way", LOOKING)
def test_what_is_only_looked_at_is_warned_about_and_refused_when_strict(cli: Cli, way: str) -> None:
    command = LOOKING[way](cli, UNABLE)
    answer = cli(*command)
    assert answer.code == 0
    assert "warning: " in answer.err
    assert "no sandbox can be made for it" in answer.err
    assert "no sandbox can be made for it" in cli(*command, "--json").json["warnings"][0]
    assert cli(*command, "--strict").code == 2


@pytest.mark.parametrize("way", LOOKING)
def test_what_a_task_deploys_is_read_from_the_store(cli: Cli, way: str) -> None:
    assert cli("bundle", "new", "shop", "--env", "notes").code == 0
    assert cli("env", "put", "shop/envs/notes", "--id", "mine").code == 0
    answer = cli(*LOOKING[way](cli, {"id": "env", "type": "deploy_env", "env_id": "mine"}))
    assert (answer.code, "no problems" in answer.out) == (0, True), answer.err


@pytest.mark.parametrize("way", [*RUNNING, *LOOKING])
def test_a_provider_that_nobody_knows_is_a_mistake_everywhere(cli: Cli, way: str) -> None:
    answer = cli(*{**RUNNING, **LOOKING}[way](cli, UNKNOWN))
    assert answer.code == 2
    assert "did you mean 'local'?" in answer.err


def test_all_agents_that_lack_a_model_are_told_at_once_and_nothing_is_built(cli: Cli) -> None:
    for options in ([], ["--dry-run"]):
        answer = cli("run", "agents", *options)
        assert (answer.code, answer.out) == (2, "")
        assert answer.err.count("asks a model, and none is configured (set LITELLM_BASE_URL") == 7
    assert cli("agent", "list", "--json").json == {"agents": []}
    assert cli("run", "agents", "--task", "pi", "--dry-run", "--json", env={"LITELLM_BASE_URL": "http://127.0.0.1:9"}).json["runs"] == 1


def test_what_the_user_overrides_is_asked_about_instead(cli: Cli) -> None:
    assert cli("run", file(cli, UNKNOWN), "--dry-run", "--sandbox", "local").code == 0
    assert cli("run", file(cli, {**UNKNOWN, "sandbox_type": "local"}), "--dry-run", "--sandbox", "lcal").code == 2

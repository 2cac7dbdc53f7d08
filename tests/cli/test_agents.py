"""`agent-env agent`: storing, listing and removing; talking with an agent at an address; the conformance kit and its verdict."""

from __future__ import annotations

import json
import threading
from asyncio import Event, new_event_loop
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from agent_env_sdk.agent import Agent, agent
from agent_env_sdk.agent.scripted import ScriptConfig, Scripted
from agent_env_sdk.agent.trajectories import Trajectories
from agent_env_sdk.agent.turns import TaskRequest, TaskResult
from agent_env_sdk.testing.agents import serve_agent_here
from agent_env_sdk.wire.a2a import AgentExtension
from agent_env_sdk.wire.agent_extensions import INSTALL, advertised
from agent_env_sdk.wire.errors import AgentEnvError

from tests.cli.conftest import Cli


@agent("able", description="Says what it was told.", input_modes=("text", "image/png", "image/gif", "audio/wav", "application/pdf"))
class Able(Scripted):
    """Plays a script, and takes skills."""

    command = "serve --port {a2a_port}"

    def __init__(self, root: Path) -> None:
        super().__init__([{"progress": "thinking"}, {"say": "you said {prompt}"}], root)
        (root / "work").mkdir(exist_ok=True)
        self.skills_folder, self.workspace = root / "skills", root / "work"

    def extensions(self) -> list[AgentExtension]:
        """How it is installed."""
        return [advertised(INSTALL, (), params={"install_commands": [self.command], "required_params": ["a2a_port"], "a2a_port": 8000})]


@agent("odd", description="Says what it does not do.", input_modes=("text", "image/png"))
class Odd(Able):
    """Fails the checks of its card's words."""

    command = "serve --port {a2a_port} --at {somewhere}"

    async def run(self, request: TaskRequest[ScriptConfig]) -> TaskResult:  # type: ignore[override]
        return TaskResult(rejected=True) if len(request.parts) > 1 else TaskResult.said("ready")


@agent("forgetful", description="Takes settings, and forgets them; ends every turn as failed.")
class Forgetful(Able):
    """Fails two checks."""

    async def run(self, request: TaskRequest[ScriptConfig]) -> TaskResult:  # type: ignore[override]
        return TaskResult.failed("forgetful.always", f"forgot {len(request.text)} letters")


@contextmanager
def served(made: Agent, state: Path) -> Iterator[str]:
    """An agent's address, while the block runs: served from another thread, as the command is another process."""
    loop, ready, addresses, over = new_event_loop(), threading.Event(), [], Event()

    async def serve() -> None:
        async with serve_agent_here(made, state=state) as client:
            addresses.append(client.base)
            ready.set()
            await over.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()), daemon=True)
    thread.start()
    assert ready.wait(60)
    try:
        yield addresses[0]
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join(60)
        loop.close()


def test_a_conversation_goes_through_arguments_pipes_and_json(cli: Cli, tmp_path: Path) -> None:
    with served(Able(tmp_path), tmp_path / "state") as url:
        once = cli("agent", "chat", url, "-m", "hello", "-m", "again")
        assert (once.code, once.out) == (0, "you said hello\nyou said again\n"), once.err
        assert "thinking" in once.err
        piped = cli("a2a-agent", "chat", url, "--json", stdin=b"one\n\n/new\ntwo\n/quit\nthree\n")
        turns = [json.loads(line) for line in piped.out.splitlines()]
        assert [(turn["state"], turn["text"]) for turn in turns] == [("completed", "you said one"), ("completed", "you said two")]
        assert turns[0]["context_id"] != turns[1]["context_id"]
    with served(Forgetful(tmp_path), tmp_path / "state2") as url:
        failed = cli("agent", "chat", url, "-m", "hello")
        assert failed.code == 1
        assert "failed: forgot 5 letters" in failed.err


def test_an_agent_anywhere_is_checked_with_one_verdict(cli: Cli, tmp_path: Path) -> None:
    with served(Able(tmp_path), tmp_path / "state") as url:
        good = cli("agent", "validate", url, "--write", "--json")
        results = {check["id"]: (check["result"], check["detail"]) for check in good.json["checks"]}
        wrong = {id: told for id, told in results.items() if told[0] != "passed"}
        assert good.json["passed"] is True, wrong
        assert good.code == 0
        assert {id.partition("/")[0] for id in wrong} == {"access"}
        read_only = cli("agent", "validate", url, "--check", "skill_config", "--check", "core_protocol/an_*")
        assert read_only.code == 0
        assert "agentenv-capability-missing: an agent of its own" in read_only.out
        model = cli("agent", "validate", url, "--require", "model", "--check", "model/it_runs_commands")
        assert (model.code, model.out.splitlines()[-1]) == (1, "failed")


@agent("plain", description="Counts the words of a prompt, and records nothing.")
class Plain(Agent):
    """What the SDK's own page begins with."""

    async def run(self, request: TaskRequest[Any]) -> TaskResult:
        return TaskResult.said(str(len(request.text.split())))


def test_an_agent_that_records_nothing_keeps_its_promise_and_one_that_hides_what_it_recorded_does_not(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only = ("--json", "--check", "core_protocol/a_prompt_comes_to_an_end", "--check", "trajectory")
    with served(Plain(), tmp_path / "state") as url:
        plain = cli("agent", "validate", url, *only)
        assert plain.json["passed"] is True, plain.out
        assert "nothing was recorded of the prompt" in plain.out

    def refuse(*_: object) -> None:
        raise AgentEnvError("not_found", "no task of it has ended and recorded anything", status=404)

    monkeypatch.setattr(Trajectories, "_recorded", refuse)
    with served(Able(tmp_path), tmp_path / "state2") as url:
        hiding = cli("agent", "validate", url, *only)
        assert hiding.json["failed_gates"] == ["trajectory"], hiding.out
        assert "it has recorded events, and gives none of them" in hiding.out


def test_what_an_agent_did_is_exported_as_traces(cli: Cli, tmp_path: Path) -> None:
    step = {"id": "ask", "type": "prompt_agent", "agent_name": "solver", "prompt": "hello"}
    (tmp_path / "t.json").write_text(json.dumps([step]))
    assert cli("task", "create", tmp_path / "t.json", "--id", "t", "--skip-validation").code == 0
    with served(Able(tmp_path), tmp_path / "state") as url:
        (tmp_path / "c.json").write_text(json.dumps({"deployed_agents": [{"agent_name": "solver", "api_url": url, "a2a_url": url}]}))
        assert cli("task", "run", "--id", "t", "--context-json", tmp_path / "c.json").code == 0
    run = cli("runs", "list", "--json").json["runs"][0]["run_id"]
    (group,) = json.loads(cli("runs", "trajectory", run, "--otlp").out)["resourceSpans"]
    assert [span["name"] for span in group["scopeSpans"][0]["spans"]] == ["invoke_agent solver", "chat"]
    assert cli("runs", "trajectory", run, "--follow").out == "", "nobody works any more"


def test_what_a_card_says_and_an_agent_does_not_is_told(cli: Cli, tmp_path: Path) -> None:
    with served(Odd(tmp_path), tmp_path / "state") as url:
        found = cli("agent", "validate", url, "--write", "--json", "--check", "install", "--check", "modalities", "--check", "changelog")
    told = {check["id"]: check["detail"] for check in found.json["checks"] if check["result"] == "failed"}
    assert told == {
        "install/it_can_be_installed_as_it_says": "install_commands ask for somewhere, which nobody knows",
        "modalities/it_takes_the_kinds_of_files_that_its_card_names": "image/png is on its card, and refused: None",
    }
    assert (found.code, found.json["failed_gates"]) == (1, ["modalities", "install"])


def test_what_can_not_be_checked_or_talked_with_is_told(cli: Cli) -> None:
    gone = cli("agent", "validate", "http://127.0.0.1:9", "--check", "core_protocol/a_prompt_comes_to_an_end")
    assert gone.code == 1
    assert cli("agent", "validate").code == 2
    assert "there is no gate 'cards'" in cli("agent", "validate", "x", "--require", "cards").err
    nobody = cli("agent", "chat", "no-such-agent", "-m", "x")
    assert nobody.code == 2
    assert "there is no folder, bundle's agent or alias 'no-such-agent'" in nobody.err
    assert "bringing up" not in nobody.err
    listed = cli("agent", "validate", "--list", "--json").json["checks"]
    assert len({check["id"] for check in listed}) == len(listed) >= 29
    assert all(check["title"] for check in listed)


@pytest.mark.parametrize("source", ["folder", "image", "dockerfile"])
def test_agents_are_stored_listed_and_removed(cli: Cli, tmp_path: Path, source: str) -> None:
    folder = tmp_path / "solver"
    folder.mkdir()
    (folder / "Dockerfile").write_text("FROM scratch\n")
    (folder / "agent.toml").write_text('[default_env_vars]\nA = "1"\n\n[metadata]\ndefault_model = "m"\n')
    ways = {
        "folder": [folder, "--id", "solver"],
        "image": ["--image-ref", "docker.io/library/solver:1", "--id", "solver", "--env-var", "A=1", "--default-model", "m"],
        "dockerfile": ["--dockerfile", folder / "Dockerfile", "--id", "solver"],
    }
    dry = cli("agent", "put", *ways[source], "--dry-run", "--json")
    assert dry.code == 0, dry.err
    assert cli("agent", "get", dry.json["id"]).code == 2
    stored = cli("agent", "put", *ways[source], "--json")
    assert stored.code == 0, stored.err
    id = stored.json["id"]
    document = cli("agent", "get", id).json
    assert (document["type"], document["default_env_vars"], document["metadata"]["default_model"]) == ("a2a_agent", {"A": "1"}, "m")
    assert [each["id"] for each in cli("agent", "list", "--json").json["agents"]] == [id]
    assert cli("agent", "list", "--deployed", "--json").json == {"deployed": []}
    told = [line.partition(": ")[0] for line in cli("agent", "put", *ways[source]).out.splitlines()]
    assert told == [each["id"] for each in stored.json["entries"]]
    assert cli("agent", "rm", id).code == 0
    assert cli("agent", "list", "--json").json == {"agents": []}


def test_what_put_can_not_mean_is_refused(cli: Cli, tmp_path: Path) -> None:
    assert "say WHAT is to be stored" in cli("agent", "put").err
    assert "needs an --id" in cli("agent", "put", "--image-ref", "x").err
    assert "--env-var go with --image-ref or --dockerfile" in cli("agent", "put", tmp_path, "--env-var", "A=1").err
    assert "'A' is not NAME=VALUE" in cli("agent", "put", "--image-ref", "x", "--id", "y", "--env-var", "A").err


def test_a_stored_environment_is_removed_as_a_stored_agent_is(cli: Cli) -> None:
    assert cli("bundle", "new", "shop", "--env", "notes").code == 0
    assert cli("env", "put", "shop/envs/notes", "--id", "mine").code == 0
    mixed = cli("env", "rm", "mine", "run-x")
    assert (mixed.code, mixed.err.count("one kind at a time")) == (2, 1)
    assert "there is no version 9 of environment 'mine'" in cli("env", "rm", "mine", "--version", "9").err
    assert cli("env", "rm", "mine", "--json").json == {"removed": ["mine"]}
    assert "mine" not in cli("env", "list").out
    gone = cli("env", "rm", "mine")
    assert (gone.code, gone.err) == (2, "error: there is no environment 'mine'\nhint: agent-env env list\n")

"""What Tab offers, as a shell asks for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from agent_env.cli.frame import root
from tests.cli.conftest import Cli
from tests.cli.tasks import FAILING, PASSING, bundle
from tests.cli.test_frame import COSTLY, loaded_by


def offered(cli: Cli, *words: str, env: dict[str, str] | None = None) -> list[str]:
    """What bash is told for the last word, without its `type,`."""
    asked = {"_AGENT_ENV_COMPLETE": "bash_complete", "COMP_WORDS": " ".join(["agent-env", *words]), "COMP_CWORD": str(len(words))}
    answer = cli(env={**asked, **(env or {})})
    assert answer.err == ""
    return [line.partition(",")[2] for line in answer.out.splitlines() if line.startswith("plain,")]


@pytest.fixture
def known(cli: Cli) -> Iterator[str]:
    """The id of a kept run of a bundle `b`, beside a stored task and artifact."""
    folder = bundle(cli.cwd / "b", first=PASSING, other=PASSING, failing=FAILING)
    (folder / "evals").mkdir()
    (folder / "evals/all.toml").write_text('tasks = ["first", "other"]')
    assert cli("task", "create", cli.write("t.json", PASSING), "--id", "stored").code == 0
    assert cli("artifact", "put", cli.write("words.txt", "x"), "--id", "words").code == 0
    run_id = str(cli("run", folder, "--task", "first", "--keep", "--json").json["runs"][0]["run_id"])
    yield run_id
    cli("runs", "teardown", run_id, cwd=cli.home)  # not where a test has written a configuration


def test_ids_names_and_steps_are_offered(cli: Cli, known: str) -> None:
    for command in (
        ["runs", "show"],
        ["runs", "logs"],
        ["runs", "diff", known],
        ["runs", "list", "--before"],
        ["exec"],
        ["shell"],
    ):
        assert offered(cli, *command, known[:6]) == [known], command
        assert offered(cli, *command, known[4:6]) == [known[4:]], command
    assert offered(cli, "runs", "diff", "")[0] == known
    assert offered(cli, "resume", "run-") == [], "it is finished"
    failed = cli("run", "b", "--task", "failing", "--json").json["runs"][0]["run_id"]
    assert offered(cli, "resume", "") == [failed]
    assert cli("runs", "rm", failed).code == 0
    assert offered(cli, "runs", "rm", known, "run-") == []
    assert offered(cli, "exec", f"{known}:") == [f"{known}:box"]
    assert offered(cli, "cp", "run-") == [f"{known}:/"]
    assert offered(cli, "resume", known, "--decide", "c") == ["check=repeat", "check=done"]
    assert offered(cli, "runs", "review", known, "b") == ["box"]
    assert offered(cli, "runs", "logs", known, "--step", "b") == ["box"]
    assert offered(cli, "run", "he") == ["hello"]
    assert offered(cli, "run", "''", "--conc") == ["--concurrency"]
    assert offered(cli, "run", "stor") == ["stored"]
    assert offered(cli, "bundle", "show", "to") == ["tour"]
    assert offered(cli, "run", "b", "--task", "o") == ["other"]
    assert offered(cli, "run", "b", "--task", "other", "--task", "") == ["failing", "first"]
    assert offered(cli, "run", "b", "--eval", "") == ["all"]
    assert offered(cli, "run", "hello", "--task", "") == ["hello"]
    assert "stored" in offered(cli, "task", "run", "--id", "s")
    assert offered(cli, "artifact", "get", "w") == ["words"]
    assert offered(cli, "config", "explain", "limits.exec_s") == ["limits.exec_seconds"]
    assert offered(cli, "runs", "list", "--group", "gr") == [cli("runs", "show", known, "--json").json["group_id"]]
    cli.write(".agentenv/config.toml", '[model]\ndefault = "env:M"\n[model.roles]\njudge = "big"\n')
    assert offered(cli, "run", "hello", "--judge-model", "") == ["big"]


def test_agents_environments_and_providers_are_offered(cli: Cli) -> None:
    assert offered(cli, "agent", "deploy", "scr") == ["scripted"]
    assert offered(cli, "agent", "chat", "mini", "--env", "err") == ["errand:office"]
    assert offered(cli, "run", "hello", "--agent", "errand:") == ["errand:oracle"]
    assert offered(cli, "env", "check", "mai") == ["mail", "mail-mcp:mail"]
    assert offered(cli, "run", "hello", "--sandbox", "local,r") == ["local,rootfs"]
    assert offered(cli, "provider", "check", "unsafe") == ["unsafe_host"]


def test_whatever_names_something_of_ours_is_completed() -> None:
    """A word that Tab knows in one command it knows in all."""
    named = {"agent", "agent_sandbox", "env_sandbox", "environments", "run", "runs", "sandbox", "target", "what"}
    another = {" image build target", " bundle new agent"}  # a stage of a Dockerfile; the name of one that is not there yet

    def silent(group: click.Group, path: str) -> Iterator[str]:
        context = click.Context(group)
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            assert command is not None
            if isinstance(command, click.Group):
                yield from silent(command, f"{path} {name}")
            else:
                for param in command.params:
                    if param.name in named and param._custom_shell_complete is None and not isinstance(param.type, click.Path):
                        yield f"{path} {name} {param.name}"

    assert {*silent(root, "")} == another


@pytest.mark.parametrize("words", [["resume", ""], ["run", "b", "--task", ""], ["exec", "run-x:"], ["task", "get", "--id", ""]])
def test_a_fresh_installation_offers_nothing_and_nothing_is_made_by_asking(cli: Cli, words: list[str]) -> None:
    assert offered(cli, *words) == []
    assert list(cli.home.iterdir()) == []


def test_a_broken_configuration_or_database_offers_nothing(cli: Cli, known: str) -> None:
    assert offered(cli, "resume", "", env={"AGENT_ENV_DATABASE_URL": "postgresql://nobody@127.0.0.1:1/x"}) == []
    assert offered(cli, "resume", "", env={"AGENT_ENV_CONFIG": "/no/such/file"}) == []
    assert cli("runs", "teardown", known).code == 0  # nobody finds it again after this
    for path in (cli.home / "state/agent-env").glob("agent-env.db*"):
        path.write_bytes(b"no database" * 100)
    assert offered(cli, "resume", "") == []


def test_completing_loads_nothing_costly(cli: Cli, known: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in cli.environ().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("_AGENT_ENV_COMPLETE", "bash_complete")
    for words in (["resume", "run-"], ["resume", known, "--decide", ""], ["run", str(cli.cwd / "b"), "--task", ""], ["runs", "show", ""]):
        monkeypatch.setenv("COMP_WORDS", " ".join(["agent-env", *words]))
        monkeypatch.setenv("COMP_CWORD", str(len(words)))
        loaded = loaded_by("from agent_env.cli import main\nmain([])")
        assert not loaded & {*COSTLY} - {"logging", "importlib.metadata"}, words

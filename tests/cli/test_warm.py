"""A command that tests fork says and does what one does that starts by itself."""

from __future__ import annotations

import json
from contextlib import closing

import pytest

from tests import warm
from tests.cli.conftest import Answer, Cli

CRITERIA = [{"type": "bash_cmd_succeeds", "criterion": "here", "bash_cmd": "cat here"}]
TASK = json.dumps(
    [
        {"id": "box", "type": "deploy_sandbox", "sandbox_name": "box", "sandbox_mode": "vm"},
        {"id": "check", "type": "verify_sandbox", "sandbox_name": "box", "criteria": CRITERIA},
    ]
)


def both(cli: Cli, *argv: str, stdin: bytes = b"", **env: str | None) -> list[Answer]:
    """What the forked one answers, and the other."""
    return [cli(*argv, stdin=stdin, env={**env, "PYTHONUNBUFFERED": start}) for start in (None, "1")]


@pytest.mark.parametrize(
    "argv",
    [
        "--version",
        "--help",
        "runs list --json",
        "config show --json",
        "no such command",
        "runs show run-nowhere",
        "bundle check nowhere",
        "steps",
    ],
)
def test_both_have_the_same_code_and_say_the_same(cli: Cli, argv: str) -> None:
    forked, started = both(cli, *argv.split(), stdin=TASK.encode())
    assert forked == started


def test_both_see_their_variables_folder_input_and_no_others(cli: Cli) -> None:
    for name in ("one", "two"):
        cli.write(f"{name}/task.json", TASK)
        answers = [cli("run", "task.json", "--json", cwd=cli.cwd / name, env={"PYTHONUNBUFFERED": start}) for start in (None, "1")]
        assert [(each.code, each.json["runs"][0]["scores"]) for each in answers] == [(0, {"check": 0.0})] * 2
    assert cli("secret", "set", "KEY", stdin=b"value\n").code == 0
    kept, emptied = both(cli, "secret", "set", "KEY", stdin=b"other"), both(cli, "secret", "set", "KEY")
    assert kept[0] == kept[1]
    assert emptied[0] == emptied[1] != kept[0]
    debugging = both(cli, "runs", "show", "run-nowhere", AGENT_ENV_DEBUG="1")
    assert ["Traceback" in each.err for each in debugging] == [True, True]
    assert "Traceback" not in cli("runs", "show", "run-nowhere").err


def test_what_lies_on_the_path_of_the_tests_is_on_no_commands(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    cli.write("site/some_cloud-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: some-cloud\nVersion: 1.0\n")
    cli.write("site/some_cloud-1.0.dist-info/entry_points.txt", "[agent_env.sandbox_providers]\nmine = some_cloud:Provider\n")
    site = str(cli.cwd / "site")
    monkeypatch.setenv("PYTHONPATH", site)
    with closing(warm._Server()) as server:
        for path, times in ((None, 0), (site, 1)):
            found = server.run(["plugin", "list", "--no-load"], cli.cwd, cli.environ({"PYTHONPATH": path}), b"", 100)
            assert found.stdout.count(b"some-cloud") == times, found

"""Isolation is switched off by the user's own word, never by what a document says."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Cli
from tests.cli.tasks import BOX, bundle, shell


@pytest.mark.parametrize("where", ["a step", "the bundle's defaults", "--sandbox"])
def test_nothing_but_the_users_own_word_lets_a_task_onto_the_bare_host(cli: Cli, where: str) -> None:
    touched = cli.cwd / "touched"
    box = {**BOX, "sandbox_type": "unsafe_host"} if where == "a step" else {**BOX, "sandbox_type": None}
    folder = bundle(cli.cwd / "b", a=[box, {**shell(f"touch {touched}"), "base_dir": "/tmp"}])
    if where == "the bundle's defaults":
        cli.write("b/bundle.toml", 'name = "b"\n[defaults]\nsandbox = "unsafe_host"\n')
    answer = cli("run", folder, "--json", *(["--sandbox", "unsafe_host"] if where == "--sandbox" else []))
    assert not touched.exists()
    assert answer.code != 0
    assert "--unsafe-host" in answer.out


def test_the_users_own_word_does(cli: Cli) -> None:
    touched = cli.cwd / "touched"
    folder = bundle(cli.cwd / "b", a=[BOX, {**shell(f"touch {touched}"), "base_dir": "/tmp"}])
    answer = cli("run", folder, "--json", "--unsafe-host")
    assert answer.code == 0
    assert touched.exists()
    assert "removed or replaced" not in answer.err


def test_a_run_whose_record_was_removed_under_it_says_that_it_is_lost(cli: Cli) -> None:
    folder = bundle(cli.cwd / "b", a=[BOX, {**shell(f"rm {cli.home / 'state/agent-env/agent-env.db'}*"), "base_dir": "/tmp"}])
    answer = cli("run", folder, "--json", "--unsafe-host")
    assert answer.json["runs"][0]["status"] == "completed"
    assert "agent-env.db was removed or replaced meanwhile" in answer.err

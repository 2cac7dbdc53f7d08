"""Every malformed bundle ends in a message with its file and JSON path, all problems at once, and never in a traceback."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent_env.bundles import plan_folder
from agent_env.config import load_config
from agent_env.engine.options import Stores
from agent_env.errors import AgentEnvError, Problem, ProblemsError
from tests.bundles.building import write
from tests.bundles.malformed import CASES, Malformed, Said


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_cl02_a_malformed_bundle_is_told_with_file_and_path(case: Malformed, tmp_path: Path, stores: Stores, home: Path) -> None:
    root = write(tmp_path / "bundle", case.files)
    with pytest.raises(ProblemsError) as raised:
        plan_folder(root, stores, everything=True)
    problems = raised.value.problems
    for said in case.said:
        assert any(tells(problem, said, root) for problem in problems), f"{said} is not among:\n{raised.value}"
    assert "Traceback" not in str(raised.value)
    assert len(problems) == len(case.said), f"more is said than is wrong:\n{raised.value}"
    assert stores.documents.count("tasks") == 0


def test_there_are_at_least_sixty_of_them() -> None:
    names = [case.name for case in CASES]
    assert len(set(names)) == len(names) >= 60


CONFIGS = {
    "no TOML": ("[sandbox", "TOML"),
    "a near key": ('[sandbox]\ndefualt = "local"', "default"),
    "a near table": ('[sandbx]\ndefault = "local"', "sandbox"),
    "a number that is text": ('[run]\nconcurrency = "many"', "concurrency"),
    "a limit below zero": ("[limits]\nexec_seconds = -1", "exec_seconds"),
    "an unknown limit": ("[limits]\nexec_secnds = 1", "exec_secnds"),
    "a table that is text": ('sandbox = "local"', "sandbox"),
    "a byte that is no UTF-8": (b"\xff", "UTF-8"),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_cl02_a_malformed_configuration_is_told_with_its_file(name: str, tmp_path: Path, home: Path) -> None:
    text, word = CONFIGS[name]
    file = write(tmp_path / "tree", {".agentenv/config.toml": text}) / ".agentenv/config.toml"
    with pytest.raises(AgentEnvError) as raised:
        load_config(file.parents[1], {"HOME": str(home), "AGENT_ENV_CONFIG": str(file)})
    assert raised.value.exit_code == 2
    assert str(file) in str(raised.value)
    assert word in str(raised.value)


def tells(problem: Problem, said: Said, root: Path) -> bool:
    file = problem.file == (said.file or str(root))
    path = said.path is None or problem.path == said.path
    return file and path and all(word in str(problem) for word in said.words)

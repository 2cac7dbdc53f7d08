"""What counts as a unit test is decided by what a test asks for and calls."""

from __future__ import annotations

import subprocess

import pytest

from tests.cli.conftest import Cli
from tests.documents.test_seeds import test_filling_keeps_the_structure as pure
from tests.steps.bench import on_bench
from tests.unit import SCENES, _starts_processes, is_unit


def starting() -> int:
    return subprocess.run(["true"], check=False).returncode


def calling() -> list[int]:
    return [starting() for _ in range(2)]


def with_a_command(cli: Cli) -> None:
    Cli(cli.cwd)("runs", "list")


def with_a_sandbox() -> None:
    on_bench()  # type: ignore[call-arg]


def test_where_a_process_is_started_decides_however_far_away(request: pytest.FixtureRequest) -> None:
    assert [_starts_processes([each]) for each in (starting, calling, with_a_command, with_a_sandbox)] == [True] * 4
    assert not _starts_processes([pure])
    assert not is_unit(request.node)


def test_every_folder_of_scenes_is_there(request: pytest.FixtureRequest) -> None:
    assert not {name for name in SCENES if not (request.config.rootpath / "tests" / name).is_dir()}

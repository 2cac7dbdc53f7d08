"""The program that runs a script in the place, started as the place starts it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from agent_env.steps import run_code

RUNNER = Path(run_code.__file__).with_name("run_code_runner.py")


class Stage:
    """A staging folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "stage"
        (self.folder / ".agent_env").mkdir(parents=True)
        (self.folder / ".agent_env" / "runner.py").write_bytes(RUNNER.read_bytes())
        (self.folder / "input.json").write_text('{"args": {"n": 2}, "results": {"before": 5}}')

    def run(self, entry: str = "script.py", function: str = "run", **files: str) -> subprocess.CompletedProcess[str]:
        for name, text in files.items():
            path = self.folder / name.replace("__", "/").replace("_py", ".py")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        argv = [sys.executable, self.folder / ".agent_env" / "runner.py", self.folder, function, entry]
        return subprocess.run(argv, capture_output=True, text=True, cwd="/", check=False)

    @property
    def result(self) -> object:
        return json.loads((self.folder / "output.json").read_text())

    @property
    def refusal(self) -> str:
        return (self.folder / "output.refused").read_text()


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def test_the_entry_point_gets_args_and_results_and_its_return_value_is_written(stage: Stage) -> None:
    ran = stage.run(script_py="def run(given):\n    return {**given['args'], 'sum': given['args']['n'] + given['results']['before']}")
    assert ran.returncode == 0, ran.stderr
    assert stage.result == {"n": 2, "sum": 7}
    assert [path.name for path in stage.folder.iterdir() if path.name.startswith(".output")] == []


def test_an_async_entry_point_is_awaited(stage: Stage) -> None:
    ran = stage.run(script_py="import asyncio\nasync def main(given):\n    await asyncio.sleep(0)\n    return [1]", function="main")
    assert ran.returncode == 0, ran.stderr
    assert stage.result == [1]


def test_c14_siblings_are_importable_also_from_a_nested_entry(stage: Stage) -> None:
    ran = stage.run(
        entry="pkg/run.py",
        pkg__run_py="from .near import a\nimport near\nimport far\ndef run(given):\n    return [a, near.a, far.b, __name__]",
        pkg__near_py="a = 1",
        far_py="b = 2",
    )
    assert ran.returncode == 0, ran.stderr
    assert stage.result == [1, 1, 2, "agent_env_user_pkg.run"]


def test_a_file_named_like_a_standard_module_does_not_break_the_runner(stage: Stage) -> None:
    ran = stage.run(script_py="def run(given):\n    return 1", json_py="raise SystemExit(9)", types_py="raise SystemExit(9)")
    assert ran.returncode == 0, ran.stderr
    assert stage.result == 1


@pytest.mark.parametrize("value", ["float('nan')", "[float('inf')]", "{1, 2}", "object()", "b'x'", "(lambda l: l.append(l) or l)([])"])
def test_c12_a_result_that_is_not_json_is_refused_with_the_reason(stage: Stage, value: str) -> None:
    ran = stage.run(script_py=f"def run(given):\n    return {value}")
    assert ran.returncode == 65
    assert "the result is not JSON" in stage.refusal
    assert not (stage.folder / "output.json").exists()


def test_a_missing_function_is_refused_by_name(stage: Stage) -> None:
    assert stage.run(script_py="run = 3").returncode == 65
    assert stage.refusal == "script.py has no function 'run'"


def test_an_exception_leaves_its_traceback_and_no_result(stage: Stage) -> None:
    ran = stage.run(script_py="def run(given):\n    raise ValueError('nope')")
    assert ran.returncode == 1
    assert ran.stderr.rstrip().endswith("ValueError: nope")
    assert not (stage.folder / "output.json").exists()


@pytest.mark.parametrize(
    ("call", "code"), [("sys.exit(0)", 0), ("sys.exit()", 0), ("sys.exit(3)", 3), ("sys.exit('bad')", 1), ("exit(4)", 4)]
)
def test_a_script_that_exits_keeps_its_code_and_leaves_no_result(stage: Stage, call: str, code: int) -> None:
    ran = stage.run(script_py=f"import sys\ndef run(given):\n    {call}")
    assert ran.returncode == code
    assert not (stage.folder / "output.json").exists()


def test_a_script_in_another_encoding_runs_as_python_would_run_it(stage: Stage) -> None:
    (stage.folder / "script.py").write_bytes(b"# -*- coding: latin-1 -*-\ndef run(given):\n    return '\xe9'\n")
    assert stage.run().returncode == 0
    assert stage.result == "é"


@pytest.mark.parametrize(
    ("script", "first", "last"),
    [
        ("def run(given):\n    return below()\ndef below():\n    raise ValueError('no')", ", line 2, in run", "ValueError: no"),
        ("async def run(given):\n    raise ValueError('no')", ", line 2, in run", "ValueError: no"),
        ("import nowhere", ", line 1, in <module>", "ModuleNotFoundError: No module named 'nowhere'"),
        ("def run(:", ", line 1", "SyntaxError: invalid syntax"),
    ],
)
def test_an_error_is_told_from_the_script_s_own_first_line(stage: Stage, script: str, first: str, last: str) -> None:
    ran = stage.run(script_py=script)
    assert ran.returncode == 1
    told = [line for line in ran.stderr.splitlines() if not line.startswith("Traceback")]
    assert told[0] == f'  File "{stage.folder}/script.py"{first}'
    assert told[-1] == last


def test_the_runner_is_written_for_python_3_9() -> None:
    import ast

    ast.parse(RUNNER.read_text(), feature_version=(3, 9))

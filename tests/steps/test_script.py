"""C14: which files `run_code` stages, and which is the entry."""

from __future__ import annotations

import pytest

from agent_env.steps.script import NoScript, Script, select_script


@pytest.mark.parametrize(
    ("names", "script_file", "entry", "skipped"),
    [
        (["a.py"], None, "a.py", ()),
        (["a.py", "data.csv", "b.txt"], None, "a.py", ("data.csv", "b.txt")),
        (["a.py", "run.py"], None, "run.py", ()),
        (["pkg/run.py", "pkg/other.py"], None, "pkg/run.py", ()),
        (["a.py", "b.py"], "b.py", "b.py", ()),
        (["x/run.py", "y/run.py"], "y/run.py", "y/run.py", ()),
        (["pkg/runner.py", "pkg/run.py"], None, "pkg/run.py", ()),
    ],
)
def test_c14_the_entry_of_a_universe(names: list[str], script_file: str | None, entry: str, skipped: tuple[str, ...]) -> None:
    chosen = select_script(names, universe=True, script_file=script_file)
    assert isinstance(chosen, Script)
    assert (chosen.entry, chosen.skipped) == (entry, skipped)
    assert dict(chosen.files) == {name: name for name in names if name.endswith(".py")}


@pytest.mark.parametrize("name", ["script.sh", "check.py", "weird name"])
def test_c14_a_single_file_is_staged_as_script_py_whatever_its_name(name: str) -> None:
    assert select_script([name], universe=False, script_file=None) == Script("script.py", {"script.py": name})


@pytest.mark.parametrize(
    ("names", "universe", "script_file", "says"),
    [
        (["a.py"], False, "a.py", "script_file is for universes"),
        ([], True, None, "the universe is empty"),
        (["data.csv"], True, None, "no .py member: data.csv"),
        (["a.py", "b.py"], True, None, "several .py members and no run.py: a.py, b.py"),
        (["x/run.py", "y/run.py"], True, None, "several members are called run.py: x/run.py, y/run.py"),
        (["a.py"], True, "a.txt", "no .py file"),
        (["a.py"], True, "b.py", "not in the universe"),
        (["/abs/a.py"], True, None, "unsafe names: /abs/a.py"),
        (["~/a.py"], True, None, "unsafe names"),
        (["a/../../b.py"], True, None, "unsafe names"),
        (["runner.py", "run.py"], True, None, "kept for the runner: runner.py"),
        (["input.json", "run.py"], True, None, "kept for the runner: input.json"),
        (["output.json", "run.py"], True, None, "kept for the runner: output.json"),
        ([f"m{i:02}.py" for i in range(14)], True, None, "and 4 more"),
    ],
)
def test_c14_what_can_not_be_staged_is_said_with_the_candidates(
    names: list[str], universe: bool, script_file: str | None, says: str
) -> None:
    chosen = select_script(names, universe=universe, script_file=script_file)
    assert isinstance(chosen, NoScript)
    assert says in chosen.reason

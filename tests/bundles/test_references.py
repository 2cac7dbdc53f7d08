"""Names mean an output of the task, an entry of the bundle, or a document of the stores, in this order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agent_env.bundles.parse import parse_bundle
from agent_env.bundles.plan import plan_folder
from agent_env.bundles.references import ResolvedBundle, Unknown
from agent_env.bundles.resolve import resolve_bundle
from agent_env.engine.options import Stores
from agent_env.errors import Problem, ProblemsError
from agent_env.steps.contract import EntityRef
from tests.bundles.building import BOX, CHECK, GOOD, LOAD, write

DECLARED: dict[str, tuple[EntityRef, ...] | None] = {
    "make": (EntityRef("artifact", "output_id", role="output", artifact_type="cli"),),
    "use": (
        EntityRef("artifact", "skills[].id", version_field="version"),
        EntityRef("artifact", "cli_id", artifact_type="cli", version_field="cli_version"),
    ),
    "opaque": None,
}


def resolved(root: Path, steps: list[dict[str, Any]], **files: str) -> tuple[ResolvedBundle, list[Problem]]:
    write(root, {"tasks/t.json": steps, "artifacts/inputs/x": "1", **files})
    return resolve_bundle(parse_bundle(root, id_root="@local/b"), lambda type: DECLARED.get(type, Unknown.TYPE))


def steps_of(bundle: ResolvedBundle) -> list[dict[str, Any]]:
    return [step for entry in bundle.entries if entry.task for step in entry.task.steps]


def test_an_output_of_an_earlier_step_comes_first(tmp_path: Path) -> None:
    steps = [{"id": "a", "type": "make", "output_id": "inputs"}, {"id": "b", "type": "use", "cli_id": "inputs"}]
    bundle, problems = resolved(tmp_path / "b", steps)
    assert not problems
    assert [step.get("output_id") or step.get("cli_id") for step in steps_of(bundle)] == ["@local/b/t/inputs"] * 2


def test_an_entry_of_the_bundle_comes_next_and_anything_else_is_left_to_the_stores(tmp_path: Path) -> None:
    steps = [{"id": "b", "type": "use", "skills": [{"id": "inputs"}, {"id": "@local/b/inputs"}, {"id": "shared", "version": 2}]}]
    bundle, problems = resolved(tmp_path / "b", steps)
    assert not problems
    assert steps_of(bundle)[0]["skills"] == [{"id": "@local/b/inputs"}, {"id": "@local/b/inputs"}, {"id": "shared", "version": 2}]
    references = next(entry for entry in bundle.entries if entry.task).references
    assert [(reference.id, reference.version, reference.entry is None) for reference in references][-1] == ("shared", 2, True)


@pytest.mark.parametrize(
    ("steps", "path", "words"),
    [
        (
            [{"id": "a", "type": "make", "output_id": "o"}, {"id": "b", "type": "use", "cli_id": "o", "depends_on": []}],
            "$[1].cli_id",
            "wait for 'a'",
        ),
        (
            [{"id": "a", "type": "make", "output_id": "o"}, {"id": "b", "type": "use", "cli_id": "o", "cli_version": 1}],
            "$[1].cli_id",
            "no fixed version",
        ),
        ([{"id": "a", "type": "make", "output_id": "o"}, {"id": "b", "type": "make", "output_id": "o"}], "$[1].output_id", "makes too"),
        ([{"id": "a", "type": "make", "output_id": "@local/b/inputs"}], "$[0].output_id", "artifacts/inputs makes too"),
        ([{"id": "a", "type": "use", "cli_id": "inputs"}], "$[0].cli_id", "of type 'file'; 'cli' is needed"),
        ([{"id": "a", "type": "opaque", "deep": {"list": ["inputs"]}}], "$[0].deep.list[0]", "don't declare"),
    ],
)
def test_what_is_wrong_with_a_reference_is_told_where_it_stands(steps: list[dict[str, Any]], path: str, words: str, tmp_path: Path) -> None:
    _, problems = resolved(tmp_path / "b", steps)
    assert [problem.path for problem in problems] == [path]
    assert words in problems[0].message


def test_an_opaque_step_may_name_steps_as_it_likes(tmp_path: Path) -> None:
    _, problems = resolved(tmp_path / "b", [{"id": "inputs", "type": "opaque", "other_step_id": "inputs", "depends_on": []}])
    assert not problems


def test_a_stray_file_is_not_taken_for_an_artifact(tmp_path: Path) -> None:
    _, problems = resolved(tmp_path / "b", [{"id": "a", "type": "use", "cli_id": "stray.txt"}], **{"artifacts/stray.txt": "x"})
    assert "stray file" in problems[0].message


def test_documents_of_the_stores_are_verified_and_remembered(tmp_path: Path, stores: Stores, home: Path) -> None:
    stores.artifacts.put_file("shared", b"x", filename="one.txt")
    root = write(tmp_path / "b", {"tasks/t.json": [BOX, {**LOAD, "artifact_id": "shared"}, CHECK]})
    assert plan_folder(root, stores).pinned == {("artifacts", "shared"): 1}
    write(root, {"tasks/t.json": [BOX, {**LOAD, "artifact_id": "shared", "artifact_version": 2}, CHECK]})
    with pytest.raises(ProblemsError, match="'shared' version 2"):
        plan_folder(root, stores)


def test_an_eval_may_name_a_stored_task_pinned(tmp_path: Path, stores: Stores, home: Path) -> None:
    stores.documents.put("tasks", "team/x", "task", {"steps": [BOX]})
    stores.documents.put("tasks", "team/x", "task", {"steps": [BOX, {**BOX, "id": "two", "sandbox_name": "two"}]})
    root = write(tmp_path / "b", {**GOOD, "evals/e.toml": 'tasks = ["good", { task = "team/x", version = 1 }]'})
    plan = plan_folder(root, stores)
    assert [(task.name, task.version, len(task.plan.steps)) for task in plan.tasks] == [("tasks/good.json", None, 3), ("team/x", 1, 1)]
    assert [evaluation.tasks for evaluation in plan.evals] == [(0, 1)]


def test_no_public_name_of_the_room_is_hidden_by_a_module() -> None:
    import importlib
    import pkgutil

    import agent_env.bundles as room

    modules = {module.name for module in pkgutil.iter_modules(room.__path__)}
    for module in modules:
        importlib.import_module(f"agent_env.bundles.{module}")
    assert not modules & set(dir(room))

"""Tasks and evals that name what an installed bundle brings: by id, or by alias."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from agent_env.bundles.installed import installed_bundles
from agent_env.bundles.materialising import materialise
from agent_env.bundles.model import BundleKind
from agent_env.bundles.plan import plan_folder
from agent_env.bundles.planned import BundlePlan
from agent_env.bundles.work import plan_work
from agent_env.engine.options import Stores
from agent_env.errors import ProblemsError
from tests.bundles.building import BOX, CHECK, LOAD, Content, write

THEIRS = "@local/more-words/words"


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a bundle `words` that a distribution `More.Words` installs."""
    site = tmp_path / "site"
    entry_points = {"more_words-1.dist-info/entry_points.txt": "[agent_env.bundles]\nwords = more_words\n"}
    files: dict[str, Content] = {
        "more_words-1.dist-info/METADATA": "Metadata-Version: 2.1\nName: More.Words\nVersion: 1\n",
        **entry_points,
        "more_words/__init__.py": "",
        "more_words/words/artifacts/list/one.txt": "1",
        "more_words/words/artifacts/other/one.txt": "2",
        "more_words/words/tasks/count.json": [BOX, {**LOAD, "artifact_id": "list"}, CHECK],
        "more_words/words/envs/mail/env.toml": 'image = { ref = "docker.io/library/x:1" }',
        "more_words/words/aliases.toml": '[envs]\nmail = ["post"]',
    }
    write(site, files)
    monkeypatch.syspath_prepend(str(site))
    assert "words" in {bundle.name for bundle in installed_bundles()}, sys.path
    return site / "more_words/words"


def plan(root: Path, stores: Stores, files: dict[str, Content]) -> BundlePlan:
    return plan_folder(write(root / "b", files), stores)


def problems(root: Path, stores: Stores, files: dict[str, Content]) -> list[str]:
    with pytest.raises(ProblemsError) as error:
        plan(root, stores, files)
    return [str(problem) for problem in error.value.problems]


def test_an_artifact_of_an_installed_bundle_comes_into_the_plan_under_its_own_id(words: Path, tmp_path: Path, stores: Stores) -> None:
    made = plan(tmp_path, stores, {"tasks/t.json": [BOX, {**LOAD, "artifact_id": f"{THEIRS}/list"}, CHECK]})
    first = made.writes[0]
    assert (first.entry.path, first.entry.id, first.bundle_id) == ("more-words/words:artifacts/list", f"{THEIRS}/list", THEIRS)
    assert len(made.writes) == 2
    written = materialise(made, stores)
    assert stores.artifacts.get(f"{THEIRS}/list").version == 1
    assert [entry.changed for entry in written.entries] == [True, True]
    again = materialise(plan(tmp_path, stores, {}), stores)
    assert [entry.changed for entry in again.entries] == [False, False]
    key = plan_work(again)[0].key
    (words / "artifacts/list/one.txt").write_text("changed")
    assert plan_work(materialise(plan(tmp_path, stores, {}), stores))[0].key != key


def test_a_task_of_an_installed_bundle_brings_all_that_it_needs(words: Path, tmp_path: Path, stores: Stores) -> None:
    made = plan(
        tmp_path, stores, {"tasks/t.json": [BOX, {**CHECK, "verifier_id": "c"}], "evals/e.toml": f'tasks = ["t", "{THEIRS}/count"]'}
    )
    assert [task.name for task in made.tasks] == ["tasks/t.json", "more-words/words:tasks/count.json"]
    assert {write.entry.id for write in made.writes} >= {f"{THEIRS}/count", f"{THEIRS}/list"}
    assert f"{THEIRS}/other" not in {write.entry.id for write in made.writes}
    assert made.evals[0].tasks == (0, 1)


def test_a_version_a_wrong_name_and_a_broken_neighbour_are_told_at_the_reference(words: Path, tmp_path: Path, stores: Stores) -> None:
    load = {**LOAD, "artifact_id": f"{THEIRS}/list", "artifact_version": 2}
    near = {**LOAD, "id": "load2", "artifact_id": f"{THEIRS}/lits"}
    said = problems(tmp_path, stores, {"tasks/t.json": [BOX, load, near, CHECK]})
    assert any("$[1].artifact_id: " in text and "defined in the installed bundle 'more-words/words'" in text for text in said)
    assert any("$[2].artifact_id: " in text and f"did you mean '{THEIRS}/list'" in text for text in said)
    assert len(said) == 2
    (words / "tasks/broken.json").write_text("[{")
    said = problems(tmp_path, stores, {"tasks/t.json": [BOX, {**load, "artifact_version": None}, CHECK]})
    assert any(text.startswith("more-words/words:tasks/broken.json: is not valid JSON") for text in said)


def test_an_alias_means_the_installed_environment_unless_the_stores_have_that_id(words: Path, tmp_path: Path, stores: Stores) -> None:
    step = {"id": "run", "type": "run_code", "env_id": "post", "script_artifact_id": f"{THEIRS}/list"}
    said = problems(tmp_path, stores, {"tasks/t.json": [BOX, step]})
    assert any("more-words/words:envs/mail" in text for text in said), said
    assert not any("no env 'post'" in text for text in said)
    stores.documents.put("envs", "post", "mcp_server", {"environment_name": "x"})
    said = problems(tmp_path, stores, {"tasks/t.json": [BOX, step]})
    assert not any("envs/mail" in text for text in said), said


def test_without_a_reference_that_leads_there_no_installed_bundle_is_read(tmp_path: Path, stores: Stores) -> None:
    made = plan(tmp_path, stores, {"artifacts/inputs/one.txt": "1", "tasks/t.json": [BOX, LOAD, CHECK]})
    assert [write.entry.kind for write in made.writes] == [BundleKind.ARTIFACT, BundleKind.TASK]

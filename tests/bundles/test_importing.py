"""Stored tasks become folders that run, without what belongs to whoever ran them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agent_env.bundles import import_task, new_bundle, plan_folder
from agent_env.engine.options import Stores
from agent_env.errors import NotFoundError, ProblemsError, UsageError
from tests.bundles.building import write

KEY = "sk-" + "a1B2" * 8
STORED: list[dict[str, Any]] = [
    {
        "id": "box", "type": "deploy_sandbox", "version": 3, "fail_task_on_error": True, "sandbox_name": "box",
        "sandbox_mode": "vm",
        "image": None, "port": None, "env_vars": {"LEVEL": "1", "SERVICE_API_KEY": "literal", "HOST_KEY": "env:HOST_KEY"},
        "sandbox_type": "local",
        "metadata": {"attribution": {"team": "x"}, "note": "kept"}, "network_policy": None,
    },
    {"id": "load", "type": "load_artifact", "version": 1, "sandbox_name": "box", "artifact_id": "shared/in puts", "artifact_version": 1,
     "destination_path": "/app", "depends_on": [{"task_step_id": "box"}], "artifacts": None},
    {"id": "note", "type": "load_artifact", "sandbox_name": "box", "artifact_id": "note", "destination_path": "/app"},
    {"id": "check", "type": "verify_sandbox", "sandbox_name": "box", "verifier_id": "check",
     "criteria": [{"type": "bash_cmd_succeeds", "criterion": "asks", "bash_cmd": f"curl https://me:pw@host/ -H 'Key: {KEY}'"}]},
]  # fmt: skip


@pytest.fixture
def stored(stores: Stores, tmp_path: Path) -> Stores:
    source = write(tmp_path / "source", {"a.txt": "a\n", "b/run.sh": "#!/bin/sh\n", "Dockerfile": "FROM scratch\n", ".DS_Store": "x"})
    (source / "b/run.sh").chmod(0o755)
    files = {name: source / name for name in ("a.txt", "b/run.sh", "Dockerfile", ".DS_Store")}
    stores.artifacts.put_universe("shared/in puts", files)
    stores.artifacts.put_universe("shared/in puts", {"later.txt": b"later"})
    stores.artifacts.put_file("note", f"token {KEY}".encode(), filename="note.txt", description="A note")
    stores.documents.put("tasks", "team/demo", "task", {"steps": STORED})
    stores.documents.put("evals", "team/all", "eval", {"tasks": [{"task_id": "team/demo", "task_version": None}]})
    return stores


def test_a_stored_task_becomes_a_bundle_that_can_be_planned(stored: Stores, tmp_path: Path, home: Path) -> None:
    done = import_task(tmp_path / "out", stored, task_id="team/demo", imported_at="2026-01-02")
    found = sorted(str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*") if path.is_file())
    assert found == [
        "README.md",
        "artifacts/in-puts/Dockerfile",
        "artifacts/in-puts/a.txt",
        "artifacts/in-puts/artifact.toml",
        "artifacts/in-puts/b/run.sh",
        "artifacts/note/artifact.toml",
        "artifacts/note/note.txt",
        "provenance.json",
        "tasks/demo.json",
    ]
    assert sorted(done.files) == found
    assert (tmp_path / "out/artifacts/in-puts/b/run.sh").stat().st_mode & 0o111
    plan = plan_folder(tmp_path / "out", stored)
    assert [write.entry.type for write in plan.writes] == ["file_artifact_universe", "file", "task"]
    assert json.loads((tmp_path / "out/provenance.json").read_text())["from"] == {"task": "team/demo", "version": None}


def test_steps_are_cleaned_of_nulls_personal_fields_and_secrets(stored: Stores, tmp_path: Path, home: Path) -> None:
    done = import_task(tmp_path / "out", stored, task_id="team/demo")
    text = (tmp_path / "out/tasks/demo.json").read_text()
    box, load, note, check = json.loads(text)
    assert box == {
        "id": "box",
        "type": "deploy_sandbox",
        "fail_task_on_error": True,
        "sandbox_name": "box",
        "sandbox_mode": "vm",
        "env_vars": {"LEVEL": "1", "HOST_KEY": "env:HOST_KEY"},
        "metadata": {"note": "kept"},
    }
    assert load == {
        "id": "load", "type": "load_artifact", "sandbox_name": "box", "artifact_id": "in-puts", "destination_path": "/app",
        "depends_on": ["box"],
    }  # fmt: skip
    assert note["artifact_id"] == "note"
    assert check["criteria"][0]["bash_cmd"] == "curl https://***@host/ -H 'Key: ***'"
    notes = "\n".join(done.notes())
    for said in (
        "sandbox_type",
        "metadata.attribution",
        "env_vars.SERVICE_API_KEY was dropped",
        "bash_cmd was masked",
        ".DS_Store",
        "note.txt holds what looks like a key",
        "floating",
    ):
        assert said in notes
    assert KEY not in text


def test_personal_fields_are_kept_on_request(stored: Stores, tmp_path: Path, home: Path) -> None:
    import_task(tmp_path / "out", stored, task_id="team/demo", keep_user_fields=True)
    assert json.loads((tmp_path / "out/tasks/demo.json").read_text())[0]["sandbox_type"] == "local"


def test_an_eval_is_imported_with_its_tasks(stored: Stores, tmp_path: Path, home: Path) -> None:
    import_task(tmp_path / "out", stored, eval_id="team/all")
    assert (tmp_path / "out/evals/all.toml").read_text() == 'tasks = ["demo"]\n'
    assert [task.name for task in plan_folder(tmp_path / "out", stored).tasks] == ["tasks/demo.json"]


def test_what_a_folder_cannot_hold_stays_in_the_store_pinned(stored: Stores, tmp_path: Path, home: Path) -> None:
    from agent_env.documents.artifact_kinds import DockerImageArtifact

    stored.artifacts.put_image(DockerImageArtifact(id="image", image_name="docker.io/library/x:1", build_context_object_url=None))
    steps = [STORED[0], {**STORED[2], "artifact_id": "image", "artifact_version": 1}]
    stored.documents.put("tasks", "imaged", "task", {"steps": steps})
    with pytest.raises(ProblemsError, match="nothing was written"):
        import_task(tmp_path / "out", stored, task_id="imaged")
    assert not (tmp_path / "out").exists()
    assert [path.name for path in tmp_path.iterdir() if "import" in path.name] == []


def test_a_destination_in_use_and_an_unknown_task_are_told(stored: Stores, tmp_path: Path, home: Path) -> None:
    write(tmp_path / "used", {"x": "1"})
    with pytest.raises(UsageError, match="not an empty folder"):
        import_task(tmp_path / "used", stored, task_id="team/demo")
    with pytest.raises(UsageError, match="does not exist"):
        import_task(tmp_path / "no/where", stored, task_id="team/demo")
    with pytest.raises(NotFoundError, match="version 9"):
        import_task(tmp_path / "out", stored, task_id="team/demo", version=9)
    (tmp_path / "empty").mkdir()
    import_task(tmp_path / "empty", stored, task_id="team/demo")


def test_a_new_bundle_has_no_problems_and_overwrites_nothing(stores: Stores, tmp_path: Path, home: Path) -> None:
    files = new_bundle(tmp_path / "my bundle!")
    assert [path.name for path in files][:3] == ["README.md", "bundle.toml", "first.json"]
    plan = plan_folder(tmp_path / "my bundle!", stores, strict=True)
    assert plan.bundle.id_root == "@local/my-bundle"
    with pytest.raises(UsageError, match="not empty"):
        new_bundle(tmp_path / "my bundle!")
    with pytest.raises(UsageError, match="an agent can't be called '1'"):
        new_bundle(tmp_path / "other", agent="1")
    with pytest.raises(UsageError, match="with an environment or with an agent"):
        new_bundle(tmp_path / "other", agent="a", env="b")
    assert not (tmp_path / "other").exists()


def load_of(stores: Stores, id: str) -> None:
    steps = [{"id": "box", "type": "deploy_sandbox", "sandbox_name": "box", "sandbox_mode": "vm"}]
    steps += [{"id": "load", "type": "load_artifact", "sandbox_name": "box", "artifact_id": id, "destination_path": "/app"}]
    stores.documents.put("tasks", "hostile", "task", {"steps": steps})


@pytest.mark.parametrize("name", ["../out.txt", "a/../../../out.txt", "/tmp/out.txt", "..", "a\0b", "a//b", "./a", "x" * 300])
def test_fi07_a_stored_name_that_leads_out_is_refused_and_nothing_is_written(stores: Stores, tmp_path: Path, home: Path, name: str) -> None:
    """Stores may be shared: whoever wrote a document must not choose where its importer's files go."""
    stores.artifacts.put_universe("good", {"a.txt": b"1"})
    facts = stores.artifacts.get("good").body["files"]["a.txt"]
    stores.documents.put("artifacts", "evil", "file_artifact_universe", {"files": {name: facts, "fine": facts, f"{name}/../more": facts}})
    load_of(stores, "evil")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ProblemsError) as error:
        import_task(tmp_path / "into", stores, task_id="hostile")
    assert len(error.value.problems) == 2
    assert all(problem.file == "evil" for problem in error.value.problems)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("name", ["../out", "a/b", "/tmp/out", "..", "a\0b"])
def test_fi07_a_stored_skill_whose_name_leads_out_is_refused(stores: Stores, tmp_path: Path, home: Path, name: str) -> None:
    skill = b"---\nname: good\ndescription: x\n---\n"
    stores.artifacts.put_skill("good", {"SKILL.md": skill})
    body = stores.artifacts.get("good").body
    stores.documents.put(
        "artifacts", "evil", "skill", {**{k: v for k, v in body.items() if k not in {"id", "version"}}, "skill_name": name}
    )
    load_of(stores, "evil")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ProblemsError, match="can't be a folder"):
        import_task(tmp_path / "into", stores, task_id="hostile")
    assert sorted(tmp_path.rglob("*")) == before

"""Images of bundles: stored as what they are built from, or as a name in a registry that is pinned when it is written."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from agent_env.artifacts.image_artifacts import image_source, put_reference
from agent_env.bundles import import_task, materialise, plan_folder
from agent_env.bundles.materialising import Written
from agent_env.defaults import DEFAULT_LIMITS
from agent_env.engine.options import Stores
from agent_env.errors import ProblemsError
from agent_env.images import BuildRequest, ImageReference, KnownKeyring
from agent_env.images.presence import pinned_now
from tests.bundles.building import BOX, write

RUN = {"id": "web", "type": "run_docker_container", "sandbox_name": "box", "docker_context_artifact_id": "server"}
FILES = {
    "tasks/t.json": [BOX, RUN],
    "artifacts/server/Dockerfile": "FROM busybox\nCOPY app /app\n",
    "artifacts/server/app/run.sh": "#!/bin/sh\n",
    "artifacts/server/.dockerignore": "notes\n",
    "artifacts/server/notes/a.txt": "for people\n",
    "artifacts/server/artifact.toml": 'description = "A server"\n',
}
PINNED = f"registry.example/team/x:1@sha256:{'0' * 64}"


def put(root: Path, stores: Stores, **options: Any) -> Written:
    return materialise(plan_folder(root, stores), stores, **options)


def lines(written: Written) -> dict[str, str]:
    return {entry.name: str(entry) for entry in written.entries}


def image_of(root: Path, stores: Stores) -> dict[str, Any]:
    (entry,) = [each for each in plan_folder(root, stores, everything=True).writes if each.entry.type == "docker_image"]
    return stores.artifacts.get(entry.entry.id).body


def test_an_image_with_a_dockerfile_is_stored_as_its_context(tmp_path: Path, stores: Stores, home: Path) -> None:
    root = write(tmp_path / "bundle", FILES)
    assert lines(put(root, stores))["artifacts/server"] == "artifacts/server: v1 (new)"
    body = image_of(root, stores)
    assert body["description"] == "A server"
    assert body["image_name"].startswith("local/")
    assert body["image_name"].endswith(f":{body['source_digest'][:16]}")
    document = stores.artifacts.get(body["id"])
    (tmp_path / "out").mkdir()
    built = image_source(stores.artifacts, document, tmp_path / "out")
    assert isinstance(built, BuildRequest)
    assert built.context.source_digest(None) == body["source_digest"]
    assert [entry.name for entry in built.context.entries] == [".dockerignore", "Dockerfile", "app/run.sh"]
    context = stores.objects.path(body["build_context_object_url"])
    context.unlink()
    assert lines(put(root, stores))["artifacts/server"] == "artifacts/server: v1, unchanged"
    assert context.exists()  # what the store had lost is here still


def test_what_is_built_is_the_same_wherever_the_folder_lies(tmp_path: Path, stores: Stores, home: Path) -> None:
    here, there = write(tmp_path / "here", FILES), write(tmp_path / "there", FILES)
    (there / "artifacts/server/Dockerfile").touch()
    put(here, stores)
    put(there, stores)
    first, second = image_of(here, stores), image_of(there, stores)
    assert first["source_digest"] == second["source_digest"]
    assert first["build_context_object_url"] == second["build_context_object_url"]


def test_only_what_the_image_is_built_from_makes_a_new_version(tmp_path: Path, stores: Stores, home: Path) -> None:
    root = write(tmp_path / "bundle", FILES)
    put(root, stores)
    write(root, {"artifacts/server/notes/a.txt": "more\n"})
    assert lines(put(root, stores))["artifacts/server"] == "artifacts/server: v1, unchanged"
    write(root, {"artifacts/server/app/run.sh": "#!/bin/sh\ntrue\n"})
    assert lines(put(root, stores))["artifacts/server"] == "artifacts/server: v2 (changed app/run.sh)"
    (root / "artifacts/server/app/run.sh").chmod(0o755)
    assert lines(put(root, stores))["artifacts/server"] == "artifacts/server: v3 (changed app/run.sh)"
    write(root, {"artifacts/server/artifact.toml": 'description = "Another"\n'})
    assert lines(put(root, stores))["artifacts/server"] == "artifacts/server: v4 (configuration changed)"


def test_a_dry_run_predicts_it_and_stores_nothing(tmp_path: Path, stores: Stores, home: Path) -> None:
    root = write(tmp_path / "bundle", FILES)
    assert lines(put(root, stores, dry_run=True))["artifacts/server"] == "artifacts/server: v1 (new)"
    assert stores.documents.count("artifacts") == 0
    assert not (tmp_path / "memory/objects").exists()


def test_what_can_be_no_context_is_told_with_its_file(tmp_path: Path, stores: Stores, home: Path) -> None:
    root = write(tmp_path / "bundle", {**FILES, "artifacts/server/.dockerignore": "a[\n", "tasks/u.json": [{**BOX, "type": "deploy_box"}]})
    with pytest.raises(ProblemsError) as caught:
        plan_folder(root, stores, everything=True)
    files = [problem.file for problem in caught.value.problems]
    assert "artifacts/server/.dockerignore:1" in files
    assert "tasks/u.json" in files


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"artifacts/server/artifact.toml": 'type = "docker_image"\nref = "registry.example/UP:1"\n'}, "capital"),
        ({"artifacts/server/artifact.toml": 'ref = "registry.example/x:1"\n'}, "exactly one of them"),
        ({"artifacts/server/artifact.toml": 'type = "docker_image"\n'}, "exactly one of them"),
    ],
)
def test_a_name_and_a_dockerfile_exclude_each_other_and_names_are_checked(
    files: dict[str, str], words: str, tmp_path: Path, stores: Stores, home: Path
) -> None:
    kept = {name: text for name, text in FILES.items() if "server" not in name or ('ref = "registry.example/x' in str(files))}
    with pytest.raises(ProblemsError, match=words):
        plan_folder(write(tmp_path / "bundle", {**kept, **files}), stores)


def test_a_name_is_pinned_when_it_is_written_and_not_again(tmp_path: Path, stores: Stores, home: Path) -> None:
    toml = 'type = "docker_image"\nref = "registry.example/team/x:1"\n'
    root = write(tmp_path / "bundle", {"tasks/t.json": [BOX, RUN], "artifacts/server/artifact.toml": toml})
    put(root, stores, pin=lambda name: PINNED)
    assert image_of(root, stores)["image_name"] == PINNED
    assert lines(put(root, stores, pin=lambda name: "registry.example/other:2"))["artifacts/server"] == "artifacts/server: v1, unchanged"
    document = stores.artifacts.get(image_of(root, stores)["id"])
    assert image_source(stores.artifacts, document, tmp_path) == PINNED


def test_a_name_whose_registry_is_not_reached_stays_as_it_is() -> None:
    reference = ImageReference.parse("127.0.0.1:1/x:1")
    assert asyncio.run(pinned_now(reference, KnownKeyring({}), limits=DEFAULT_LIMITS)) == reference


def test_a_name_without_registry_can_not_be_stored(stores: Stores) -> None:
    with pytest.raises(ProblemsError, match="names no registry"):
        put_reference(stores.artifacts, "x", ImageReference.parse("busybox:1"))


def test_a_stored_image_becomes_the_folder_that_it_was(tmp_path: Path, stores: Stores, home: Path) -> None:
    first = write(tmp_path / "first", {**FILES, "artifacts/server/link": "->app/run.sh"})
    put(first, stores)
    task = next(write for write in plan_folder(first, stores).writes if write.entry.kind == "task").entry.id
    done = import_task(tmp_path / "second", stores, task_id=task, imported_at="2026-01-02")
    assert done.still_stored == []
    there = tmp_path / "second/artifacts/server"
    assert (there / "link").is_symlink()
    put(tmp_path / "second", stores)
    assert image_of(tmp_path / "second", stores)["source_digest"] == image_of(first, stores)["source_digest"]


def test_a_stored_name_becomes_a_folder_with_that_name(tmp_path: Path, stores: Stores, home: Path) -> None:
    put_reference(stores.artifacts, "team/server", ImageReference.parse(PINNED), description="Ours")
    stores.documents.put("tasks", "team/t", "task", {"steps": [BOX, {**RUN, "docker_context_artifact_id": "team/server"}]})
    import_task(tmp_path / "out", stores, task_id="team/t", imported_at="2026-01-02")
    assert f'ref = "{PINNED}"' in (tmp_path / "out/artifacts/server/artifact.toml").read_text()

"""Only what changed is written, with its reasons; a moved folder keeps its history; a cut at any moment loses nothing."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from agent_env.bundles import materialise, plan_folder
from agent_env.bundles.materialising import Written
from agent_env.engine.options import Stores
from agent_env.stores import Ledger
from tests.bundles.building import BOX, CHECK, GOOD, LOAD, memory, write


def put(root: Path, stores: Stores, *, dry_run: bool = False) -> Written:
    return materialise(plan_folder(root, stores), stores, dry_run=dry_run)


def lines(written: Written) -> dict[str, str]:
    return {entry.name: str(entry) for entry in written.entries}


def test_a_second_write_of_the_same_bundle_writes_nothing(tmp_path: Path, stores: Stores, home: Path) -> None:
    root = write(tmp_path / "bundle", GOOD)
    assert lines(put(root, stores)) == {"artifacts/inputs": "artifacts/inputs: v1 (new)", "tasks/good.json": "tasks/good.json: v1 (new)"}
    assert [entry.changed for entry in put(root, stores).entries] == [False, False]
    assert stores.documents.versions("tasks", put(root, stores).entries[-1].id) == [1]


def test_a_change_is_written_with_its_reason_and_nothing_else_is(tmp_path: Path, stores: Stores, home: Path) -> None:
    root = write(tmp_path / "bundle", GOOD)
    put(root, stores)
    write(root, {"artifacts/inputs/one.txt": "changed", "artifacts/inputs/three.txt": "3"})
    (root / "artifacts/inputs/two.txt").unlink()
    said = lines(put(root, stores))
    assert said["artifacts/inputs"] == "artifacts/inputs: v2 (added three.txt; removed two.txt; changed one.txt)"
    assert said["tasks/good.json"] == "tasks/good.json: v1, unchanged"
    write(root, {"tasks/good.json": [BOX, LOAD, {**CHECK, "base_dir": "/app"}]})
    assert lines(put(root, stores))["tasks/good.json"] == "tasks/good.json: v2 (steps changed)"


def test_an_executable_bit_is_a_change(tmp_path: Path, stores: Stores, home: Path) -> None:
    root = write(tmp_path / "bundle", GOOD)
    put(root, stores)
    (root / "artifacts/inputs/one.txt").chmod(0o755)
    assert lines(put(root, stores))["artifacts/inputs"] == "artifacts/inputs: v2 (changed one.txt)"


def test_a_dry_run_predicts_the_versions_and_writes_nothing(tmp_path: Path, stores: Stores, home: Path) -> None:
    root = write(tmp_path / "bundle", GOOD)
    predicted = lines(put(root, stores, dry_run=True))
    assert stores.documents.count("tasks") == stores.documents.count("artifacts") == 0
    assert not (tmp_path / "memory/objects").exists()
    assert lines(put(root, stores)) == predicted
    write(root, {"artifacts/inputs/one.txt": "changed"})
    predicted = lines(put(root, stores, dry_run=True))
    assert predicted["artifacts/inputs"].startswith("artifacts/inputs: v2 (changed")
    assert lines(put(root, stores)) == predicted


def test_a_moved_folder_with_a_name_keeps_its_history(tmp_path: Path, stores: Stores, home: Path) -> None:
    root = write(tmp_path / "here", {**GOOD, "bundle.toml": 'name = "words"'})
    first = put(root, stores)
    assert {entry.id for entry in first.entries} == {"@local/words/inputs", "@local/words/good"}
    moved = tmp_path / "there" / "else"
    moved.parent.mkdir()
    shutil.move(root, moved)
    assert not any(entry.changed for entry in put(moved, stores).entries)
    cloned = shutil.copytree(moved, tmp_path / "clone")
    write(cloned, {"artifacts/inputs/one.txt": "new"})
    assert lines(put(cloned, stores))["artifacts/inputs"] == "artifacts/inputs: v2 (changed one.txt)"


def test_without_a_name_ids_come_from_the_path(tmp_path: Path, stores: Stores, home: Path) -> None:
    root = write(home / "work" / "bundle", GOOD)
    assert {entry.id for entry in put(root, stores).entries} == {"@local/~/work/bundle/inputs", "@local/~/work/bundle/good"}


def test_a_document_that_was_stored_before_its_row_was_finished_is_adopted(tmp_path: Path, stores: Stores, home: Path) -> None:
    root = write(tmp_path / "bundle", GOOD)
    written = put(root, stores)
    ledger = Ledger(stores.db)
    for entry, collection in zip(written.entries, ("artifacts", "tasks"), strict=True):
        row = ledger.get(collection, entry.id)
        assert row is not None
        ledger.record(replace(row, status="pending"))
    assert not any(entry.changed for entry in put(root, stores).entries)
    assert {row.status for row in ledger.of_bundle(written.plan.bundle.id_root)} == {"done"}


def test_a_pending_row_without_its_document_is_written_again(tmp_path: Path, stores: Stores, home: Path) -> None:
    root = write(tmp_path / "bundle", GOOD)
    written = put(root, stores)
    write(root, {"artifacts/inputs/one.txt": "changed"})
    ledger = Ledger(stores.db)
    row = ledger.get("artifacts", written.entries[0].id)
    assert row is not None
    ledger.record(replace(row, status="pending", version=2))
    assert put(root, stores).entries[0].version == 2
    assert stores.artifacts.read(stores.artifacts.files(row.id)["one.txt"]) == b"changed"


def test_somebody_elses_version_is_not_taken_for_the_bundles_own(tmp_path: Path, stores: Stores, home: Path) -> None:
    root = write(tmp_path / "bundle", GOOD)
    written = put(root, stores)
    stores.artifacts.put_universe(written.entries[0].id, {"x": b"x"})
    assert lines(put(root, stores))["artifacts/inputs"] == "artifacts/inputs: v3 (v2 was written since)"


def test_every_kind_of_artifact_is_written_and_read_back(tmp_path: Path, stores: Stores, home: Path) -> None:
    files = {
        **GOOD,
        "artifacts/note/note.md": "text",
        "artifacts/note/artifact.toml": 'description = "A note"',
        "artifacts/tool/artifact.toml": 'type = "cli"\ncommand_name = "tool"\nentrypoint = "bin/tool"',
        "artifacts/tool/bin/tool": "#!/bin/sh\n",
        "artifacts/seed/artifact.toml": 'type = "environment"\nenvironment_name = "mail"',
        "artifacts/seed/data.json": "{}",
        "artifacts/same/artifact.toml": 'type = "environment"\nenvironment_name = "mail"\nfile = "note"',
        "skills/tidy/SKILL.md": "---\nname: tidy\ndescription: Tidies.\n---\nText.\n",
    }
    loads = [{**LOAD, "id": name, "artifact_id": name, "destination_path": f"/app/{name}"} for name in ("note", "inputs")]
    files["tasks/good.json"] = [BOX, *loads, {**CHECK, "id": "last"}]
    root = write(tmp_path / "bundle", files)
    plan = plan_folder(root, stores)
    everything = plan_folder(root, stores)
    from agent_env.bundles.plan import declared_refs
    from agent_env.bundles.planned import Write
    from agent_env.bundles.resolve import resolve_bundle

    resolved, problems = resolve_bundle(plan.bundle, declared_refs)
    assert not problems
    order = sorted(resolved.entries, key=lambda entry: (bool(entry.references), entry.entry.sort_key))
    everything = replace(plan, writes=tuple(Write(entry, plan.bundle.id_root) for entry in order))
    written = materialise(everything, stores)
    types = {entry.name: stores.artifacts.get(entry.id).type for entry in written.entries if not entry.name.startswith("tasks")}
    assert types == {
        "artifacts/inputs": "file_artifact_universe",
        "artifacts/note": "file",
        "artifacts/tool": "cli",
        "artifacts/seed": "environment",
        "artifacts/same": "environment",
        "skills/tidy": "skill",
    }
    assert not any(entry.changed for entry in materialise(everything, stores).entries)


@pytest.mark.parametrize("order", [("one", "two"), ("two", "one")])
def test_two_processes_that_write_the_same_bundle_make_one_version(order: tuple[str, str], tmp_path: Path, home: Path) -> None:
    import subprocess
    import sys

    root = write(tmp_path / "bundle", GOOD)
    script = (
        "import asyncio, sys\nfrom pathlib import Path\n"
        "from agent_env.bundles import materialise, plan_folder\nfrom agent_env.bundles.locks import bundle_locks\n"
        "from tests.bundles.building import memory\n"
        "async def main(root, state):\n"
        "    with memory(state) as stores:\n"
        "        plan = plan_folder(root, stores)\n"
        "        async with bundle_locks(state / 'locks', [plan.bundle.id_root]):\n"
        "            print([entry.version for entry in materialise(plan, stores).entries])\n"
        "asyncio.run(main(Path(sys.argv[1]), Path(sys.argv[2])))\n"
    )
    argv = [sys.executable, "-c", script, str(root), str(tmp_path / "memory")]
    cwd = Path(__file__).parents[2]
    running = [subprocess.Popen(argv, stdout=subprocess.PIPE, cwd=cwd) for _ in order]
    assert [process.communicate(timeout=60)[0] for process in running] == [b"[1, 1]\n"] * 2
    with memory(tmp_path / "memory") as stores:
        assert not any(entry.changed for entry in put(root, stores).entries)


def test_a_stored_file_that_was_lost_is_stored_again_from_an_unchanged_bundle(tmp_path: Path, stores: Stores, home: Path) -> None:
    root = write(tmp_path / "bundle", GOOD)
    id = put(root, stores).entries[0].id
    stored = [stores.objects.path(file.url) for file in stores.artifacts.files(id).values()]
    assert len(stored) == 2
    for path in stored:
        path.unlink()
    put(root, stores, dry_run=True)
    assert not any(path.exists() for path in stored)
    assert not any(entry.changed for entry in put(root, stores).entries)
    assert all(path.exists() for path in stored)

"""Artifacts: every type readable in the reference's shape and writable, a folder of N files one document."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent_env.artifacts import Artifacts, FileRef
from agent_env.documents.artifact import file_id
from agent_env.documents.artifact_kinds import DockerImageArtifact
from agent_env.documents.stored import Ref
from agent_env.errors import ConcurrentModificationError, NotFoundError, ProblemsError
from agent_env.stores import Database, Documents, Objects, live_objects

SKILL = b"---\nname: sort-mail\ndescription: Sorts mail.\n---\nBody\n"


def contents(artifacts: Artifacts, id: str, version: int | None = None) -> dict[str, bytes]:
    return {path: artifacts.read(ref) for path, ref in artifacts.files(id, version).items()}


def test_a_file_keeps_its_name_bytes_and_mode(artifacts: Artifacts, tmp_path: Path) -> None:
    script = tmp_path / "check.sh"
    script.write_bytes(b"#!/bin/sh\n\xff")
    script.chmod(0o755)
    stored = artifacts.put_file("check", script, description="d")
    [(name, ref)] = artifacts.files("check").items()
    assert (stored.version, name, ref.mode, ref.media_type, artifacts.read(ref)) == (
        1,
        "check.sh",
        0o755,
        "application/x-sh",
        script.read_bytes(),
    )
    assert stored.body["s3_url"] == stored.body["object_url"] == ref.url
    assert artifacts.path(ref).read_bytes() == artifacts.open(ref).read()


def test_a_folder_of_many_files_costs_one_document(artifacts: Artifacts) -> None:
    files = {f"d{i % 7}/f{i}.txt": str(i).encode() for i in range(200)}
    artifacts.put_universe("many", files)
    assert artifacts.documents.count("artifacts") == 1
    assert contents(artifacts, "many") == dict(sorted(files.items()))


def test_each_file_of_a_folder_is_also_an_artifact_as_the_reference_expects(artifacts: Artifacts) -> None:
    universe = artifacts.put_universe("u", {"a/b.txt": b"x", "c.json": b"{}"})
    refs = universe.body["file_artifact_refs"]
    assert refs["a/b.txt"] == {"id": file_id("u", "a/b.txt"), "version": 1}
    assert universe.body["file_artifact_ids"]["c.json"] == refs["c.json"]["id"]
    file = artifacts.get(**refs["a/b.txt"])
    assert (file.type, file.body["filename"], contents(artifacts, file.id)) == ("file", "b.txt", {"b.txt": b"x"})
    with pytest.raises(NotFoundError):
        artifacts.get(refs["a/b.txt"]["id"], 2)


def test_the_same_files_make_the_same_digest_in_any_order_and_another_content_another(artifacts: Artifacts) -> None:
    one = artifacts.put_universe("one", {"a": b"1", "b": b"2"})
    two = artifacts.put_universe("two", {"b": b"2", "a": b"1"})
    other = artifacts.put_universe("one", {"a": b"1", "b": b"3"})
    assert one.digest == two.digest != other.digest
    assert (one.version, other.version) == (1, 2)
    assert contents(artifacts, "one", 1)["b"] == b"2"


def test_im02_same_size_and_time_but_other_bytes_are_other_objects(artifacts: Artifacts, tmp_path: Path) -> None:
    import os

    source = tmp_path / "a"
    for content in (b"one", b"two"):
        source.write_bytes(content)
        os.utime(source, (0, 0))
        artifacts.put_universe("u", {"a": source})
    assert contents(artifacts, "u") == {"a": b"two"}
    assert contents(artifacts, "u", 1) == {"a": b"one"}


def test_a_folder_that_the_reference_stored_is_read_through_its_documents(artifacts: Artifacts, tmp_path: Path) -> None:
    older = tmp_path / "object_store/obj"
    older.parent.mkdir()
    older.write_bytes(b"old bytes")
    url = older.as_uri()
    artifacts.documents.put(
        "artifacts",
        "u__1",
        "file",
        {"description": "", "filename": "a.txt", "content_type": "text/plain", "s3_url": url, "object_url": url},
    )
    artifacts.documents.put(
        "artifacts", "u", "file_artifact_universe", {"file_artifact_refs": {"d/a.txt": {"id": "u__1", "version": 1}}, "bundle_s3_url": url}
    )
    artifacts.documents.put("artifacts", "legacy", "file_artifact_universe", {"file_artifact_ids": {"a.txt": "u__1"}})
    assert contents(artifacts, "u") == {"d/a.txt": b"old bytes"}
    assert contents(artifacts, "legacy") == {"a.txt": b"old bytes"}
    copied = artifacts.put_universe("copy", dict(artifacts.files("u")))
    assert contents(artifacts, copied.id) == {"d/a.txt": b"old bytes"}
    assert artifacts.files("copy")["d/a.txt"].sha256


def test_paths_of_a_stored_folder_that_lead_outside_are_refused_on_reading(artifacts: Artifacts) -> None:
    artifacts.put_file("f", b"x", filename="x")
    artifacts.documents.put("artifacts", "evil", "file_artifact_universe", {"file_artifact_refs": {"../x": {"id": "f", "version": 1}}})
    with pytest.raises(ProblemsError, match="leads outside"):
        artifacts.files("evil")


def test_environments_and_their_universe_list_their_files(artifacts: Artifacts) -> None:
    mail = artifacts.put_environment("mail-seed", "mail", b"{}", filename="data.json")
    note = artifacts.put_file("note", b"n", filename="note.txt")
    artifacts.put_environment_universe(
        "world", [Ref(id=mail.id, version=mail.version, type="environment")], {"brief": Ref(id=note.id, version=note.version)}
    )
    assert contents(artifacts, "mail-seed") == {"data.json": b"{}"}
    assert mail.body["service_name"] == mail.body["environment_name"] == "mail"
    assert contents(artifacts, "world") == {"mail/data.json": b"{}", "metadata/brief/note.txt": b"n"}


def test_a_program_and_a_skill_pin_their_files(artifacts: Artifacts) -> None:
    cli = artifacts.put_cli("tool", {"bin/run": b"#!", "lib/x": b"1"}, entrypoint="bin/run", command_name="tool")
    skill = artifacts.put_skill("@local/~/b/sort-mail", {"SKILL.md": SKILL, "more.md": b"m"})
    artifacts.put_universe("tool__files", {"bin/run": b"later"})
    assert contents(artifacts, "tool")["bin/run"] == b"#!"
    assert (cli.body["cli_files_id"], cli.body["cli_files_version"]) == ("tool__files", 1)
    assert (skill.body["skill_name"], sorted(artifacts.files(skill.id))) == ("sort-mail", ["SKILL.md", "more.md"])


def test_an_image_lists_what_was_stored_of_it(artifacts: Artifacts) -> None:
    context = artifacts.objects.put(b"tar")
    artifacts.put_image(DockerImageArtifact(id="i", image_name="local/i:1", build_context_object_url=context.url))
    assert contents(artifacts, "i") == {"context.tar.gz": b"tar"}


def test_collected_files_get_exactly_the_version_that_was_asked_for(artifacts: Artifacts, tmp_path: Path) -> None:
    (tmp_path / "r").write_bytes(b"report")
    stored = artifacts.put_collected("run-1", {"out/report.md": tmp_path / "r"}, version=1)
    assert (stored.version, contents(artifacts, "run-1")) == (1, {"out/report.md": b"report"})
    with pytest.raises(ConcurrentModificationError):
        artifacts.put_collected("run-1", {"out/report.md": tmp_path / "r"}, version=1)


def test_objects_that_are_already_stored_are_referred_to(artifacts: Artifacts) -> None:
    ref = artifacts.objects.put(b"x")
    artifacts.put_universe("u", {"x": FileRef(ref.url, ref.sha256, ref.size, 0o755)})
    assert artifacts.files("u")["x"].mode == 0o755


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({}, "no files"),
        ({"/a": b""}, "absolute"),
        ({"a/../../b": b""}, "leads outside"),
        ({"a": b"", "a/b": b""}, "lies below 'a'"),
        ({"a//b": b""}, "plain form"),
    ],
)
def test_a_folder_that_could_not_be_written_out_is_refused(artifacts: Artifacts, files: dict[str, bytes], said: str) -> None:
    with pytest.raises(ProblemsError, match=said):
        artifacts.put_universe("u", dict(files))
    assert artifacts.documents.count("artifacts") == 0


def test_all_wrong_paths_are_named_at_once(artifacts: Artifacts) -> None:
    with pytest.raises(ProblemsError) as error:
        artifacts.put_universe("u", {"/a": b"", "../b": b"", "ok": b""})
    assert len(error.value.problems) == 2


def test_a_program_needs_its_entrypoint_and_leaves_our_file_alone(artifacts: Artifacts) -> None:
    with pytest.raises(ProblemsError, match=r"(?s)not among the files.*bin/\.env"):
        artifacts.put_cli("t", {"bin/.env": b""}, entrypoint="bin/run", command_name="t")
    with pytest.raises(ProblemsError, match=r"SKILL\.md"):
        artifacts.put_skill("s", {"skill.md": SKILL})


def test_a_missing_artifact_suggests_the_near_one_and_a_missing_version_the_newest(artifacts: Artifacts) -> None:
    artifacts.put_file("greetings", b"x", filename="x")
    with pytest.raises(NotFoundError, match="did you mean 'greetings'"):
        artifacts.get("greeting")
    with pytest.raises(NotFoundError, match="newest version is 1"):
        artifacts.get("greetings", 7)
    with pytest.raises(ProblemsError):
        artifacts.put_file("@other/x", b"x", filename="x")


def test_collecting_unused_objects_keeps_every_file_of_every_artifact(artifacts: Artifacts, db: Database, tmp_path: Path) -> None:
    artifacts.put_universe("u", {"a": b"kept 1", "b/c": b"kept 2"})
    artifacts.put_environment("e", "mail", b"kept 3", filename="d.json")
    artifacts.objects.put(b"unused")
    freed = artifacts.objects.collect(live_objects(db, artifacts.objects), grace_seconds=0)
    assert freed.objects == 1
    fresh = Artifacts(Documents(db), Objects(tmp_path / "objects", db))
    assert contents(fresh, "u") == {"a": b"kept 1", "b/c": b"kept 2"}
    assert contents(fresh, "e") == {"d.json": b"kept 3"}

"""`load_artifact` on a machine place: bytes, owners, defaults and records."""

from __future__ import annotations

import hashlib
import io
import json
import os
import zipfile
from pathlib import PurePosixPath
from typing import Any

import pytest

from agent_env.errors import NotFoundError, ProblemsError, TaskError, UserError
from agent_env.places import Entry, Missing
from agent_env.steps import parse_step
from tests.steps.bench import BenchRun
from tests.steps.conftest import Bench


def loaded(run: BenchRun, name: str = "loaded_file_artifact_universes") -> list[dict[str, Any]]:
    return list(run.metadata[name])


def test_b3_a_universe_goes_to_loaded_by_default_and_its_record_is_the_references(bench: Bench) -> None:
    async def body(run: BenchRun) -> None:
        run.artifacts.put_universe("inputs", {"a.txt": b"one", "deep/er/b.bin": bytes(range(256))})
        result = await run.do({"type": "load_artifact", "artifact_id": "inputs"})
        assert result.summary() == "2 files"
        assert loaded(run) == [
            {"id": "inputs", "version": 1, "artifact_type": "file_artifact_universe", "env_id": None, "agent_name": None,
             "sandbox_name": "box", "container_name": None, "destination_path": "/loaded", "files": ["a.txt", "deep/er/b.bin"]}
        ]  # fmt: skip
        assert await (await run.box()).read(PurePosixPath("/loaded/deep/er/b.bin")) == bytes(range(256))
        assert run.used_documents == [("artifacts", "inputs", 1)]

    bench(body)


def test_several_artifacts_of_fixed_versions_are_written_in_order_and_the_later_file_wins(bench: Bench) -> None:
    async def body(run: BenchRun) -> None:
        run.artifacts.put_file("one", b"old", filename="x.txt")
        run.artifacts.put_file("one", b"new", filename="x.txt")
        run.artifacts.put_universe("two", {"x.txt": b"two", "y.txt": b"y"})
        await run.do({"type": "load_artifact", "artifacts": [{"id": "one"}, {"id": "two"}], "destination_path": "/data/in/"})
        assert await run.sh("cat /data/in/x.txt /data/in/y.txt") == "twoy"
        await run.do({"type": "load_artifact", "artifacts": [{"id": "two"}, {"id": "one", "version": 1}], "destination_path": "/data/in"})
        assert await run.sh("cat /data/in/x.txt") == "old"
        assert [(record["id"], record["version"]) for record in loaded(run)] == [("one", 2), ("two", 1), ("two", 1), ("one", 1)]
        assert loaded(run)[0]["destination_path"] == "/data/in"

    bench(body)


def test_fi10_large_odd_and_executable_files_arrive_whole(bench: Bench) -> None:
    async def body(run: BenchRun) -> None:
        program = run.folder / "tool"
        program.write_bytes(b"#!/bin/sh\necho ran\n")
        program.chmod(0o755)
        blob = os.urandom(20 * 1024 * 1024 + 1)
        run.artifacts.put_universe("odd", {"big": blob, "empty": b"", "a b/ü\n-rf": b"x", "tool": program, "$(id)": b"y"})
        await run.do({"type": "load_artifact", "artifact_id": "odd", "destination_path": "/data"})
        place = await run.box()
        found = await place.stat([PurePosixPath("/data/big"), PurePosixPath("/data/empty")], digest=True)
        big = found[PurePosixPath("/data/big")]
        assert isinstance(big, Entry)
        assert big.sha256 == hashlib.sha256(blob).hexdigest()
        assert await place.read(PurePosixPath("/data/a b/ü\n-rf")) == b"x"
        assert await run.sh("/data/tool; cat '/data/$(id)'") == "ran\ny"

    bench(body)


def test_fi01_files_and_the_parents_made_for_them_belong_to_the_places_user_or_to_owner(bench: Bench) -> None:
    async def body(run: BenchRun) -> None:
        run.artifacts.put_universe("f", {"d/x": b"1"})
        await run.do({"type": "load_artifact", "artifact_id": "f", "destination_path": "/data/new"})
        assert await run.sh("stat -c %u:%g /data/new /data/new/d /data/new/d/x") == "0:0\n" * 3

    bench(body)


def test_b5_a_payload_unpacks_and_its_record_lists_its_files(bench: Bench) -> None:
    async def body(run: BenchRun) -> None:
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w") as archive:
            archive.writestr("root/etc/conf", "from root")
            archive.writestr(
                "data.json", json.dumps({"files": [{"path": "etc/conf", "content": "no"}, {"path": "more", "content": "yes"}]})
            )
        run.artifacts.put_environment("seed", "mail", packed.getvalue(), filename="seed.zip")
        await run.do({"type": "load_artifact", "artifact_id": "seed"})
        assert await run.sh("cat /app/files/etc/conf /app/files/more") == "from rootyes"
        (record,) = loaded(run, "loaded_environment_artifacts")
        assert (record["destination_path"], record["file_count"], sorted(record["files"])) == ("/app/files", 2, ["etc/conf", "more"])
        assert record["service_name"] == record["environment_name"] == "mail"

    bench(body)


def test_b5_a_payload_that_leads_outside_is_refused_and_writes_nothing(bench: Bench) -> None:
    async def body(run: BenchRun) -> None:
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w") as archive:
            archive.writestr("root/../../etc/evil", "x")
        run.artifacts.put_environment("seed", "mail", packed.getvalue(), filename="seed.zip")
        run.artifacts.put_file("fine", b"x", filename="fine")
        with pytest.raises(ProblemsError, match="leads outside"):
            await run.do({"type": "load_artifact", "artifacts": [{"id": "fine"}, {"id": "seed"}], "destination_path": "/data/p"})
        assert await run.sh("ls /data") == ""

    bench(body)


def test_what_an_earlier_step_collected_is_loaded_by_its_step(bench: Bench) -> None:
    async def body(run: BenchRun) -> None:
        await run.sh("mkdir -p /app/out && echo made > /app/out/r.txt")
        await run.do({"id": "keep", "type": "collect_artifacts", "base_path": "/app/out"})
        await run.do({"type": "load_artifact", "artifact_from_step_id": "keep", "destination_path": "/app/again"})
        assert await run.sh("cat /app/again/r.txt") == "made\n"
        await run.do({"type": "load_artifact", "collected_artifacts_step_id": "keep", "destination_path": "/app/third"})
        assert await run.sh("ls /app/third") == "r.txt\n"

    bench(body)


def test_a_step_that_recorded_nothing_fails_and_one_that_recorded_emptiness_is_skipped(bench: Bench) -> None:
    async def body(run: BenchRun) -> None:
        with pytest.raises(TaskError, match="No artifact recorded by step 'keep'"):
            await run.do({"type": "load_artifact", "artifact_from_step_id": "keep"})
        await run.do({"id": "keep", "type": "collect_artifacts", "base_path": "/nowhere"})
        result = await run.do({"type": "load_artifact", "artifact_from_step_id": "keep"})
        assert "recorded nothing to load" in result.summary()

    bench(body)


def test_step_params_replace_what_is_loaded_and_are_checked_like_the_step(bench: Bench) -> None:
    async def body(run: BenchRun) -> None:
        run.artifacts.put_file("one", b"1", filename="one")
        run.artifacts.put_file("two", b"2", filename="two")
        run.step_params = {"artifacts": [{"id": "two"}], "destination_path": "/data/over"}
        await run.do({"type": "load_artifact", "artifact_id": "one"})
        assert await run.sh("ls /data/over") == "two\n"
        run.step_params = {"destination_path": "relative"}
        with pytest.raises(ProblemsError, match="absolute path"):
            await run.do({"type": "load_artifact", "artifact_id": "one"})

    bench(body)


def test_what_can_not_be_loaded_is_named(bench: Bench) -> None:
    async def body(run: BenchRun) -> None:
        skill = b"---\nname: s\ndescription: d\n---\ntext"
        run.artifacts.put_skill("skills/s", {"SKILL.md": skill})
        with pytest.raises(UserError, match="Unsupported artifact type for loading: 'skill'"):
            await run.do({"type": "load_artifact", "artifact_id": "skills/s"})
        run.artifacts.put_file("greeting", b"1", filename="one")
        with pytest.raises(NotFoundError, match="did you mean 'greeting'"):
            await run.do({"type": "load_artifact", "artifact_id": "greting"})
        with pytest.raises(UserError, match="names nothing to load"):
            await run.do({"type": "load_artifact"})

    bench(body)


class Artifacts:
    """What a plan knows of artifacts."""

    def __init__(self, **types: str) -> None:
        self.types = types
        self.artifacts: object | None = self

    def artifact(self, id: str, version: int | None) -> dict[str, Any] | None:
        return {"id": id, "type": self.types[id]} if id in self.types else None


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({}, ["names nothing to load"]),
        ({"artifact_id": "nope"}, [".artifact_id: artifact 'nope' does not exist"]),
        ({"artifacts": [{"id": "f"}, {"id": "nope", "version": 3}]}, [".artifacts[1].id: artifact 'nope' version 3 does not exist"]),
        ({"artifact_id": "s"}, [".artifact_id: artifact 's' is of type 'skill', which can't be loaded here"]),
        ({"urls": ["ftp://h/x", "http://h/a"]}, [".urls[0]: has the scheme 'ftp'"]),
        ({"urls": [{"url": "http://h/a", "filename": "../x"}, {"url": "http://h/a", "name": "x"}]}, [".urls[0].filename", ".urls[1].name"]),
        ({"sandbox_name": None, "env_id": "mail", "artifact_id": "nope"}, [".artifact_id: artifact 'nope' does not exist"]),
        ({"sandbox_name": None, "env_id": "mail", "artifact_id": "f"}, []),
    ],
)
def test_what_is_found_before_anything_starts(fields: dict[str, Any], says: list[str]) -> None:
    step = parse_step({"id": "l", "type": "load_artifact", "sandbox_name": "box", **fields}, source="t")
    found = [str(problem) for problem in step.problems(Artifacts(f="file", s="skill"))]
    assert len(found) == len(says)
    assert all(said in text for said, text in zip(says, found, strict=True))


def test_nothing_is_missing_when_nothing_is_known_of_artifacts() -> None:
    plan = Artifacts()
    plan.artifacts = None
    assert list(parse_step({"id": "l", "type": "load_artifact", "sandbox_name": "b", "artifact_id": "x"}, source="t").problems(plan)) == []


TREE = {"deep/er/x.txt": b"x", "top.txt": b"t"}


@pytest.mark.parametrize("target", ["/etc", "../etc", "/loaded/../app", "inside"])
def test_a_link_that_leads_out_of_the_loaded_tree_is_refused_and_nothing_is_written(bench: Bench, target: str) -> None:
    async def body(run: BenchRun) -> None:
        run.artifacts.put_universe("files", TREE)
        await run.sh(f"mkdir /app/kept && ln -s {target} /loaded/deep && ln -s ../app/kept /loaded/inside")
        with pytest.raises(TaskError, match="leads out of /loaded"):
            await run.do({"type": "load_artifact", "artifact_id": "files"})
        assert isinstance(await (await run.box()).read(PurePosixPath("/loaded/top.txt")), Missing)
        assert await run.sh("ls /app/kept") == ""

    bench(body)


@pytest.mark.parametrize("target", ["v1", "/loaded/v1", "chain"])
def test_a_link_that_stays_in_the_tree_and_a_folder_that_is_named_are_followed(bench: Bench, target: str) -> None:
    async def body(run: BenchRun) -> None:
        run.artifacts.put_universe("files", TREE)
        await run.sh(f"mkdir /loaded/v1 /app/real && ln -s {target} /loaded/deep && ln -s ./v1 /loaded/chain && ln -s real /app/named")
        await run.do({"type": "load_artifact", "artifact_id": "files"})
        await run.do({"type": "load_artifact", "artifact_id": "files", "destination_path": "/app/named"})
        assert await run.sh("cat /loaded/v1/er/x.txt /app/real/deep/er/x.txt") == "xx"

    bench(body)

"""`collect_artifacts` on a machine place: which files, under which names, byte for byte."""

from __future__ import annotations

import os
from typing import Any

import pytest

from agent_env.errors import TaskError, TransferError
from tests.steps.bench import BenchRun
from tests.steps.conftest import Bench


def kept(run: BenchRun, step_id: str = "c") -> dict[str, bytes]:
    """What the step stored, by name."""
    ref = run.metadata["collected_artifacts"][step_id]["file_artifact_universe"]
    return {name: run.artifacts.read(file) for name, file in run.artifacts.files(ref["id"], ref["version"]).items()}


async def collect(run: BenchRun, **fields: Any) -> Any:
    return await run.do({"id": "c", "type": "collect_artifacts", "base_path": "/app/out", **fields})


def test_a07_every_file_below_the_folder_comes_back_byte_for_byte(bench: Bench) -> None:
    blob = os.urandom(20 * 1024 * 1024)

    async def body(run: BenchRun) -> None:
        run.artifacts.put_universe("in", {"big": blob, "deep/er/empty": b"", "a b/ünï": bytes(range(256))})
        await run.do({"type": "load_artifact", "artifact_id": "in", "destination_path": "/app/out"})
        await run.sh("chmod 600 /app/out/big; mkdir /app/out/nothing")
        result = await collect(run)
        assert kept(run) == {"big": blob, "deep/er/empty": b"", "a b/ünï": bytes(range(256))}
        assert result.failure() is None
        urls = run.metadata["collected_artifacts"]["c"]["artifacts"]
        assert run.metadata["artifacts"] == urls
        assert sorted(urls) == ["a b/ünï", "big", "deep/er/empty"]
        assert all(url.startswith("sha256:") for url in urls.values())
        assert run.metadata["file_artifact_universe"] == {"id": "bench-12345678", "version": 1}

    bench(body)


def test_a_program_stays_executable_from_collecting_to_loading(bench: Bench) -> None:
    async def body(run: BenchRun) -> None:
        await run.sh(
            "mkdir /app/out && cd /app/out && touch plain && chmod 600 plain && printf '#!/bin/sh\\necho ran\\n' > tool && chmod 700 tool"
        )
        await collect(run)
        await run.do({"type": "load_artifact", "artifact_from_step_id": "c", "destination_path": "/data/again"})
        assert await run.sh("/data/again/tool && stat -c %a /data/again/tool /data/again/plain") == "ran\n755\n644\n"

    bench(body)


def test_a_base_that_is_a_file_has_nothing_below_it_and_one_that_is_a_link_has_its_targets_files(bench: Bench) -> None:
    async def body(run: BenchRun) -> None:
        await run.sh("mkdir -p /data/real && echo 1 > /data/real/a && ln -s /data/real /data/link")
        assert (await collect(run, base_path="/data/real/a")).failure() is None
        assert run.metadata["collect_produced_files"]["files"] == []
        await collect(run, base_path="/data/link")
        assert kept(run) == {"a": b"1\n"}

    bench(body)


def test_b9_collecting_only_reads(bench: Bench) -> None:
    async def body(run: BenchRun) -> None:
        await run.sh("mkdir -p /app/out/d && echo x > /app/out/d/x && ln -s d/x /app/out/l")
        look = "cd / && find app work tmp loaded etc root var -exec stat -c '%n %F %a %u %s %Y %Z' {} + | sort"
        before = await run.sh(look)
        await collect(run)
        await collect(run, artifact_paths=["d/*", "l"])
        assert await run.sh(look) == before

    bench(body)


def test_fi07_links_devices_and_fifos_are_not_followed_and_do_not_stop_the_rest(bench: Bench) -> None:
    async def body(run: BenchRun) -> None:
        await run.sh(
            "mkdir -p /app/out/sub /app/secret && cd /app/out && echo in > sub/file && echo secret > /app/secret/key && "
            "ln -s /etc/passwd abs && ln -s ../../../../etc/passwd rel && ln -s /app/secret dir && ln -s nowhere dangling && "
            "ln -s loop loop && mkfifo fifo && ln sub/file hard && chmod 4755 sub/file"
        )
        await collect(run)
        assert kept(run) == {"sub/file": b"in\n", "hard": b"in\n"}

    bench(body)


def test_fi04_a_named_link_gives_its_targets_content_inside_the_place(bench: Bench) -> None:
    async def body(run: BenchRun) -> None:
        await run.sh(
            "mkdir -p /app/out && cd /app/out && echo data > real && ln -s real link && ln -s gone dangling && ln -s loop loop && ln -s . d"
        )
        await collect(run, artifact_paths=["link", "dangling"])
        assert kept(run) == {"link": b"data\n"}
        assert "not there: /app/out/dangling" in run.said
        for path, says in (("loop", "is a link that loops"), ("d", "is a folder")):
            result = await collect(run, artifact_paths=["real", path])
            assert says in str(result.failure())
            assert kept(run) == {"real": b"data\n"}

    bench(body)


def test_fi09_odd_names_are_data_and_names_that_are_not_utf8_are_spelled_out(bench: Bench) -> None:
    async def body(run: BenchRun) -> None:
        await run.sh(
            "mkdir -p /app/out && cd /app/out && for n in -rf 'a b' '$(touch pwned)' \"it's\" 'n\nl'; do printf 1 > \"./$n\"; done"
        )
        await run.sh("cd /app/out && printf 2 > \"$(printf '\\377x')\"")
        await collect(run)
        assert kept(run) == {"-rf": b"1", "a b": b"1", "$(touch pwned)": b"1", "it's": b"1", "n\nl": b"1", "\\xffx": b"2"}
        assert await run.sh("ls /app/pwned pwned 2>/dev/null || true") == ""

    bench(body)


def test_relative_names_join_the_base_and_absolute_ones_keep_their_path(bench: Bench) -> None:
    async def body(run: BenchRun) -> None:
        await run.sh("mkdir -p /app/out/d && cd /app/out && echo 1 > a && echo 2 > d/b && echo 3 > /tmp/x.log && echo 4 > /app/up")
        await collect(run, artifact_paths=["a", "./d//b", "/tmp/x.log", "../up", "https://host/ignored", "absent"], base_path="/app/out/")
        assert kept(run) == {"a": b"1\n", "d/b": b"2\n", "tmp/x.log": b"3\n", "app/up": b"4\n"}
        assert "not there: /app/out/absent" in run.said

    bench(body)


def test_patterns_match_unless_a_file_has_that_very_name(bench: Bench) -> None:
    async def body(run: BenchRun) -> None:
        await run.sh("mkdir -p /app/out/d/e && cd /app/out && touch a.txt b.txt c.md d/e/deep.txt d/f.txt '[x].txt'")
        for patterns, names in (
            (["*.txt"], ["[x].txt", "a.txt", "b.txt"]),
            (["?.txt"], ["a.txt", "b.txt"]),
            (["[!a].txt"], ["b.txt"]),
            (["**/*.txt"], ["[x].txt", "a.txt", "b.txt", "d/e/deep.txt", "d/f.txt"]),
            (["d/**"], ["d/e/deep.txt", "d/f.txt"]),
            (["[x].txt"], ["[x].txt"]),
            (["/app/out/d/*.txt"], ["app/out/d/f.txt"]),
        ):
            await collect(run, artifact_paths=patterns)
            assert sorted(kept(run)) == names, patterns

    bench(body)


def test_what_names_the_files_is_the_override_then_the_manifest_then_the_seed_then_the_step(bench: Bench) -> None:
    async def body(run: BenchRun) -> None:
        await run.sh("mkdir -p /app/out && cd /app/out && for n in over seeded named m1 m2 skip.me; do echo $n > $n; done")
        run.context["prompt_responses"] = [
            {"prompt_id": "p", "response": "", "step_id": "ask", "structured_output": {"artifacts": {"old": "/app/out/named"}}},
            {"prompt_id": "p", "response": "", "step_id": "ask", "structured_output": {"artifacts": {
                "report": "/app/out/m1", "skipped": "/app/out/skip.me", "glob": "/app/out/*", "relative": "m2", "number": 3}}},
        ]  # fmt: skip
        fields = {"artifact_paths": ["named"]}
        await collect(run, **fields)
        assert sorted(kept(run)) == ["named"]
        run.context["metadata"]["seed"] = {"expected_artifacts": "seeded, , gone"}
        await collect(run, **fields)
        assert sorted(kept(run)) == ["seeded"]
        await collect(run, **fields, manifest_step_id="ask", exclude_basenames=["skip.me"])
        assert kept(run) == {"report": b"m1\n"}
        run.step_params = {"artifact_paths": ["over"]}
        await collect(run, **fields, manifest_step_id="ask")
        assert sorted(kept(run)) == ["over"]

    bench(body)


def test_a_manifest_may_lie_in_metadata_and_an_empty_one_fails(bench: Bench) -> None:
    async def body(run: BenchRun) -> None:
        await run.sh("mkdir -p /app/out && echo 1 > /app/out/x && echo 2 > /tmp/y && echo 3 > /data/y")
        run.context["metadata"]["structured_outputs"] = {
            "ask": {"artifacts": ["/app/out/x", "/tmp/y", "/data/y"]},
            "none": {"artifacts": {}},
        }
        await collect(run, manifest_step_id="ask")
        assert kept(run) == {"x": b"1\n", "y": b"2\n", "data/y": b"3\n"}
        for step in ("none", "unknown"):
            with pytest.raises(TaskError, match="names no files"):
                await collect(run, manifest_step_id=step)

    bench(body)


def test_excluded_names_are_left_out_of_the_search_and_not_of_named_files(bench: Bench) -> None:
    async def body(run: BenchRun) -> None:
        await run.sh("mkdir -p /app/out/d && touch /app/out/keep /app/out/.DS_Store /app/out/d/.DS_Store")
        await collect(run, exclude_basenames=[".DS_Store"])
        assert sorted(kept(run)) == ["keep"]
        await collect(run, exclude_basenames=[".DS_Store"], artifact_paths=[".DS_Store"])
        assert sorted(kept(run)) == [".DS_Store"]

    bench(body)


def test_nothing_below_the_folder_is_a_success_that_says_what_is_there(bench: Bench) -> None:
    async def body(run: BenchRun) -> None:
        await run.sh("mkdir -p /app/out/only/folders && ln -s /etc /app/out/link")
        result = await collect(run)
        assert result.failure() is None
        link = {"path": "/app/out/link", "reason": "a link to /etc"}
        assert run.metadata["collected_artifacts"]["c"] == {"artifacts": {}, "file_artifact_universe": None, "skipped": [link]}
        assert run.metadata["collect_produced_files"] == {"step_id": "c", "base_path": "/app/out", "files": ["link", "only"]}
        assert "file_artifact_universe" not in run.metadata
        result = await collect(run, base_path="/absent")
        assert result.failure() is None
        assert run.metadata["collect_produced_files"]["files"] == []

    bench(body)


def test_some_of_several_missing_is_a_success_and_all_of_them_a_failure_of_the_task(bench: Bench) -> None:
    async def body(run: BenchRun) -> None:
        await run.sh("mkdir -p /app/out && touch /app/out/a")
        assert (await collect(run, artifact_paths=["a", "b"])).failure() is None
        for paths in (["b", "c"], ["*.none"]):
            failure = (await collect(run, artifact_paths=paths)).failure()
            assert isinstance(failure, TaskError)
            assert f"resolved {len(paths)} artifact path(s) but produced no file_artifact_universe" in str(failure)

    bench(body)


def test_what_exists_and_can_not_be_kept_fails_the_step_after_the_rest_is_recorded(bench: Bench) -> None:
    async def body(run: BenchRun) -> None:
        await run.sh("mkdir -p /app/out/folder && echo 1 > /app/out/a && mkfifo /app/out/pipe")
        failure = (await collect(run, artifact_paths=["a", "folder", "pipe"])).failure()
        assert isinstance(failure, TransferError)
        assert "2 artifact(s) exist but could not be collected" in str(failure)
        assert "folder is a folder; name its files, or write 'folder/**'" in str(failure)
        assert kept(run) == {"a": b"1\n"}

    bench(body)


def test_each_collection_is_a_version_of_the_runs_artifact_and_a_suffix_makes_another(bench: Bench) -> None:
    async def body(run: BenchRun) -> None:
        await run.sh("mkdir -p /app/out && echo 1 > /app/out/a")
        await collect(run)
        await run.sh("echo 2 > /app/out/a")
        await collect(run)
        assert run.metadata["file_artifact_universe"] == {"id": "bench-12345678", "version": 2}
        await collect(run, universe_id_suffix="-out")
        assert run.metadata["file_artifact_universe"] == {"id": "bench-12345678-out", "version": 1}
        run.context["metadata"]["universe_id"] = "mine"
        await collect(run)
        assert run.metadata["file_artifact_universe"] == {"id": "mine", "version": 1}

    bench(body)

"""`collect_artifacts` on trees that can't be read whole, that change while they are read, or that hold what is no file: what can be kept
is kept, and what can't is told by its path."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from agent_env.errors import TransferError
from tests.steps.bench import BenchRun
from tests.steps.conftest import Bench
from tests.steps.test_collect_artifacts import collect, kept


@pytest.mark.parametrize(
    ("closed", "told"),
    [
        ("chmod 0 secret", {"/app/out/secret": "EACCES"}),
        ("chmod 0 d", {"/app/out/d": "EACCES"}),
        ("chmod 444 d", {"/app/out/d/e": "EACCES", "/app/out/d/f": "EACCES"}),
        ("chmod 0 d secret", {"/app/out/d": "EACCES", "/app/out/secret": "EACCES"}),
        ("chmod 0 d/e d/f", {"/app/out/d/e": "EACCES", "/app/out/d/f": "EACCES"}),
        ("chmod 0 .", {"/app/out": "EACCES"}),
    ],
    ids=["a file", "a folder", "a folder that can be listed and not entered", "both", "below", "the base"],
)
@pytest.mark.parametrize("fields", [{}, {"artifact_paths": ["**/*"]}], ids=["everything", "a pattern"])
def test_what_can_not_be_read_is_told_and_the_rest_is_kept(
    bench: Bench, closed: str, told: dict[str, str], fields: dict[str, object]
) -> None:
    async def body(run: BenchRun) -> None:
        await run.sh("mkdir -p /app/out/d/e && cd /app/out && echo 1 > open && echo 2 > secret && echo 3 > d/f && echo 4 > d/e/g")
        await run.sh(f"cd /app/out && {closed}")
        result = await collect(run, **fields)
        failure = result.failure()
        assert isinstance(failure, TransferError)
        assert f"{len(told)} artifact(s) exist but could not be collected" in str(failure)
        record = run.metadata["collected_artifacts"]["c"]
        assert {entry["path"]: entry["reason"] for entry in record["uncollected"]} == told
        assert all(path in str(failure) for path in told)
        if closed != "chmod 0 .":
            assert kept(run)["open"] == b"1\n"
        assert "g" not in "".join(record["artifacts"]) or "d/e/g" in kept(run)

    bench(body)


def test_a_named_file_in_a_closed_folder_exists_as_far_as_we_know_and_fails_the_step(bench: Bench) -> None:
    async def body(run: BenchRun) -> None:
        await run.sh("mkdir -p /app/out/d && cd /app/out && echo 1 > a && echo 2 > d/b && chmod 0 d")
        result = await collect(run, artifact_paths=["a", "d/b"])
        assert isinstance(result.failure(), TransferError)
        assert "/app/out/d/b could not be read: EACCES" in str(result.failure())
        assert kept(run) == {"a": b"1\n"}

    bench(body)


def test_fi07_what_is_no_file_is_left_out_and_listed(bench: Bench) -> None:
    async def body(run: BenchRun) -> None:
        await run.sh(
            "mkdir -p /app/out/d && cd /app/out && echo 1 > a && mkfifo d/pipe && ln -s loop loop && ln -s .. up && "
            "python3 -c \"import socket; socket.socket(socket.AF_UNIX).bind('d/socket')\""
        )
        result = await collect(run)
        assert result.failure() is None
        assert kept(run) == {"a": b"1\n"}
        skipped = run.metadata["collected_artifacts"]["c"]["skipped"]
        assert {entry["path"]: entry["reason"] for entry in skipped} == {
            "/app/out/d/pipe": "no regular file",
            "/app/out/d/socket": "no regular file",
            "/app/out/loop": "a link to loop",
            "/app/out/up": "a link to ..",
        }
        assert "4 left out" in result.summary()

    bench(body)


def test_a_tree_of_plain_files_has_a_record_of_the_references_keys_alone(bench: Bench) -> None:
    async def body(run: BenchRun) -> None:
        await run.sh("mkdir -p /app/out/d && echo 1 > /app/out/d/a")
        await collect(run)
        assert run.metadata["collected_artifacts"]["c"].keys() == {"artifacts", "file_artifact_universe"}

    bench(body)


def test_a_file_that_grows_while_it_is_read_is_kept_as_long_as_it_was(bench: Bench) -> None:
    async def body(run: BenchRun) -> None:
        await run.sh("mkdir -p /app/out && cd /app/out && echo plain > z && head -c 3000000 /dev/zero > log")
        await run.sh("cd /app/out && (while :; do head -c 1000000 /dev/zero >> log; done) >/dev/null 2>&1 & sleep 0.1")
        async with asyncio.timeout(60):
            result = await collect(run)
        assert result.failure() is None
        assert kept(run)["z"] == b"plain\n"
        assert len(kept(run)["log"]) >= 3_000_000

    bench(body)


def test_files_that_come_and_go_while_they_are_collected_are_no_fault(bench: Bench) -> None:
    async def body(run: BenchRun) -> None:
        await run.sh("mkdir -p /app/out/stays && cd /app/out/stays && for i in $(seq 300); do echo $i > $i; done; mkdir ../goes")
        churn = (
            "while :; do mkdir -p /app/out/goes/d; for i in 1 2 3 4 5; do echo $i > /app/out/goes/d/$i; done; rm -rf /app/out/goes/d; done"
        )
        await run.sh(f"({churn}) >/dev/null 2>&1 & true")
        for _ in range(5):
            result = await collect(run)
            assert result.failure() is None
            assert len([name for name in kept(run) if name.startswith("stays/")]) == 300

    bench(body)


def test_a_file_beyond_the_limit_is_told_and_never_brought_over(bench: Bench) -> None:
    async def body(run: BenchRun) -> None:
        run.limits = replace(run.limits, collect_file_bytes=1_000_000)
        await run.sh("mkdir -p /app/out && cd /app/out && echo 1 > a && truncate -s 1T sparse")
        result = await collect(run)
        assert "/app/out/sparse is larger than the limit of 1000000 bytes (collect_file_bytes)" in str(result.failure())
        assert kept(run) == {"a": b"1\n"}

    bench(body)


def test_d5_files_that_this_machine_has_no_room_for_are_told_before_its_disk_is_full(bench: Bench) -> None:
    async def body(run: BenchRun) -> None:
        run.limits = replace(run.limits, collect_file_bytes=1 << 62)
        await run.sh("mkdir -p /app/out && cd /app/out && echo 1 > a && truncate -s 7T sparse")
        result = await collect(run)
        assert "/app/out/sparse does not fit into the free space of this machine" in str(result.failure())
        assert kept(run) == {"a": b"1\n"}

    bench(body)


def test_fi09_names_that_are_spelled_alike_or_too_long_once_spelled_out_lose_no_file(bench: Bench) -> None:
    async def body(run: BenchRun) -> None:
        await run.sh(
            "mkdir -p /app/out && cd /app/out && printf literal > '\\xff' && printf byte > \"$(printf '\\377')\" && "
            "python3 -c \"open(b'\\xfe' * 100, 'w').write('long')\""
        )
        result = await collect(run)
        assert result.failure() is None
        assert sorted(kept(run).values()) == [b"byte", b"literal", b"long"]
        assert b"literal" in (kept(run)["\\xff"], kept(run)["app/out/\\xff"])

    bench(body)


def test_names_of_a_manifest_that_no_artifact_can_have_are_replaced_by_the_files_own(bench: Bench) -> None:
    async def body(run: BenchRun) -> None:
        await run.sh("mkdir -p /app/out/d && cd /app/out && for n in a b c e d/f; do echo $n > $n; done")
        named = {"../../up": "/app/out/a", "/abs": "/app/out/b", "": "/app/out/c", "d": "/app/out/d/f", "d/below": "/app/out/e"}
        run.context["metadata"]["structured_outputs"] = {"ask": {"artifacts": named}}
        result = await collect(run, manifest_step_id="ask")
        assert result.failure() is None
        assert sorted(kept(run).values()) == [b"a\n", b"b\n", b"c\n", b"d/f\n", b"e\n"]
        assert {"app/out/a", "app/out/b", "app/out/c", "d", "app/out/e"} == set(kept(run))

    bench(body)

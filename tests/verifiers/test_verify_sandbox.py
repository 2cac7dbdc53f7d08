"""`verify_sandbox` on a machine place: what is a verdict, and what must never become one."""

from __future__ import annotations

import asyncio
import json
from time import monotonic
from typing import Any

import pytest

from agent_env.errors import InfrastructureError, LaunchError, PlacementError, SandboxUnavailableError
from agent_env.places import Command
from agent_env.verifiers.verify_sandbox import Verification
from tests.busy import lasting, within
from tests.memory import forget_peak, peak_bytes
from tests.steps.bench import BenchRun
from tests.verifiers.conftest import Bench


async def verify(run: BenchRun, *criteria: dict[str, Any], **fields: Any) -> Verification:
    result = await run.do({"id": "v", "type": "verify_sandbox", "criteria": list(criteria), **fields})
    assert isinstance(result, Verification)
    return result


async def said(run: BenchRun, criterion: dict[str, Any], **fields: Any) -> tuple[float | None, str]:
    result = await verify(run, criterion, **fields)
    return result.score, str(result.rows[0]["justification"])


def exists(*paths: str) -> dict[str, Any]:
    return {"type": "probe_file_exists", "paths": list(paths)}


def is_dir(*paths: str) -> dict[str, Any]:
    return {"type": "probe_dir_exists", "paths": list(paths)}


def contains(path: str, expected: str) -> dict[str, Any]:
    return {"type": "probe_file_contains", "paths": [path], "expected": expected}


def bash(command: str) -> dict[str, Any]:
    return {"type": "bash_cmd_succeeds", "bash_cmd": command}


def test_every_kind_of_criterion_by_example(bench: Bench) -> None:
    async def body(run: BenchRun) -> None:
        await run.sh(
            "mkdir -p d && echo 'total: 42' > f && ln -s f link && ln -s gone dangling && ln -s loop loop && mkfifo pipe && ln -s d dlink"
        )
        table: list[tuple[dict[str, Any], float, str]] = [
            (exists("f", "/app/f", "d", "link", "./d/../f"), 1, "all paths exist"),
            (exists("f", "nope", "f/below", "dangling", "loop"), 0, "Missing: ['nope', 'f/below', 'dangling', 'loop']"),
            (exists("x" * 300), 0, "Missing"),
            (exists(), 0, "no paths specified"),
            (is_dir("d", "dlink", "/"), 1, "all folders exist"),
            (is_dir("d", "f"), 0, "Missing: ['f']"),
            (contains("f", r"total:\s+42"), 1, r"contains 'total:\\s+42'"),
            (contains("link", "42"), 1, "contains '42'"),
            (contains("f", "^42"), 0, "does not contain '^42'"),
            (contains("f", ""), 1, "contains ''"),
            ({"type": "probe_file_contains", "paths": ["f", "nope"], "value": "total"}, 1, "contains 'total'"),
            (contains("nope", "x"), 0, "Missing: ['nope']"),
            (contains("d", "x"), 0, "d is a folder"),
            (contains("pipe", "x"), 0, "pipe is no regular file"),
            (contains("dangling", "x"), 0, "Missing"),
            (contains("loop", "x"), 0, "Missing"),
            ({"type": "probe_file_contains"}, 0, "no paths specified"),
            (bash("test -f f"), 1, "exited 0"),
            (bash("cat f; echo oops >&2; exit 7"), 0, "exited 7: oops"),
            (bash("echo only out; false"), 0, "exited 1: only out"),
            (bash("no-such-program"), 0, "exited 127"),
            (bash("exit 126"), 0, "exited 126"),
            (bash("kill -9 $$"), 0, "killed by signal 9"),
            (bash('[[ "$(pwd)" == /app ]]'), 1, "exited 0"),
        ]
        result = await verify(run, *(criterion for criterion, _, _ in table))
        for row, (criterion, score, justification) in zip(result.rows, table, strict=True):
            assert (row["score"], row["result"], row["skipped"]) == (score, bool(score), False), row
            assert justification in row["justification"], row
            assert {key: row[key] for key in criterion} == criterion
        assert [row["criterion_index"] for row in result.rows] == list(range(len(table)))

    bench(body)


def test_the_record_is_the_references(bench: Bench) -> None:
    async def body(run: BenchRun) -> None:
        await run.sh("echo hello > hello.txt")
        await verify(run, {"criterion": "greets", **contains("hello.txt", "hello")}, verifier_id="hello")
        assert run.metadata["verifications"] == {"hello": {"score": 1.0, "results": [
            {"type": "probe_file_contains", "criterion": "greets", "paths": ["hello.txt"], "expected": "hello", "criterion_index": 0,
             "score": 1.0, "result": True, "justification": "contains 'hello'", "skipped": False}]}}  # fmt: skip

    bench(body)


def test_probes_and_commands_keep_their_order(bench: Bench) -> None:
    async def body(run: BenchRun) -> None:
        result = await verify(
            run, exists("made"), bash("echo 1 > made"), exists("made"), contains("made", "1"), bash("rm made"), exists("made")
        )
        assert [row["score"] for row in result.rows] == [0, 1, 1, 1, 1, 0]

    bench(body)


def test_scores_come_from_the_aggregator_and_other_kinds_are_skipped(bench: Bench) -> None:
    async def body(run: BenchRun) -> None:
        criteria = [{**exists("nope"), "weight": 1}, {**exists("/app"), "weight": 3}, {"type": "rubric", "weight": 100}]
        assert (await verify(run, *criteria)).score == 0.0
        assert (await verify(run, *criteria, score_aggregator="any_pass")).score == 1.0
        result = await verify(run, *criteria, score_aggregator="weighted_average")
        assert result.score == 0.75
        assert result.rows[2] == {
            "type": "rubric", "weight": 100, "criterion_index": 2, "skipped": True,
            "justification": "criteria of type 'rubric' are not scored here",
        }  # fmt: skip

    bench(body)


def test_no_scored_criterion_is_unscored_and_not_zero(bench: Bench) -> None:
    async def body(run: BenchRun) -> None:
        for criteria in ([], [{"type": "rubric"}]):
            result = await verify(run, *criteria)
            assert result.score is None
            assert dict(result.scores()) == {"v": None}
            assert run.metadata["verifications"]["v"]["score"] is None
            assert "unscored" in result.summary()

    bench(body)


def test_ex01_ex02_a_command_that_outlives_its_limit_scores_0_and_its_whole_tree_is_gone(bench: Bench) -> None:
    async def body(run: BenchRun) -> None:
        hostile = "trap '' TERM; setsid sh -c \"trap '' TERM; sleep 77\" & echo before; echo err >&2; sleep 78"
        began = monotonic()
        limit = lasting(0.5)
        result = await verify(run, bash(hostile), bash("true"), shell_timeout_seconds=limit)
        assert monotonic() - began < within(10) + limit
        assert [row["score"] for row in result.rows] == [0, 1]
        assert result.rows[0]["justification"] == f"timed out after {limit:g}s: err"
        assert await run.sh("cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -oE 'sleep 7[78]' || true") == ""

    bench(body)


def test_ex05_a_background_child_does_not_hold_the_verdict(bench: Bench) -> None:
    async def body(run: BenchRun) -> None:
        began = monotonic()
        assert await said(run, bash("sleep 60 & exit 0")) == (1.0, "exited 0")
        assert monotonic() - began < within(5)

    bench(body)


def test_ex07_f11_what_can_not_be_started_is_an_error_and_never_a_score(bench: Bench) -> None:
    async def body(run: BenchRun) -> None:
        with pytest.raises(LaunchError, match=r"criteria\[1\] could not be started with bash in /absent"):
            await verify(run, exists("/"), bash("true"), base_dir="/absent")
        assert "verifications" not in run.metadata
        assert await said(run, exists("/app"), base_dir="/absent") == (1.0, "all paths exist")

    bench(body)


def test_b14_f11_a_sandbox_that_is_gone_is_an_error_and_never_a_score(bench: Bench) -> None:
    async def body(run: BenchRun) -> None:
        for sandbox_id in list(run.sandboxes):
            await run.provider.destroy(sandbox_id)
        for criterion in (exists("f"), contains("f", "x"), bash("true")):
            with pytest.raises(InfrastructureError):
                await verify(run, criterion)
        await run.teardown_sandbox(next(iter(run.sandboxes)))
        with pytest.raises(SandboxUnavailableError):
            await verify(run, exists("f"))
        assert "verifications" not in run.metadata

    bench(body)


def test_a_sandbox_that_dies_under_a_command_is_an_error_and_never_a_score(bench: Bench) -> None:
    async def body(run: BenchRun) -> None:
        (sandbox_id,) = run.sandboxes
        place = await run.box()
        process = await place.start(Command(["sleep", "60"]))
        work = asyncio.create_task(verify(run, bash("sleep 61")))
        while len([entry for entry in await place.ledger() if entry.running]) < 2:
            await asyncio.wait([work], timeout=0.01)
        await run.provider.destroy(sandbox_id)
        with pytest.raises(InfrastructureError):
            await work
        assert "verifications" not in run.metadata
        del process

    bench(body)


def test_a_target_that_nothing_deployed_is_named(bench: Bench) -> None:
    async def body(run: BenchRun) -> None:
        with pytest.raises(PlacementError, match="'ghost' is not deployed"):
            await verify(run, exists("f"), sandbox_name="ghost")
        with pytest.raises(PlacementError, match="default-agent"):
            await verify(run, exists("f"), sandbox_name=None)

    bench(body)


def test_f19_ex11_bytes_that_are_not_utf8_are_judged_and_flagged(bench: Bench) -> None:
    async def body(run: BenchRun) -> None:
        run.artifacts.put_file("bytes", bytes(range(256)) + b"needle", filename="bytes")
        await run.do({"type": "load_artifact", "artifact_id": "bytes", "destination_path": "/app"})
        result = await verify(run, contains("bytes", "needle"), contains("bytes", "ne+dle"), bash("printf '\\377\\376bad' >&2; exit 2"))
        assert [row["score"] for row in result.rows] == [1, 1, 0]
        assert all(row["lossy_decoding"] is True for row in result.rows)
        assert result.rows[2]["justification"] == "exited 2: \ufffd\ufffdbad"
        assert json.loads(json.dumps(run.context)) == run.context

    bench(body)


def test_ex10_ex16_a_command_is_run_byte_for_byte_however_long_it_is(bench: Bench) -> None:
    async def body(run: BenchRun) -> None:
        script = "cat > out <<'EOF'\n$HOME `x` %s ! \\\n\"'\nEOF\ncd / # comment\n[[ -f /app/out ]] && exit 3"
        assert await said(run, bash(script)) == (0.0, "exited 3")
        assert await run.sh("cat out") == "$HOME `x` %s ! \\\n\"'\n"
        assert (await said(run, bash("if then 'unbalanced")))[0] == 0.0
        filler = "# " + "x" * 120 + "\n"
        assert await said(run, bash(filler * 9000 + "echo long > made; exit 4")) == (0.0, "exited 4")
        assert await run.sh("cat made; ls /tmp") == "long\n"

    bench(body)


def test_f18_d6_output_without_end_costs_bounded_memory_and_a_command_that_reads_gets_nothing(bench: Bench) -> None:
    async def body(run: BenchRun) -> None:
        before = forget_peak()
        assert await said(run, bash("yes | head -c 300000000; exit 5")) == (0.0, "exited 5: " + ("y\n" * 100).strip())
        grown = peak_bytes() - before
        assert grown < 50 << 20, f"{grown} bytes"
        assert await said(run, bash("! read -r line")) == (1.0, "exited 0")

    bench(body)


def test_a_file_beyond_the_limit_is_not_read(bench: Bench) -> None:
    async def body(run: BenchRun) -> None:
        await run.sh("truncate -s 65M big && ln -s /dev/zero endless")
        assert await said(run, contains("big", "x")) == (0.0, "big is larger than the limit")
        assert await said(run, contains("endless", "x")) == (0.0, "endless is no regular file")

    bench(body)


def test_a_search_that_never_ends_scores_0_at_the_limit(bench: Bench) -> None:
    async def body(run: BenchRun) -> None:
        await run.sh("printf 'a%.0s' $(seq 60) > f")
        assert await said(run, contains("f", "(a+)+!"), shell_timeout_seconds=0.5) == (0.0, "timed out checking f after 0.5s")

    bench(body)


def test_a16_a_place_without_bash_is_told_by_the_step_that_needs_it_and_probes_do_not(bench: Bench) -> None:
    async def body(run: BenchRun) -> None:
        run.path = "/root/empty"
        assert (await verify(run, exists("/app"), is_dir("/app"), contains("/etc/passwd", "root"))).score == 1.0
        with pytest.raises(LaunchError, match=r"could not be started with bash in /app.*needs bash"):
            await verify(run, bash("true"))

    bench(body)


def test_f13_quiesce_kill_ends_what_an_agent_left_before_it_looks(bench: Bench) -> None:
    async def body(run: BenchRun) -> None:
        place = await run.box()
        (sandbox_id,) = run.sandboxes
        run.context["deployed_agents"] = [{"agent_name": "a", "api_url": None, "sandbox_id": sandbox_id, "on_host": True}]
        agent = await place.start(Command(["sh", "-c", "while :; do echo faked > reward; done"], attempt="att-of-the-agent"))
        await run.sh("until test -f reward; do :; done")
        result = await verify(run, bash("echo honest > reward; sleep 0.2; grep -q honest reward"), quiesce="kill")
        assert result.score == 1.0
        assert run.metadata["verifications"]["v"]["quiesce"] == "kill: process trees ended: 1"
        await agent.aclose()

    bench(body)

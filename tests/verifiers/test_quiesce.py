"""`quiesce` of `verify_sandbox`: what earlier steps left running in the place is killed, or stands still while it is looked at."""

from __future__ import annotations

import asyncio

import pytest

from agent_env.errors import LaunchError
from agent_env.places import Command
from agent_env.waiting import poll
from tests.steps.bench import BenchRun
from tests.verifiers.conftest import Bench
from tests.verifiers.test_verify_sandbox import bash, verify

LEAVES = """
import subprocess
def run(given):
    loop = "i=0; while :; do i=$((i+1)); echo $i > /app/count.new; mv /app/count.new /app/count; done"
    subprocess.Popen(["setsid", "sh", "-c", loop], stdin=-3, stdout=-3, stderr=-3)
    subprocess.run(["sh", "-c", "until test -s /app/count; do :; done"], check=True)
"""
STANDS_STILL = "a=$(cat /app/count); sleep 0.3; test $a = $(cat /app/count)"
GOES_ON = "a=$(cat /app/count); for i in $(seq 100); do sleep 0.02; test $a = $(cat /app/count) || exit 0; done; exit 1"

ENDED = {f"kill: process trees ended: {count}" for count in (1, 2)}
"""What was left behind, and perhaps a command that has just ended and is not buried yet."""


async def leave(run: BenchRun, step: str = "leaves") -> None:
    """Runs a step that ends and leaves a process of its own behind, one that has left its session too."""
    run.artifacts.put_file(step, LEAVES.encode(), filename="script.py")
    await run.do({"id": step, "type": "run_code", "script_artifact_id": step})


def done(run: BenchRun) -> str | None:
    text = run.metadata["verifications"]["v"].get("quiesce")
    return None if text is None else str(text)


def test_what_a_step_left_running_stands_still_while_it_is_frozen_and_goes_on_afterwards(bench: Bench) -> None:
    async def body(run: BenchRun) -> None:
        await leave(run)
        assert (await verify(run, bash(STANDS_STILL), quiesce="freeze")).score == 1.0
        assert (done(run) or "").startswith("freeze: processes held still: ")
        assert (done(run) or "").rpartition(" ")[2] != "0"
        await run.sh(GOES_ON)

    bench(body)


def test_what_was_frozen_goes_on_also_when_the_look_fails(bench: Bench) -> None:
    async def body(run: BenchRun) -> None:
        await leave(run)
        with pytest.raises(LaunchError):
            await verify(run, bash("true"), base_dir="/absent", quiesce="freeze")
        await run.sh(GOES_ON)

    bench(body)


def test_what_was_frozen_goes_on_also_when_the_look_is_cancelled(bench: Bench) -> None:
    async def body(run: BenchRun) -> None:
        await leave(run)
        look = asyncio.create_task(verify(run, bash("echo looking > /data/looking; sleep 60"), quiesce="freeze"))
        await run.sh("until test -e /data/looking; do sleep 0.01; done")
        look.cancel()
        await asyncio.wait([look])
        assert look.cancelled()
        await run.sh(GOES_ON)

    bench(body)


def test_f13_what_a_step_left_running_is_gone_before_a_look_that_kills(bench: Bench) -> None:
    async def body(run: BenchRun) -> None:
        await leave(run)
        assert (await verify(run, bash(STANDS_STILL), quiesce="kill")).score == 1.0
        assert (done(run) or "") in ENDED
        place = await run.box()

        async def nothing() -> bool | None:
            return None if [entry for entry in await place.ledger() if entry.running] else True

        assert await poll(nothing, within_seconds=60, what="the end of the look's own command")

    bench(body)


def test_by_default_what_runs_is_graded_as_it_runs(bench: Bench) -> None:
    async def body(run: BenchRun) -> None:
        await leave(run)
        assert (await verify(run, bash(GOES_ON))).score == 1.0
        assert (await verify(run, bash(GOES_ON), quiesce="leave")).score == 1.0
        assert done(run) is None

    bench(body)


def test_the_configuration_speaks_where_the_step_does_not(bench: Bench) -> None:
    async def body(run: BenchRun) -> None:
        run.quiesce = "freeze"
        await leave(run)
        assert (await verify(run, bash(STANDS_STILL))).score == 1.0
        assert (await verify(run, bash(GOES_ON), quiesce="leave")).score == 1.0
        run.quiesce = "kill"
        await verify(run)
        assert (done(run) or "") in ENDED

    bench(body)


@pytest.mark.parametrize("quiesce", ["freeze", "kill"])
def test_a_command_that_another_step_runs_at_the_same_time_is_left_alone(bench: Bench, quiesce: str) -> None:
    async def body(run: BenchRun) -> None:
        place = await run.box()
        other = await place.start(Command(["sh", "-c", "while :; do date +%N > /app/count; done"], attempt="att-of-another-step"))
        await run.sh("until test -s /app/count; do :; done")
        assert (await verify(run, bash(GOES_ON), quiesce=quiesce)).score == 1.0
        assert (done(run) or "").endswith(": 0; left alone, being at work for another step: 1")
        await other.aclose()

    bench(body)


@pytest.mark.parametrize("quiesce", ["freeze", "kill"])
def test_what_was_left_by_a_command_that_the_ledger_forgot_is_still_found(bench: Bench, quiesce: str) -> None:
    async def body(run: BenchRun) -> None:
        await leave(run)
        place = await run.box()
        for _ in range(6):
            await asyncio.gather(*(place.run(Command(["true"])) for _ in range(50)))
        assert (await verify(run, bash(STANDS_STILL), quiesce=quiesce)).score == 1.0

    bench(body)


@pytest.mark.parametrize("quiesce", ["freeze", "kill"])
def test_in_an_empty_place_nothing_is_done_and_the_record_says_so(bench: Bench, quiesce: str) -> None:
    async def body(run: BenchRun) -> None:
        assert (await verify(run, bash("true"), quiesce=quiesce)).score == 1.0
        assert (done(run) or "").endswith(": 0")

    bench(body)

"""What is a verdict and what never becomes one, by the kind of its ending: the rules of `verify_sandbox` as one table."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest

from agent_env.documents.outcomes import OUTCOMES, kind_of
from agent_env.errors import InfrastructureError, LaunchError, SandboxUnavailableError
from agent_env.places import Command
from agent_env.steps import read_step
from tests.steps.bench import BenchRun
from tests.verifiers.conftest import Bench
from tests.verifiers.test_verify_sandbox import bash, contains, exists, is_dir, verify

HOG = "exec python3 -c \"x = []\nwhile True: x.append(bytearray(b'x') * 50000000)\""
"""Uses up the memory of the whole place."""


@dataclass(frozen=True)
class Case:
    """Something that happens, and the score of a criterion that meets it; an error class where there must be none."""

    criterion: dict[str, Any]
    ends: float | type[InfrastructureError] | None
    before: str = "true"
    base_dir: str = "/app"


CASES = {
    "a command's exit code 0": Case(bash("exit 0"), 1.0),
    "a command's exit code 1": Case(bash("exit 1"), 0.0),
    "a command's exit code 126": Case(bash("exit 126"), 0.0),
    "a command's exit code 127, its own": Case(bash("no-such-program"), 0.0),
    "a command's exit code 137": Case(bash("exit 137"), 0.0),
    "a command that a signal ended": Case(bash("kill -9 $$"), 0.0),
    "a command that a limit of its own ended": Case(bash("ulimit -t 1; exec python3 -c 'while True: pass'"), 0.0),
    "a command whose shell text is broken": Case(bash("if"), 0.0),
    "a command's time limit": Case(bash("sleep 60"), 0.0),
    "a command that ignores its time limit": Case(bash("trap '' TERM; while :; do sleep 1; done"), 0.0),
    "a search's time limit": Case(contains("f", "(a+)+$"), 0.0, before="printf 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab' > /app/f"),
    "a file that is not there": Case(exists("absent"), 0.0),
    "a folder that is not there": Case(is_dir("absent"), 0.0),
    "a file below a file": Case(exists("f/g"), 0.0, before="touch /app/f"),
    "a link that loops": Case(exists("l"), 0.0, before="ln -s l /app/l"),
    "a link that dangles": Case(contains("l", ""), 0.0, before="ln -s gone /app/l"),
    "a name that no file can have": Case(exists("x" * 300), 0.0),
    "a folder where a text was wanted": Case(contains(".", ""), 0.0),
    "a pipe where a text was wanted": Case(contains("p", ""), 0.0, before="mkfifo /app/p"),
    "no paths": Case(exists(), 0.0),
    "a kind that nobody scores here": Case({"type": "judged_by_somebody"}, None),
    "a working folder that is not there": Case(bash("true"), LaunchError, base_dir="/absent"),
    "a working folder that is a file": Case(bash("true"), LaunchError, before="touch /app/f", base_dir="/app/f"),
    "a working folder that can't be entered": Case(bash("true"), LaunchError, before="mkdir -m 0 /app/d", base_dir="/app/d"),
    "a folder that can't be looked into, for a file": Case(exists("d/f"), InfrastructureError, before="mkdir -m 0 /app/d"),
    "a folder that can't be looked into, for a folder": Case(is_dir("d/f"), InfrastructureError, before="mkdir -m 0 /app/d"),
    "a folder that can't be looked into, for a text": Case(contains("d/f", ""), InfrastructureError, before="mkdir -m 0 /app/d"),
    "a file that can't be read": Case(contains("f", ""), InfrastructureError, before="touch /app/f; chmod 0 /app/f"),
    "a command that used up the place's memory": Case(bash(HOG), InfrastructureError),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_f11_what_a_criterion_meets_is_a_verdict_or_an_error_and_never_both(bench: Bench, case: Case) -> None:
    async def body(run: BenchRun) -> None:
        await run.sh(case.before)
        seconds = 2 if case.ends == 0.0 else 60  # what does not end by the limit must not end by it on a busy machine either
        criterion = verify(run, case.criterion, base_dir=case.base_dir, shell_timeout_seconds=seconds)
        if case.ends is None or isinstance(case.ends, float):
            result = await criterion
            assert (result.score, result.rows[0]["skipped"]) == (case.ends, case.ends is None)
            return
        with pytest.raises(case.ends) as raised:
            await criterion
        assert "verifications" not in run.metadata
        outcome = OUTCOMES[kind_of(raised.value)]
        assert (outcome.grade, outcome.counts) == (False, False)

    bench(body)


Fault = Callable[[BenchRun], Awaitable[None]]


async def gone(run: BenchRun) -> None:
    await run.provider.destroy(next(iter(run.sandboxes)))


async def closed(run: BenchRun) -> None:
    await (await run.box()).aclose()


@pytest.mark.parametrize("fault", [gone, closed], ids=["the place dies", "the connection goes"])
@pytest.mark.parametrize("when", ["before", "meanwhile"])
@pytest.mark.parametrize("criterion", [exists("f"), contains("f", "x"), bash("sleep 60")], ids=["a probe", "a search", "a command"])
def test_b14_a_place_that_goes_is_an_error_of_the_world(bench: Bench, criterion: dict[str, Any], when: str, fault: Fault) -> None:
    async def body(run: BenchRun) -> None:
        place = await run.box()
        if when == "before":
            await fault(run)
            work = asyncio.create_task(verify(run, criterion))
        else:
            work = asyncio.create_task(verify(run, bash("sleep 61"), criterion))
            while not [entry for entry in await place.ledger() if entry.running]:
                await asyncio.wait([work], timeout=0.01)
            await fault(run)
        with pytest.raises(InfrastructureError) as raised:
            await work
        assert "verifications" not in run.metadata
        outcome = OUTCOMES[kind_of(raised.value)]
        assert (outcome.grade, outcome.counts, outcome.retry) == (False, False, True)

    bench(body)


def test_one_fault_among_many_verdicts_leaves_no_score_at_all(bench: Bench) -> None:
    async def body(run: BenchRun) -> None:
        await run.sh("touch /app/a /app/f; chmod 0 /app/f")
        with pytest.raises(InfrastructureError, match="/app/f could not be read: EACCES"):
            await verify(run, exists("a"), bash("true"), contains("f", "x"), exists("a"), score_aggregator="any_pass")
        assert "verifications" not in run.metadata

    bench(body)


@pytest.mark.parametrize("pattern", ["(", "[", "*", "a{2,1}", "(?P<x>a)(?P<x>b)", "\\", "(?<=a*)b"])
def test_a_pattern_that_is_none_is_a_problem_before_anything_starts(pattern: str) -> None:
    data = {"id": "v", "type": "verify_sandbox", "sandbox_name": "box", "criteria": [exists("a"), contains("f", pattern)]}
    step, _ = read_step(data, source="task")
    (problem,) = step.problems(None)  # type: ignore[arg-type]
    assert problem.path == ".criteria[1].expected"
    assert "is no regular expression" in problem.message


def test_no_criterion_at_all_is_unscored(bench: Bench) -> None:
    async def body(run: BenchRun) -> None:
        for aggregator in ("all_pass", "any_pass", "weighted_average"):
            result = await verify(run, score_aggregator=aggregator)
            assert (result.score, result.scores()) == (None, {"v": None})

    bench(body)


def test_a_sandbox_that_is_not_there_any_more_is_unavailable_and_no_zero(bench: Bench) -> None:
    async def body(run: BenchRun) -> None:
        await run.teardown_sandbox(next(iter(run.sandboxes)))
        with pytest.raises(SandboxUnavailableError):
            await verify(run, exists("f"))
        assert (await (await _fresh(run)).run(Command(["true"]))).ok

    bench(body)


async def _fresh(run: BenchRun) -> Any:
    run.context["deployed_sandboxes"].clear()
    await run.do({"id": "box", "type": "deploy_sandbox", "sandbox_mode": "vm"})
    return await run.box()

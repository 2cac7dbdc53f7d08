"""Which step runs when: real tasks on a real event loop, with attempts whose endings the test chooses."""

from __future__ import annotations

import asyncio

import pytest

from agent_env.engine.graph import build
from agent_env.engine.scheduler import Ended, Rule, Scheduler
from agent_env.engine.signals import Cancellation, to_its_end


class Script:
    """Runs attempts whose endings are written down; remembers what happened in which order."""

    def __init__(self, *, endings=None, holds=None):
        self.endings = endings or {}
        self.holds = holds or {}
        self.log: list[str] = []
        self.started = {}

    async def attempt(self, step_id, *, retry, closing):
        self.log.append(f"+{step_id}")
        self.started.setdefault(step_id, asyncio.Event()).set()
        try:
            if step_id in self.holds:
                await self.holds[step_id].wait()
        except asyncio.CancelledError:
            self.log.append(f"x{step_id}")
            raise
        planned = self.endings.get(step_id, [])
        error = planned.pop(0) if planned else None
        self.log.append(f"{'!' if error else '-'}{step_id}")
        return Ended(step_id, f"{step_id}-{retry}", error)

    async def roll_back(self, failed, span, *, retry):
        self.log.append(f"<{failed.step_id}:{','.join(span)}")

    async def until(self, step_id):
        await self.started.setdefault(step_id, asyncio.Event()).wait()


def drive(steps, script, *, rules=None, during=None, **options):
    async def whole():
        cancellation = Cancellation()
        names = [name for name, _ in steps]
        scheduler = Scheduler(build(steps), {name: (rules or {}).get(name, Rule()) for name in names}, script, cancellation, **options)
        if during is None:
            return await scheduler.drive()
        async with asyncio.TaskGroup() as group:
            result = group.create_task(scheduler.drive())
            group.create_task(during(cancellation))
        return result.result()

    return asyncio.run(asyncio.wait_for(whole(), 20))


def test_steps_without_depends_on_run_one_after_the_other():
    script = Script()
    result = drive([("a", None), ("b", None), ("c", None)], script)
    assert script.log == ["+a", "-a", "+b", "-b", "+c", "-c"]
    assert (result.fatal, result.cancelled, result.left) == (None, False, ())


def test_independent_steps_run_at_once():
    async def during(_):
        await script.until("a")
        await script.until("b")
        holds["a"].set()
        holds["b"].set()

    holds = {name: asyncio.Event() for name in "ab"}
    script = Script(holds=holds)
    drive([("a", []), ("b", []), ("c", ["a", "b"])], script, during=during)
    assert script.log[:2] == ["+a", "+b"]
    assert script.log[-1] == "-c"


def test_a_fatal_failure_launches_nothing_more_and_lets_siblings_end():
    async def during(_):
        await script.until("a")
        await script.until("slow")
        holds["slow"].set()

    holds = {"slow": asyncio.Event()}
    script = Script(endings={"a": [ValueError("no")]}, holds=holds)
    result = drive([("slow", []), ("a", []), ("b", ["a"]), ("c", ["slow"])], script, during=during)
    assert "-slow" in script.log
    assert not {"+b", "+c"} & set(script.log)
    assert result.fatal is not None
    assert result.left == ("b", "c")


def test_a_tolerated_failure_lets_dependants_run():
    script = Script(endings={"a": [ValueError("no")]})
    result = drive([("a", None), ("b", None)], script, rules={"a": Rule(tolerated=True)})
    assert script.log == ["+a", "!a", "+b", "-b"]
    assert [ended.step_id for ended in result.tolerated] == ["a"]
    assert result.fatal is None


def test_always_run_steps_run_after_a_failure_once_nothing_they_wait_for_can_run():
    async def during(_):
        await script.until("a")
        await script.until("slow")
        holds["slow"].set()

    holds = {"slow": asyncio.Event()}
    script = Script(endings={"a": [ValueError("no")]}, holds=holds)
    rules = {"collect": Rule(always_run=True), "clean": Rule(always_run=True)}
    result = drive([("slow", []), ("a", []), ("b", None), ("collect", None), ("clean", None)], script, rules=rules, during=during)
    assert script.log[-5:] == ["-slow", "+collect", "-collect", "+clean", "-clean"]
    assert "+b" not in script.log
    assert result.left == ("b",)


def test_the_first_fatal_error_is_the_runs_error_also_when_clean_up_fails_too():
    first = ValueError("first")
    script = Script(endings={"a": [first], "clean": [ValueError("second")]})
    result = drive([("a", None), ("clean", None)], script, rules={"clean": Rule(always_run=True)})
    assert result.fatal is not None
    assert result.fatal.error is first


def test_a_retry_takes_the_span_back_and_leaves_independent_steps_alone():
    async def during(_):
        await script.until("d")
        holds["d"].set()

    holds = {"d": asyncio.Event()}
    script = Script(endings={"b": [ValueError("once")]}, holds=holds)
    rules = {"b": Rule(retry_from="a", max_retries=1)}
    result = drive([("a", []), ("b", ["a"]), ("c", ["b"]), ("d", [])], script, rules=rules, during=during)
    assert result.fatal is None
    assert "<b:a,b,c" in script.log
    assert "xd" not in script.log
    assert script.log.count("+d") == 1
    assert [entry for entry in script.log if entry[1:] in {"a", "b", "c"} and entry[0] in "+-!"] == [
        "+a", "-a", "+b", "!b", "+a", "-a", "+b", "-b", "+c", "-c",
    ]  # fmt: skip


def test_a_retry_stops_what_runs_inside_its_span():
    class Releasing(Script):
        async def roll_back(self, failed, span, *, retry):
            await super().roll_back(failed, span, retry=retry)
            self.holds.clear()

    script = Releasing(endings={"b": [ValueError("once")]}, holds={"c": asyncio.Event()})
    result = drive([("a", []), ("c", ["a"]), ("b", ["a"])], script, rules={"b": Rule(retry_from="a", max_retries=1)})
    assert "xc" in script.log
    assert script.log.count("-c") == 1
    assert result.fatal is None


def test_retries_are_spent_before_a_failure_counts_and_then_it_is_fatal():
    script = Script(endings={"a": [ValueError("1"), ValueError("2"), last := ValueError("3")]})
    result = drive([("a", None)], script, rules={"a": Rule(retry_from="a", max_retries=2)})
    assert script.log.count("+a") == 3
    assert result.fatal is not None
    assert result.fatal.error is last


def test_retries_that_an_earlier_process_used_are_not_given_again():
    script = Script(endings={"a": [ValueError("1"), ValueError("2")]})
    result = drive([("a", None)], script, rules={"a": Rule(retry_from="a", max_retries=1)}, retries={"a": 1})
    assert script.log == ["+a", "!a"]
    assert result.fatal is not None


def test_steps_that_are_done_already_are_not_run_again():
    script = Script()
    drive([("a", None), ("b", None)], script, done=["a"])
    assert script.log == ["+b", "-b"]


def test_d7_a_first_cancellation_stops_ordinary_steps_and_runs_clean_up():
    async def during(cancellation):
        await script.until("a")
        cancellation.ask()

    script = Script(holds={"a": asyncio.Event()})
    result = drive([("a", None), ("b", None), ("clean", None)], script, rules={"clean": Rule(always_run=True)}, during=during)
    assert script.log == ["+a", "xa", "+clean", "-clean"]
    assert result.cancelled
    assert result.left == ("a", "b")


def test_d7_a_second_cancellation_stops_clean_up_too():
    async def during(cancellation):
        await script.until("a")
        cancellation.ask()
        await script.until("clean")
        cancellation.ask()

    script = Script(holds={"a": asyncio.Event(), "clean": asyncio.Event()})
    rules = {"clean": Rule(always_run=True), "more": Rule(always_run=True)}
    result = drive([("a", None), ("clean", None), ("more", None)], script, rules=rules, during=during)
    assert script.log == ["+a", "xa", "+clean", "xclean"]
    assert result.left == ("a", "clean", "more")


def test_what_an_attempt_could_not_record_stops_the_whole_run_and_says_why():
    class Broken(Script):
        async def attempt(self, step_id, *, retry, closing):
            if step_id == "bad":
                raise OSError("disk full")
            return await super().attempt(step_id, retry=retry, closing=closing)

    script = Broken(holds={"a": asyncio.Event()})
    with pytest.raises(OSError, match="disk full"):
        drive([("a", []), ("bad", [])], script)
    assert script.log == ["+a", "xa"]


def test_each_cancellation_of_the_caller_is_one_request_to_stop():
    async def whole():
        cancellation = Cancellation()
        begun = asyncio.Event()

        async def work():
            begun.set()
            await cancellation.stop
            return "cleaned up"

        async with asyncio.TaskGroup() as group:
            task = group.create_task(to_its_end(work(), cancellation))
            await begun.wait()
            task.cancel()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert cancellation.asked
            assert not task.done()
            task.cancel()
        assert cancellation.insisted
        assert task.cancelled()

    asyncio.run(asyncio.wait_for(whole(), 20))

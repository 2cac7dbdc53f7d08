"""What a call goes on with: the newest unfinished group of exactly the same work, and what is said where there is none."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from agent_env.bundles.calls import Call, earlier_call
from agent_env.config import load_config
from agent_env.stores import Journal, NewRun
from agent_env.stores.opening import open_memory

WORK = Call(keys=("a", "b"), contents={"tasks/t.json": "1"}, attempts=2, options={"judge_model": "small"})


@pytest.fixture
def journal(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Journal]:
    monkeypatch.setenv("XDG_STATE_HOME", str(home / "state"))
    with open_memory(load_config(home, os.environ)) as memory:
        yield memory.journal


def begin(journal: Journal, group: str, call: Call, *, only: Sequence[str] = (), stored: bool = True, done: bool = True) -> None:
    """Runs of a call, as far as they began."""

    async def store() -> None:
        for index, key in enumerate(call.keys):
            if only and key not in only:
                continue
            run_id = f"run-{group}-{key}"
            options = {"work_key": key, **({"call": {**call.stored(), "content": "1"}} if stored else {})}
            new = NewRun(
                run_id,
                f"i-{run_id}",
                "t",
                bundle_id="local:b",
                bundle_path="tasks/t.json",
                group_id=group,
                attempt_index=index,
                attempt_count=call.attempts,
                options=options,
            )
            await journal.create_run(new)
            if done:
                lease = await journal.claim(run_id)
                await journal.set_run(lease, status="completed", kind="completed")

    asyncio.run(store())


def test_the_newest_unfinished_group_goes_on_and_a_finished_one_is_shown(journal: Journal) -> None:
    assert "no earlier call" in earlier_call(journal, WORK, bundle="local:b").said()
    begin(journal, "group-one", WORK, only=["a"])
    begin(journal, "group-two", WORK)
    found = earlier_call(journal, WORK, bundle="local:b")
    assert (found.group_id, found.counts()) == ("group-one", {"kept": 1, "go_on": 0, "begin": 1})
    assert found.said() == "going on with group-one: 1 kept, 0 unfinished, 1 not begun"
    begin(journal, "group-one", WORK, only=["b"], done=False)
    assert earlier_call(journal, WORK, bundle="local:moved").counts() == {"kept": 1, "go_on": 1, "begin": 0}


def test_where_all_are_finished_the_newest_is_kept_as_it_is(journal: Journal) -> None:
    begin(journal, "group-one", WORK)
    begin(journal, "group-two", WORK)
    found = earlier_call(journal, WORK, bundle="local:b")
    assert found.finished
    assert found.said() == "nothing to go on with: every run of group-two has ended, 2 of 2 are kept as they are"


@pytest.mark.parametrize(
    ("then", "said"),
    [
        (replace(WORK, attempts=4, keys=("a", "b", "c", "d")), "its --attempts was 4"),
        (replace(WORK, attempts=1, keys=("a",)), "its --attempts was 1"),
        (replace(WORK, seeds=[{"n": "1"}]), "the seeds differ"),
        (replace(WORK, seed=3), "its --seed was 3"),
        (replace(WORK, options={"judge_model": "large"}), "--judge-model differs"),
        (replace(WORK, options={**WORK.options, "model_budget": {"tokens": 1}}), "the models' budget differs"),
        (replace(WORK, options={**WORK.options, "api_key": "x"}), "what is overridden differs"),
        (replace(WORK, contents={"tasks/t.json": "2"}), "what its tasks say or use has changed"),
        (replace(WORK, contents={"tasks/other.json": "1"}), "other tasks were chosen"),
    ],
)
def test_a_group_of_other_work_is_never_gone_on_with_and_what_differs_is_said(journal: Journal, then: Call, said: str) -> None:
    begin(journal, "group-other", then, done=False)
    found = earlier_call(journal, WORK, bundle="local:b")
    assert (found.group_id, found.runs) == (None, {})
    assert found.said().startswith(f"a new group begins, because group-other is for other work: {said} (the command as it was")


def test_groups_of_older_versions_are_found_by_the_work_of_their_runs(journal: Journal) -> None:
    begin(journal, "group-other", replace(WORK, keys=("a", "z")), stored=False)
    begin(journal, "group-more", replace(WORK, attempts=4), stored=False)
    assert earlier_call(journal, WORK, bundle="local:b").group_id is None
    begin(journal, "group-old", WORK, only=["a"], stored=False)
    found = earlier_call(journal, WORK, bundle="local:b")
    assert (found.group_id, sorted(found.runs)) == ("group-old", ["a"])


def test_no_value_of_an_option_or_a_seed_is_stored() -> None:
    call = replace(
        WORK, seeds=[{"word": "canary"}], options={"judge_model": "canary", "api_key": "canary", "step_params": {"s": {"x": "canary"}}}
    )
    assert "canary" not in str(call.stored())

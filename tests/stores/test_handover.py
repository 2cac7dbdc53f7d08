"""What passes between processes through the database: resources that change hands, requests to stop."""

from __future__ import annotations

import asyncio

import pytest

from agent_env.errors import SupersededError
from agent_env.stores import Database, Journal, Resource
from agent_env.stores.handover import STOP_NOTE, adopt, ask_to_stop

from .test_journal import started


def test_an_adopted_resource_belongs_to_its_new_run(db: Database, journal: Journal) -> None:
    async def live() -> None:
        old = await started(journal, "run-1")
        await journal.intend(old, Resource("box", "sandbox", "local", "box", "att-1", facts={"pid": 1}))
        await journal.release(old)
        new = await started(journal, "run-2")
        await adopt(db, new, "box", {"base": 3})
        journal.delete_run("run-1")
        row = journal.resource("box")
        assert row is not None
        assert (row.run_id, row.attempt_id, row.epoch, row.facts) == ("run-2", None, 1, {"pid": 1, "base": 3})
        await journal.release(new)
        with pytest.raises(SupersededError):
            await adopt(db, new, "box", {})

    asyncio.run(live())


def test_a_request_to_stop_reaches_the_owner_as_a_note_and_loses_no_other_note(db: Database, journal: Journal) -> None:
    async def live() -> None:
        lease = await started(journal)
        await asyncio.gather(
            *(journal.set_run(lease, notes={f"n{number}": number}) for number in range(5)),
            ask_to_stop(db, "run-1", "ann"),
            *(journal.set_run(lease, notes={f"m{number}": number}) for number in range(5)),
        )

    asyncio.run(live())
    notes = journal.run("run-1").notes
    assert notes.pop(STOP_NOTE) == "ann"
    assert len(notes) == 10
    assert journal.is_owned("run-1")

"""Reviews: the questions that wait for a person, and the answers."""

from __future__ import annotations

from typing import Any, Literal

from agent_env.cli.output import moment, note, table, write_json
from agent_env.cli.rows import review_json
from agent_env.cli.session import find_run, opened_engine, opened_stores


async def decide(run: str, step: str, decision: Literal["continue", "abort"], by: str | None) -> dict[str, Any]:
    """Records a decision; a process of this machine that waits for it hears at once."""
    who = by or _user()
    async with opened_engine() as engine:
        run_id = find_run(engine.stores, run).run_id
        await engine.decide(run_id, step, decision, who)
    return {"run_id": run_id, "step_id": step, "decision": decision, "decided_by": who}


def show_pending(run: str | None, *, as_json: bool) -> None:
    """Lists what waits, of one run or of all."""
    with opened_stores() as stores:
        only = find_run(stores, run).run_id if run else None
        pending = [review for review in stores.journal.pending_reviews() if only in (None, review.run_id)]
    if as_json:
        write_json({"reviews": [review_json(review) for review in pending]})
    elif not pending:
        note("nothing waits for a review")
    else:
        table(("RUN", "STEP", "LABEL", "ASKED (UTC)"), [(r.run_id, r.step_id, r.label, moment(r.asked_at)) for r in pending])
        note("decide: agent-env runs review RUN STEP continue|abort")


def _user() -> str:
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user id without a name: containers
        import os

        return str(os.getuid())

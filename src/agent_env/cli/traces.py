"""What agents did as OpenTelemetry traces, and what they tell while they work."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from agent_env.cli.output import line, note, reader_left
from agent_env.cli.session import find_run, opened_engine

if TYPE_CHECKING:
    from agent_env.agents.otlp import RecordedTurn
    from agent_env.stores import RunRow
    from agent_env.stores.objects import Objects

Json = Any


def traces_of(run: RunRow, context: Mapping[str, Json], objects: Objects, *, only: str | None) -> dict[str, Json]:
    """The run's turns as one OTLP document.

    Args:
        run: The run.
        context: As it is recorded.
        objects: Where trajectories are.
        only: A prompt, by its id or its step's; None: all.
    """
    from agent_env.agents.otlp import otlp

    answers = [each for each in context.get("prompt_responses") or () if only in {None, each.get("prompt_id"), each.get("step_id")}]
    turns = _turns(answers, objects, run.created_at)
    return otlp(turns, resource={"agentenv.run_id": run.run_id, "agentenv.task_id": run.task_id})


def _turns(answers: list[Mapping[str, Json]], objects: Objects, began: str) -> Iterator[RecordedTurn]:
    from agent_env.agents.otlp import RecordedTurn

    for answer in answers:
        for turn in answer.get("turns") or ():
            url = turn.get("trajectory_atif_url")
            if url is None:
                note(f"turn {turn.get('turn')} of prompt {answer.get('prompt_id')!r} is in a format that nobody here knows, and left out")
                continue
            failed = turn.get("end") not in {"completed", "input_required"}
            error = str(answer.get("error_message") or turn.get("end")) if failed else None
            facts = {"agentenv.prompt_id": str(answer.get("prompt_id")), "agentenv.turn": str(turn.get("turn"))}
            yield RecordedTurn(json.loads(objects.read(url)), str(turn.get("message_id")), began, error, facts)


async def follow_agents(run: str) -> None:
    """Prints what agents record as they tell it, an object a line, until the run is over."""
    async with opened_engine() as engine, aclosing(engine.trajectory_of_run(find_run(engine.stores, run).run_id)) as events:
        async for event in events:
            line(json.dumps(event, ensure_ascii=False))
            if reader_left():
                return

"""One run for people: what `runs show` and `runs logs` print of it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from agent_env.cli.output import line, moment, note, one_line, table
from agent_env.cli.results import score_text, seconds_text
from agent_env.cli.rows import asked_for, criteria_not_passed, criteria_not_scored, printed_by, state, step_types, used_by
from agent_env.cli.session import context_of
from agent_env.cli.trajectories import usage_text
from agent_env.documents.scoring import score_of

if TYPE_CHECKING:
    from agent_env.engine import TeardownReport
    from agent_env.stores import StoredRun

_FOR_PROGRAMS = frozenset({"attempt_id", "epoch"})
"""Of an event, what `--json` tells and no person asks for."""
_WHAT_CHARACTERS = 200
"""Of a step's own words and of what an event holds; the run's error stands whole above them."""
_LAST_LINES = 20
"""Of what a failed script printed; a traceback of few frames."""
_DIGEST = re.compile(r"(\bsha256:[0-9a-f]{12})[0-9a-f]{52}\b")


def show_run(stored: StoredRun, *, stopped: bool, said: Mapping[str, str], waiting: Sequence[str] = ()) -> None:
    """Prints all of a run.

    Args:
        stored: The run.
        stopped: It was interrupted.
        said: A step's own words of what it did, by its attempt's id.
        waiting: The steps that wait for a person's decision.
    """
    run = stored.run
    version = f" v{run.task_version}" if run.task_version is not None else ""
    facts = {
        "run": run.run_id,
        "task": f"{run.task_id}{version}",
        "result": state(run, stopped=stopped),
        "score": score_text(run.scores, score_of(run)) or None,
        "attempt": f"{run.attempt_index + 1} of {run.attempt_count} in {run.group_id}" if run.attempt_count > 1 else None,
        "group": run.group_id if run.attempt_count == 1 else None,
        **{name.replace("_", " "): str(value) for name, value in asked_for(stored).items()},
        "created": f"{moment(run.created_at)} UTC",
        "time": seconds_text(run.duration_seconds),
        "owner": str(run.owner) if run.owner and run.status == "running" else None,
        "seed": ", ".join(f"{key}={value}" for key, value in run.seed.items()) or None,
    }
    for name, value in facts.items():
        if value:
            line(f"{name:11} {value}")
    if run.error:
        line(f"{'error':11} {run.error.get('step_id') or ''} {run.error.get('code')}: {run.error.get('message')}")
    for name, facts in (run.notes.get("sandboxes") or {}).items():
        levels = ", ".join(f"{limit} {level}" for limit, level in (facts.get("levels") or {}).items())
        line(f"{'place':11} {name}: {facts.get('sandbox_id')} ({facts.get('provider')}); limits: {levels}; network: {facts.get('network')}")
    if run.notes.get("kept"):
        line(f"{'kept':11} its places were left up: agent-env runs teardown {run.run_id}")
    if stored.attempts:
        line()
        types = step_types(stored)
        table(
            ("STEP", "TYPE", "ATTEMPT", "STATE", "SCORE", "TIME", "WHAT"),
            [
                (
                    a.step_id,
                    types.get(a.step_id),
                    a.number,
                    "taken back" if a.superseded else "cut" if stopped and a.state == "running" else a.state,
                    score_text(a.scores) or None,
                    seconds_text(a.duration_seconds),
                    one_line(said.get(a.attempt_id) or (a.error or {}).get("message") or "", _WHAT_CHARACTERS),
                )
                for a in stored.attempts
            ],
            right=(2, 5),
        )
    _show_printed(stored)
    context = context_of(stored)
    prompts = context.get("prompt_responses") or ()
    _show_prompts(prompts)
    failed = criteria_not_passed(context)
    if failed:
        line()
        table(("VERIFIER", "NOT PASSED", "WEIGHT", "WHY"), failed, right=(2,))
    unscored = criteria_not_scored(context)
    if unscored:
        line()
        table(("VERIFIER", "NOT SCORED", "WHY"), unscored)
    if stored.resources:
        line()
        table(("PLACE", "PROVIDER", "KIND", "STATE"), [(r.name, r.provider, r.kind, r.state) for r in stored.resources])
    used = used_by(stored)
    if used:
        line()
        table(("USED", "VERSION", "DIGEST"), [(f"{u.collection}/{u.id}", u.version, brief(u.digest)) for u in used], right=(1,))
    if prompts:
        note(f"what agents did: agent-env runs trajectory {run.run_id}")
    if stopped or run.status == "cancelled":
        note(f"go on: agent-env resume {run.run_id}")
    for step in waiting:
        note(f"waits for a person: agent-env runs review {run.run_id} {step} continue|abort")


def _show_printed(stored: StoredRun) -> None:
    """The last lines that failed scripts printed; those that did their work say what they returned."""
    told = False
    for attempt in stored.attempts:
        for name, text in printed_by(attempt).items() if attempt.state == "failed" else ():
            told, lines = True, text.splitlines()
            which = f", attempt {attempt.number}" if attempt.number > 1 or attempt.superseded else ""
            line()
            line(f"{name} of {attempt.step_id}{which}{f', its last {_LAST_LINES} lines' if len(lines) > _LAST_LINES else ''}:")
            _show_lines(lines[-_LAST_LINES:])
    if told:
        note(f"all that scripts printed: agent-env runs logs {stored.run.run_id}")


def _show_lines(lines: Sequence[str]) -> None:
    for text in lines:
        line(f"  {text}")


def _show_prompts(prompts: Sequence[Mapping[str, Any]]) -> None:
    if not prompts:
        return
    line()
    rows = [
        (
            p["prompt_id"],
            p.get("agent_name"),
            p.get("state"),
            p.get("tool_call_count"),
            usage_text(p),
            one_line(p.get("response") or "", 60),
        )
        for p in prompts
    ]
    table(("PROMPT", "AGENT", "STATE", "TOOL CALLS", "USED", "ANSWER"), rows, right=(3,))


def print_events(events: Any, *, as_json: bool, after: int) -> int:
    """Prints events, and returns the number of the last; `after` where there was none."""
    for event in events:
        print_event(event, as_json=as_json)
        after = event["seq"]
    return after


def print_event(event: dict[str, Any], *, as_json: bool) -> None:
    """Prints one event on a line."""
    if as_json:
        line(json.dumps(event, ensure_ascii=True, separators=(",", ":")))
        return
    payload = event["payload"] or {}
    told = {key: value for key, value in payload.items() if key not in _FOR_PROGRAMS and value not in (None, "", [], {})}
    said = " ".join(f"{key}={_short(brief(value))}" for key, value in told.items())
    line(f"{event['at'][:23].replace('T', ' ')} {event['kind']:13} {event['step_id'] or ''} {said}".rstrip())
    for name, text in (event.get("printed") or {}).items():
        line(f"  {name} of {event['step_id']}:")
        _show_lines([f"  {each}" for each in text.splitlines()])


def show_elsewhere(report: TeardownReport, run_id: str) -> None:
    """Prints what a teardown left to the installation that it belongs to, and how it is removed there."""
    for name, elsewhere in report.elsewhere.items():
        line(f"{name}: left: {elsewhere.why}")
    for hint in dict.fromkeys(elsewhere.remedy(run_id) for elsewhere in report.elsewhere.values()):
        note(f"hint: {hint}")


def brief(value: Any) -> Any:
    """A value for people: seconds have more digits than clocks are good for, and digests more than anybody compares."""
    if isinstance(value, float):
        return round(value, 6)
    return _DIGEST.sub(r"\1…", value) if isinstance(value, str) else value


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return one_line(text, _WHAT_CHARACTERS)

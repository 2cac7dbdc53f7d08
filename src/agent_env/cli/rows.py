"""What stored runs look like: the documented JSON of `runs list`, `runs show`, `runs logs` and `runs diff`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from agent_env.bundles.verdict import ERROR_KEYS
from agent_env.diagnostics import each
from agent_env.documents.scoring import score_of
from agent_env.documents.updates import SetMetadata, decode
from agent_env.errors import NotFoundError

if TYPE_CHECKING:
    from agent_env.stores import AttemptRow, EventRow, Journal, ResourceRow, ReviewRow, RunRow, StoredRun
    from agent_env.stores.records import RunStatus

UNFINISHED: tuple[RunStatus, ...] = ("queued", "running")
"""What is recorded of a run that goes on, or that was interrupted."""
_PAGE = 200
_DIGESTS = frozenset({"work_key", "call"})
"""Options that are digests of what is compared by itself."""
_ASKED = {"a2a_agent_id": "agent"}
"""Overrides whose option has another name."""


def interrupted(journal: Journal, run: RunRow) -> bool:
    """It is recorded as unfinished, and the process that ran it is gone: `resume` can go on with it."""
    return run.status in UNFINISHED and not journal.is_owned(run.run_id)


def interrupted_runs(journal: Journal, *, task: str | None, group: str | None, before: str | None, limit: int) -> list[RunRow]:
    """The newest runs that were interrupted; the arguments are those of `list_runs`."""
    found: list[RunRow] = []
    for status in UNFINISHED:
        mine: list[RunRow] = []
        last = before
        while len(mine) < limit and (rows := journal.list_runs(task=task, status=status, group=group, limit=_PAGE, before=last)):
            mine += (row for row in rows if interrupted(journal, row))
            last = rows[-1].run_id
        found += mine[:limit]
    return sorted(found, key=lambda row: (row.created_at, row.run_id), reverse=True)[:limit]


def state(run: RunRow, *, stopped: bool) -> str:
    """The run in one word or two, for people."""
    return "interrupted" if stopped else run.word or run.status


def criteria_not_passed(context: Mapping[str, Any]) -> list[tuple[str, str, Any, str]]:
    """Why scores are what they are: verifier, criterion, weight and reason of each scored row that did not pass."""
    from agent_env.verifiers.scoring import is_scored

    found = [(verifier, index, row) for verifier, index, row in _rows_of(context) if is_scored(row) and row.get("result") is not True]
    return [(verifier, _criterion(row, index), row.get("weight", 1), _reason(row)) for verifier, index, row in found]


def criteria_not_scored(context: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """What no score has a part of: verifier, criterion and reason."""
    from agent_env.verifiers.scoring import is_scored

    return [(verifier, _criterion(row, index), _reason(row)) for verifier, index, row in _rows_of(context) if not is_scored(row)]


def _rows_of(context: Mapping[str, Any]) -> Iterator[tuple[str, int, Mapping[str, Any]]]:
    for verifier, found in ((context.get("metadata") or {}).get("verifications") or {}).items():
        for index, row in enumerate((found or {}).get("results") or ()):
            yield verifier, index, row


def _criterion(row: Mapping[str, Any], index: int) -> str:
    """What its author calls it, else its kind and where it stands in the list."""
    return str(row.get("criterion") or row.get("title") or (f"criteria[{index}] {row['type']}" if row.get("type") else row.get("id")))


def _reason(row: Mapping[str, Any]) -> str:
    return str(row.get("justification") or row.get("message") or "")


def _seconds(run: RunRow) -> float | None:
    return None if run.duration_seconds is None else round(run.duration_seconds, 6)


def run_json(run: RunRow, *, stopped: bool) -> dict[str, Any]:
    """One run of `runs list --json`."""
    return {
        "run_id": run.run_id,
        "task": run.task_id,
        "task_version": run.task_version,
        "status": run.status,
        "interrupted": stopped,
        "outcome": run.word,
        "kind": run.kind,
        "scores": {name: score for name, score in run.scores.items() if score is not None},
        "score": score_of(run),
        "created_at": run.created_at,
        "started_at": run.started_at,
        "finished_at": run.finished_at,
        "duration_seconds": _seconds(run),
        "error": {name: run.error.get(name) for name in ERROR_KEYS} if run.error else None,
        "instance_id": run.instance_id,
        "group_id": run.group_id,
        "attempt": run.attempt_index + 1,
        "attempts": run.attempt_count,
    }


def step_types(stored: StoredRun) -> dict[str, str]:
    """The type of each step of a run's task, by its id."""
    return {step["id"]: step["type"] for step in (stored.task or {}).get("steps", ())}


def refuse_unknown_steps(stored: StoredRun, steps: Sequence[str]) -> None:
    """Raises what there is to say of steps that are none of a run's task, all at once.

    Raises:
        UserError: One is none; names those of near spelling, or all that there are.
    """
    from agent_env.documents.spelling import near

    known = step_types(stored)
    there = f"it has {', '.join(known)}"

    def look_for(step: str) -> None:
        if step not in known:
            meant = near(step, known)
            hint = f"did you mean {meant!r}?" if meant else there
            raise NotFoundError(f"{stored.run.run_id} has no step {step!r}", concerns=step, hint=hint)

    each(look_for, steps)


def details_json(stored: StoredRun, *, stopped: bool, said: Mapping[str, str] | None = None) -> dict[str, Any]:
    """`runs show --json`: the run, what each step did, what it made, and the exact versions of what it used."""
    run, types, said = stored.run, step_types(stored), said or {}
    return {
        **run_json(run, stopped=stopped),
        "task_digest": run.task_digest,
        "bundle": run.bundle_id,
        "seed": dict(run.seed),
        "options": dict(run.options),
        "notes": dict(run.notes),
        "owner": run.owner.to_json() if run.owner else None,
        "steps": [
            {**attempt_json(attempt), "type": types.get(attempt.step_id), "summary": said.get(attempt.attempt_id)}
            for attempt in stored.attempts
        ],
        "resources": [resource_json(resource) for resource in stored.resources],
        "used": [used._asdict() for used in used_by(stored)],
    }


class Used(NamedTuple):
    """Something that a run depended on, exactly."""

    collection: str
    """Of a document; `images` of an image."""
    id: str
    version: int | None
    digest: str


def used_by(stored: StoredRun) -> list[Used]:
    """The documents that a run depended on, and the images that its places were made of, each by the digest of its content."""
    made_of = [resource.facts.get("image") for resource in stored.resources]
    known = [image for image in made_of if isinstance(image, Mapping) and image.get("id")]
    images = {(str(image["name"]), str(image["id"])) for image in known}
    return [
        *(Used(u.collection, u.id, u.version, u.digest) for u in stored.used),
        *(Used("images", name, None, digest) for name, digest in sorted(images)),
    ]


def attempt_json(attempt: AttemptRow) -> dict[str, Any]:
    """One attempt at one step."""
    return {
        "step_id": attempt.step_id,
        "attempt": attempt.number,
        "state": attempt.state,
        "kind": attempt.kind,
        "started_at": attempt.started_at,
        "finished_at": attempt.finished_at,
        "duration_seconds": attempt.duration_seconds,
        "scores": dict(attempt.scores),
        "error": {name: attempt.error.get(name) for name in ERROR_KEYS} if attempt.error else None,
        "superseded": attempt.superseded,
        "printed": printed_by(attempt) or None,
    }


def resource_json(resource: ResourceRow) -> dict[str, Any]:
    """Something that a run made."""
    return {
        "id": resource.id,
        "kind": resource.kind,
        "provider": resource.provider,
        "name": resource.name,
        "state": resource.state,
        "expires_at": resource.expires_at,
    }


def printed_by(attempt: AttemptRow) -> dict[str, str]:
    """The ends of what an attempt's script or tests printed: `stdout` and `stderr`, each only when there is something."""
    logs = [u.value for u in decode(attempt.updates) if isinstance(u, SetMetadata) and u.path[0] == "script_logs"]
    return {name: log[name] for log in logs for name in ("stdout", "stderr") if log.get(name)}


def with_printed(event: dict[str, Any], journal: Journal) -> dict[str, Any]:
    """An event; that of a step's end with what its script or its tests printed."""
    attempt_id = (event["payload"] or {}).get("attempt_id")
    if attempt_id is None or event["kind"] not in {"step_done", "step_failed"}:
        return event
    printed = printed_by(journal.attempt(attempt_id))
    return {**event, "printed": printed} if printed else event


def event_json(event: EventRow) -> dict[str, Any]:
    """One event, in the shape in which the control socket tells it."""
    return {
        "run_id": event.run_id,
        "seq": event.seq,
        "at": event.at,
        "kind": event.kind,
        "step_id": event.step_id,
        "payload": event.payload,
    }


def review_json(review: ReviewRow) -> dict[str, Any]:
    """A question that waits for a person."""
    return {
        "run_id": review.run_id,
        "step_id": review.step_id,
        "label": review.label,
        "asked_at": review.asked_at,
        "upstream": review.upstream,
    }


def asked_for(stored: StoredRun) -> dict[str, Any]:
    """Which models, agents and providers the command asked for, over what the task says: what `--model`, `--agent` and their like gave."""
    context = stored.context or {}
    given = {"model": context.get("agent_model"), **((context.get("metadata") or {}).get("user_overrides") or {})}
    return {_ASKED.get(name, name): value for name, value in given.items() if isinstance(value, str) and "key" not in name}


def differences(left: StoredRun, right: StoredRun) -> dict[str, dict[str, Any]]:
    """What two runs don't have in common: dotted name → `{"left", "right"}`."""
    one, other = _flat(left), _flat(right)
    names = [*one, *(name for name in other if name not in one)]
    return {name: {"left": one.get(name), "right": other.get(name)} for name in names if one.get(name) != other.get(name)}


def _flat(stored: StoredRun) -> dict[str, Any]:
    run = stored.run
    flat: dict[str, Any] = {
        "task": run.task_id,
        "task_version": run.task_version,
        "task_digest": run.task_digest,
        "status": run.status,
        "outcome": run.word,
        "kind": run.kind,
        "error": (run.error or {}).get("code"),
        "duration_seconds": _seconds(run),
    }
    flat |= _prefixed("asked", asked_for(stored))
    flat |= _prefixed("scores", run.scores) | _prefixed("seed", run.seed)
    flat |= _prefixed("options", {name: value for name, value in run.options.items() if name not in _DIGESTS})
    for attempt in stored.attempts:
        if not attempt.superseded:
            flat[f"steps.{attempt.step_id}.state"] = attempt.state
            flat[f"steps.{attempt.step_id}.attempt"] = attempt.number
    for used in used_by(stored):
        version = "" if used.version is None else f"v{used.version} "
        flat[f"used.{used.collection}.{used.id}"] = f"{version}{used.digest}"
    return flat


def _prefixed(name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{name}.{key}": value for key, value in values.items()}

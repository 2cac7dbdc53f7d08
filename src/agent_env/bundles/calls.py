"""Which earlier call was for the same work: what decides which runs a call has and what they do, and the group of such a call.

A call goes on with a group only if everything is the same that decides this. How many runs are at once, what is shown and where results are
written decide nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from agent_env.bundles.work import content_digest
from agent_env.documents.scoring import counts
from agent_env.documents.updates import Json
from agent_env.wording import counted

if TYPE_CHECKING:
    from agent_env.stores import GroupRow, Journal, RunRow

_GROUPS = 1000
"""How many groups are looked at, newest first."""
_DIGITS = 16
"""Of a digest; only calls of one installation are compared."""
_NAMED = 3
"""So many changed tasks are named."""
_OPTIONS = {
    "agent_model": "--model",
    "user_model": "--user-model",
    "judge_model": "--judge-model",
    "a2a_agent_id": "--agent",
    "sandbox": "--sandbox",
    "env_sandbox": "--sandbox",
    "record": "--record",
    "replay": "--replay",
    "model_budget": "the models' budget",
}
"""What people call it that differs."""


@dataclass(frozen=True, slots=True)
class _Ending:
    """What some runs of a group have in common."""

    status: str
    kind: str | None
    word: str | None = None
    scores: Mapping[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True)
class Call:
    """What decides which runs a call has, and what they do."""

    keys: tuple[str, ...]
    """Of each of its runs, in their order: of the task's content, the seed, the attempt and the overrides."""
    contents: Mapping[str, str]
    """Name of each task → digest of what it says and uses. A task that is run alone has no name."""
    seeds: Sequence[Mapping[str, Json]] = ()
    seed: int | None = None
    attempts: int = 1
    options: Mapping[str, Json] = field(default_factory=dict)
    """Overrides and what is asked of models, by name; None and what is empty is not there."""

    def stored(self) -> dict[str, Json]:
        """What each run of the call keeps of it: digests and numbers, no value of an option or a seed."""
        plain = {name: value for name, value in self.options.items() if name in _OPTIONS and value}
        rest = {name: value for name, value in self.options.items() if name not in plain and value}
        said = {
            "tasks": _digest(list(self.contents)),
            "contents": _digest(list(self.contents.values())),
            "seeds": _digest([dict(row) for row in self.seeds]),
            "seed": self.seed,
            "attempts": self.attempts,
            "options": {**{name: _digest(value) for name, value in plain.items()}, "": _digest(rest)},
        }
        return {"key": _digest([list(self.keys), said]), "runs": len(self.keys), **said}


@dataclass(frozen=True)
class Earlier:
    """What there is to go on with."""

    group_id: str | None = None
    """The group of the same work; None where there is none."""
    runs: Mapping[str, RunRow] = field(default_factory=dict)
    """Its newest run for each key."""
    wanted: int = 0
    """How many runs the work has."""
    similar: str | None = None
    """Where there is none: the group that is most like it, the unfinished ones first."""
    similar_ended: bool = False
    """All runs of that one have ended."""
    differs: tuple[str, ...] = ()
    """What is different there, in words."""

    @property
    def kept(self) -> int:
        """Runs that ended, and are not done again."""
        return sum(counts(row) for row in self.runs.values())

    @property
    def finished(self) -> bool:
        """Nothing is left to do."""
        return self.group_id is not None and self.kept == self.wanted

    def counts(self) -> dict[str, int]:
        """How many runs are kept, go on, and begin."""
        return {"kept": self.kept, "go_on": len(self.runs) - self.kept, "begin": self.wanted - len(self.runs)}

    def to_json(self) -> dict[str, Json]:
        """The documented shape in `run --resume --dry-run --json`."""
        return {"group_id": self.group_id, **self.counts(), "similar": self.similar, "differs": list(self.differs)}

    def also(self) -> str:
        """What is done beside the runs that begin; empty where there is nothing else."""
        if self.group_id is None:
            return ""
        many = self.counts()
        return f", go on with {counted(many['go_on'], 'run')} and keep {counted(many['kept'], 'run')}"

    def said(self) -> str:
        """One line for people: what goes on, or why a new group begins."""
        if self.finished:
            return f"nothing to go on with: every run of {self.group_id} has ended, {self.wanted} of {self.wanted} are kept as they are"
        if self.group_id is not None:
            many = self.counts()
            parts = (f"{many['kept']} kept", f"{many['go_on']} unfinished", f"{many['begin']} not begun")
            return f"going on with {self.group_id}: {', '.join(parts)}"
        if self.similar is None:
            return "nothing to go on with: there is no earlier call for this work; a new group begins"
        back = "" if self.similar_ended else " (the command as it was goes on with that one, agent-env resume RUN with one of its runs)"
        return f"a new group begins, because {self.similar} is for other work: {'; '.join(self.differs)}{back}"


def earlier_call(journal: Journal, call: Call, *, bundle: str | None = None, task: str | None = None) -> Earlier:
    """The newest unfinished group of exactly this work; where all are finished, the newest; where there is none, what is most like it.

    Groups of the bundle or task are looked at first; then all, because what was moved has another id.

    Args:
        journal: The runs.
        call: The work.
        bundle: The bundle's id.
        task: The id of the task, which is run alone.
    """
    own = journal.groups(bundle=bundle, task=task)[:_GROUPS]
    found = _exact(journal, call, own)
    if found is None:
        known = {group.group_id for group in own}
        found = _exact(journal, call, [group for group in journal.groups()[:_GROUPS] if group.group_id not in known])
    return found or _most_like(journal, call, own)


def _exact(journal: Journal, call: Call, groups: Sequence[GroupRow]) -> Earlier | None:
    key, wanted = call.stored()["key"], frozenset(call.keys)
    finished: Earlier | None = None
    for group in groups:
        newest = journal.run(group.newest_run)
        said = newest.options.get("call")
        if said["key"] != key if said else _key(newest) not in wanted:
            continue
        rows = list(journal.runs_of_group(group.group_id))
        if not said and not _is_all_of_it(rows, wanted, call):
            continue
        runs: dict[str, RunRow] = {}
        for row in rows:
            runs.setdefault(_key(row), row)
        found = Earlier(group.group_id, runs, len(call.keys))
        if not found.finished:
            return found
        finished = finished or found
    return finished


def _is_all_of_it(rows: Sequence[RunRow], wanted: Collection[str], call: Call) -> bool:
    """Of a group whose runs don't say what their call was, as those of older versions: all that it has, and as often, is wanted."""
    per_task = call.attempts * max(1, len(call.seeds))
    return all(_key(row) in wanted and row.attempt_count == per_task for row in rows)


def _most_like(journal: Journal, call: Call, groups: Sequence[GroupRow]) -> Earlier:
    """The unfinished group with the fewest differences; the newest of all, where none is unfinished."""
    now = call.stored()
    best: tuple[tuple[bool, int], RunRow, Mapping[str, Json], list[str]] | None = None
    for group in groups:
        newest = journal.run(group.newest_run)
        if not (then := newest.options.get("call")):
            continue
        ended = sum(count for ending, count in group.endings.items() if counts(_Ending(*ending)))
        if (finished := ended >= then["runs"]) and then.get("tasks") != now["tasks"]:
            continue
        differs = list(_differences(then, now))
        rank = finished, 0 if finished else len(differs)
        if best is None or rank < best[0]:
            best = rank, newest, then, differs
    if best is None:
        return Earlier(wanted=len(call.keys))
    (finished, _), newest, then, differs = best
    if "tasks" in differs:
        words = [_words(name, then) for name in differs if name != "contents"]
    else:
        changed = _changed(journal.runs_of_group(str(newest.group_id)), call) if "contents" in differs else ""
        words = [changed if name == "contents" else _words(name, then) for name in differs]
    return Earlier(wanted=len(call.keys), similar=newest.group_id, similar_ended=finished, differs=tuple(dict.fromkeys(words)))


def _differences(then: Mapping[str, Json], now: Mapping[str, Json]) -> Iterator[str]:
    """The names of what differs, options as `options.NAME`."""
    yield from (name for name in ("tasks", "contents", "seeds", "seed", "attempts") if then.get(name) != now[name])
    before, after = then.get("options") or {}, now["options"]
    yield from (f"options.{name}" for name in sorted({*before, *after}) if before.get(name) != after.get(name))


def _words(name: str, then: Mapping[str, Json]) -> str:
    match name:
        case "tasks":
            return "other tasks were chosen"
        case "seeds":
            return "the seeds differ"
        case "seed":
            return "it had no --seed" if then.get("seed") is None else f"its --seed was {then['seed']}"
        case "attempts":
            return f"its --attempts was {then['attempts']}"
    option = name.removeprefix("options.")
    return f"{_OPTIONS.get(option, option) or 'what is overridden'} differs"


def _changed(rows: Iterator[RunRow], call: Call) -> str:
    """Which tasks say or use something else now."""
    before = {row.bundle_path or "": row.options["call"].get("content") for row in rows if row.options.get("call")}
    names = [name for name, content in call.contents.items() if before.get(name, content) != content]
    if not names:
        return "what its tasks say or use has changed"
    if names == [""]:
        return "the task changed since"
    more = f" and {counted(len(names) - _NAMED, 'other task')}" if len(names) > _NAMED else ""
    return f"{', '.join(names[:_NAMED])}{more} changed since, or what it uses did"


def _key(row: RunRow) -> str:
    return str(row.options.get("work_key") or "")


def _digest(value: Json) -> str:
    return content_digest(value).removeprefix("sha256:")[:_DIGITS]

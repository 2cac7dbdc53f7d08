"""What a run recorded of an answer, gathered for a judge."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agent_env_sdk.wire.trajectory import atif

from agent_env.errors import NotFoundError
from agent_env.verifiers.judging.material import Shown, conversation_of, steps_of
from agent_env.verifiers.judging.screenshots import Actions, Choice, Gallery, action_log, gallery_of, pictured
from agent_env.verifiers.run_records import run_record

if TYPE_CHECKING:
    from agent_env.documents.records import PromptResponse
    from agent_env.steps.contract import Run

Json = Any
_FACT_CHARACTERS = 600
_NOT_THERE = "(not available)"
_FIRINGS = 200
_MESSAGE_CHARACTERS = 4000
"""What is shown of a fact, how many firings, and what of a message of the conversation (reference)."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What of a run a judge is to see."""

    trajectory: Shown | None
    facts: Mapping[str, str]
    up_to_turn: int | None = None
    conversation: bool = False
    trigger_log: bool = False
    numbered: bool = False
    """Steps have numbers, by which the judge points at them."""
    pictures: Choice | None = None
    actions: Actions | None = None
    """A line a call, in place of the trajectory's whole text."""


def evidence_of(run: Run, answer: PromptResponse, asked: Asked, *, concerns: str) -> tuple[Json, dict[str, Json], Gallery]:
    """The task that the agent was given, the evidence by name, and the pictures among it.

    Raises:
        NotFoundError: Something that is asked for was not recorded.
    """
    evidence: dict[str, Json] = {}
    documents: list[dict[str, Json]] = []
    gallery = Gallery()
    said = answer.response or ""
    if asked.trajectory is not None or asked.up_to_turn is not None:
        found = list(_documents(run, answer, asked.up_to_turn, concerns))
        documents, taken = pictured(found, limit_bytes=run.limits.judge_picture_bytes)
        gallery = gallery_of(taken, asked.pictures, timeout_seconds=run.limits.judge_search_seconds)
        if asked.up_to_turn is not None:
            said = _last_word(documents[-1]) or said
    evidence["answer"] = said
    if answer.structured_output is not None and asked.up_to_turn is None:
        evidence["structured_output"] = answer.structured_output
    if asked.trajectory is not None and asked.actions is None:
        shown = asked.trajectory
        evidence["trajectory"] = [step for each in documents for step in steps_of(each, shown, run.limits, numbered=asked.numbered)]
    elif asked.trajectory is not None and asked.actions is not None:
        evidence["actions"] = action_log(documents, asked.actions, timeout_seconds=run.limits.judge_search_seconds)
    if asked.conversation or asked.trigger_log:
        evidence |= _run_context(run, answer, asked, concerns)
    if asked.facts:
        evidence["facts"] = {label: _fact(run.metadata, path) for label, path in asked.facts.items()}
    return _task(answer), evidence, gallery


def _task(answer: PromptResponse) -> Json:
    if answer.prompt_text:
        return answer.prompt_text
    turns = answer.source_agent_per_turn_prompt_parts or []
    parts = next((each for each in turns if each), None) or ()
    return "\n".join(str(part.get("text", "")) for part in parts if isinstance(part, Mapping))


def _documents(run: Run, answer: PromptResponse, up_to_turn: int | None, concerns: str) -> Iterator[Mapping[str, Json]]:
    """The trajectory as ATIF documents: the whole one, or each turn's."""
    whole = getattr(answer, "agent_trajectory_atif_url", None)
    turns = answer.target_agent_per_turn_trajectory_object_urls or ()
    urls = list(turns) if isinstance(turns, Sequence) and not isinstance(turns, str) else []
    if up_to_turn is not None:
        if len(urls) < up_to_turn or not all(urls[:up_to_turn]):
            message = f"there is no trajectory of turn {up_to_turn} of the prompt {answer.prompt_id!r}"
            raise NotFoundError(message, concerns=concerns, hint=f"there are {len(urls)} turns")
        urls = urls[:up_to_turn]
    elif whole and len(urls) < 2:  # it is the last turn's
        yield _read(run, whole)
        return
    urls = urls or ([answer.agent_trajectory_object_url] if answer.agent_trajectory_object_url else [])
    if not urls:
        raise NotFoundError(
            f"the agent's trajectory of the prompt {answer.prompt_id!r} was not recorded",
            concerns=concerns,
            hint="use_trajectory: false judges the answer alone",
        )
    for url in urls:
        if url:
            yield _normalised(_read(run, url), getattr(answer, "agent_trajectory_format", None), answer)


def _read(run: Run, url: str) -> Any:
    return json.loads(run.objects.read(url))


def _normalised(native: Json, format: str | None, answer: PromptResponse) -> Mapping[str, Json]:
    """A stored trajectory as an ATIF document."""
    from agent_env.agents.normalise import events_of

    if isinstance(native, Mapping):
        return native
    events = events_of(native, format)
    if events is None:  # an agent's own format that nobody knows: shown as it is
        return {"steps": [{"source": "agent", "message": json.dumps(each, ensure_ascii=False)} for each in native]}
    return atif(events, session_id=answer.agent_session_id, agent_name=answer.agent_name or "agent", agent_version="")


def _last_word(document: Mapping[str, Json]) -> str | None:
    said = [step.get("message") for step in document.get("steps") or () if step.get("source") == "agent" and step.get("message")]
    return str(said[-1]) if said else None


def _run_context(run: Run, answer: PromptResponse, asked: Asked, concerns: str) -> dict[str, Json]:
    record = run_record(run, answer.prompt_id, concerns=concerns)
    last = asked.up_to_turn
    shown: dict[str, Json] = {}
    if asked.conversation:
        turns = [turn for turn in record["turns"] if last is None or turn["number"] <= last]
        said = conversation_of(turns)
        shown["conversation"] = [{role: text[:_MESSAGE_CHARACTERS] for role, text in each.items()} for each in said]
    if asked.trigger_log:
        firings = [each for each in record["firings"] if last is None or each["turn"] <= last]
        shown["trigger_log"] = firings[-_FIRINGS:]
        if record["unavailable"]:
            shown["trigger_log_missing"] = record["unavailable"]
    return shown


def _fact(metadata: Mapping[str, Json], path: str) -> str:
    value: Json = metadata
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    if value is None:
        return _NOT_THERE
    return (value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))[:_FACT_CHARACTERS]

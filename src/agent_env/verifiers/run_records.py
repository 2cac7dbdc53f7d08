"""What a run has recorded of a conversation and of triggers, as a verifier's code is handed it (`outcome_run.py`)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

from agent_env.documents.updates import Json
from agent_env.errors import AgentEnvError, TaskError
from agent_env.steps.contract import Run

_LONGEST_REASON = 200
"""Characters of why something is not there (reference)."""


def run_record(run: Run, prompt_id: str | None, *, concerns: str) -> dict[str, Json]:
    """Turns, firings, and what was not recorded.

    Args:
        run: The run.
        prompt_id: Whose conversation; None is the last one, if there is any.
        concerns: The step that asks.

    Raises:
        TaskError: There is no conversation of that prompt.
    """
    response = _response(run.context.get("prompt_responses") or (), prompt_id, concerns)
    firings: list[dict[str, Json]] = []
    unavailable: list[dict[str, Json]] = []
    for source, url in _logs(run.metadata):
        try:
            firings += _fired(source, json.loads(run.objects.read(url)))
        except (AgentEnvError, ValueError) as error:
            unavailable.append({"source": source, "reason": str(error)[:_LONGEST_REASON]})
    return {"turns": list(_turns(response)) if response else [], "firings": firings, "unavailable": unavailable}


def _response(responses: Sequence[Mapping[str, Json]], prompt_id: str | None, concerns: str) -> Mapping[str, Json] | None:
    if prompt_id is None:
        return responses[-1] if responses else None
    found = next((each for each in responses if each.get("prompt_id") == prompt_id), None)
    if found is None:
        known = sorted(str(each.get("prompt_id")) for each in responses)
        raise TaskError(f"there is no response to the prompt {prompt_id!r} (there are {known})", concerns=concerns)
    return found


def _turns(response: Mapping[str, Json]) -> Iterator[dict[str, Json]]:
    """One turn for each prompt of the conversation; only the last reply is in the response itself."""
    prompts = response.get("source_agent_per_turn_prompt_parts") or [None]
    for number, parts in enumerate(prompts, start=1):
        text = "\n".join(str(part.get("text", "")) for part in parts) if parts else str(response.get("prompt_text") or "")
        message = {"turn": number, "role": "user", "text": text, "parts": list(parts or ())}
        last = number == len(prompts)
        reply = {"turn": number, "role": "agent", "text": str(response.get("response") or ""), "author": response.get("agent_name")}
        yield {"number": number, "message": message, "reply": reply if last else None}


def _logs(metadata: Mapping[str, Json]) -> Iterator[tuple[str, str]]:
    """Where the logs of triggers are kept: source and object."""
    for env_id, entry in (metadata.get("env_trigger_state") or {}).items():
        if isinstance(entry, Mapping) and entry.get("object_url"):
            yield f"env:{env_id}", str(entry["object_url"])
    for entry in (metadata.get("agent_trigger_state") or {}).values():
        if isinstance(entry, Mapping) and entry.get("object_url"):
            yield "user_agent", str(entry["object_url"])


def _fired(source: str, state: Json) -> Iterator[dict[str, Json]]:
    """The firings in a log of triggers."""
    for event in (state.get("events") if isinstance(state, Mapping) else None) or ():
        if event.get("kind") in {"fired", "failed"}:
            yield {
                "trigger_id": str(event.get("trigger_id")),
                "source": source,
                "turn": int(event.get("turn") or 0),
                "at": event.get("at") or event.get("timestamp_utc"),
                "virtual_time": event.get("virtual_time"),
                "ok": event["kind"] == "fired",
                "provoked_by": event.get("provoked_by"),
            }

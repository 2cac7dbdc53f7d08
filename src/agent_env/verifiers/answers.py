"""The answer that a verifier grades, and whether there is anything to grade in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from agent_env.documents.records import PromptResponse
from agent_env.documents.spelling import near
from agent_env.errors import NotFoundError
from agent_env.steps.contract import Run

Json = Any
AGENT_ERROR: Final = "agent_error"
"""An `error_type` of the wire: the agent's own failure, which scores 0. Every other one is a fault of the world, which scores nothing."""
_SHOWN_CHARACTERS = 200


def answer_to(run: Run, prompt_id: str, *, concerns: str) -> PromptResponse:
    """What the run recorded of a prompt.

    Raises:
        NotFoundError: Nothing.
    """
    known = [each for each in run.context.get("prompt_responses") or () if isinstance(each, Mapping)]
    found = next((each for each in known if each.get("prompt_id") == prompt_id), None)
    if found is not None:
        return PromptResponse.read(found, source=run.run_id)
    names = sorted(str(each.get("prompt_id")) for each in known)
    meant = near(prompt_id, names)
    hint = f"did you mean {meant!r}?" if meant else f"answered: {', '.join(names) or 'none'}"
    raise NotFoundError(f"there is no answer to the prompt {prompt_id!r}", concerns=concerns, hint=hint)


def failed_answer(answer: PromptResponse) -> dict[str, Json] | None:
    """The one row of an answer that failed; None when there is an answer to look at.

    What the agent did wrong scores 0. What the world did wrong (`infra_error`, and whatever we don't know) is skipped: it is no score.
    """
    if answer.error_type is None:
        return None
    said = f"{answer.error_type}: {answer.error_code or 'no code'}: {answer.error_message or answer.response or ''}"
    row: dict[str, Json] = {"type": "prompt_error", "criterion": "the prompt was answered", "justification": said[:_SHOWN_CHARACTERS]}
    if answer.error_type != AGENT_ERROR:
        return {**row, "skipped": True}
    return {**row, "score": 0.0, "result": False, "skipped": False}

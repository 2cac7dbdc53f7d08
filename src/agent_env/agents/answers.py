"""What has been heard of a turn so far, and what it came to: A2A's updates folded into one `Turn`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from agent_env_sdk.wire.a2a import Artifact, ArtifactUpdate, Message, StatusUpdate, Task, TaskStatus, Update, read_ending
from agent_env_sdk.wire.parts import Part, TextPart

from agent_env.agents.contract import End, Turn
from agent_env.agents.faults import AgentFailedError
from agent_env.documents.reading import last_object
from agent_env.errors import InfrastructureError

Json = Any
_INFRASTRUCTURE = "infra_error"


@dataclass
class Heard:
    """A turn so far."""

    message_id: str
    context_id: str | None
    limit_bytes: int
    task_id: str | None = None
    gap: bool = False
    """Updates may have been missed."""
    mark: tuple[Json, ...] = ()
    """Changes whenever the task does."""
    _said: str = ""
    _answer: Message | None = None
    """Of the status, once there is one that ends the turn."""
    _artifacts: dict[str, list[Part]] = field(default_factory=dict)
    _size: int = 0

    def take(self, update: Update) -> str:
        """Takes an update in. Returns what the agent says in it while it works.

        Raises:
            AgentFailedError: The answer has grown too large.
        """
        match update:
            case Message():
                self._answer, self.context_id = update, update.context_id or self.context_id
                return ""
            case Task():
                self._known(update.id, update.context_id)
                if update.artifacts:  # the server's own list: whatever was missed is in it
                    self._artifacts = {each.artifact_id: list(each.parts) for each in update.artifacts}
                told = self._status(update.status)
                if self._answer is None and update.status.state.settled and not self._artifacts:
                    self._answer = next((each for each in reversed(update.history or ()) if each.role == "agent"), None)
                return told
            case StatusUpdate():
                self._known(update.task_id, update.context_id)
                return self._status(update.status)
            case ArtifactUpdate():
                self._known(update.task_id, update.context_id)
                self._add(update.artifact, append=bool(update.append))
                return ""

    def _known(self, task_id: str, context_id: str | None) -> None:
        self.task_id = task_id or self.task_id
        self.context_id = context_id or self.context_id

    def _status(self, status: TaskStatus) -> str:
        mark = (status.state, status.timestamp, status.message.message_id if status.message else None)
        fresh, self.mark = mark != self.mark, mark
        if status.state.settled:
            self._answer = status.message
            return ""
        said = _text(status.message.parts) if status.message else ""
        self._said = said or self._said
        return said if fresh else ""

    def _add(self, artifact: Artifact, *, append: bool) -> None:
        self._size += sum(_size(part) for part in artifact.parts)
        if self._size > self.limit_bytes:
            raise AgentFailedError(f"the agent's answer holds more than {self.limit_bytes} bytes (agent_answer_bytes)", reason="too_large")
        parts = self._artifacts.get(artifact.artifact_id, []) if append else []
        for part in artifact.parts:
            last = parts[-1] if parts else None
            if append and isinstance(part, TextPart) and isinstance(last, TextPart):
                parts[-1] = last.model_copy(update={"text": last.text + part.text})
            else:
                parts.append(part)
        self._artifacts[artifact.artifact_id] = parts

    @property
    def parts(self) -> list[Part]:
        """Of the artifacts, and then of the answer."""
        return [*(part for parts in self._artifacts.values() for part in parts), *(self._answer.parts if self._answer else ())]

    @property
    def text(self) -> str | None:
        """The answer's last text; of one that has none, the artifacts'; of a turn without an answer, what was said last."""
        said = read_ending(self._answer.parts).text if self._answer else None
        shown = [text for parts in self._artifacts.values() if (text := _text(parts))]
        return said or "\n".join(shown) or self._said or None


def turn_of(heard: Heard, end: End) -> Turn:
    """The turn that ended so, as the agent tells of it."""
    parts = heard.parts
    told = read_ending(parts)
    return Turn(
        end=end,
        message_id=heard.message_id,
        task_id=heard.task_id,
        context_id=heard.context_id,
        text=heard.text,
        parts=[part.model_dump(mode="json", exclude_none=True, by_alias=True) for part in parts],
        partial=end in {End.CANCELED, End.TIMED_OUT, End.LOST},
        usage=told.usage,
        structured_output=told.structured_output if told.structured_output is not None else _structured(heard.text, end),
        error_type=told.error_type,
        error_code=told.error_code,
        error_message=told.error_message,
        gap=heard.gap,
    )


def refused(heard: Heard, code: str, message: str) -> Turn:
    """The agent could not take the message, or answered what can't be read: nobody's task failed by that."""
    return _broken(heard, End.FAILED, code, message)


def lost(heard: Heard, error: InfrastructureError) -> Turn:
    """The agent is gone, or does not answer any more."""
    return _broken(heard, End.LOST, error.code, str(error))


def _broken(heard: Heard, end: End, code: str, message: str) -> Turn:
    from dataclasses import replace

    turn = turn_of(heard, end)
    return replace(turn, partial=True, error_type=_INFRASTRUCTURE, error_code=code, error_message=message)


def _text(parts: Sequence[Part]) -> str:
    return "\n".join(part.text for part in parts if isinstance(part, TextPart))


def _size(part: Part) -> int:
    return len(part.text) if isinstance(part, TextPart) else len(part.model_dump_json())


def _structured(text: str | None, end: End) -> Json:
    """What a completed answer's text holds for programs (reference)."""
    return last_object(text) if text and end is End.COMPLETED else None

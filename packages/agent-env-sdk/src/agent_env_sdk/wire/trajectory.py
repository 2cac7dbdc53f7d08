"""One event model for what agents do, whichever agent it was: the fields of ATIF's steps as a stream, open to fold and to replay.

Agents keep their native events as well; `NATIVE_FORMATS` names those that are known. `SDK_FORMAT` is the one that agents of this
SDK write themselves, and is the normalised model as it stands.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

SDK_FORMAT: Final = "agentenv-events/v1"
ATIF_VERSION: Final = "ATIF-v1.4"
NATIVE_FORMATS: Final = (
    SDK_FORMAT, "claude-code-stream-json/1", "codex-exec-json/1", "gemini-stream-json/1", "opencode-events/1", "pi-json-events/v1",
    "openhands-events/v1", "agentenv-proxy/v1",
)  # fmt: skip


class _Event(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)

    at: str | None = None
    """When, in UTC (RFC 3339), if the agent tells."""


class MessageEvent(_Event):
    """Something that was said."""

    type: Literal["message"] = "message"
    source: Literal["system", "user", "agent"] = "agent"
    text: str


class ReasoningEvent(_Event):
    """What the agent thought, as far as its model shows it."""

    type: Literal["reasoning"] = "reasoning"
    text: str


class ToolCallEvent(_Event):
    """The agent calls a tool."""

    type: Literal["tool_call"] = "tool_call"
    call_id: str
    name: str
    arguments: Any = None
    server: str | None = None
    """The MCP server, for a tool of one."""


class ToolResultEvent(_Event):
    """What a call came to."""

    type: Literal["tool_result"] = "tool_result"
    call_id: str
    content: Any = None
    is_error: bool = False


class UsageEvent(_Event):
    """What a request to the model took."""

    type: Literal["usage"] = "usage"
    model: str | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cost_usd: float | None = None


class ErrorEvent(_Event):
    """Something failed."""

    type: Literal["error"] = "error"
    code: str
    message: str


class EndEvent(_Event):
    """The turn is over."""

    type: Literal["end"] = "end"
    state: str


Event = MessageEvent | ReasoningEvent | ToolCallEvent | ToolResultEvent | UsageEvent | ErrorEvent | EndEvent

events_adapter: TypeAdapter[list[Event]] = TypeAdapter(
    list[Annotated[Event, Field(discriminator="type")]], config=ConfigDict(defer_build=True)
)
"""Reads and writes lists of events."""


def dump_event(event: Event) -> dict[str, Any]:
    """The event as a JSON object, without the fields that are not set."""
    return event.model_dump(mode="json", exclude_none=True)


def atif(events: Iterable[Event], *, session_id: str, agent_name: str, agent_version: str, model: str | None = None) -> dict[str, Any]:
    """The events as an ATIF document: a step for each message, with the calls, results and usage that belong to it."""
    steps: list[dict[str, Any]] = []
    totals = {"total_prompt_tokens": 0, "total_completion_tokens": 0, "total_cost_usd": 0.0}

    def step(source: str, event: _Event, message: str = "") -> dict[str, Any]:
        made = {"step_id": len(steps) + 1, "source": source, "message": message}
        steps.append(made | ({"timestamp": event.at} if event.at else {}))
        return steps[-1]

    def current(event: _Event) -> dict[str, Any]:
        return steps[-1] if steps and steps[-1]["source"] == "agent" else step("agent", event)

    for event in events:
        match event:
            case MessageEvent(source="agent", text=text):
                if steps and steps[-1]["source"] == "agent" and not steps[-1]["message"] and "tool_calls" not in steps[-1]:
                    steps[-1]["message"] = text
                else:
                    step("agent", event, text)
            case MessageEvent(source=source, text=text):
                step(source, event, text)
            case ReasoningEvent(text=text):
                fresh = step("agent", event) if steps and "observation" in steps[-1] else current(event)
                fresh["reasoning_content"] = f"{fresh.get('reasoning_content', '')}{text}"
            case ToolCallEvent():
                fresh = step("agent", event) if steps and "observation" in steps[-1] else current(event)
                arguments = event.arguments if isinstance(event.arguments, dict) else {"value": event.arguments}
                call = {"tool_call_id": event.call_id, "function_name": event.name, "arguments": arguments}
                fresh.setdefault("tool_calls", []).append(call)
            case ToolResultEvent():
                results = current(event).setdefault("observation", {"results": []})["results"]
                results.append({"source_call_id": event.call_id, "content": event.content})
            case UsageEvent():
                metrics = {"prompt_tokens": event.input_tokens, "completion_tokens": event.output_tokens, "cost_usd": event.cost_usd}
                known = {name: value for name, value in metrics.items() if value is not None}
                current(event)["metrics"] = known
                for name, value in known.items():
                    totals[f"total_{name}"] += value
            case ErrorEvent(code=code, message=text):
                step("system", event, f"{code}: {text}")
            case EndEvent():
                pass
    agent = {"name": agent_name, "version": agent_version} | ({"model_name": model} if model else {})
    return {
        "schema_version": ATIF_VERSION, "session_id": session_id, "agent": agent, "steps": steps,
        "final_metrics": {**totals, "total_steps": len(steps)},
    }  # fmt: skip

"""The same A2A values in the spelling of 1.x: the JSON of its protobuf messages, and its names of methods."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from .a2a import ArtifactUpdate, Message, Method, StatusUpdate, Task, TaskState, Update, read_update

METHODS: Final[Mapping[str, Method]] = {
    "SendMessage": Method.SEND,
    "SendStreamingMessage": Method.STREAM,
    "GetTask": Method.GET,
    "CancelTask": Method.CANCEL,
    "SubscribeToTask": Method.RESUBSCRIBE,
    "ListTasks": Method.LIST,
}
NAMES: Final[Mapping[Method, str]] = {method: name for name, method in METHODS.items()}

_STATES: Final = {state: "TASK_STATE_UNSPECIFIED" if state is TaskState.UNKNOWN else f"TASK_STATE_{state.name}" for state in TaskState}
_STATES_READ: Final = {spelled: state for state, spelled in _STATES.items()}
_ROLES: Final = {"user": "ROLE_USER", "agent": "ROLE_AGENT"}
_ROLES_READ: Final = {spelled: role for role, spelled in _ROLES.items()}
_WRAPPERS: Final = {Task: "task", Message: "message", StatusUpdate: "statusUpdate", ArtifactUpdate: "artifactUpdate"}
_KINDS: Final = {"task": "task", "message": "message", "statusUpdate": "status-update", "artifactUpdate": "artifact-update"}


def dump(update: Update) -> dict[str, Any]:
    """A value as 1.x carries it, bare: the result of `GetTask` and `CancelTask`."""
    spelled: dict[str, Any] = _spell(update.to_json())
    return spelled


def dump_wrapped(update: Update) -> dict[str, Any]:
    """A value under its name: the result of `SendMessage`, and each item of a stream."""
    return {_WRAPPERS[type(update)]: dump(update)}


def read_state(value: object) -> TaskState | None:
    """A task's state as 1.x spells it; None when it is left open.

    Raises:
        ValueError: There is no such state.
    """
    if value in {None, "", "TASK_STATE_UNSPECIFIED"}:
        return None
    state = _STATES_READ.get(value) if isinstance(value, str) else None
    if state is None:
        raise ValueError(f"status must be one of {', '.join(_STATES_READ)}")
    return state


def dump_message(message: Message) -> dict[str, Any]:
    """A message as 1.x carries it."""
    return dump(message)


def read_message(value: object) -> dict[str, Any]:
    """A message of 1.x as 0.3 spells it, to be validated.

    Raises:
        ValueError: It isn't spelled as 1.x does.
    """
    if not isinstance(value, dict):
        raise ValueError("message must be an object")
    spelled: dict[str, Any] = _read(value, "message")
    return spelled


def read(value: object) -> Update:
    """A result of `SendMessage`, an item of a stream (both wrapped), or a bare task.

    Raises:
        ValueError: It isn't spelled as 1.x does.
    """
    if not isinstance(value, dict):
        raise ValueError("the result must be an object")
    wrapper = next((name for name in _KINDS if isinstance(value.get(name), dict)), None)
    if wrapper is None or "id" in value:
        return read_update(_read(value, "task"))
    spelled = _read(value[wrapper], _KINDS[wrapper])
    if wrapper == "statusUpdate":
        spelled["final"] = TaskState(spelled["status"]["state"]).settled
    return read_update(spelled)


def _spell(value: dict[str, Any]) -> dict[str, Any]:
    out = {name: each for name, each in value.items() if name not in {"kind", "final"}}
    for name in ("status", "message", "artifact"):
        if isinstance(out.get(name), dict):
            out[name] = _spell(out[name])
    for name in ("history", "artifacts"):
        if name in out:
            out[name] = [_spell(each) for each in out[name]]
    if "parts" in out:
        out["parts"] = [_spell_part(part) for part in out["parts"]]
    if "role" in out:
        out["role"] = _ROLES[out["role"]]
    if "state" in out:
        out["state"] = _STATES[TaskState(out["state"])]
    return out


def _spell_part(part: dict[str, Any]) -> dict[str, Any]:
    match part["kind"]:
        case "file":
            file = part["file"]
            content = {"raw": file["bytes"]} if "bytes" in file else {"url": file["uri"]}
            content |= {theirs: file[ours] for ours, theirs in (("name", "filename"), ("mimeType", "mediaType")) if ours in file}
        case kind:
            content = {kind: part[kind]}
    return content | ({"metadata": part["metadata"]} if "metadata" in part else {})


def _read(value: dict[str, Any], kind: str) -> dict[str, Any]:
    out = {name: each for name, each in value.items() if each is not None}
    if kind:
        out["kind"] = kind
    for name, inner in (("status", ""), ("message", "message"), ("artifact", "")):
        if isinstance(out.get(name), dict):
            out[name] = _read(out[name], inner)
    for name, inner in (("history", "message"), ("artifacts", "")):
        if isinstance(out.get(name), list):
            out[name] = [_read(_object(each, name), inner) for each in out[name]]
    if isinstance(out.get("parts"), list):
        out["parts"] = [_read_part(_object(part, "parts")) for part in out["parts"]]
    for name, known, rest in (("role", _ROLES_READ, None), ("state", _STATES_READ, TaskState.UNKNOWN)):
        if name in out:
            out[name] = known.get(out[name], rest) if isinstance(out[name], str) else rest
            if out[name] is None:
                raise ValueError(f"{name} must be one of {', '.join(known)}")
    # Protobuf's JSON has empty strings where nothing is set.
    return {name: each for name, each in out.items() if not (name in {"contextId", "taskId"} and each == "" and kind == "message")}


def _read_part(part: dict[str, Any]) -> dict[str, Any]:
    shared = {"metadata": part["metadata"]} if isinstance(part.get("metadata"), dict) else {}
    if "text" in part:
        return {"kind": "text", "text": part["text"], **shared}
    if "data" in part:
        # 0.3 has objects alone; another value travels under a name, as the official SDK's translation does it.
        data = part["data"] if isinstance(part["data"], dict) else {"value": part["data"]}
        return {"kind": "data", "data": data, **shared}
    for ours, theirs in (("bytes", "raw"), ("uri", "url")):
        if theirs in part:
            named = {own: part[other] for own, other in (("name", "filename"), ("mimeType", "mediaType")) if part.get(other)}
            return {"kind": "file", "file": {ours: part[theirs], **named}, **shared}
    raise ValueError("a part must have one of text, data, raw and url")


def _object(value: object, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{name} must hold objects")
    return value

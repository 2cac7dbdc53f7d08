"""`ListTasks` of A2A 1.x: an agent's tasks, the last changed first, in pages that stay right while tasks come and change."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from agent_env_sdk.wire.a2a import Task, TaskState
from agent_env_sdk.wire.a2a_v1 import dump, read_state
from agent_env_sdk.wire.rpc import INVALID_PARAMS, RpcError

from .tasks import Entry

USUAL_PAGE: Final = 50
LARGEST_PAGE: Final = 100
"""The specification's own numbers."""


def listed(entries: Iterable[Entry], params: Mapping[str, Any], with_history: Callable[[Task, object], Task]) -> dict[str, Any]:
    """One page.

    Args:
        entries: All tasks.
        params: The request's: `contextId`, `status`, `statusTimestampAfter`, `pageSize`, `pageToken`, `historyLength`.
        with_history: Cuts a task's history to a length.

    Raises:
        RpcError: A field isn't what it should be.
    """
    size, state = params.get("pageSize") or USUAL_PAGE, _state(params)
    if not isinstance(size, int) or isinstance(size, bool) or not 0 < size <= LARGEST_PAGE:
        raise RpcError(INVALID_PARAMS, f"pageSize must be a number from 1 to {LARGEST_PAGE}")
    context, since = _text(params, "contextId"), _text(params, "statusTimestampAfter")
    found = [
        entry
        for entry in entries
        if (not context or entry.task.context_id == context)
        and (state is None or entry.state is state)
        and (not since or _moment(entry) > _comparable(since))
    ]
    found.sort(key=_place, reverse=True)
    token = _text(params, "pageToken")
    rest = [entry for entry in found if _place(entry) < _read(token)] if token else found
    page = rest[:size]
    length = params.get("historyLength", 0)
    return {
        "tasks": [dump(with_history(entry.task, length)) for entry in page],
        "nextPageToken": "{}/{}".format(*_place(page[-1])) if len(rest) > size else "",
        "pageSize": size,
        "totalSize": len(found),
    }


def _place(entry: Entry) -> tuple[str, int]:
    """Where a task stands in the order: a page begins after a place, so that a task that changes is never left out."""
    return _moment(entry), entry.order


def _moment(entry: Entry) -> str:
    return _comparable(entry.task.status.timestamp or "")


def _comparable(moment: str) -> str:
    """A moment in UTC with or without a fraction, so that the order of texts is that of time."""
    whole, _, fraction = moment.rstrip("Z").partition(".")
    return f"{whole}.{fraction:0<9}"


def _state(params: Mapping[str, Any]) -> TaskState | None:
    try:
        return read_state(params.get("status"))
    except ValueError as error:
        raise RpcError(INVALID_PARAMS, str(error)) from None


def _text(params: Mapping[str, Any], name: str) -> str:
    value = params.get(name) or ""
    if not isinstance(value, str):
        raise RpcError(INVALID_PARAMS, f"{name} must be a text")
    return value


def _read(token: str) -> tuple[str, int]:
    moment, _, order = token.rpartition("/")
    if not order.isdigit():
        raise RpcError(INVALID_PARAMS, "pageToken is none that this agent gave")
    return moment, int(order)

"""A2A's JSON-RPC, in both spellings by one table: the method's name says which one a request is in, and is answered in."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pydantic import ValidationError

from agent_env_sdk.wire import a2a_v1
from agent_env_sdk.wire.a2a import (
    PUSH_NOT_SUPPORTED,
    VERSION_NOT_SUPPORTED,
    Message,
    Method,
    Task,
    Update,
    a2a_error,
)
from agent_env_sdk.wire.parts import TextPart
from agent_env_sdk.wire.rpc import DEEPEST, INVALID_PARAMS, Request, RpcError, failure, method_not_found, nests_deeper, read_request, result

from .listing import listed
from .tasks import Entry, Tasks

Check = Callable[[Message], object]


@dataclass(frozen=True, slots=True)
class Spelling:
    """How one version of A2A says things."""

    message: Callable[[object], Any]
    waits: Callable[[Mapping[str, Any]], bool]
    """Whether `configuration` asks to be answered when the task has ended."""
    sent: Callable[[Update], dict[str, Any]]
    """The result of a send and the items of a stream."""
    task: Callable[[Task], dict[str, Any]]


V0_3: Final = Spelling(
    message=lambda value: value,
    waits=lambda configuration: configuration.get("blocking") is not False,
    sent=lambda update: update.to_json(),
    task=lambda task: task.to_json(),
)
V1: Final = Spelling(
    message=a2a_v1.read_message,
    waits=lambda configuration: configuration.get("returnImmediately") is not True,
    sent=a2a_v1.dump_wrapped,
    task=a2a_v1.dump,
)
METHODS: Final[Mapping[str, tuple[Method, Spelling]]] = {
    **{method.value: (method, V0_3) for method in Method if method is not Method.LIST},
    **{name: (method, V1) for name, method in a2a_v1.METHODS.items()},
}

Answer = dict[str, Any] | AsyncIterator[dict[str, Any]]


class Rpc:
    """Answers requests.

    Args:
        tasks: The agent's tasks.
        check: Raises when a message can't be taken as it is.
    """

    def __init__(self, tasks: Tasks, check: Check) -> None:
        self._tasks, self._check = tasks, check

    async def answer(self, body: bytes, version: str | None) -> Answer:
        """The answer's object, or a stream of them.

        Args:
            body: The request.
            version: What the client says that it speaks, if it does.
        """
        request_id: Any = None
        try:
            request = read_request(body)
            request_id = request.id
            method, spelling = self._method(request, version)
            if method in {Method.STREAM, Method.RESUBSCRIBE}:
                entry = self._submit(request, spelling) if method is Method.STREAM else self._tasks.get(_task_id(request))
                return _stream(request_id, self._tasks.watch(entry), spelling)
            return result(request_id, await self._once(method, request, spelling))
        except RpcError as error:
            return failure(error.request_id if request_id is None else request_id, error)

    async def _once(self, method: Method, request: Request, spelling: Spelling) -> dict[str, Any]:
        match method:
            case Method.SEND:
                entry = self._submit(request, spelling)
                if spelling.waits(_object(request.params, "configuration")):
                    await entry.ended.wait()
                length = _object(request.params, "configuration").get("historyLength")
                return spelling.sent(_with_history(entry.task, length))
            case Method.CANCEL:
                return spelling.task((await self._tasks.cancel(_task_id(request))).task)
            case Method.LIST:
                return listed(self._tasks.all(), request.params, _with_history)
            case _:
                return spelling.task(_with_history(self._tasks.get(_task_id(request)).task, request.params.get("historyLength")))

    def _method(self, request: Request, version: str | None) -> tuple[Method, Spelling]:
        if (version or "0.3").partition(".")[0] not in {"0", "1"}:
            raise a2a_error(VERSION_NOT_SUPPORTED, "this agent speaks 0.3 and 1.0")
        if "pushnotification" in request.method.lower():
            raise a2a_error(PUSH_NOT_SUPPORTED)
        known = METHODS.get(request.method)
        if known is None:
            raise method_not_found(request.method)
        return known

    def _submit(self, request: Request, spelling: Spelling) -> Entry:
        if nests_deeper(request.params):  # the message is kept with its task, and told with it
            raise RpcError(INVALID_PARAMS, f"Invalid parameters: they nest deeper than {DEEPEST} levels")
        try:
            message = Message.model_validate(spelling.message(request.params.get("message")))
        except ValidationError as error:
            raise RpcError(INVALID_PARAMS, "Invalid parameters", {"detail": problems(error)}) from None
        except ValueError as error:
            raise RpcError(INVALID_PARAMS, f"Invalid parameters: {error}") from None
        if not message.parts:
            raise RpcError(INVALID_PARAMS, "the message has no parts")
        if any(isinstance(part, TextPart) and not part.text for part in message.parts):
            raise RpcError(INVALID_PARAMS, "TextPart content cannot be empty")
        self._check(message)
        return self._tasks.submit(message)


async def _stream(request_id: Any, updates: AsyncIterator[Update], spelling: Spelling) -> AsyncIterator[dict[str, Any]]:
    async for update in updates:
        yield result(request_id, spelling.sent(update))


def problems(error: ValidationError) -> list[dict[str, Any]]:
    """What is wrong with a value, without the value: it may hold secrets."""
    return [
        {"loc": list(each["loc"]), "msg": each["msg"], "type": each["type"]}
        for each in error.errors(include_input=False, include_url=False, include_context=False)
    ]


def _with_history(task: Task, length: object) -> Task:
    if not isinstance(length, int) or isinstance(length, bool) or task.history is None:
        return task
    return task.model_copy(update={"history": task.history[-length:] if length > 0 else None})


def _task_id(request: Request) -> str:
    task_id = request.params.get("id")
    if not isinstance(task_id, str) or not task_id:
        raise RpcError(INVALID_PARAMS, "Invalid parameters: id must be a task's id")
    return task_id


def _object(params: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = params.get(name)
    return value if isinstance(value, dict) else {}

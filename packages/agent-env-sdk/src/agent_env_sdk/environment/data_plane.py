"""The data plane: `data/reset`, `data/add` and `data/get`, one at a time, whoever asks for them."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError

from agent_env_sdk.wire.grants import WriteNamespaceGrant
from agent_env_sdk.wire.names import ADD, GET, RESET
from agent_env_sdk.wire.parts import DataPart, FilePart, Part, TextPart, dump_parts, parts_adapter
from agent_env_sdk.wire.rpc import RpcError, failure, invalid_params, method_not_found, operation_failed, read_request, result

from .arguments import complaint, injected, resolved
from .calling import Invoker, Raised
from .context import LoadContext

Parts = list[TextPart | DataPart | FilePart]
_one: TypeAdapter[Any] = TypeAdapter(Part, config=ConfigDict(defer_build=True))


class DataPlane:
    """An environment's data, behind its handlers.

    Args:
        handlers: By operation.
        invoker: What runs them.
    """

    def __init__(self, handlers: Mapping[str, Callable[..., Any]], invoker: Invoker) -> None:
        self.handlers = handlers
        self._invoker = invoker
        self.lock = asyncio.Lock()
        """Held by whoever works on the data: an operation, or a load with all its steps."""

    async def answer(self, body: bytes) -> dict[str, Any]:
        """The answer to a JSON-RPC request; errors are answers too."""
        try:
            request = read_request(body)
        except RpcError as error:
            return failure(error.request_id, error)
        try:
            return result(request.id, await self._operate(request.method, request.params))
        except RpcError as error:
            return failure(request.id, error)

    async def _operate(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        if method not in self.handlers:
            raise method_not_found(method)
        match method:
            case "data/add":
                parts = read_parts(params)
                async with self.lock:
                    await self.add(parts, LoadContext())
            case "data/get":
                grant = _read_grant(params) if self._takes_grant else None
                async with self.lock:
                    return {"parts": await self._exported(grant)}
            case _:
                async with self.lock:
                    await self.reset()
        return {}

    async def attempt(self, work: Callable[..., Any], *args: Any) -> Any:
        """What some work on the data gives, or what it raised."""
        return await self._invoker.attempt(work, *args)

    async def reset(self) -> None:
        """Forgets everything; the caller holds the lock.

        Raises:
            RpcError: The handler raised.
        """
        await self._run(RESET)

    async def add(self, parts: Parts, load: LoadContext) -> None:
        """Takes parts; the caller holds the lock.

        Raises:
            RpcError: The handler raised.
        """
        hints = resolved(self.handlers[ADD])
        slot = next((name for name in inspect.signature(self.handlers[ADD]).parameters if injected(hints.get(name))), None)
        await self._run(ADD, parts, **({slot: load} if slot else {}))

    async def get(self) -> Parts:
        """Gives everything, without a grant; the caller holds the lock.

        Raises:
            RpcError: The handler raised, or gave what isn't parts.
        """
        return parts_adapter.validate_python(await self._exported(None))

    @property
    def _takes_grant(self) -> bool:
        return "write_namespace" in inspect.signature(self.handlers[GET]).parameters

    async def _exported(self, grant: WriteNamespaceGrant | None) -> list[dict[str, Any]]:
        given = await self._run(GET, **({"write_namespace": grant} if self._takes_grant else {}))
        try:
            return dump_parts([_one.validate_python(part) for part in (given if isinstance(given, list | tuple) else [given])])
        except ValidationError as error:
            raise operation_failed(GET, f"data/get gave what is not a list of parts: {complaint(error)}") from error

    async def _run(self, operation: str, *args: Any, **kwargs: Any) -> Any:
        outcome = await self._invoker.attempt(self.handlers[operation], *args, **kwargs)
        if isinstance(outcome, Raised):
            raise operation_failed(operation, str(outcome.error)) from outcome.error
        return outcome


def read_parts(params: Mapping[str, Any]) -> Parts:
    """The parts of a load, at least one.

    Raises:
        RpcError: They aren't parts; the detail names what is wrong and repeats no value.
    """
    try:
        parts = parts_adapter.validate_python(params.get("parts"))
    except ValidationError as error:
        raise invalid_params(f"parts: {complaint(error)}") from None
    if not parts:
        raise invalid_params("parts: at least one is needed")
    return parts


def _read_grant(params: Mapping[str, Any]) -> WriteNamespaceGrant | None:
    try:
        given = params.get("write_namespace")
        return None if given is None else WriteNamespaceGrant.model_validate(given)
    except ValidationError as error:
        # The fields alone: the values carry the permission.
        fields = ", ".join(".".join(map(str, each["loc"])) or "write_namespace" for each in error.errors())
        raise invalid_params(f"write_namespace is not a valid grant of a namespace ({fields})") from None

"""JSON-RPC of the data plane: reading a request, and the answers with the codes and texts that clients compare."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
SERVER_ERROR: Final = -32000

DEEPEST: Final = 200
"""Levels that a value may nest which is kept and told again: well below what readers of JSON take."""

FAILED: Final = {"data/reset": "reset_failed", "data/add": "add_failed", "data/get": "get_failed"}
"""The `data.code` of an operation whose handler raised."""


class RpcError(Exception):
    """A JSON-RPC error, raised by what serves a request or read from an answer.

    Args:
        code: The JSON-RPC code.
        message: Its text.
        data: More about it, when there is more.
        request_id: The id of the request, when it could be read.
    """

    def __init__(self, code: int, message: str, data: Any = None, request_id: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data
        self.request_id = request_id


@dataclass(frozen=True, slots=True)
class Request:
    """One call of an operation."""

    id: Any
    method: str
    params: dict[str, Any]


def read_request(body: bytes) -> Request:
    """The request in a body.

    Raises:
        RpcError: The body isn't JSON, isn't a request, or its params aren't an object.
    """
    try:
        value = json.loads(body) if body else None
    except (ValueError, RecursionError):
        raise RpcError(PARSE_ERROR, "parse error") from None
    if not isinstance(value, dict):
        raise RpcError(INVALID_REQUEST, "invalid request")
    request_id, method, params = _sayable(value.get("id")), value.get("method"), value.get("params") or {}
    if value.get("jsonrpc") != "2.0" or not isinstance(method, str):
        raise RpcError(INVALID_REQUEST, "invalid request", request_id=request_id)
    if not isinstance(params, dict):
        raise RpcError(INVALID_PARAMS, "invalid_request", {"detail": "params must be an object"}, request_id)
    return Request(request_id, method, params)


def _sayable(request_id: Any) -> Any:
    """The id as an answer repeats it; none where JSON has no word for it."""
    return None if isinstance(request_id, float) and not math.isfinite(request_id) else request_id


def nests_deeper(value: object, levels: int = DEEPEST) -> bool:
    """Whether objects and arrays of a JSON value stand in each other more than so many levels deep. Of any depth itself."""
    level: list[Any] = [value]
    for _ in range(levels):
        inner = (each.values() if isinstance(each, dict) else each for each in level if isinstance(each, dict | list))
        level = [member for members in inner for member in members if isinstance(member, dict | list)]
        if not level:
            return False
    return True


def method_not_found(method: str) -> RpcError:
    """The error for an operation that isn't served."""
    return RpcError(METHOD_NOT_FOUND, f"method not found: {method}")


def invalid_params(detail: str) -> RpcError:
    """The error for params that an operation can't take; `detail` must not repeat secret values."""
    return RpcError(INVALID_PARAMS, "invalid_request", {"detail": detail})


def operation_failed(method: str, message: str) -> RpcError:
    """The error for an operation whose handler raised."""
    return RpcError(SERVER_ERROR, message, {"code": FAILED.get(method, "failed")})


def request(method: str, params: Mapping[str, Any], request_id: int | str = 1) -> dict[str, Any]:
    """A request's JSON object."""
    return {"jsonrpc": "2.0", "id": request_id, "method": method, "params": dict(params)}


def result(request_id: Any, value: Any) -> dict[str, Any]:
    """A successful answer's JSON object."""
    return {"jsonrpc": "2.0", "id": request_id, "result": value}


def failure(request_id: Any, error: RpcError) -> dict[str, Any]:
    """A failed answer's JSON object; the data plane sends it with status 200."""
    fields: dict[str, Any] = {"code": error.code, "message": error.message}
    if error.data is not None:
        fields["data"] = error.data
    return {"jsonrpc": "2.0", "id": request_id, "error": fields}


def read_answer(value: object) -> Any:
    """The result in an answer.

    Raises:
        RpcError: The answer is an error.
        ValueError: It is neither a result nor an error.
    """
    if isinstance(value, dict):
        error = value.get("error")
        if isinstance(error, dict):
            code = error.get("code")
            raise RpcError(code if isinstance(code, int) else SERVER_ERROR, str(error.get("message")), error.get("data"), value.get("id"))
        if error is None and "result" in value:
            return value["result"]
    raise ValueError("the answer is not a JSON-RPC result or error")

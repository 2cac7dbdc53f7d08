"""The body of a call, as far as the broker must understand it: to count it, to bound it, and to write it down."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from agent_env_sdk.wire.rpc import DEEPEST, nests_deeper

from agent_env.broker.admission import Refused
from agent_env.broker.answers import RefusedError, Request
from agent_env.broker.contract import Dialect, Refusal
from agent_env.broker.dialects import Route

Json = Any
_NAME_CHARACTERS: Final = 512
"""Of a model: its name is kept with each call."""


def body_of(request: Request, route: Route) -> dict[str, Json]:
    """What a request says; nothing where it has no body.

    Raises:
        RefusedError: It can't be read, or asks for what could not be counted.
    """
    if request.method != "POST":
        return {}
    try:
        body = json.loads(request.body)
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict):
        raise _refused("the request's body is no JSON object")
    if nests_deeper(body):  # what is written down of it is gone through level by level
        raise _refused(f"the request's body nests deeper than {DEEPEST} levels")
    if route.dialect is Dialect.RESPONSES and body.get("background"):
        raise _refused("an answer that is made in the background can't be counted: ask without `background`")
    return body


def model_of(route: Route, body: Mapping[str, Json]) -> str | None:
    """The model that a request asks for.

    Raises:
        RefusedError: What it names can be no model.
    """
    model = route.model or body.get("model")
    if not isinstance(model, str):
        return None
    if not model.isprintable() or len(model) > _NAME_CHARACTERS:
        raise _refused(f"that is no name of a model: {model[:40]!a}")
    return model


def _refused(why: str) -> RefusedError:
    return RefusedError(Refused(Refusal.UNKNOWN, why))

"""The data plane: what a server says to wrong requests, and that what it exports can be loaded again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import httpx
from agent_env_sdk.wire.names import ADD, GET, OPERATIONS, RESET, RPC_PATH

from agent_env.environments.conformance.check import Area, Gate, SkippedError, Subject, holds
from agent_env.environments.conformance.likeness import differences

CORE = Area(Gate.CORE)
ROUND_TRIP = Area(Gate.ROUND_TRIP)
NOT_FOUND, INVALID_REQUEST, INVALID_PARAMS, NO_JSON = -32601, -32600, -32602, -32700
Json = Any


async def _ask(subject: Subject, body: Json, *, content: bytes | None = None) -> Mapping[str, Json]:
    """An answer of the data plane, whatever it says."""
    if subject.is_gateway:
        raise SkippedError("a data plane of its own")
    await subject.needs_card()
    given = {"content": content, "headers": {"Content-Type": "application/json"}} if content is not None else {"body": body}
    async with subject.client.request("POST", RPC_PATH, **given) as answer:
        data = await answer.aread()
    holds(answer.status_code == httpx.codes.OK, f"it answers with status {answer.status_code}; the protocol's errors come with 200")
    said = json.loads(data)
    holds(isinstance(said, dict), "its answer is no object")
    return dict(said)


def _code(said: Mapping[str, Json]) -> int | None:
    error = said.get("error")
    return error.get("code") if isinstance(error, Mapping) else None


async def _served(subject: Subject) -> tuple[str, ...]:
    await subject.needs_card()
    if subject.is_gateway:
        raise SkippedError("a data plane of its own")
    return await subject.client.operations()


def _request(method: str, params: Json) -> dict[str, Json]:
    return {"jsonrpc": "2.0", "id": 7, "method": method, "params": params}


@CORE.check("P1")
async def data_add_is_known(subject: Subject) -> str | None:
    """data/add without parts is refused as such, and not as unknown"""
    if ADD not in await _served(subject):
        raise SkippedError(ADD)
    code = _code(await _ask(subject, _request(ADD, {"parts": []})))
    holds(code != NOT_FOUND, "its card lists data/add, and it does not know it")
    return None if code == INVALID_PARAMS else f"it answers {code}, not {INVALID_PARAMS}"


@CORE.check("P2")
async def data_get_is_known(subject: Subject) -> str | None:
    """data/get gives parts"""
    if GET not in await _served(subject):
        raise SkippedError(GET)
    said = await _ask(subject, _request(GET, {}))
    holds(_code(said) != NOT_FOUND, "its card lists data/get, and it does not know it")
    if _code(said) is not None:
        return f"it failed: {said['error'].get('message')}"
    parts = (said.get("result") or {}).get("parts")
    holds(isinstance(parts, list), "its result has no list of parts")
    return None


@CORE.check("P3")
async def what_it_can_is_what_its_card_says(subject: Subject) -> str:
    """The operations of the card are ones of the protocol"""
    served = await _served(subject)
    odd = [name for name in served if name not in OPERATIONS]
    holds(not odd, f"its card lists {', '.join(odd)}")
    return ", ".join(served) or "none"


@CORE.check("I3")
async def an_unknown_method_is_told(subject: Subject) -> None:
    """An unknown method is -32601, under the request's id"""
    said = await _ask(subject, _request("data/nothing", {}))
    holds(_code(said) == NOT_FOUND, f"it answers {_code(said)}")
    holds(said.get("id") == 7, f"its answer has the id {said.get('id')!r}")


@CORE.check("I3")
async def what_is_no_request_is_told(subject: Subject) -> None:
    """Something else than a request is -32600, and no JSON is -32700"""
    code = _code(await _ask(subject, {"id": 1}))
    holds(code == INVALID_REQUEST, f"an object that is no request is answered with {code}")
    code = _code(await _ask(subject, None, content=b"{"))
    holds(code == NO_JSON, f"what is no JSON is answered with {code}")


@CORE.check("I3", advisory=True)
async def wrong_parameters_are_explained(subject: Subject) -> None:
    """Wrong parameters are -32602 with a detail"""
    if ADD not in await _served(subject):
        raise SkippedError(ADD)
    said = await _ask(subject, _request(ADD, {"parts": "x"}))
    holds(_code(said) == INVALID_PARAMS, f"it answers {_code(said)}")
    holds(isinstance((said["error"].get("data") or {}).get("detail"), str), "it does not say what is wrong")


@ROUND_TRIP.check("9.7", "I2")
async def what_it_exports_loads_again(subject: Subject) -> str | None:
    """Reset, then load what it had exported: it exports the same"""
    served = await _served(subject)
    if not subject.may_write:
        raise SkippedError("leave to replace its data (--write)")
    absent = [name for name in OPERATIONS if name not in served]
    if absent:
        raise SkippedError(", ".join(absent))
    before = await subject.client.get()
    try:
        await subject.client.reset()
        empty = await subject.client.get()
        holds(not differences(empty, await subject.client.get()), "two exports of an empty server differ")
        await subject.client.reset()
        if before:
            await subject.client.add(before)
        after = await subject.client.get()
        lost = differences(before, after)
        holds(not lost, "; ".join(lost[:5]))
        await subject.client.reset()
        if after:
            await subject.client.add(after)
        changed = differences(after, await subject.client.get())
        holds(not changed, f"a second time it is another: {'; '.join(changed[:5])}")
    finally:
        await subject.client.reset()
        if before:
            await subject.client.add(before)
    return None if before else "it held nothing"


@ROUND_TRIP.check("I2")
async def a_reset_empties_it(subject: Subject) -> None:
    """After data/reset, an export holds no rows"""
    if RESET not in await _served(subject) or GET not in await _served(subject):
        raise SkippedError(RESET)
    if not subject.may_write:
        raise SkippedError("leave to replace its data (--write)")
    before = await subject.client.get()
    try:
        await subject.client.reset()
        left = [part["data"] for part in await subject.client.get() if part.get("kind") == "data"]
        rows = {name: len(value) for data in left for name, value in data.items() if isinstance(value, list) and value}
        holds(not rows, f"it still holds {rows}")
    finally:
        if before and ADD in await subject.client.operations():
            await subject.client.reset()
            await subject.client.add(before)

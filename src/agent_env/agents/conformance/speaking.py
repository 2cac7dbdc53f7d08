"""The card, and A2A itself: what every agent must do."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Mapping
from contextlib import aclosing
from typing import Any

import httpx
from agent_env_sdk.wire import a2a_v1
from agent_env_sdk.wire.a2a import A2A_PATH, CARD_PATHS, TASK_NOT_FOUND, VERSION_HEADER, Method, StatusUpdate, Task, interfaces, rpc_address
from agent_env_sdk.wire.agent_extensions import STANDARDS, remembers_messages
from agent_env_sdk.wire.rpc import METHOD_NOT_FOUND, RpcError

from agent_env.agents.conformance.check import Area, Gate, SkippedError, Subject, holds
from agent_env.agents.contract import Accepted, End, Outgoing

CARD, CORE, ACCESS = Area(Gate.CARD), Area(Gate.CORE), Area(Gate.ACCESS)
Json = Any
_NEEDED = ("name", "description", "version", "capabilities", "defaultInputModes", "defaultOutputModes", "skills")
_READY = "Reply with the single word: ready"
_OURS = "urn:agentenv:"


# the card


@CARD.check("2.2", "A2-06")
async def it_has_a_card_that_clients_find(subject: Subject) -> str:
    """Its card is where A2A says, under the newer path or the older one"""
    await subject.agent.card(refresh=True)
    found = []
    for path in CARD_PATHS:
        status, _ = await subject.agent.client.probe("GET", path)
        if status == httpx.codes.OK:
            found.append(path)
    return ", ".join(found)


@CARD.check("2.2", "7.1")
async def its_card_says_what_clients_need(subject: Subject) -> None:
    """Its card has a name, a version, what it can, what it takes and gives, and its skills"""
    await subject.agent.card()
    card = subject.agent.client.raw_card or {}
    missing = [key for key in _NEEDED if key not in card]
    if "url" not in card and "supportedInterfaces" not in card:
        missing.append("url")
    holds(not missing, f"its card lacks {', '.join(missing)}")
    empty = [key for key in ("name", "description") if not str(card.get(key) or "").strip()]
    holds(not empty, f"its card has an empty {' and '.join(empty)}")


@CARD.check("A2-01")
async def every_address_of_its_card_answers(subject: Subject) -> str:
    """Every JSON-RPC address of its card answers where the card was found, whatever host the card says"""
    card = await subject.agent.card()
    paths = []
    for each in interfaces(card):
        path = rpc_address("", each.url)
        body = {"jsonrpc": "2.0", "id": "1", "method": "tasks/get" if not each.is_v1 else "GetTask", "params": {"id": str(uuid.uuid4())}}
        status, said = await subject.agent.client.probe(
            "POST", path, body=body, headers={VERSION_HEADER: each.version} if each.is_v1 else {}
        )
        holds(isinstance(said, Mapping) and "error" in said, f"{each.url!r} (A2A {each.version}) answers with status {status}")
        paths.append(f"{path} ({each.version})")
    return ", ".join(paths)


@CARD.check("2.4")
async def its_extensions_are_ones_of_the_protocol(subject: Subject) -> str:
    """Extensions under our names are ones that the protocol has, with operations that it has"""
    card = await subject.agent.card()
    names = []
    for each in card.capabilities.extensions or ():
        if not each.uri.startswith(_OURS):
            continue
        standard = STANDARDS.get(each.uri)
        methods = (each.params or {}).get("methods")
        if standard is not None and isinstance(methods, Mapping):
            known = {operation.name for operation in standard.operations}
            odd = sorted(set(methods) - known)
            holds(not odd, f"{each.uri} has no operation {', '.join(odd)}")
        names.append(each.uri.removeprefix(_OURS))
    return ", ".join(names) or "none"


# tasks


@CORE.check("2.3")
async def an_unknown_task_is_told(subject: Subject) -> None:
    """An unknown task is -32001"""
    try:
        await subject.agent.client.task(str(uuid.uuid4()))
    except RpcError as error:
        holds(error.code == TASK_NOT_FOUND, f"it answers {error.code}")
        return
    raise AssertionError("it answers with a task")


async def _posted(subject: Subject, method: str | None, params: Mapping[str, Json], content: bytes | None = None) -> tuple[int, Json]:
    """A request at the address that the client uses, in the version that is spoken there. `method` is 0.3's name."""
    at = interfaces(await subject.agent.card())[0]
    name = a2a_v1.NAMES.get(Method(method), method) if at.is_v1 and method in set(Method) else method
    body = None if content is not None else {"jsonrpc": "2.0", "id": "7", "method": name, "params": dict(params)}
    headers = {VERSION_HEADER: at.version} if at.is_v1 else {}
    return await subject.agent.client.probe("POST", rpc_address("", at.url), body=body, content=content, headers=headers)


@CORE.check("2.3")
async def an_unknown_method_is_told(subject: Subject) -> None:
    """An unknown method is -32601"""
    _, said = await _posted(subject, "tasks/nothing", {})
    code = (said.get("error") or {}).get("code") if isinstance(said, Mapping) else None
    holds(code == METHOD_NOT_FOUND, f"it answers {code if code is not None else str(said)[:100]}")


@CORE.check("2.3", advisory=True)
async def what_is_no_request_is_told(subject: Subject) -> None:
    """No JSON, and no request, are refused with an error that says so"""
    status, said = await _posted(subject, None, {}, content=b"{")
    refused = status >= httpx.codes.BAD_REQUEST or (isinstance(said, Mapping) and "error" in said)
    holds(refused, f"what is no JSON is answered with status {status}")
    _, said = await _posted(subject, Method.SEND.value, {"message": {"role": "user"}})
    holds(isinstance(said, Mapping) and "error" in said, "a message without parts is taken")


@CORE.check("2.3", "4.2")
async def a_prompt_comes_to_an_end(subject: Subject) -> str:
    """A prompt ends in a state that is one, with an answer or with what went wrong"""
    turn = await subject.ask(_READY)
    subject.seen["turn"] = turn
    holds(turn.end not in {End.TIMED_OUT, End.LOST}, f"it ended as {turn.end}: {turn.error_message}")
    holds(turn.end is not End.FAILED or turn.error_type, "it failed, and does not say whose fault that was (error_type)")
    said = (turn.text or turn.error_message or "").strip()
    holds(turn.end is not End.COMPLETED or turn.parts, "it completed without an answer")
    return f"{turn.end}: {said[:80]}" if said else str(turn.end)


@CORE.check("2.3", "A2-03")
async def an_ending_can_be_read_again(subject: Subject) -> None:
    """A task that has ended is still there, in the state in which it ended"""
    turn = subject.taken()
    task = await subject.agent.client.task(str(turn.task_id))
    holds(task.status.state.settled, f"it is {task.status.state.value} again")
    holds(turn.end not in {End.COMPLETED, End.FAILED} or task.status.state.value == turn.end, f"it is {task.status.state.value} now")


@CORE.check("2.3", "A2-03")
async def a_stream_ends_with_its_ending(subject: Subject) -> None:
    """The last item of a stream is the ending"""
    card = await subject.agent.card()
    if not card.capabilities.streaming:
        raise SkippedError("streaming")
    message = {"messageId": str(uuid.uuid4()), "role": "user", "parts": [{"kind": "text", "text": _READY}]}
    last: Json = None
    async with aclosing(
        subject.agent.client.stream(Method.STREAM, {"message": message, "configuration": {}}, seconds=subject.prompt_seconds)
    ) as updates:
        async for update in updates:
            last = update or last
    ended = isinstance(last, Task | StatusUpdate) and last.status.state.settled
    holds(ended, f"the last item is {json.dumps(last.to_json())[:120] if last is not None else 'none'}")


@CORE.check("2.3")
async def a_message_is_worked_on_once(subject: Subject) -> None:
    """A message that is sent again, under the same id, is the same task"""
    if not remembers_messages(await subject.agent.card()):
        raise SkippedError("ids of messages that are remembered")
    context, message = str(uuid.uuid4()), str(uuid.uuid4())
    first = await subject.ask(_READY, context_id=context, message_id=message)
    again = await subject.ask(_READY, context_id=context, message_id=message)
    holds(first.task_id is not None and first.task_id == again.task_id, f"it is {first.task_id}, and then {again.task_id}")


@CORE.check("2.3")
async def conversations_go_on_at_once(subject: Subject) -> str:
    """Several conversations at a time all end, each with a task of its own"""
    turns = await asyncio.gather(*(subject.ask(_READY) for _ in range(4)))
    odd = [str(turn.end) for turn in turns if turn.end in {End.TIMED_OUT, End.LOST}]
    holds(not odd, f"of 4 conversations {len(odd)} ended as {', '.join(odd)}")
    holds(len({turn.task_id for turn in turns}) == len(turns), "they share a task")
    return ", ".join(str(turn.end) for turn in turns)


@CORE.check("2.3", "A2-03")
async def a_cancelled_task_ends(subject: Subject) -> str:
    """A task that is cancelled while it runs ends, and stays so"""
    message = Outgoing([{"kind": "text", "text": _READY}], str(uuid.uuid4()), str(uuid.uuid4()), timeout_seconds=subject.prompt_seconds)
    async with aclosing(subject.agent.prompt(message)) as updates:
        async for update in updates:
            if isinstance(update, Accepted):
                break
        else:
            raise SkippedError("a prompt that was taken")
    task = await subject.agent.client.task(update.task_id)
    holds(task.status.state.terminal, f"it is still {task.status.state.value}")
    return task.status.state.value


# who may speak with it


@ACCESS.check("8.21")
async def without_its_token_it_answers_nobody(subject: Subject) -> None:
    """Without its token it takes no message and tells no settings"""
    if not subject.has_token:
        raise SkippedError("a token that it was given")
    body = {"jsonrpc": "2.0", "id": "1", "method": "tasks/get", "params": {"id": "x"}}
    for headers in ({}, {"authorization": "Bearer wrong"}):
        status, _ = await subject.agent.client.probe("POST", A2A_PATH, body=body, headers=headers, authorized=False)
        holds(status in {httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN}, f"it answers anybody, with status {status}")

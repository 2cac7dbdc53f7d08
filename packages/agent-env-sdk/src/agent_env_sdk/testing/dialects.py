"""The four dialects of model APIs, as far as agents speak them: what a request asks, and how an answer is spelled, whole and streamed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

Event: TypeAlias = tuple[str | None, Any]
"""A server-sent event: its name, and its data (a string as it is, else JSON)."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request, whichever dialect it came in."""

    model: str
    tools: Mapping[str, Mapping[str, Any]]
    """By name: the schema of its arguments."""
    turns: int
    """How many answers of the model the conversation holds already."""
    last_result: str
    """What the last tool, or else the user, said."""
    streamed: bool


@dataclass(frozen=True, slots=True)
class Called:
    """A call of a tool."""

    id: str
    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer."""

    id: str
    model: str
    text: str
    calls: tuple[Called, ...]
    input_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Dialect:
    """One dialect."""

    name: str
    read: Callable[[Mapping[str, Any], str, bool], Asked]
    """From the body, the model in the address, and whether the address asks for a stream."""
    whole: Callable[[Reply], dict[str, Any]]
    events: Callable[[Reply], Iterator[Event]]


def text_of(content: Any) -> str:
    """The text in a message's content, however it is nested."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(text_of(each) for each in content)
    if isinstance(content, dict):
        return text_of(content.get("text") or content.get("content") or content.get("output") or content.get("response") or "")
    return ""


def _read_chat(body: Mapping[str, Any], _: str, __: bool) -> Asked:
    messages = body["messages"]
    tools = {each["function"]["name"]: each["function"].get("parameters") or {} for each in body.get("tools") or []}
    turns = sum(message["role"] == "assistant" for message in messages)
    return Asked(body["model"], tools, turns, text_of(messages[-1].get("content")), bool(body.get("stream")))


def _chat_usage(reply: Reply) -> dict[str, int]:
    total = reply.input_tokens + reply.output_tokens
    return {"prompt_tokens": reply.input_tokens, "completion_tokens": reply.output_tokens, "total_tokens": total}


def _chat_calls(reply: Reply) -> list[dict[str, Any]]:
    return [
        {"index": index, "id": call.id, "type": "function", "function": {"name": call.name, "arguments": json.dumps(call.arguments)}}
        for index, call in enumerate(reply.calls)
    ]


def _whole_chat(reply: Reply) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": reply.text or None}
    if reply.calls:
        message["tool_calls"] = [{key: value for key, value in call.items() if key != "index"} for call in _chat_calls(reply)]
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if reply.calls else "stop"}
    return {
        "id": reply.id,
        "object": "chat.completion",
        "created": 0,
        "model": reply.model,
        "choices": [choice],
        "usage": _chat_usage(reply),
    }


def _stream_chat(reply: Reply) -> Iterator[Event]:
    def chunk(delta: dict[str, Any], finish: str | None = None) -> Event:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return None, {"id": reply.id, "object": "chat.completion.chunk", "created": 0, "model": reply.model, "choices": [choice]}

    yield chunk({"role": "assistant", "content": ""})
    for piece in _pieces(reply.text):
        yield chunk({"content": piece})
    for call in _chat_calls(reply):
        arguments = call["function"]["arguments"]
        yield chunk({"tool_calls": [{**call, "function": {"name": call["function"]["name"], "arguments": ""}}]})
        for piece in _pieces(arguments):
            yield chunk({"tool_calls": [{"index": call["index"], "function": {"arguments": piece}}]})
    yield chunk({}, "tool_calls" if reply.calls else "stop")
    yield (
        None,
        {"id": reply.id, "object": "chat.completion.chunk", "created": 0, "model": reply.model, "choices": [], "usage": _chat_usage(reply)},
    )
    yield None, "[DONE]"


_OURS: Final = frozenset({"function_call", "custom_tool_call", "local_shell_call", "reasoning"})


def _read_responses(body: Mapping[str, Any], _: str, __: bool) -> Asked:
    items = body["input"] if isinstance(body["input"], list) else [{"role": "user", "content": body["input"]}]
    ours = [item.get("type") in _OURS or item.get("role") == "assistant" for item in items]
    # A turn of the model is a run of its items.
    turns = sum(own and not (index and ours[index - 1]) for index, own in enumerate(ours))
    return Asked(body["model"], dict(_response_tools(body.get("tools") or [])), turns, text_of(items[-1]), bool(body.get("stream")))


def _response_tools(tools: list[Mapping[str, Any]]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Functions by their names; those of a namespace as `namespace/name`, which no function's own name can be."""
    for tool in tools:
        if tool.get("type") == "namespace":
            yield from ((f"{tool['name']}/{each['name']}", each.get("parameters") or {}) for each in tool["tools"])
        elif "name" in tool:
            yield tool["name"], tool.get("parameters") or {}


def _response_call(call: Called) -> dict[str, Any]:
    namespace, _, name = call.name.rpartition("/")
    said = {"type": "function_call", "id": f"fc_{call.id}", "call_id": call.id, "name": name, "arguments": json.dumps(call.arguments)}
    return {**said, "status": "completed"} | ({"namespace": namespace} if namespace else {})


def _response_items(reply: Reply) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    if reply.text:
        content = [{"type": "output_text", "text": reply.text, "annotations": []}]
        items.append({"type": "message", "id": f"msg_{reply.id}", "status": "completed", "role": "assistant", "content": content})
    return items + [_response_call(call) for call in reply.calls]


def _whole_responses(reply: Reply) -> dict[str, Any]:
    usage = {
        "input_tokens": reply.input_tokens, "input_tokens_details": {"cached_tokens": 0}, "output_tokens": reply.output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": reply.input_tokens + reply.output_tokens,
    }  # fmt: skip
    return {"id": reply.id, "object": "response", "created_at": 0, "status": "completed", "model": reply.model,
            "output": _response_items(reply), "usage": usage}  # fmt: skip


def _stream_responses(reply: Reply) -> Iterator[Event]:
    whole = _whole_responses(reply)
    number = iter(range(10**9))

    def event(kind: str, **fields: Any) -> Event:
        return kind, {"type": kind, "sequence_number": next(number), **fields}

    yield event("response.created", response={**whole, "status": "in_progress", "output": [], "usage": None})
    for index, item in enumerate(whole["output"]):
        place = {"item_id": item["id"], "output_index": index}
        if item["type"] == "message":
            yield event("response.output_item.added", output_index=index, item={**item, "status": "in_progress", "content": []})
            part = {"type": "output_text", "text": "", "annotations": []}
            yield event("response.content_part.added", **place, content_index=0, part=part)
            for piece in _pieces(reply.text):
                yield event("response.output_text.delta", **place, content_index=0, delta=piece)
            yield event("response.output_text.done", **place, content_index=0, text=reply.text)
            yield event("response.content_part.done", **place, content_index=0, part={**part, "text": reply.text})
        else:
            yield event("response.output_item.added", output_index=index, item={**item, "status": "in_progress", "arguments": ""})
            for piece in _pieces(item["arguments"]):
                yield event("response.function_call_arguments.delta", **place, delta=piece)
            yield event("response.function_call_arguments.done", **place, arguments=item["arguments"])
        yield event("response.output_item.done", output_index=index, item=item)
    yield event("response.completed", response=whole)


def _read_messages(body: Mapping[str, Any], _: str, __: bool) -> Asked:
    messages = body["messages"]
    tools = {each["name"]: each.get("input_schema") or {} for each in body.get("tools") or []}
    turns = sum(message["role"] == "assistant" for message in messages)
    return Asked(body["model"], tools, turns, text_of(messages[-1]["content"]), bool(body.get("stream")))


def _whole_messages(reply: Reply) -> dict[str, Any]:
    content: list[dict[str, Any]] = [{"type": "text", "text": reply.text}] if reply.text else []
    content += [{"type": "tool_use", "id": call.id, "name": call.name, "input": call.arguments} for call in reply.calls]
    return {
        "id": reply.id, "type": "message", "role": "assistant", "model": reply.model, "content": content,
        "stop_reason": "tool_use" if reply.calls else "end_turn", "stop_sequence": None,
        "usage": {"input_tokens": reply.input_tokens, "output_tokens": reply.output_tokens},
    }  # fmt: skip


def _stream_messages(reply: Reply) -> Iterator[Event]:
    whole = _whole_messages(reply)

    def event(kind: str, **fields: Any) -> Event:
        return kind, {"type": kind, **fields}

    begun = {**whole, "content": [], "stop_reason": None, "usage": {"input_tokens": reply.input_tokens, "output_tokens": 0}}
    yield event("message_start", message=begun)
    for index, block in enumerate(whole["content"]):
        if block["type"] == "text":
            yield event("content_block_start", index=index, content_block={"type": "text", "text": ""})
            for piece in _pieces(block["text"]):
                yield event("content_block_delta", index=index, delta={"type": "text_delta", "text": piece})
        else:
            yield event("content_block_start", index=index, content_block={**block, "input": {}})
            for piece in _pieces(json.dumps(block["input"])):
                yield event("content_block_delta", index=index, delta={"type": "input_json_delta", "partial_json": piece})
        yield event("content_block_stop", index=index)
    delta = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
    yield event("message_delta", delta=delta, usage={"output_tokens": reply.output_tokens})
    yield event("message_stop")


def _read_gemini(body: Mapping[str, Any], model: str, streamed: bool) -> Asked:
    contents = body["contents"]
    declared = [each for tool in body.get("tools") or [] for each in tool.get("functionDeclarations") or []]
    tools = {each["name"]: each.get("parametersJsonSchema") or each.get("parameters") or {} for each in declared}
    parts = contents[-1].get("parts") or []
    last = "\n".join(json.dumps(part["functionResponse"]["response"]) if "functionResponse" in part else text_of(part) for part in parts)
    return Asked(model, tools, sum(each.get("role") == "model" for each in contents), last, streamed)


def _whole_gemini(reply: Reply) -> dict[str, Any]:
    parts: list[dict[str, Any]] = [{"text": reply.text}] if reply.text else []
    parts += [{"functionCall": {"id": call.id, "name": call.name, "args": call.arguments}} for call in reply.calls]
    counts = {
        "promptTokenCount": reply.input_tokens, "candidatesTokenCount": reply.output_tokens,
        "totalTokenCount": reply.input_tokens + reply.output_tokens,
    }  # fmt: skip
    candidate = {"content": {"role": "model", "parts": parts}, "finishReason": "STOP", "index": 0}
    return {"candidates": [candidate], "usageMetadata": counts, "modelVersion": reply.model, "responseId": reply.id}


def _stream_gemini(reply: Reply) -> Iterator[Event]:
    yield None, _whole_gemini(reply)


def _pieces(text: str) -> Iterator[str]:
    """The text in two halves, so that clients have to put something together."""
    middle = (len(text) + 1) // 2
    yield from (piece for piece in (text[:middle], text[middle:]) if piece)


CHAT: Final = Dialect("openai-chat", _read_chat, _whole_chat, _stream_chat)
RESPONSES: Final = Dialect("openai-responses", _read_responses, _whole_responses, _stream_responses)
MESSAGES: Final = Dialect("anthropic-messages", _read_messages, _whole_messages, _stream_messages)
GEMINI: Final = Dialect("gemini", _read_gemini, _whole_gemini, _stream_gemini)

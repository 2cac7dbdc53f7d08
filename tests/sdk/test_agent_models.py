"""The scripted model server: four dialects, whole and streamed; steps chosen by the request alone; faults in their order."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from agent_env_sdk.testing.models import Call, Fault, ModelServer, Scenario, Step, serve_models

SHELL = {"type": "object", "properties": {"command": {"type": "string"}}}
STEPS = (Step("looking", (Call("shell", {"command": "ls"}),)), Step("saw {last}", last_contains="a b"))


class Chat:
    """OpenAI's chat completions."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = [{"role": "user", "content": "go"}]

    def request(self, stream: bool, tools: bool = True) -> tuple[str, dict[str, Any]]:
        body: dict[str, Any] = {"model": "m", "messages": self.messages, "stream": stream}
        if tools:
            body["tools"] = [{"type": "function", "function": {"name": "bash", "parameters": SHELL}}]
        return "/v1/chat/completions", body

    def whole(self, answer: dict[str, Any]) -> tuple[str, list[tuple[str, Any]]]:
        message = answer["choices"][0]["message"]
        calls = [(each["function"]["name"], json.loads(each["function"]["arguments"])) for each in message.get("tool_calls", [])]
        return message["content"], calls

    def streamed(self, events: list[dict[str, Any]]) -> tuple[str, list[tuple[str, Any]]]:
        deltas = [choice["delta"] for event in events for choice in event["choices"]]
        called = [each["function"] for delta in deltas for each in delta.get("tool_calls", [])]
        arguments = "".join(each["arguments"] for each in called)
        names = [each["name"] for each in called if "name" in each]
        return "".join(delta.get("content") or "" for delta in deltas), [(names[0], json.loads(arguments))] if names else []

    def result(self, text: str) -> None:
        self.messages += [
            {"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": {"name": "bash", "arguments": "{}"}}]},
            {"role": "tool", "tool_call_id": "1", "content": text},
        ]


class Responses(Chat):
    """OpenAI's responses."""

    def __init__(self) -> None:
        self.messages = [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "go"}]}]

    def request(self, stream: bool, tools: bool = True) -> tuple[str, dict[str, Any]]:
        body: dict[str, Any] = {"model": "m", "input": self.messages, "stream": stream}
        if tools:
            body["tools"] = [{"type": "function", "name": "bash", "parameters": SHELL}]
        return "/openai/v1/responses", body

    def whole(self, answer: dict[str, Any]) -> tuple[str, list[tuple[str, Any]]]:
        texts = [part["text"] for item in answer["output"] if item["type"] == "message" for part in item["content"]]
        calls = [(item["name"], json.loads(item["arguments"])) for item in answer["output"] if item["type"] == "function_call"]
        return "".join(texts), calls

    def streamed(self, events: list[dict[str, Any]]) -> tuple[str, list[tuple[str, Any]]]:
        text = "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
        found = self.whole(events[-1]["response"])
        assert found[0] == text
        return found

    def result(self, text: str) -> None:
        self.messages += [
            {"type": "reasoning", "summary": []},
            {"type": "function_call", "call_id": "1", "name": "bash", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "1", "output": text},
        ]


class Messages(Chat):
    """Anthropic's messages."""

    def request(self, stream: bool, tools: bool = True) -> tuple[str, dict[str, Any]]:
        body: dict[str, Any] = {"model": "m", "messages": self.messages, "stream": stream, "max_tokens": 9}
        if tools:
            body["tools"] = [{"name": "bash", "input_schema": SHELL}]
        return "/v1/messages", body

    def whole(self, answer: dict[str, Any]) -> tuple[str, list[tuple[str, Any]]]:
        texts = [block["text"] for block in answer["content"] if block["type"] == "text"]
        return "".join(texts), [(block["name"], block["input"]) for block in answer["content"] if block["type"] == "tool_use"]

    def streamed(self, events: list[dict[str, Any]]) -> tuple[str, list[tuple[str, Any]]]:
        deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
        arguments = "".join(delta.get("partial_json", "") for delta in deltas)
        names = [event["content_block"]["name"] for event in events if event.get("content_block", {}).get("type") == "tool_use"]
        assert events[-1] == {"type": "message_stop"}
        return "".join(delta.get("text", "") for delta in deltas), [(names[0], json.loads(arguments))] if names else []

    def result(self, text: str) -> None:
        self.messages += [
            {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "bash", "input": {}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": text}]}]},
        ]


class Gemini(Chat):
    """Google's generateContent."""

    def __init__(self) -> None:
        self.messages = [{"role": "user", "parts": [{"text": "go"}]}]

    def request(self, stream: bool, tools: bool = True) -> tuple[str, dict[str, Any]]:
        body: dict[str, Any] = {"contents": self.messages}
        if tools:
            body["tools"] = [{"functionDeclarations": [{"name": "bash", "parametersJsonSchema": SHELL}]}]
        return f"/gemini/v1beta/models/m:{'streamGenerateContent?alt=sse' if stream else 'generateContent'}", body

    def whole(self, answer: dict[str, Any]) -> tuple[str, list[tuple[str, Any]]]:
        parts = answer["candidates"][0]["content"]["parts"]
        calls = [(part["functionCall"]["name"], part["functionCall"]["args"]) for part in parts if "functionCall" in part]
        return "".join(part.get("text", "") for part in parts), calls

    def streamed(self, events: list[dict[str, Any]]) -> tuple[str, list[tuple[str, Any]]]:
        return self.whole(events[0])

    def result(self, text: str) -> None:
        self.messages += [
            {"role": "model", "parts": [{"functionCall": {"name": "bash", "args": {}}}]},
            {"role": "user", "parts": [{"functionResponse": {"name": "bash", "response": {"output": text}}}]},
        ]


DIALECTS = [Chat, Responses, Messages, Gemini]


async def post(models: ModelServer, dialect: Chat, stream: bool, key: str = "scn-s", tools: bool = True) -> httpx.Response:
    path, body = dialect.request(stream, tools)
    header = {Messages: "x-api-key", Gemini: "x-goog-api-key"}.get(type(dialect))
    headers = {header: key} if header else {"authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(timeout=60) as http:
        return await http.post(f"{models.base}{path}", json=body, headers=headers)


async def said(models: ModelServer, dialect: Chat, stream: bool) -> tuple[str, list[tuple[str, Any]]]:
    answer = (await post(models, dialect, stream)).raise_for_status()
    if not stream:
        return dialect.whole(answer.json())
    data = [line[6:] for line in answer.text.split("\n") if line.startswith("data: ") and line != "data: [DONE]"]
    return dialect.streamed([json.loads(each) for each in data])


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_scenario_is_played_in_each_dialect(dialect: type[Chat], stream: bool) -> None:
    talk = dialect()
    async with serve_models({"s": Scenario(STEPS)}) as models:
        first = await said(models, talk, stream)
        assert await said(models, talk, stream) == first == ("looking", [("bash", {"command": "ls"})])
        talk.result("a b")
        assert (await said(models, talk, stream))[1] == []
        assert "a b" in (await said(models, talk, stream))[0]
        assert models.problems == []
        talk.result("a b")
        assert (await post(models, talk, stream)).status_code == 400
    assert len(models.problems) == 1


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_what_a_step_expects_is_checked_and_told(dialect: type[Chat]) -> None:
    talk = dialect()
    scenarios = {
        "s": Scenario((Step("x", offers=("mcp:mail.send",)),)),
        "m": Scenario((Step("x", model="other"),)),
        "h": Scenario((Step("x", header=("x-task", "1")),)),
    }
    async with serve_models(scenarios) as models:
        for name in scenarios:
            assert (await post(models, talk, False, f"scn-{name}")).status_code == 400
        assert (await post(models, talk, False, "sk-real")).status_code == 401
    assert [word in problem for word, problem in zip(("mail.send", "other", "x-task"), models.problems, strict=True)] == [True] * 3


async def test_faults_come_first_and_a_repeated_request_is_answered(tmp_path: Path) -> None:
    faults = (Fault("status", 429, 0), Fault("echo_key", 401), Fault("malformed"), Fault("cut"))
    async with serve_models({"s": Scenario((Step("x", faults=faults),))}, log=tmp_path / "log") as models:
        limited = await post(models, Chat(), True)
        assert (limited.status_code, limited.headers["retry-after"]) == (429, "0")
        assert "scn-s" in (await post(models, Chat(), True)).text
        with pytest.raises(ValueError, match="Expecting"):
            json.loads((await post(models, Chat(), True)).text.removeprefix("data: "))
        with pytest.raises(httpx.RemoteProtocolError):
            await post(models, Chat(), True)
        assert await said(models, Chat(), True) == ("x", [])
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert lines == models.requests
    assert [line["step"] for line in lines] == [0] * 5
    assert "scn-s" not in json.dumps(lines)


async def test_silence_lasts_until_the_client_goes() -> None:
    async with serve_models({"s": Scenario((Step("x", faults=(Fault("silence"),)),))}) as models:
        path, body = Chat().request(True)
        async with httpx.AsyncClient(timeout=httpx.Timeout(30, read=0.2)) as http:
            with pytest.raises(httpx.ReadTimeout):
                await http.post(f"{models.base}{path}", json=body, headers={"authorization": "Bearer scn-s"})
        assert await said(models, Chat(), False) == ("x", [])


async def test_requests_without_tools_are_answered_beside_the_scenario() -> None:
    async with serve_models({"s": Scenario(STEPS, auxiliary="a title")}) as models:
        assert Chat().whole((await post(models, Chat(), False, tools=False)).json()) == ("a title", [])
    assert [each["auxiliary"] for each in models.requests] == [True]

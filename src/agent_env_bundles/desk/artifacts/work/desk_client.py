"""A little client of MCP over HTTP."""

from __future__ import annotations

import itertools
import json
import urllib.request
from typing import Any


class Desk:
    """One session with the office's tools."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._numbers = itertools.count(1)
        self._headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
        client = {"name": "desk", "version": "1"}
        self._ask("initialize", {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client})
        self._send({"jsonrpc": "2.0", "method": "notifications/initialized"})

    def tools(self) -> list[str]:
        """Names of the tools that are offered."""
        return [tool["name"] for tool in self._ask("tools/list", {})["tools"]]

    def call(self, tool: str, **arguments: Any) -> str:
        """What a tool answers, as text.

        Raises:
            RuntimeError: The tool failed.
        """
        result = self._ask("tools/call", {"name": tool, "arguments": arguments})
        text = "".join(part.get("text", "") for part in result["content"])
        if result.get("isError"):
            raise RuntimeError(f"{tool}: {text}")
        return text

    def _ask(self, method: str, params: dict[str, Any]) -> Any:
        number = next(self._numbers)
        answer = self._send({"jsonrpc": "2.0", "id": number, "method": method, "params": params})
        for message in answer:
            if message.get("id") == number:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']['message']}")
                return message["result"]
        raise RuntimeError(f"{method}: no answer")

    def _send(self, message: dict[str, Any]) -> list[dict[str, Any]]:
        request = urllib.request.Request(self._url, json.dumps(message).encode(), self._headers)
        with urllib.request.urlopen(request, timeout=120) as answer:
            session, body = answer.headers.get("Mcp-Session-Id"), answer.read().decode()
            kind = answer.headers.get("Content-Type", "")
        if session:
            self._headers["Mcp-Session-Id"] = session
        if kind.startswith("text/event-stream"):
            return [json.loads(line[5:]) for line in body.split("\n") if line.startswith("data:") and line[5:].strip()]
        return [json.loads(body)] if body.strip() else []

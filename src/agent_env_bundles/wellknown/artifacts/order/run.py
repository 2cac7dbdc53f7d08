"""Orders a mug twice: the second time there is none left."""

from __future__ import annotations

import json
import urllib.request
from typing import Any


def run(given: dict[str, Any]) -> dict[str, Any]:
    """What the shop said, and what is left. It goes where the warm-up went."""
    url = f"{given['results']['warm-up']['url']}/step"
    said = [call(url, "shop_order", article="mug") for _ in range(2)]
    return {"said": said, "left": json.loads(call(url, "shop_stock")["text"])}


def call(url: str, tool: str, **arguments: str) -> dict[str, Any]:
    """One tool call by plain HTTP."""
    body = json.dumps({"action": "call_tool", "tool_name": tool, "arguments": arguments}).encode()
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        result = json.load(answer)
    return {"text": "".join(part.get("text", "") for part in result["content"]), "failed": bool(result.get("isError"))}

"""Spoils what the desk holds, so that putting it back has something to do."""

from __future__ import annotations

import json
import urllib.request
from typing import Any


def run(given: dict[str, Any]) -> bool:
    """Forgets every ticket by the tool that agents do not see."""
    action = {"action": "call_tool", "tool_name": "tickets_purge", "arguments": {}}
    enable = {"role": "default", "tools": ["tickets_purge"]}
    for path, body in (("/tools/enable", enable), ("/step", action)):
        request = urllib.request.Request(f"{given['env']['url']}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            said = json.load(answer)
    return said["isError"] is not True

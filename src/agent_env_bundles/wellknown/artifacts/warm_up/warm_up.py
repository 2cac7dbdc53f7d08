"""Waits for nothing and assumes nothing: finds the environment, and says what it is."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

WELL_KNOWN = "http://127.0.0.1:18765"


def run(given: dict[str, Any]) -> dict[str, Any]:
    """The environment's card in short, and where it was found."""
    told = {} if given["args"].get("untold") else given.get("env") or {}
    url = told.get("url") or WELL_KNOWN
    with urllib.request.urlopen(f"{url}/.well-known/agent-env.json", timeout=60) as answer:
        card = json.load(answer)
    children = [child["name"] for child in card.get("children_environments") or []]
    return {"url": url, "told": bool(told), "name": card["name"], "servers": children or [card["name"]]}

"""A morning's work at the desk, done over HTTP with nothing but the standard library: what an agent would do with its tools.

A step that was cut is done again from its beginning, so it looks before it acts: what it had done already is not done twice.
"""

from __future__ import annotations

import json
import urllib.request
from typing import Any

from desk_client import Desk

TITLE = "Heating is off"
QUESTION = "Can I visit?"


def run(given: dict[str, Any]) -> dict[str, Any]:
    """Opens a ticket, has the office react, takes a request on the website, and says what it saw."""
    desk = Desk(given["env"]["mcp_url"])
    if TITLE not in titles(desk):
        desk.call("tickets_open", title=TITLE, priority=1)
    ticket = titles(desk)[TITLE]
    asked = f"{given['env']['url']}/svc/portal/api/requests"
    requests = json.loads(fetched(asked))["requests"]
    if {"text": QUESTION} not in requests:
        requests = json.loads(fetched(asked, {"text": QUESTION}))["requests"]
    page = fetched(f"{given['env']['url']}/website/portal/").decode()
    return {
        "number": str(ticket["number"]),
        "opened_at": ticket["at"],
        "tools": sorted(desk.tools()),
        "requests": len(requests),
        "page": "Portal" in page,
    }


def titles(desk: Desk) -> dict[str, dict[str, Any]]:
    """The tickets by their titles."""
    return {ticket["title"]: ticket for ticket in json.loads(desk.call("tickets_list"))}


def fetched(url: str, body: dict[str, Any] | None = None) -> bytes:
    """What a URL answers."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return bytes(answer.read())

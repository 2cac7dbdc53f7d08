"""A name that leads elsewhere each time it is asked for: what is connected to is what was checked, never what comes after."""

from __future__ import annotations

from functools import cache
from typing import Any

from agent_env.places import Command
from tests.keeper.world import GOOD, Names, allowed, apart, web
from tests.sandboxes.people import World

TIMES = 24
LOOP = f"""
import socket, sys
for number in range({TIMES}):
    with socket.create_connection(("127.0.0.1", 61080), 20) as link:
        link.sendall(b"CONNECT rebind.test:80 HTTP/1.1\\r\\nHost: rebind.test\\r\\n\\r\\n")
        answer = link.recv(65536)
        if answer.startswith(b"HTTP/1.1 200"):
            link.sendall(b"GET / HTTP/1.1\\r\\nHost: rebind.test\\r\\nConnection: close\\r\\n\\r\\n")
            answer = b""
            while piece := link.recv(65536):
                answer += piece
            print("good" if b"good GET" in answer else answer)
        else:
            while piece := link.recv(65536):
                answer += piece
            print("refused" if b"it leads to 127.0.0.1" in answer or b"it leads to 169.254.169.254" in answer else answer)
"""


async def scenario(here: World) -> dict[str, Any]:
    names = Names({"rebind.test": [GOOD, "127.0.0.1", GOOD, "169.254.169.254"]})
    with web(80) as (served,):
        async with allowed(here, ["rebind.test"]) as (_, place):
            done = await place.run(Command(["python3", "-c", LOOP]))
        return {"lines": done.stdout.decode().split(), "hits": served.secret_hits, "asked": len(names.asked), "error": done.stderr}


@cache
def seen() -> dict[str, Any]:
    return dict(apart(scenario))


def test_rebinding_reaches_nothing_that_was_not_checked() -> None:
    found = seen()
    assert found["hits"] == []
    assert found["lines"] == ["good", "refused"] * (TIMES // 2), found["error"]


def test_a_name_is_resolved_once_a_connection() -> None:
    assert seen()["asked"] == TIMES

"""One gateway before two servers, shared by the tests of a module that change nothing for each other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.gateway.parts import Live, Raw, gateway, raw_server
from tests.gateway.raw_server import tool


@dataclass
class Pair:
    live: Live
    a: Raw
    b: Raw


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    state: Path = tmp_path_factory.mktemp("pair")
    tools = [
        tool("a_read", annotations={"readOnlyHint": True}),
        tool("a_write"),
        tool("a_secret", _meta={"agentenv.io/hiddenByDefault": True}),
    ]
    with (
        raw_server("a", tools=tools) as a,
        raw_server("b", tools=[tool("b_one")], behaviour={"sse": True}) as b,
        gateway(state, a, b) as live,
    ):
        yield Pair(live, a, b)

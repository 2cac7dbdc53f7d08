"""That a server answers, and what its card says."""

from __future__ import annotations

import json
from collections import Counter

import httpx
from agent_env_sdk.wire.names import CARD_PATH, MCP_PATH, MCP_PROTOCOL_VERSION, PORT, READY_PATH

from agent_env.environments.conformance.check import Area, Gate, SkippedError, Subject, holds

REACHABILITY = Area(Gate.REACHABILITY)
CARD = Area(Gate.CARD)
_FIELDS = ("name", "protocolVersion", "url", "preferredTransport", "capabilities")
_INITIALIZE_SECONDS, _LIST_SECONDS = 5.0, 30.0
"""What a gateway of the reference grants."""


@REACHABILITY.check("D5")
async def it_says_that_it_is_ready(subject: Subject) -> None:
    """`/ready` answers 200, or its MCP endpoint answers below 500"""
    async with subject.client.request("GET", READY_PATH) as answer:
        if answer.status_code == httpx.codes.OK:
            return
    async with subject.client.request("GET", MCP_PATH, headers={"Accept": "text/event-stream"}) as answer:
        holds(answer.status_code < httpx.codes.INTERNAL_SERVER_ERROR, f"/ready is not there, and {MCP_PATH} answers {answer.status_code}")


@REACHABILITY.check("D3", "D6")
async def it_lists_tools_in_time(subject: Subject) -> str:
    """A session opens and lists its tools: at least one, none twice"""
    async with subject.client.mcp() as session:
        tools = await session.tools()
    subject.seen["tools"] = tools
    names = [tool["name"] for tool in tools]
    holds(names, "it lists no tool")
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    holds(not twice, f"it lists {', '.join(twice)} twice")
    return f"{len(names)} tools"


@REACHABILITY.check("D8")
async def it_answers_under_any_host_name(subject: Subject) -> None:
    """A gateway reaches it by a name of its own network, so the Host header must not matter"""
    params = {"protocolVersion": MCP_PROTOCOL_VERSION, "capabilities": {}, "clientInfo": {"name": "agent-env", "version": "1"}}
    body = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
    path = (await subject.client.mcp_url()).removeprefix(subject.client.base_url)
    headers = {"Host": f"{subject.name or 'server'}:{PORT}", "Accept": "application/json, text/event-stream"}
    async with subject.client.request("POST", path, headers=headers, body=body, seconds=_INITIALIZE_SECONDS) as answer:
        holds(answer.status_code == httpx.codes.OK, f"with {headers['Host']!r} as host it answers {answer.status_code}")


@CARD.check("C1")
async def it_serves_a_card(subject: Subject) -> None:
    """Its card is JSON with a name"""
    await subject.needs_card()


@CARD.check("C2")
async def its_card_has_every_field(subject: Subject) -> None:
    """The card says name, protocol version, url, transport and capabilities"""
    await subject.needs_card()
    card = await subject.client.raw_card()
    absent = [field for field in _FIELDS if not card.get(field)]
    holds(not absent, f"{', '.join(absent)} of its card {'is' if len(absent) == 1 else 'are'} missing or empty")


@CARD.check("C3", "D2")
async def its_card_names_it(subject: Subject) -> None:
    """The card, or one of its children, has the environment's name"""
    await subject.needs_card()
    if subject.name is None:
        raise SkippedError("a name to expect (--name)")
    card = await subject.client.raw_card()
    names = [card["name"], *(child.get("name") for child in card.get("children_environments") or ())]
    holds(subject.name in names, f"it is {subject.name!r}, and its card names {', '.join(map(str, names))}")


@CARD.check("D9")
async def its_card_is_there_within_5_seconds(subject: Subject) -> None:
    """A gateway asks for it while it is being deployed, and waits 5 seconds"""
    await subject.needs_card()
    async with subject.client.request("GET", CARD_PATH, seconds=_INITIALIZE_SECONDS) as answer:
        json.loads(await answer.aread())


@CARD.check("I18")
async def every_path_of_its_card_is_relative(subject: Subject) -> None:
    """Paths of the card join onto wherever it is reached, so they begin with a slash"""
    await subject.needs_card()
    card = await subject.client.card()
    paths = [card.url, *(interface.url for interface in card.additional_interfaces)]
    odd = [path for path in paths if not path.startswith("/")]
    holds(not odd, f"{', '.join(odd)} can't be joined onto the address of the card")


@CARD.check(advisory=True)
async def its_card_lists_its_tools(subject: Subject) -> None:
    """The tools of the card are those that it lists"""
    await subject.needs_card()
    told = (await subject.client.card()).capabilities.tools
    if told is None or subject.is_gateway:
        raise SkippedError("tools in the card")
    listed = {tool["name"] for tool in subject.seen.get("tools") or await subject.client.tools()}
    named = {tool.name for tool in told}
    holds(named == listed, f"only in the card: {sorted(named - listed)}; only listed: {sorted(listed - named)}")

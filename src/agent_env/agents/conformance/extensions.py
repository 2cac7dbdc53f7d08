"""The extensions that an agent advertises. Whatever changes an agent is done to one of the check's own."""

from __future__ import annotations

import asyncio
import secrets
import uuid
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
from agent_env_sdk.wire.agent_extensions import (
    AGENT_CONFIG,
    MCP_CONFIG,
    PEER_AGENTS,
    SKILL_CONFIG,
    SNAPSHOT,
    STAGING,
    TRAJECTORY,
    TRIGGERS,
    card_request_accepts,
    find,
    method_of,
    supported_config,
)

from agent_env.agents import snapshots
from agent_env.agents.conformance.check import Area, Gate, SkippedError, Subject, holds
from agent_env.agents.contract import End, Turn
from agent_env.agents.faults import AgentFailedError
from agent_env.agents.live import RecordedAgent
from agent_env.agents.staging import staged
from agent_env.clock import SystemClock

CONFIG, MCP, SKILLS, TRAJECTORIES = Area(Gate.CONFIG), Area(Gate.MCP), Area(Gate.SKILLS), Area(Gate.TRAJECTORY)
PEERS, RULES, STORE, STATE, MODEL = Area(Gate.PEERS), Area(Gate.TRIGGERS), Area(Gate.STAGING), Area(Gate.SNAPSHOT), Area(Gate.MODEL)
Json = Any
_SERVER = "http://127.0.0.1:9/mcp"
"""Where nobody listens: that it is registered says nothing of whether it is used."""


async def _refuses(agent: RecordedAgent, uri: str, operation: str, body: Mapping[str, Json], *statuses: int) -> None:
    try:
        await agent.invoke(uri, operation, body)
    except AgentFailedError as error:
        holds(error.status in statuses, f"it answers {operation} with status {error.status}, not {statuses[0]}")
        return
    raise AssertionError(f"it takes {operation} {dict(body)}")


# settings


@CONFIG.check("2.4", "7.2")
async def its_identity_can_be_set(subject: Subject) -> None:
    """A name and a description that are set are on its card"""
    await subject.needs(AGENT_CONFIG, "set")
    if not {"name", "description"} <= supported_config(await subject.agent.card()):
        raise SkippedError("a name and a description among its settings")
    name = f"checked-{secrets.token_hex(4)}"
    async with subject.own() as agent:
        await agent.invoke(AGENT_CONFIG, "set", {"name": name, "description": "As the check says."})
        card = await agent.card(refresh=True)
        holds((card.name, card.description) == (name, "As the check says."), f"its card says {card.name!r}, {card.description!r}")


@CONFIG.check("2.4", "7.3")
async def settings_are_told_as_they_were_set(subject: Subject) -> str:
    """Settings that are set can be read, those that were not set are not there, and one set leaves the others"""
    await subject.needs(AGENT_CONFIG, "set", "get")
    taken = supported_config(await subject.agent.card())
    texts = [name for name in ("role", "system_prompt", "model", "effort") if name in taken]
    if not texts:
        raise SkippedError("settings that are texts")
    async with subject.own() as agent:
        for name in texts:
            await agent.invoke(AGENT_CONFIG, "set", {name: f"x-{name}"})
        read = (await agent.invoke(AGENT_CONFIG, "get")).get("config") or {}
        wrong = [name for name in texts if read.get(name) not in {f"x-{name}", "***"}]
        holds(not wrong, f"it does not tell {', '.join(wrong)} as set")
    return ", ".join(texts)


@CONFIG.check("2.4")
async def unknown_settings_are_refused(subject: Subject) -> None:
    """A setting that it does not have is refused with 400, and nothing of that request is set"""
    await subject.needs(AGENT_CONFIG, "set")
    async with subject.own() as agent:
        await _refuses(agent, AGENT_CONFIG, "set", {"no_such_setting": 1}, httpx.codes.BAD_REQUEST, httpx.codes.UNPROCESSABLE_ENTITY)


# what it is given


@MCP.check("2.4", "7.7")
async def servers_of_tools_can_be_registered(subject: Subject) -> None:
    """A server that is added is listed, without its headers; the same name again is refused"""
    await subject.needs(MCP_CONFIG, "add", "list")
    request = (method_of(await subject.agent.card(), MCP_CONFIG, "add") or {}).get("request") or {}
    body: dict[str, Json] = {"url": _SERVER}
    for name, value in (("name", "checked"), ("headers", {"authorization": "Bearer secret-of-a-check"})):
        if not request or card_request_accepts(request, {*body, name}):
            body[name] = value
    async with subject.own() as agent:
        await agent.invoke(MCP_CONFIG, "add", body)
        listed = (await agent.invoke(MCP_CONFIG, "list")).get("mcp_servers") or {}
        holds(any((about or {}).get("url") == _SERVER for about in listed.values()), f"it lists {sorted(listed)}")
        holds("secret-of-a-check" not in str(listed), "it tells the headers of its servers")
        await _refuses(agent, MCP_CONFIG, "add", body, httpx.codes.CONFLICT)


@MCP.check("10")
async def servers_of_tools_can_be_replaced_and_removed(subject: Subject) -> None:
    """A server can be registered again under its name, and removed, where it offers that"""
    await subject.needs(MCP_CONFIG, "upsert", "remove", "list")
    async with subject.own() as agent:
        for url in (_SERVER, f"{_SERVER}/other"):
            await agent.invoke(MCP_CONFIG, "upsert", {"url": url, "name": "checked"})
        listed = (await agent.invoke(MCP_CONFIG, "list")).get("mcp_servers") or {}
        holds((listed.get("checked") or {}).get("url") == f"{_SERVER}/other", f"it lists {listed}")
        await agent.invoke(MCP_CONFIG, "remove", {"name": "checked"})
        holds("checked" not in ((await agent.invoke(MCP_CONFIG, "list")).get("mcp_servers") or {}), "it still lists what was removed")


@SKILLS.check("2.4", "7.9")
async def skills_can_be_added(subject: Subject) -> None:
    """A skill that is added is listed; the same name again, and a name that is a path, are refused"""
    await subject.needs(SKILL_CONFIG, "add", "list")
    skill = {"name": "checked", "description": "VALIDATOR-42", "skill_md": "---\nname: checked\ndescription: VALIDATOR-42\n---\nSay so.\n"}
    async with subject.own() as agent:
        await agent.invoke(SKILL_CONFIG, "add", skill)
        listed = (await agent.invoke(SKILL_CONFIG, "list")).get("skills") or {}
        holds((listed.get("checked") or {}).get("description") == "VALIDATOR-42", f"it lists {listed}")
        await _refuses(agent, SKILL_CONFIG, "add", skill, httpx.codes.CONFLICT)
        await _refuses(agent, SKILL_CONFIG, "add", {**skill, "name": "../checked"}, httpx.codes.BAD_REQUEST)


@PEERS.check("2.4", "7.11")
async def peers_can_be_told(subject: Subject) -> None:
    """A table of peers replaces the one before, and one of double names is refused"""
    await subject.needs(PEER_AGENTS, "set", "list")
    one, other = ({"name": name, "url": "http://127.0.0.1:9"} for name in ("one", "other"))
    async with subject.own() as agent:
        await agent.invoke(PEER_AGENTS, "set", {"peers": [one, other]})
        await _refuses(agent, PEER_AGENTS, "set", {"peers": [one, one]}, httpx.codes.BAD_REQUEST)
        await agent.invoke(PEER_AGENTS, "set", {"peers": [other]})
        listed = [each.get("name") for each in (await agent.invoke(PEER_AGENTS, "list")).get("peers") or ()]
        holds(listed == ["other"], f"it lists {listed}")


@RULES.check("2.4")
async def rules_decide_without_a_model(subject: Subject) -> None:
    """Rules that are registered decide what is said, once each, and tell what has fired"""
    await subject.needs(TRIGGERS, "register", "decide", "state")
    rules = [
        {"id": "one", "when": {"type": "step", "turn": 1}, "actions": [{"type": "say", "text": "go on"}]},
        {"id": "two", "when": {"type": "conversational", "where": {"message": {"regex": "done$"}}}, "actions": [{"type": "end"}]},
    ]
    context = str(uuid.uuid4())
    async with subject.own() as agent:
        await agent.invoke(TRIGGERS, "register", {"triggers": rules})
        first = await agent.invoke(TRIGGERS, "decide", {"turn": 1, "solver_message": "hello", "context_id": context})
        holds((first.get("fired"), first.get("done")) == (["one"], False), f"at the first turn it decides {first}")
        holds([part.get("text") for part in first.get("parts") or ()] == ["go on"], f"it says {first.get('parts')}")
        second = await agent.invoke(TRIGGERS, "decide", {"turn": 2, "solver_message": "all done", "context_id": context})
        holds((second.get("fired"), second.get("done")) == (["two"], True), f"at the second turn it decides {second}")
        await _refuses(agent, TRIGGERS, "register", {"triggers": [{"id": "x", "when": {"type": "never"}, "actions": []}]}, 400)


# what it recorded


@TRAJECTORIES.check("2.4", "7.8")
async def what_it_did_can_be_read(subject: Subject) -> str:
    """The trajectory of a task that has ended can be read; that of an unknown one is 404, and of one that recorded nothing"""
    await subject.needs(TRAJECTORY, "get")
    turn = subject.taken()
    await _refuses(subject.agent, TRAJECTORY, "get", {"task_id": str(uuid.uuid4())}, httpx.codes.NOT_FOUND)
    try:
        events = (await subject.agent.invoke(TRAJECTORY, "get", {"task_id": turn.task_id})).get("trajectory")
    except AgentFailedError as error:
        holds(error.status == httpx.codes.NOT_FOUND, f"it answers with status {error.status}")
        holds(turn.end is not End.COMPLETED or await _has_no_page(subject, turn), "it has recorded events, and gives none of them")
        return "nothing was recorded of the prompt"
    holds(isinstance(events, list), "the trajectory is no list")
    return f"{len(events)} events"


@TRAJECTORIES.check("2.4")
async def what_it_did_can_be_read_in_pages(subject: Subject) -> str:
    """Pages of a trajectory follow on each other, and past its end there is none"""
    await subject.needs(TRAJECTORY, "get")
    if not await _has_pages(subject):
        raise SkippedError("pages of trajectories")
    turn, after, count = subject.taken(), 0, 0
    while True:
        page = await subject.agent.invoke(TRAJECTORY, "get", {"task_id": turn.task_id, "after": after, "limit": 1})
        count += len(page["events"])
        holds(page["next"] == after + len(page["events"]), f"after {after} with {len(page['events'])} events comes {page['next']}")
        after = page["next"]
        if not page["has_more"]:
            break
    await _refuses(subject.agent, TRAJECTORY, "get", {"task_id": turn.task_id, "after": after + 1}, httpx.codes.BAD_REQUEST)
    return f"{count} events, {page['state']}"


async def _has_pages(subject: Subject) -> bool:
    request = (method_of(await subject.agent.card(), TRAJECTORY, "get") or {}).get("request") or {}
    return card_request_accepts(request, {"task_id", "after", "limit"})


async def _has_no_page(subject: Subject, turn: Turn) -> bool:
    """Whether its pages, too, say that nothing was recorded."""
    if not await _has_pages(subject):
        return False
    page = await subject.agent.invoke(TRAJECTORY, "get", {"task_id": turn.task_id, "after": 0, "limit": 1})
    return not page["events"] and not page["has_more"]


# its store and its state


@STORE.check("2.4")
async def its_store_keeps_what_only_the_path_opens(subject: Subject) -> None:
    """What is put into its store can be read back, under that path alone, and removed"""
    if find(await subject.agent.card(), STAGING) is None:
        raise SkippedError("staging")
    data = secrets.token_bytes(100_000)
    async with subject.own() as agent:
        with TemporaryDirectory() as folder:
            source, back = Path(folder, "source"), Path(folder, "back")
            await asyncio.to_thread(source.write_bytes, data)
            async with staged(agent, agent.client.limits, SystemClock()) as staging:
                await staging.put("object", source)
                await agent.get_file(staging.path("object"), back, limit_bytes=len(data), seconds=subject.prompt_seconds)
                holds(await asyncio.to_thread(back.read_bytes) == data, "it gives back other bytes")
                guessed = staging.path("object").replace(staging.prefix.rpartition("/")[2], "a" * 32)
                status, _ = await agent.client.probe("GET", guessed)
                holds(status == httpx.codes.NOT_FOUND, f"another path is answered with status {status}")
                kept = staging.path("object")
            status, _ = await agent.client.probe("GET", kept)
            holds(status == httpx.codes.NOT_FOUND, f"what was removed is answered with status {status}")


@STATE.check("2.4", "7.10")
async def its_state_goes_on_in_another_one(subject: Subject) -> None:
    """A conversation that is saved goes on in another agent of the same kind, under the id that is asked for"""
    await subject.needs(SNAPSHOT, "save", "load")
    if find(await subject.agent.card(), STAGING) is None:
        raise SkippedError("staging")
    context, other_id = str(uuid.uuid4()), str(uuid.uuid4())
    limits = subject.agent.client.limits
    async with subject.own() as one, subject.own() as other:
        turn = await subject.ask("Remember the word VALIDATOR-STATE.", agent=one, context_id=context)
        if turn.end is not End.COMPLETED:
            raise SkippedError(f"a prompt that completes (it is {turn.end}: {turn.error_message})")
        with TemporaryDirectory() as folder:
            saved = await snapshots.save(
                one, context, Path(folder), limits=limits, clock=SystemClock(), seconds=limits.agent_trajectory_seconds
            )
            holds(all(file.stat().st_size for file in saved.values()), "it saved nothing")
            found = await snapshots.load(
                other, saved, context_id=other_id, limits=limits, clock=SystemClock(), seconds=limits.agent_trajectory_seconds
            )
        holds(found == other_id, f"the conversation goes on as {found}")
        again = await subject.ask("Which word was it?", agent=other, context_id=other_id)
        holds(again.end is End.COMPLETED, f"the next turn ended as {again.end}: {again.error_message}")


# what needs a model


@MODEL.check("7.4")
async def it_does_as_its_system_prompt_says(subject: Subject) -> str:
    """A word that its system prompt asks for is in its answer"""
    if "system_prompt" not in supported_config(await subject.agent.card()):
        raise SkippedError("a system prompt among its settings")
    token = f"VALIDATOR-SP-{secrets.token_hex(6)}"
    prompt = f"Whatever you are asked, your answer contains the word {token} exactly as it is written here."
    async with subject.own() as agent:
        turn = await subject.ask("Who are you?", agent=agent, system_prompt=prompt)
    holds(token in (turn.text or ""), f"it ended as {turn.end}: {(turn.text or turn.error_message or '')[:100]}")
    return str(turn.end)


@MODEL.check("6")
async def it_runs_commands(subject: Subject) -> str:
    """It can run a command, and tells what that printed"""
    turn = await subject.ask("Run the shell command `echo $((6 * 7 * 1000 + 137))` and answer with its output.")
    holds("42137" in (turn.text or ""), f"it ended as {turn.end}: {(turn.text or turn.error_message or '')[:100]}")
    return f"{turn.usage.tool_call_count if turn.usage else 'no count of'} tool calls"


@MODEL.check("2.3")
async def it_remembers_its_conversation(subject: Subject) -> None:
    """What was said in one turn is known in the next one, and not in another conversation"""
    context, word = str(uuid.uuid4()), f"VALIDATOR-{secrets.token_hex(4)}"
    await subject.ask(f"Remember this word: {word}", context_id=context)
    again = await subject.ask("Which word did I ask you to remember? Answer with it.", context_id=context)
    holds(word in (again.text or ""), f"it answers {(again.text or again.error_message or '')[:100]!r}")
    other = await subject.ask("Which word did I ask you to remember? Answer with it.")
    holds(word not in (other.text or ""), "it tells it in another conversation too")

"""Finding an agent and speaking to it, whichever generation it is of."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from agent_env_sdk.agent.scripted import Scripted
from agent_env_sdk.wire.agent_extensions import AGENT_CONFIG, SNAPSHOT, TRAJECTORY
from agent_env_sdk.wire.trajectory import MessageEvent
from starlette.responses import JSONResponse

from agent_env.agents import trajectories
from agent_env.agents.contract import End
from agent_env.agents.faults import AgentFailedError, AgentNotAdvertisedError
from agent_env.agents.normalise import events_of
from agent_env.waiting import poll
from tests.agents.servers import NOW, OLD, Plain, client_of, outgoing, script, served, turn


async def _done(server: Plain, task_id: str) -> AsyncIterator[dict[str, Any] | None]:
    yield server.update(task_id, "completed", "done", final=True)


NO_CONTRACT = [{"uri": AGENT_CONFIG, "params": {"methods": {"set": {"method": "POST", "request": [1]}}}}]


@pytest.mark.parametrize("paths", [(OLD,), (NOW,), (NOW, OLD)], ids=["older path", "current path", "both"])
def test_a2_06_a_card_is_found_at_either_path(paths: tuple[str, ...]) -> None:
    async def go() -> None:
        async with Plain(paths=paths, on_stream=_done).here() as client:
            assert (await client.card()).name == "plain"
            assert (await turn(client, outgoing())).text == "done"

    asyncio.run(go())


def test_a2_06_an_agent_without_a_card_is_told_with_the_paths_that_were_tried() -> None:
    async def go() -> None:
        async with Plain(paths=()).here() as client:
            with pytest.raises(AgentFailedError, match=rf"tried {NOW} \(404\), {OLD} \(404\)"):
                await client.card()
            assert (await turn(client, outgoing())).error_code == "no_card"

    asyncio.run(go())


@pytest.mark.parametrize("version", ["1.0", "0.3.0"])
def test_a2_06_each_generation_is_spoken_as_the_card_says(version: str) -> None:
    async def go() -> None:
        async with served(Scripted()) as client:
            card = await client.card()
            assert card.supported_interfaces is not None
            only = [each for each in card.supported_interfaces if each.protocol_version == version]
            client._card = card.model_copy(update={"supported_interfaces": only, "url": None})
            found = await turn(client, outgoing(script({"progress": "half"}, {"say": "done"})))
            assert (found.end, found.text, found.context_id) == (End.COMPLETED, "done", "context-1")
            assert found.task_id is not None
            assert (await client.task(found.task_id)).id == found.task_id

    asyncio.run(go())


def test_a2_01_a_card_that_names_an_address_nobody_can_reach_is_used_under_the_one_where_it_was_found() -> None:
    async def go() -> None:
        strange = "http://0.0.0.0:9/a2a"
        more = {"url": strange, "additionalInterfaces": [{"url": "http://agent.internal:1/a2a", "transport": "JSONRPC"}]}
        async with Plain(card=more, on_stream=_done).here() as client:
            assert (await turn(client, outgoing())).text == "done"

    asyncio.run(go())


@pytest.mark.parametrize(
    ("card", "said"),
    [
        ({"url": "http://[::1/a2a"}, "can't be read"),
        ({"url": "/a\x00b"}, "names as an address"),
        ({"url": "/a2a", "capabilities": {"streaming": True, "extensions": NO_CONTRACT}}, ""),
    ],
    ids=["no address", "no path", "no contract"],
)
def test_a_card_whose_words_lead_nowhere_is_told_of_as_the_agents_fault(card: dict[str, Any], said: str) -> None:
    async def go() -> None:
        async with Plain(card=card, on_stream=_done).here() as client:
            found = await turn(client, outgoing(config={"model": "m"}))
            assert found.end is (End.FAILED if said else End.COMPLETED)
            assert said in str(found.error_message)

    asyncio.run(go())


def test_no_address_in_a_card_leads_to_anybody_else() -> None:
    async def go() -> None:
        heard: list[bytes] = []

        async def listens(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            heard.append(await reader.read(1 << 16))
            writer.close()

        async with await asyncio.start_server(listens, "127.0.0.1", 0) as other:
            away = f"http://127.0.0.1:{other.sockets[0].getsockname()[1]}/ext/agent-config"
            methods = {"set": {"method": "POST", "endpoint": away}}
            extensions = [{"uri": AGENT_CONFIG, "params": {"methods": methods}}]
            async with (
                Plain(card={"capabilities": {"extensions": extensions}}).here() as plain,
                client_of(plain.base, token="own") as client,
            ):
                with pytest.raises(AgentFailedError, match="status 404"):
                    await client.invoke(AGENT_CONFIG, "set", {"model": "m"})
        assert heard == []

    asyncio.run(go())


def test_pages_of_a_trajectory_that_lead_in_a_circle_are_not_followed() -> None:
    async def go() -> None:
        def page(_: Plain, body: dict[str, Any]) -> JSONResponse:
            return JSONResponse({"state": "completed", "format": [1], "events": [{}], "next": min(body["after"] + 1, 3), "has_more": True})

        fields = {"required": ["task_id"], "optional": ["after", "limit"]}
        extensions = [{"uri": TRAJECTORY, "params": {"methods": {"get": {"method": "POST", "request": fields}}}}]
        async with Plain(card={"capabilities": {"extensions": extensions}}, trajectory=page).here() as client:
            with pytest.raises(AgentFailedError, match="says to go on at 3"):
                await trajectories.read(client, {"task_id": "task-1"})

    asyncio.run(go())


def test_an_agent_with_a_token_lets_in_who_has_it_and_its_refusal_repeats_nothing() -> None:
    async def go() -> None:
        async with served(Scripted(), token="sesame") as client:
            assert (await turn(client, outgoing(script({"say": "in"})))).text == "in"
            async with client_of(client.base, token="guess") as stranger:
                found = await turn(stranger, outgoing("a secret word"))
                assert (found.end, found.error_code) == (End.FAILED, "unauthorized")
                assert "secret" not in str(found.error_message)
                assert "guess" not in str(found.error_message)

    asyncio.run(go())


def test_an_extension_is_called_where_the_card_says_and_refused_where_it_has_none() -> None:
    async def go() -> None:
        async with served(Scripted()) as client:
            await client.invoke(AGENT_CONFIG, "set", {"description": "new"})
            assert (await client.card(refresh=True)).description == "new"
            with pytest.raises(AgentNotAdvertisedError):
                await client.invoke(SNAPSHOT, "save", {})
            with pytest.raises(AgentFailedError, match="invalid_params"):
                await client.invoke(AGENT_CONFIG, "set", {"no_such_setting": "canary"})

    asyncio.run(go())


def test_what_came_of_a_trajectory_is_kept_though_the_turn_ends_before_it_is_written(tmp_path: Any) -> None:
    async def go() -> None:
        async with served(Scripted()) as client:
            found = await turn(client, outgoing(script({"record": {"type": "note"}}, {"say": "done"})))
            assert found.task_id is not None
            keeping = trajectories.Keeping(client, tmp_path / "events.jsonl")
            await client.card()
            busy, free = threading.Event(), threading.Event()
            with ThreadPoolExecutor(1) as threads:  # on a busy machine, no thread is free to write at once
                asyncio.get_running_loop().set_default_executor(threads)
                threads.submit(lambda: (busy.set(), free.wait(60)))
                following = asyncio.ensure_future(keeping.follow(found.task_id, every_seconds=0.01, within_seconds=60))
                assert busy.wait(60)
                await poll(lambda: waits(threads), within_seconds=60, what="a page that waits to be written")
                following.cancel()
                await asyncio.sleep(0)
                free.set()
                await asyncio.wait({following})
                await keeping.rest(found.task_id)
                events = keeping.events(limit_bytes=10 << 20)
            assert events is not None
            assert len(events) == keeping.count
            assert [event["type"] for event in events if event["type"] in {"note", "end"}] == ["note", "end"]

    async def waits(threads: ThreadPoolExecutor) -> bool | None:
        return threads._work_queue.qsize() > 0 or None

    asyncio.run(go())


def test_a_trajectory_is_read_in_pages_and_kept_as_it_is(tmp_path: Any) -> None:
    async def go() -> None:
        async with served(Scripted()) as client:
            notes = [{"record": {"type": "note", "number": number}} for number in range(2500)]
            found = await turn(client, outgoing(script(*notes, {"say": "done"})))
            assert found.task_id is not None
            keeping = trajectories.Keeping(client, tmp_path / "events.jsonl")
            await keeping.rest(found.task_id)
            native = keeping.events(limit_bytes=10 << 20)
            assert native is not None
            assert [event["number"] for event in native if event["type"] == "note"] == list(range(2500))
            events = events_of(native, keeping.format)
            assert events is not None
            assert [event.text for event in events if isinstance(event, MessageEvent)][-1] == "done"
            assert await client.supports(TRAJECTORY, "get")

    asyncio.run(go())

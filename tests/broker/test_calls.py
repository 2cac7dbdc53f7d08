"""A call through the broker: carried byte for byte, with the real key, counted, and without a trace of the key behind it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import httpx
import pytest
from agent_env_sdk.testing.models import Call, Fault, Scenario, Step

from agent_env.broker import Dialect, Price, Refusal
from agent_env.broker.dialects import route_of
from agent_env.broker.endpoints import Endpoint, Endpoints
from agent_env.waiting import poll
from tests.broker.world import BODIES, HI, PATHS, desk, transcript
from tests.busy import within


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'state' / 'runs.db'}"


@pytest.mark.parametrize("dialect", [each.value for each in Dialect])
async def test_a_stream_arrives_byte_for_byte_and_is_counted(url: str, tmp_path: Path, dialect: str) -> None:
    prices = {"m": Price(input=1.0, output=2.0)}
    async with desk(url, tmp_path, prices=prices) as here:
        body = {**BODIES[dialect], **({"stream_options": {"include_usage": True}} if dialect == "openai-chat" else {})}
        answer = await here.ask(await here.token(), body, PATHS[dialect])
        direct = await here.http.post(
            f"{here.models.base}{PATHS[dialect]}", json=body, headers={"authorization": f"Bearer {here.models.key('greet')}"}
        )
        assert (answer.status_code, answer.content) == (200, direct.content)
        assert answer.headers["content-type"] == direct.headers["content-type"]
        used = await here.used(holder="agent")
        assert (used.requests, used.input_tokens, used.output_tokens, used.estimated) == (1, 10, 5, 0)
        assert used.cost_usd == pytest.approx(20e-6)
    assert not here.models.problems


@pytest.mark.parametrize("way", ["bearer", "x-api-key", "x-goog-api-key", "api-key", "query"])
async def test_the_key_goes_where_the_agent_put_its_token(url: str, tmp_path: Path, way: str) -> None:
    async with desk(url, tmp_path) as here:
        token = await here.token()
        headers = {"bearer": {"authorization": f"Bearer {token}"}, "query": {}}.get(way, {way: token})
        path = f"/v1/messages{f'?key={token}' if way == 'query' else ''}"
        answer = await here.http.post(f"{here.base}{path}", json={**HI, "max_tokens": 9}, headers=headers)
        # The scripted server knows the scenario by the key, so an answer shows that the key arrived.
        assert answer.status_code == (401 if way == "api-key" else 200)
        assert "key=" not in json.dumps(here.models.requests)


async def test_tokens_of_a_chat_stream_are_counted_although_the_agent_did_not_ask_for_them(url: str, tmp_path: Path) -> None:
    async with desk(url, tmp_path) as here:
        answer = await here.ask(await here.token(), {**HI, "stream": True})
        direct = await here.http.post(
            f"{here.models.base}/v1/chat/completions", json={**HI, "stream": True}, headers={"x-api-key": here.models.key("greet")}
        )
        told = [line for line in direct.text.splitlines() if '"choices": []' not in line and line]
        assert [line for line in answer.text.splitlines() if line] == told
        assert '"choices": []' not in answer.text
        assert answer.text.endswith("data: [DONE]\n\n")
        used = await here.used()
        assert (used.input_tokens, used.output_tokens, used.estimated) == (10, 5, 0)


async def test_a_key_that_the_model_echoes_reaches_neither_the_agent_nor_any_file(url: str, tmp_path: Path) -> None:
    secret = "echoed-0123456789"
    scenarios = {secret: Scenario((Step("done", faults=(Fault("echo_key", status=400),)),))}
    async with desk(url, tmp_path, scenarios, record=str(tmp_path / "recorded")) as here:
        key = here.models.key(secret)
        token = await here.token(scenario=secret)
        answer = await here.ask(token)
        assert answer.status_code == 400
        assert "the key *** is refused" in answer.text
        spoken = await here.ask(token, {**HI, "messages": [{"role": "user", "content": f"say {token}"}]})
        assert spoken.status_code == 200
        written = here.written()
        assert key not in written
        assert key not in answer.text
        assert token not in written


async def test_an_answer_that_breaks_off_breaks_off_for_the_agent_too_and_is_counted_as_far_as_it_went(url: str, tmp_path: Path) -> None:
    scenarios = {"cut": Scenario((Step("a long answer", faults=(Fault("cut"),)),))}
    async with desk(url, tmp_path, scenarios) as here:
        with pytest.raises(httpx.RemoteProtocolError):
            await here.ask(await here.token(scenario="cut"), {**BODIES["anthropic-messages"]}, PATHS["anthropic-messages"])

        async def settled() -> bool | None:
            return (await here.used()).problem is Refusal.UNAVAILABLE or None

        await poll(settled, within_seconds=within(5), what="the call's end")
        used = await here.used()
        assert used.input_tokens == 10  # the first event of the stream told it
        assert "broke off" in (used.message or "")


async def test_an_agent_that_goes_away_ends_the_call(url: str, tmp_path: Path) -> None:
    scenarios = {"mute": Scenario((Step("x", faults=(Fault("silence"),)),))}
    async with desk(url, tmp_path, scenarios) as here:
        token = await here.token(scenario="mute")
        asking = asyncio.ensure_future(here.ask(token, BODIES["openai-chat"]))

        async def asked() -> bool | None:
            return bool(here.models.requests) or None

        await poll(asked, within_seconds=within(5), what="the model being asked")
        asking.cancel()
        await asyncio.wait({asking})

        async def over() -> bool | None:
            rows = here.db.read(lambda tx: tx.execute("SELECT state, message FROM model_calls"))
            return (rows[0].state == "failed" and "went away" in rows[0].message) or None

        await poll(over, within_seconds=within(5), what="the call's end")
        used = await here.used()
        assert (used.input_tokens > 0, used.estimated) == (True, 1)  # the model had the request to read


@pytest.mark.parametrize("dialect", ["openai-chat", "openai-responses", "anthropic-messages"])
async def test_an_agent_that_hangs_up_on_the_last_event_has_had_its_answer(url: str, tmp_path: Path, dialect: str) -> None:
    kept = tmp_path / "kept"
    async with desk(url, tmp_path, record=str(kept)) as here:
        hold, whole = asyncio.Event(), b""

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 1000000\r\n\r\n" + whole)
            await writer.drain()
            await hold.wait()
            writer.close()

        direct = await here.http.post(
            f"{here.models.base}{PATHS[dialect]}", json=dict(BODIES[dialect]), headers={"x-api-key": here.models.key("greet")}
        )
        whole = direct.content
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        here.models.base = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        headers = {"authorization": f"Bearer {await here.token()}"}
        async with here.http.stream("POST", f"{here.base}{PATHS[dialect]}", json=dict(BODIES[dialect]), headers=headers) as streamed:
            async for line in streamed.aiter_lines():
                if any(mark in line for mark in ("[DONE]", "message_stop", "response.completed")):
                    break

        async def done() -> bool | None:
            rows = here.db.read(lambda tx: tx.execute("SELECT state, output_tokens FROM model_calls"))
            return (rows[0].state == "done" and rows[0].output_tokens == 5) or None

        await poll(done, within_seconds=within(5), what="the call's end")

        async def recorded() -> bool | None:
            return any(each.suffix == ".json" for each in kept.iterdir()) if kept.is_dir() else None

        await poll(recorded, within_seconds=within(5), what="the recording")
        hold.set()
        server.close()


async def test_what_is_no_call_of_a_model_is_not_carried(url: str, tmp_path: Path) -> None:
    async with desk(url, tmp_path) as here:
        token = await here.token()
        auth = {"authorization": f"Bearer {token}"}
        for method, path in (
            ("GET", "/key/info"),
            ("POST", "/key/generate"),
            ("GET", "/v1/files"),
            ("GET", "/v1/models/../../key/info"),
            ("DELETE", "/v1/responses/1"),
            ("POST", "//evil.example/v1/messages"),
            ("POST", "/v1/messages/batches"),
        ):
            answer = await here.http.request(method, httpx.URL(here.base, raw_path=path.encode()), headers=auth)
            assert answer.status_code == 404, path
            assert answer.json()["error"]["code"] == Refusal.UNKNOWN
        assert here.models.requests == []
        assert (await here.used()).requests == 0


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ('{"model":"m","messages":' + "[" * 100_000 + "]" * 100_000 + "}", "no JSON object"),
        ('{"model":"m","messages":[{"role":"user","content":' + "[" * 300 + "]" * 300 + "}]}", "nests deeper than 200 levels"),
        ('{"model":"\\ud800","messages":[]}', "no name of a model"),
        ('{"model":"a\\u0000b","messages":[]}', "no name of a model"),
        ('{"model":"' + "m" * 600 + '","messages":[]}', "no name of a model"),
        ('{"input":"hi","model":"m","background":true}', "can't be counted"),
    ],
    ids=["without end", "deep", "half a character", "zero", "long", "background"],
)
async def test_a_request_that_can_t_be_understood_is_refused_in_words_and_the_next_one_is_served(
    url: str, tmp_path: Path, body: str, said: str
) -> None:
    async with desk(url, tmp_path, record=str(tmp_path / "kept")) as here:
        token = await here.token()
        headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
        path = PATHS["openai-responses" if "background" in body else "openai-chat"]
        refused = await here.http.post(f"{here.base}{path}", content=body, headers=headers)
        assert refused.status_code == 404
        assert said in refused.json()["error"]["message"]
        assert (await here.ask(token)).status_code == 200
        assert len(here.models.requests) == 1


async def test_only_a_token_of_a_run_that_goes_on_is_let_through(url: str, tmp_path: Path) -> None:
    async with desk(url, tmp_path) as here:
        token = await here.token()
        strange = [
            None,
            "-",
            "sk-anything",
            token[:-1] + ("0" if token[-1] != "0" else "1"),
            token.replace("aem-6", "aem-7"),
            token.upper(),
        ]
        for each in strange:
            headers = {} if each is None else {"authorization": f"Bearer {each}"}
            answer = await here.http.post(f"{here.base}/v1/chat/completions", json=HI, headers=headers)
            assert (answer.status_code, answer.json()["error"]["code"]) == (401, Refusal.TOKEN)
        assert (await here.ask(token)).status_code == 200
        await here.db.awrite(lambda tx: tx.change("UPDATE runs SET finished_at = '2026-01-01T00:00:00.000000Z'"))
        ended = await here.ask(token)
        assert (ended.status_code, ended.json()["error"]["message"]) == (401, "the run that this token belongs to has ended")
        assert len(here.models.requests) == 1


async def test_a_key_goes_to_no_other_address_than_the_one_it_was_configured_for(url: str, tmp_path: Path) -> None:
    async with desk(url, tmp_path) as here:
        seen: list[bytes] = []

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            seen.append(await reader.readuntil(b"\r\n\r\n"))
            port = here.models.base.rpartition(":")[2]
            writer.write(f"HTTP/1.1 307 Go\r\nlocation: http://127.0.0.1:{port}/v1/messages\r\ncontent-length: 0\r\n\r\n".encode())
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        here.tell("away", Endpoints((Endpoint("away", f"http://127.0.0.1:{port}", here.models.key("greet")),)))
        token = await here.grant("agent", "away")
        headers = {"authorization": f"Bearer {token}", "host": "evil.example", "x-forwarded-host": "evil.example"}
        refused = await here.http.post(f"{here.base}/v1/messages", json={**HI, "max_tokens": 5}, headers=headers)
        server.close()
        assert (refused.status_code, refused.json()["error"]["code"]) == (502, Refusal.UNAVAILABLE)
        assert "redirects" in refused.json()["error"]["message"]
        assert here.models.requests == []
        assert f"host: 127.0.0.1:{port}".encode() in seen[0].lower()


@pytest.mark.parametrize(
    ("base", "address"),
    [
        ("https://h/p/v1/", "https://h/p/v1/chat/completions?api-version=2&alt=sse"),
        ("https://h/p/v1?api-version=1", "https://h/p/v1/chat/completions?api-version=1&alt=sse"),
        ("https://h/p/", "https://h/p/openai/v1/chat/completions?api-version=2&alt=sse"),
    ],
)
def test_an_endpoint_s_own_path_and_query_stay_and_the_agent_s_token_goes(base: str, address: str) -> None:
    path = "/openai/v1/chat/completions"
    route = route_of("POST", path)
    assert route is not None
    assert Endpoint("e", base).address(route, path, "api-version=2&key=token&alt=sse") == address


async def test_each_model_is_asked_at_its_own_endpoint_with_its_own_key(url: str, tmp_path: Path) -> None:
    scenarios = {"one": Scenario((Step("from one"),)), "two": Scenario((Step("from two"),))}
    async with desk(url, tmp_path, scenarios) as here:
        base = here.models.base
        one = Endpoint("one", base, here.models.key("one"), models=("claude-*",))
        two = Endpoint("two", f"{base}/v1/", here.models.key("two"), dialects=("openai-chat",))
        here.tell("both", Endpoints((one, two)))
        token = await here.grant("agent", "both")
        first = await here.ask(token, {**HI, "model": "claude-x", "max_tokens": 5}, "/v1/messages")
        second = await here.ask(token, {**HI, "model": "gpt-x"}, "/openai/v1/chat/completions")
        nobody = await here.ask(token, {**HI, "model": "other", "max_tokens": 5}, "/v1/messages")
        assert first.json()["content"][0]["text"] == "from one"
        assert second.json()["choices"][0]["message"]["content"] == "from two"
        assert (nobody.status_code, nobody.json()["error"]["code"]) == (424, Refusal.UNCONFIGURED)


async def test_a_key_that_could_not_be_found_is_told_at_the_first_call(url: str, tmp_path: Path) -> None:
    async with desk(url, tmp_path) as here:
        here.tell("none", Endpoints((Endpoint("default", here.models.base, problem="env:NO_KEY has no value"),)))
        answer = await here.ask(await here.grant("agent", "none"))
        assert answer.status_code == 503
        assert "env:NO_KEY has no value" in answer.json()["error"]["message"]
        used = await here.used()
        assert (used.problem, used.requests, used.refused) == (Refusal.KEY, 0, 1)


async def test_calls_are_counted_by_holder_and_turn_and_written_down(url: str, tmp_path: Path) -> None:
    steps = (Step(calls=(Call("shell", {"command": "true"}),)), Step("done"))
    tools = [{"type": "function", "function": {"name": "shell", "parameters": {}}}]
    async with desk(url, tmp_path, {"work": Scenario(steps)}) as here:
        solver, judge = await here.token("solver", scenario="work"), await here.token("judge", scenario="work", role="judge")
        await here.accounts.begin_turn(here.run_id, "solver", "turn-1")
        assert (await here.ask(solver, {**HI, "tools": tools})).status_code == 200
        await here.accounts.begin_turn(here.run_id, "solver", "turn-2")
        later = {
            **HI,
            "tools": tools,
            "messages": [*HI["messages"], {"role": "assistant", "content": "x"}, {"role": "tool", "content": "y"}],
        }
        assert (await here.ask(solver, later)).status_code == 200
        assert (await here.ask(judge, {**HI, "tools": tools})).status_code == 200
        counts = [(await here.used(**which)).requests for which in ({}, {"holder": "solver"}, {"turn": "turn-2"}, {"role": "judge"})]
        assert counts == [3, 2, 1, 1]
        assert (await here.used()).cost_usd is None  # nothing is known of what this model costs
    lines = transcript(tmp_path)
    assert [(line["holder"], line["turn"], line["status"]) for line in lines] == [
        ("solver", "turn-1", 200), ("solver", "turn-2", 200), ("judge", None, 200),
    ]  # fmt: skip
    assert json.loads(lines[1]["answer"])["choices"][0]["message"]["content"] == "done"
    assert lines[0]["request"]["messages"] == HI["messages"]


async def test_lists_and_counts_are_carried_and_cost_nothing(url: str, tmp_path: Path) -> None:
    async with desk(url, tmp_path) as here:
        counted = await here.ask(await here.token(), {**HI}, "/v1/messages/count_tokens")
        assert counted.json()["input_tokens"] > 0
        assert (await here.used()).requests == 0

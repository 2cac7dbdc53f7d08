"""The data plane, seeds in all their forms, loads as operations, and the followed clock."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from agent_env_sdk.environment import (
    AgentEnvError,
    DataPart,
    Environment,
    FileBytes,
    FilePart,
    FileUri,
    TextPart,
    atomic,
    load_json,
    read_bytes,
    read_json,
)
from agent_env_sdk.environment.clock_sync import _next as following
from agent_env_sdk.testing import Client, serve_here
from agent_env_sdk.wire import RpcError
from starlette.responses import JSONResponse
from starlette.routing import Route

from tests.sdk.environments import Guarded, Slow, Stock
from tests.sdk.https import Store

JOBS = "urn:agentenv:load-jobs/v1"
SEED = {"items": [{"sku": "a", "qty": 3}, {"sku": "b", "qty": 1}]}


@pytest.fixture
def data_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "data"
    root.mkdir()
    monkeypatch.setenv("AGENT_ENV_DATA_ROOT", str(root))
    return root


async def test_i01_all_four_forms_of_a_seed_load_equally(data_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = json.dumps(SEED)
    (data_root / "seed one.json").write_text(text)
    with Store() as store:
        monkeypatch.setenv("SSL_CERT_FILE", str(store.certificate))
        store.objects["/seed"] = text.encode()
        forms = [
            DataPart(data=SEED),
            FilePart(file=FileBytes(bytes=base64.b64encode(text.encode()).decode(), name="seed.json")),
            FilePart(file=FileUri(uri=f"file://{data_root}/seed%20one.json")),
            FilePart(file=FileUri(uri=f"{store.url}/seed")),
        ]
        loaded = []
        async with serve_here(Stock()) as stock:
            for form in forms:
                await stock.reset()
                await stock.add(form)
                loaded.append(await stock.data())
    assert loaded == [SEED] * 4


async def test_i02_after_a_reset_there_is_nothing_however_often() -> None:
    async with serve_here(Stock()) as stock:
        await stock.add(SEED)
        for _ in range(2):
            await stock.reset()
            assert await stock.data() == await stock.data() == {"items": []}


async def test_i03_errors_are_answers_with_the_wires_codes() -> None:
    async with serve_here(Stock()) as stock:

        async def ask(body: Any) -> dict[str, Any]:
            content = body if isinstance(body, bytes) else json.dumps(body).encode()
            response = await stock.http.post(f"{stock.base}/agentenv", content=content)
            assert response.status_code == 200
            assert response.headers["content-type"] == "application/json"
            found: dict[str, Any] = response.json()["error"]
            return found

        assert await ask(b"{") == {"code": -32700, "message": "parse error"}
        assert await ask([]) == {"code": -32600, "message": "invalid request"}
        assert await ask({"jsonrpc": "2.0", "id": 1, "method": "data/x"}) == {"code": -32601, "message": "method not found: data/x"}
        empty = await ask({"jsonrpc": "2.0", "id": 1, "method": "data/add", "params": {"parts": []}})
        assert (empty["code"], empty["message"]) == (-32602, "invalid_request")
        assert "parts" in empty["data"]["detail"]
        failed = await ask({"jsonrpc": "2.0", "id": 1, "method": "data/add", "params": {"parts": [{"kind": "data", "data": {}}]}})
        assert failed == {"code": -32000, "message": "'items'", "data": {"code": "add_failed"}}
    async with serve_here(Guarded()) as guarded:
        with pytest.raises(RpcError) as unserved:
            await guarded.reset()
        assert unserved.value.code == -32601
        assert await guarded.get() == [TextPart(text="all")]


HOSTILE = [
    b'{"jsonrpc":"2.0","id":"\\ud800","method":"data/get"}',
    b'{"jsonrpc":"2.0","id":NaN,"method":"data/get"}',
    b'{"jsonrpc":"2.0","id":1,"method":"\\ud800"}',
    b'{"jsonrpc":"2.0","id":1,"method":["x"]}',
    b'{"jsonrpc":"2.0","id":{"a":1},"method":"data/reset"}',
    b'{"jsonrpc":"2.0","id":1,"method":"data/add","params":{"parts":[{"kind":"data","data":{"items":[{"sku":"a","qty":NaN}]}}]}}',
    b'{"jsonrpc":"2.0","id":1,"method":"data/get","params":{"write_namespace":{"\\ud800":1}}}',
    b'{"role":"\\ud800","tools":["\\ud800"]}',
    b'{"parts":[{"kind":"text","text":"\\ud800"}],"key":{}}',
    b'{"parts":[{"kind":"file","file":{"uri":"file:///\\u0000"}}]}',
    b'{"operation":[1]}',
    b'{"env_get_time_url":"::"}',
    b'{"a":' * 2000,
    b"1" * 5000,
    b"\xff\xfe",
    b"\x00",
    b"null",
    b"",
]


async def test_no_body_breaks_the_server_or_is_answered_by_a_crash() -> None:
    paths = ["/agentenv", "/agentenv/ext/set_errors", "/agentenv/ext/sync_time", "/tools/enable", "/mcp"]
    paths += [f"/agentenv/ext/load-jobs/{op}" for op in ("start", "cancel")]
    headers = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
    async with serve_here(Stock()) as stock:
        for path in paths:
            for content in HOSTILE:
                response = await stock.http.post(f"{stock.base}{path}", content=content, headers=headers)
                assert response.status_code != 500 or path == "/mcp", (path, content)  # older mcp says 500 of what nests too deep
        for query in ("operation=x&wait=nan", "operation=x&seen=x", "wait=1e9&operation="):
            assert (await stock.http.get(f"{stock.base}/agentenv/ext/load-jobs/status?{query}")).status_code in {400, 404}
        await stock.reset()
        await stock.add(SEED)
        assert (await stock.call("stock_count", {"sku": "a"})).text == "3"


async def test_a_failed_load_leaves_what_was_there() -> None:
    async with serve_here(Stock()) as stock:
        await stock.add(SEED)
        with pytest.raises(RpcError, match="invalid literal"):
            await stock.add({"items": [{"sku": "a", "qty": 9}, {"sku": "c", "qty": "many"}]})
        assert await stock.data() == SEED


def test_atomic_keeps_every_named_attribute_and_no_other() -> None:
    class State:
        rows = [[1]]  # noqa: RUF012
        count = 0

    state = State()

    def load() -> None:
        with atomic(state, "rows"):
            state.rows[0].append(2)
            state.count = 5
            raise KeyError

    with pytest.raises(KeyError):
        load()
    assert (state.rows, state.count) == ([[1]], 5)


@pytest.mark.parametrize(
    "uri",
    [
        "file:///etc/passwd",
        "file://{root}/../outside",
        "file://{root}/%2e%2e/outside",
        "file://{root}/link",
        "file://elsewhere{root}/in",
        "file://{root}/none",
        "file://{root}/pipe",
        "file://{root}",
        "file://{root}/\x00",
        "/etc/passwd",
        "http://h/x",
        "data:,x",
    ],
)
def test_an_address_outside_the_staging_folder_is_refused(data_root: Path, uri: str) -> None:
    (data_root / "in").write_text("in")
    (data_root.parent / "outside").write_text("secret")
    (data_root / "link").symlink_to(data_root.parent / "outside")
    os.mkfifo(data_root / "pipe")
    with pytest.raises(AgentEnvError) as refused:
        read_bytes(FilePart(file=FileUri(uri=uri.format(root=data_root))))
    assert refused.value.code == "invalid_seed"
    assert read_bytes(FilePart(file=FileUri(uri=f"file://{data_root}/in"))) == b"in"


async def test_seeds_are_bounded_and_what_is_no_json_says_so(data_root: Path) -> None:
    (data_root / "big").write_bytes(b"x" * 11)
    with pytest.raises(AgentEnvError, match="longer than 10 bytes"):
        read_bytes(FilePart(file=FileUri(uri=f"file://{data_root}/big")), limit_bytes=10)
    for part in (
        FilePart(file=FileUri(uri=f"file://{data_root}/big", name="big")),
        TextPart(text="{"),
        FilePart(file=FileBytes(bytes="e30")),
    ):
        with pytest.raises(AgentEnvError) as refused:
            await load_json(part)
        assert refused.value.code == "invalid_seed"
    assert read_json(TextPart(text="[1]")) == [1]


async def test_a_store_that_refuses_is_told_without_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    with Store() as store:
        monkeypatch.setenv("SSL_CERT_FILE", str(store.certificate))
        with pytest.raises(AgentEnvError) as refused:
            await load_json(FilePart(file=FileUri(uri=f"{store.url}/none?signature=secret")))
    assert refused.value.code == "seed_unavailable"
    assert "secret" not in str(refused.value)


async def settled(client: Client, operation: str) -> dict[str, Any]:
    """The operation's status when it has ended; waits for news, never for time."""
    status: dict[str, Any] = {"state": "running", "version": 0}
    while status["state"] == "running":
        status = await client.invoke(JOBS, {"operation": operation, "seen": status["version"], "wait": 30}, method="status")
    return status


def body(*parts: Any, **more: Any) -> dict[str, Any]:
    return {"parts": [part.model_dump(mode="json", exclude_none=True) for part in parts], **more}


async def test_a_load_is_an_operation_that_is_watched_to_its_end(data_root: Path) -> None:
    (data_root / "seed.json").write_text(json.dumps(SEED))
    async with serve_here(Stock()) as stock:
        sent = body(FilePart(file=FileUri(uri=f"file://{data_root}/seed.json")), DataPart(data={"items": []}), reset=True, key="k")
        started = await stock.invoke(JOBS, sent)
        again = await stock.invoke(JOBS, sent)
        assert again["operation"] == started["operation"]
        done = await settled(stock, started["operation"])
        assert await stock.data() == SEED
        with pytest.raises(AgentEnvError) as reused:
            await stock.invoke(JOBS, body(DataPart(data=SEED), key="k"))
        with pytest.raises(AgentEnvError) as unknown:
            await stock.invoke(JOBS, {"operation": "none"}, method="status")
        with pytest.raises(AgentEnvError) as nothing:
            await stock.invoke(JOBS, {"parts": []})
    assert (done["state"], done["error"], done["rolled_back"]) == ("done", None, None)
    assert done["progress"] == {"done": 1, "total": 2, "message": "b"}
    assert done["digests"] == [hashlib.sha256(json.dumps(SEED).encode()).hexdigest(), hashlib.sha256(b'{"items":[]}').hexdigest()]
    assert (reused.value.code, reused.value.status) == ("key_reused", 409)
    assert (unknown.value.code, unknown.value.status, unknown.value.applied) == ("operation_unknown", 404, "unknown")
    assert nothing.value.code == "invalid_params"


async def test_a_load_that_fails_or_is_cancelled_is_rolled_back() -> None:
    stock = Stock()
    async with serve_here(stock) as client:
        await client.add(SEED)
        wrong = DataPart(data={"items": [{"sku": "c", "qty": "many"}]})
        failed = await settled(client, (await client.invoke(JOBS, body(wrong, reset=True, rollback=True)))["operation"])
        assert (failed["state"], failed["rolled_back"], failed["error"]["code"]) == ("failed", True, "add_failed")
        assert await client.data() == SEED
        held = DataPart(data={"items": [{"sku": "held", "qty": 1}, {"sku": "later", "qty": 1}]})
        started = await client.invoke(JOBS, body(held, reset=True, rollback=True))
        assert await asyncio.to_thread(stock.entered.wait, 30)
        cancelling = asyncio.create_task(client.invoke(JOBS, {"operation": started["operation"]}, method="cancel"))
        while not stock.mounted.loads()._operations[started["operation"]].load.cancelled:  # type: ignore[union-attr]
            await client.http.get(f"{client.base}/ready")
        stock.go_on.set()
        cancelled = await cancelling
        assert (cancelled["state"], cancelled["rolled_back"]) == ("cancelled", True)
        assert await client.data() == SEED


async def test_an_async_load_is_cancelled_where_it_waits_and_the_next_one_runs() -> None:
    slow = Slow()
    async with serve_here(slow) as client:
        started = await client.invoke(JOBS, body(TextPart(text="new"), TextPart(text="endless"), reset=True, rollback=True))
        await asyncio.wait_for(slow.loading.wait(), 30)
        assert slow.rows == ["new", "endless"]
        cancelled = await client.invoke(JOBS, {"operation": started["operation"]}, method="cancel")
        assert (cancelled["state"], cancelled["rolled_back"], slow.rows) == ("cancelled", True, ["before"])
        assert await client.invoke(JOBS, {"operation": started["operation"]}, method="cancel") == cancelled
        await client.add(TextPart(text="after"))
        assert slow.rows == ["before", "after"]


async def test_a_load_that_waits_for_another_is_cancelled_without_waiting() -> None:
    slow = Slow()
    async with serve_here(slow) as client:
        first = await client.invoke(JOBS, body(TextPart(text="endless")))
        await asyncio.wait_for(slow.loading.wait(), 30)
        second = await client.invoke(JOBS, body(TextPart(text="never")))
        cancelled = await client.invoke(JOBS, {"operation": second["operation"]}, method="cancel")
        assert (cancelled["state"], cancelled["rolled_back"]) == ("cancelled", None)
        assert (await client.invoke(JOBS, {"operation": first["operation"]}, method="status"))["state"] == "running"
        assert slow.rows == ["before", "endless"]


async def test_the_clock_is_followed_from_the_moment_that_it_is_told() -> None:
    told: dict[str, Any] = {"time": "2031-01-01T00:00:00Z"}

    class Clock(Environment):
        def routes(self) -> Any:
            async def time(_: Any) -> JSONResponse:
                return JSONResponse({"virtual_time": told["time"]} if told["time"] else {"ok": False}, 200 if told["time"] else 404)

            return [Route("/clock/time", time)]

    async with serve_here(Clock()) as clock, serve_here(Stock()) as stock, stock.session() as session:
        assert (await session.call("clock")).text < "2031"
        assert await stock.invoke("urn:agentenv:clock/v1", {"env_get_time_url": f"{clock.base}/clock/time"}) == {
            "synced": True,
            "armed": True,
        }
        assert (await session.call("clock")).text.startswith("2031-01-01T00:00:0")
        told["time"] = "2044-06-01T12:00:00Z"
        assert (await session.call("clock")).text.startswith("2044-06-01T12:00:0")
        told["time"] = None
        assert (await session.call("clock")).text < "2031"
        with pytest.raises(AgentEnvError) as unreadable:
            await stock.invoke("urn:agentenv:clock/v1", {"env_get_time_url": f"{clock.base}/mcp"})
        assert unreadable.value.code == "clock_unavailable"


@pytest.mark.parametrize(
    ("readings", "rate"),
    [
        ([(0, 0)], 0),
        ([(0, 0), (1, 60)], 0),
        ([(0, 0), (1, 60), (2, 121)], 61),
        ([(0, 0), (1, 0), (2, 0)], 0),
        ([(0, 0), (1, 60), (2, 120), (3, 10_000_000)], 60),
        ([(0, 0), (1, 60), (2, 120), (3, -500), (4, -440), (5, -380)], 60),
    ],
    ids=["one", "two", "two spans agree", "frozen", "set ahead", "set back"],
)
def test_a_clocks_rate_is_believed_when_two_spans_agree(readings: list[tuple[float, float]], rate: float) -> None:
    start = datetime(2031, 1, 1, tzinfo=UTC)
    last = None
    for real, virtual in readings:
        last = following(last, start + timedelta(seconds=virtual), real)
    assert last is not None
    assert last.rate == rate
    assert last.at(last.real + 2) == last.virtual + timedelta(seconds=2 * rate)

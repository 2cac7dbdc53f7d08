"""The model broker, in the keeper's own process: what it adds to a streamed call beside the same call made directly."""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import httpx

from agent_env.broker import Budget
from agent_env.broker.accounts import Account, Accounts, Grant
from agent_env.broker.broker import proof_of
from agent_env.broker.contract import spelled_token
from agent_env.broker.endpoints import Endpoint, Endpoints
from agent_env.defaults import DEFAULT_LIMITS
from agent_env.keeper.telling import ModelsTold
from agent_env.stores import Database, Journal, NewRun
from agent_env.stores.installation import InstallationKey
from benchmarks.measure import Figure

CALLS = 200
AT_ONCE = 16
EVENTS = 50
BODY = {"model": "m", "stream": True, "max_tokens": 100, "messages": [{"role": "user", "content": "hi " * 2000}]}
_SERVER = """
import asyncio, sys
EVENT = b'event: content_block_delta\\ndata: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"word "}}\\n\\n'
USED = b'{"type":"message_delta","delta":{},"usage":{"input_tokens":9,"output_tokens":%d}}' % int(sys.argv[1])
LAST = b"event: message_delta\\ndata: " + USED + b"\\n\\n"
async def answer(reader, writer):
    try:
        while True:
            head = await reader.readuntil(b"\\r\\n\\r\\n")
            size = next(int(l.split(b":")[1]) for l in head.split(b"\\r\\n") if l.lower().startswith(b"content-length:"))
            await reader.readexactly(size)
            writer.write(b"HTTP/1.1 200 OK\\r\\ncontent-type: text/event-stream\\r\\ntransfer-encoding: chunked\\r\\n\\r\\n")
            for piece in [EVENT] * int(sys.argv[1]) + [LAST]:
                writer.write(b"%x\\r\\n%b\\r\\n" % (len(piece), piece))
                await writer.drain()
            writer.write(b"0\\r\\n\\r\\n")
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()
async def main():
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()
asyncio.run(main())
"""


def figures(bare: float) -> Iterator[Figure]:
    """A streamed call direct, through the broker with a budget and a transcript, and many at once."""
    del bare
    server = subprocess.Popen([sys.executable, "-c", _SERVER, str(EVENTS)], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        base = f"http://127.0.0.1:{int(server.stdout.readline())}"
        with tempfile.TemporaryDirectory(prefix="agent-env-bench-") as folder:
            yield from asyncio.run(_measured(base, Path(folder)))
    finally:
        server.kill()
        server.wait()


async def _measured(base: str, root: Path) -> list[Figure]:
    with Database.open(f"sqlite:///{root / 'runs.db'}") as db:
        run = await Journal(db).create_run(NewRun(run_id=os.urandom(8).hex(), task_id="t", instance_id="i", task={}))
        accounts, key = Accounts(db), InstallationKey(root)
        budget = Budget(requests=10**6, tokens=10**9, concurrency=AT_ONCE)
        account = Account(run.run_id, run.run_id, budget, transcript=str(root / "models.jsonl"))
        await accounts.open(account)
        grant_id = "a" * 24
        await accounts.grant(Grant(grant_id, "agent", "agent", account, "bench"))
        told = ModelsTold(root, db.url, limits=DEFAULT_LIMITS)
        endpoints = Endpoints((Endpoint("bench", base, "sk-benchmark-0123456789"),))
        began = time.perf_counter()
        port = await told.tell({"bench": endpoints.plain()}, listen=True)
        started = time.perf_counter() - began
        token = spelled_token(grant_id, proof_of(key, run.run_id, grant_id))
        async with httpx.AsyncClient(timeout=60, limits=httpx.Limits(max_connections=AT_ONCE), headers={"x-api-key": token}) as http:
            through, direct = f"http://127.0.0.1:{port}/v1/messages", f"{base}/v1/messages"
            ours, theirs = await _times(http, through), await _times(http, direct)
            began = time.perf_counter()
            await asyncio.gather(*(_calls(http, through, CALLS // AT_ONCE) for _ in range(AT_ONCE)))
            rate = CALLS // AT_ONCE * AT_ONCE / (time.perf_counter() - began)
        used = await accounts.usage(run.run_id)
        await told.aclose()
    assert used.output_tokens == used.requests * EVENTS
    added = [statistics.median(a) - statistics.median(b) for a, b in zip(ours, theirs, strict=True)]
    return [
        Figure("the keeper, from nothing to its first told model", started * 1000, "ms"),
        Figure(f"a model's stream of {EVENTS} events, direct", statistics.median(theirs[1]) * 1000, "ms"),
        Figure("what the broker adds to its first byte (median)", added[0] * 1000, "ms", 10.0),
        Figure("what the broker adds to the whole (median)", added[1] * 1000, "ms", 20.0, note="counted, limited, written down"),
        Figure(f"calls a second through it, {AT_ONCE} at once", rate, "1/s"),
    ]


async def _times(http: httpx.AsyncClient, url: str) -> tuple[list[float], list[float]]:
    """Seconds to the first byte, and to the end."""
    first, whole = [], []
    for _ in range(CALLS):
        began = time.perf_counter()
        async with http.stream("POST", url, json=BODY) as answer:
            pieces = answer.aiter_raw()
            await anext(pieces)
            first.append(time.perf_counter() - began)
            async for _piece in pieces:
                pass
        whole.append(time.perf_counter() - began)
    return first, whole


async def _calls(http: httpx.AsyncClient, url: str, times: int) -> None:
    for _ in range(times):
        answer = await http.post(url, json=BODY)
        assert answer.status_code == 200, answer.text

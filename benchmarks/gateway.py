"""The gateway: what it adds to a tool call beside the same call made directly, how many calls it carries, and what further servers cost."""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from agent_env.gateway import agent_token
from benchmarks.measure import Figure

KEY = "benchmark"
CALLS = 1000
AT_ONCE = 16
_SERVER = """
import asyncio, json, sys
class Http(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport, self.data = transport, b""
    def data_received(self, data):
        self.data += data
        while b"\\r\\n\\r\\n" in self.data:
            head, _, rest = self.data.partition(b"\\r\\n\\r\\n")
            size = next((int(l.split(b":")[1]) for l in head.split(b"\\r\\n") if l.lower().startswith(b"content-length:")), 0)
            if len(rest) < size:
                return
            self.data = rest[size:]
            self.answer(head, rest[:size])
    def answer(self, head, body):
        status, made = "200 OK", {}
        if not head.startswith(b"POST /mcp"):
            status = "405 No" if head.startswith(b"GET /mcp") else "404 No"
        else:
            asked = json.loads(body)
            method = asked["method"]
            if method == "initialize":
                made = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "s", "version": "1"}}
            elif method == "tools/list":
                made = {"tools": [{"name": sys.argv[1], "description": "d", "inputSchema": {"type": "object"}}]}
            elif method == "tools/call":
                made = {"content": [{"type": "text", "text": "x" * 200}], "isError": False}
            made = {"jsonrpc": "2.0", "id": asked.get("id"), "result": made}
        text = json.dumps(made).encode()
        head = "HTTP/1.1 %s\\r\\nContent-Type: application/json\\r\\nContent-Length: %d\\r\\n\\r\\n" % (status, len(text))
        self.transport.write(head.encode() + text)
async def main():
    server = await asyncio.get_running_loop().create_server(Http, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()
asyncio.run(main())
"""


def figures(bare: float) -> Iterator[Figure]:
    """Latency beside a direct call, calls a second, four servers beside one, and a fault beside quiet."""
    with tempfile.TemporaryDirectory(prefix="agent-env-bench-") as folder, ExitStack() as stack:
        servers = {name: stack.enter_context(_server(name)) for name in ("a", "b", "c", "d")}
        began = time.perf_counter()
        one, headers = stack.enter_context(_gateway(Path(folder) / "one", {"a": servers["a"]}))
        yield Figure("a gateway, from its start to its first tool call", _first(one, headers, began) * 1000, "ms")
        four, four_headers = stack.enter_context(_gateway(Path(folder) / "four", servers))
        direct, through = _latencies(servers["a"][1], one, headers)
        yield Figure("a tool call, direct", statistics.median(direct) * 1000, "ms")
        yield Figure("what the gateway adds to it (median)", (statistics.median(through) - statistics.median(direct)) * 1000, "ms", 3.0)
        yield Figure("  at the 99th percentile", (_p99(through) - _p99(direct)) * 1000, "ms", 10.0)
        rate = _rate(one, headers)
        yield Figure(f"calls a second through it, {AT_ONCE} at once", rate, "1/s", note="promised: ≥ 500")
        alone = statistics.median(through)
        among = statistics.median(_calls(four, four_headers, "a", CALLS // 2))
        yield Figure("a call among four servers beside one", among / alone, "×", 1.3)
        quiet, faulty = _fault(four, four_headers, servers)
        yield Figure("what a killed server adds to calls of others (worst)", (faulty - quiet) * 1000, "ms", 50.0)
        started = _start(Path(folder) / "again", servers)
        yield Figure("start of a gateway, until its doors are open", started * 1000, "ms", ratio=started / bare)


def _latencies(port: int, url: str, headers: dict[str, str]) -> tuple[list[float], list[float]]:
    """Direct and through, in turns, so that both meet the same machine."""
    direct: list[float] = []
    through: list[float] = []
    for _ in range(10):
        direct += _calls(f"http://127.0.0.1:{port}", {}, "a", CALLS // 10)
        through += _calls(url, headers, "a", CALLS // 10)
    return direct, through


class _Line:
    """One kept connection that sends and reads with as little as possible."""

    def __init__(self, url: str, headers: dict[str, str]) -> None:
        parts = urlsplit(url)
        self._socket = socket.create_connection((parts.hostname, parts.port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._host = parts.netloc
        self._headers = headers
        self._session = ""

    def open(self) -> None:
        answer = self.ask({"method": "initialize", "params": {"protocolVersion": "2025-11-25", "capabilities": {}}})
        found = [line for line in answer.split(b"\r\n\r\n")[0].split(b"\r\n") if line.lower().startswith(b"mcp-session-id:")]
        self._session = found[0].partition(b":")[2].decode().strip() if found else ""

    def ask(self, message: dict[str, object]) -> bytes:
        body = json.dumps({"jsonrpc": "2.0", "id": 1, **message}).encode()
        fields = {"Host": self._host, "Content-Type": "application/json", "Accept": "application/json, text/event-stream", **self._headers}
        if self._session:
            fields["Mcp-Session-Id"] = self._session
        head = "".join(f"{key}: {value}\r\n" for key, value in {**fields, "Content-Length": str(len(body))}.items())
        self._socket.sendall(f"POST /mcp HTTP/1.1\r\n{head}\r\n".encode() + body)
        data = b""
        while b"\r\n\r\n" not in data or len(data) < data.index(b"\r\n\r\n") + 4 + _length(data):
            chunk = self._socket.recv(1 << 16)
            if not chunk:
                raise SystemExit(f"the connection ended: {data!r}")
            data += chunk
        return data

    def close(self) -> None:
        self._socket.close()


def _length(data: bytes) -> int:
    head = data[: data.index(b"\r\n\r\n")].lower()
    return next((int(line.partition(b":")[2]) for line in head.split(b"\r\n") if line.startswith(b"content-length:")), 0)


def _calls(url: str, headers: dict[str, str], tool: str, count: int) -> list[float]:
    line = _Line(url, headers)
    line.open()
    taken = []
    for _ in range(count):
        began = time.perf_counter()
        answer = line.ask({"method": "tools/call", "params": {"name": tool, "arguments": {"text": "some argument", "n": [1, 2, 3]}}})
        taken.append(time.perf_counter() - began)
        if b"xxxx" not in answer:
            raise SystemExit(f"not an answer: {answer!r}")
    line.close()
    return taken


def _rate(url: str, headers: dict[str, str]) -> float:
    each = CALLS // 4
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", _WORKER, url, json.dumps(headers), str(AT_ONCE // 2), str(each)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for _ in range(2)
    ]
    for worker in workers:
        assert worker.stdout is not None
        worker.stdout.readline()
    began = time.perf_counter()
    for worker in workers:
        worker.communicate(b"go\n")
    return AT_ONCE // 2 * each * 2 / (time.perf_counter() - began)


_WORKER = """
import json, sys, threading
from benchmarks.gateway import _Line
url, headers, lines, each = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
made = [_Line(url, headers) for _ in range(lines)]
for line in made:
    line.open()
print("ready", flush=True)
sys.stdin.readline()
def work(line):
    for _ in range(each):
        line.ask({"method": "tools/call", "params": {"name": "a", "arguments": {"text": "some argument"}}})
threads = [threading.Thread(target=work, args=(line,)) for line in made]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
"""


def _fault(url: str, headers: dict[str, str], servers: dict[str, tuple[subprocess.Popen[bytes], int]]) -> tuple[float, float]:
    """The slowest call of a healthy server before and while another one dies."""
    quiet = max(_calls(url, headers, "b", CALLS // 2))
    killer = threading.Timer(interval=0.05, function=servers["d"][0].kill)
    killer.start()
    return quiet, max(_calls(url, headers, "b", CALLS // 2))


def _p99(taken: list[float]) -> float:
    return sorted(taken)[int(len(taken) * 0.99)]


def _first(url: str, headers: dict[str, str], began: float) -> float:
    _calls(url, headers, "a", 1)
    return time.perf_counter() - began


def _start(state: Path, servers: dict[str, tuple[subprocess.Popen[bytes], int]]) -> float:
    began = time.perf_counter()
    with _gateway(state, {"a": servers["a"]}):
        return time.perf_counter() - began


@contextmanager
def _server(name: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    process = subprocess.Popen([sys.executable, "-c", _SERVER, name], stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        yield process, int(process.stdout.readline())
    finally:
        process.kill()
        process.wait()


@contextmanager
def _gateway(state: Path, servers: dict[str, tuple[subprocess.Popen[bytes], int]]) -> Iterator[tuple[str, dict[str, str]]]:
    """Its agent door's address and the headers of an agent, once its doors are open."""
    config = {
        "servers": [{"name": name, "url": f"http://127.0.0.1:{port}", "mcp_path": "/mcp"} for name, (_, port) in servers.items()],
        "agent_doors": ["127.0.0.1:0"],
        "control_doors": ["127.0.0.1:0"],
        "state_dir": str(state),
    }
    environment = {**os.environ, "AGENTENV_GATEWAY_CONFIG": json.dumps(config), "AGENTENV_GATEWAY_KEY": KEY}
    process = subprocess.Popen([sys.executable, "-m", "agent_env.gateway"], env=environment)
    doors = state / "doors.json"
    try:
        while not doors.exists():
            time.sleep(0.005)
            if process.poll() is not None:
                raise SystemExit("the gateway ended at once")
        url = f"http://{json.loads(doors.read_text())['agent_doors'][0]}"
        yield url, {"Authorization": f"Bearer {agent_token(KEY.encode(), 'default')}"}
    finally:
        process.terminate()
        process.wait()

"""Real gateways in front of real servers, each a process of its own, and a small client that keeps raw bytes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

ROOT = Path(__file__).parents[2]
KEY = "a key for tests"
WITHIN = 60.0
HTTP = httpx.Client(timeout=WITHIN, verify=False, trust_env=False)
"""Shared: making a client costs more than what most tests do with it."""


def eventually(probe: Callable[[], Any], within: float = WITHIN) -> Any:
    """The probe's first true answer."""
    until = time.monotonic() + within
    pause = 0.01
    while True:
        found = probe()
        if found or time.monotonic() > until:
            assert found, f"{probe} gave {found!r} for {within} s"
            return found
        time.sleep(pause)
        pause = min(pause * 1.5, 0.05)


@dataclass
class Raw:
    """A raw server's process."""

    given: dict[str, Any]
    process: subprocess.Popen[bytes]
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def seen(self) -> dict[str, Any]:
        return HTTP.get(f"{self.url}/seen").json()

    def behave(self, **how: Any) -> None:
        HTTP.post(f"{self.url}/behave", json=how).raise_for_status()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def restart(self) -> None:
        self.kill()
        self.process, self.port = launch_raw({**self.given, "port": self.port})


def launch_raw(given: dict[str, Any]) -> tuple[subprocess.Popen[bytes], int]:
    process = subprocess.Popen([sys.executable, "-m", "tests.gateway.raw_server", json.dumps(given)], cwd=ROOT, stdout=subprocess.PIPE)
    assert process.stdout is not None
    return process, json.loads(process.stdout.readline())["port"]


@contextmanager
def raw_server(name: str = "raw", **given: Any) -> Iterator[Raw]:
    made = Raw({"name": name, **given}, *launch_raw({"name": name, **given}))
    try:
        yield made
    finally:
        made.kill()


@dataclass
class Live:
    """A gateway's process."""

    process: subprocess.Popen[bytes]
    state: Path
    agent: str
    control: str
    config: dict[str, Any] = field(default_factory=dict)

    def health(self) -> dict[str, Any]:
        return HTTP.get(f"{self.control}/control/health").json()

    def pid(self) -> int | None:
        """Of its server process; None while there is none that answers."""
        try:
            return int(self.health()["pid"])
        except httpx.HTTPError:
            return None

    def token(self, role: str = "default") -> str:
        return HTTP.post(f"{self.control}/control/tokens", json={"role": role}).json()["token"]

    def kill_server(self) -> int:
        """Kills the server process (not its supervisor); its pid."""
        pid = self.health()["pid"]
        os.kill(pid, signal.SIGKILL)
        return pid

    def post(self, path: str, body: Any = None, **more: Any) -> httpx.Response:
        return HTTP.post(self.control + path, json=body if body is not None else {}, **more)

    def put(self, path: str, body: Any) -> httpx.Response:
        return HTTP.put(self.control + path, json=body)

    def get(self, path: str, **more: Any) -> httpx.Response:
        return HTTP.get(self.control + path, **more)

    def trajectory(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.get("/trajectory").text.splitlines()]


@contextmanager
def gateway(
    state: Path,
    *servers: Raw | dict[str, Any],
    wait: bool = True,
    environ: dict[str, str] | None = None,
    log: Path | None = None,
    **config: Any,
) -> Iterator[Live]:
    document = {
        "servers": [each if isinstance(each, dict) else {"name": each.given["name"], "url": each.url} for each in servers],
        "agent_doors": ["127.0.0.1:0"],
        "control_doors": ["127.0.0.1:0"],
        "state_dir": str(state / "gateway"),
        **config,
    }
    file = state / "gateway.json"
    file.write_text(json.dumps(document))
    doors = state / "gateway" / "doors.json"
    doors.unlink(missing_ok=True)
    env = {**os.environ, "AGENTENV_GATEWAY_KEY": KEY, **(environ or {})}
    command = [sys.executable, "-m", "agent_env.gateway", "--config", str(file)]
    with log.open("wb") if log is not None else contextlib.nullcontext() as said:
        process = subprocess.Popen(command, cwd=ROOT, env=env, stderr=said)
    try:
        eventually(lambda: doors.exists() or process.poll() is not None)
        assert process.poll() is None, "the gateway ended at once"
        where = json.loads(doors.read_text())
        live = Live(process, state, f"http://{where['agent_doors'][0]}", f"http://{where['control_doors'][0]}", document)
        if wait:
            eventually(lambda: live.health()["status"] in ("ready", "degraded"))
        yield live
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(WITHIN)
        except subprocess.TimeoutExpired:
            process.kill()
            raise


class Client:
    """MCP over streamable HTTP, as text: what is sent and what comes back is what the wire carries."""

    def __init__(self, url: str, headers: dict[str, str] | None = None, capabilities: dict[str, Any] | None = None) -> None:
        self.url = url
        self.capabilities = capabilities or {}
        self.http = httpx.Client(timeout=WITHIN, verify=False, trust_env=False)
        self.headers = {"accept": "application/json, text/event-stream", "content-type": "application/json", **(headers or {})}
        self.number = 0

    def __enter__(self) -> Client:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.http.close()

    def open(self) -> dict[str, Any]:
        self.headers.pop("mcp-session-id", None)
        params = {"protocolVersion": "2025-11-25", "capabilities": self.capabilities, "clientInfo": {"name": "tests", "version": "1"}}
        response = self.send({"jsonrpc": "2.0", "id": "open", "method": "initialize", "params": params})
        response.raise_for_status()
        if "mcp-session-id" in response.headers:
            self.headers["mcp-session-id"] = response.headers["mcp-session-id"]
        self.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        return messages(response)[-1]["result"]

    def send(self, message: dict[str, Any] | str) -> httpx.Response:
        body = message if isinstance(message, str) else json.dumps(message)
        return self.http.post(self.url, content=body.encode("utf-8", "surrogatepass"), headers=self.headers)

    def request(self, method: str, params: Any = None) -> dict[str, Any]:
        self.number += 1
        message = {"jsonrpc": "2.0", "id": self.number, "method": method, **({"params": params} if params is not None else {})}
        answer = messages(self.send(message))[-1]
        assert answer.get("id") in (self.number, None), answer
        return answer

    def listed(self, method: str, key: str) -> list[dict[str, Any]]:
        found, cursor = [], None
        while True:
            result = self.request(method, {"cursor": cursor} if cursor else None)["result"]
            found += result[key]
            cursor = result.get("nextCursor")
            if not cursor:
                return found

    def tools(self) -> list[dict[str, Any]]:
        return self.listed("tools/list", "tools")

    def names(self) -> list[str]:
        return [tool["name"] for tool in self.tools()]

    def call(self, name: str, arguments: Any = None, **more: Any) -> dict[str, Any]:
        answer = self.request("tools/call", {"name": name, "arguments": arguments if arguments is not None else {}, **more})
        assert "result" in answer, answer
        return answer["result"]

    def call_raw(self, name: str, arguments: str, request_id: str = "1") -> str:
        """The raw text of the answer's message."""
        text = f'{{"jsonrpc":"2.0","id":{request_id},"method":"tools/call","params":{{"name":{json.dumps(name)},"arguments":{arguments}}}}}'
        response = self.send(text)
        assert response.status_code == 200, response.text
        return raw_messages(response)[-1]


def raw_messages(response: httpx.Response) -> list[str]:
    if response.headers.get("content-type", "").startswith("text/event-stream"):
        events = response.content.decode().replace("\r\n", "\n").split("\n\n")
        lines = [[line.removeprefix("data: ") for line in event.split("\n") if line.startswith("data:")] for event in events]
        return ["\n".join(each) for each in lines if each]
    return [response.content.decode()]


def messages(response: httpx.Response) -> list[dict[str, Any]]:
    return [json.loads(text) for text in raw_messages(response)]


@contextmanager
def agent(live: Live, role: str = "default", **capabilities: Any) -> Iterator[Client]:
    with Client(f"{live.agent}/mcp", {"authorization": f"Bearer {live.token(role)}"}, capabilities) as client:
        yield client


@contextlib.contextmanager
def control(live: Live, role: str | None = None) -> Iterator[Client]:
    with Client(f"{live.control}/mcp", {"agentenv-role": role} if role else {}) as client:
        yield client


def text_of(result: dict[str, Any]) -> str:
    return "".join(part["text"] for part in result["content"])

"""What authors meet: mistakes that are named before anything is served, the process, the template, the image."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from agent_env_sdk.environment import AssemblyError, Environment, ToolContext, add_data, asgi, environment, extension, reset_data, tool
from agent_env_sdk.environment.serving import listen
from agent_env_sdk.testing import Client, McpError, serve_here

from tests.ports import free_port

pytestmark = pytest.mark.timeout(300)
ROOT = Path(__file__).parents[2]
TEMPLATE = ROOT / "src/agent_env/bundles/templates/environment"


def two_tools() -> type:
    class Wrong(Environment):
        @tool(name="same")
        def a(self) -> None: ...

        @tool(name="same")
        def b(self) -> None: ...

    return Wrong


def two_resets() -> type:
    class Wrong(Environment):
        @reset_data
        def a(self) -> None: ...

        @reset_data
        def b(self) -> None: ...

    return Wrong


def placeholder() -> type:
    class Wrong(Environment):
        @tool(name="{service}_a")
        def a(self) -> None: ...

    return Wrong


def two_contexts() -> type:
    class Wrong(Environment):
        @tool()
        def a(self, one: ToolContext, two: ToolContext) -> None: ...

    return Wrong


def one_path_twice() -> type:
    class Wrong(Environment):
        @extension("urn:x:a/v1", path="/same")
        def a(self) -> None: ...

        @extension("urn:x:b/v1", path="/same")
        def b(self) -> None: ...

    return Wrong


def taken_path() -> type:
    class Wrong(Environment):
        @extension("urn:x:a/v1", path="/agentenv")
        def a(self) -> None: ...

    return Wrong


def one_urn_twice() -> type:
    class Wrong(Environment):
        @extension("urn:x:a/v1")
        def a(self) -> None: ...

        @extension("urn:x:a/v1")
        def b(self) -> None: ...

    return Wrong


def no_schema() -> type:
    class Wrong(Environment):
        @tool()
        def a(self, callback: Callable[[], None]) -> None: ...

    return Wrong


def shapeless() -> type:
    class Wrong(Environment):
        @tool(structured_output=True)
        def a(self): ...  # type: ignore[no-untyped-def]

    return Wrong


def unknown_choice() -> type:
    class Wrong(Environment):
        def served_operations(self, operations: Any) -> list[str]:
            return ["data/add"]

    return Wrong


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (two_tools, "the tool same is there twice"),
        (two_resets, "the operation data/reset is there twice"),
        (placeholder, "'{service}_a' has a placeholder"),
        (two_contexts, "more than one parameter for the context: one, two"),
        (one_path_twice, "the route POST /same is there twice"),
        (taken_path, "the route POST /agentenv is there twice"),
        (one_urn_twice, "urn:x:a/v1 is served by 2 methods; give each an op="),
        (no_schema, "a parameter has no JSON Schema"),
        (shapeless, "structured_output=True needs a return annotation"),
        (unknown_choice, "served_operations returned data/add, which nothing serves"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_what_cannot_be_served_is_named_before_a_socket_is_opened(wrong: Callable[[], type], says: str) -> None:
    with pytest.raises(AssemblyError) as refused:
        asgi(wrong()())
    assert says in str(refused.value)


def test_decorators_refuse_what_they_cannot_mean() -> None:
    with pytest.raises(TypeError, match="with parentheses"):
        tool(add_data)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="a card has no colour"):
        environment(colour="red")
    with pytest.raises(TypeError, match="extension_params"):
        extension("urn:x", op="a", params={})


def test_an_object_is_served_once() -> None:
    served = Environment()
    asgi(served)
    with pytest.raises(AssemblyError, match="served already"):
        asgi(served)


async def test_startup_and_shutdown_run_around_the_requests_and_a_failed_startup_is_told() -> None:
    told: list[str] = []

    class Told(Environment):
        def startup(self) -> None:  # type: ignore[override]
            told.append("startup")

        async def shutdown(self) -> None:
            told.append("shutdown")

    class Broken(Environment):
        async def startup(self) -> None:
            raise OSError("no database")

    async with serve_here(Told()) as served:
        assert told == ["startup"]
        assert (await served.card()).name == "Told"
    assert told == ["startup", "shutdown"]
    with pytest.raises(RuntimeError, match="Broken did not start"):
        async with serve_here(Broken()):
            raise AssertionError("it must not start")


def test_a_dual_listener_takes_both_families_and_small_answers_are_not_held_back() -> None:
    with listen("::", 0) as listener:
        assert listener.proto == socket.IPPROTO_TCP
        port = listener.getsockname()[1]
        for host in ("127.0.0.1", "::1"):
            socket.create_connection((host, port), timeout=10).close()
        with pytest.raises(OSError, match=f"can't listen on 0.0.0.0 port {port}"):
            listen("0.0.0.0", port)


def test_a_process_serves_by_its_variables_and_ends_by_a_signal(tmp_path: Path) -> None:
    (tmp_path / "server.py").write_text(
        "from agent_env_sdk.environment import Environment\nclass Small(Environment):\n    pass\nSmall().serve()\n"
    )
    port = free_port()
    variables = {**os.environ, "MCP_HOST": "127.0.0.1", "MCP_PORT": str(port), "ENVIRONMENT_NAME": "small-1"}
    with subprocess.Popen([sys.executable, "server.py"], cwd=tmp_path, env=variables, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == f"small-1 serves on port {port}\n"
        assert httpx.get(f"http://127.0.0.1:{port}/.well-known/agent-env.json", timeout=60).json()["name"] == "small-1"
        process.send_signal(signal.SIGTERM)
        process.wait(60)
        assert "Traceback" not in process.stderr.read()


HANGING = """
import sys, threading
from agent_env_sdk.environment import Environment, tool
class Hanging(Environment):
    @tool()
    def hang(self) -> None:
        "Never ends."
        sys.stderr.write("hanging\\n")
        threading.Event().wait()
Hanging().serve("127.0.0.1", 0)
"""


def ended_by_the_server(call: Callable[[], Any]) -> None:
    with contextlib.suppress(httpx.HTTPError, McpError):
        asyncio.run(call())


def test_a_handler_that_hangs_does_not_keep_the_process() -> None:
    with subprocess.Popen([sys.executable, "-c", HANGING], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        port = process.stderr.readline().rpartition(" ")[2].strip()

        async def call() -> None:
            async with httpx.AsyncClient(timeout=60) as http:
                await Client(f"http://127.0.0.1:{port}", http).call("hang")

        threading.Thread(target=ended_by_the_server, args=[call], daemon=True).start()
        assert process.stderr.readline() == "hanging\n"
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def scaffold(folder: Path, template: Path = TEMPLATE) -> Path:
    """A template as `agent-env bundle new` writes it."""
    folder.mkdir()
    for source in template.iterdir():
        text = source.read_text().replace("__NAME__", "notes").replace("__CLASS__", "Notes")
        (folder / source.name.removesuffix(".in")).write_text(text)
    return folder


@pytest.mark.parametrize(("template", "passed"), [("environment", 2), ("agent", 1)])
def test_a_template_passes_its_own_tests(tmp_path: Path, template: str, passed: int) -> None:
    folder = scaffold(tmp_path / "notes", TEMPLATE.with_name(template))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=290,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{passed} passed" in done.stdout


LISTING = """
import asyncio, json
from agent_env_sdk.testing import Client, McpError, serve_here
from server import Notes
async def main():
    async with serve_here(Notes()) as served:
        print(json.dumps(await served.tools()))
asyncio.run(main())
"""


def test_the_template_is_listed_as_validators_want_it(tmp_path: Path) -> None:
    folder = scaffold(tmp_path / "notes")
    done = subprocess.run([sys.executable, "-c", LISTING], cwd=folder, capture_output=True, text=True, timeout=290, check=True)
    tools = json.loads(done.stdout)
    assert set(tools) == {"notes_write", "notes_read"}
    for listed in tools.values():
        assert listed["description"].strip()
        for parameter in listed["inputSchema"]["properties"].values():
            assert parameter["type"]
            assert parameter["description"]


async def test_calls_at_once_do_not_mix_up_their_callers() -> None:
    class Shy(Environment):
        @tool()
        async def me(self) -> str:
            """Says who calls, before and after others came by."""
            before = ToolContext.current().role
            await asyncio.sleep(0)
            return f"{before} {ToolContext.current().role}"

    async with serve_here(Shy()) as shy:
        roles = [f"r{number}" for number in range(20)]
        answers = await asyncio.gather(*(shy.call("me", role=role) for role in roles))
    assert [answer.text for answer in answers] == [f"{role} {role}" for role in roles]

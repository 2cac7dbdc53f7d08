"""`load_artifact` of URLs: names, limits, and what a task must not reach through us."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from agent_env.errors import TransferError, UserError
from tests.steps.bench import BenchRun
from tests.steps.conftest import Bench


class Files(BaseHTTPRequestHandler):
    """Serves its path as the body; `/missing` is 404."""

    def do_GET(self) -> None:
        found = not self.path.startswith("/missing")
        body = self.path.encode()
        self.send_response(200 if found else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def served(address: str) -> Iterator[str]:
    server = ThreadingHTTPServer((address, 0), Files)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://{address}:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def own_address() -> str:
    """An address of this machine that is not loopback, as another machine would use it. Nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))
        return str(probe.getsockname()[0])


def test_b4_urls_are_saved_under_decoded_names_and_clashes_are_numbered(bench: Bench) -> None:
    async def body(run: BenchRun) -> None:
        with served(own_address()) as base:
            urls = [
                f"{base}/a/data.csv?x=1",
                f"{base}/b/data.csv",
                f"{base}/",
                f"{base}/n%20m.txt",
                {"url": f"{base}/d?id=1", "filename": "y.csv"},
                "env:WHERE",
            ]
            run.secrets["env:WHERE"] = f"{base}/kept/data.csv"
            await run.do({"type": "load_artifact", "urls": urls, "id": "fetch"})
        assert run.metadata["loaded_urls"] == [
            {"step_id": "fetch", "agent_name": None, "sandbox_name": "box", "destination_path": "/tmp/file_artifacts",
             "files": ["data.csv", "data-1.csv", "downloaded", "n m.txt", "y.csv", "data-2.csv"]}
        ]  # fmt: skip
        assert (
            await run.sh("cd /tmp/file_artifacts && cat data.csv data-1.csv 'n m.txt' y.csv data-2.csv")
            == "/a/data.csv?x=1/b/data.csv/n%20m.txt/d?id=1/kept/data.csv"
        )

    bench(body)


def test_a_task_can_not_reach_services_of_this_machine_through_us(bench: Bench) -> None:
    async def body(run: BenchRun) -> None:
        with served("127.0.0.1") as base, pytest.raises(UserError, match="must not be fetched"):
            await run.do({"type": "load_artifact", "urls": [f"{base}/secret"]})
        assert await run.sh("ls /tmp") == ""

    bench(body)


def test_a_sandbox_without_network_gets_nothing_fetched_for_it(bench: Bench) -> None:
    async def body(run: BenchRun) -> None:
        run.context["deployed_sandboxes"][0]["network_policy"] = {"mode": "none", "allow_hosts": [], "allow_cidrs": []}
        with served(own_address()) as base, pytest.raises(UserError, match="the sandbox has no network"):
            await run.do({"type": "load_artifact", "urls": [f"{base}/x"]})

    bench(body)


def test_one_url_that_is_not_there_fails_the_step_and_nothing_is_written(bench: Bench) -> None:
    async def body(run: BenchRun) -> None:
        with served(own_address()) as base, pytest.raises(TransferError, match="404"):
            await run.do({"type": "load_artifact", "urls": [f"{base}/there", f"{base}/missing"]})
        assert await run.sh("ls /tmp") == ""
        assert "loaded_urls" not in run.metadata

    bench(body)

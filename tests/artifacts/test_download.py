"""Downloads from a real HTTP server: whole or not at all, bounded, retried, never where the sandbox may not go."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from agent_env.artifacts import NamedUrl, download, name_urls
from agent_env.defaults import DEFAULT_LIMITS
from agent_env.documents.network import NetworkMode, NetworkPolicy
from agent_env.errors import DeadlineError, TransferError, UserError

QUICK = replace(DEFAULT_LIMITS, retry_backoff_seconds=0.001, download_seconds=20.0, connect_seconds=5.0)


class Handler(BaseHTTPRequestHandler):
    seen: ClassVar[Counter[str]] = Counter()
    release: ClassVar[threading.Event] = threading.Event()

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        self.seen[path] += 1
        match path.strip("/").split("/"):
            case ["status", code]:
                self.answer(int(code), b"no")
            case ["flaky", *_]:
                self.answer(503 if self.seen[path] < 3 else 200, b"at last")
            case ["cut", *_]:
                self.answer(200, b"half", length=1000)
            case ["drip", *_]:
                self.send_response(200)
                self.send_header("Content-Length", "10")
                self.end_headers()
                self.wfile.write(b"x")
                self.wfile.flush()
                self.release.wait(15)
            case ["to", *rest]:
                self.send_response(302)
                self.send_header("Location", "http://" + "/".join(rest))
                self.send_header("Content-Length", "0")
                self.end_headers()
            case ["big", size]:
                self.answer(200, bytes(int(size)))
            case _:
                self.answer(200, path.encode())

    def answer(self, code: int, body: bytes, length: int | None = None) -> None:
        self.send_response(code)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    Handler.seen.clear()
    Handler.release.clear()
    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"127.0.0.1:{httpd.server_port}"
    Handler.release.set()
    httpd.shutdown()
    thread.join()
    httpd.server_close()


def fetch(into: Path, *urls: str, machine: bool = True, network: NetworkPolicy | None = None, limits: object = QUICK) -> dict[str, bytes]:
    done = asyncio.run(download(name_urls(list(urls)), into, machine=machine, network=network, limits=limits))  # type: ignore[arg-type]
    assert all(hashlib.sha256(one.path.read_bytes()).hexdigest() == one.sha256 for one in done)
    return {one.filename: one.path.read_bytes() for one in done}


def test_files_arrive_whole_under_their_names(server: str, tmp_path: Path) -> None:
    assert fetch(tmp_path, f"http://{server}/a/x.txt", f"http://{server}/b/x.txt?q=1") == {"x.txt": b"/a/x.txt", "x-1.txt": b"/b/x.txt"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x-1.txt", "x.txt"]


def test_a_passing_fault_is_tried_again(server: str, tmp_path: Path) -> None:
    assert fetch(tmp_path, f"http://{server}/flaky/f") == {"f": b"at last"}
    assert Handler.seen["/flaky/f"] == 3


@pytest.mark.parametrize(("path", "attempts"), [("status/503", 5), ("status/404", 1), ("cut/x", 5)])
def test_a_lasting_fault_is_an_error_and_leaves_no_file(server: str, tmp_path: Path, path: str, attempts: int) -> None:
    with pytest.raises(TransferError, match=path.replace("/", "/")) as error:
        fetch(tmp_path, f"http://{server}/{path}?token=SECRET-QUERY")
    assert "SECRET-QUERY" not in str(error.value)
    assert Handler.seen[f"/{path}"] == attempts
    assert not list(tmp_path.iterdir())


def test_f08_a_server_that_stops_answering_ends_at_the_deadline(server: str, tmp_path: Path) -> None:
    with pytest.raises(DeadlineError, match="drip"):
        fetch(tmp_path, f"http://{server}/drip/x", limits=replace(QUICK, download_seconds=0.3))
    assert not list(tmp_path.iterdir())


def test_a_file_beyond_the_limit_is_refused_and_removed(server: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="larger than 1000"):
        fetch(tmp_path, f"http://{server}/big/100000", limits=replace(QUICK, download_bytes=1000))
    assert not list(tmp_path.iterdir())


def test_this_machine_is_not_reachable_on_behalf_of_a_task_also_by_a_redirect(server: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="address of this machine"):
        fetch(tmp_path, f"http://{server}/x", machine=False)
    assert not Handler.seen
    only_ip = NetworkPolicy(mode=NetworkMode.ALLOWLIST, allow_cidrs=("127.0.0.1/32",))
    with pytest.raises(UserError, match="allow-list does not name it"):
        fetch(tmp_path, f"http://{server}/to/127.0.0.2/x", network=only_ip)


def test_endless_redirects_and_unfetchable_targets_are_errors(server: str, tmp_path: Path) -> None:
    loop = f"http://{server}/to/" + "/".join([f"{server}/to"] * 12) + "/x"
    with pytest.raises(TransferError, match="redirects more than"):
        fetch(tmp_path, loop)
    with pytest.raises(TransferError):
        fetch(tmp_path, "http://127.0.0.1:1/x", limits=replace(QUICK, download_attempts=2))


def test_nothing_to_fetch_is_nothing_done(tmp_path: Path) -> None:
    assert asyncio.run(download([], tmp_path)) == []


def test_many_files_are_fetched_at_once(server: str, tmp_path: Path) -> None:
    urls = [NamedUrl(f"http://{server}/n/{i}", f"f{i}") for i in range(30)]
    done = asyncio.run(download(urls, tmp_path, machine=True, limits=QUICK))
    assert [one.filename for one in done] == [f"f{i}" for i in range(30)]

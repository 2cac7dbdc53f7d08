"""Addresses carry a viewpoint (placement C3, C4, C7)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_env.places import Endpoint, Published, View
from agent_env.places.endpoint import bracketed, is_local, with_host

LOCAL = Published(tunnels={18765: "http://127.0.0.1:20001", 18080: "http://127.0.0.1:20002"}, host_ports={18765: 20001, 18080: 20002})
NESTED = Published(tunnels={1: "https://proxy.example/x", 2: "https://proxy.example/x/y/"}, host_ports={2: 8002})
SUBDOMAIN = Published(tunnels={18765: "https://18765-abc.sandbox.example"})


@pytest.mark.parametrize(
    ("published", "url", "seen"),
    [
        (LOCAL, "http://127.0.0.1:20001", "http://127.0.0.1:20001"),
        (LOCAL, "http://127.0.0.1:20001/mcp?a=1#f", "http://127.0.0.1:20001/mcp?a=1#f"),
        (LOCAL, "http://127.0.0.1:20001?x=1", "http://127.0.0.1:20001?x=1"),
        (LOCAL, "http://127.0.0.1:200011/mcp", "http://127.0.0.1:200011/mcp"),
        (SUBDOMAIN, "https://18765-abc.sandbox.example/v2/mcp", "http://127.0.0.1:18765/v2/mcp"),
        (SUBDOMAIN, "https://18765-abc.sandbox.example.evil/v2", "https://18765-abc.sandbox.example.evil/v2"),
        (SUBDOMAIN, "https://elsewhere.example/", "https://elsewhere.example/"),
        (NESTED, "https://proxy.example/x/y/z", "http://127.0.0.1:8002/z"),
        (NESTED, "https://proxy.example/x/yy", "http://127.0.0.1:1/yy"),
        (NESTED, "https://proxy.example/x?q", "http://127.0.0.1:1?q"),
    ],
)
def test_c03_a_url_under_a_tunnel_is_seen_from_the_machine(published: Published, url: str, seen: str) -> None:
    assert published.on_machine(url) == seen


@pytest.mark.parametrize(
    ("addresses", "host"),
    [
        ((), "127.0.0.1"),
        (("",), "127.0.0.1"),
        (("172.17.0.1", "127.0.0.1"), "127.0.0.1"),
        (("10.0.0.5",), "10.0.0.5"),
        (("", "10.0.0.5"), "10.0.0.5"),
        (("fd00::1",), "[fd00::1]"),
    ],
)
def test_c04_the_address_is_loopback_unless_published_only_elsewhere_and_never_empty(addresses: tuple[str, ...], host: str) -> None:
    endpoint = Endpoint(port=80, path="/mcp", published=Published(addresses=addresses))
    assert endpoint.seen_from(View.MACHINE) == f"http://{host}:80/mcp"


def test_an_endpoint_is_another_url_from_each_view() -> None:
    endpoint = Endpoint(port=18765, path="/mcp", published=LOCAL, sibling_name="gateway")
    assert endpoint.seen_from(View.INSIDE) == "http://127.0.0.1:18765/mcp"
    assert endpoint.seen_from(View.MACHINE) == "http://127.0.0.1:20001/mcp"
    assert endpoint.seen_from(View.PROCESS) == "http://127.0.0.1:20001/mcp"
    assert endpoint.seen_from(View.SIBLING) == "http://gateway:18765/mcp"


@pytest.mark.parametrize("view", [View.PROCESS, View.SIBLING])
def test_an_endpoint_that_nobody_can_reach_says_so(view: View) -> None:
    with pytest.raises(LookupError):
        Endpoint(port=5).seen_from(view)


def test_c07_another_host_keeps_everything_else() -> None:
    assert with_host("http://u:p@127.0.0.1:80/a?b#c", "host.docker.internal") == "http://u:p@host.docker.internal:80/a?b#c"
    assert with_host("http://localhost/a", "fd00::1") == "http://[fd00::1]/a"
    assert is_local("http://localhost:1/")
    assert is_local("http://127.9.9.9/")
    assert is_local("http://[::1]:2")
    assert is_local("http://0.0.0.0:80")
    assert not is_local("http://localhost.example/")


@given(path=st.text(alphabet="abc/?&=#%", max_size=12), port=st.integers(1, 65535))
def test_what_is_not_below_a_tunnel_is_never_changed(path: str, port: int) -> None:
    published = Published(tunnels={port: "https://t.example/base"})
    url = f"https://t.example/basement{path}"
    assert published.on_machine(url) == url
    assert bracketed("::1") == bracketed("[::1]") == "[::1]"

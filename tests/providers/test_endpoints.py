"""Addresses of real tunnels: nested path prefixes of one proxy, and one subdomain a port (placement C3, C4, C5)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from agent_env.places import Endpoint, Published, View
from agent_env.sandboxes import provider
from agent_env.sandboxes.conformance.bench import Bench, Subject
from agent_env.sandboxes.conformance.http import fetched, fetched_inside, serving
from tests.providers.cloud import machines

PORTS = (18765, 18080)
NAMES = ("remote_paths", "remote_subdomains")


Seen = tuple[Published, str]
"""What a sandbox published, and its id."""


@pytest.fixture(scope="module")
def seen(cloud_options: Mapping[str, Any], installed: None, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Seen]:
    """What each provider really publishes, with markers that were fetched under it from every viewpoint. The sandboxes are gone."""

    async def one(name: str) -> Seen:
        bench = Bench(Subject(name, lambda: provider(name, state_root=tmp_path_factory.mktemp(name), options=cloud_options)))
        if not (await bench.capabilities()).own_network:
            pytest.skip("agentenv-capability-missing: own_network")
        async with bench.sandbox(ports=PORTS) as room, serving(room, {port: f"marker-{port}" for port in PORTS}):
            told = room.sandbox.published
            for port in PORTS:
                outside = Endpoint(port, "/p?q=1", published=told).seen_from(View.PROCESS)
                assert await fetched(outside, bench) == f"marker-{port} /p?q=1"
                assert await fetched_inside(room, told.on_machine(outside)) == f"marker-{port} /p?q=1"
                assert "marker" not in await fetched_inside(room, outside)  # no machine reaches its own tunnels
            async with bench.attached(room.spec, epoch=2) as again:
                assert again.published == told
            return told, room.spec.sandbox_id

    return {name: asyncio.run(one(name)) for name in NAMES}


@pytest.fixture(scope="module")
def published(seen: Mapping[str, Seen]) -> Mapping[str, Published]:
    """What each provider publishes."""
    return {name: told for name, (told, _) in seen.items()}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("rest", ["", "/", "/mcp", "/v2/mcp?a=1&b=2#f", "?x", "/18080", "/18080x/y"])
def test_c03_a_url_under_a_tunnel_is_the_published_port_on_the_machine(published: Mapping[str, Published], name: str, rest: str) -> None:
    told = published[name]
    for port, tunnel in told.tunnels.items():
        nested = any(other.startswith(f"{tunnel}/") and f"{tunnel}{rest}".startswith(other + "/") for other in told.tunnels.values())
        if nested or f"{tunnel}{rest}" in told.tunnels.values():
            continue  # a longer tunnel's URL: the next test's
        assert told.on_machine(f"{tunnel}{rest}") == f"http://127.0.0.1:{port}{rest}"


def test_c03_the_longest_of_nested_tunnels_is_tried_first(published: Mapping[str, Published]) -> None:
    told = published["remote_paths"]
    outer, inner = (told.tunnels[port] for port in PORTS)
    assert inner == f"{outer}/18080"
    assert told.on_machine(f"{inner}/x?q") == "http://127.0.0.1:18080/x?q"
    assert told.on_machine(inner) == "http://127.0.0.1:18080"
    assert told.on_machine(f"{outer}/x?q") == "http://127.0.0.1:18765/x?q"
    assert told.on_machine(f"{inner}x") == "http://127.0.0.1:18765/18080x"


def test_c03_each_port_has_a_subdomain(published: Mapping[str, Published]) -> None:
    hosts = {port: urlsplit(url).hostname or "" for port, url in published["remote_subdomains"].tunnels.items()}
    assert all(host.startswith(f"{port}-") and host.endswith(".localhost") for port, host in hosts.items())


@pytest.mark.parametrize("name", NAMES)
def test_c03_look_alikes_and_other_urls_stay_as_they_are(published: Mapping[str, Published], name: str) -> None:
    told = published[name]
    for tunnel in told.tunnels.values():
        parts = urlsplit(tunnel)
        for other in (
            f"{parts.scheme}://{parts.netloc}.evil.example{parts.path}",
            f"{parts.scheme}://{parts.hostname}:1{parts.path}",
            f"{parts.scheme}://evil.example/{tunnel}",
            f"https://{parts.netloc}{parts.path}",
            "http://elsewhere.example/",
        ):
            assert told.on_machine(other) == other


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("addresses", "host"),
    [((), "127.0.0.1"), (("127.0.0.1", "172.17.0.1"), "127.0.0.1"), (("10.0.0.5",), "10.0.0.5"), (("fd00::1",), "[fd00::1]")],
)
def test_c04_the_address_is_loopback_unless_published_only_elsewhere(
    published: Mapping[str, Published], name: str, addresses: tuple[str, ...], host: str
) -> None:
    told = replace(published[name], addresses=addresses)
    assert told.on_machine(f"{told.tunnels[18765]}/mcp") == f"http://{host}:18765/mcp"
    assert Endpoint(18080, published=told).seen_from(View.MACHINE) == f"http://{host}:18080"


@pytest.mark.parametrize("name", NAMES)
def test_c05_a_remote_machine_serves_the_well_known_port_on_its_loopback(published: Mapping[str, Published], name: str) -> None:
    assert Endpoint(18765, published=published[name]).seen_from(View.MACHINE) == "http://127.0.0.1:18765"


def test_the_cloud_keeps_no_machine(seen: Mapping[str, Seen], cloud_folder: Path) -> None:
    # Other tests may have machines in the same cloud at this moment; that they go too is held where the cloud ends.
    left = machines(cloud_folder)
    assert [name for name in left if any(sandbox_id in name for _, sandbox_id in seen.values())] == []

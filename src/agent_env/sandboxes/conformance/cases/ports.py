"""Ports: a published port is reached under the URL that is told, from here and from the machine, and from nowhere else."""

from __future__ import annotations

import asyncio
import ipaddress
from urllib.parse import urlsplit

from agent_env.errors import DeadlineError
from agent_env.places import Endpoint, View
from agent_env.sandboxes.conformance.bench import PORTS, Bench
from agent_env.sandboxes.conformance.case import Area, equal, holds
from agent_env.sandboxes.conformance.http import fetch, fetched, fetched_inside, serving

AREA = Area("ports")
case = AREA.case

_PUBLISH = ["publish", "own_network"]


@case("C3", "PO-01", needs=_PUBLISH)
async def each_published_port_answers_for_itself(bench: Bench) -> None:
    """Two ports, each serving its own marker, are reached from this process; path and query arrive."""
    async with bench.sandbox(ports=PORTS) as room:
        equal(sorted(room.sandbox.published.tunnels), sorted(PORTS), "the ports that are published")
        async with serving(room, {port: f"marker-{port}" for port in PORTS}):
            for port in PORTS:
                url = Endpoint(port, "/a/b?c=d&e", published=room.sandbox.published).seen_from(View.PROCESS)
                equal(await fetched(url, bench), f"marker-{port} /a/b?c=d&e", f"the answer of {url}")


@case("C3", "C5", needs=_PUBLISH)
async def a_url_of_this_process_works_on_the_machine(bench: Bench) -> None:
    """A service is reached inside its place under its own port, and on a machine elsewhere under what `on_machine` makes of its URL."""
    async with bench.sandbox(ports=PORTS) as room, serving(room, {port: f"marker-{port}" for port in PORTS}):
        published = room.sandbox.published
        for port in PORTS:
            urls = [Endpoint(port, "/x?y=1", published=published).seen_from(View.INSIDE)]
            if not (await bench.capabilities()).on_this_machine and not await bench.beside():
                urls.append(published.on_machine(Endpoint(port, "/x?y=1", published=published).seen_from(View.PROCESS)))
            for url in urls:
                equal(await fetched_inside(room, url), f"marker-{port} /x?y=1", f"the answer of {url} inside")


@case("C3", needs=_PUBLISH)
async def tunnels_are_told_apart(bench: Bench) -> None:
    """Each tunnel's URL leads to its own port, the longest one first; look-alikes and other URLs stay as they are."""
    async with bench.shared() as room:
        published = room.sandbox.published
        for port, tunnel in published.tunnels.items():
            wanted = Endpoint(port, "/v2/mcp?a=1", published=published).seen_from(View.MACHINE)
            equal(published.on_machine(f"{tunnel.rstrip('/')}/v2/mcp?a=1"), wanted, f"{tunnel} on the machine")
            parts = urlsplit(tunnel)
            for other in (f"{parts.scheme}://{parts.hostname}.evil.example{parts.path}/x", "https://elsewhere.example/x"):
                equal(published.on_machine(other), other, "a URL of somebody else")


@case("C4", "PO-05", needs=_PUBLISH)
async def addresses_are_never_empty_and_never_all(bench: Bench) -> None:
    """The machine's address is one that can be connected to, and tunnels name hosts, not `0.0.0.0`."""
    async with bench.shared() as room:
        published = room.sandbox.published
        holds(published.machine_address(), "the machine has an address")
        for host in [published.machine_address().strip("[]"), *(urlsplit(url).hostname or "" for url in published.tunnels.values())]:
            try:
                unspecified = ipaddress.ip_address(host).is_unspecified
            except ValueError:
                unspecified = not host
            holds(not unspecified, f"{host!r} can be connected to")


@case("PO-08", needs=[*_PUBLISH, "on_this_machine"])
async def ports_of_this_machine_are_published_on_loopback_alone(bench: Bench) -> None:
    """On this machine a published port listens on loopback, not on every interface."""
    async with bench.shared() as room:
        for url in room.sandbox.published.tunnels.values():
            holds(ipaddress.ip_address(urlsplit(url).hostname or "").is_loopback, f"{url} is on loopback")


@case("A3", "C5", needs=[*_PUBLISH, "reattach"])
async def published_ports_outlive_their_owner(bench: Bench) -> None:
    """After reopening the same URLs lead to the same services."""
    async with (
        bench.sandbox(ports=PORTS) as room,
        serving(room, {PORTS[0]: "still here"}),
        bench.attached(room.spec, epoch=room.spec.epoch) as again,
    ):
        equal(again.published, room.sandbox.published, "what is published")
        equal(await fetched(again.published.tunnels[PORTS[0]], bench), "still here /", "the answer")


@case("PO-02", needs=_PUBLISH)
async def a_port_that_nobody_serves_gives_no_success(bench: Bench) -> None:
    """A published port without a server refuses, resets, or answers an error: never with success."""
    async with bench.sandbox(ports=PORTS) as room:
        for url in room.sandbox.published.tunnels.values():
            try:
                status, _ = await fetch(url, bench)
            except (OSError, DeadlineError, asyncio.IncompleteReadError):
                continue
            holds(not 200 <= status < 400, f"{url} answered {status} although nobody serves it")


@case("A13", needs=_PUBLISH)
async def sandboxes_do_not_share_their_urls(bench: Bench) -> None:
    """The same port of two sandboxes has two URLs, each leading to its own."""
    async with (
        bench.sandbox(ports=PORTS[:1]) as one,
        bench.sandbox(ports=PORTS[:1]) as two,
        serving(one, {PORTS[0]: "one"}),
        serving(two, {PORTS[0]: "two"}),
    ):
        urls = [room.sandbox.published.tunnels[PORTS[0]] for room in (one, two)]
        equal([await fetched(url, bench) for url in urls], ["one /", "two /"], "the answers")


@case()
async def nothing_is_published_that_was_not_asked_for(bench: Bench) -> None:
    """A sandbox without ports publishes none."""
    async with bench.sandbox() as room:
        equal(dict(room.sandbox.published.tunnels), {}, "the tunnels")


@case("C6", needs=["own_network"])
async def loopback_is_the_places_own(bench: Bench) -> None:
    """A server on the place's loopback is reached there under its own port."""
    async with bench.sandbox() as room, serving(room, {18765: "inside"}, address="127.0.0.1"):
        equal(await fetched_inside(room, "http://127.0.0.1:18765/p"), "inside /p", "the answer inside")

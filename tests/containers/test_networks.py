"""Networks: containers that stand alone can't see each other, those that belong together can, and none are used up."""

from __future__ import annotations

import asyncio
import ipaddress
import secrets
from pathlib import Path

import pytest

from agent_env.containers import SHARED, Engine, EngineEndpoint, Listed, labelled, own_network, release_shared, shared_network
from agent_env.containers.networks import KIND, RANGES, free_ranges, inspect, ranges_beside, routes
from agent_env.containers.objects import remove, remove_container
from agent_env.errors import EngineRefusedError, UsageError
from agent_env.places import Command
from agent_env.waiting import poll
from tests.busy import within
from tests.container_engine import Bench, bench

SERVE = ("nc", "-ll", "-p", "8000", "-e", "echo", "hello")


def ask(address: str) -> Command:
    """Asks until there is an answer."""
    return Command(["sh", "-c", f"for i in $(seq 200); do nc -w 2 {address} 8000 </dev/null && exit 0; sleep 0.1; done; exit 1"])


def try_once(address: str) -> Command:
    """Asks in vain, where a server is known to listen."""
    return Command(["nc", "-w", "1", address, "8000"], timeout_seconds=1, kill_grace_seconds=0)


async def address_of(here: Bench, container_id: str, network_id: str) -> str:
    async with here.engine.asking("looking") as client:
        said = await client._query_json(f"containers/{container_id}/json")
    return next(each["IPAddress"] for each in said["NetworkSettings"]["Networks"].values() if each["NetworkID"] == network_id)


async def test_containers_that_stand_alone_reach_the_outside_and_never_each_other(docker: EngineEndpoint, busybox: str) -> None:
    async with bench(docker, busybox) as here:
        network = await shared_network(here.engine, here.home)
        first = await here.deploy(network=network.id, ports=[8000], argv=SERVE)
        second = await here.deploy(network=network.id)
        address = await address_of(here, first.id, network.id)
        assert (await first.run(ask("127.0.0.1"))).stdout == b"hello\n"
        assert not (await second.run(try_once(address))).ok
        assert not (await second.run(try_once(first.name))).ok


async def test_everyone_who_asks_at_once_gets_the_same_shared_network(docker: EngineEndpoint, busybox: str) -> None:
    async with bench(docker, busybox) as here:
        engines = [Engine(docker) for _ in range(4)]
        try:
            await asyncio.gather(*(shared_network(engine, here.home) for engine in engines for _ in range(2)))
            last = await shared_network(here.engine, here.home)
            assert [each.id for each in await labelled(here.engine, here.labels)] == [last.id]
        finally:
            await asyncio.gather(*(engine.aclose() for engine in engines))


async def test_containers_of_one_small_network_find_each_other_by_name_and_strangers_do_not(docker: EngineEndpoint, busybox: str) -> None:
    async with bench(docker, busybox) as here:
        ours = await own_network(here.engine, f"back-{secrets.token_hex(6)}", here.labels)
        theirs = await own_network(here.engine, f"back-{secrets.token_hex(6)}", here.labels)
        server = await here.deploy(network=ours.id, aliases=("database",), argv=SERVE)
        friend = await here.deploy(network=ours.id)
        stranger = await here.deploy(network=theirs.id)
        assert (await friend.run(ask("database"))).stdout == b"hello\n"
        assert (await friend.run(ask(server.name))).stdout == b"hello\n"
        assert not (await stranger.run(try_once("database"))).ok
        address = await address_of(here, server.id, ours.id)

        async def shut_out() -> bool | None:
            return not (await stranger.run(try_once(address))).ok or None

        # Engines of old take their fence down and put it up again whenever anybody makes a network, which others do meanwhile.
        await poll(shut_out, within_seconds=within(10.0), what="a stranger's being shut out")


async def test_f04_more_networks_than_an_engines_default_pools_are_no_trouble(docker: EngineEndpoint, busybox: str) -> None:
    async with bench(docker, busybox) as here:
        gate = asyncio.Semaphore(8)

        async def one() -> str:
            async with gate:
                return (await own_network(here.engine, f"many-{secrets.token_hex(6)}", here.labels)).subnet

        subnets = [ipaddress.ip_network(subnet) for subnet in await asyncio.gather(*(one() for _ in range(34)))]
        assert len(set(subnets)) == 34
        assert all(any(subnet.subnet_of(whole) for whole in RANGES) for subnet in subnets)
        listed = [each for each in await labelled(here.engine, here.labels) if each.kind == "network"]
        assert len(listed) == 34


async def networks_of(here: Bench) -> list[str]:
    return [each.id for each in await labelled(here.engine, here.labels) if each.kind == "network"]


async def test_the_shared_network_goes_with_the_last_container_whatever_state_that_is_in(docker: EngineEndpoint, busybox: str) -> None:
    async with bench(docker, busybox) as here, bench(docker, busybox) as neighbour:
        theirs = await neighbour.deploy(network=SHARED)
        first, second = await asyncio.gather(*(here.deploy(network=SHARED) for _ in range(2)))
        (shared,) = await networks_of(here)
        await remove_container(here.engine, first.id)
        assert await release_shared(here.engine, here.home) == []
        async with here.engine.asking("stopping") as client:
            await client.containers.container(second.id).kill()
            await client.containers.container(second.id).wait()
        assert await release_shared(here.engine, here.home) == []  # a stopped one may be started again
        await remove_container(here.engine, second.id)
        assert await release_shared(here.engine, here.home) == [shared]
        assert await networks_of(here) == []
        assert (await theirs.run(Command(["true"]))).ok
        assert len(await networks_of(neighbour)) == 1


@pytest.mark.parametrize("settled", [0.5, 5.0])
async def test_containers_come_up_although_the_network_that_they_are_to_join_is_taken_away_again_and_again(
    docker: EngineEndpoint, busybox: str, settled: float
) -> None:
    """As a collection does that is called without a pause, and as one that looks longer."""
    async with bench(docker, busybox) as here, Engine(docker) as other:

        async def take_away() -> None:
            while True:
                await release_shared(other, here.home, settled_seconds=settled)

        async def come_and_go() -> None:
            for _ in range(3):
                place = await here.deploy(network=SHARED)
                assert (await place.run(Command(["true"]))).ok
                await remove_container(here.engine, place.id)

        thief = asyncio.ensure_future(take_away())
        try:
            await asyncio.gather(*(come_and_go() for _ in range(3)))
        finally:
            thief.cancel()
            await asyncio.wait([thief])
        await release_shared(other, here.home)
        assert await networks_of(here) == []


async def test_a_shared_network_without_an_address_left_is_followed_by_another(docker: EngineEndpoint, busybox: str) -> None:
    async with bench(docker, busybox) as here:
        small = next(free_ranges(30, []))
        body = {
            "Name": f"small-{secrets.token_hex(6)}",
            "Labels": {**here.labels, KIND: "shared"},
            "IPAM": {"Config": [{"Subnet": str(small), "Gateway": str(next(small.hosts()))}]},
        }
        async with here.engine.asking("making a small network") as client:
            full = (await client._query_json("networks/create", method="POST", data=body))["Id"]
        places = await asyncio.gather(*(here.deploy(network=SHARED) for _ in range(3)))
        found = await networks_of(here)
        assert len(found) in {2, 3}  # both who found it full make one, and mostly one of them finds the other's
        assert full in found
        await asyncio.gather(*(remove_container(here.engine, place.id) for place in places))
        assert sorted(await release_shared(here.engine, here.home)) == sorted(found)


def test_our_ranges_hold_hundreds_of_homes_and_small_networks_leave_whole_ones_free() -> None:
    taken: list[ipaddress.IPv4Network] = []
    for _ in range(64):
        taken.append(next(free_ranges(27, taken)))
    assert len(set(taken)) == 64
    whole = list(free_ranges(24, taken))
    assert len(whole) >= 500
    assert not any(subnet.overlaps(each) for subnet in whole for each in taken)
    assert list(free_ranges(24, RANGES)) == []
    assert list(free_ranges(27, RANGES)) == []


def test_a_vpn_to_everything_leaves_ranges_and_what_lies_outside_of_it_goes_first() -> None:
    everything = [ipaddress.IPv4Network("0.0.0.0/1"), ipaddress.IPv4Network("128.0.0.0/1")]
    narrow = ipaddress.IPv4Network("10.213.0.0/17")
    found = set(ranges_beside(24, [RANGES[1]], [*everything, narrow]))
    assert len(found) == 128 + 32
    assert not any(each.overlaps(other) for each in found for other in (RANGES[1], narrow))
    first = next(ranges_beside(27, [], [ipaddress.IPv4Network("10.0.0.0/8"), ipaddress.IPv4Network("172.16.0.0/12")]))
    assert first.subnet_of(RANGES[2])
    assert list(ranges_beside(27, [], RANGES)) == []


async def test_a_network_that_is_gone_or_removed_twice_is_no_error(docker: EngineEndpoint, busybox: str) -> None:
    async with bench(docker, busybox) as here:
        made = await own_network(here.engine, f"once-{secrets.token_hex(6)}", here.labels)
        listed = Listed("network", made.id, made.name)
        found = await inspect(here.engine, made.id)
        assert found is not None
        assert found[0] == made
        assert await remove(here.engine, listed)
        assert not await remove(here.engine, listed)
        assert await inspect(here.engine, made.id) is None


def test_the_ways_that_this_machine_has_are_left_alone(tmp_path: Path) -> None:
    table = tmp_path / "route"
    table.write_text(
        "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n"
        "eth0\t00000000\t0100000A\t0003\t0\t0\t0\t00000000\t0\t0\t0\n"
        "tun0\t0000D50A\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0\n"
    )
    assert routes(table) == [ipaddress.IPv4Network("10.213.0.0/16")]
    assert routes(tmp_path / "absent") == []


async def test_po07_a_port_that_nobody_would_reach_is_refused_and_nothing_is_left(docker: EngineEndpoint, busybox: str) -> None:
    async with bench(docker, busybox) as here:
        closed = await own_network(here.engine, f"closed-{secrets.token_hex(6)}", here.labels, internal=True)
        with pytest.raises(EngineRefusedError, match="does not publish the ports"):
            await here.deploy(network=closed.id, ports=[8000])
        with pytest.raises(UsageError, match="without a network"):
            await here.deploy(ports=[8000])
        assert [each.kind for each in await labelled(here.engine, here.labels)] == ["network"]

"""Network: the policy that was asked for is the one in force, and what it denies is not reached."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from agent_env.documents.network import NetworkMode, NetworkPolicy
from agent_env.errors import UnsupportedError
from agent_env.places import Command
from agent_env.sandboxes.conformance.bench import Bench, Room
from agent_env.sandboxes.conformance.case import Area, equal, holds, raises
from agent_env.sandboxes.conformance.http import fetched_inside, python, serving

AREA = Area("network")
case = AREA.case

_NONE = NetworkPolicy(mode=NetworkMode.NONE)
_TRY = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), 2).close()
    print("reached")
except OSError as error:
    print("refused", error)
"""
_METADATA = ("169.254.169.254", 80)
"""Where clouds keep a machine's credentials."""


@asynccontextmanager
async def _listener() -> AsyncIterator[tuple[int, list[str]]]:
    """A server of this machine on every address, and the names of whoever came."""
    came: list[str] = []

    async def note(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        came.append(str(writer.get_extra_info("peername")))
        writer.close()

    server = await asyncio.start_server(note, "0.0.0.0", 0)
    async with server:
        yield server.sockets[0].getsockname()[1], came


def _own_addresses() -> list[str]:
    """Addresses of this machine: loopback, and the one that it would speak to the world from."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # reserved for documentation: nothing is sent
            return ["127.0.0.1", str(probe.getsockname()[0])]
        except OSError:
            return ["127.0.0.1"]


async def _tries(room: Room, host: str, port: int) -> str:
    done = await room.place.run(Command([await python(room), "-c", _TRY, host, str(port)]))
    return done.stdout.decode().strip() or f"{done.ending} {done.exit_code}: {done.stderr[-200:]!r}"


@case("NP-01", needs=["egress.none", "on_this_machine"])
async def without_a_network_this_machine_is_not_reached(bench: Bench) -> None:
    """With mode `none` no address of this machine can be connected to, loopback included."""
    async with bench.sandbox(network=_NONE) as room, _listener() as (port, came):
        for address in _own_addresses():
            holds(not (await _tries(room, address, port)).startswith("reached"), f"{address}:{port} was reached")
        equal(came, [], "who came")


@case("NP-01", needs=["egress.none"])
async def without_a_network_nothing_outside_is_reached(bench: Bench) -> None:
    """With mode `none` neither addresses, nor names, nor the metadata service are reached."""
    async with bench.sandbox(network=_NONE) as room:
        for host, port in (_METADATA, ("1.1.1.1", 53), ("example.com", 80)):
            said = await _tries(room, host, port)
            holds(said.startswith("refused"), f"{host}:{port}: {said}")


@case(needs=["egress.none"])
async def without_a_network_loopback_works(bench: Bench) -> None:
    """A place without a network still has its own loopback."""
    async with bench.sandbox(network=_NONE) as room, serving(room, {18080: "own"}, address="127.0.0.1"):
        equal(await fetched_inside(room, "http://127.0.0.1:18080/"), "own /", "the answer inside")


@case("NP-01", needs=["egress.none"])
async def an_allow_list_without_entries_denies_everything(bench: Bench) -> None:
    """An empty allow-list is mode `none`."""
    async with bench.sandbox(network=NetworkPolicy(mode=NetworkMode.ALLOWLIST)) as room:
        holds((await _tries(room, *_METADATA)).startswith("refused"), "the metadata service was reached")


@case("NP-01", needs=["egress.allowlist"])
async def an_allow_list_denies_what_it_does_not_name(bench: Bench) -> None:
    """With one host allowed, raw addresses and the metadata service stay out of reach."""
    policy = NetworkPolicy(mode=NetworkMode.ALLOWLIST, allow_hosts=("example.com",))
    async with bench.sandbox(network=policy) as room:
        for host, port in (_METADATA, ("1.1.1.1", 53)):
            said = await _tries(room, host, port)
            holds(said.startswith("refused"), f"{host}:{port}: {said}")


@case("NP-03")
async def a_policy_that_can_not_be_held_is_refused_and_never_ignored(bench: Bench) -> None:
    """A network mode that is not declared is a problem of the spec, and `create` refuses it and makes nothing."""
    known = await bench.capabilities()
    for mode in (each for each in NetworkMode if each not in known.egress):
        spec = await bench.spec(network=NetworkPolicy(mode=mode, allow_hosts=("example.com",) if mode is NetworkMode.ALLOWLIST else ()))
        provider = bench.make()
        holds(provider.problems(spec, known), f"a policy of mode {mode} is no problem")
        try:
            with raises(UnsupportedError, f"making a sandbox with a policy of mode {mode}"):
                await (await provider.create(spec)).aclose()
            equal(await bench.ids(spec.labels), [], "what was made")
        finally:
            await provider.destroy(spec.sandbox_id)


async def _tells(bench: Bench, policy: NetworkPolicy) -> None:
    async with bench.sandbox(network=policy) as room:
        equal(room.sandbox.network, policy, f"the policy of a sandbox of mode {policy.mode}")
        if (await bench.capabilities()).reattach:
            async with bench.attached(room.spec, epoch=2) as again:
                equal(again.network, policy, f"the policy of a reopened sandbox of mode {policy.mode}")


@case()
async def the_policy_in_force_is_told(bench: Bench) -> None:
    """A sandbox tells its policy, and tells the same when it is reopened."""
    for mode in sorted((await bench.capabilities()).egress - {NetworkMode.ALLOWLIST}):
        await _tells(bench, NetworkPolicy(mode=NetworkMode(mode)))


@case(needs=["egress.allowlist"])
async def an_allow_list_in_force_is_told(bench: Bench) -> None:
    """A sandbox tells what its allow-list names, and tells the same when it is reopened."""
    await _tells(bench, NetworkPolicy(mode=NetworkMode.ALLOWLIST, allow_hosts=("example.com",), allow_cidrs=("192.0.2.0/24",)))

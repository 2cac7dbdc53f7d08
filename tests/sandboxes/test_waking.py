"""The networking of a place starts with its first command, whoever asks for it, and ends with the place."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import PurePosixPath

import pytest

from agent_env.documents.network import NetworkMode, NetworkPolicy
from agent_env.errors import SandboxUnavailableError
from agent_env.places import Command
from agent_env.sandboxes.confined.processes import Identity, marked
from agent_env.sandboxes.confined.records import EVENTS, Records, reported
from agent_env.sandboxes.local.provider import LocalProvider
from agent_env.waiting import poll
from tests.sandboxes.people import MINE, World, spec, world

DEVICES = Command(["cat", "/proc/net/dev"])
DEMANDED = NetworkPolicy(mode=NetworkMode.ALLOW_ALL)


@pytest.fixture(name="here")
def _here() -> Iterator[World]:
    with world("root" if os.geteuid() == 0 else "user without bubblewrap") as made:
        if made.provider().machine.slirp is None:
            pytest.skip("agentenv-capability-missing: slirp4netns")
        yield made


def networking(here: World, sandbox_id: str) -> Sequence[int]:
    """The processes that were started for it, as the guardian told."""
    return [event["pid"] for event in reported(Records(here.state).folder(sandbox_id) / EVENTS) if event["event"] == "network"]


async def files_and_then_commands(here: World) -> None:
    provider = here.provider()
    sandbox = await provider.create(spec(f"{MINE}-wake"))
    try:
        place = await sandbox.machine()
        await place.stat([PurePosixPath("/app")])
        assert not networking(here, f"{MINE}-wake")
        again = await here.provider().attach(f"{MINE}-wake", epoch=1, token=f"t-{MINE}-wake")
        both = await asyncio.gather(place.run(DEVICES), (await again.machine()).run(DEVICES))
        assert all(b"tap0" in done.stdout for done in both)
        (started,) = networking(here, f"{MINE}-wake")
        await again.aclose()
        await sandbox.aclose()
    finally:
        await provider.destroy(f"{MINE}-wake")
    assert Identity.of(started) is None
    assert not [*marked(f"{MINE}-wake")]


def test_a_place_without_a_command_has_no_networking_and_its_first_commands_have_it(here: World) -> None:
    asyncio.run(files_and_then_commands(here))


def without_networking(here: World) -> LocalProvider:
    provider = here.provider()
    return LocalProvider(
        here.state, options=provider_options(here), environ=provider._environ, machine=replace(provider.machine, slirp="/bin/false")
    )


def provider_options(here: World) -> dict[str, object]:
    return {"confiner": "helper"} if here.way == "user without bubblewrap" else {}


async def with_broken_networking(here: World) -> None:
    provider = without_networking(here)
    for sandbox_id, changes in ((f"{MINE}-may", {}), (f"{MINE}-must", {"network": DEMANDED})):
        sandbox = await provider.create(spec(sandbox_id, **changes))
        try:
            place = await sandbox.machine()
            if sandbox_id == f"{MINE}-may":
                done = await place.run(DEVICES)
                assert done.ok
                assert b"tap0" not in done.stdout
            else:
                with pytest.raises(SandboxUnavailableError, match=f"network of sandbox {MINE}-must"):
                    await place.run(DEVICES)
            await sandbox.aclose()
        finally:
            await provider.destroy(sandbox_id)
    with pytest.raises(SandboxUnavailableError, match=f"network of sandbox {MINE}-port"):
        await provider.create(spec(f"{MINE}-port", ports=(8000,)))
    assert not here.left()


def test_networking_that_can_not_be_started_is_missed_where_it_is_demanded_and_where_ports_are_published(here: World) -> None:
    asyncio.run(with_broken_networking(here))


async def networking_that_is_killed(here: World) -> None:
    provider = here.provider()
    sandbox = await provider.create(spec(f"{MINE}-cut"))
    try:
        place = await sandbox.machine()
        assert b"tap0" in (await place.run(DEVICES)).stdout
        facts = Records(here.state).read(f"{MINE}-cut")
        assert facts is not None
        guardian, slirp = Identity.load(facts.guardian), Identity.of(*networking(here, f"{MINE}-cut"))
        assert guardian is not None
        assert slirp is not None
        guardian.kill(signal.SIGSTOP)
        slirp.kill()
        assert await asyncio.to_thread(slirp.wait_gone, 60)
        assert b"tap0" in (await place.run(DEVICES)).stdout  # its end took the interface along no more, which is what takes long
        guardian.kill(signal.SIGCONT)

        async def refused() -> bool | None:
            return None if b"tap0" in (await place.run(DEVICES)).stdout else True

        await poll(refused, within_seconds=60, what="the end of its interface")
        await sandbox.aclose()
    finally:
        await provider.destroy(f"{MINE}-cut")
    assert not here.left()


def test_networking_that_is_killed_takes_its_interface_along_only_when_the_place_goes_on(here: World) -> None:
    asyncio.run(networking_that_is_killed(here))


async def told_to_end(here: World) -> None:
    provider = here.provider()
    sandbox = await provider.create(spec(f"{MINE}-end"))
    try:
        assert (await (await sandbox.machine()).run(DEVICES)).ok
        facts = Records(here.state).read(f"{MINE}-end")
        assert facts is not None
        first, guardian = Identity.load(facts.first), Identity.load(facts.guardian)
        assert first is not None
        assert guardian is not None
        guardian.kill(signal.SIGTERM)
        assert await asyncio.to_thread(guardian.wait_gone, 60)
        assert not first.alive
        (started,) = networking(here, f"{MINE}-end")

        async def gone() -> bool | None:
            return True if Identity.of(started) is None else None

        await poll(gone, within_seconds=60, what="the end of its networking")
        assert [event["event"] for event in reported(Records(here.state).folder(f"{MINE}-end") / EVENTS)] == ["network", "ended"]
        await sandbox.aclose()
    finally:
        await provider.destroy(f"{MINE}-end")


def test_a_guardian_that_is_told_to_end_takes_the_place_and_its_networking_along(here: World) -> None:
    asyncio.run(told_to_end(here))

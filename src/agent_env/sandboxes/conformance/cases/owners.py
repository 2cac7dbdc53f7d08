"""Owners: reopening from anywhere gives the same place, and after a takeover an older owner can't act."""

from __future__ import annotations

import asyncio
import secrets

from agent_env.errors import AgentEnvError, SupersededError
from agent_env.places import Command, Ending, Upload
from agent_env.sandboxes.conformance.bench import Bench
from agent_env.sandboxes.conformance.case import Area, equal, holds, raises

AREA = Area("owners")
case = AREA.case


@case("A1", "A3", needs=["reattach"])
async def reopening_gives_the_same_place(bench: Bench) -> None:
    """Identity, kind, files, ports, network and limits are those of the live handle."""
    ports = (18765,) if "publish" in await bench.declared() else ()
    async with bench.sandbox(ports=ports) as room:
        await room.place.put([Upload(room.folder / "kept", b"before")])
        async with bench.attached(room.spec, epoch=room.spec.epoch + 1) as again:
            place = await bench.place_of(again)
            equal((place.id, place.kind), (room.place.id, room.place.kind), "identity and kind")
            equal(await place.read(room.folder / "kept"), b"before", "the file")
            equal(again.published, room.sandbox.published, "the published ports")
            equal(again.network, room.sandbox.network, "the network policy")
            equal(dict(again.levels), dict(room.sandbox.levels), "the limits' levels")
            equal(again.info.sandbox_id, room.spec.sandbox_id, "the sandbox's id")


@case("A1", "B10", needs=["reattach", "another_process"])
async def another_process_reaches_the_same_place(bench: Bench) -> None:
    """A process that shares nothing but what is written down finds identity and files."""
    async with bench.sandbox() as room:
        await room.place.put([Upload(room.folder / "kept", b"before")])
        container = room.place.id if await bench.mode() == "container" and "machine_backed" in await bench.declared() else None
        process = await bench.elsewhere("attach", room.spec, epoch=2, argv=["cat", str(room.folder / "kept")], container=container)
        answer = await bench.answer(process)
        wanted = {"id": room.place.id, "kind": room.place.kind.value, "stdout": "before", "exit_code": 0}
        equal(answer, wanted, "what the other process found")


@case("D3", needs=["reattach"])
async def an_older_owner_is_refused(bench: Bench) -> None:
    """After a takeover an older epoch can't come back."""
    async with bench.sandbox() as room, bench.attached(room.spec, epoch=room.spec.epoch + 2):
        with raises(SupersededError, "attaching with an older epoch"):
            await bench.make().attach(room.spec.sandbox_id, epoch=room.spec.epoch + 1, token=room.spec.token)


@case("D3", needs=["reattach"])
async def an_owner_that_was_overtaken_can_not_act(bench: Bench) -> None:
    """A handle of an older epoch is told so at its next act, and changes nothing."""
    async with bench.sandbox() as room, bench.attached(room.spec, epoch=room.spec.epoch + 1) as newer:
        with raises(SupersededError, "a command of the older owner"):
            await room.place.run(Command(["sh", "-c", "touch late"], cwd=room.folder))
        with raises(SupersededError, "a write of the older owner"):
            await room.place.put([Upload(room.folder / "late", b"x")])
        place = await bench.place_of(newer)
        equal([entry.path.name async for entry in place.walk(room.folder)], [], "what the older owner wrote")


@case("D3", needs=["reattach"])
async def connections_of_one_owner_live_beside_each_other(bench: Bench) -> None:
    """A second handle of the same epoch takes nothing from the first."""
    async with bench.sandbox() as room, bench.attached(room.spec, epoch=room.spec.epoch) as second:
        place = await bench.place_of(second)
        equal(await room.text("echo first"), "first", "the first handle")
        equal((await place.run(Command(["echo", "second"]))).stdout, b"second\n", "the second handle")


@case(needs=["reattach"])
async def a_wrong_token_is_refused(bench: Bench) -> None:
    """Knowing the id is not enough, and a wrong token takes nothing from the owner."""
    async with bench.sandbox() as room:
        with raises(AgentEnvError, "attaching with another token"):
            await bench.make().attach(room.spec.sandbox_id, epoch=room.spec.epoch + 1, token="another")
        equal(await room.text("echo lives"), "lives", "the owner's next command")


@case("A14", needs=["reattach"])
async def a_new_owner_finds_and_ends_what_the_old_one_left(bench: Bench) -> None:
    """A command whose owner is gone runs on, is told by the ledger with its attempt, and is ended by the new owner."""
    attempt, tag = f"attempt-{secrets.token_hex(4)}", f"tag-{secrets.token_hex(8)}"
    async with bench.sandbox() as room:
        process = await room.place.start(Command(["sh", "-c", "echo up; sleep 600"], attempt=attempt, env={"CASE_TAG": tag}))
        await anext(process.output())
        async with bench.attached(room.spec, epoch=room.spec.epoch + 1) as newer:
            place = await bench.place_of(newer)
            equal([entry.attempt for entry in await room.running(place)], [attempt], "the attempts of what runs")
            holds(await place.stop_attempt(attempt) >= 1, "it was stopped")
            done = await place.run(Command(["sh", "-c", 'grep -l -- "$1" /proc/[0-9]*/environ 2>/dev/null; true', "sh", tag]))
            equal(done.stdout, b"", "what is left of it")


@case("D3", needs=["reattach"])
async def a_command_that_runs_while_its_owner_is_overtaken_gives_no_result(bench: Bench) -> None:
    """Whoever waits for a command when a later owner comes is told so, not given an exit code."""
    async with bench.sandbox() as room:
        waiting = asyncio.ensure_future(room.place.run(Command(["sleep", "600"])))
        await room.text("true")
        async with bench.attached(room.spec, epoch=room.spec.epoch + 1):
            try:
                equal((await waiting).ending, Ending.LOST, "the ending")
            except SupersededError:
                return


@case("A13")
async def two_sandboxes_are_two_identities(bench: Bench) -> None:
    """A token of one opens no other."""
    async with bench.sandbox() as one, bench.sandbox() as two:
        holds(one.place.id != two.place.id, "the places have ids of their own")
        with raises(AgentEnvError, "opening one with the other's token"):
            await bench.make().attach(one.spec.sandbox_id, epoch=2, token=two.spec.token)

"""Life: making, listing and removing sandboxes, also half-made ones, and what a provider says of itself."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
from collections.abc import Sequence

from agent_env.documents.network import NetworkMode, NetworkPolicy
from agent_env.errors import AgentEnvError, PlaceLostError, SandboxNotFoundError, UnsupportedError
from agent_env.places import Shape, Upload
from agent_env.sandboxes.conformance.bench import Bench
from agent_env.sandboxes.conformance.case import Area, equal, holds, raises
from agent_env.sandboxes.contract import Level
from agent_env.waiting import deadline, poll

AREA = Area("life")
case = AREA.case

LIMITS = frozenset({"memory", "processes", "cpu", "disk", "ttl"})
_MOMENTS = (0.0, 0.01, 0.03, 0.1, 0.3)
"""Seconds after which a creation is cut."""


@case()
async def capabilities_are_honest_and_stay(bench: Bench) -> None:
    """Every limit has a level, the shape and users are known words, and asking again gives the same."""
    told = await bench.make().capabilities()
    equal(set(told.limits), LIMITS, "the limits that have a level")
    holds(all(isinstance(level, Level) for level in told.limits.values()), "levels are `hard`, `watched` or `none`")
    holds(told.shape in set(Shape) and told.users in {"one", "many"}, f"shape and users: {told.shape}, {told.users}")
    holds(set(told.egress) <= {mode.value for mode in NetworkMode}, f"network modes are known: {sorted(told.egress)}")
    equal((await bench.make().capabilities()).declared(), told.declared(), "the capabilities of another process")


@case()
async def a_sandbox_that_can_be_made_has_no_problems(bench: Bench) -> None:
    """`problems` is empty for what `create` then makes."""
    equal(list(bench.make().problems(await bench.spec(), await bench.capabilities())), [], "the problems")


@case("LC-15")
async def what_can_not_be_made_is_refused_before_it_exists(bench: Bench) -> None:
    """Another mode and a network policy that can't be held are told by `problems`, refused by `create`, and leave nothing."""
    capabilities = await bench.capabilities()
    wrong = [await bench.spec(mode="no-such-mode")]
    for mode in sorted({mode.value for mode in NetworkMode} - set(capabilities.egress)):
        hosts = ("example.com",) if mode == NetworkMode.ALLOWLIST else ()
        wrong.append(await bench.spec(network=NetworkPolicy(mode=NetworkMode(mode), allow_hosts=hosts)))
    for spec in wrong:
        holds(bench.make().problems(spec, capabilities), f"mode {spec.mode}, network {spec.network} has problems")
        with raises(UnsupportedError, f"creating mode {spec.mode}, network {spec.network}"):
            await bench.make().create(spec)
        equal(await bench.ids(spec.labels), [], "what is left of it")


@case("A3")
async def an_unknown_sandbox_is_not_found(bench: Bench) -> None:
    """A named error for `attach`, and nothing to remove for `destroy`."""
    unknown = f"check-{secrets.token_hex(6)}"
    holds(not await bench.make().destroy(unknown), "there was nothing to remove")
    with raises(SandboxNotFoundError, "attaching to an unknown id"):
        await bench.make().attach(unknown, epoch=1, token="t")


@case("LC-11")
async def an_id_that_exists_is_refused(bench: Bench) -> None:
    """A second sandbox of the same id is an error, and the first one is untouched."""
    async with bench.sandbox() as room:
        with raises(AgentEnvError, "creating an id that exists"):
            await bench.make().create(room.spec)
        equal(await room.text("echo lives"), "lives", "the first sandbox")
        equal(await bench.ids(room.spec.labels), [room.spec.sandbox_id], "what is listed")


@case("A18")
async def a_list_holds_only_what_carries_all_the_labels(bench: Bench) -> None:
    """All labels must match; others' sandboxes are not told."""
    async with bench.sandbox() as room, bench.sandbox() as other:
        equal(await bench.ids(room.spec.labels), [room.spec.sandbox_id], "what carries the labels")
        equal(await bench.ids({**room.spec.labels, "agentenv.run": "another"}), [], "what carries one label only")
        equal(await bench.ids(other.spec.labels), [other.spec.sandbox_id], "the other's")


@case()
async def labels_and_facts_are_kept_whole(bench: Bench) -> None:
    """Labels come back as they were given, and facts are plain data that a journal can keep."""
    async with bench.sandbox() as room:
        listed = [info async for info in bench.make().list(room.spec.labels)]
        for info in (room.sandbox.info, *listed):
            equal(dict(info.labels), dict(room.spec.labels), "the labels")
            holds(info.alive, "it is alive")
        json.dumps(dict(room.sandbox.info.facts), allow_nan=False)
        equal({name: room.place.labels.get(name) for name in room.spec.labels}, dict(room.spec.labels), "the place's labels")


@case("A11", "A12")
async def removing_is_whole_and_can_be_repeated(bench: Bench) -> None:
    """From another handle, twice; afterwards it is in no list and can't be attached to."""
    provider, spec = bench.make(), await bench.spec()
    await (await provider.create(spec)).aclose()
    holds(await bench.make().destroy(spec.sandbox_id), "the first time there is something to remove")
    holds(not await bench.make().destroy(spec.sandbox_id), "the second time there is not")
    equal(await bench.ids(spec.labels), [], "what is listed")
    with raises((SandboxNotFoundError, PlaceLostError), "attaching afterwards"):
        await bench.make().attach(spec.sandbox_id, epoch=2, token=spec.token)


@case("LC-06")
async def removers_at_once_all_succeed(bench: Bench) -> None:
    """Six removers of the same sandbox: no error, and it is gone."""
    spec = await bench.spec()
    await (await bench.make().create(spec)).aclose()
    removed = await asyncio.gather(*(bench.make().destroy(spec.sandbox_id) for _ in range(6)))
    holds(any(removed), "one of them removed it")
    equal(await bench.ids(spec.labels), [], "what is listed")


@case("LC-05")
async def removing_waits_for_no_command(bench: Bench) -> None:
    """A command that ignores SIGTERM does not hold a removal up."""
    async with bench.sandbox() as room:
        await room.sh("(trap '' TERM; while :; do sleep 60; done) >/dev/null 2>&1 &")
        async with deadline(bench.limits.connect_seconds * 2, "removing a sandbox with a stubborn command"):
            holds(await bench.make().destroy(room.spec.sandbox_id), "it was removed")


@case()
async def letting_go_leaves_the_sandbox_running(bench: Bench) -> None:
    """After `aclose`, twice, a command that ran goes on, and the sandbox can be attached to."""
    async with bench.sandbox() as room:
        await room.sh("(while :; do date >> beat; sleep 0.05; done) >/dev/null 2>&1 &")
        beat = room.folder / "beat"
        await room.sandbox.aclose()
        await room.sandbox.aclose()
        async with bench.attached(room.spec, epoch=2) as again:
            place = await bench.place_of(again)
            first = await place.read(beat)

            async def grown() -> bool | None:
                return True if await place.read(beat) != first else None

            await poll(grown, within_seconds=bench.limits.connect_seconds, what="the command's next beat")


@case("D1", "LC-08", patience=3)
async def a_cancelled_creation_leaves_nothing(bench: Bench) -> None:
    """Whenever a creation is cancelled, nothing of it is listed afterwards."""
    for moment in _MOMENTS:
        spec = await bench.spec()
        work = asyncio.ensure_future(bench.make().create(spec))
        await asyncio.wait([work], timeout=moment)
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        if not work.cancelled() and work.exception() is None:
            await work.result().aclose()
            await bench.make().destroy(spec.sandbox_id)
        equal(await bench.ids(spec.labels), [], f"what is left of a creation cut after {moment} s")


@case("D1", "LC-08", needs=["another_process"], patience=4)
async def a_creation_that_was_killed_is_listed_or_absent_and_can_be_removed(bench: Bench) -> None:
    """After `kill -9` of the creating process whatever exists is listed by its labels, and goes whole."""
    for moment in (0.2, 0.4, 0.6, 0.9):
        spec = await bench.spec()
        process = await bench.elsewhere("create", spec, argv=["sleep", "600"])
        await asyncio.wait([asyncio.ensure_future(process.wait())], timeout=moment)
        if process.returncode is None:
            process.kill()
        await process.communicate()
        for sandbox_id in await bench.ids(spec.labels):
            equal(sandbox_id, spec.sandbox_id, "what is listed")
            await bench.make().destroy(sandbox_id)

        async def none_left(labels: dict[str, str] = dict(spec.labels)) -> bool | None:  # noqa: B006 - read only
            late = await bench.ids(labels)  # a machine that was ordered may still arrive
            for sandbox_id in late:
                await bench.make().destroy(sandbox_id)
            return None if late else True

        await poll(none_left, within_seconds=bench.limits.cleanup_seconds, what="the removal of a half-made sandbox")


@case(needs=["machine_backed"])
async def containers_are_had_where_they_are_declared(bench: Bench) -> None:
    """A machine that runs containers has an engine that answers; one that does not refuses by name."""
    async with bench.sandbox() as room:
        if "containers" in await bench.declared():
            await (await room.sandbox.engine()).info()
            return
        with contextlib.suppress(UnsupportedError):  # nothing else may be raised; to have one that was not declared is no fault
            await room.sandbox.engine()


@case("A13", patience=3)
async def sandboxes_at_once_never_mix(bench: Bench) -> None:
    """Five sandboxes made at once have their own files, processes and identities."""

    async def one(number: int) -> tuple[str, Sequence[str]]:
        async with bench.sandbox() as room:
            path = room.folder.parent / "mine"
            await room.place.put([Upload(path, str(number).encode())])
            await room.sh("sleep 600 >/dev/null 2>&1 &", env={"CASE_TAG": f"tag-{number}"})
            ready.append(number)

            async def all_ready() -> bool | None:
                return True if len(ready) == 5 else None

            await poll(all_ready, within_seconds=bench.limits.deploy_seconds, what="the other sandboxes")
            equal(await room.place.read(path), str(number).encode(), "its own file")
            return room.place.id, [entry.argv0 for entry in await room.place.ledger() if entry.running]

    ready: list[int] = []
    found = await asyncio.gather(*(one(number) for number in range(5)))
    equal(len({identity for identity, _ in found}), 5, "how many identities")


@case("A11")
async def removing_one_leaves_the_others(bench: Bench) -> None:
    """Only the named sandbox goes."""
    async with bench.sandbox() as kept:
        spec = await bench.spec()
        await (await bench.make().create(spec)).aclose()
        await bench.make().destroy(spec.sandbox_id)
        equal(await kept.text("echo lives"), "lives", "the other sandbox")

"""F20: what we built is bounded and removed; what others own, use or named is not."""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import replace

import pytest

from agent_env.errors import ImageBuildError
from agent_env.images import ImageReference
from agent_env.images.engine_api import EngineAnswerError
from agent_env.images.ledger import Ledger
from agent_env.images.packing import tar_chunks
from agent_env.images.space import Removal
from tests.images.laboratory import QUICK, Bench


async def three(lab: Bench) -> list[str]:
    """Three images of 2 MB each that share nothing but their base; the first one was used longest ago."""
    images, ids = lab.images(), []
    for number in range(3):
        built = await images.build(lab.request("FROM BASE\nCOPY f /f\n", {"f": os.urandom(2_000_000)}, tag=str(number)))
        ids.append(built.id)
    used = next((lab.root / "state/images/engines").iterdir()) / "used"
    for age, id in enumerate(reversed(ids), start=1):
        moment = 1_700_000_000 - age
        os.utime(used / id.removeprefix("sha256:"), (moment, moment))
    return ids


async def alive(lab: Bench, ids: list[str]) -> list[bool]:
    return [await lab.images().held(id) is not None for id in ids]


async def test_f20_gc_removes_the_least_recently_used_above_the_budget(here) -> None:
    async with here() as lab:
        ids = await three(lab)
        space = await lab.images().space()
        own = await space.own()
        assert [row.image.id for row in own] == ids
        # The engine's own figures: a base that other images share is nobody's to free.
        budget = sum(row.unique_bytes for row in own[1:])
        planned = await space.gc(budget_bytes=budget, dry_run=True)
        assert [row.image.id for row in planned.removed] == ids[:1]
        assert await alive(lab, ids) == [True, True, True]
        done = await space.gc(budget_bytes=budget)
        assert [row.image.id for row in done.removed] == ids[:1]
        assert await alive(lab, ids) == [False, True, True]
        assert await lab.images().held(lab.base) is not None


async def test_f20_what_each_image_holds_alone_is_told_to_all_that_ask_at_once(here) -> None:
    async with here() as lab:
        ids = await three(lab)
        space = await lab.images().space()
        told = await asyncio.gather(*(space.own() for _ in range(6)))
        assert {tuple(row.image.id for row in own) for own in told} == {tuple(ids)}
        base = int((await lab.api.ask("GET", f"images/{lab.base}/json"))["Size"])
        assert all(row.unique_bytes <= row.image.size_bytes - base for own in told for row in own)


async def test_f20_a_build_above_the_budget_makes_room_by_itself_and_spares_what_was_just_used(here) -> None:
    async with here() as lab:
        ids = await three(lab)
        limits = replace(QUICK, image_budget_bytes=1)
        fresh = await lab.images(limits=limits).build(lab.request("FROM BASE\nCOPY f /f\n", {"f": os.urandom(2000)}, tag="fresh"))
        assert await alive(lab, [*ids, fresh.id]) == [False, False, False, True]
        kept = (await (await lab.images(limits=limits).space()).gc()).kept
        assert kept == {fresh.id: "it was used just now"}


async def test_f20_what_is_in_use_or_named_by_somebody_else_is_kept_and_gc_says_why(here) -> None:
    async with here() as lab:
        ids = await three(lab)
        container = await lab.api.ask("POST", "containers/create", json={"Image": ids[0], "Cmd": ["true"]})
        await lab.api.ask("POST", f"images/{ids[1]}/tag", params={"repo": f"{lab.name}-theirs", "tag": "1"})
        done = await (await lab.images().space()).gc(everything=True)
        await lab.api.ask("DELETE", f"containers/{container['Id']}")
        assert [row.image.id for row in done.removed] == ids[2:]
        assert done.kept == {ids[0]: "1 container made from it exist", ids[1]: f"somebody else named it {lab.name}-theirs:1"}
        assert await alive(lab, ids) == [True, True, False]


async def test_f20_images_of_others_and_of_other_installations_are_never_touched(here) -> None:
    async with here() as lab:
        ours = await lab.images().build(lab.request("FROM BASE\nRUN true\n"))
        context = lab.request("FROM BASE\nRUN true\n", tag="foreign")

        async def data():
            yield b"".join(tar_chunks(context.context))

        params = {"rm": "1", "t": f"{lab.name}:foreign", "labels": json.dumps({"dev.agentenv.sources": "ab" * 32})}
        async for _ in lab.api.events("build", seconds=60, params=params, data=data()):
            pass
        theirs = await lab.images(home="another", state=lab.root / "state-another").build(
            lab.request("FROM BASE\nRUN true\n", tag="another")
        )
        await (await lab.images().space()).gc(everything=True)
        assert await lab.images().held(ours.id) is None
        assert await lab.images().held(f"{lab.name}:foreign") is not None
        assert await lab.images().held(theirs.id) is not None
        await (await lab.images(home="another", state=lab.root / "state-another").space()).gc(everything=True)


async def test_layers_of_a_failed_build_go_and_the_steps_of_a_living_image_stay(here) -> None:
    async with here() as lab:
        images = lab.images()
        good = await images.build(lab.request("FROM BASE\nRUN echo shared > /shared\nRUN echo good > /good\n"))
        with pytest.raises(ImageBuildError):
            await images.build(lab.request("FROM BASE\nRUN echo shared > /shared\nRUN echo lost > /lost\nRUN exit 3\n", tag="2"))
        removed = (await (await images.space()).gc()).intermediate
        assert len(removed) == 1
        assert await images.held(good.id) is not None
        assert (await (await images.space()).gc()).intermediate == ()


async def test_what_a_build_ran_in_goes_when_its_engine_was_killed_and_so_could_not_remove_it(here) -> None:
    async with here() as lab:
        good = await lab.images().build(lab.request("FROM BASE\nRUN true\n"))
        (builds,) = (lab.root / "state").rglob("builds")
        ledger = Ledger(builds.parent)
        assert ledger.read(good.sources).running == ()
        made = await lab.api.ask(
            "POST", "containers/create", json={"Image": good.id, "Cmd": ["true"], "Labels": {"agentenv.home": lab.home}}
        )
        ledger.running(good.sources, made["Id"][:12])
        await (await lab.images().space()).gc()
        with pytest.raises(EngineAnswerError):
            await lab.api.ask("GET", f"containers/{made['Id']}/json")
        assert ledger.read(good.sources).running == ()
        assert ledger.read(good.sources).ids == (good.id,)


async def test_an_image_that_is_removed_takes_its_own_steps_with_it_and_the_ledger_forgets(here) -> None:
    async with here() as lab:
        images = lab.images()
        built = await images.build(lab.request("FROM BASE\nRUN echo a > /a\nRUN echo b > /b\n"))
        await images.tag(built, ImageReference.parse(f"{lab.name}:more"))
        await (await images.space()).gc(everything=True)
        assert await images.held(f"{lab.name}:more") is None
        engine = next((lab.root / "state/images/engines").iterdir())
        assert [*(engine / "builds").iterdir()] == [*(engine / "used").iterdir()] == []


async def test_gc_beside_a_build_of_the_same_content_waits_for_nobody_and_breaks_nothing(here) -> None:
    async with here() as lab:
        images = lab.images()
        space = await images.space()
        request = lab.request("FROM BASE\nRUN echo x > /x\nRUN sleep 0.3\nRUN echo y > /y\n")
        build = asyncio.create_task(images.build(request))
        while not build.done():
            await space.gc(everything=True)
        assert (await build).sources == request.sources


async def foreign_build(lab: Bench, dockerfile: str, tag: str | None) -> None:
    """A build by somebody else, straight at the engine."""
    context = lab.request(dockerfile).context

    async def data():
        yield b"".join(tar_chunks(context))

    async for _ in lab.api.events(
        "build", seconds=60, params={"rm": "1", "forcerm": "1", "t": f"{lab.name}:{tag}" if tag else ""}, data=data()
    ):
        pass


async def test_what_others_make_from_our_image_inherits_its_labels_and_is_theirs_all_the_same(here) -> None:
    async with here() as lab:
        images = lab.images()
        request = lab.request("FROM BASE\nRUN date +%s%N > /when\n")
        ours = await images.build(request)
        await foreign_build(lab, f"FROM {lab.name}:1\nRUN echo theirs > /theirs\n", "theirs")
        with pytest.raises(EngineAnswerError):
            await foreign_build(lab, f"FROM {lab.name}:1\nRUN echo dangling > /dangling\nRUN exit 1\n", None)
        theirs = await images.held(f"{lab.name}:theirs")
        assert theirs is not None
        assert theirs.sources == ours.sources
        assert (await images.build(request)).id == ours.id
        assert [row.image.id for row in await (await images.space()).own()] == [ours.id]
        done = await (await images.space()).gc(everything=True)
        assert done.removed == ()
        assert "made from it" in done.kept[ours.id]
        assert (await images.held(f"{lab.name}:1")) == ours
        assert (await images.held(f"{lab.name}:theirs")) == theirs


async def test_a_container_that_somebody_makes_from_our_image_is_not_taken_for_ours(here) -> None:
    async with here() as lab:
        await lab.images().build(lab.request("FROM BASE\nRUN true\n"))
        made = await lab.api.ask("POST", "containers/create", json={"Image": f"{lab.name}:1"})
        facts = await lab.api.ask("GET", f"containers/{made['Id']}/json")
        await lab.api.ask("DELETE", f"containers/{made['Id']}")
        assert not [label for label in facts["Config"]["Labels"] if label.startswith("agentenv.")]


async def test_an_image_whose_build_was_killed_at_its_very_end_is_still_ours(here) -> None:
    async with here() as lab:
        images = lab.images()
        built = await images.build(lab.request("FROM BASE\nRUN date +%s%N > /when\n"))
        record = next((lab.root / "state/images/engines").glob("*/builds/*"))
        facts = json.loads(record.read_text())
        record.write_text(json.dumps({**facts, "ids": []}))
        assert [row.image.id for row in (await (await images.space()).gc(everything=True)).removed] == [built.id]


def told(removal: Removal) -> tuple[list[str], list[str], dict[str, str]]:
    """What goes and what stays. What an image alone holds is another matter: others may build upon the same base meanwhile."""
    return [row.image.id for row in removal.removed], sorted(removal.intermediate), dict(removal.kept)


async def test_f20_a_dry_run_says_what_the_collection_then_does(here) -> None:
    """Failed builds that share layers with living ones and with each other; containers; names of others; layers below removed images."""
    async with here() as lab:
        images, space = lab.images(), await lab.images().space()
        shared = "FROM BASE\nRUN echo shared > /shared\n"
        living = await images.build(lab.request(f"{shared}RUN echo living > /living\n"))
        for number in ("2", "3"):
            with pytest.raises(ImageBuildError):
                await images.build(lab.request(f"{shared}RUN echo a > /a\nRUN echo {number} > /n\nRUN exit 3\n", tag=number))
        named = await images.build(lab.request(f"{shared}RUN echo named > /named\nRUN true\n", tag="4"))
        await lab.api.ask("POST", f"images/{named.id}/tag", params={"repo": f"{lab.name}-theirs", "tag": "1"})
        await images.build(lab.request("FROM BASE\nRUN echo alone > /one\nRUN echo alone > /two\n", tag="5"))
        container = await lab.api.ask("POST", "containers/create", json={"Image": living.id, "Cmd": ["true"]})
        try:
            for options in ({}, {"budget_bytes": 0}, {"everything": True}):
                planned = await space.gc(dry_run=True, **options)
                assert told(planned) == told(await space.gc(dry_run=True, **options)), "a dry run changes nothing"
                done = await space.gc(**options)
                assert told(planned) == told(done), options
                again = await space.gc(**options)
                assert (again.removed, again.intermediate) == ((), ()), options
        finally:
            await lab.api.ask("DELETE", f"containers/{container['Id']}")
            await lab.api.ask("DELETE", f"images/{lab.name}-theirs:1")
        assert done.kept == {living.id: "1 container made from it exist", named.id: f"somebody else named it {lab.name}-theirs:1"}
        await space.gc(everything=True)
        assert await space.own() == []
        assert (await space.gc(dry_run=True, everything=True)).intermediate == ()

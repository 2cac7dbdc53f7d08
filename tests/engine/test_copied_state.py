"""A copied state folder never uses or removes what the original has made; a moved one goes on owning it."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from agent_env.engine import teardown_run
from agent_env.engine.gc import Claim
from agent_env.errors import PlaceLostError, PlacementError, UserError
from agent_env.sandboxes.confined.records import Facts, Records
from agent_env.sandboxes.local.provider import LocalProvider
from agent_env.stores.identity import identity_of
from agent_env.stores.installation import InstallationKey
from tests.engine.parts import marks, run, started
from tests.engine.test_teardown import Toy, Toys, toy_box


def copied(root, to):
    subprocess.run(["cp", "-a", root, to], check=True)
    return to


def at(root, toy, database=None):
    """An engine whose run database is in its state folder, or elsewhere."""
    return Toys(root, toy, database=database or root / "runs.db")


async def kept(root, toy, database=None):
    """A run whose sandbox was left on purpose."""
    async with at(root, toy, database) as engine:
        return await started(engine, [toy_box("local")], keep=True)


def test_a_copy_touches_nothing_that_the_original_has_made_and_says_where_that_is(tmp_path):
    async def whole():
        toy = Toy("local")
        first = await kept(tmp_path / "one", toy)
        (sandbox_id,) = toy.alive
        async with at(copied(tmp_path / "one", tmp_path / "two"), toy) as copy:
            run_id, journal = first.run_id, copy.stores.journal
            for report in (await copy.teardown(run_id), await copy.teardown_context(first.context), await copy.teardown(run_id)):
                assert (report.clean, report.removed, list(report.elsewhere)) == (False, (), [sandbox_id])
                assert report.to_json()["elsewhere"][sandbox_id]["path"] == str(tmp_path / "one")
                assert f"{tmp_path / 'one'} agent-env runs teardown {run_id}" in report.elsewhere[sandbox_id].remedy(run_id)
            for collected in (await copy.gc(include_kept=True, dry_run=True), await copy.gc(include_kept=True)):
                assert (collected.clean, collected.sandboxes.removed) == (True, ())
                assert collected.left == {sandbox_id: Claim.ELSEWHERE}
            with pytest.raises(PlaceLostError, match=r"belongs to the installation in .*one, of which this state folder is a copy"):
                await copy.place_of_run(run_id)
            with pytest.raises(PlacementError, match="of which this state folder is a copy"):
                await started(copy, [toy_box("local"), {"id": "look", "type": "t_look"}], start_step=1, context=first.context)
            journal.delete_run(run_id, spared=copy.installation.ownership.is_only_copied)
        assert list(toy.alive) == [sandbox_id]
        assert "destroy" not in toy.calls
        async with at(tmp_path / "one", toy) as original:
            assert (await original.teardown(first.run_id)).removed == (sandbox_id,)

    run(whole())


def test_a_resume_in_a_copy_takes_the_originals_places_as_lost_and_makes_its_own(tmp_path):
    async def whole():
        toy, log = Toy("local"), tmp_path / "log"
        steps = [
            {"id": "free", "type": "t_note", "log": str(log), "depends_on": []},
            toy_box("local", depends_on=[]),
            {"id": "b", "type": "t_note", "log": str(log), "fails": 1, "depends_on": ["box"]},
        ]
        async with at(tmp_path / "one", toy) as engine:
            first = await started(engine, steps, pause_on_failure=True)
        (theirs,) = toy.alive
        async with at(copied(tmp_path / "one", tmp_path / "two"), toy) as copy:
            with pytest.raises(PlaceLostError, match=r"can't be used here.*belongs to the installation in") as lost:
                await copy.resume(first.run_id)
            assert lost.value.hint == f"agent-env resume {first.run_id} --redeploy does again: box, b"
            second = await copy.resume(first.run_id, redeploy=True, keep=True)
            assert second.status == "completed"
            assert sorted(marks(log)) == ["b", "b", "free"]
            (ours,) = set(toy.alive) - {theirs}
            assert "destroy" not in toy.calls
            report = await copy.teardown(first.run_id)
            assert (report.removed, list(report.elsewhere)) == ((ours,), [theirs])
        async with at(tmp_path / "one", toy) as original:
            assert (await original.resume(first.run_id)).teardown.removed == (theirs,)
        assert toy.alive == {}

    run(whole())


def test_a_run_of_a_copy_removes_its_own_places_when_it_ends(tmp_path):
    async def whole():
        toy = Toy("local")
        await kept(tmp_path / "one", toy)
        async with at(copied(tmp_path / "one", tmp_path / "two"), toy) as copy:
            assert (await started(copy, [toy_box("local")])).teardown.clean
        assert len(toy.alive) == 1

    run(whole())


@pytest.mark.parametrize("how", ["gc", "teardown"])
def test_a_moved_state_folder_owns_its_places(tmp_path, how):
    async def whole():
        toy = Toy("local")
        first = await kept(tmp_path / "one", toy)
        (tmp_path / "one").rename(tmp_path / "two")
        async with at(tmp_path / "two", toy) as moved:
            report = (await moved.gc(include_kept=True)).sandboxes if how == "gc" else await moved.teardown(first.run_id)
        assert (len(report.removed), report.elsewhere, toy.alive) == (1, {}, {})

    run(whole())


def test_when_the_original_is_gone_for_good_its_places_can_be_removed_by_the_context(tmp_path):
    async def whole():
        toy = Toy("local")
        first = await kept(tmp_path / "one", toy)
        async with at(copied(tmp_path / "one", tmp_path / "two"), toy) as copy:
            shutil.rmtree(tmp_path / "one")
            (elsewhere,) = (await copy.teardown(first.run_id)).elsewhere.values()
            assert "which was in" in elsewhere.why
            assert f"runs show {first.run_id} --context" in elsewhere.remedy(first.run_id)
            assert len((await copy.teardown_context(first.context)).removed) == 1
            assert (await copy.teardown(first.run_id)).clean
        assert toy.alive == {}

    run(whole())


def test_a_copy_on_the_same_database_leaves_what_is_recorded_there_too(tmp_path):
    async def whole():
        toy, shared = Toy("local"), tmp_path / "runs.db"
        first = await kept(tmp_path / "one", toy, shared)
        async with at(copied(tmp_path / "one", tmp_path / "two"), toy, shared) as copy:
            assert not (await copy.teardown(first.run_id)).clean
            with pytest.raises(UserError, match="still has sandbox box"):
                copy.stores.journal.delete_run(first.run_id, spared=copy.installation.ownership.is_only_copied)
        async with at(tmp_path / "one", toy, shared) as original:
            assert (await original.gc()).left == dict.fromkeys(toy.alive, Claim.KEPT)

    run(whole())


def test_installations_that_share_a_database_remove_each_others_places_as_they_always_could(tmp_path):
    async def whole():
        toy, shared = Toy("local"), tmp_path / "runs.db"
        first = await kept(tmp_path / "one", toy, shared)
        async with at(tmp_path / "two", toy, shared) as other:
            assert len((await other.teardown(first.run_id)).removed) == 1

    run(whole())


@pytest.mark.parametrize("used", ["where it is", "copied"])
def test_a_state_folder_from_before_there_were_identities_owns_its_places_and_a_copy_of_it_does_not(tmp_path, used):
    async def whole():
        toy = Toy("local")
        InstallationKey(tmp_path / "one").derive("run", "name")
        (tmp_path / "one/installation.json").unlink()
        first = await kept(tmp_path / "one", toy)
        (tmp_path / "one/installation.json").unlink()
        root = tmp_path / "one" if used == "where it is" else copied(tmp_path / "one", tmp_path / "two")
        async with at(root, toy) as engine:
            report = await engine.teardown(first.run_id)
        assert (len(report.removed), len(report.elsewhere), len(toy.alive)) == ((1, 0, 0) if used == "where it is" else (0, 1, 1))

    run(whole())


def test_the_public_function_leaves_what_a_copied_record_names_to_the_original(tmp_path, monkeypatch):
    async def whole():
        home = identity_of(tmp_path / "one").home
        facts = Facts("local-theirs", str(tmp_path / "work"), labels={"agentenv.home": home})
        Records(tmp_path / "one").open(facts)
        copied(tmp_path / "one", tmp_path / "two")
        provider = LocalProvider(tmp_path / "two", environ={"AGENT_ENV_LOCAL_SANDBOX_DIR": str(tmp_path / "sandboxes")})
        context = {"deployed_sandboxes": [{"sandbox_id": facts.sandbox_id, "sandbox_type": "local"}]}
        report = await teardown_run(context, providers=lambda _: provider)
        await provider.aclose()
        assert "of which this state folder is a copy" in report.failed[facts.sandbox_id]
        assert Records(tmp_path / "two").read(facts.sandbox_id) == facts

    run(whole())

"""Teardown and collection: driven by what was recorded, bounded, idempotent, only ours, never a live run's."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field, replace

import pytest

from agent_env.artifacts import Artifacts
from agent_env.documents.network import NetworkPolicy
from agent_env.engine import Engine, Stores, teardown_run
from agent_env.engine.installation import HOME_LABEL
from agent_env.errors import DeadlineError, InfrastructureError, PlaceLostError, PlacementError
from agent_env.places import Published, Shape
from agent_env.sandboxes.contract import Capabilities, SandboxInfo
from agent_env.stores.opening import open_memory
from tests.busy import lasting, within
from tests.engine.child import child, finished, start, until_marked
from tests.engine.parts import config_at, engine_at, planned, register, run, started

BOX = {"id": "box", "type": "t_deploy", "provider": "local"}
RUN = "run-teardown0001"


class Toy:
    """A provider of sandboxes that are nothing but names; it fails and hangs where a test says so."""

    def __init__(self, name="toy", *, fails=(), hangs=()):
        self.name, self.fails, self.hangs = name, set(fails), set(hangs)
        self.alive: dict[str, dict[str, str]] = {}
        self.calls: list[str] = []
        self.creating = asyncio.Event()

    async def _does(self, verb):
        self.calls.append(verb)
        if verb in self.hangs:
            await asyncio.Event().wait()
        if verb in self.fails:
            raise InfrastructureError(f"{self.name} can't {verb}")

    async def capabilities(self):
        await self._does("capabilities")
        return Capabilities(Shape.MACHINE_BACKED, frozenset({"allow_all"}))

    def problems(self, spec, capabilities):
        return ["no such thing here"] if "problems" in self.fails else []

    async def create(self, spec):
        self.alive[spec.sandbox_id] = dict(spec.labels)
        self.creating.set()
        await self._does("create")
        return ToySandbox(SandboxInfo(spec.sandbox_id, spec.labels, alive=True))

    async def attach(self, sandbox_id, *, epoch, token):
        await self._does("attach")
        return ToySandbox(SandboxInfo(sandbox_id, self.alive[sandbox_id], alive=True))

    async def destroy(self, sandbox_id):
        await self._does("destroy")
        return self.alive.pop(sandbox_id, None) is not None

    async def list(self, labels):
        for sandbox_id, own in list(self.alive.items()):
            if labels.items() <= own.items():
                yield SandboxInfo(sandbox_id, own, alive=True)

    async def aclose(self):
        pass


@dataclass
class ToySandbox:
    info: SandboxInfo
    levels: dict = field(default_factory=dict)
    published: Published = field(default_factory=Published)
    network: NetworkPolicy = field(default_factory=NetworkPolicy)

    async def aclose(self):
        pass


class Toys:
    """An engine whose providers are toys."""

    def __init__(self, root, *toys, database=None, **limits):
        self.root, self.toys, self.limits = root, {toy.name: toy for toy in toys}, limits
        self.database = database

    async def __aenter__(self):
        register()
        config = config_at(self.root, **self.limits)
        if self.database is not None:
            config = replace(config, database_url=f"sqlite:///{self.database}")
        self._memory = open_memory(config)
        memory = self._memory.__enter__()
        artifacts = Artifacts(memory.documents, memory.objects)
        stores = Stores(memory.db, memory.documents, memory.objects, memory.journal, memory.secrets, artifacts)
        self.engine = Engine(stores, self.toys.__getitem__, config=config)
        return self.engine

    async def __aexit__(self, *failure):
        await self.engine.aclose()
        self._memory.__exit__(*failure)


def toy_box(provider, **more):
    return {"id": "box", "type": "t_deploy", "provider": provider, **more}


@pytest.mark.parametrize("verb", ["create"])
def test_f2_a_creation_that_fails_leaves_nothing_and_closes_its_row(tmp_path, verb):
    async def whole():
        toy = Toy(fails={verb})
        async with Toys(tmp_path, toy) as engine:
            outcome = await started(engine, [toy_box("toy")])
            assert outcome.error["code"] == "infrastructure"
            assert toy.alive == {}
            assert {row.state for row in engine.stores.journal.resources()} == {"closed"}

    run(whole())


@pytest.mark.parametrize("verb", ["capabilities", "create"])
def test_f8_a_provider_that_never_answers_meets_the_outer_deadline(tmp_path, verb):
    async def whole():
        toy = Toy(hangs={verb})
        async with Toys(tmp_path, toy, deploy_seconds=0.1) as engine:
            async with asyncio.timeout(within(2.1)):
                outcome = await started(engine, [toy_box("toy")])
            assert outcome.error["code"] == "deadline"
            assert toy.alive == {}

    run(whole())


def test_f5_a_removal_that_hangs_is_bounded_and_reported_and_tried_again_later(tmp_path):
    async def whole():
        toy, other = Toy(hangs={"destroy"}), Toy("local")
        limit = lasting(0.1)
        async with Toys(tmp_path, toy, other, teardown_seconds=limit) as engine:
            steps = [toy_box("toy"), {"id": "second", "type": "t_deploy", "provider": "local"}]
            async with asyncio.timeout(within(3) + limit):
                outcome = await started(engine, steps)
            assert outcome.status == "completed"
            ((sandbox_id, why),) = outcome.teardown.failed.items()
            assert f"did not end within {limit:g} s" in why
            assert len(outcome.teardown.removed) == 1
            toy.hangs.clear()
            report = await engine.gc()
            assert report.sandboxes.removed == (sandbox_id,)
            assert toy.alive == {}

    run(whole())


def test_a_chain_goes_on_to_the_next_provider_and_the_last_failure_is_the_error(tmp_path):
    async def whole():
        unable, broken, good = Toy("unable", fails={"problems"}), Toy("broken", fails={"create"}), Toy("good")
        async with Toys(tmp_path, unable, broken, good) as engine:
            outcome = await started(engine, [toy_box("unable, broken ,good")], keep=True)
            (record,) = outcome.context["deployed_sandboxes"]
            assert record["sandbox_type"] == "good"
            assert list(good.alive) == [record["sandbox_id"]]
            assert not broken.alive
            outcome = await started(engine, [toy_box("unable")])
            assert outcome.error["code"] == "unsupported"
            assert "no such thing here" in outcome.error["message"]

    run(whole())


def test_cancelling_a_creation_leaves_nothing(tmp_path):
    async def whole():
        toy = Toy(hangs={"create"})
        async with Toys(tmp_path, toy) as engine:
            async with asyncio.TaskGroup() as group:
                task = group.create_task(started(engine, [toy_box("toy")]))
                await toy.creating.wait()
                (made,) = [run.run_id for run in engine.stores.journal.list_runs()]
                await engine.cancel(made)
            assert task.result().status == "cancelled"
            assert toy.alive == {}

    run(whole())


def test_a12_teardown_works_in_a_fresh_process_twice_and_with_an_empty_database(tmp_path):
    answer = child(tmp_path / "state", "run", [BOX], run_id=RUN, keep=True)
    assert answer is not None

    async def context_of():
        async with engine_at(tmp_path / "state") as engine:
            return json.loads(json.dumps(engine.context(RUN)))

    context = run(context_of())
    (sandbox,) = context["deployed_sandboxes"]
    elsewhere = child(tmp_path / "other", "teardown_context", context)
    assert elsewhere == {"removed": [sandbox["sandbox_id"]], "absent": [], "failed": {}, "left": [], "elsewhere": {}}
    again = child(tmp_path / "state", "teardown", RUN)
    assert again is not None
    assert [*again["removed"], *again["absent"]] == [sandbox["sandbox_id"]]
    assert child(tmp_path / "state", "teardown", RUN) == {"removed": [], "absent": [], "failed": {}, "left": [], "elsewhere": {}}


def test_a12_the_public_function_takes_a_context_alone():
    async def whole():
        toy = Toy()
        toy.alive = {name: {} for name in ("a", "b", "c", "d", "e", "gone")}
        context = {
            "deployed_sandboxes": [{"sandbox_id": "a", "sandbox_type": "toy"}, {"sandbox_id": "gone", "sandbox_type": "toy"}],
            "deployed_envs": [{"sandbox_id": "b", "sandbox_type": "toy", "sandbox_ids": {"x": "c", "y": {"z": "d"}}}],
            "deployed_agents": [{"sandbox_id": "a", "sandbox_type": "toy"}, {"agent_name": "elsewhere"}],
            "metadata": {
                "torn_down_sandbox_ids": ["gone"],
                "retry_resets": [{"rolled_back_sandboxes": {"deployed_sandboxes": [{"sandbox_id": "e", "sandbox_type": "toy"}]}}],
            },
        }
        report = await teardown_run(context, providers={"toy": toy}.__getitem__)
        assert sorted(report.removed) == ["a", "b", "c", "d", "e"]
        assert list(toy.alive) == ["gone"]

    run(whole())


class Hosting(Toy):
    """One of its sandboxes can't go while another, which is slow to go, is still there."""

    def __init__(self):
        super().__init__()
        self.refused = asyncio.Event()

    async def destroy(self, sandbox_id):
        self.calls.append(sandbox_id)
        if sandbox_id == "guest":
            await self.refused.wait()
        elif "guest" in self.alive:
            self.refused.set()
            raise InfrastructureError("its network has active endpoints")
        return self.alive.pop(sandbox_id, None) is not None


def test_what_another_sandbox_keeps_is_removed_once_that_is_gone():
    async def whole():
        toy = Hosting()
        toy.alive = {name: {} for name in ("host", "guest")}
        context = {"deployed_sandboxes": [{"sandbox_id": name, "sandbox_type": "toy"} for name in toy.alive]}
        report = await teardown_run(context, providers={"toy": toy}.__getitem__)
        assert (sorted(report.removed), report.failed) == (["guest", "host"], {})
        assert toy.calls == ["host", "guest", "host"]

    run(whole())


def test_what_can_not_be_removed_is_not_asked_for_for_ever():
    async def whole():
        toy = Toy(fails={"destroy"})
        toy.alive = {name: {} for name in ("a", "b")}
        context = {"deployed_sandboxes": [{"sandbox_id": name, "sandbox_type": "toy"} for name in toy.alive]}
        report = await teardown_run(context, providers={"toy": toy}.__getitem__)
        assert (report.removed, sorted(report.failed)) == ((), ["a", "b"])
        assert toy.calls == ["destroy"] * 4

    run(whole())


class Faltering(Toy):
    """Fails once, by itself or because it took all of its time."""

    def __init__(self, how):
        super().__init__()
        self.how = how

    async def destroy(self, sandbox_id):
        self.calls.append(sandbox_id)
        if len(self.calls) == 1:
            raise self.how("for a moment")
        return self.alive.pop(sandbox_id, None) is not None


@pytest.mark.parametrize(("how", "tried"), [(InfrastructureError, 2), (DeadlineError, 1)])
def test_a_removal_that_fails_for_a_moment_is_tried_again_and_one_that_took_all_of_its_time_is_not(how, tried):
    async def whole():
        toy = Faltering(how)
        toy.alive = {"only": {}}
        context = {"deployed_sandboxes": [{"sandbox_id": "only", "sandbox_type": "toy"}]}
        report = await teardown_run(context, providers={"toy": toy}.__getitem__)
        assert (len(toy.calls), report.clean) == (tried, tried == 2)

    run(whole())


def test_lc08_collection_removes_what_a_dead_process_left_and_spares_a_live_run(tmp_path):
    log = tmp_path / "log"
    hold = [BOX, {"id": "hold", "type": "t_hold", "log": str(log)}]
    dead = start(tmp_path / "state", "run", hold)
    until_marked(log, ["hold"], dead)
    live = start(tmp_path / "state", "run", hold)
    until_marked(log, ["hold", "hold"], live)
    dead.kill()
    dead.wait()

    async def whole():
        async with engine_at(tmp_path / "state") as engine:
            rows = engine.stores.journal.resources()
            assert (await engine.gc()).sandboxes.removed == ()
            foreseen = await engine.gc(dry_run=True, include_kept=True)
            report = await engine.gc(include_kept=True)
            assert foreseen.sandboxes.removed == report.sandboxes.removed
            assert len(report.sandboxes.removed) == len(report.kept) == 1
            assert {*report.sandboxes.removed, *report.kept} == {row.id for row in rows}
            assert report.clean
            owned = [row.run_id for row in rows if row.id in report.kept]
            await engine.cancel(owned[0])
            assert set(json.loads(json.dumps(report.to_json()))) == {
                "dry_run",
                "sandboxes",
                "folders",
                "objects",
                "images",
                "kept",
                "left",
                "unreachable",
            }

    run(whole())
    answer = finished(live)
    assert answer is not None
    assert answer["status"] == "cancelled"


def test_a18_collection_of_one_installation_leaves_the_others(tmp_path):
    async def whole():
        toy = Toy("local")
        async with Toys(tmp_path / "one", toy) as one, Toys(tmp_path / "two", toy) as two:
            first = await started(one, [toy_box("local")], keep=True)
            await started(two, [toy_box("local")], keep=True)
            assert len({labels[HOME_LABEL] for labels in toy.alive.values()}) == 2
            report = await one.gc(include_kept=True)
            assert report.sandboxes.removed == (first.context["deployed_sandboxes"][0]["sandbox_id"],)
            assert len(toy.alive) == 1

    run(whole())


def test_what_was_kept_on_purpose_stays_until_it_expires_or_is_asked_for(tmp_path):
    async def whole():
        toy = Toy("local")
        async with Toys(tmp_path, toy) as engine:
            await started(engine, [toy_box("local")], keep=True)
            assert (await engine.gc()).sandboxes.removed == ()
            assert len((await engine.gc(include_kept=True)).sandboxes.removed) == 1

    run(whole())


def test_d1_what_a_provider_made_and_no_row_knows_is_found_by_its_label(tmp_path):
    async def whole():
        toy = Toy("local")
        async with Toys(tmp_path, toy) as engine:
            toy.alive["local-stray"] = {HOME_LABEL: engine.installation.home}
            toy.alive["local-foreign"] = {HOME_LABEL: "someone-else"}
            assert (await engine.gc()).sandboxes.removed == ("local-stray",)
            assert list(toy.alive) == ["local-foreign"]

    run(whole())


def test_a14_a_context_is_adopted_by_label_where_the_database_that_knew_it_is_gone(tmp_path):
    async def whole():
        toy = Toy("local")
        steps = [toy_box("local"), {"id": "look", "type": "t_look"}]
        async with Toys(tmp_path / "one", toy) as engine:
            first = await started(engine, steps, keep=True)
        (sandbox_id,) = toy.alive
        async with Toys(tmp_path / "two", toy) as stranger:
            with pytest.raises(PlacementError, match="another installation"):
                await started(stranger, steps, start_step=1, context=first.context)
        async with Toys(tmp_path / "one", toy, database=tmp_path / "empty.db") as engine:
            second = await started(engine, steps, start_step=1, context=first.context)
            assert second.teardown.removed == (sandbox_id,)
            with pytest.raises(PlaceLostError, match="does not exist"):
                await started(engine, steps, start_step=1, context={**first.context, "deployed_sandboxes": [_renamed(first)]})

    run(whole())


def _renamed(outcome):
    return {**outcome.context["deployed_sandboxes"][0], "sandbox_id": "local-000000000000"}


def test_a_sandbox_that_no_provider_of_its_chain_can_make_is_known_before_anything_starts(tmp_path):
    async def whole():
        unable, good = Toy("unable", fails={"problems"}), Toy("good")
        async with Toys(tmp_path, unable, good) as engine:
            box = {"id": "box", "type": "deploy_sandbox", "sandbox_name": "box", "sandbox_mode": "vm"}

            async def found(provider, **overrides):
                return (await engine.preflight({"demo.json": planned(engine, [{**box, "sandbox_type": provider}])}, overrides)).problems

            (problem,) = await found("unable")
            assert (problem.file, problem.path) == ("demo.json", "$[0]")
            assert "unable: no such thing here" in problem.message
            assert await found("unable,good") == []
            assert len(await found("good", sandbox="unable")) == 1
            assert not good.alive

    run(whole())

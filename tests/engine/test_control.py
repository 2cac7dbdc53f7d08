"""Watching, cancelling and deciding from another process, without polling."""

from __future__ import annotations

import asyncio
import json
import stat
from contextlib import closing

import pytest

from agent_env.engine import control
from agent_env.engine.control import run_folder
from agent_env.errors import ConcurrentModificationError, InfrastructureError, NotFoundError
from agent_env.stores import handover
from agent_env.waiting import poll
from tests.engine.child import child, finished, start, until_marked
from tests.engine.parts import LIMITS, Watcher, engine_at, marks, run, started

RUN = "run-control00001"


def hold(log):
    return [{"id": "hold", "type": "t_hold", "log": str(log)}, {"id": "clean", "type": "t_note", "log": str(log), "always_run": True}]


def test_events_of_a_run_in_another_process_come_live_and_whole(tmp_path):
    log = tmp_path / "log"
    owner = start(tmp_path / "state", "run", hold(log), run_id=RUN)
    until_marked(log, ["hold"], owner)

    async def whole():
        async with engine_at(tmp_path / "state") as engine:
            seen = []
            async for event in engine.events(RUN):
                seen.append(event)
                if event.kind == "step_progress":
                    assert await engine.cancel(RUN, by="a test")
            assert [event.seq for event in seen] == list(range(1, len(seen) + 1))
            assert [event.kind for event in seen][-2:] == ["run_finished", "teardown"]
            assert engine.stores.journal.run(RUN).error["message"] == "cancelled by a test"
            again = [event.seq async for event in engine.events(RUN, after=3)]
            assert again == list(range(4, len(seen) + 1))

    run(whole())
    assert finished(owner)["status"] == "cancelled"
    assert marks(log) == ["hold", "clean"]


def test_the_socket_and_its_folder_are_the_users_alone_also_below_a_very_long_path(tmp_path):
    async def whole():
        state = tmp_path / ("long-" * 30)
        async with engine_at(state) as engine:
            watcher = Watcher()
            async with asyncio.TaskGroup() as group:
                task = group.create_task(started(engine, hold(tmp_path / "log"), observer=watcher))
                begun = await watcher.until("step_progress")
                folder = run_folder(state, begun.run_id)
                answer = await poll(lambda: control.ask(folder, {"do": "cancel"}, limits=LIMITS), within_seconds=60, what="the socket")
                assert answer == {"ok": True, "insisted": False}
                assert stat.S_IMODE((folder / control.SOCKET_NAME).stat().st_mode) == 0o600
                assert stat.S_IMODE(folder.stat().st_mode) == 0o700
            assert task.result().status == "cancelled"
            assert not (folder / control.SOCKET_NAME).exists()

    run(whole())


def test_bad_requests_are_answered_and_harm_nothing(tmp_path):
    async def whole():
        async def handle(request):
            if request.get("do") == "explode":
                raise NotFoundError("no such thing")
            yield {"ok": True}

        folder = tmp_path / "run"
        async with control.listening(folder, handle, limits=LIMITS):
            with pytest.raises(InfrastructureError, match="no such thing"):
                await control.ask(folder, {"do": "explode"}, limits=LIMITS)
            reader, writer = await asyncio.open_unix_connection(sock=control._connected(folder))
            for line in (b"not json\n", b"[1]\n", b'{"do": "x"}\n'):
                writer.write(line)
            answers = [json.loads(await reader.readline()) for _ in range(3)]
            assert [answer.get("error", {}).get("code") for answer in answers] == ["usage", "usage", None]
            writer.close()
        assert await control.ask(folder, {"do": "cancel"}, limits=LIMITS) is None

    run(whole())


def test_a_cancellation_that_only_reached_the_database_is_seen_at_the_next_renewal(tmp_path):
    async def whole():
        async with engine_at(tmp_path / "state", lease_renew_seconds=0.05, control_delay_seconds=600.0) as engine:
            watcher = Watcher()
            async with asyncio.TaskGroup() as group:
                task = group.create_task(started(engine, hold(tmp_path / "log"), observer=watcher))
                begun = await watcher.until("step_progress")
                await handover.ask_to_stop(engine.stores.db, begun.run_id, "somebody")
            assert task.result().error["message"] == "cancelled by somebody"

    run(whole())


def test_the_socket_of_a_killed_owner_goes_also_when_its_run_is_over_before_it_opens_one(tmp_path):
    async def whole():
        async with engine_at(tmp_path / "state", control_delay_seconds=600.0) as engine:
            folder = run_folder(tmp_path / "state", RUN)
            with closing(control._bound(folder)):
                pass
            assert control.is_open(folder)
            await started(engine, [{"id": "one", "type": "t_note", "log": str(tmp_path / "log")}], run_id=RUN)
            assert not control.is_open(folder)

    run(whole())


def test_cancelling_a_run_whose_owner_is_dead_marks_it_and_removes_its_places(tmp_path):
    log = tmp_path / "log"
    steps = [{"id": "box", "type": "t_deploy", "provider": "local"}, {"id": "die", "type": "t_die", "log": str(log)}]
    assert child(tmp_path / "state", "run", steps, run_id=RUN) is None

    async def whole():
        async with engine_at(tmp_path / "state") as engine:
            assert await engine.cancel(RUN)
            assert engine.stores.journal.run(RUN).status == "cancelled"
            assert [row.state for row in engine.stores.journal.resources(RUN)] == ["closed"]

    run(whole())


def test_cancelling_a_run_whose_places_do_not_go_in_time_says_which_and_a_teardown_removes_them(tmp_path):
    steps = [{"id": "box", "type": "t_deploy", "provider": "local"}, {"id": "die", "type": "t_die", "log": str(tmp_path / "log")}]
    assert child(tmp_path / "state", "run", steps, run_id=RUN) is None

    async def whole():
        async with engine_at(tmp_path / "state", teardown_seconds=1e-6) as engine:
            (box,) = engine.stores.journal.resources(RUN)
            with pytest.raises(InfrastructureError, match=box.id):
                await engine.cancel(RUN)
            assert engine.stores.journal.run(RUN).status == "cancelled"
        async with engine_at(tmp_path / "state") as engine:
            assert (await engine.teardown(RUN)).clean
            assert [row.state for row in engine.stores.journal.resources(RUN)] == ["closed"]

    run(whole())


@pytest.mark.parametrize("decision", ["continue", "abort"])
def test_a_review_is_decided_from_outside_and_the_run_goes_on_at_once(tmp_path, decision):
    async def whole():
        async with engine_at(tmp_path / "state") as engine:
            watcher = Watcher()
            steps = [{"id": "ask", "type": "review", "label": "good?"}, {"id": "a", "type": "t_note", "log": str(tmp_path / "log")}]
            async with asyncio.TaskGroup() as group:
                task = group.create_task(started(engine, steps, observer=watcher))
                event = await watcher.until("review_asked", "ask")
                with pytest.raises(NotFoundError):
                    await engine.decide(event.run_id, "a", decision, "someone")
                await engine.decide(event.run_id, "ask", decision, "someone")
            outcome = task.result()
            if decision == "continue":
                assert outcome.context["metadata"]["review_decisions"]["ask"] == {"decision": "continue", "decided_by": "someone"}
            else:
                assert outcome.error["code"] == "review_aborted"
                assert marks(tmp_path / "log") == []
            with pytest.raises(ConcurrentModificationError, match="someone"):
                await engine.decide(event.run_id, "ask", decision, "another")

    run(whole())

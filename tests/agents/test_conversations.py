"""Turns with real A2A servers of this process: each ending by its name, and one piece of work for one message, whatever the wire does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest
from agent_env_sdk.agent.scripted import Scripted
from starlette.responses import JSONResponse

from agent_env.agents.contract import Accepted, End, Ended, Outgoing, Progress, Turn, Update
from agent_env.agents.conversation import Conversation
from agent_env.agents.endings import failure_of, whose
from agent_env.agents.faults import AgentBrokeError, AgentCanceledError, AgentTaskFailedError, AgentTurnTimeoutError, AgentUnreachableError
from agent_env.documents.outcomes import Kind, kind_of
from agent_env.errors import ContainerNotRunningError
from tests.agents.servers import QUICK, Plain, client_of, lives, outgoing, script, served, told, turn, until
from tests.busy import lasting


def run(coroutine: Any) -> Any:
    return asyncio.run(asyncio.wait_for(coroutine, 100))


# the endings


def test_a_completed_turn_has_its_answer_progress_usage_and_structured_output() -> None:
    async def go() -> None:
        async with served(Scripted()) as client:
            said = script(
                {"progress": "thinking"}, {"structured": {"sum": 4}}, {"usage": {"input_tokens": 7, "cost_usd": 0.5}}, {"say": "four"}
            )
            updates = await told(client, outgoing(said))
            assert isinstance(updates[0], Accepted)
            assert Progress("thinking") in updates
            end = updates[-1]
            assert isinstance(end, Ended)
            assert (end.turn.end, end.turn.text, end.turn.partial, end.turn.gap) == (End.COMPLETED, "four", False, False)
            assert end.turn.usage is not None
            assert (end.turn.usage.input_tokens, end.turn.usage.cost_usd, end.turn.usage.tool_call_count) == (7, 0.5, 0)
            assert end.turn.structured_output == {"sum": 4}
            assert end.turn.context_id == "context-1"
            assert failure_of(end.turn, "solver") is None

    run(go())


@pytest.mark.parametrize(
    ("action", "end", "error", "kind", "fault"),
    [
        ({"fail": {"code": "a.b", "message": "could not"}}, End.FAILED, AgentTaskFailedError, Kind.TASK, "agent_error"),
        ({"fail": {"code": "a.b", "type": "infra_error"}}, End.FAILED, AgentBrokeError, Kind.INFRASTRUCTURE, "infra_error"),
        ({"raise": "a bug"}, End.FAILED, AgentBrokeError, Kind.INFRASTRUCTURE, "infra_error"),
        ({"reject": True}, End.REJECTED, AgentTaskFailedError, Kind.TASK, "agent_error"),
    ],
    ids=["failed", "failed-around-it", "raised", "rejected"],
)
def test_endings_that_are_the_agents_own_count_and_those_around_it_do_not(
    action: dict[str, Any], end: End, error: type[Exception], kind: Kind, fault: str
) -> None:
    async def go() -> None:
        async with served(Scripted()) as client:
            found = await turn(client, outgoing(script({"progress": "so far"}, action)))
            failure = failure_of(found, "solver")
            assert (found.end, whose(found)) == (end, fault)
            assert isinstance(failure, error)
            assert kind_of(failure) is kind
            assert found.task_id in str(failure)

    run(go())


def test_a_turn_that_somebody_else_cancels_is_canceled_and_nobody_is_to_blame() -> None:
    async def go() -> None:
        async with served(Scripted()) as client, asyncio.TaskGroup() as group:
            conversation = Conversation(client, outgoing(script({"progress": "half"}, {"hang": True})), alive=lives)
            seen: list[Any] = []

            async def listen() -> None:
                async for update in conversation.updates():
                    seen.append(update)

            group.create_task(listen())
            await until(lambda: Progress("half") in seen)
            await client.cancel(seen[0].task_id)
            await until(lambda: isinstance(seen[-1], Ended))
            found = seen[-1].turn
            assert (found.end, found.partial, found.text) == (End.CANCELED, True, "half")
            assert isinstance(failure_of(found, "solver"), AgentCanceledError)

    run(go())


def test_an_agent_that_knows_its_limit_ends_by_itself_and_counts_as_timed_out_with_what_it_had() -> None:
    async def go() -> None:
        async with served(Scripted()) as client:
            found = await turn(client, outgoing(script({"progress": "half"}, {"hang": True}), timeout_seconds=lasting(0.5)))
            assert (found.end, found.partial, found.error_code, found.text) == (End.TIMED_OUT, True, "agent.timeout", "half")
            failure = failure_of(found, "solver")
            assert isinstance(failure, AgentTurnTimeoutError)
            assert kind_of(failure) is Kind.STEP_TIMEOUT

    run(go())


async def _hangs(server: Plain, task_id: str) -> AsyncIterator[dict[str, Any] | None]:
    yield server.tasks[task_id]
    yield server.update(task_id, "working", "half")
    await asyncio.Event().wait()


def test_a_hung_agent_is_cancelled_at_the_limit_and_its_last_words_are_kept() -> None:
    async def go() -> None:
        server = Plain(on_stream=_hangs)
        async with server.here() as client:
            found = await turn(client, outgoing(timeout_seconds=lasting(0.3)))
            assert (found.end, found.text, found.partial, whose(found)) == (End.TIMED_OUT, "half", True, "agent_error")
            assert server.cancelled == ["task-1"]

    run(go())


def test_what_an_agent_answers_after_it_was_cancelled_is_kept_and_changes_no_ending() -> None:
    async def go() -> None:
        server = Plain(on_stream=_hangs, on_cancel=lambda self, task_id: self.task(task_id, "completed", "42 after all"))
        async with server.here() as client:
            found = await turn(client, outgoing(timeout_seconds=lasting(0.3)))
            assert (found.end, found.text, found.partial) == (End.TIMED_OUT, "42 after all", True)
            assert isinstance(failure_of(found, "solver"), AgentTurnTimeoutError)

    run(go())


def test_an_agent_whose_place_ends_is_lost_at_once_with_the_reason() -> None:
    async def go() -> None:
        async def cut(server: Plain, task_id: str) -> AsyncIterator[dict[str, Any] | None]:
            yield server.update(task_id, "working", "half")
            server.down = True
            yield None

        async def gone() -> None:
            raise ContainerNotRunningError("Agent container 'agent-x' is not running: it exited with 3. Its log ends with: boom")

        server = Plain(on_stream=cut)
        async with server.here() as client:
            found = await turn(client, outgoing(), alive=gone)
            assert (found.end, found.text, found.partial, whose(found)) == (End.LOST, "half", True, "infra_error")
            assert "it exited with 3. Its log ends with: boom" in str(failure_of(found, "solver"))


def test_an_agent_that_forgot_its_task_is_lost() -> None:
    async def go() -> None:
        async def forgets(server: Plain, task_id: str) -> AsyncIterator[dict[str, Any] | None]:
            yield server.update(task_id, "working", "half")
            server.tasks.clear()

        async with Plain(on_stream=forgets).here() as client:
            found = await turn(client, outgoing())
            assert (found.end, found.partial) == (End.LOST, True)
            assert "no longer knows task" in str(found.error_message)

    run(go())


def test_an_agent_that_stays_away_is_lost_after_a_while() -> None:
    async def go() -> None:
        async def cut(server: Plain, task_id: str) -> AsyncIterator[dict[str, Any] | None]:
            yield server.update(task_id, "working", "half")
            server.down = True
            yield None

        async with Plain(on_stream=cut).here(limits=replace(QUICK, agent_unreachable_seconds=0.3)) as client:
            found = await turn(client, outgoing())
            assert (found.end, found.text, whose(found)) == (End.LOST, "half", "infra_error")
            assert isinstance(failure_of(found, "solver"), AgentUnreachableError)

    run(go())


def test_an_agent_that_is_not_there_is_lost_before_anything_was_sent() -> None:
    async def go() -> None:
        async with client_of("http://127.0.0.1:9", limits=replace(QUICK, agent_send_attempts=2)) as client:
            found = await turn(client, outgoing())
            assert (found.end, found.task_id) == (End.LOST, None)
            assert isinstance(failure_of(found, "solver"), AgentUnreachableError)

    run(go())


def test_a_message_that_the_agent_cannot_take_is_nobodys_failed_task() -> None:
    async def go() -> None:
        async with served(Scripted()) as client:
            found = await turn(client, outgoing("x", config={"max_turns": "many"}))
            assert (found.end, found.error_code, whose(found)) == (End.FAILED, "rpc_-32602", "infra_error")

    run(go())


def test_an_agent_that_asks_back_ends_the_turn_and_not_the_task() -> None:
    async def go() -> None:
        async def asks(server: Plain, task_id: str) -> AsyncIterator[dict[str, Any] | None]:
            yield server.update(task_id, "input-required", "which one?", final=True)

        async with Plain(on_stream=asks).here() as client:
            found = await turn(client, outgoing())
            assert (found.end, found.text, found.task_id) == (End.INPUT_REQUIRED, "which one?", "task-1")

    run(go())


# one message, one piece of work


def test_the_same_message_again_finds_the_task_that_it_started() -> None:
    async def go() -> None:
        async with served(Scripted()) as client:
            first = await turn(client, outgoing(script({"say": "one"})))
            again = await turn(client, outgoing(script({"say": "one"}), may_have_been_sent=True))
            assert again.task_id == first.task_id
            followed = await turn(client, outgoing("whatever", known_task=first.task_id))
            assert (followed.text, followed.task_id) == ("one", first.task_id)

    run(go())


def test_a_stream_that_breaks_is_taken_up_again_and_the_turn_says_that_there_is_a_gap() -> None:
    async def go() -> None:
        async def cut(server: Plain, task_id: str) -> AsyncIterator[dict[str, Any] | None]:
            yield server.update(task_id, "working", "half")
            yield None

        async def rest(server: Plain, task_id: str) -> AsyncIterator[dict[str, Any] | None]:
            yield server.update(task_id, "completed", "done", final=True)

        server = Plain(on_stream=cut, on_resubscribe=rest)
        async with server.here() as client:
            found = await turn(client, outgoing())
            assert (found.end, found.text, found.gap) == (End.COMPLETED, "done", True)
            assert len(server.messages) == 1

    run(go())


@pytest.mark.parametrize("state", ["canceled", "failed"])
def test_a2_03_a_stream_that_just_ends_is_followed_by_one_look_at_the_task(state: str) -> None:
    async def go() -> None:
        async def ends(server: Plain, task_id: str) -> AsyncIterator[dict[str, Any] | None]:
            yield server.update(task_id, "working")
            server.task(task_id, state)

        async with Plain(on_stream=ends).here() as client:
            found = await turn(client, outgoing())
            assert found.end.value == state

    run(go())


def test_a2_04_an_answer_that_takes_longer_than_any_small_call_is_waited_for() -> None:
    async def go() -> None:
        async def slow(server: Plain, task_id: str) -> None:
            await asyncio.sleep(3 * small)
            server.task(task_id, "completed", "slow")

        async def slow_stream(server: Plain, task_id: str) -> AsyncIterator[dict[str, Any] | None]:
            await asyncio.sleep(3 * small)
            yield server.update(task_id, "completed", "slow", final=True)

        small = lasting(0.2)
        limits = replace(QUICK, agent_call_seconds=small, connect_seconds=small)
        for server in (Plain(streaming=False, on_send=slow), Plain(on_stream=slow_stream)):
            async with server.here(limits=limits) as client:
                assert (await turn(client, outgoing())).text == "slow"

    run(go())


def test_a2_07_artifacts_that_passed_while_the_connection_was_away_are_read_with_the_task() -> None:
    async def go() -> None:
        def artifact(number: int) -> dict[str, Any]:
            return {"artifactId": f"a{number}", "parts": [{"kind": "text", "text": f"part {number}"}]}

        async def cut(server: Plain, task_id: str) -> AsyncIterator[dict[str, Any] | None]:
            yield {"kind": "artifact-update", "taskId": task_id, "contextId": "context-1", "artifact": artifact(0)}
            server.task(task_id, "completed", artifacts=[artifact(number) for number in range(4)])
            yield None

        async with Plain(on_stream=cut).here() as client:
            found = await turn(client, outgoing())
            assert [part["text"] for part in found.parts] == [f"part {number}" for number in range(4)]
            assert (found.end, found.gap) == (End.COMPLETED, True)

    run(go())


def test_an_agent_without_streams_is_looked_at_until_it_has_ended() -> None:
    async def go() -> None:
        async def later(server: Plain, task_id: str) -> None:
            async def work() -> None:
                await until(lambda: "submitted" in server.shown)
                server.task(task_id, "working", "half")
                await until(lambda: "working" in server.shown)
                server.task(task_id, "completed", "done")

            tasks.append(asyncio.ensure_future(work()))

        tasks: list[Any] = []
        server = Plain(streaming=False, on_send=later)
        async with server.here() as client:
            updates = await told(client, outgoing())
            assert Progress("half") in updates
            assert updates[-1].turn.text == "done"  # type: ignore[union-attr]

    run(go())


def _answers_late(server: Plain, task_id: str) -> AsyncIterator[dict[str, Any] | None]:
    async def never() -> AsyncIterator[dict[str, Any] | None]:
        server.task(task_id, "completed", "done", history=server.tasks[task_id]["history"])
        yield None

    return never()


def test_an_answer_lost_on_the_way_is_found_by_its_conversation_and_not_asked_for_twice() -> None:
    async def go() -> None:
        def page(server: Plain, body: dict[str, Any]) -> JSONResponse:
            return JSONResponse({"context_id": body["context_id"], "task_id": "task-1", "state": "completed", "events": [], "next": 0})

        server = Plain(on_stream=_answers_late, trajectory=page)
        async with server.here() as client:
            found = await turn(client, outgoing())
            assert (found.end, found.text, len(server.messages)) == (End.COMPLETED, "done", 1)

    run(go())


@pytest.mark.parametrize("page", [None, {}, {"task_id": 7}, [1]], ids=str)
def test_where_nobody_can_tell_whether_a_prompt_arrived_it_is_not_sent_again(page: object) -> None:
    async def go() -> None:
        server = Plain(on_stream=_answers_late, trajectory=None if page is None else lambda *_: JSONResponse(page))
        async with server.here() as client:
            found = await turn(client, outgoing())
            assert (found.end, len(server.messages)) == (End.LOST, 1)
            resumed = await turn(client, outgoing(may_have_been_sent=True))
            assert (resumed.end, resumed.error_code, len(server.messages)) == (End.LOST, "prompt_uncertain", 1)

    run(go())


def test_a_prompt_that_certainly_never_arrived_is_sent_after_a_resume() -> None:
    async def go() -> None:
        async def answers(server: Plain, task_id: str) -> AsyncIterator[dict[str, Any] | None]:
            yield server.update(task_id, "completed", "done", final=True)

        server = Plain(on_stream=answers, trajectory=lambda *_: JSONResponse({"error": {"code": "not_found"}}, 404))
        async with server.here() as client:
            found = await turn(client, outgoing(may_have_been_sent=True))
            assert (found.text, len(server.messages)) == ("done", 1)

    run(go())


# letting go


def test_letting_go_of_a_turn_cancels_it_at_the_agent() -> None:
    async def go() -> None:
        server = Plain(on_stream=_hangs)
        async with server.here() as client:
            async with aclosing(Conversation(client, outgoing(), alive=lives).updates()) as updates:
                async for update in updates:
                    if isinstance(update, Progress):
                        break
            assert server.cancelled == ["task-1"]

            heard: list[Update] = []

            async def listen() -> None:
                message = Outgoing(parts=outgoing().parts, message_id="message-2")
                async for update in Conversation(client, message, alive=lives).updates():
                    heard.append(update)

            task = asyncio.ensure_future(listen())
            await until(lambda: any(isinstance(update, Progress) for update in heard))
            task.cancel()
            await asyncio.wait({task})
            assert server.cancelled == ["task-1", "task-2"]

    run(go())


def test_many_conversations_at_once_each_hear_their_own_answer() -> None:
    async def go() -> None:
        async with served(Scripted()) as client:

            async def one(number: int) -> None:
                message = outgoing(script({"sleep": 0.2}, {"say": f"answer {number}"}), message_id=f"m{number}", context_id=f"c{number}")
                assert (await turn(client, message)).text == f"answer {number}"

            async with asyncio.TaskGroup() as group:
                for number in range(50):
                    group.create_task(one(number))

    run(go())


def test_a_turn_that_streams_a_hundred_megabytes_is_followed_to_its_end() -> None:
    async def go() -> None:
        async with served(Scripted()) as client:
            count = 0
            conversation = Conversation(client, outgoing(script({"stream": 100 << 20}, {"say": "all"}), timeout_seconds=80.0), alive=lives)
            async for update in conversation.updates():
                if isinstance(update, Progress):
                    count += len(update.text)
            assert isinstance(update, Ended)
            assert (update.turn.end, update.turn.text) == (End.COMPLETED, "all")
            # The server of this process may drop words of progress that we are slow to take; never the ending.
            assert 0 < count <= 100 << 20

    run(go())


@pytest.mark.parametrize(
    ("code", "hinted"), [("mini.no_model", True), ("codex.no_endpoint", True), ("mini.model_failed", False), (None, False)]
)
def test_an_agent_without_a_model_leads_to_where_one_is_configured(code: str | None, hinted: bool) -> None:
    found = Turn(End.FAILED, "m", error_type="infra_error", error_code=code, error_message="set THIS in my container")
    failure = failure_of(found, "solver")
    assert failure is not None
    assert ("agent-env model check" in (failure.hint or "")) is hinted

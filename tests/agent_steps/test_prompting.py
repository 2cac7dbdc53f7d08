"""`prompt_agent` with agents that are known by their address: served in this process, so that a turn takes milliseconds."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from agent_env_sdk.agent.scripted import Scripted
from agent_env_sdk.testing.agents import serve_agent_here

from agent_env.engine import Engine, RunOptions
from agent_env.errors import ProblemsError
from tests.agents.servers import client_of, script, until
from tests.busy import within
from tests.engine.parts import Watcher, engine_at, planned


def ask(text: str, **fields: Any) -> dict[str, Any]:
    return {"id": "ask", "type": "prompt_agent", "agent_name": "solver", "prompt": text, **fields}


def known(**agents: str) -> dict[str, Any]:
    return {"deployed_agents": [{"agent_name": name, "api_url": base, "a2a_url": base} for name, base in agents.items()]}


async def asked(engine: Engine, steps: list[dict[str, Any]], **agents: str) -> Any:
    """Runs a task whose agents are there already."""
    context = known(**agents)
    return await engine.execute(await engine.submit(planned(engine, steps, preset=context), RunOptions(context=context)))


async def test_a_turn_that_fails_fails_the_step_and_its_answer_usage_and_conversation_are_kept(tmp_path: Path) -> None:
    async with serve_agent_here(Scripted()) as solver, engine_at(tmp_path / "state") as engine:
        text = script({"progress": "so far"}, {"fail": {"code": "a.b", "message": "could not"}})
        outcome = await asked(engine, [ask(text, model="m-1")], solver=solver.base)
        assert (outcome.status, outcome.error["code"], outcome.kind) == ("failed", "agent_task_failed", "task")
        (answer,) = outcome.context["prompt_responses"]
        assert (answer["state"], answer["error_type"], answer["error_code"], answer["error_message"]) == (
            "failed", "agent_error", "a.b", "could not",
        )  # fmt: skip
        assert outcome.context["metadata"]["models"]["solver"] == {"ask": "m-1"}
        talk = outcome.context["metadata"]["a2a_conversations"]["ask"]
        conversation = json.loads(engine.stores.objects.read(talk["object_url"]))
        assert conversation["a2a_tasks"][0]["state"] == "failed"
        assert engine.stores.objects.exists(answer["agent_trajectory_object_url"])


async def test_half_a_character_in_an_answer_is_kept_wherever_the_turn_is(tmp_path: Path) -> None:
    async with serve_agent_here(Scripted()) as solver, engine_at(tmp_path / "state") as engine:
        outcome = await asked(engine, [ask(r'[{"say": "cut \ud83d"}]')], solver=solver.base)
        (answer,) = outcome.context["prompt_responses"]
        assert (outcome.status, answer["response"]) == ("completed", "cut \ud83d")
        talk = outcome.context["metadata"]["a2a_conversations"]["ask"]
        for url in (talk["object_url"], answer["agent_trajectory_object_url"]):
            assert r"cut \ud83d" in engine.stores.objects.read(url).decode()


async def test_somebody_behind_an_address_answers_turn_by_turn_until_they_have_nothing_more_to_say(tmp_path: Path) -> None:
    async with serve_agent_here(Scripted()) as solver, serve_agent_here(Scripted()) as person, engine_at(tmp_path / "state") as engine:
        # What the solver says is the person's script, and what the person says is the solver's.
        third = script({"say": "thanks"})
        second = script({"say": script({"fail": {"code": "gone"}})})
        first = script({"say": script({"say": second})})
        steps = [ask(first, max_conversation_turns=5, user_a2a_url=person.base)]
        outcome = await asked(engine, steps, solver=solver.base)
        assert outcome.status == "completed", outcome.error
        (answer,) = outcome.context["prompt_responses"]
        assert len(answer["turns"]) == len(answer["target_agent_per_turn_trajectory_object_urls"]) == 2
        assert answer["source_agent_per_turn_prompt_parts"][0] is None
        assert answer["source_agent_per_turn_prompt_parts"][1][0]["text"] == second
        assert third not in json.dumps(answer)


async def test_a_conversation_without_anybody_who_answers_is_told_before_it_begins(tmp_path: Path) -> None:
    async with serve_agent_here(Scripted()) as solver, engine_at(tmp_path / "state") as engine:
        outcome = await asked(engine, [ask("[]", max_conversation_turns=2)], solver=solver.base)
        assert outcome.status == "failed"
        assert "no agent 'human_agent' is deployed" in outcome.error["message"]


async def test_cancelling_a_run_cancels_what_the_agent_works_on(tmp_path: Path) -> None:
    async with serve_agent_here(Scripted()) as solver, engine_at(tmp_path / "state") as engine, client_of(solver.base) as client:
        watcher = Watcher()
        steps, context = [ask(script({"progress": "half"}, {"hang": True}))], known(solver=solver.base)
        run_id = await engine.submit(planned(engine, steps, preset=context), RunOptions(context=context))
        running = asyncio.ensure_future(engine.execute(run_id, watcher))
        async with asyncio.timeout(within(20)):
            await until(lambda: any("half" in str(event.payload.get("message")) for event in watcher.events))
            (row,) = [row for row in engine.stores.journal.resources(run_id) if row.kind == "prompt"]
            await engine.cancel(run_id)
            outcome = await running
        assert outcome.status == "cancelled"
        assert (await client.task(row.facts["task_id"])).status.state.value == "canceled"
        assert [row.state for row in engine.stores.journal.resources(run_id) if row.kind == "prompt"] == ["closed"]


async def test_what_agents_record_is_told_while_they_work(tmp_path: Path) -> None:
    go, heard = tmp_path / "go", list[dict[str, Any]]()
    async with serve_agent_here(Scripted(folder=tmp_path)) as solver, engine_at(tmp_path / "state") as engine:
        waits = script({"shell": "until test -e go; do sleep 0.05; done; echo went"}, {"say": "{last}"})
        context = known(solver=solver.base)
        run_id = await engine.submit(planned(engine, [ask(waits)], preset=context), RunOptions(context=context))
        running = asyncio.ensure_future(engine.execute(run_id))

        async def listen() -> None:
            async for told in engine.trajectory_of_run(run_id):
                heard.append(dict(told))

        listening = asyncio.ensure_future(listen())
        async with asyncio.timeout(within(60)):
            await until(lambda: any(told["event"]["type"] == "tool_call" for told in heard), within(40))
            assert not running.done(), "it was told while the agent worked"
            go.touch()
            outcome = await running
            await listening
        (answer,) = outcome.context["prompt_responses"]
        kept = json.loads(engine.stores.objects.read(answer["agent_trajectory_object_url"]))
        assert [told["event"] for told in heard] == kept
        assert {told["agent"] for told in heard} == {"solver"}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"prompt": "a", "parts": [{"kind": "text", "text": "b"}]}, "exactly one"),
        ({"prompt": None}, "exactly one"),
        ({"prompt": None, "parts": [{"kind": "text", "text": ""}]}, "no empty text"),
        ({"prompt": None, "parts": [{"kind": "sound"}]}, "not A2A parts"),
        ({"model_params": {"api_key": "x"}}, "may not set api_key"),
        ({"max_conversation_turns": 0}, "greater than or equal to 1"),
        ({"snapshot_config": {"at_end": False}}, "says no time at all"),
        ({"snapshot_config": {"env_id": "mail"}}, "'mail' is not deployed before"),
    ],
)
async def test_what_cannot_be_asked_is_told_before_anything_starts(fields: dict[str, Any], said: str, tmp_path: Path) -> None:
    async with engine_at(tmp_path / "state") as engine:
        with pytest.raises(ProblemsError) as caught:
            planned(engine, [{"id": "agent", "type": "deploy_agent", "agent_name": "solver"}, ask("hello") | fields])
        assert said in str(caught.value)

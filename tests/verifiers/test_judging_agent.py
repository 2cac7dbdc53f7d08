"""A deployed agent that judges: asked like a model, in a conversation of its own, and never about itself."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from agent_env_sdk.agent import agent
from agent_env_sdk.agent.author import Agent
from agent_env_sdk.agent.turns import TaskRequest, TaskResult, Usage
from agent_env_sdk.testing.agents import serve_agent_here

from agent_env.engine import RunOptions
from agent_env.errors import ProblemsError
from tests.engine.parts import engine_at, planned
from tests.verifiers.judging import honest

CRITERIA = [{"id": "sum", "title": "It names 42"}, {"id": "city", "title": "It names Paris"}]


@agent("judge", description="Judges by the last word of each criterion.")
class Judging(Agent):
    """Answers nonsense first, and then as it should."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    async def run(self, request: TaskRequest[Any]) -> TaskResult:
        self.heard.append(request.text)
        if len(self.heard) == 1:
            return TaskResult.said("I would rather not.")
        shown = self.heard[0]
        document = json.loads(shown[shown.index('{\n "task"') :])
        results = [
            {"id": each["id"], "justification": f"as to {each['title']}", "score": honest(document, each)} for each in document["criteria"]
        ]
        return TaskResult.said(json.dumps({"results": results}), usage=Usage(input_tokens=7, output_tokens=3, cost_usd=0.5))


def test_a_deployed_agent_judges_and_is_corrected_in_the_same_conversation(tmp_path: Path) -> None:
    async def body() -> None:
        judge = Judging()
        async with asyncio.timeout(60), engine_at(tmp_path) as engine, serve_agent_here(judge, state=tmp_path / "judge") as client:
            records = [{"agent_name": name, "api_url": client.base, "a2a_url": client.base} for name in ("judge", "solver")]
            answer = {"prompt_id": "p", "prompt_text": "Add", "response": "It is 42.", "agent_name": "solver"}
            context = {"deployed_agents": records, "prompt_responses": [answer], "metadata": {}}
            step = {"id": "j", "type": "rubrics_verifier", "prompt_id": "p", "criteria": CRITERIA, "use_trajectory": False}
            plan = planned(engine, [{**step, "agent_name": "judge"}], preset=context)
            outcome = await engine.execute(await engine.submit(plan, RunOptions(context=context)))
            assert outcome.status == "completed", outcome.error
            found = outcome.context["metadata"]["verifications"]["j"]
            assert [(row["id"], row["score"]) for row in found["results"]] == [("sum", 1.0), ("city", 0.0)]
            assert found["judge_output_retries"] == 1
            assert (found["judge_usage"]["requests"], found["judge_usage"]["input_tokens"]) == (2, 7)
            assert "That answer can't be used" in judge.heard[1]

    asyncio.run(body())


def test_an_agent_does_not_judge_its_own_answer(tmp_path: Path) -> None:
    async def body() -> None:
        async with engine_at(tmp_path) as engine:
            steps = [
                {"id": "h", "type": "deploy_human_agent", "agent_name": "solver", "a2a_url": "http://127.0.0.1:9"},
                {"id": "ask", "type": "prompt_agent", "agent_name": "solver", "prompt_id": "p", "prompt": "x"},
                {"id": "j", "type": "rubrics_verifier", "prompt_id": "p", "criteria": CRITERIA, "agent_name": "solver"},
            ]
            with pytest.raises(ProblemsError, match="agent 'solver' would judge its own answer") as raised:
                planned(engine, steps)
            assert raised.value

    asyncio.run(body())

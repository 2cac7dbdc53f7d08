"""Our client of agents before agents that are written with other people's packages, of both generations."""

from __future__ import annotations

from typing import Any

import pytest
from agent_env_sdk.wire.agent_extensions import TRAJECTORY

from agent_env.agents.contract import End, Turn
from agent_env.agents.trajectories import read
from tests.agents.servers import client_of, outgoing, turn
from tests.interop.test_agents import serving

pytestmark = pytest.mark.timeout(300)
SERVERS = {
    "the published package, 0.3": ("a2a-0", "published_agent", "a2a_server.py"),
    "the official package, 1.x": ("a2a-1", "official_agent", "server.py", "PORT"),
    "the official package, both": ("a2a-1", "official_agent", "server.py", "PORT", "both"),
}


@pytest.mark.parametrize("server", SERVERS)
async def test_a2_06_turns_with_agents_of_other_packages_end_as_they_say(server: str) -> None:
    official = "official" in server
    async with serving(*SERVERS[server]) as base, client_of(base) as client:

        async def asked(number: int, text: str, **fields: Any) -> Turn:
            return await turn(client, outgoing(text, message_id=f"m{number}", context_id=f"c{number}", **fields))

        done = await asked(1, "hello")
        assert (done.end, done.text, done.context_id, done.gap) == (End.COMPLETED, "hello", "c1", False)
        failed = await asked(2, "fail no")
        assert (failed.end, failed.text or failed.error_message) == (End.FAILED, "no")
        late = await asked(3, "wait 60", timeout_seconds=0.5)
        assert (late.end, late.partial) == (End.TIMED_OUT, True)
        again = await asked(1, "hello", known_task=done.task_id)
        assert (again.end, again.text, again.task_id) == (End.COMPLETED, "hello", done.task_id)
        if official:
            assert (await asked(4, "reject no")).end is End.REJECTED
            artifact = await asked(5, "artifact made this")
            assert (artifact.end, artifact.text) == (End.COMPLETED, "made this")
            question = await asked(6, "ask which one?")
            assert (question.end, question.text) == (End.INPUT_REQUIRED, "which one?")
            unsure = await asked(7, "hello", may_have_been_sent=True)
            assert (unsure.end, unsure.error_code) == (End.LOST, "prompt_uncertain")
            return
        # Whether an earlier process sent it can be told: by the conversation, which this agent knows, or does not.
        assert (await asked(1, "hello", may_have_been_sent=True)).task_id == done.task_id
        assert (await asked(8, "fresh", may_have_been_sent=True)).text == "fresh"
        assert await client.supports(TRAJECTORY, "get")
        recorded = await read(client, {"task_id": str(done.task_id)})
        assert recorded is not None
        assert (recorded.format, recorded.events) == ("published-echo/1", [{"heard": "hello"}])

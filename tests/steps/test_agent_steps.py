"""Steps on deployed agents, with real agents that are served here and known by their addresses."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from agent_env_sdk.agent import agent
from agent_env_sdk.agent.scripted import Scripted
from agent_env_sdk.testing.agents import AgentClient, serve_agent_here
from agent_env_sdk.wire.agent_extensions import PEER_AGENTS, SKILL_CONFIG, TRIGGERS

from agent_env.engine import Engine, RunOptions
from agent_env.errors import ProblemsError, UserError
from agent_env.steps.add_skills import cli_skill, files_skill
from agent_env.steps.contract import AgentRequest
from agent_env.steps.registry import parse_step
from tests.agents.servers import script, until
from tests.busy import within
from tests.engine.parts import Watcher, engine_at, planned
from tests.steps.bench import BenchRun

SAYS_HI = [{"say": "hi"}]
SAYS_SAY = json.dumps([{"say": json.dumps([{"say": json.dumps(SAYS_HI)}])}])
"""What the one says is what the other does, and so on."""


@agent("able", description="Plays a script, and takes skills.")
class Able(Scripted):
    """A scripted agent with a folder for skills."""

    def __init__(self, root: Path) -> None:
        super().__init__(SAYS_HI, root / "work")
        self.skills_folder = root / "skills"
        self.workspace = root / "work"


@dataclass
class World:
    """A run's engine, and agents by name."""

    engine: Engine
    agents: dict[str, AgentClient]

    @property
    def context(self) -> dict[str, Any]:
        """What a run starts with: every agent, known by its address alone."""
        records = [{"agent_name": name, "api_url": client.base, "a2a_url": client.base} for name, client in self.agents.items()]
        return {"deployed_agents": records, "metadata": {}}

    async def ran(self, *steps: dict[str, Any], **metadata: Any) -> Any:
        """The context after a run of these steps, which must go well."""
        context = self.context
        context["metadata"] |= metadata
        outcome = await self.outcome(steps, context)
        assert outcome.status == "completed", outcome.error
        return outcome.context

    async def refused(self, *steps: dict[str, Any]) -> str:
        """What is said of a run of these steps, which must not go well."""
        outcome = await self.outcome(steps, self.context)
        assert outcome.status == "failed"
        return str(outcome.error["message"])

    async def outcome(self, steps: Sequence[dict[str, Any]], context: dict[str, Any]) -> Any:
        run_id = await self.engine.submit(planned(self.engine, list(steps), preset=context), RunOptions(context=context))
        return await self.engine.execute(run_id)


@asynccontextmanager
async def world(root: Path, *names: str) -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(engine_at(root))
        agents = {name: await stack.enter_async_context(serve_agent_here(Able(root / name), state=root / name / "state")) for name in names}
        yield World(engine, agents)


def in_world(root: Path, *names: str):
    """Runs a test's body with agents of these names."""

    def run(body) -> None:
        async def all_of_it() -> None:
            async with asyncio.timeout(60), world(root, *names) as made:
                await body(made)

        asyncio.run(all_of_it())

    return run


def test_skills_are_given_once_with_their_frontmatter_and_a_second_time_changes_nothing(tmp_path: Path) -> None:
    async def body(made: World) -> None:
        ref = made.engine.stores.objects.put(b"---\nname: stored\ndescription: From an object.\n---\nDo it.\n")
        skills = [
            {"name": "adding", "description": "When sums are asked for: add.", "body": "Use expr.", "license": "MIT"},
            {"name": "stored", "description": "From an object.", "object_url": ref.url},
        ]
        step = {"id": "s", "type": "add_skills", "agent_name": "solver", "skills": skills}
        private = {"name": "private", "description": "A file of this machine.", "object_url": "file:///etc/hostname"}
        assert "which no task or document may read" in await made.refused({**step, "skills": [private]})
        await made.ran(step, {**step, "id": "again"})
        listed = await made.agents["solver"].invoke(SKILL_CONFIG, "list")
        assert {name: about["description"] for name, about in listed["skills"].items()} == {
            "adding": "When sums are asked for: add.",
            "stored": "From an object.",
        }

    in_world(tmp_path, "solver")(body)


def test_skills_are_made_of_what_was_loaded_into_the_agent_and_of_nothing_else(tmp_path: Path) -> None:
    loaded = {"id": "Sales Data", "agent_name": "solver", "destination_path": "/data", "files": {"a.csv": "/data/a.csv"}}

    async def body(made: World) -> None:
        step = {"id": "s", "type": "add_skills", "agent_name": "solver", "file_artifact_universe_ids": ["Sales Data"]}
        await made.ran(step, loaded_file_artifact_universes=[loaded])
        (name,) = (await made.agents["solver"].invoke(SKILL_CONFIG, "list"))["skills"]
        assert name.startswith("sales-data-")
        assert name.endswith("-files")
        other = {"id": "s", "type": "add_skills", "agent_name": "solver", "file_artifact_universe_ids": ["Other"]}
        assert "the universe 'Other' was not loaded into agent 'solver'" in await made.refused(other)
        cli = {"id": "s", "type": "add_skills", "agent_name": "solver", "cli_artifact_ids": ["mail__cli"]}
        assert "the command line 'mail__cli' was not loaded" in await made.refused(cli)

    in_world(tmp_path, "solver")(body)
    assert "`/opt/cli/mailctl/mailctl`" in cli_skill({"command_name": "mailctl", "path": "/opt/cli/mailctl/mailctl"}).text
    assert "- `/data/a.csv`" in files_skill("x", {"destination_path": "/data/", "files": ["a.csv"]}).text


@pytest.mark.parametrize(
    ("skill", "message"),
    [
        ({"name": "a", "description": "b", "body": "x", "object_url": "sha256:0"}, "a skill has one source"),
        ({"name": "a", "body": "x"}, "needs a name and a description"),
        ({"name": "../a", "description": "b", "body": "x"}, "can't be a skill's"),
    ],
)
def test_a_skill_that_can_not_be_one_is_refused_when_it_is_read(skill: dict[str, Any], message: str) -> None:
    with pytest.raises(ProblemsError) as raised:
        parse_step({"id": "s", "type": "add_skills", "skills": [skill]}, source="t")
    assert message in str(raised.value)


def test_peers_are_told_as_they_can_be_reached_and_each_table_replaces_the_last(tmp_path: Path) -> None:
    async def body(made: World) -> None:
        peering = {"source_agent_name": "solver", "peer_agent_names": ["helper", "critic"]}
        back = {"source_agent_name": "helper", "peer_agent_names": ["solver"]}
        context = await made.ran({"id": "p", "type": "peer_agents", "peerings": [peering, back]})
        assert context["metadata"]["agent_peerings"] == [{"step_id": "p", **peering}, {"step_id": "p", **back}]
        told = (await made.agents["solver"].invoke(PEER_AGENTS, "list"))["peers"]
        assert [(each["name"], each["url"]) for each in told] == [(name, made.agents[name].base) for name in ("helper", "critic")]
        await made.ran({"id": "p", "type": "peer_agents", "peerings": [{**peering, "peer_agent_names": []}]})
        assert (await made.agents["solver"].invoke(PEER_AGENTS, "list"))["peers"] == []
        assert [each["name"] for each in (await made.agents["helper"].invoke(PEER_AGENTS, "list"))["peers"]] == ["solver"]

    in_world(tmp_path, "solver", "helper", "critic")(body)


def test_peerings_that_make_no_sense_are_told_before_anything_starts(tmp_path: Path) -> None:
    async def body(made: World) -> None:
        peerings = [
            {"source_agent_name": "solver", "peer_agent_names": ["solver", "nobody", "nobody"]},
            {"source_agent_name": "solver", "peer_agent_names": []},
        ]
        with pytest.raises(ProblemsError) as raised:
            planned(made.engine, [{"id": "p", "type": "peer_agents", "peerings": peerings}], preset=made.context)
        said = str(raised.value)
        for expected in (
            "can't be its own peer",
            "the peer 'nobody' is listed twice",
            "'solver' is listed twice",
            "deploys the agent 'nobody'",
        ):
            assert expected in said

    in_world(tmp_path, "solver")(body)


def test_somebody_outside_is_an_agent_with_a_card_or_without_one(tmp_path: Path) -> None:
    async def body(made: World) -> None:
        url = made.agents["solver"].base
        context = await made.ran({"id": "h", "type": "deploy_human_agent", "a2a_url": url})
        record = context["deployed_agents"][-1]
        assert (record["agent_name"], record["a2a_url"], record["a2a_card"]["name"]) == ("human_agent", url, "able")
        assert context["metadata"]["human_agents"] == [{"step_id": "h", "agent_name": "human_agent", "a2a_url": url}]
        context = await made.ran({"id": "h", "type": "deploy_human_agent", "agent_name": "boss", "a2a_url": "http://127.0.0.1:9"})
        assert context["deployed_agents"][-1]["a2a_card"]["name"] == "boss"
        assert "no address of a human agent is known" in await made.refused({"id": "h", "type": "deploy_human_agent"})
        two = [{"id": name, "type": "deploy_human_agent", "agent_name": name, "a2a_url": url} for name in ("one", "two")]
        with pytest.raises(ProblemsError, match="step 'one' deploys a human agent already") as raised:
            planned(made.engine, two)
        assert raised.value

    in_world(tmp_path, "solver")(body)


RULES = [
    {"id": "t1", "when": {"type": "step", "turn": 1}, "actions": [{"type": "say", "text": "go on"}]},
    {"id": "t2", "when": {"type": "conversational", "where": {"message": {"regex": "done"}}}, "actions": [{"type": "end"}]},
]


def test_rules_of_a_simulated_user_are_registered_all_or_none(tmp_path: Path) -> None:
    async def body(made: World) -> None:
        step = {"id": "r", "type": "register_agent_triggers", "agent_name": "user", "triggers": RULES}
        context = await made.ran(step)
        assert context["metadata"]["agent_trigger_registrations"] == [{"step_id": "r", "agent_name": "user", "added": ["t1", "t2"]}]
        state = await made.agents["user"].invoke(TRIGGERS, "state")
        assert [each["id"] for each in state["triggers"]] == ["t1", "t2"]
        bad = {"id": "t3", "when": {"type": "never"}, "actions": []}
        assert "agent 'user' refused triggers/v1 register" in await made.refused({**step, "triggers": [*RULES, bad]})
        waiting = {"id": "t4", "when": {"type": "all", "of": [{"type": "env_trigger", "env_id": "mail", "trigger_id": "x"}]}, "actions": []}
        assert "environment 'mail' is not deployed" in await made.refused({**step, "triggers": [waiting]})

    in_world(tmp_path, "user")(body)


def test_a_conversation_and_its_workspace_go_on_in_another_agent(tmp_path: Path) -> None:
    async def body(made: World) -> None:
        (tmp_path / "one" / "work").mkdir(parents=True, exist_ok=True)
        write = json.dumps([{"shell": f"echo kept > {tmp_path}/one/work/note"}, {"say": "written"}])
        context = await made.ran(
            {"id": "ask", "type": "prompt_agent", "agent_name": "one", "prompt_id": "p", "prompt": write},
            {"id": "save", "type": "snapshot_agent_state", "prompt_id": "p"},
            {"id": "load", "type": "restore_agent_state", "agent_name": "other", "snapshot_step_id": "save", "context_id": "again"},
            {"id": "more", "type": "prompt_agent", "agent_name": "other", "context_id": "again", "prompt": '[{"say": "going on"}]'},
        )
        (saved,) = context["metadata"]["agent_snapshots"]
        assert (saved["source_agent_name"], saved["capture_step_id"]) == ("one", "save")
        assert saved["source_context_id"] == context["prompt_responses"][0]["a2a_context_id"]
        assert made.engine.stores.objects.exists(saved["bundle_object_url"])
        (loaded,) = context["metadata"]["agent_loaded_snapshots"]
        assert (loaded["agent_name"], loaded["context_id"], loaded["source_artifact_id"]) == ("other", "again", saved["id"])
        assert (tmp_path / "other" / "work" / "note").read_text() == "kept\n"
        assert context["prompt_responses"][-1]["response"] == "going on"

    in_world(tmp_path, "one", "other")(body)


def test_an_agents_state_is_saved_while_it_works_and_at_the_end(tmp_path: Path) -> None:
    async def body(made: World) -> None:
        go, watcher = tmp_path / "one/work/go", Watcher()
        go.parent.mkdir(parents=True)
        waits = json.dumps([{"shell": "until test -e go; do sleep 0.05; done"}, {"say": "went"}])
        config = {"interval_seconds": 0.05, "env_id": None}
        ask = {"id": "ask", "type": "prompt_agent", "agent_name": "one", "prompt": waits, "snapshot_config": config}
        plan = planned(made.engine, [ask], preset=made.context)
        running = asyncio.ensure_future(made.engine.execute(await made.engine.submit(plan, RunOptions(context=made.context)), watcher))
        saved = "state saved: ok"
        await until(lambda: any(event.payload.get("message") == saved for event in watcher.events), within(20))
        go.touch()
        outcome = await running
        assert outcome.status == "completed", outcome.error
        *interim, last = outcome.context["metadata"]["agent_snapshots"]
        assert "ok" in [row["capture_status"] for row in interim]
        assert (last["is_final"], last["capture_status"], last["turn"], last["capture_step_id"]) == (True, "ok", 1, "ask")
        versions = [row["version"] for row in (*interim, last) if "version" in row]
        assert versions == list(range(1, len(versions) + 1))
        told = json.loads(made.engine.stores.objects.read(last["trajectory_object_url"]))
        assert told[-1] == {"type": "end", "state": "completed"}

    in_world(tmp_path, "one")(body)


def test_only_so_many_states_are_saved_and_one_that_can_not_be_had_at_the_end_fails_the_step(tmp_path: Path) -> None:
    async def body(made: World) -> None:
        talk = {"max_conversation_turns": 3, "user_a2a_url": made.agents["other"].base, "prompt": script({"say": SAYS_SAY})}
        config = {"per_turn": True, "at_end": False, "max_snapshots": 1}
        ask = {"id": "ask", "type": "prompt_agent", "agent_name": "one", **talk, "snapshot_config": config}
        context = await made.ran(ask)
        rows = context["metadata"]["agent_snapshots"]
        assert [(row["turn"], row["capture_status"]) for row in rows] == [(1, "ok"), (2, "skipped")]
        async with serve_agent_here(Scripted()) as plain:
            made.agents["plain"] = plain
            last = {"id": "ask", "type": "prompt_agent", "agent_name": "plain", "prompt": script({"say": "x"}), "snapshot_config": {}}
            outcome = await made.outcome([last], made.context)
        assert (outcome.status, outcome.kind) == ("failed", "infrastructure")
        assert "the agent's state at the end could not be saved: " in outcome.error["message"]
        assert outcome.context["prompt_responses"][0]["response"] == "x"
        assert outcome.context["metadata"]["agent_snapshots"][0]["capture_status"] == "failed"

    in_world(tmp_path, "one", "other")(body)


def test_an_agent_that_can_not_save_is_passed_over_only_where_nobody_named_the_artifact(tmp_path: Path) -> None:
    async def body(made: World) -> None:
        answer = {"prompt_id": "p", "response": "", "a2a_context_id": "c", "agent_name": "plain"}
        steps = [{"id": "save", "type": "snapshot_agent_state", "prompt_id": "p"}]
        made.agents["plain"] = made.agents.pop("one")
        context = {**made.context, "prompt_responses": [answer]}
        run_id = await made.engine.submit(planned(made.engine, steps, preset=context), RunOptions(context=context))
        assert (await made.engine.execute(run_id)).status == "failed", "this one can save, and knows no such conversation"
        unknown = [{"id": "load", "type": "restore_agent_state", "agent_name": "plain", "snapshot_step_id": "nothing"}]
        with pytest.raises(ProblemsError, match="no snapshot_agent_state 'nothing' comes before") as raised:
            planned(made.engine, unknown, preset=context)
        assert raised.value

    in_world(tmp_path, "one")(body)


def test_a_skill_of_several_files_goes_by_way_of_the_agents_own_store(tmp_path: Path) -> None:
    async def body(made: World) -> None:
        files = {"SKILL.md": b"---\nname: adding\ndescription: Adds.\n---\nSee table.csv.\n", "data/table.csv": b"1,2\n"}
        made.engine.stores.artifacts.put_skill("adding", files)
        step = {"id": "s", "type": "add_skills", "agent_name": "solver", "skills": [{"skill_artifact_id": "adding"}]}
        await made.ran(step)
        assert (tmp_path / "solver" / "skills" / "adding" / "data" / "table.csv").read_bytes() == b"1,2\n"

    in_world(tmp_path, "solver")(body)


def test_rules_answer_in_place_of_a_simulated_users_model_and_end_the_conversation(tmp_path: Path) -> None:
    async def body(made: World) -> None:
        rules = [
            {"id": "push", "when": {"type": "step", "turn": 1}, "actions": [{"type": "say", "text": '[{"say": "all done"}]'}]},
            {"id": "over", "when": {"type": "conversational", "where": {"message": {"regex": "done$"}}}, "actions": [{"type": "end"}]},
        ]
        ask = {"id": "ask", "type": "prompt_agent", "agent_name": "solver", "user_agent_name": "user", "prompt_id": "p"}
        context = await made.ran(
            {"id": "rules", "type": "register_agent_triggers", "agent_name": "user", "triggers": rules},
            {**ask, "prompt": '[{"say": "a beginning"}]', "max_conversation_turns": 5},
        )
        (answer,) = context["prompt_responses"]
        assert answer["response"] == "all done"
        assert len(answer["source_agent_per_turn_prompt_parts"]) == 2
        fired = context["metadata"]["agent_trigger_firings"]["ask"]
        assert [(each["trigger_id"], each["turn"]) for each in fired] == [("push", 1), ("over", 2)]
        log = made.engine.stores.objects.read(context["metadata"]["agent_trigger_state"]["ask"]["object_url"])
        assert [each["kind"] for each in json.loads(log)["events"]] == ["fired", "fired"]

    in_world(tmp_path, "solver", "user")(body)


class Asking(BenchRun):
    """A run that says what it is asked to deploy, and deploys nothing."""

    asked_for: AgentRequest | None = None

    async def deploy_agent(self, request: AgentRequest) -> Any:
        """Notes it."""
        self.asked_for = request
        raise UserError("nothing is deployed here")


def test_a_key_that_was_given_for_the_run_is_the_brokers_and_no_variable_of_the_agent(tmp_path: Path) -> None:
    run = Asking(tmp_path)
    run.user_overrides = {"litellm_api_key": "sk-of-the-run", "litellm_base_url": "https://models.example"}
    with pytest.raises(UserError, match="nothing is deployed here"):
        asyncio.run(parse_step({"id": "agent", "type": "deploy_agent"}, source="t").execute(run))
    assert run.asked_for is not None
    assert (run.asked_for.env, run.asked_for.secrets) == ({"LITELLM_BASE_URL": "https://models.example"}, {})

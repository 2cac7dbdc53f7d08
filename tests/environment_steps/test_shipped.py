"""The bundles with environments that ship with agent-env, and the one that it writes to start from."""

from __future__ import annotations

import json

import pytest

from tests.environment_steps.conftest import User

pytestmark = pytest.mark.timeout(900)


def test_echo_mcp_passes_and_passes_the_conformance_kit(user: User) -> None:
    assert [run["scores"] for run in user.scores("echo-mcp")] == [{"echoes": 1.0}]
    checked = user("env", "check", "echo-mcp:echo", "--json")
    assert (checked.code, checked.json["passed"]) == (0, True), checked.all
    assert set(checked.json["servers"]) == {"echo", "gateway"}
    echo = {check["id"].partition("/")[2]: check["result"] for check in checked.json["servers"]["echo"]["checks"]}
    assert echo["what_it_exports_loads_again"] == echo["it_answers_under_any_host_name"] == "passed"


def test_echo_mcp_passes_without_a_container_engine_s_containers(user: User) -> None:
    (run,) = user.scores("echo-mcp", "--sandbox", "rootfs")
    assert (run["status"], run["scores"]) == ("completed", {"echoes": 1.0}), run["error"]
    assert [each["sandbox_type"] for each in user.context(run["run_id"])["deployed_envs"]] == ["rootfs"]


def test_mail_mcp_passes(user: User) -> None:
    assert [run["scores"] for run in user.scores("mail-mcp")] == [{"finds": 1.0}]


def test_desk_works_is_snapshot_wrecked_restored_and_reset(user: User, postgres_image: str) -> None:
    del postgres_image
    (run,) = user.scores("desk")
    assert (run["status"], run["scores"]) == ("completed", {"done": 1.0, "again": 1.0, "fresh": 1.0, "total": 1.0}), run["error"]
    metadata = user.context(run["run_id"])["metadata"]
    (captured,) = metadata["env_trajectory"].values()
    assert captured["event_count"] > 5
    tool = user("artifact", "get", metadata["cli_artifact"]["id"], "--json")
    assert (tool.code, json.loads(tool.out)["type"]) == (0, "cli"), tool.all


def test_wellknown_finds_its_environment_when_told_and_when_not_four_at_once(user: User) -> None:
    runs = user.scores("wellknown", "--attempts", "2", "--concurrency", "4")
    assert len(runs) == 4
    assert [(run["task"], run["error"]) for run in runs if set(run["scores"].values()) != {1.0}] == []


def test_a_new_bundle_with_an_environment_runs_and_passes(user: User) -> None:
    assert user("bundle", "new", "first", "--env", "team-notes").code == 0
    assert user("bundle", "check", "first", "--strict").code == 0
    assert [run["scores"] for run in user.scores(user.cwd / "first")] == [{"check": 1.0}]
    checked = user("env", "check", user.cwd / "first/envs/team-notes")
    assert (checked.code, checked.out.splitlines()[-1]) == (0, "passed"), checked.all


def test_a_new_bundle_with_an_agent_runs_and_passes(user: User) -> None:
    assert user("bundle", "new", "second", "--agent", "word-counter").code == 0
    assert user("bundle", "check", "second", "--strict").code == 0
    assert [run["scores"] for run in user.scores(user.cwd / "second")] == [{"check": 1.0}]

"""`agent-env env`: bringing an environment up by hand, looking into it, and taking it down."""

from __future__ import annotations

import json

import pytest

from tests.environment_steps.conftest import User

pytestmark = pytest.mark.timeout(900)


def test_an_environment_is_brought_up_looked_into_and_taken_down(user: User) -> None:
    folder = user.stock() / "envs/stock"
    put = user("env", "put", folder, "--id", "team/stock", "--json")
    assert (put.code, put.json["id"]) == (0, "team/stock"), put.all
    listed = user("env", "list", "--json")
    assert "team/stock" in listed.out
    assert user("env", "get", "team/stock").json["env_provider_type"] == "server"
    up = user("env", "deploy", "team/stock", "--json")
    assert up.code == 0, up.all
    run = up.json["run"]
    assert up.json["mcp_url"].startswith("http://127.0.0.1:")
    assert [row["run"] for row in user("env", "list", "--deployed", "--json").json["deployed"]] == [run]

    tools = user("env", "call", run)
    assert (tools.code, "stock_take" in tools.out) == (0, True), tools.all
    assert user("env", "call", run, "stock_count", '{"sku": "a"}').out.strip() == "0"
    refused = user("env", "call", run, "stock_take", '{"sku": "a", "qty": 1}')
    assert (refused.code, "insufficient" in refused.all) == (1, True), refused.all
    unknown = user("env", "call", run, "stock_fly", "{}")
    assert unknown.code != 0
    assert "Traceback" not in unknown.all
    state = user("env", "state", run, "--data", "--json")
    assert (state.code, '"items"' in state.out) == (0, True), state.all
    inside = user("env", "exec", run, "--", "sh", "-c", "pwd; exit 3")
    assert (inside.code, inside.out) == (3, "/srv\n"), inside.all
    assert "serves on 18765" in user("env", "logs", run).all

    checked = user("env", "check", run, "--json")
    assert (checked.code, checked.json["passed"]) == (1, False), checked.all
    (report,) = checked.json["servers"].values()
    assert report["validation_gate"]["failed_gates"] == ["environment_card", "core_protocol", "mcp_tool_schema"]
    some = user("env", "check", run, "--require", "reachability")
    assert (some.code, some.out.splitlines()[-1]) == (0, "passed"), some.all

    removed = user("env", "rm", run, "--json")
    assert (removed.code, removed.json["runs"][0]["failed"]) == (0, {}), removed.all
    gone = user("env", "call", run)
    assert gone.code != 0
    assert "Traceback" not in gone.all
    assert user("env", "list", "--deployed", "--json").json == {"deployed": []}


def test_what_cannot_be_an_environment_is_told(user: User) -> None:
    for words in (["put", "/nowhere"], ["deploy", "nobody/knows"], ["get", "nobody/knows"], ["call", "run-absent"], ["check"]):
        answer = user("env", *words)
        assert answer.code != 0, words
        assert answer.err.strip(), words
        assert "Traceback" not in answer.all, answer.all
    assert user("env", "check", "--list", "--json").json["checks"]
    assert user("env", "check", "http://127.0.0.1:1", "--json").json["passed"] is False


def test_a_failed_deploy_leaves_nothing_and_says_why(user: User) -> None:
    folder = user.stock()
    dockerfile = folder / "envs/stock/Dockerfile"
    dockerfile.write_text(dockerfile.read_text() + "ENV STOCK_BROKEN=1\n")
    answer = user("env", "deploy", folder / "envs/stock", "--json")
    assert answer.code != 0
    assert "the shelf is broken" in answer.all
    assert json.loads(answer.out or "{}").get("run") is None
    assert user("env", "list", "--deployed", "--json").json == {"deployed": []}

"""Steps as people and stores write them: shapes, round trips, and mistakes told with their path."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_env.errors import ProblemsError
from agent_env.steps import AgentTarget, EnvironmentTarget, SandboxTarget, parse_step, read_step
from agent_env.steps.deploy_agent import DeployAgent
from agent_env.steps.deploy_sandbox import DeploySandbox
from agent_env.steps.reading import read_fields
from agent_env.steps.registry import BUILT

WRITTEN: list[dict[str, Any]] = [
    {"id": "sb", "type": "deploy_sandbox", "sandbox_name": "box", "sandbox_mode": "container", "image": "python:3.12-slim", "port": 8000,
     "env_vars": {"A": "1"}, "cpu": 2, "memory_mb": 4096, "network_policy": {"mode": "allowlist", "allow_hosts": ["example.org"]},
     "metadata": {"attribution": {"team": "x"}}},
    {"id": "la1", "type": "load_artifact", "sandbox_name": "box", "artifacts": [{"id": "a", "version": 2}, {"id": "b"}],
     "destination_path": "/data"},
    {"id": "la2", "type": "load_artifact", "agent_name": "solver",
     "urls": ["https://h/x.csv", {"url": "https://h/d?id=1", "filename": "y.csv"}]},
    {"id": "la3", "type": "load_artifact", "env_id": "mail", "artifact_from_step_id": "snap"},
    {"id": "code", "type": "run_code", "script_artifact_id": "s", "script_file": "pkg/run.py", "entrypoint": "main", "args": {"k": 1},
     "result_id": "r", "timeout_seconds": 60, "env_id": "mail"},
    {"id": "col", "type": "collect_artifacts", "agent_name": "solver", "base_path": "/app/out",
     "artifact_paths": ["report.md", "/tmp/x.log"], "universe_id_suffix": "-out", "fail_task_on_error": False},
    {"id": "vs", "type": "verify_sandbox", "agent_name": "solver", "verifier_id": "v", "score_aggregator": "weighted_average", "criteria": [
        {"type": "probe_dir_exists", "paths": ["out"], "weight": 1},
        {"type": "probe_file_contains", "paths": ["out/a.txt"], "expected": "^ok$", "weight": 3},
        {"type": "bash_cmd_succeeds", "bash_cmd": "test -s out/a.txt", "weight": -1}]},
    {"id": "ag", "type": "aggregate_verifiers", "verifier_ids": ["v", "vr"], "verifier_id": "total"},
    {"id": "rev", "type": "review", "label": "look", "timeout_seconds": 600},
    {"id": "dc", "type": "run_docker_container", "sandbox_name": "box", "docker_context_artifact_id": "ctx", "container_name": "db",
     "ports": [5432], "ready_command": "pg_isready", "network": "net1"},
    {"id": "vu", "type": "run_container_unit_tests_verifier", "sandbox_name": "box", "container_name": "db",
     "command": "bash /tests/run.sh", "reward_path": "/logs/reward.txt", "timeout_sec": 120},
    {"id": "env", "type": "deploy_env", "env_id": "mail", "gateway_mode": "consistent", "depends_on": []},
    {"id": "da", "type": "deploy_agent", "env_ids": ["mail"], "agent_name": "solver", "role": "worker", "system_prompt": "Be brief <name>",
     "skills": [{"name": "s", "description": "d", "skill_md": "# s"}]},
    {"id": "ia", "type": "install_agent", "sandbox_name": "box", "container_name": "db", "a2a_agent_id": "pi", "a2a_port": 8001},
    {"id": "pr", "type": "prompt_agent", "agent_name": "solver", "prompt_id": "p", "max_conversation_turns": 3, "parts": [
        {"kind": "text", "text": "hi"},
        {"kind": "file", "file": {"uri": "https://h/a.png", "mimeType": "image/png", "name": "a.png"}}]},
    {"id": "hu", "type": "deploy_human_agent"},
    {"id": "as", "type": "add_skills", "agent_name": "solver", "skills": [{"name": "n", "description": "d", "body": "text"}]},
    {"id": "vp", "type": "agent_prompt_response_verifier", "prompt_id": "p", "verifier_id": "vp", "criteria": [
        {"type": "response_contains", "needles": ["42"]},
        {"type": "response_regex_present", "pattern": "done", "flags": ["IGNORECASE"]}]},
    {"id": "vr", "type": "rubrics_verifier", "prompt_id": "p", "verifier_id": "vr", "use_agent_judge": False, "use_trajectory": False,
     "output_format": "rubric_partial", "judge_batch_size": 5, "criteria": [{"id": "c-1", "title": "Polite", "weight": 1}]},
    {"id": "snapa", "type": "snapshot_agent_state", "prompt_id": "p", "agent_name": "solver"},
    {"id": "resta", "type": "restore_agent_state", "agent_name": "solver", "artifact_id": "state"},
    {"id": "atrig", "type": "register_agent_triggers", "agent_name": "user", "triggers": [
        {"id": "u1", "when": {"type": "env_trigger", "env_id": "mail", "trigger_id": "t1"}}]},
    {"id": "peer", "type": "peer_agents", "peerings": [{"source_agent_name": "solver", "peer_agent_names": ["human_agent"]}]},
    {"id": "tools", "type": "modify_env_tool_access", "env_id": "mail", "action": "disable", "role": "worker", "tools": ["send_email"]},
    {"id": "cfg", "type": "apply_server_config", "env_id": "mail", "tolerate_unadvertised": True, "directives": [
        {"service": "*", "uri": "urn:agentenv:set-errors/v1", "args": {"tool_name": "x"}}]},
    {"id": "clock", "type": "sync_env_clock", "env_id": "mail", "virtual_time": "2030-01-01T00:00:00Z",
     "virtual_seconds_per_real_second": 60},
    {"id": "trig", "type": "register_env_triggers", "env_id": "mail", "await_fired": ["t1"], "triggers": [
        {"id": "t1", "when": {"type": "time", "at": "2030-01-01T00:05:00Z"}, "actions": []}]},
    {"id": "ve", "type": "env_outcome_verifier", "env_id": "mail", "file_artifact_id": "check", "verifier_id": "ve", "prompt_id": "p"},
    {"id": "snap", "type": "snapshot_env", "env_id": "mail", "include_env_changes": True},
    {"id": "cli", "type": "build_mcp_cli", "env_id": "mail", "command_name": "mailctl"},
    {"id": "reset", "type": "reset_env", "env_id": "mail"},
    {"id": "td", "type": "teardown_sandboxes", "sandbox_names": ["box"], "agent_names": ["solver"], "env_ids": ["mail"]},
]  # fmt: skip
"""One valid example of each type, as the reference publishes the fields."""

STORED: list[dict[str, Any]] = [
    {"id": "box", "type": "deploy_sandbox", "version": 1, "fail_task_on_error": True, "sandbox_name": "box", "sandbox_mode": "vm",
     "image": None, "cpu": 1.0, "memory_mb": 8192, "disk_size_gb": 10, "ttl_seconds": 7200, "exposed_ports": None, "boot_mode": None,
     "port": None, "env_vars": None, "sandbox_type": "local", "metadata": {}, "network_policy": None},
    {"id": "c", "type": "verify_sandbox", "version": 1, "fail_task_on_error": True, "depends_on": [{"task_step_id": "box"}],
     "retry_config": {"retry_from_step_id": "c", "max_retries": 1}, "criteria": [], "agent_name": None, "sandbox_name": "box",
     "base_dir": "/app", "shell_timeout_seconds": 120, "score_aggregator": "all_pass", "verifier_id": "c"},
]  # fmt: skip
"""Steps as the reference stores them."""


def problems_of(data: dict[str, Any], **options: Any) -> list[str]:
    with pytest.raises(ProblemsError) as caught:
        read_step(data, source="t.json", path="$[3]", **options)
    return [str(problem).removeprefix("t.json: $[3]") for problem in caught.value.problems]


@pytest.mark.parametrize("data", WRITTEN, ids=lambda data: f"{data['type']}-{data['id']}")
def test_every_type_is_read_without_a_warning_and_its_stored_form_reads_back_the_same(data: dict[str, Any]) -> None:
    step, warnings = read_step(data, source="t.json")
    stored = step.to_dict()
    assert warnings == []
    assert {key: stored[key] for key in data if key not in {"criteria", "network_policy", "skills"}} == {
        key: value for key, value in data.items() if key not in {"criteria", "network_policy", "skills"}
    }
    assert parse_step(json.loads(json.dumps(stored)), source="t.json").to_dict() == stored
    assert stored.get("criteria") == data.get("criteria")


def test_every_built_type_has_an_example() -> None:
    assert {data["type"] for data in WRITTEN} == set(BUILT)


@pytest.mark.parametrize("data", STORED, ids=lambda data: data["type"])
def test_a_stored_step_is_written_as_it_was_stored(data: dict[str, Any]) -> None:
    assert parse_step(data, source="t.json").to_dict() == data


def test_the_older_spelling_of_a_retry_is_read_and_the_newer_is_written() -> None:
    step, warnings = read_step({"id": "r", "type": "review", "retry_config": {"go_to_step_id": "a"}}, source="t")
    assert warnings == []
    assert step.to_dict()["retry_config"] == {"retry_from_step_id": "a", "max_retries": 1}


def test_own_fields_are_stored_only_when_they_say_something() -> None:
    plain = {"id": "v", "type": "verify_sandbox", "sandbox_name": "box"}
    assert not {"quiesce", "container_name", "timeout_seconds", "always_run"} & set(parse_step(plain, source="t").to_dict())
    said = {**plain, "quiesce": "kill", "timeout_seconds": 9, "always_run": True}
    stored = parse_step(said, source="t").to_dict()
    assert {key: stored[key] for key in ("quiesce", "timeout_seconds", "always_run")} == {
        "quiesce": "kill",
        "timeout_seconds": 9,
        "always_run": True,
    }


def test_unknown_keys_are_kept_and_warned_about_and_near_ones_are_mistakes() -> None:
    step, warnings = read_step({"id": "r", "type": "review", "colour": "red"}, source="t.json")
    assert step.to_dict()["colour"] == "red"
    assert "'colour' is kept and ignored" in str(warnings[0])
    assert problems_of({"id": "r", "type": "review", "lable": "x"}) == [".lable: unknown key 'lable' (did you mean 'label'?)"]
    assert "unknown key 'colour'" in problems_of({"id": "r", "type": "review", "colour": "red"}, strict=True)[0]


def test_keys_inside_lists_are_judged_as_those_of_a_step_and_told_where_they_belong() -> None:
    base = {"id": "v", "type": "verify_sandbox", "sandbox_name": "b"}
    assert problems_of({**base, "criteria": [{"type": "probe_file_exists", "path": ["x"]}]}) == [
        ".criteria[0].path: unknown key 'path' (did you mean 'paths'?)"
    ]
    command = {"type": "bash_cmd_succeeds", "bash_cmd": "sleep 2", "timeout_seconds": 1, "wait": 3, "base_dir": "/"}
    step, warnings = read_step({**base, "criteria": [command]}, source="t")
    assert step.to_dict()["criteria"] == [command]
    assert [problem.path for problem in warnings] == [f"$.criteria[0].{key}" for key in ("timeout_seconds", "wait", "base_dir")]
    assert [(problem.hint or "").partition(" ")[0] for problem in warnings] == ["shell_timeout_seconds", "", "it"]
    strict = problems_of({**base, "criteria": [command]}, strict=True)
    assert len(strict) == 3
    assert "shell_timeout_seconds of the step" in strict[0]
    answer = {"id": "a", "type": "agent_prompt_response_verifier", "prompt_id": "p"}
    _, warnings = read_step({**answer, "criteria": [{"type": "response_contains", "needles": ["x"], "note": "x"}]}, source="t")
    assert [problem.path for problem in warnings] == ["$.criteria[0].note"]
    other = {"type": "made_elsewhere", "anything": 1}
    assert not any("anything" in str(warning) for warning in read_step({**base, "criteria": [other]}, source="t")[1])
    agent = {"id": "d", "type": "deploy_agent", "skills": [{"name": "s", "skill_md": "# s", "colour": "red"}]}
    _, warnings = read_step(agent, source="t")
    assert [problem.path for problem in warnings] == ["$.skills[0].colour"]
    load = {"id": "l", "type": "load_artifact", "sandbox_name": "b", "artifacts": [{"id": "a", "verison": 2}]}
    assert problems_of(load) == [".artifacts[0].verison: unknown key 'verison' (did you mean 'version'?)"]


def test_all_mistakes_of_a_step_are_told_at_once_in_plain_words() -> None:
    found = problems_of(
        {"id": "a", "type": "verify_sandbox", "sandbx_name": "x", "score_aggregator": "all_pas", "shell_timeout_seconds": 0,
         "criteria": [{"type": "probe_file_exists", "paths": "x"}, {"type": "bash_cmd_succeeds"},
                      {"type": "probe_file_contains", "paths": ["x"], "expected": 3, "weight": True}]}
    )  # fmt: skip
    assert found == [
        ".criteria[0].paths: paths is a list, not the text 'x'",
        ".criteria[1]: bash_cmd is missing",
        ".criteria[2].weight: weight is a number, not true",
        ".criteria[2].expected: expected is text, not a number",
        ".shell_timeout_seconds: shell_timeout_seconds must be greater than 0",
        ".score_aggregator: score_aggregator must be one of ['all_pass', 'any_pass', 'weighted_average'], got 'all_pas' "
        "(did you mean 'all_pass'?)",
        ".sandbx_name: unknown key 'sandbx_name' (did you mean 'sandbox_name'?)",
    ]


def test_a_list_of_which_no_entry_is_right_is_not_said_to_be_empty() -> None:
    config = {"id": "c", "type": "apply_server_config", "env_id": "e", "directives": [{"uri": "x"}, {"service": "mail"}]}
    assert problems_of(config) == [".directives[0]: service is missing", ".directives[1]: uri is missing"]
    assert problems_of({**config, "directives": []}) == [".directives: directives must not be empty"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"sandbox_mode": "VM"}, "sandbox_mode must be one of ['container', 'vm'], got 'VM'"),
        ({"sandbox_name": ""}, "sandbox_name must not be empty"),
        ({"cpu": "many"}, "cpu is a number, not text"),
        ({"cpu": True}, "cpu is a number, not true"),
        ({"memory_mb": 1.5}, "memory_mb is a whole number"),
        ({"ttl_seconds": float("inf")}, "ttl_seconds is a finite number"),
        ({"exposed_ports": [0]}, "must be greater than or equal to 1"),
        ({"exposed_ports": 80}, "exposed_ports is a list, not a number"),
        ({"env_vars": {"A=B": "x"}}, "can't be an environment variable"),
        ({"env_vars": {"A": 1}}, ".env_vars.A: A is text, not a number"),
        ({"metadata": {"attribution": "me"}}, "attribution maps texts to texts"),
        ({"network_policy": {"hosts": ["h"]}}, ".network_policy.hosts: unknown key 'hosts' (accepted: allow_cidrs, allow_hosts, mode)"),
        ({"network_policy": {"alow_hosts": ["h"]}}, "unknown key 'alow_hosts' (did you mean 'allow_hosts'?)"),
        ({"network_policy": {"mode": "open"}}, "mode must be one of ['allow_all', 'allowlist', 'none'], got 'open'"),
        ({"network_policy": {"mode": "allowlist", "allow_hosts": "h"}}, "is a list of entries, not one text"),
        ({"network_policy": {"mode": "allowlist", "allow_hosts": ["*"]}}, "network_policy: a bare `*` host allows everything"),
        ({"network_policy": {"mode": "allow_all", "allow_hosts": ["h"]}}, "takes no allow_hosts"),
        ({"depends_on": "z"}, "is a list of step ids, not 'z'"),
        ({"retry_config": {"max_retries": 1}}, ".retry_config: retry_from_step_id is missing"),
    ],
)
def test_what_deploy_sandbox_refuses(change: dict[str, Any], says: str) -> None:
    base = {"id": "box", "type": "deploy_sandbox", "sandbox_name": "box", "sandbox_mode": "vm"}
    assert says in "\n".join(problems_of({**base, **change}))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"env_vars": {"A-B": "x"}}, "'A-B' can't be an environment variable"),
        ({"env_vars": {"A": "x\0"}}, "'A' can't be an environment variable"),
        ({"network": "none", "ports": [8080]}, "network 'none' gives the container no ports of its own"),
        ({"network": "container:db", "ports": [8080]}, "network 'container:db' gives the container no ports of its own"),
        ({"network": "none", "extra_networks": ["own"]}, "network 'none' can't have extra_networks"),
        ({"extra_networks": ["own", "host"]}, "extra_networks can't hold 'host'"),
        ({"volumes": ["a b:/x"]}, "'a b' is no name of a volume"),
        ({"volumes": ["./x:/x"]}, "a folder is written whole"),
        ({"volumes": ["a:x"]}, "'a:x' is no volume"),
        ({"volumes": ["a:/"]}, "'a:/' is no volume"),
        ({"volumes": ["a:/x:z"]}, "'a:/x:z' is no volume"),
        ({"volumes": ["a:/x", "b:/x/:ro"]}, "puts two volumes at /x"),
    ],
)
def test_se02_po07_what_run_docker_container_refuses(change: dict[str, Any], says: str) -> None:
    base = {"id": "c", "type": "run_docker_container", "sandbox_name": "box", "image": "debian:12"}
    assert says in "\n".join(problems_of({**base, **change}))


NAMES = {"sandbox_name": "box", "agent_name": "solver", "env_id": "mail"}


@pytest.mark.parametrize("type", ["verify_sandbox", "run_code", "load_artifact", "collect_artifacts"])
def test_b13_two_explicit_targets_are_a_mistake_that_names_both(type: str) -> None:
    base = {"id": "s", "type": type, "script_artifact_id": "x"}
    fields = [name for name in NAMES if not (type == "verify_sandbox" and name == "env_id")]
    for first, second in [(a, b) for a in fields for b in fields if a < b]:
        found = problems_of({**base, first: NAMES[first], second: NAMES[second]})
        assert first in found[0]
        assert second in found[0]


@pytest.mark.parametrize("type", ["verify_sandbox", "run_code", "collect_artifacts"])
def test_b13_blank_is_unset_and_a_stored_default_agent_beside_another_target_loads(type: str) -> None:
    base = {"id": "s", "type": type, "script_artifact_id": "x"}
    assert parse_step(base, source="t").target == AgentTarget("default-agent")
    assert parse_step({**base, "sandbox_name": " ", "agent_name": ""}, source="t").target == AgentTarget("default-agent")
    beside = parse_step({**base, "sandbox_name": "box", "agent_name": "default-agent"}, source="t")
    assert beside.target == SandboxTarget("box")
    assert beside.to_dict()["agent_name"] is None


def test_b13_load_artifact_has_no_default_agent() -> None:
    assert "names no target" in problems_of({"id": "l", "type": "load_artifact", "artifact_id": "a"})[0]
    beside = parse_step(
        {"id": "l", "type": "load_artifact", "env_id": "mail", "agent_name": "default-agent", "artifact_id": "a"}, source="t"
    )
    assert beside.target == EnvironmentTarget("mail")


def test_container_name_needs_its_sandbox() -> None:
    assert "container_name needs the sandbox_name" in problems_of({"id": "v", "type": "collect_artifacts", "container_name": "db"})[0]
    step = parse_step({"id": "v", "type": "collect_artifacts", "container_name": "db", "sandbox_name": "box"}, source="t")
    assert step.target == SandboxTarget("box", "db")


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"artifacts": [], "artifact_id": "a"}, "set artifacts or artifact_id, not both"),
        ({"artifact_from_step_id": "x", "artifact_id": "a"}, "can't stand beside"),
        ({"collected_artifacts_step_id": "x", "urls": ["http://h/x"]}, "can't stand beside"),
        ({"artifact_id": "a", "destination_path": "data"}, "must be an absolute path"),
        ({"artifact_id": "a", "artifact_version": 0}, "must be greater than or equal to 1"),
        ({"artifacts": {"id": "a"}}, "artifacts is a list, not an object"),
    ],
)
def test_what_load_artifact_refuses(fields: dict[str, Any], says: str) -> None:
    assert says in problems_of({"id": "l", "type": "load_artifact", "sandbox_name": "box", **fields})[0]


def test_urls_need_an_agent_or_sandbox() -> None:
    assert "urls need an agent or sandbox" in problems_of({"id": "l", "type": "load_artifact", "env_id": "m", "urls": ["http://h/x"]})[0]


def test_teardown_forbids_failing_the_task_and_needs_a_name() -> None:
    base = {"id": "t", "type": "teardown_sandboxes"}
    assert "names nothing to tear down" in problems_of(base)[0]
    assert "must be false" in problems_of({**base, "sandbox_names": ["b"], "fail_task_on_error": True})[0]
    assert parse_step({**base, "sandbox_names": ["b"]}, source="t").fail_task_on_error is False


def test_names_that_are_not_given_are_the_steps_id() -> None:
    assert parse_step({"id": "v", "type": "verify_sandbox"}, source="t").to_dict()["verifier_id"] == "v"
    assert parse_step({"id": "v", "type": "aggregate_verifiers", "verifier_id": ""}, source="t").to_dict()["verifier_id"] == "v"
    assert parse_step({"id": "v", "type": "run_code", "script_artifact_id": "s"}, source="t").to_dict()["result_id"] == "v"


def test_run_code_and_review_hold_their_own_limits_and_other_steps_leave_it_to_the_engine() -> None:
    assert parse_step({"id": "r", "type": "run_code", "script_artifact_id": "s", "timeout_seconds": 3}, source="t").deadline_seconds is None
    assert parse_step({"id": "r", "type": "review", "timeout_seconds": 3}, source="t").deadline_seconds is None
    assert parse_step({"id": "r", "type": "verify_sandbox", "timeout_seconds": 3}, source="t").deadline_seconds == 3


class Nothing:
    """A plan that knows nothing."""

    task_id = "t"
    artifacts = None

    def deployers(self, step_id: str, type: str, **fields: Any) -> tuple[()]:
        return ()

    def step(self, step_id: str) -> None:
        return None

    def before(self, step_id: str) -> tuple[()]:
        return ()

    def artifact(self, id: str, version: int | None) -> None:
        return None

    artifact_files = environment = artifact

    def preset(self, list: str) -> tuple[()]:
        return ()


NOTHING_KNOWN = Nothing()
CRITERIA = st.lists(
    st.fixed_dictionaries(
        {"type": st.sampled_from(["probe_file_contains", "probe_file_exists", "bash_cmd_succeeds", "probe_fil_exists", "x", 3])},
        optional={"paths": st.lists(st.text(max_size=5), max_size=2), "expected": st.text(max_size=8), "bash_cmd": st.text(max_size=3)},
    ),
    max_size=3,
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
FIELD_NAMES = sorted({key for data in [*WRITTEN, *STORED] for key in data} - {"type"})


@settings(max_examples=150, deadline=None)
@given(type=st.sampled_from(sorted(BUILT)), fields=st.dictionaries(st.sampled_from(FIELD_NAMES), JSON, max_size=6), criteria=CRITERIA)
def test_no_json_makes_reading_or_checking_raise_anything_but_problems(type: str, fields: dict[str, Any], criteria: list[Any]) -> None:
    data = {"id": "s", **fields, "type": type}
    if type == "verify_sandbox" and criteria:
        data["criteria"] = criteria
    try:
        step = parse_step(data, source="t.json")
    except ProblemsError as error:
        told = [problem for problem in error.problems if problem.message and problem.file == "t.json"]
    else:
        told = [step.to_dict()["type"], *map(str, step.problems(NOTHING_KNOWN))]
    assert told


@pytest.mark.parametrize(
    ("mode", "fields", "idle"),
    [
        ("vm", {"port": 80, "env_vars": {"A": "b"}, "exposed_ports": [80], "boot_mode": "x"}, ["port", "env_vars"]),
        ("container", {"image": "i", "port": 80, "env_vars": {"A": "b"}, "exposed_ports": [80]}, ["exposed_ports"]),
        ("vm", {"port": None, "env_vars": {}, "exposed_ports": None}, []),
    ],
)
def test_what_a_sandbox_does_not_read_in_its_mode_is_told_and_refused_where_all_is(
    mode: str, fields: dict[str, object], idle: list[str]
) -> None:
    data = {"id": "b", "type": "deploy_sandbox", "sandbox_name": "b", "sandbox_mode": mode, **fields}
    _, warnings = read_fields(DeploySandbox, data, source="t.json", path="$[0]")
    assert [str(warning) for warning in warnings] == [f"t.json: $[0].{name}: {name} does nothing in the mode {mode!r}" for name in idle]
    if idle:
        with pytest.raises(ProblemsError):
            read_fields(DeploySandbox, data, source="t.json", strict=True)


def test_entries_of_an_allow_list_that_open_nothing_are_told_with_what_would() -> None:
    policy = {
        "mode": "allowlist",
        "allow_hosts": ["pypi.org", "127.0.0.1", "localhost:8080", "[fd00::1]:443", "192.168.1.5:*", "8.8.8.8"],
        "allow_cidrs": ["10.0.0.0/8", "1.0.0.0/8", "0.0.0.0/0", "169.254.169.254/32"],
    }
    told = ["allow_hosts[1]", "allow_hosts[2]", "allow_hosts[3]", "allow_hosts[4]", "allow_cidrs[0]", "allow_cidrs[3]"]
    for step, fields in (
        (DeploySandbox, {"type": "deploy_sandbox", "sandbox_name": "b", "sandbox_mode": "vm"}),
        (DeployAgent, {"type": "deploy_agent"}),
    ):
        data = {"id": "b", **fields, "network_policy": policy}
        _, warnings = read_fields(step, data, source="t.json", path="$[0]", strict=True)  # a configuration may open them
        assert [warning.path for warning in warnings] == [f"$[0].network_policy.{path}" for path in told]
        assert "'127.0.0.1' opens nothing by itself: it is this machine's loopback" in warnings[0].message
        assert all("allow_private" in (warning.hint or "") for warning in warnings)

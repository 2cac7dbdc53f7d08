"""Every field of the first part's steps beside the specification: names, what an absent one means, older spellings, what is ours alone."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import pytest

from agent_env.defaults import DEFAULT_LIMITS
from agent_env.errors import ProblemsError
from agent_env.steps import parse_step
from agent_env.steps.contract import Step
from agent_env.steps.registry import step_class

COMMON = {"id", "type", "version", "depends_on", "fail_task_on_error", "retry_config"}
"""Fields of every step in the reference."""
OURS = {"timeout_seconds", "always_run"}
"""Fields of every step here: a limit of the whole step, and running also after a failure."""
AGENT = "default-agent"


@dataclass(frozen=True)
class Spec:
    """One type of the specification."""

    needs: dict[str, Any]
    """The least that a step of it has."""
    defaults: dict[str, Any]
    """Every other field, and its value when it is absent; the stored form writes them all."""
    ours: frozenset[str] = frozenset()
    """Fields that the reference does not have: stored only when they say something."""
    older: dict[str, tuple[Any, dict[str, Any]]] = field(default_factory=dict)
    """An older spelling → an example, and what is stored for it."""
    differs: dict[str, Any] = field(default_factory=dict)
    """Where an absent field is stored otherwise than the reference stores it, and why that means the same (see the comments)."""


SPEC = {
    "deploy_sandbox": Spec(
        needs={"sandbox_name": "b", "sandbox_mode": "vm"},
        defaults={
            "image": None, "cpu": 1.0, "memory_mb": 8192, "disk_size_gb": 10, "ttl_seconds": 7200, "exposed_ports": None, "boot_mode": None,
            "port": None, "env_vars": None, "sandbox_type": None, "metadata": {}, "network_policy": None,
        },
    ),
    "load_artifact": Spec(
        needs={"sandbox_name": "b", "artifact_id": "a"},
        defaults={
            "env_id": None, "env_step_id": None, "artifacts": None, "artifact_version": None, "urls": None, "artifact_from_step_id": None,
            "collected_artifacts_step_id": None, "destination_path": None, "agent_name": None, "container_name": None,
            "snapshot_after_load": None,
        },
        ours=frozenset({"owner", "environment_name"}),
        older={"collected_artifacts_step_id": ("s", {"collected_artifacts_step_id": "s"})},
    ),
    "run_code": Spec(
        needs={"script_artifact_id": "a"},
        defaults={
            "script_artifact_version": None, "script_file": None, "entrypoint": "run", "args": {}, "result_id": "s", "timeout_seconds": 600,
            "env_id": None, "sandbox_name": None, "agent_name": AGENT,
        },
        differs={"timeout_seconds": None},  # null is 600 in the reference too; here the configuration may say another number
    ),
    "verify_sandbox": Spec(
        needs={},
        defaults={
            "criteria": [], "agent_name": AGENT, "sandbox_name": None, "base_dir": "/app", "shell_timeout_seconds": 120,
            "score_aggregator": "all_pass", "verifier_id": "s",  # the reference's is random: docs/differences.md
        },
        ours=frozenset({"container_name", "quiesce"}),
    ),
    "collect_artifacts": Spec(
        needs={},
        defaults={
            "agent_name": AGENT, "base_path": "/app/artifact", "artifacts_key": "expected_artifacts", "artifact_paths": [], "env_id": None,
            "manifest_step_id": None, "exclude_basenames": [], "sandbox_name": None, "container_name": None, "universe_id_suffix": None,
        },
    ),
    "aggregate_verifiers": Spec(
        needs={}, defaults={"verifier_ids": [], "score_aggregator": "weighted_average", "verifier_id": "s"}
    ),
    "teardown_sandboxes": Spec(needs={"sandbox_names": ["b"]}, defaults={"agent_names": [], "env_ids": []}),
    "review": Spec(needs={}, defaults={"label": None, "timeout_seconds": 10800, "poll_interval_seconds": 5}),
}  # fmt: skip
EACH = pytest.mark.parametrize(("type", "spec"), SPEC.items(), ids=SPEC)


def read(type: str, fields: dict[str, Any]) -> Step:
    return parse_step({"id": "s", "type": type, **fields}, source="t.json")


@EACH
def test_a_type_has_the_specifications_fields_and_ours_and_no_others(type: str, spec: Spec) -> None:
    fields = set(step_class(type).model_fields)
    assert fields - COMMON - OURS - spec.ours == (set(spec.needs) | set(spec.defaults)) - OURS
    assert step_class(type).own_fields == spec.ours


@EACH
def test_an_absent_field_means_and_is_stored_as_the_specification_says(type: str, spec: Spec) -> None:
    stored = read(type, spec.needs).to_dict()
    forgiving = {"fail_task_on_error": type != "teardown_sandboxes"}
    assert stored == {"id": "s", "type": type, "version": None, **forgiving, **spec.needs, **spec.defaults, **spec.differs}


@EACH
def test_every_field_may_be_given_as_its_own_default(type: str, spec: Spec) -> None:
    """What the reference stored is read back the same: nulls, empty lists and all."""
    read_back = read(type, spec.needs | spec.defaults).to_dict()
    assert read_back == read(type, spec.needs).to_dict() | (
        {"timeout_seconds": spec.defaults["timeout_seconds"]} if "timeout_seconds" in spec.defaults else {}
    )


@EACH
def test_every_field_of_every_step_is_accepted(type: str, spec: Spec) -> None:
    common = {
        "version": 3,
        "depends_on": ["a", {"task_step_id": "b"}],
        "fail_task_on_error": False,
        "retry_config": {"go_to_step_id": "s", "max_retries": 0},
    }
    stored = read(type, spec.needs | common).to_dict()
    assert stored["version"] == 3
    assert stored["depends_on"] == [{"task_step_id": "a"}, {"task_step_id": "b"}]
    assert stored["retry_config"] == {"retry_from_step_id": "s", "max_retries": 0}
    assert stored["fail_task_on_error"] is False
    assert not OURS & set(stored) - set(spec.defaults)


@pytest.mark.parametrize(
    ("type", "name", "example", "stored"),
    [(type, name, example, stored) for type, spec in SPEC.items() for name, (example, stored) in spec.older.items()],
)
def test_an_older_spelling_means_what_it_meant(type: str, name: str, example: Any, stored: dict[str, Any]) -> None:
    needs = {key: value for key, value in SPEC[type].needs.items() if key != "artifact_id"}
    step = read(type, needs | {name: example})
    assert {key: step.to_dict()[key] for key in stored} == stored
    assert getattr(step, "source_step", example) == example


@pytest.mark.parametrize("value", [None, 0, 600])
def test_a_script_without_a_limit_of_its_own_has_600_seconds(value: int | None) -> None:
    step = read("run_code", {"script_artifact_id": "a", "timeout_seconds": value})
    from agent_env.defaults import DEFAULT_LIMITS

    assert float(step.timeout_seconds or DEFAULT_LIMITS.run_code_seconds) == 600
    assert step.deadline_seconds is None


@pytest.mark.parametrize(
    ("type", "fields", "says"),
    [
        ("deploy_sandbox", {"sandbox_name": "b"}, "sandbox_mode"),
        ("deploy_sandbox", {"sandbox_name": "b", "sandbox_mode": "pod"}, "vm"),
        ("load_artifact", {"sandbox_name": "b", "artifacts": [{"id": "a"}], "artifact_id": "a"}, "not both"),
        ("load_artifact", {"sandbox_name": "b", "artifact_from_step_id": "s", "urls": ["https://h/a"]}, "can't stand beside"),
        ("load_artifact", {"agent_name": "a", "container_name": "c", "artifact_id": "a"}, "container_name"),
        ("load_artifact", {"artifact_id": "a"}, "names no target"),
        ("load_artifact", {"container_name": "c", "artifact_id": "a"}, "container_name needs the sandbox_name"),
        ("load_artifact", {"env_id": "e", "urls": ["https://h/a"]}, "urls need an agent or sandbox"),
        ("run_code", {"script_artifact_id": "a", "sandbox_name": "b", "env_id": "e"}, "set at most one of"),
        ("verify_sandbox", {"sandbox_name": "b", "agent_name": "other"}, "set at most one of"),
        ("verify_sandbox", {"score_aggregator": "mean"}, "score_aggregator"),
        ("collect_artifacts", {"sandbox_name": "b", "env_id": "e"}, "set at most one of"),
        ("collect_artifacts", {"container_name": "c"}, "container_name needs the sandbox_name"),
        ("collect_artifacts", {"env_id": "e", "sandbox_name": "b", "container_name": "c"}, "set at most one of"),
        ("teardown_sandboxes", {}, "names nothing to tear down"),
        ("teardown_sandboxes", {"sandbox_names": ["b"], "fail_task_on_error": True}, "must be false"),
    ],
)
def test_what_the_specification_refuses_is_refused_with_its_field(type: str, fields: dict[str, Any], says: str) -> None:
    from tests.documents.fuzzing import problems_of

    assert says in "\n".join(map(str, problems_of(lambda: read(type, fields))))


CRITERIA = [
    {"type": "probe_file_exists", "criterion": "made it", "paths": ["out.txt"], "weight": 2},
    {"type": "probe_dir_exists", "paths": ["out"], "weight": -1.5},
    {"type": "probe_file_contains", "paths": ["a", "ignored"], "expected": "^ok$"},
    {"type": "probe_file_contains", "paths": ["a"], "value": "ok"},
    {"type": "bash_cmd_succeeds", "bash_cmd": "true", "anything": {"else": [1]}},
    {"type": "judged_elsewhere", "rubric": "nice"},
]


def test_criteria_are_kept_as_their_author_wrote_them() -> None:
    assert read("verify_sandbox", {"criteria": CRITERIA}).to_dict()["criteria"] == CRITERIA


def test_network_policies_are_stored_whole() -> None:
    fields = {"sandbox_name": "b", "sandbox_mode": "vm", "network_policy": {"mode": "allowlist", "allow_hosts": ["example.org"]}}
    stored = read("deploy_sandbox", fields).to_dict()["network_policy"]
    assert stored == {"mode": "allowlist", "allow_hosts": ["example.org"], "allow_cidrs": []}


LIMITS = [
    ("run_code", "timeout_seconds", {"script_artifact_id": "s"}),
    ("verify_sandbox", "shell_timeout_seconds", {}),
    ("verify_sandbox", "timeout_seconds", {}),
    ("review", "timeout_seconds", {}),
]


@pytest.mark.parametrize(("type", "field", "others"), LIMITS)
def test_tp03_a_limit_of_time_that_can_be_none_is_refused_with_its_path(type: str, field: str, others: dict[str, object]) -> None:
    for wrong in (-1, True, "soon", [60], "-3", *([0] if type != "run_code" else [])):
        with pytest.raises(ProblemsError) as raised:
            parse_step({"id": "s", "type": type, **others, field: wrong}, source="t.json")
        assert f"t.json: $.{field}: {field} " in str(raised.value), wrong
    for right in (60, 60.0, "60"):  # seeds fill in text
        assert getattr(parse_step({"id": "s", "type": type, **others, field: right}, source="t.json"), field) == 60


def test_tp03_what_waits_for_a_script_a_command_or_a_person_has_a_limit_where_none_is_written() -> None:
    for type, name, others in LIMITS:
        if (type, name) != ("verify_sandbox", "timeout_seconds"):  # of the whole step: each of its commands has one
            step = parse_step({"id": "s", "type": type, **others}, source="t")
            assert 0 < (getattr(step, name) or DEFAULT_LIMITS.run_code_seconds) < math.inf

"""Deploying, tearing down and reviewing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agent_env.defaults import GIB, MIB
from agent_env.errors import DeadlineError, ReviewAbortedError, UserError
from agent_env.places import Command
from agent_env.steps import Decision, Step, parse_step
from tests.steps.bench import BenchRun, on_bench
from tests.steps.conftest import Bench


def test_a_machine_is_deployed_and_recorded(tmp_path: Path) -> None:
    async def body(run: BenchRun) -> None:
        await run.do(
            {"id": "box", "type": "deploy_sandbox", "sandbox_mode": "vm", "memory_mb": 256, "disk_size_gb": 0.5, "env_vars": {"A": "1"}}
        )
        (record,) = run.context["deployed_sandboxes"]
        assert (record["sandbox_name"], record["sandbox_mode"], record["sandbox_type"]) == ("box", "vm", "local")
        (request,) = run.requests
        assert (request.memory_bytes, request.disk_bytes, request.ttl_seconds) == (256 * MIB, GIB // 2, 7200.0)
        assert request.env == {}
        assert dict(request.attribution) == {"pipeline_step": "bench_box", "run_id": "bench-12345678"}
        assert (await (await run.box()).run(Command(["true"]))).ok

    on_bench(tmp_path, body, deployed=False)


def test_overrides_of_the_run_win_over_the_step(tmp_path: Path) -> None:
    async def body(run: BenchRun) -> None:
        run.user_overrides = {"sandbox": "local", "ttl_seconds": 60, "network_policy": {"mode": "none"}}
        await run.do({"id": "box", "type": "deploy_sandbox", "sandbox_mode": "vm", "sandbox_type": "modal_vm"})
        (request,) = run.requests
        assert (request.provider, request.ttl_seconds) == ("local", 60.0)
        assert request.network is not None
        assert request.network.mode == "none"
        run.user_overrides = {"ttl_seconds": "soon"}
        with pytest.raises(UserError, match="ttl_seconds is a number"):
            await run.do({"id": "two", "type": "deploy_sandbox", "sandbox_mode": "vm", "sandbox_name": "two"})
        run.user_overrides = {"network_policy": {"mode": "allow_all", "allow_hosts": ["h"]}}
        with pytest.raises(UserError, match="takes no allow_hosts"):
            await run.do({"id": "two", "type": "deploy_sandbox", "sandbox_mode": "vm", "sandbox_name": "two"})
        run.user_overrides = {"network_policy": {"mode": "none", "hosts": ["h"]}}
        with pytest.raises(UserError, match=r"unknown key 'hosts' \(accepted: allow_cidrs, allow_hosts, mode\)"):
            await run.do({"id": "two", "type": "deploy_sandbox", "sandbox_mode": "vm", "sandbox_name": "two"})

    on_bench(tmp_path, body, deployed=False)


def test_b1_a_name_that_is_deployed_already_is_refused(bench: Bench) -> None:
    async def body(run: BenchRun) -> None:
        with pytest.raises(UserError, match="Sandbox 'box' is already deployed"):
            await run.do({"type": "deploy_sandbox", "sandbox_mode": "vm"})
        assert len(run.requests) == 1

    bench(body)


class Earlier:
    """A plan in which some steps come before."""

    artifacts = None

    def __init__(self, *steps: Step) -> None:
        self.steps = steps

    def deployers(self, step_id: str, type: str, **fields: Any) -> list[Step]:
        return [
            step for step in self.steps if step.type_name == type and all(getattr(step, name) == value for name, value in fields.items())
        ]


@pytest.mark.parametrize("given", [{}, {"image": "i"}, {"port": 80}, {"image": " ", "port": 80}])
def test_b1_container_mode_needs_an_image_and_a_port(given: dict[str, Any]) -> None:
    step = parse_step({"id": "b", "type": "deploy_sandbox", "sandbox_name": "b", "sandbox_mode": "container", **given}, source="t")
    (problem,) = step.problems(Earlier())
    assert problem.message == "container-mode sandbox requires `image` and `port`"
    assert all(name in str(problem.hint) for name in {"image", "port"} - {name for name, value in given.items() if value != " "})


def test_b1_a_name_that_an_earlier_step_deploys_is_found_before_anything_starts() -> None:
    first, second = (
        parse_step({"id": id, "type": "deploy_sandbox", "sandbox_name": "box", "sandbox_mode": "vm"}, source="t") for id in ("one", "two")
    )
    (problem,) = second.problems(Earlier(first))
    assert str(problem) == ".sandbox_name: Sandbox 'box' is already deployed by step 'one' (give one of them another name)"


@pytest.mark.parametrize(
    ("policy", "fields", "held"),
    [
        (None, {"network": "net"}, True),
        ({"mode": "allow_all"}, {}, True),
        ({"mode": "none"}, {}, True),
        ({"mode": "none"}, {"network": "none"}, True),
        ({"mode": "none"}, {"network": "net"}, False),
        ({"mode": "none"}, {"extra_networks": ["net"]}, False),
        ({"mode": "allowlist", "allow_hosts": ["pypi.org"]}, {}, False),
    ],
)
def test_np03_a_policy_that_can_not_be_held_beside_a_machine_is_found_before_anything_starts(
    policy: dict[str, Any] | None, fields: dict[str, Any], held: bool
) -> None:
    box = {"id": "box", "type": "deploy_sandbox", "sandbox_name": "box", "sandbox_mode": "vm", "network_policy": policy}
    beside = {"id": "c", "type": "run_docker_container", "sandbox_name": "box", "image": "a", **fields}
    plan = Earlier(parse_step(box, source="t"))
    said = [str(problem) for problem in parse_step(beside, source="t").problems(plan) if "network policy" in problem.message]
    assert ([text.partition(":")[0] for text in said] == [".sandbox_name"]) is not held


def test_teardown_removes_what_is_named_and_only_remarks_what_is_not_there(bench: Bench) -> None:
    async def body(run: BenchRun) -> None:
        await run.do({"id": "other", "type": "deploy_sandbox", "sandbox_mode": "vm", "sandbox_name": "other"})
        ids = [record["sandbox_id"] for record in run.context["deployed_sandboxes"]]
        run.context["deployed_envs"] = [
            {"env_id": "mail", "env_version": 1, "sandbox_ids": {"a": "local-gone1", "b": {"c": "local-gone2"}}}
        ]
        step = {"type": "teardown_sandboxes", "sandbox_names": ["box", "ghost", "box"], "env_ids": ["mail"]}
        result = await run.do(step)
        assert run.metadata["torn_down_sandbox_ids"] == ["local-gone1", "local-gone2", ids[0]]
        assert "'ghost' is not in deployed_sandboxes" in result.summary()
        assert list(run.sandboxes) == [ids[1]]
        assert len(run.context["deployed_sandboxes"]) == 2
        await run.do({**step, "sandbox_names": ["other"], "env_ids": []})
        assert run.metadata["torn_down_sandbox_ids"] == ["local-gone1", "local-gone2", *ids]

    bench(body)


def answered(tmp_path: Path, decision: Decision | None, responses: list[dict[str, Any]]) -> BenchRun:
    held: list[BenchRun] = []

    async def body(run: BenchRun) -> None:
        held.append(run)
        run.decision = decision
        run.context["prompt_responses"] = responses
        await run.do({"id": "look", "type": "review", "label": "ok?", "timeout_seconds": 60})

    on_bench(tmp_path, body, deployed=False)
    return held[0]


def test_a_review_shows_what_came_before_and_records_who_decided(tmp_path: Path) -> None:
    run = answered(tmp_path, Decision("continue", "ana"), [{"prompt_id": "p", "response": "r" * 5000}])
    assert run.asked == {"label": "ok?", "upstream": "r" * 4000, "timeout_seconds": 60.0}
    assert run.metadata["review_decisions"] == {"look": {"decision": "continue", "decided_by": "ana"}}


def test_a_review_prefers_a_structured_output_and_cuts_it(tmp_path: Path) -> None:
    structured = {"prompt_id": "p", "response": "r", "structured_output": {"text": "x" * 20000}}
    assert len(answered(tmp_path, Decision("continue", "ana"), [structured]).asked["upstream"]) == 16000


def test_a_review_that_is_aborted_or_never_answered_fails_its_step(tmp_path: Path) -> None:
    with pytest.raises(ReviewAbortedError, match="decided by ana: abort"):
        answered(tmp_path, Decision("abort", "ana"), [])
    with pytest.raises(DeadlineError):
        answered(tmp_path, None, [])


def test_two_sandboxes_do_not_see_each_others_files(bench: Bench) -> None:
    async def body(run: BenchRun) -> None:
        await run.do({"id": "other", "type": "deploy_sandbox", "sandbox_mode": "vm", "sandbox_name": "other"})
        await run.sh("echo mine > /app/x")
        result = await run.do(
            {"id": "v", "type": "verify_sandbox", "sandbox_name": "other", "criteria": [{"type": "probe_file_exists", "paths": ["x"]}]}
        )
        assert result.score == 0.0

    bench(body)


def test_b6_loading_touches_nothing_of_this_machine(bench: Bench, tmp_path: Path) -> None:
    async def body(run: BenchRun) -> None:
        run.artifacts.put_file("f", b"1", filename="canary-of-a-step-test")
        await run.do({"type": "load_artifact", "artifact_id": "f", "destination_path": "/tmp/loaded-by-a-step-test"})
        assert await run.sh("cat /tmp/loaded-by-a-step-test/canary-of-a-step-test") == "1"

    bench(body)
    assert not Path("/tmp/loaded-by-a-step-test").exists()

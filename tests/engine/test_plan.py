"""What is known to be wrong before anything starts."""

from __future__ import annotations

import subprocess
import sys

import pytest

from agent_env.documents.task import parse_task
from agent_env.engine import plan_task
from agent_env.errors import ProblemsError
from tests.engine.parts import register

BOX = {"id": "box", "type": "deploy_sandbox", "sandbox_name": "box", "sandbox_mode": "vm"}


def check(**more):
    criteria = [{"type": "probe_file_exists", "criterion": "there", "paths": ["x"]}]
    return {"id": "check", "type": "verify_sandbox", "sandbox_name": "box", "criteria": criteria, **more}


def plan(*steps, **options):
    register()
    return plan_task(parse_task(list(steps), source="t.json", task_id="t"), source="t.json", **options)


def problems(*steps, **options):
    with pytest.raises(ProblemsError) as found:
        plan(*steps, **options)
    return [(problem.path, problem.message, problem.hint) for problem in found.value.problems]


def test_a_sandbox_that_no_earlier_step_deploys_is_named_with_a_near_spelling():
    ((path, message, hint),) = problems({**BOX, "sandbox_name": "boxx"}, check(sandbox_name="boxy"))
    assert path == "$[1].sandbox_name"
    assert "'boxy'" in message
    assert hint == "did you mean 'boxx'?"


def test_a_name_whose_provider_is_not_waited_for_says_what_to_add():
    ((path, message, hint),) = problems(BOX, check(depends_on=[]))
    assert (path, hint) == ("$[1].sandbox_name", "add 'box' to depends_on")
    assert "nothing makes this step wait" in message


def test_records_that_the_run_starts_with_count_as_provided():
    preset = {"deployed_sandboxes": [{"sandbox_name": "box", "sandbox_id": "local-1", "sandbox_mode": "vm"}]}
    assert plan(check(), preset=preset).preset("deployed_sandboxes") == preset["deployed_sandboxes"]


def test_unknown_names_of_a_teardown_only_warn_and_strict_makes_them_problems():
    free = {"id": "free", "type": "teardown_sandboxes", "sandbox_names": ["nobody"]}
    assert ["'nobody'" in str(warning) for warning in plan(BOX, free).warnings] == [True]
    assert len(problems(BOX, free, strict=True)) == 1


def test_after_a_plug_ins_step_a_missing_name_is_only_a_warning():
    assert len(plan({"id": "p", "type": "t_look"}, check()).warnings) == 1


def test_overrides_for_a_step_that_the_task_lacks_are_a_problem():
    ((path, _, hint),) = problems(BOX, check(), overrides={"step_params": {"chekc": {}}})
    assert (path, hint) == ("user_overrides.step_params", "did you mean 'check'?")


def test_all_problems_come_at_once_with_their_places():
    found = problems({**BOX, "sandbox_mode": "boat"}, check(shell_timeout_seconds="soon"), {"id": "x", "type": "nonsense"})
    assert {path.split(".")[0] for path, _, _ in found} == {"$[0]", "$[1]", "$[2]"}


def test_importing_the_engine_imports_nothing_that_a_run_may_do_without():
    code = "import agent_env.engine, sys; print([m for m in ('httpx', 'sqlalchemy', 'alembic', 'rich', 'psycopg') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"

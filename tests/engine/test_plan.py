"""What is known to be wrong before anything starts."""

from __future__ import annotations

import subprocess
import sys

import pytest

from agent_env.documents.task import parse_task
from agent_env.engine import RunOptions, plan_document, plan_task
from agent_env.engine.submission import prepared
from agent_env.errors import ProblemsError, UsageError
from agent_env.redaction import Redactor
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


def document_problems(*steps, **options):
    register()
    with pytest.raises(ProblemsError) as found:
        plan_document(list(steps), source="t.json", task_id="t", **options)
    return [(problem.path, problem.message) for problem in found.value.problems]


BROKEN_ENVELOPES = {
    "an unknown step to wait for": ({"depends_on": ["nobody"]}, "$[2].depends_on[0]"),
    "a later step to wait for": ({"depends_on": ["last"]}, "$[2].depends_on[0]"),
    "itself to wait for": ({"depends_on": ["broken"]}, "$[2].depends_on[0]"),
    "no list of steps to wait for": ({"depends_on": 3}, "$[2].depends_on"),
    "an unknown step to go back to": ({"retry_config": {"retry_from_step_id": "nobody"}}, "$[2].retry_config"),
    "no object to retry with": ({"retry_config": "often"}, "$[2].retry_config"),
    "a negative number of retries": (
        {"retry_config": {"retry_from_step_id": "broken", "max_retries": -1}},
        "$[2].retry_config.max_retries",
    ),
    "no truth about tolerance": ({"fail_task_on_error": "maybe"}, "$[2].fail_task_on_error"),
    "a broken version": ({"version": "one"}, "$[2].version"),
    "the id of another step": ({"id": "check"}, "$[2].id"),
    "no text as its id": ({"id": 7}, "$[2].id"),
    "an id with a control character": ({"id": "a\0"}, "$[2].id"),
}


@pytest.mark.parametrize("what", BROKEN_ENVELOPES)
def test_what_is_wrong_with_a_steps_place_in_the_graph_hides_nothing_else(what):
    more, place = BROKEN_ENVELOPES[what]
    broken = {**check(sandbox_name="absent", shell_timeout_seconds="soon"), "id": "broken", **more}
    found = document_problems({**BOX, "cpu": "many"}, check(criteria=7), broken, {**check(sandbox_name="nobody"), "id": "last"})
    own = [place, "$[2].shell_timeout_seconds", "$[2].sandbox_name"]
    assert [path for path, _ in found] == ["$[0].cpu", "$[1].criteria", *own, "$[3].sandbox_name"]


@pytest.mark.parametrize("what", BROKEN_ENVELOPES)
def test_names_that_nothing_provides_are_told_beside_a_broken_graph(what):
    more, place = BROKEN_ENVELOPES[what]
    broken = {**check(sandbox_name="absent"), "id": "broken", **more}
    found = document_problems(BOX, check(), broken, {**check(sandbox_name="nobody"), "id": "last"})
    assert [path for path, _ in found] == [place, "$[2].sandbox_name", "$[3].sandbox_name"]


def test_a_name_is_no_problem_where_it_is_not_known_what_the_step_waits_for():
    found = document_problems(BOX, check(depends_on=["bxo"]), {**check(depends_on=["check"]), "id": "after"})
    assert [path for path, _ in found] == ["$[1].depends_on[0]"]


def test_steps_without_a_type_and_the_others_are_told_of_at_once():
    found = document_problems({"id": "x", "sandbox_name": "y"}, {"type": "review", "timeout_seconds": -1}, {**BOX, "cpu": "many"})
    assert [path for path, _ in found] == ["$[0]", "$[1]", "$[1].timeout_seconds", "$[2].cpu"]


CONTROL = ("\0", "\n", "\x1b[31m", "\x7f", "\x85")


@pytest.mark.parametrize("character", CONTROL)
def test_no_name_of_a_task_holds_a_control_character(character):
    bad = f"a{character}b"
    steps = (
        {**BOX, "id": bad},
        {**BOX, "id": "t", "type": bad},
        {**BOX, "id": "s", "sandbox_name": bad},
        {**check(verifier_id=bad, sandbox_name="box2"), "id": "v"},
        {"id": "a", "type": "aggregate_verifiers", "verifier_ids": [bad]},
        {"id": "f", "type": "teardown_sandboxes", "sandbox_names": [bad]},
    )
    told = document_problems(*steps)
    assert {path for path, message in told if "control character" in message} == {
        "$[0].id",
        "$[1].type",
        "$[2].sandbox_name",
        "$[3].verifier_id",
        "$[4].verifier_ids",
        "$[5].sandbox_names",
    }
    assert all(message.isprintable() for _, message in told)


@pytest.mark.parametrize("field", ["sandbox_name", "id"])
def test_a_seeds_value_brings_no_control_character_into_a_name(field):
    made = plan({**BOX, field: "<name>"})
    with pytest.raises(ProblemsError, match="control character"):
        made.seeded({"name": "a\0"})


@pytest.mark.parametrize("run_id", ["", "../up", "a/b", "a\0b", "a\nb", ".hidden", "x" * 300])
def test_a_runs_id_that_could_not_name_its_folder_is_refused(run_id):
    with pytest.raises(UsageError, match="run id"):
        prepared(plan(BOX), RunOptions(run_id=run_id), Redactor(), str)


@pytest.mark.parametrize("field", ["group_id", "bundle_id", "bundle_path", "work_key"])
def test_what_a_run_belongs_to_holds_no_control_character(field):
    with pytest.raises(UsageError, match=field):
        prepared(plan(BOX), RunOptions(**{field: "a\0b"}), Redactor(), str)

"""How a run's ending is put into words."""

from __future__ import annotations

from agent_env.engine.outcome import described
from agent_env.errors import Problem, ProblemsError, UserError


def test_an_error_of_several_problems_names_each_of_them():
    error = ProblemsError(
        [Problem("is a link", file="context.zip", path="lnk", hint="leave it out"), Problem("leads outside", path="../x")]
    )
    message = str(described(error, "build")["message"])
    assert all(said in message for said in ("context.zip", "lnk", "is a link", "leave it out", "../x", "leads outside"))
    assert "\n" not in message


def test_an_error_of_no_problems_keeps_its_summary():
    assert described(ProblemsError([], summary="nothing fits"), None)["message"] == "nothing fits"


def test_a_hint_stands_apart_from_the_message():
    entry = described(UserError("no such file", hint="look again"), None)
    assert (entry["message"], entry["hint"]) == ("no such file", "look again")

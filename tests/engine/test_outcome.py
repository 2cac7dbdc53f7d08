"""How a run's ending is put into words."""

from __future__ import annotations

from datetime import UTC, datetime

from agent_env.engine.outcome import described, expiry_hint
from agent_env.errors import Problem, ProblemsError, SandboxUnavailableError, TransportLostError, UserError


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


def test_a_sandbox_that_is_gone_because_its_time_was_up_is_named():
    now = datetime(2026, 1, 1, 12, tzinfo=UTC)
    over = {"sandbox_name": "box", "expires_at_utc": "2026-01-01T11:59:59.000000Z"}
    context = {"deployed_sandboxes": [{"sandbox_name": "x", "expires_at_utc": None}, {**over, "expires_at_utc": "2026-01-01T12:00:01.0Z"}]}
    assert expiry_hint(TransportLostError("broke"), context, now) is None
    context["deployed_sandboxes"].append(over)
    assert expiry_hint(UserError("wrong"), context, now) is None
    for lost in (TransportLostError("broke"), SandboxUnavailableError("stopped")):
        assert "box at 2026-01-01T11:59:59" in str(expiry_hint(lost, context, now))

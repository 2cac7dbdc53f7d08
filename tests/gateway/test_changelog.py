"""Changes of a real database: told in pages, attributed to calls, and never in their way."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.gateway.parts import Live, Raw, agent, eventually, gateway, raw_server, text_of
from tests.gateway.raw_server import tool

LOG = """
CREATE TABLE public._changelog (
  id bigint PRIMARY KEY, "timestamp" timestamptz NOT NULL DEFAULT now(), schema_name text, table_name text, operation text,
  row_id text, summary text, changed_fields jsonb
)
"""
ROW = """
INSERT INTO public._changelog (id, schema_name, table_name, operation, row_id, summary, changed_fields)
VALUES (%s, 's', 't', 'INSERT', '1', 'x', '{"a": 1}')
"""


@contextmanager
def behind(tmp_path: Path, url: str, **limits: float) -> Iterator[tuple[Live, Raw, psycopg.Connection]]:
    with psycopg.connect(url, autocommit=True) as database, raw_server("s", tools=[tool("t")]) as server:
        database.execute(LOG)
        environ = {"AGENTENV_GATEWAY_DATABASE_URL": url}
        with gateway(tmp_path, server, environ=environ, limits={"reopen_max_seconds": 0.2, **limits}) as live:
            yield live, server, database


def test_changes_come_in_pages_and_a_change_during_a_call_is_the_call_s(tmp_path: Path, postgres_url: str) -> None:
    with behind(tmp_path, postgres_url) as (live, server, database), agent(live, "eve") as client:
        for number in (1, 2):
            database.execute(ROW, (number,))
        server.behave(call="hold")
        thread = threading.Thread(target=lambda: client.call("t"))
        thread.start()
        eventually(lambda: live.health()["calls_in_progress"] == 1)
        eventually(lambda: server.seen()["counts"].get("tools/call"))
        database.execute(ROW, (3,))
        server.behave(call=None)
        thread.join()
        first = live.get("/changes?limit=2").json()
        assert ([row["id"] for row in first["changes"]], first["has_more"]) == ([1, 2], True)
        rest = live.get("/changes?after_id=2").json()
        row = rest["changes"][0]
        assert (row["id"], row["operation"], row["changed_fields"], rest["has_more"]) == (3, "INSERT", {"a": 1}, False)
        assert [(actor["kind"], actor["role"], actor["tool"]) for actor in row["actors"]] == [("tool_call", "eve", "t")]
        assert first["changes"][0]["actors"] == []
        events = {event["event_type"]: event for event in live.trajectory()}
        assert (events["tool_call_result"]["changelog_id_before"], events["tool_call_result"]["changelog_id"]) == (2, 3)
        assert live.get("/state").json()["changelog_id"] == 3
        assert live.post("/step", {"action": "call_tool", "tool_name": "t"}).json()["changelog_id"] == 3


@pytest.mark.parametrize("query", ["after_id=-1", "after_id=x", "limit=0", "limit=10001", "limit="])
def test_a_page_that_is_none_is_refused(tmp_path: Path, postgres_url: str, query: str) -> None:
    with behind(tmp_path, postgres_url) as (live, _, _):
        assert live.get(f"/changes?{query}").status_code == 400


def test_a_database_that_is_gone_costs_attribution_and_no_call(tmp_path: Path, postgres_url: str) -> None:
    with behind(tmp_path, postgres_url, changelog_seconds=1.0) as (live, _, database), agent(live) as client:
        assert text_of(client.call("t")) == "s.t"
        database.execute("ALTER TABLE public._changelog RENAME TO gone")
        kill_others(database)
        assert [text_of(client.call("t")) for _ in range(5)] == ["s.t"] * 5
        answer = live.get("/changes")
        assert answer.status_code == 503
        assert "could not be read" in answer.json()["error"]
        assert "postgres" not in answer.text
        health = live.health()
        assert (health["status"], health["changelog"] == "ok") == ("ready", False)
        database.execute("ALTER TABLE public.gone RENAME TO _changelog")
        eventually(lambda: client.call("t") and live.health()["changelog"] == "ok")
        assert live.get("/changes").status_code == 200


def kill_others(database: psycopg.Connection[Any]) -> None:
    database.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )


def test_a_database_that_hangs_holds_up_a_call_once_and_not_for_long(tmp_path: Path, postgres_url: str) -> None:
    with (
        behind(tmp_path, postgres_url, changelog_seconds=0.3, reopen_max_seconds=30) as (live, _, database),
        agent(live) as client,
        database.transaction(),
    ):
        database.execute("LOCK TABLE public._changelog IN ACCESS EXCLUSIVE MODE")
        assert [text_of(client.call("t")) for _ in range(5)] == ["s.t"] * 5
        assert "did not answer within 0.3 s" in live.health()["changelog"]

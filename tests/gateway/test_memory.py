"""What the gateway writes down: the journal's fold, and the trajectory, bounded and without secrets."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_env.errors import StorageError
from agent_env.gateway.defaults import DEFAULT_GATEWAY_LIMITS
from agent_env.gateway.journal import Journal
from agent_env.gateway.trajectory import RawJson, Trajectory
from agent_env.redaction import MASK, Redactor

ENTRIES = st.lists(st.tuples(st.sampled_from("abc"), st.none() | st.integers() | st.text()), max_size=30)
SECRETS = [
    "sk-abcdefghijklmnopqrstuvwx",
    "ghp_abcdefghijklmnopqrstuvwx",
    "ghs_abcdefghijklmnopqrstuvwx",
    "github_pat_abcdefghijklmnopqrstuvwx",
    "AKIAABCDEFGHIJKLMNOP",
    "ASIAABCDEFGHIJKLMNOP",
    "xoxb-1234567890-abcdef",
    "AIzaabcdefghijklmnopqrstuvwxyz012345",
    "hf_abcdefghijklmnopqrstuvwx",
    "eyJhbGciOiJI.eyJzdWIiOiIx.c2lnbmF0dXJl",
    "-----BEGIN RSA PRIVATE KEY-----\nabc\n-----END RSA PRIVATE KEY-----",
    "postgresql://user:pw@host/db",
]
KEYS = ["password", "passwd", "PASSWORD", "api_key", "apiKey", "api-key", "API_KEY", "private_key", "accessKey", "client_secret"]
KEYS += ["Authorization", "cookie", "refreshToken", "token", "TOKENS", "x-api-key", "session-token"]


@given(ENTRIES, ENTRIES)
@settings(max_examples=25)
def test_a_reopened_journal_holds_the_last_value_of_each_key(
    tmp_path_factory: pytest.TempPathFactory, first: list[Any], second: list[Any]
) -> None:
    path = tmp_path_factory.mktemp("journal") / "j"
    expected: dict[str, Any] = {}
    for entries in (first, second):

        async def write(entries: list[Any] = entries) -> int:
            journal = Journal(path, 200)
            await asyncio.gather(*(journal.put(key, value) for key, value in entries))
            journal.close()
            return journal.position

        asyncio.run(write())
        expected |= dict(entries)
    journal = Journal(path, 200)
    assert dict(journal.under("")) == {key: value for key, value in expected.items() if value is not None}
    journal.close()


def test_a_torn_last_line_was_never_promised_and_a_damaged_middle_is_told(tmp_path: Path) -> None:
    path = tmp_path / "j"
    path.write_bytes(b'[1,"a",1]\n[2,"b",2]\n[3,"c"')
    journal = Journal(path, 1000)
    assert dict(journal.under("")) == {"a": 1, "b": 2}
    journal.close()
    path.write_bytes(b'[1,"a",1]\nx\n[3,"c",3]\n')
    with pytest.raises(StorageError, match="damaged in its middle"):
        Journal(path, 1000)


def test_a_journal_does_not_grow_with_what_no_longer_holds(tmp_path: Path) -> None:
    async def write() -> None:
        journal = Journal(tmp_path / "j", 10_000)
        for number in range(3000):
            await journal.put("same", number)
        journal.close()

    asyncio.run(write())
    assert (tmp_path / "j").stat().st_size < 12_000


def lines(folder: Path) -> list[dict[str, Any]]:
    text = "".join(
        path.read_text() for path in sorted(folder.glob("trajectory*.jsonl"), key=lambda path: path.name.count("1"), reverse=True)
    )
    return [json.loads(line) for line in text.split("\n") if line]


def written(folder: Path, *values: str, redactor: Redactor | None = None, **limits: int) -> list[dict[str, Any]]:
    async def write() -> None:
        trajectory = Trajectory(folder, replace(DEFAULT_GATEWAY_LIMITS, **limits), redactor or Redactor())
        for value in values:
            trajectory.add("tool_call", {"value": RawJson(value), "role": "r"}, size=len(value))
        await trajectory.flush()

    asyncio.run(write())
    return lines(folder)


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize("ascii", [True, False])
def test_what_looks_like_a_secret_is_never_stored(tmp_path: Path, secret: str, ascii: bool) -> None:
    escaped = "".join(f"\\u{ord(c):04x}" for c in secret) if ascii else json.dumps(secret)[1:-1]
    event = written(tmp_path, f'{{"text": "before {escaped} after"}}')[0]
    assert secret.split("\n", maxsplit=1)[0].partition("//")[2].partition("@")[0] or secret not in json.dumps(event)
    assert MASK in event["value"]["text"]


@pytest.mark.parametrize("key", KEYS)
def test_what_stands_under_a_secret_s_name_is_never_stored(tmp_path: Path, key: str) -> None:
    assert written(tmp_path, json.dumps({key: "hunter2!"}))[0]["value"] == {key: MASK}


def test_a_known_secret_is_never_stored_in_any_spelling(tmp_path: Path) -> None:
    redactor = Redactor(["s3cr/t välue"])
    texts = ['{"a":"s3cr/t välue"}', '{"a":"s3cr\\/t v\\u00e4lue"}', '{"s3cr/t välue":1}']
    assert "s3cr" not in json.dumps(written(tmp_path, *texts, redactor=redactor))


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=8,
    )
)
@settings(max_examples=60)
def test_what_is_no_secret_is_stored_as_it_is(tmp_path_factory: pytest.TempPathFactory, value: Any) -> None:
    text = json.dumps(value, ensure_ascii=False, indent=1).encode("utf-8", "replace").decode()
    stored = written(tmp_path_factory.mktemp("t"), text)[0]["value"]
    assert stored == Redactor().redact(json.loads(text))


def test_the_trajectory_keeps_the_latest_events_within_its_limit_and_cuts_what_is_too_long(tmp_path: Path) -> None:
    events = written(tmp_path, *(json.dumps("x" * 500) for _ in range(400)), trajectory_bytes=40_000)
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 45_000
    assert events[-1]["event_id"] == "event_400"
    numbers = [int(event["event_id"].removeprefix("event_")) for event in events]
    assert numbers == list(range(numbers[0], 401))
    cut = written(tmp_path, json.dumps("y" * 5000), trajectory_event_bytes=100)[-1]["value"]
    assert (len(cut["cut"]), cut["characters"]) == (100, 5002)


def test_event_numbers_go_on_after_a_torn_line(tmp_path: Path) -> None:
    written(tmp_path, "1", "2")
    with (tmp_path / "trajectory.jsonl").open("a") as file:
        file.write('{"event_id":"event_3","torn')
    written(tmp_path, "3")
    assert [event["event_id"] for event in lines(tmp_path)] == ["event_1", "event_2", "event_3"]


def test_events_that_find_no_room_are_counted(tmp_path: Path) -> None:
    async def write() -> int:
        trajectory = Trajectory(tmp_path, replace(DEFAULT_GATEWAY_LIMITS, trajectory_queue_bytes=1000), Redactor())
        for _ in range(10):
            trajectory.add("x", {"value": RawJson("1")}, size=300)
        return trajectory.dropped

    assert asyncio.run(write()) == 7


def test_what_is_nested_too_deep_to_look_at_is_stored_as_text(tmp_path: Path) -> None:
    event = written(tmp_path, '{"token":' + "[" * 900 + "]" * 900 + "}")[0]
    assert event["value"]["text"].count("[") == 900

"""Versioned documents: numbers without gaps, newest first, pages and counts that do not grow with the collection."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent_env.defaults import DEFAULT_LIMITS
from agent_env.errors import ConcurrentModificationError, NotFoundError, UserError
from agent_env.stores import Database, Documents, digest_of

KEPT_FIXTURE = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=25)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(st.characters(codec=None)),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


def test_versions_count_from_one_and_the_newest_is_read(documents: Documents) -> None:
    for number in (1, 2, 3):
        assert documents.put("tasks", "a", "task", {"n": number}).version == number
    newest, second = documents.get("tasks", "a"), documents.get("tasks", "a", 2)
    assert newest is not None
    assert second is not None
    assert (newest.version, newest.body, second.body) == (3, {"n": 3}, {"n": 2})
    assert documents.versions("tasks", "a") == [1, 2, 3]
    assert documents.get("tasks", "a", 4) is None
    assert documents.get("evals", "a") is None


@pytest.mark.parametrize(
    ("collection", "id", "version", "told"),
    [
        ("tasks", "mine", 3, "there is no version 3 of task 'mine' (its newest version is 1)"),
        ("tasks", "mien", 3, "there is no task 'mien' (did you mean 'mine'?)"),
        ("envs", "elsewhere", None, "there is no environment 'elsewhere' (agent-env env list)"),
    ],
)
def test_what_was_named_and_is_not_there_is_told_with_what_is(
    documents: Documents, collection: str, id: str, version: int | None, told: str
) -> None:
    documents.put("tasks", "mine", "task", {"n": 1})
    assert documents.named("tasks", "mine").body == documents.named("tasks", "mine", 1).body == {"n": 1}
    with pytest.raises(NotFoundError) as refused:
        documents.named(collection, id, version)
    assert (str(refused.value), refused.value.concerns) == (told, id)


def test_a_given_version_must_be_the_next_one(documents: Documents) -> None:
    documents.put("tasks", "a", "task", {}, version=1)
    for wrong in (1, 3, 0):
        with pytest.raises(ConcurrentModificationError, match="the next one is 2"):
            documents.put("tasks", "a", "task", {}, version=wrong)
    assert documents.put("tasks", "a", "task", {}, version=2).version == 2


def test_a_number_is_never_given_twice_also_after_a_removal(documents: Documents) -> None:
    for _ in range(3):
        documents.put("tasks", "a", "task", {})
    assert documents.delete("tasks", "a", 3) == 1
    newest = documents.get("tasks", "a")
    assert newest is not None
    assert newest.version == 2
    assert documents.put("tasks", "a", "task", {}).version == 4
    assert documents.delete("tasks", "a") == 3
    assert documents.get("tasks", "a") is None
    assert documents.count("tasks") == 0
    assert documents.latest("tasks").items == ()
    assert documents.delete("tasks", "a") == 0
    assert documents.put("tasks", "a", "task", {}).version == 5
    assert documents.count("tasks") == 1


def test_threads_that_store_at_once_lose_no_version(documents: Documents) -> None:
    def store() -> None:
        for _ in range(25):
            documents.put("tasks", "a", "task", {})

    threads = [threading.Thread(target=store) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert documents.versions("tasks", "a") == list(range(1, 101))


def test_pages_hold_the_newest_version_of_each_id_newest_id_first(documents: Documents) -> None:
    for number in range(7):
        documents.put("tasks", f"t{number}", "task" if number % 2 else "other", {"v": 1})
    documents.put("tasks", "t0", "other", {"v": 2})
    first, last = documents.latest("tasks", limit=4), documents.latest("tasks", limit=4, offset=4)
    assert [item.id for item in first.items + last.items] == ["t6", "t5", "t4", "t3", "t2", "t1", "t0"]
    assert (first.more, last.more) == (True, False)
    assert last.items[-1].body == {"v": 2}
    assert [item.id for item in documents.latest("tasks", type="task").items] == ["t5", "t3", "t1"]
    assert [item.id for item in documents.latest("tasks", order="changed", limit=1).items] == ["t0"]
    assert [item.id for item in documents.latest("tasks", order="id", limit=2).items] == ["t0", "t1"]
    assert documents.ids("tasks") == [f"t{number}" for number in range(7)]


@pytest.mark.parametrize(
    ("text", "found"), [("STRASSE", ["Straße"]), ("50%", ["50%_off"]), ("_", ["50%_off"]), ("!", ["wow!"]), ("é", ["CAFÉ"])]
)
def test_a_search_in_ids_ignores_case_and_takes_wildcards_literally(documents: Documents, text: str, found: list[str]) -> None:
    for id in ("Straße", "50%_off", "wow!", "CAFÉ", "plain"):
        documents.put("tasks", id, "task", {})
    assert [item.id for item in documents.latest("tasks", id_contains=text).items] == found


@KEPT_FIXTURE
@given(body=st.dictionaries(st.text(st.characters(codec=None)), JSON, max_size=6))
def test_a_body_comes_back_as_it_was_whatever_text_it_holds(documents: Documents, body: dict[str, object]) -> None:
    stored = documents.put("tasks", "any", "task", body)
    found = documents.get("tasks", "any")
    assert found == stored
    assert found.body == body
    assert list(found.body) == list(body)


@settings(deadline=None, max_examples=25)
@given(body=st.dictionaries(st.text(), JSON, max_size=6))
def test_a_digest_depends_on_content_and_not_on_the_order_of_keys(body: dict[str, object]) -> None:
    assert digest_of(body) == digest_of(dict(reversed(body.items())))
    assert digest_of(body) != digest_of({**body, "one more": len(body)} if "one more" not in body else {})


@KEPT_FIXTURE
@given(deeds=st.lists(st.tuples(st.sampled_from(["put", "delete", "delete one"]), st.sampled_from("ab"), st.integers(1, 6)), max_size=25))
def test_documents_behave_like_a_plain_model(db: Database, deeds: list[tuple[str, str, int]]) -> None:
    documents = Documents(db)
    collection = f"c{time.monotonic_ns()}"
    model: dict[str, dict[int, dict[str, int]]] = {}
    assigned = {"a": 0, "b": 0}
    for deed, id, number in deeds:
        if deed == "put":
            assigned[id] += 1
            assert documents.put(collection, id, "t", {"n": number}).version == assigned[id]
            model.setdefault(id, {})[assigned[id]] = {"n": number}
        elif deed == "delete":
            assert documents.delete(collection, id) == len(model.pop(id, {}))
        else:
            assert documents.delete(collection, id, number) == int(model.get(id, {}).pop(number, None) is not None)
    alive = {id: versions for id, versions in model.items() if versions}
    assert documents.count(collection) == len(alive)
    assert {item.id: (item.version, item.body) for item in documents.latest(collection).items} == {
        id: (max(versions), versions[max(versions)]) for id, versions in alive.items()
    }


def test_a_document_over_the_limit_is_refused_by_size_and_name(tmp_path) -> None:
    with Database.open(f"sqlite:///{tmp_path / 'x.db'}", limits=replace(DEFAULT_LIMITS, document_bytes=100)) as db:
        with pytest.raises(UserError, match=r"'big' is 1\d\d bytes large, more than the 100"):
            Documents(db).put("tasks", "big", "task", {"x": "y" * 100})
        assert Documents(db).count("tasks") == 0


def test_pages_counts_and_the_newest_version_do_not_read_the_collection(sqlite: Database) -> None:
    documents = Documents(sqlite)
    documents.put("tasks", "a", "task", {})
    documents.count("tasks")
    asked: list[str] = []
    reader = sqlite._readers[0].connection  # type: ignore[attr-defined]
    reader.set_trace_callback(asked.append)
    documents.latest("tasks")
    documents.latest("tasks", type="task", limit=10)
    documents.count("tasks")
    documents.get("tasks", "a")
    reader.set_trace_callback(None)
    selects = [sql for sql in asked if sql.startswith("SELECT")]
    assert len(selects) == 4
    details = [row.detail for sql in selects for row in sqlite.read(lambda tx, sql=sql: tx.execute(f"EXPLAIN QUERY PLAN {sql}"))]
    assert not [detail for detail in details if detail.startswith("SCAN") and detail != "SCAN p"], details

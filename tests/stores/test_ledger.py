"""The ledger of bundles."""

from __future__ import annotations

from agent_env.stores import Database, Ledger, LedgerRow


def test_a_row_replaces_the_one_before_it_and_is_found_by_document_and_bundle(db: Database) -> None:
    ledger = Ledger(db)
    assert ledger.get("tasks", "a") is None
    ledger.record(LedgerRow("tasks", "a", "bundle-1", "pending", None, {"files": {"x": "sha256:1"}}))
    ledger.record(LedgerRow("tasks", "a", "bundle-1", "done", "sha256:d", {"files": {"x": "sha256:1"}}, version=3))
    ledger.record(LedgerRow("tasks", "b", "bundle-2", "done", "sha256:e"))
    row = ledger.get("tasks", "a")
    assert row is not None
    assert (row.status, row.version, row.digest, row.inputs) == ("done", 3, "sha256:d", {"files": {"x": "sha256:1"}})
    assert row.at
    assert ledger.of_bundle("bundle-1") == [row]
    ledger.forget("tasks", "a")
    assert ledger.of_bundle("bundle-1") == []

"""The schema as data: what the newest revision looks like. Imported by migrations and tests alone, for it imports SQLAlchemy.

JSON is text: the same statements then serve SQLite and PostgreSQL, and what was written is what is read. Keys compare by bytes
(collation C), so that order and prefixes mean the same everywhere.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Double, Index, Integer, MetaData, Table, Text

METADATA = MetaData()
KEY = Text().with_variant(Text(collation="C"), "postgresql")


def key(name: str, *, primary: bool = False) -> Column[str]:
    """Text that always has a value."""
    return Column(name, KEY, primary_key=primary, nullable=False)


def maybe(name: str) -> Column[str]:
    """Text that may be absent."""
    return Column(name, KEY)


def number(name: str, *, primary: bool = False, default: str | None = None) -> Column[int]:
    """A whole number that always has a value."""
    return Column(name, BigInteger, primary_key=primary, nullable=False, server_default=default, autoincrement=False)


RUNS = Table(
    "runs",
    METADATA,
    key("run_id", primary=True),
    key("instance_id"),
    key("task_id"),
    Column("task_version", Integer),
    maybe("task_digest"),
    maybe("bundle_id"),
    maybe("bundle_path"),
    maybe("group_id"),
    number("attempt_index", default="0"),
    number("attempt_count", default="1"),
    key("status"),
    maybe("kind"),
    maybe("word"),
    maybe("scores"),
    maybe("error"),
    key("created_at"),
    maybe("started_at"),
    maybe("finished_at"),
    maybe("seed"),
    maybe("options"),
    maybe("notes"),
    maybe("owner"),
    number("epoch", default="0"),
    Column("heartbeat_at", Double),
    number("commits", default="0"),
    Index("runs_newest", "created_at", "run_id"),
    Index("runs_by_task", "task_id", "created_at", "run_id"),
    Index("runs_by_status", "status", "created_at", "run_id"),
    Index("runs_by_group", "group_id", "created_at", "run_id"),
    Index("runs_by_digest", "task_digest", "created_at", "run_id"),
    Index("runs_by_bundle", "bundle_id", "created_at", "run_id"),
    Index("runs_by_instance", "instance_id"),
)
RUN_INPUTS = Table("run_inputs", METADATA, key("run_id", primary=True), key("task"), key("context"))
RESETS = Table("resets", METADATA, key("run_id", primary=True), number("seq", primary=True), key("reset"))
ATTEMPTS = Table(
    "attempts",
    METADATA,
    key("attempt_id", primary=True),
    key("run_id"),
    key("step_id"),
    number("number"),
    number("epoch"),
    key("state"),
    maybe("kind"),
    key("started_at"),
    maybe("finished_at"),
    Column("ended", BigInteger),
    Column("duration_seconds", Double),
    maybe("updates"),
    maybe("scores"),
    maybe("error"),
    number("superseded", default="0"),
    Index("attempts_by_run", "run_id", "ended"),
)
SCORES = Table(
    "scores",
    METADATA,
    key("run_id", primary=True),
    key("attempt_id", primary=True),
    key("verifier_id", primary=True),
    Column("score", Double),
    Index("scores_by_verifier", "verifier_id", "run_id"),
)
USED_DOCUMENTS = Table(
    "used_documents",
    METADATA,
    key("run_id", primary=True),
    key("collection", primary=True),
    key("id", primary=True),
    number("version", primary=True),
    key("digest"),
    maybe("attempt_id"),
    Index("used_documents_by_document", "collection", "id", "version"),
)
RESOURCES = Table(
    "resources",
    METADATA,
    key("resource_id", primary=True),
    key("run_id"),
    maybe("attempt_id"),
    number("epoch"),
    key("kind"),
    key("provider"),
    key("name"),
    key("state"),
    key("labels"),
    key("facts"),
    maybe("expires_at"),
    key("created_at"),
    key("changed_at"),
    Index("resources_by_state", "state", "run_id"),
    Index("resources_by_run", "run_id"),
)
EVENTS = Table(
    "events",
    METADATA,
    key("run_id", primary=True),
    number("seq", primary=True),
    key("at"),
    key("kind"),
    maybe("step_id"),
    key("payload"),
    sqlite_with_rowid=False,
)
REVIEWS = Table(
    "reviews",
    METADATA,
    key("run_id", primary=True),
    key("step_id", primary=True),
    key("attempt_id", primary=True),
    maybe("label"),
    key("upstream"),
    key("asked_at"),
    maybe("decision"),
    maybe("decided_by"),
    maybe("decided_at"),
    Index("reviews_by_decision", "decision", "asked_at"),
)
DOCUMENTS = Table(
    "documents",
    METADATA,
    key("collection", primary=True),
    key("id", primary=True),
    number("version", primary=True),
    key("type"),
    key("body"),
    key("digest"),
    key("created_at"),
)
DOCUMENT_HEADS = Table(
    "document_heads",
    METADATA,
    key("collection", primary=True),
    key("id", primary=True),
    key("folded_id"),
    key("type"),
    number("version"),
    number("assigned"),
    key("created_at"),
    key("changed_at"),
    Index("document_heads_newest", "collection", "created_at", "id"),
    Index("document_heads_by_type", "collection", "type", "created_at", "id"),
    Index("document_heads_changed", "collection", "changed_at", "id"),
)
DOCUMENT_COUNTS = Table("document_counts", METADATA, key("collection", primary=True), number("ids"))
OBJECTS = Table("objects", METADATA, key("sha256", primary=True), number("size"), key("media_type"), key("created_at"))
LEDGER = Table(
    "ledger",
    METADATA,
    key("collection", primary=True),
    key("id", primary=True),
    key("bundle"),
    key("status"),
    number("scheme"),
    maybe("digest"),
    key("inputs"),
    Column("version", Integer),
    key("at"),
    Index("ledger_by_bundle", "bundle"),
)
MODEL_ACCOUNTS = Table(
    "model_accounts",
    METADATA,
    key("account", primary=True),
    key("run_id"),
    key("budget"),
    key("options"),
    number("touched", default="0"),
    Index("model_accounts_by_run", "run_id"),
)
MODEL_GRANTS = Table(
    "model_grants",
    METADATA,
    key("grant_id", primary=True),
    key("run_id"),
    key("account"),
    key("holder"),
    key("role"),
    key("facts"),
    maybe("turn"),
    key("created_at"),
    Index("model_grants_by_run", "run_id"),
)
MODEL_CALLS = Table(
    "model_calls",
    METADATA,
    key("call_id", primary=True),
    key("run_id"),
    key("account"),
    key("grant_id"),
    key("holder"),
    key("role"),
    maybe("turn"),
    key("state"),
    key("dialect"),
    maybe("model"),
    maybe("endpoint"),
    maybe("request_key"),
    key("owner"),
    key("started_at"),
    maybe("finished_at"),
    Column("duration_seconds", Double),
    Column("first_byte_seconds", Double),
    Column("status", Integer),
    number("attempts", default="0"),
    number("request_bytes", default="0"),
    number("reserved_tokens", default="0"),
    Column("reserved_usd", Double),
    number("input_tokens", default="0"),
    number("output_tokens", default="0"),
    number("cached_tokens", default="0"),
    Column("cost_usd", Double),
    number("estimated", default="0"),
    maybe("refusal"),
    maybe("message"),
    Index("model_calls_by_account", "account", "state"),
    Index("model_calls_by_run", "run_id", "started_at", "call_id"),
)
META = Table("meta", METADATA, key("name", primary=True), key("value"))

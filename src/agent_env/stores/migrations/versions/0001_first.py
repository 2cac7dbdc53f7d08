"""The first schema: runs with their journal, documents, objects, the ledger of bundles."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

KEY = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    """Creates everything."""
    _runs()
    _evidence()
    _documents()


def _runs() -> None:
    op.create_table(
        "runs",
        sa.Column("run_id", KEY, primary_key=True, nullable=False),
        sa.Column("instance_id", KEY, nullable=False),
        sa.Column("task_id", KEY, nullable=False),
        sa.Column("task_version", sa.Integer()),
        sa.Column("task_digest", KEY),
        sa.Column("bundle_id", KEY),
        sa.Column("bundle_path", KEY),
        sa.Column("group_id", KEY),
        sa.Column("attempt_index", sa.BigInteger(), nullable=False, server_default="0"),
        sa.Column("attempt_count", sa.BigInteger(), nullable=False, server_default="1"),
        sa.Column("status", KEY, nullable=False),
        sa.Column("kind", KEY),
        sa.Column("word", KEY),
        sa.Column("scores", KEY),
        sa.Column("error", KEY),
        sa.Column("created_at", KEY, nullable=False),
        sa.Column("started_at", KEY),
        sa.Column("finished_at", KEY),
        sa.Column("seed", KEY),
        sa.Column("options", KEY),
        sa.Column("notes", KEY),
        sa.Column("owner", KEY),
        sa.Column("epoch", sa.BigInteger(), nullable=False, server_default="0"),
        sa.Column("heartbeat_at", sa.Double()),
        sa.Column("commits", sa.BigInteger(), nullable=False, server_default="0"),
    )
    op.create_index("runs_by_instance", "runs", ["instance_id"])
    op.create_index("runs_by_task", "runs", ["task_id", "created_at", "run_id"])
    op.create_index("runs_by_digest", "runs", ["task_digest", "created_at", "run_id"])
    op.create_index("runs_by_bundle", "runs", ["bundle_id", "created_at", "run_id"])
    op.create_index("runs_by_group", "runs", ["group_id", "created_at", "run_id"])
    op.create_index("runs_by_status", "runs", ["status", "created_at", "run_id"])
    op.create_index("runs_newest", "runs", ["created_at", "run_id"])
    op.create_table(
        "run_inputs",
        sa.Column("run_id", KEY, primary_key=True, nullable=False),
        sa.Column("task", KEY, nullable=False),
        sa.Column("context", KEY, nullable=False),
    )
    op.create_table(
        "resets",
        sa.Column("run_id", KEY, primary_key=True, nullable=False),
        sa.Column("seq", sa.BigInteger(), primary_key=True, nullable=False, autoincrement=False),
        sa.Column("reset", KEY, nullable=False),
    )
    op.create_table(
        "attempts",
        sa.Column("attempt_id", KEY, primary_key=True, nullable=False),
        sa.Column("run_id", KEY, nullable=False),
        sa.Column("step_id", KEY, nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("state", KEY, nullable=False),
        sa.Column("kind", KEY),
        sa.Column("started_at", KEY, nullable=False),
        sa.Column("finished_at", KEY),
        sa.Column("ended", sa.BigInteger()),
        sa.Column("duration_seconds", sa.Double()),
        sa.Column("updates", KEY),
        sa.Column("scores", KEY),
        sa.Column("error", KEY),
        sa.Column("superseded", sa.BigInteger(), nullable=False, server_default="0"),
    )
    op.create_index("attempts_by_run", "attempts", ["run_id", "ended"])


def _evidence() -> None:
    op.create_table(
        "scores",
        sa.Column("run_id", KEY, primary_key=True, nullable=False),
        sa.Column("attempt_id", KEY, primary_key=True, nullable=False),
        sa.Column("verifier_id", KEY, primary_key=True, nullable=False),
        sa.Column("score", sa.Double()),
    )
    op.create_index("scores_by_verifier", "scores", ["verifier_id", "run_id"])
    op.create_table(
        "used_documents",
        sa.Column("run_id", KEY, primary_key=True, nullable=False),
        sa.Column("collection", KEY, primary_key=True, nullable=False),
        sa.Column("id", KEY, primary_key=True, nullable=False),
        sa.Column("version", sa.BigInteger(), primary_key=True, nullable=False, autoincrement=False),
        sa.Column("digest", KEY, nullable=False),
        sa.Column("attempt_id", KEY),
    )
    op.create_index("used_documents_by_document", "used_documents", ["collection", "id", "version"])
    op.create_table(
        "resources",
        sa.Column("resource_id", KEY, primary_key=True, nullable=False),
        sa.Column("run_id", KEY, nullable=False),
        sa.Column("attempt_id", KEY),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("kind", KEY, nullable=False),
        sa.Column("provider", KEY, nullable=False),
        sa.Column("name", KEY, nullable=False),
        sa.Column("state", KEY, nullable=False),
        sa.Column("labels", KEY, nullable=False),
        sa.Column("facts", KEY, nullable=False),
        sa.Column("expires_at", KEY),
        sa.Column("created_at", KEY, nullable=False),
        sa.Column("changed_at", KEY, nullable=False),
    )
    op.create_index("resources_by_run", "resources", ["run_id"])
    op.create_index("resources_by_state", "resources", ["state", "run_id"])
    op.create_table(
        "events",
        sa.Column("run_id", KEY, primary_key=True, nullable=False),
        sa.Column("seq", sa.BigInteger(), primary_key=True, nullable=False, autoincrement=False),
        sa.Column("at", KEY, nullable=False),
        sa.Column("kind", KEY, nullable=False),
        sa.Column("step_id", KEY),
        sa.Column("payload", KEY, nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "reviews",
        sa.Column("run_id", KEY, primary_key=True, nullable=False),
        sa.Column("step_id", KEY, primary_key=True, nullable=False),
        sa.Column("attempt_id", KEY, primary_key=True, nullable=False),
        sa.Column("label", KEY),
        sa.Column("upstream", KEY, nullable=False),
        sa.Column("asked_at", KEY, nullable=False),
        sa.Column("decision", KEY),
        sa.Column("decided_by", KEY),
        sa.Column("decided_at", KEY),
    )
    op.create_index("reviews_by_decision", "reviews", ["decision", "asked_at"])


def _documents() -> None:
    op.create_table(
        "documents",
        sa.Column("collection", KEY, primary_key=True, nullable=False),
        sa.Column("id", KEY, primary_key=True, nullable=False),
        sa.Column("version", sa.BigInteger(), primary_key=True, nullable=False, autoincrement=False),
        sa.Column("type", KEY, nullable=False),
        sa.Column("body", KEY, nullable=False),
        sa.Column("digest", KEY, nullable=False),
        sa.Column("created_at", KEY, nullable=False),
    )
    op.create_table(
        "document_heads",
        sa.Column("collection", KEY, primary_key=True, nullable=False),
        sa.Column("id", KEY, primary_key=True, nullable=False),
        sa.Column("folded_id", KEY, nullable=False),
        sa.Column("type", KEY, nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("assigned", sa.BigInteger(), nullable=False),
        sa.Column("created_at", KEY, nullable=False),
        sa.Column("changed_at", KEY, nullable=False),
    )
    op.create_index("document_heads_by_type", "document_heads", ["collection", "type", "created_at", "id"])
    op.create_index("document_heads_newest", "document_heads", ["collection", "created_at", "id"])
    op.create_index("document_heads_changed", "document_heads", ["collection", "changed_at", "id"])
    op.create_table(
        "document_counts",
        sa.Column("collection", KEY, primary_key=True, nullable=False),
        sa.Column("ids", sa.BigInteger(), nullable=False),
    )
    op.create_table(
        "objects",
        sa.Column("sha256", KEY, primary_key=True, nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("media_type", KEY, nullable=False),
        sa.Column("created_at", KEY, nullable=False),
    )
    op.create_table(
        "ledger",
        sa.Column("collection", KEY, primary_key=True, nullable=False),
        sa.Column("id", KEY, primary_key=True, nullable=False),
        sa.Column("bundle", KEY, nullable=False),
        sa.Column("status", KEY, nullable=False),
        sa.Column("scheme", sa.BigInteger(), nullable=False),
        sa.Column("digest", KEY),
        sa.Column("inputs", KEY, nullable=False),
        sa.Column("version", sa.Integer()),
        sa.Column("at", KEY, nullable=False),
    )
    op.create_index("ledger_by_bundle", "ledger", ["bundle"])
    op.create_table(
        "meta",
        sa.Column("name", KEY, primary_key=True, nullable=False),
        sa.Column("value", KEY, nullable=False),
    )

"""What runs use of models: accounts with their budgets, who may ask, and each call."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

KEY = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    """Adds the three tables."""
    op.create_table(
        "model_accounts",
        sa.Column("account", KEY, primary_key=True, nullable=False),
        sa.Column("run_id", KEY, nullable=False),
        sa.Column("budget", KEY, nullable=False),
        sa.Column("options", KEY, nullable=False),
        _count("touched"),
    )
    op.create_index("model_accounts_by_run", "model_accounts", ["run_id"])
    op.create_table(
        "model_grants",
        sa.Column("grant_id", KEY, primary_key=True, nullable=False),
        sa.Column("run_id", KEY, nullable=False),
        sa.Column("account", KEY, nullable=False),
        sa.Column("holder", KEY, nullable=False),
        sa.Column("role", KEY, nullable=False),
        sa.Column("facts", KEY, nullable=False),
        sa.Column("turn", KEY),
        sa.Column("created_at", KEY, nullable=False),
    )
    op.create_index("model_grants_by_run", "model_grants", ["run_id"])
    _calls()


def _calls() -> None:
    op.create_table(
        "model_calls",
        sa.Column("call_id", KEY, primary_key=True, nullable=False),
        sa.Column("run_id", KEY, nullable=False),
        sa.Column("account", KEY, nullable=False),
        sa.Column("grant_id", KEY, nullable=False),
        sa.Column("holder", KEY, nullable=False),
        sa.Column("role", KEY, nullable=False),
        sa.Column("turn", KEY),
        sa.Column("state", KEY, nullable=False),
        sa.Column("dialect", KEY, nullable=False),
        sa.Column("model", KEY),
        sa.Column("endpoint", KEY),
        sa.Column("request_key", KEY),
        sa.Column("owner", KEY, nullable=False),
        sa.Column("started_at", KEY, nullable=False),
        sa.Column("finished_at", KEY),
        sa.Column("duration_seconds", sa.Double()),
        sa.Column("first_byte_seconds", sa.Double()),
        sa.Column("status", sa.Integer()),
        _count("attempts"),
        _count("request_bytes"),
        _count("reserved_tokens"),
        sa.Column("reserved_usd", sa.Double()),
        _count("input_tokens"),
        _count("output_tokens"),
        _count("cached_tokens"),
        sa.Column("cost_usd", sa.Double()),
        _count("estimated"),
        sa.Column("refusal", KEY),
        sa.Column("message", KEY),
    )
    op.create_index("model_calls_by_account", "model_calls", ["account", "state"])
    op.create_index("model_calls_by_run", "model_calls", ["run_id", "started_at", "call_id"])


def _count(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger(), nullable=False, server_default="0")

"""first tables

Revision ID: 0001
Revises:
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic.operations import Operations

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_BIG_KEY = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade(op: Operations) -> None:
    op.create_table(
        "drainmark_trigger",
        sa.Column("id", _BIG_KEY, primary_key=True, autoincrement=True),
        sa.Column("region", sa.Text, nullable=False),
        sa.Column("output", sa.Text, nullable=False),
        sa.Column("uri", sa.Text, nullable=False),
        sa.Column("identity", sa.Text, nullable=False),
        sa.Column("identity_key", sa.Text, nullable=False),
        sa.Column("order_index", sa.BigInteger, nullable=False),
        sa.Column("size_bytes", sa.BigInteger, nullable=False),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("sequence_id", sa.BigInteger, nullable=True),
        sa.Column("discovered_at", sa.Float, nullable=False),
        sa.Column("origin", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=True),
        sa.UniqueConstraint("region", "uri", "identity_key", name="drainmark_trigger_identity"),
        sa.UniqueConstraint("region", "order_index", name="drainmark_trigger_order"),
        sqlite_autoincrement=True,
    )
    op.create_index("drainmark_trigger_pending", "drainmark_trigger", ["region", "status", "order_index"])
    op.create_table(
        "drainmark_region",
        sa.Column("region", sa.Text, primary_key=True),
        sa.Column("next_id", sa.BigInteger, nullable=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("last_error", sa.Text, nullable=True),
        sa.Column("last_error_at", sa.Float, nullable=True),
        sa.Column("halt_requested", sa.Text, nullable=True),
        sa.Column("probed", sa.Text, nullable=False),
    )
    op.create_table(
        "drainmark_lease",
        sa.Column("region", sa.Text, primary_key=True),
        sa.Column("token", sa.Text, nullable=True),
        sa.Column("epoch", sa.BigInteger, nullable=True),
        sa.Column("host", sa.Text, nullable=False),
        sa.Column("boot_id", sa.Text, nullable=False),
        sa.Column("pid", sa.BigInteger, nullable=False),
        sa.Column("process_started", sa.Text, nullable=False),
        sa.Column("run_id", sa.Text, nullable=False),
        sa.Column("acquired_at", sa.Float, nullable=False),
        sa.Column("heartbeat_at", sa.Float, nullable=False),
        sa.Column("released_clean", sa.Boolean, nullable=True),
    )
    op.create_table(
        "drainmark_cursor",
        sa.Column("region", sa.Text, primary_key=True),
        sa.Column("source", sa.Text, primary_key=True),
        sa.Column("cursor", sa.Text, nullable=False),
    )


def downgrade() -> None:
    """Not offered: the copy made before the upgrade is the way back."""
    raise NotImplementedError

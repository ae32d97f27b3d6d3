"""incremental scans: what the last listing of each directory saw; an index for rewinds

Revision ID: 0002
Revises: 0001
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic.operations import Operations

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade(op: Operations) -> None:
    op.create_table(
        "drainmark_directory",
        sa.Column("region", sa.Text, primary_key=True),
        sa.Column("uri", sa.Text, primary_key=True),
        sa.Column("stamp", sa.Text, nullable=False),
    )
    op.create_index("drainmark_trigger_sequence", "drainmark_trigger", ["region", "sequence_id"])


def downgrade() -> None:
    """Not offered: the copy made before the upgrade is the way back."""
    raise NotImplementedError

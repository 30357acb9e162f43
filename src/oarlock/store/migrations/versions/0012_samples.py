"""The type of GPU that an attempt has held, and the useful part of its device-seconds; samples of the cluster's use."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from oarlock.store.sql import schema

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("usage", sa.Column("gpu_type", schema.text, nullable=False, server_default=sa.text("''")))
    op.add_column("usage", sa.Column("useful_seconds", sa.Double))
    op.create_table(
        "samples",
        sa.Column("at", sa.Double, primary_key=True),
        sa.Column("body", sa.Text, nullable=False),
    )

"""A row that is written to see whether the database takes writes."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "heartbeat",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("beat_at", sa.Double, nullable=False),
        sa.Column("padding", sa.Text, nullable=False),
        sa.CheckConstraint("id = 1", name="heartbeat_one_row"),
    )
    op.execute("INSERT INTO heartbeat (id, beat_at, padding) VALUES (1, 0, '')")

"""Sessions of browsers, and the login codes that make them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    text = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
    op.create_table(
        "sessions",
        sa.Column("sha256", text, primary_key=True),
        sa.Column("owner", text, nullable=False),
        sa.Column("token", text, sa.ForeignKey("tokens.sha256", ondelete="CASCADE"), nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("expires_at", sa.Double, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
    )
    op.create_index("sessions_by_owner", "sessions", ["owner", "created_at", "sha256"])
    op.create_index("sessions_by_token", "sessions", ["token"])
    op.create_index("sessions_by_end", "sessions", ["expires_at"])

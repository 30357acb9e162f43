"""The places in the log that its readers have come to, as the one that writes Events of OarlockJobs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from oarlock.store.sql import schema

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "cursors",
        sa.Column("name", schema.text, primary_key=True),
        sa.Column("seq", sa.BigInteger, nullable=False),
    )

"""A job may continue another one: which jobs continue this one is asked by a column."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    text = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
    op.add_column("jobs", sa.Column("continues", text))
    op.create_index("jobs_by_continued", "jobs", ["continues", "created_at", "id"])

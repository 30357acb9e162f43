"""An idempotency key outlives its job."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

text = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    """Make the table anew: SQLite can drop a foreign key in no other way."""
    op.drop_index("submissions_by_job", "submissions")
    op.rename_table("submissions", "submissions_before")
    op.create_table(
        "submissions",
        sa.Column("owner", text, primary_key=True),
        sa.Column("key", text, primary_key=True),
        sa.Column("job", text, nullable=False),
        sa.Column("request_sha256", text, nullable=False),
        sa.Column("removed_at", sa.Double),
    )
    op.execute(
        "INSERT INTO submissions (owner, key, job, request_sha256) "
        "SELECT owner, key, job, request_sha256 FROM submissions_before"
    )
    op.drop_table("submissions_before")
    op.create_index("submissions_by_job", "submissions", ["job"])
    op.create_index("submissions_by_removal", "submissions", ["removed_at"])

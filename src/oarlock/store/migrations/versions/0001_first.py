"""The first schema."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

text = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "jobs",
        sa.Column("id", text, primary_key=True),
        sa.Column("name", text, nullable=False),
        sa.Column("owner", text, nullable=False),
        sa.Column("pool", text, nullable=False),
        sa.Column("phase", text, nullable=False),
        sa.Column("active", sa.Boolean, nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("snapshot", text),
        sa.Column("first_seq", sa.BigInteger, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
    )
    op.create_index("jobs_by_age", "jobs", ["created_at", "id"])
    op.create_index("jobs_by_name", "jobs", ["name", "created_at", "id"])
    op.create_index("jobs_by_owner", "jobs", ["owner", "created_at", "id"])
    op.create_index("jobs_by_owner_and_name", "jobs", ["owner", "name", "created_at", "id"])
    op.create_index("jobs_by_phase", "jobs", ["phase", "created_at", "id"])
    op.create_index("jobs_by_pool", "jobs", ["pool", "created_at", "id"])
    op.create_index(
        "jobs_active", "jobs", ["created_at", "id"], sqlite_where=sa.text("active"), postgresql_where=sa.text("active")
    )
    op.create_index(
        "jobs_active_name",
        "jobs",
        ["owner", "name"],
        unique=True,
        sqlite_where=sa.text("active"),
        postgresql_where=sa.text("active"),
    )
    op.create_table(
        "submissions",
        sa.Column("owner", text, primary_key=True),
        sa.Column("key", text, primary_key=True),
        sa.Column("job", text, sa.ForeignKey("jobs.id", ondelete="CASCADE"), nullable=False),
        sa.Column("request_sha256", text, nullable=False),
    )
    op.create_index("submissions_by_job", "submissions", ["job"])
    op.create_table(
        "records",
        sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("at", sa.Double, nullable=False),
        sa.Column("job", text, nullable=False),
        sa.Column("kind", text, nullable=False),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("data", sa.Text, nullable=False),
    )
    op.create_index("records_by_job", "records", ["job", "seq"])
    op.create_table(
        "log",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("last_seq", sa.BigInteger, nullable=False),
        sa.Column("floor", sa.BigInteger, nullable=False),
        sa.CheckConstraint("id = 1", name="log_one_row"),
    )
    op.create_table(
        "leader",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("holder", text, nullable=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("expires_at", sa.Double, nullable=False),
        sa.CheckConstraint("id = 1", name="leader_one_row"),
    )
    op.create_table(
        "nodes",
        sa.Column("name", text, primary_key=True),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
    )
    op.create_table(
        "pools",
        sa.Column("name", text, primary_key=True),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
    )
    op.create_table(
        "users",
        sa.Column("name", text, primary_key=True),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
    )
    op.create_table(
        "tokens",
        sa.Column("sha256", text, primary_key=True),
        sa.Column("owner", text, sa.ForeignKey("users.name"), nullable=False),
        sa.Column("body", sa.Text, nullable=False),
    )
    op.create_table(
        "holdings",
        sa.Column("job", text, sa.ForeignKey("jobs.id"), primary_key=True),
        sa.Column("attempt", sa.Integer, primary_key=True),
        sa.Column("role", text, primary_key=True),
        sa.Column("place", sa.Integer, primary_key=True),
        sa.Column("node", text, sa.ForeignKey("nodes.name"), primary_key=True),
        sa.Column("cpus_milli", sa.BigInteger, nullable=False),
        sa.Column("memory_bytes", sa.BigInteger, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
    )
    op.create_index("holdings_by_node", "holdings", ["node"])
    op.create_table(
        "slots",
        sa.Column("node", text, sa.ForeignKey("nodes.name"), primary_key=True),
        sa.Column("kind", text, primary_key=True),
        sa.Column("number", sa.Integer, primary_key=True),
        sa.Column("job", text, nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
    )
    op.create_index("slots_by_job", "slots", ["job", "attempt"])
    op.create_table(
        "checkpoints",
        sa.Column("job", text, sa.ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("path", text, primary_key=True),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("step", sa.BigInteger, nullable=False),
        sa.Column("round", sa.Integer, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
    )
    op.create_table(
        "usage",
        sa.Column("job", text, primary_key=True),
        sa.Column("attempt", sa.Integer, primary_key=True),
        sa.Column("owner", text, nullable=False),
        sa.Column("pool", text, nullable=False),
        sa.Column("started_at", sa.Double, nullable=False),
        sa.Column("ended_at", sa.Double, nullable=False),
        sa.Column("device_seconds", sa.Double, nullable=False),
        sa.Column("cpu_seconds", sa.Double, nullable=False),
    )
    op.create_index("usage_by_end", "usage", ["ended_at"])
    op.execute("INSERT INTO log (id, last_seq, floor) VALUES (1, 0, 1)")
    op.execute("INSERT INTO leader (id, holder, epoch, expires_at) VALUES (1, '', 0, 0)")

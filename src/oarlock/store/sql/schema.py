"""The tables, for SQLite and PostgreSQL alike.

Values that queries ask for have columns; the whole noun lies beside them as JSON. Text is compared byte by byte in both
databases, so that they order as Python does. A thing that must be unique is a key: a device or port of a node, a job's
name among its owner's active ones, an idempotency key, a `seq`.

`make` makes them in an empty database, `migrations/` in one of an earlier version; a test compares the two.
"""

from __future__ import annotations

import sqlalchemy as sa

REVISION = "0013"
"""The migration that these tables are the result of."""

metadata = sa.MetaData()


def make(connection: sa.Connection) -> None:
    """Make all tables in an empty database, as if every migration had run."""
    metadata.create_all(connection, checkfirst=False)
    for statement in (
        "INSERT INTO log (id, last_seq, floor) VALUES (1, 0, 1)",
        "INSERT INTO leader (id, holder, epoch, expires_at) VALUES (1, '', 0, 0)",
        "INSERT INTO heartbeat (id, beat_at, padding) VALUES (1, 0, '')",
        "CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL,"
        " CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num))",
    ):
        connection.exec_driver_sql(statement)
    connection.execute(sa.text("INSERT INTO alembic_version VALUES (:revision)"), {"revision": REVISION})


# Byte order, whatever the database's locale.
text = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")

jobs = sa.Table(
    "jobs",
    metadata,
    sa.Column("id", text, primary_key=True),
    sa.Column("name", text, nullable=False),
    sa.Column("owner", text, nullable=False),
    sa.Column("pool", text, nullable=False),
    sa.Column("phase", text, nullable=False),
    sa.Column("active", sa.Boolean, nullable=False),
    sa.Column("created_at", sa.Double, nullable=False),
    sa.Column("version", sa.BigInteger, nullable=False),
    sa.Column("snapshot", text),
    sa.Column("continues", text),  # the job that gave its first checkpoint
    sa.Column("first_seq", sa.BigInteger, nullable=False),  # of its `submitted` record
    sa.Column("body", sa.Text, nullable=False),
    sa.Column("searched", text, nullable=False, server_default=""),  # its name and command (`rules.searched`)
    sa.Index("jobs_by_age", "created_at", "id"),
    sa.Index("jobs_by_name", "name", "created_at", "id"),
    sa.Index("jobs_by_owner", "owner", "created_at", "id"),
    sa.Index("jobs_by_owner_and_name", "owner", "name", "created_at", "id"),
    sa.Index("jobs_by_phase", "phase", "created_at", "id"),
    sa.Index("jobs_by_pool", "pool", "created_at", "id"),
    sa.Index("jobs_by_continued", "continues", "created_at", "id"),
    sa.Index("jobs_active", "created_at", "id", sqlite_where=sa.text("active"), postgresql_where=sa.text("active")),
    sa.Index(
        "jobs_active_name",
        "owner",
        "name",
        unique=True,
        sqlite_where=sa.text("active"),
        postgresql_where=sa.text("active"),
    ),
)

submissions = sa.Table(
    "submissions",
    metadata,
    sa.Column("owner", text, primary_key=True),
    sa.Column("key", text, primary_key=True),
    sa.Column("job", text, nullable=False),  # no foreign key: keys outlive their jobs for a while
    sa.Column("request_sha256", text, nullable=False),
    sa.Column("removed_at", sa.Double),  # when the job was removed
    sa.Index("submissions_by_job", "job"),
    sa.Index("submissions_by_removal", "removed_at"),
)

records = sa.Table(
    "records",
    metadata,
    sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("at", sa.Double, nullable=False),
    sa.Column("job", text, nullable=False),  # no foreign key: `removed` outlives the job
    sa.Column("kind", text, nullable=False),
    sa.Column("version", sa.BigInteger, nullable=False),
    sa.Column("data", sa.Text, nullable=False),
    sa.Index("records_by_job", "job", "seq"),
)

# One row. Every writer locks it first: that is the order of all commits, and of `seq`.
log = sa.Table(
    "log",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("last_seq", sa.BigInteger, nullable=False),
    sa.Column("floor", sa.BigInteger, nullable=False),  # the first seq that was not compacted away
    sa.CheckConstraint("id = 1", name="log_one_row"),
)

# One row.
leader = sa.Table(
    "leader",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("holder", text, nullable=False),  # empty: no server leads
    sa.Column("epoch", sa.BigInteger, nullable=False),
    sa.Column("expires_at", sa.Double, nullable=False),
    sa.CheckConstraint("id = 1", name="leader_one_row"),
)

# One row, which is written to see whether the database takes writes.
heartbeat = sa.Table(
    "heartbeat",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("beat_at", sa.Double, nullable=False),
    sa.Column("padding", sa.Text, nullable=False),
    sa.CheckConstraint("id = 1", name="heartbeat_one_row"),
)

# At most one row: how the last leader's clock stood.
clock = sa.Table(
    "clock",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("body", sa.Text, nullable=False),
    sa.CheckConstraint("id = 1", name="clock_one_row"),
)

# The places in the log that its readers have come to.
cursors = sa.Table(
    "cursors",
    metadata,
    sa.Column("name", text, primary_key=True),
    sa.Column("seq", sa.BigInteger, nullable=False),
)

nodes = sa.Table(
    "nodes",
    metadata,
    sa.Column("name", text, primary_key=True),
    sa.Column("version", sa.BigInteger, nullable=False),
    sa.Column("body", sa.Text, nullable=False),
)

pools = sa.Table(
    "pools",
    metadata,
    sa.Column("name", text, primary_key=True),
    sa.Column("version", sa.BigInteger, nullable=False),
    sa.Column("body", sa.Text, nullable=False),
)

users = sa.Table(
    "users",
    metadata,
    sa.Column("name", text, primary_key=True),
    sa.Column("version", sa.BigInteger, nullable=False),
    sa.Column("body", sa.Text, nullable=False),
)

tokens = sa.Table(
    "tokens",
    metadata,
    sa.Column("sha256", text, primary_key=True),
    sa.Column("owner", text, sa.ForeignKey("users.name"), nullable=False),
    sa.Column("body", sa.Text, nullable=False),
)

sessions = sa.Table(
    "sessions",
    metadata,
    sa.Column("sha256", text, primary_key=True),
    sa.Column("owner", text, nullable=False),
    sa.Column("token", text, sa.ForeignKey("tokens.sha256", ondelete="CASCADE"), nullable=False),
    sa.Column("created_at", sa.Double, nullable=False),
    sa.Column("expires_at", sa.Double, nullable=False),
    sa.Column("body", sa.Text, nullable=False),
    sa.Index("sessions_by_owner", "owner", "created_at", "sha256"),
    sa.Index("sessions_by_token", "token"),
    sa.Index("sessions_by_end", "expires_at"),
)

holdings = sa.Table(
    "holdings",
    metadata,
    sa.Column("job", text, sa.ForeignKey("jobs.id"), primary_key=True),
    sa.Column("attempt", sa.Integer, primary_key=True),
    sa.Column("role", text, primary_key=True),
    sa.Column("place", sa.Integer, primary_key=True),  # the task's index
    sa.Column("node", text, sa.ForeignKey("nodes.name"), primary_key=True),
    sa.Column("cpus_milli", sa.BigInteger, nullable=False),
    sa.Column("memory_bytes", sa.BigInteger, nullable=False),
    sa.Column("body", sa.Text, nullable=False),
    sa.Column("device", sa.Integer),  # of which it is a share
    sa.Column("gpu_milli", sa.Integer, nullable=False, server_default=sa.text("0")),  # thousandths of that device
    sa.Index("holdings_by_node", "node"),
    sa.CheckConstraint("gpu_milli >= 0 and gpu_milli < 1000", name="holdings_share"),
)

# A device that is not shared, or a port, has one holder, because there is one row for it.
slots = sa.Table(
    "slots",
    metadata,
    sa.Column("node", text, sa.ForeignKey("nodes.name"), primary_key=True),
    sa.Column("kind", text, primary_key=True),  # `device` or `port`
    sa.Column("number", sa.Integer, primary_key=True),
    sa.Column("job", text, nullable=False),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Index("slots_by_job", "job", "attempt"),
)

checkpoints = sa.Table(
    "checkpoints",
    metadata,
    sa.Column("job", text, sa.ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("path", text, primary_key=True),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("step", sa.BigInteger, nullable=False),
    sa.Column("round", sa.Integer, nullable=False),
    sa.Column("body", sa.Text, nullable=False),
)

samples = sa.Table(
    "samples",
    metadata,
    sa.Column("at", sa.Double, primary_key=True),
    sa.Column("body", sa.Text, nullable=False),
)

usage = sa.Table(
    "usage",
    metadata,
    sa.Column("job", text, primary_key=True),  # no foreign key: usage outlives the job
    sa.Column("attempt", sa.Integer, primary_key=True),
    sa.Column("owner", text, nullable=False),
    sa.Column("pool", text, nullable=False),
    sa.Column("started_at", sa.Double, nullable=False),
    sa.Column("ended_at", sa.Double, nullable=False),
    sa.Column("device_seconds", sa.Double, nullable=False),
    sa.Column("cpu_seconds", sa.Double, nullable=False),
    sa.Column("cost", sa.Double, nullable=False, server_default=sa.text("0")),
    sa.Column("gpu_type", text, nullable=False, server_default=sa.text("''")),
    sa.Column("useful_seconds", sa.Double),
    sa.Index("usage_by_end", "ended_at"),
)

"""A job is found by a part of its name or command: both stand in a column, in one case of letters."""

from __future__ import annotations

import json
import shlex

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

CHARACTERS = 2000
PAGE = 100
"""Jobs whose bodies are in memory at once."""

jobs = sa.table("jobs", *(sa.column(name, sa.Text) for name in ("id", "name", "body", "searched")))


def upgrade() -> None:
    text = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
    op.add_column("jobs", sa.Column("searched", text, nullable=False, server_default=""))
    connection = op.get_bind()
    pages = sa.select(jobs.c.id, jobs.c.name, jobs.c.body).order_by(jobs.c.id).limit(PAGE)
    page = connection.execute(pages).all()
    while page:
        for job_id, name, body in page:
            words = json.loads(body).get("spec", {}).get("command", "")
            command = words if isinstance(words, str) else shlex.join(words)
            searched = f"{name}\n{command[:CHARACTERS]}".casefold()
            connection.execute(jobs.update().where(jobs.c.id == job_id).values(searched=searched))
        page = connection.execute(pages.where(jobs.c.id > page[-1].id)).all()

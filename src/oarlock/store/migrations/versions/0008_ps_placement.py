"""The field `servers` of a job file is called `ps_placement`: jobs that were stored under the earlier name follow."""

from __future__ import annotations

import json

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

jobs = sa.table("jobs", sa.column("id", sa.Text), sa.column("body", sa.Text))


def upgrade() -> None:
    connection = op.get_bind()
    found = connection.execute(sa.select(jobs.c.id, jobs.c.body).where(jobs.c.body.contains('"servers":'))).all()
    for job_id, body in found:
        job = json.loads(body)
        spec = job.get("spec", {})
        if "servers" in spec:
            spec["ps_placement"] = spec.pop("servers")
            written = json.dumps(job, ensure_ascii=False, separators=(",", ":"))
            connection.execute(jobs.update().where(jobs.c.id == job_id).values(body=written))

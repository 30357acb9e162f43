"""A holding may be a share of a device."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("holdings") as table:
        table.add_column(sa.Column("device", sa.Integer))
        table.add_column(sa.Column("gpu_milli", sa.Integer, nullable=False, server_default=sa.text("0")))
        table.create_check_constraint("holdings_share", "gpu_milli >= 0 and gpu_milli < 1000")

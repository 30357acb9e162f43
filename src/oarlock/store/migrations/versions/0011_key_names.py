"""The primary keys have the names that `schema` gives them, so that a later migration finds them by name.

PostgreSQL named the key of `submissions` after the table that 0006 replaced, and new databases were made with another
name for Alembic's own key. SQLite renames no key, and needs no name to change one.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

NAMES = {"submissions": "submissions_pkey", "alembic_version": "alembic_version_pkc"}


def upgrade() -> None:
    connection = op.get_bind()
    inspector = sa.inspect(connection)
    for table, name in NAMES.items() if connection.dialect.name == "postgresql" else ():
        present = inspector.get_pk_constraint(table)["name"]
        if present != name:
            op.execute(f"ALTER TABLE {table} RENAME CONSTRAINT {present} TO {name}")

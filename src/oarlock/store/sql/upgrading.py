"""The database's schema is brought up to date when it is opened, in one transaction: it is the new one or still the
old one.

An empty database gets the present tables at once; a test compares them with those of all migrations. Alembic is
imported only for a database of an earlier version: it takes a sixth of the time in which a server starts. A database
that a newer Oarlock has made is left alone.
"""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa

from oarlock.spec import errors
from oarlock.store.sql import schema

MIGRATIONS = Path(__file__).parent.parent / "migrations"

ONE_AT_A_TIME = 0x6F61726C6F636B
"""The advisory lock under which PostgreSQL's schema is changed. SQLite's is the write lock that the transaction has."""


def upgrade(connection: sa.Connection, *, to: str = "head") -> None:
    """Run the missing migrations, while other openers wait. The caller has begun a transaction, and commits it.

    Raises Conflict when the database was made by a newer version, or by another program.
    """
    if connection.dialect.name == "postgresql":
        # A busy machine takes longer to import Alembic than a change may be idle: this transaction has no such limit.
        connection.exec_driver_sql("SET LOCAL idle_in_transaction_session_timeout = 0")
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({ONE_AT_A_TIME})")
    present = revision(connection)
    if present == schema.REVISION:
        return
    if present is None and sa.inspect(connection).get_table_names():
        raise errors.Conflict(
            "this database holds tables, but none that says that they are Oarlock's",
            hint="Name an empty database, or another file.",
        )
    if present is None and to == "head":
        schema.make(connection)
        return
    from alembic import command, config, script

    settings = config.Config()
    settings.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    known = {one.revision for one in script.ScriptDirectory.from_config(settings).walk_revisions()}
    if present is not None and present not in known:
        raise errors.Conflict(
            f"a newer Oarlock made this database: its schema is {present}, this one knows up to {schema.REVISION}",
            hint="Install that version or a later one (`pip install --upgrade oarlock`), or name another database.",
        )
    settings.attributes["connection"] = connection
    command.upgrade(settings, to)


def revision(connection: sa.Connection) -> str | None:
    """Return the migration that the database has come to; None for an empty one."""
    if not sa.inspect(connection).has_table("alembic_version"):
        return None
    found = connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar_one_or_none()
    return str(found) if found is not None else None

"""Where Alembic enters: the migrations run on the connection and in the transaction that `sql/upgrading.py` hands
over.
"""

from __future__ import annotations

from alembic import context

connection = context.config.attributes["connection"]
context.configure(connection=connection, transactional_ddl=True, render_as_batch=True)
context.run_migrations()

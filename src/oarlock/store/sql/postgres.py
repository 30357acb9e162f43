"""PostgreSQL, through psycopg 3.

Every writing transaction locks the one row of `log` first. So transactions of all processes follow one another as they
do in SQLite, and READ COMMITTED is enough: each statement sees all that was committed before the lock was had. A
sequence could not number the records, since a number may be taken before a later one commits, and a reader that has
seen the later one never looks back.

A process that stops with the lock in its hands loses its session after `IDLE_LIMIT_S`, its transaction undone, and the
others go on.
"""

from __future__ import annotations

import threading
import time
from typing import Any

import psycopg
import sqlalchemy as sa

READERS = 8
CONNECT_TIMEOUT_S = 5
LOCK_TIMEOUT_S = 10
IDLE_LIMIT_S = 5
STATEMENT_LIMIT_S = 60
GLANCE_S = 0.25  # how soon a nap notices that it is to end
CHANNEL = "oarlock_log"


class PostgresEngine:
    """`engines.Engine` of a URL as libpq knows it: postgresql://user:password@host:port/database?options."""

    reader_count = READERS
    poll_s = 1.0

    def __init__(self, url: str) -> None:
        parsed = sa.make_url(url).set(drivername="postgresql+psycopg")
        self.where = parsed.render_as_string(hide_password=True)
        self._dsn = parsed.set(drivername="postgresql").render_as_string(hide_password=False)
        self._listener: psycopg.Connection[Any] | None = None
        self._woken = threading.Event()
        self.writers = self._engine(parsed, 1, "READ COMMITTED", read_only=False)
        self.readers = self._engine(parsed, READERS, "REPEATABLE READ", read_only=True)

    def _engine(self, url: sa.URL, pool: int, isolation: str, *, read_only: bool) -> sa.Engine:
        limits = (
            f"-c lock_timeout={LOCK_TIMEOUT_S}s -c statement_timeout={STATEMENT_LIMIT_S}s"
            f" -c idle_in_transaction_session_timeout={IDLE_LIMIT_S}s"
            f" -c default_transaction_read_only={'on' if read_only else 'off'} -c synchronous_commit=on"
        )
        engine = sa.create_engine(
            url,
            pool_size=pool,
            max_overflow=0,
            pool_timeout=30,
            isolation_level=isolation,
            connect_args={
                "connect_timeout": CONNECT_TIMEOUT_S,
                "options": f"{url.query.get('options', '')} {limits}".strip(),
                "application_name": "oarlock",
            },
        )
        # Many rows are one statement. psycopg would send them as a pipeline, within which PostgreSQL waits for the
        # next piece without any limit: a process that stops there would keep the lock for ever.
        engine.dialect.use_insertmanyvalues_wo_returning = True
        return engine

    def notify(self, connection: sa.Connection) -> None:
        connection.exec_driver_sql(f"NOTIFY {CHANNEL}")

    def nap(self, timeout_s: float) -> None:
        try:
            if self._listener is None:
                self._listener = psycopg.connect(self._dsn, autocommit=True, connect_timeout=CONNECT_TIMEOUT_S)
                self._listener.execute(f"LISTEN {CHANNEL}")
            until = time.monotonic() + timeout_s
            while not self._woken.is_set() and (left := until - time.monotonic()) > 0:
                for _ in self._listener.notifies(timeout=min(left, GLANCE_S), stop_after=1):
                    return
        except psycopg.Error:
            self._drop_listener()
            self._woken.wait(timeout_s)

    def wake(self) -> None:
        self._woken.set()

    def dispose(self) -> None:
        self._drop_listener()
        self.readers.dispose()
        self.writers.dispose()

    def _drop_listener(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None

"""SQLite: a file, beside it its write-ahead log.

One connection writes, in transactions that take the write lock at their beginning (BEGIN IMMEDIATE): a transaction that
reads first and then wants to write would fail at once after another's write in between, whatever the time-out. Readers
never wait. `synchronous=FULL` makes a commit durable before it is told.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from oarlock.spec import errors
from oarlock.store.sql import filesystems

BUSY_TIMEOUT_S = 10.0
"""How long to wait for another process that writes."""

BUSY_LOOK_S = 0.01
"""How often to look again, where SQLite does not wait itself."""

READERS = 4


class SqliteEngine:
    """`engines.Engine` of the file at `path`, which is made when it is not there, readable by its owner only."""

    reader_count = READERS
    poll_s = 0.2

    def __init__(self, path: Path) -> None:
        self.where = str(path)
        self._woken = threading.Event()
        _refuse_networks(path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        except OSError as failure:
            raise errors.Unavailable(
                f"{path} cannot be opened for writing: {failure.strerror}",
                hint=f"Make the file and its directory writable: ls -ld {path}",
            ) from failure
        self.writers = _engine(path, "rw", pool=1, begin="BEGIN IMMEDIATE")
        self.readers = _engine(path, "ro", pool=READERS, begin="BEGIN")

    def notify(self, connection: sa.Connection) -> None:
        """Do nothing: other processes look."""

    def nap(self, timeout_s: float) -> None:
        self._woken.wait(timeout_s)

    def wake(self) -> None:
        self._woken.set()

    def dispose(self) -> None:
        """Close the readers, then the writer: the last one to close folds the write-ahead log into the file."""
        self.readers.dispose()
        self.writers.dispose()


def _engine(path: Path, mode: str, *, pool: int, begin: str) -> sa.Engine:
    def connect() -> sqlite3.Connection:
        # A URI has no other way to say a question mark or a percent sign of a file's name.
        uri = f"{path.absolute().as_uri()}?mode={mode}"
        return sqlite3.connect(
            uri, uri=True, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False, cached_statements=256
        )

    engine = sa.create_engine(
        "sqlite://", creator=connect, poolclass=sa.QueuePool, pool_size=pool, max_overflow=0, pool_timeout=30
    )
    sa.event.listen(engine, "connect", _prepare_writer if mode == "rw" else _prepare_reader)
    sa.event.listen(engine, "begin", lambda connection: connection.exec_driver_sql(begin))
    return engine


def _prepare_writer(connection: sqlite3.Connection, _record: Any) -> None:
    mode = _write_ahead(connection)
    for setting in ("synchronous=FULL", "foreign_keys=ON", "journal_size_limit=67108864"):
        connection.execute(f"PRAGMA {setting}")
    if mode != "wal":
        raise errors.Unavailable(
            f"SQLite cannot keep a write-ahead log on this file system (it says {mode})",
            hint="Put OARLOCK_HOME on a local disk, or use PostgreSQL.",
        )


def _write_ahead(connection: sqlite3.Connection) -> str:
    """Ask for the write-ahead log, and return the journal mode there is then.

    The first to ask rewrites the file's header, with a lock that was a reader's: SQLite does not let others wait for
    it (two that wait so would wait for each other), so that `timeout` has no say and the patience is ours.
    """
    until = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            return str(connection.execute("PRAGMA journal_mode=WAL").fetchone()[0])
        except sqlite3.OperationalError as failure:
            if failure.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > until:
                raise
            time.sleep(BUSY_LOOK_S)


def _prepare_reader(connection: sqlite3.Connection, _record: Any) -> None:
    connection.execute("PRAGMA query_only=ON")


def _refuse_networks(path: Path) -> None:
    if (found := filesystems.networked(path.absolute().parent)) is not None:
        raise errors.Unavailable(
            f"{path} lies on a network file system ({found}), where SQLite loses data",
            hint="Put OARLOCK_HOME on a local disk, or use PostgreSQL.",
        )

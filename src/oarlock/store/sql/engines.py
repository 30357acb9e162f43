"""The interface of a database beyond its tables, for the writer, the readers and the watcher."""

from __future__ import annotations

from typing import Protocol

import sqlalchemy as sa


class Engine(Protocol):
    """SQLite or PostgreSQL. `where` names the database in messages, without a password."""

    where: str
    writers: sa.Engine
    """Gives one connection. A transaction on it begins by keeping every other writer out."""
    readers: sa.Engine
    """A transaction on one of these sees one state of the database, and cannot change it."""
    reader_count: int
    poll_s: float
    """The interval of looks at the log while a caller waits, whatever `nap` is told."""

    def notify(self, connection: sa.Connection) -> None:
        """Tell other processes, with the commit of this transaction, that the log has grown."""
        ...

    def nap(self, timeout_s: float) -> None:
        """Return when another process may have written, or after the time-out. A hint. Called by one thread only."""
        ...

    def wake(self) -> None:
        """End a `nap`, from another thread, for good."""
        ...

    def dispose(self) -> None: ...

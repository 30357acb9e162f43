"""The store in a database: SQLite or PostgreSQL, behind one interface.

Writes go to the one writer thread; reads to a few reader threads, each in a transaction that sees one state; a watcher
thread looks for other processes' writes while a caller waits for them.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import sqlalchemy as sa

from oarlock.spec import errors
from oarlock.store import stores, waiting
from oarlock.store.sql import changing, engines, failing, reading, sqlite, upgrading, writer

T = TypeVar("T")

READ_TRIES = 2
"""A connection that was lost while it lay idle is noticed at its next use."""


def open_store(url: str) -> SqlStore:
    """Open `sqlite:///PATH` or `postgresql://...`, and bring its schema up to date. Blocks.

    Raises Unavailable when it cannot be reached or written, Conflict when a newer version made it, InvalidInput for
    another URL.
    """
    engine = _engine(url)
    try:
        with engine.writers.connect() as connection, connection.begin():
            upgrading.upgrade(connection)
    except BaseException as failure:
        engine.dispose()
        problem = failing.translated(failure, engine.where)
        if problem is failure:
            raise
        raise problem from failure
    return SqlStore(engine)


def _engine(url: str) -> engines.Engine:
    kind, found, rest = url.partition("://")
    if found and kind == "sqlite" and rest.startswith("/") and len(rest) > 1:
        return sqlite.SqliteEngine(Path(rest[1:]))
    if found and kind in ("postgresql", "postgres", "postgresql+psycopg"):
        from oarlock.store.sql import postgres  # psycopg is 6 % of the time in which a server over SQLite starts

        return postgres.PostgresEngine(url)
    raise errors.InvalidInput(
        f"{kind if found else url!r} is no database that can keep the store",
        hint="Use sqlite:///PATH or postgresql://USER:PASSWORD@HOST:PORT/DATABASE.",
    )


class SqlStore:
    """`stores.Store`. Made by `open_store`."""

    def __init__(self, engine: engines.Engine) -> None:
        self._engine = engine
        self._waiters = waiting.Waiters()
        self._writer = writer.Writer(engine, self._waiters.publish)
        self._readers = concurrent.futures.ThreadPoolExecutor(engine.reader_count, "oarlock-store-reader")
        self._watcher = threading.Thread(target=self._watch, name="oarlock-store-watcher", daemon=True)
        self._closed = threading.Event()
        self._known = reading.Known()
        self._watcher.start()

    async def write(self, change: Callable[[stores.Transaction], T], *, epoch: int | None = None) -> T:
        def work(transaction: changing.SqlTransaction) -> T:
            if epoch is not None:
                transaction.check_epoch(epoch)
            return change(transaction)

        return await asyncio.wrap_future(self._writer.submit(work))

    async def read(self, look: Callable[[stores.View], T]) -> T:
        return await asyncio.wrap_future(self._submit_read(look))

    async def probe(self, *, at: float) -> None:
        await asyncio.wrap_future(self._writer.submit(lambda one: one.probe(at)))

    async def lead(self, holder: str, *, now: float, ttl_s: float) -> int | None:
        return await asyncio.wrap_future(self._writer.submit(lambda one: one.lead(holder, now, ttl_s)))

    async def resign(self, holder: str, epoch: int) -> None:
        await asyncio.wrap_future(self._writer.submit(lambda one: one.resign(holder, epoch)))

    async def wait(self, after: int, timeout_s: float) -> int:
        if self._closed.is_set():
            raise _closed()
        return await self._waiters.wait(after, timeout_s)

    async def close(self) -> None:
        """Finish the pending requests, then let go of the database. A repeated call does nothing."""
        await asyncio.get_running_loop().run_in_executor(None, self._close)

    def _close(self) -> None:
        self._closed.set()
        self._engine.wake()
        self._waiters.close()
        self._writer.close()
        self._readers.shutdown(wait=True)
        self._watcher.join()
        self._engine.dispose()

    def _submit_read(self, look: Callable[[stores.View], T]) -> concurrent.futures.Future[T]:
        try:
            return self._readers.submit(self._read, look)
        except RuntimeError as failure:  # how an executor says that it was shut down
            raise _closed() from failure

    def _read(self, look: Callable[[stores.View], T]) -> T:
        for further in range(READ_TRIES):
            try:
                with self._engine.readers.connect() as connection, connection.begin():
                    return look(reading.SqlView(connection, self._known))
            except sa.exc.SQLAlchemyError as failure:
                if further < READ_TRIES - 1 and failing.again(failure):
                    continue
                raise failing.translated(failure, self._engine.where) from failure
        raise AssertionError("the last try has returned")

    def _watch(self) -> None:
        """Look at the log while a caller waits. A failure is left to the next reader or writer to meet."""
        while not self._closed.is_set():
            self._waiters.wanted.wait()
            if self._closed.is_set():
                return
            with contextlib.suppress(Exception):
                self._waiters.publish(self._read(lambda view: view.last_seq()))
            self._engine.nap(self._engine.poll_s)


def _closed() -> errors.Unavailable:
    return errors.Unavailable("the store is closed", hint="Open it again.")

"""The one thread that writes: changes queue up, and those that wait when it turns to them share one commit.

A commit costs a flush of the disk, which is most of the price of a small change. Each change of a group stands in a
SAVEPOINT, so that a failed one is undone alone; no caller hears of a change before the commit of the group. When the
database fails, the whole group is undone and every caller in it is told.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import queue
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
import sqlalchemy as sa

from oarlock.spec import errors
from oarlock.spec.process import failpoints
from oarlock.store.sql import changing, engines, failing, schema

T = TypeVar("T")
Tell = Callable[[], None]

GROUP = 256
"""Most changes that share a commit."""

GROUP_S = 0.02
"""A group takes no further change after so long, so that the first of it need not wait for all the others."""

TRIES = 4
"""How often a group is begun anew after two transactions met, or a connection was lost."""

PAUSE_S = 0.05
"""Before the second try; each further one waits twice as long."""

_LOCK = sa.select(schema.log.c.last_seq, schema.log.c.floor).with_for_update()
_SET_LOG = sa.update(schema.log).values(last_seq=sa.bindparam("last_seq"), floor=sa.bindparam("floor"))


class Asked(msgspec.Struct):
    """A change that a caller waits for. `work` gets the transaction, and may run twice."""

    work: Callable[[changing.SqlTransaction], Any]
    future: concurrent.futures.Future[Any]


class Writer:
    """`committed` is called with the last `seq` after each commit, in the writer's thread."""

    def __init__(self, engine: engines.Engine, committed: Callable[[int], None]) -> None:
        self._engine = engine
        self._committed = committed
        self._queue: queue.SimpleQueue[Asked | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="oarlock-store-writer", daemon=True)
        self._thread.start()

    def submit(self, work: Callable[[changing.SqlTransaction], T]) -> concurrent.futures.Future[T]:
        """Queue a change. Its future is done once the change is durable, or has failed with nothing of it left."""
        future: concurrent.futures.Future[T] = concurrent.futures.Future()
        with self._lock:
            if self._closed:
                raise errors.Unavailable("the store is closed", hint="Open it again.")
            self._queue.put(Asked(work, future))
        return future

    def close(self) -> None:
        """Write the queued changes, then end. Waits for it."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (first := self._queue.get()) is not None:
            group = [first]
            last = False
            with contextlib.suppress(queue.Empty):
                while len(group) < GROUP and not last:
                    asked = self._queue.get_nowait()
                    last = asked is None
                    if asked is not None:
                        group.append(asked)
            # A change cancelled while in the queue is left out; from here on it is too late for that.
            self._write([asked for asked in group if asked.future.set_running_or_notify_cancel()])
            if last:
                return

    def _write(self, group: list[Asked]) -> None:
        """Commit the group, in as many transactions as its time allows, and tell everybody."""
        while group:
            told, group = self._try(group)
            for tell in told:
                tell()

    def _try(self, group: list[Asked]) -> tuple[list[Tell], list[Asked]]:
        """Return the answers after one commit, and the changes still to make."""
        for further in range(TRIES):
            try:
                return self._commit(group)
            except BaseException as failure:  # noqa: BLE001 - whatever it was, those who wait must hear of it
                if further < TRIES - 1 and failing.again(failure):
                    time.sleep(PAUSE_S * 2**further)
                    continue
                problem = failing.translated(failure, self._engine.where)
                return [_failure(asked, problem) for asked in group], []
        raise AssertionError("the last try has returned")

    def _commit(self, group: list[Asked]) -> tuple[list[Tell], list[Asked]]:
        told: list[Tell] = []
        with self._engine.writers.connect() as connection, connection.begin() as begun:
            before, floor = connection.execute(_LOCK).one()
            shared = Shared(connection, before, floor)
            change = shared.change if len(group) > 1 else shared.only
            until = time.monotonic() + GROUP_S
            while group and (not told or time.monotonic() < until):
                asked, *group = group
                told.append(change(asked))
            if (shared.seq, shared.floor) != (before, floor):
                connection.execute(_SET_LOG, {"last_seq": shared.seq, "floor": shared.floor})
            if shared.seq != before:
                self._engine.notify(connection)
            failpoints.hit("store.before_commit")
            self._finish(begun)
        failpoints.hit("store.after_commit")
        self._committed(shared.seq)
        return told, group

    def _finish(self, begun: sa.Transaction) -> None:
        try:
            begun.commit()
        except sa.exc.DBAPIError as failure:
            if failure.connection_invalidated:
                raise errors.Unavailable(
                    f"the connection to {self._engine.where} was lost during the commit: it may or may not be stored",
                    hint="Repeat the request under the same idempotency key.",
                ) from failure
            raise


class Shared:
    """A transaction that the changes of a group share. `seq` and `floor` are those of the changes that succeeded."""

    def __init__(self, connection: sa.Connection, seq: int, floor: int) -> None:
        self.seq = seq
        self.floor = floor
        self._connection = connection

    def change(self, asked: Asked) -> Tell:
        """Make this change, or undo it alone. Raises when the transaction is lost for everybody."""
        self._connection.exec_driver_sql("SAVEPOINT change")
        try:
            told = self.only(asked)
        except BaseException as failure:
            if failing.fatal(failure):
                raise
            self._connection.exec_driver_sql("ROLLBACK TO SAVEPOINT change")
            told = _failure(asked, failing.translated(failure, "the database"))
        self._connection.exec_driver_sql("RELEASE SAVEPOINT change")
        return told

    def only(self, asked: Asked) -> Tell:
        """Make this change alone: no other change would be lost with it."""
        transaction = changing.SqlTransaction(self._connection, self.seq, self.floor)
        result = asked.work(transaction)
        transaction.finish()
        self.seq, self.floor = transaction.seq, transaction.floor
        return lambda: asked.future.set_result(result)


def _failure(asked: Asked, problem: BaseException) -> Tell:
    return lambda: asked.future.set_exception(problem)

"""Long polls without a thread or a query for each: one task follows the event log and wakes the polls of changed jobs.

Thousands of agents wait for orders. Each poll waits on a future under its job's id, and `follow` reads the new lines of
the log once for all polls. A wake is a hint: a woken poll reads the store again, and a poll without a wake ends by its
own time-out.

A job that was read is kept for later requests, for `KEPT_S` or until the log names it. Registrations and checkpoints
must not rely on a stale job, so their transactions check it again; the other requests only use the task's own key. A
task that the kept job lacks may be newer than it, as where another server leads: the job is read again (`job_after`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Set

import msgspec
import structlog

from oarlock.api import gathering
from oarlock.spec import errors, events, jobs
from oarlock.store import stores

KEPT_S = 2.0
MAX_KEPT = 4096
PAUSE_AFTER_FAILURE_S = 1.0
_WAIT_S = 30.0
_PAGE = 1000
_EVERYTHING = ""
_ADMITTED = "admitted"  # the tag of `events.Admitted`

_log = structlog.get_logger(__name__)


class Kept(msgspec.Struct):
    """A job that was read: the reading, which all requests share, and its start."""

    reading: asyncio.Task[jobs.Job | None]
    at: float


class Wakes:
    """The waiting polls of one event loop.

    `clock` is in monotonic seconds. `waited` gets the seconds that a job was queued before its first start.
    """

    def __init__(
        self, store: stores.Store, clock: Callable[[], float], waited: Callable[[float], None] = lambda _: None
    ) -> None:
        self._store = store
        self._clock = clock
        self._waited = waited
        self._waiting: dict[str, set[asyncio.Future[None]]] = {}
        self._kept: dict[str, Kept] = {}
        self._closed = False
        self._last = gathering.Gathering(self._read_last)

    async def last_seq(self) -> int:
        """Return the number of the last event. Requests of one moment share a reading."""
        return await self._last.find(None)

    async def _read_last(self, _: Set[None]) -> dict[None, int]:
        return {None: await self._store.read(lambda view: view.last_seq())}

    async def follow(self) -> None:
        """Wake the polls of each job that the log names, until cancelled. After a failure, try again."""
        seq: int | None = None
        while True:
            try:
                if seq is None:  # earlier lines may have been missed: every poll looks again
                    seq = await self._store.read(lambda view: view.last_seq())
                    self._wake_all()
                await self._store.wait(seq, _WAIT_S)
                seq = await self._spread(seq)
            except errors.Gone:  # compacted meanwhile
                seq = None
            except errors.Unavailable:
                await asyncio.sleep(PAUSE_AFTER_FAILURE_S)
            except Exception as error:  # noqa: BLE001 - without this task every order waits for its poll's time-out
                _log.warning("wakes.not_followed", error=str(error), kind=type(error).__name__)
                await asyncio.sleep(PAUSE_AFTER_FAILURE_S)

    async def _spread(self, seq: int) -> int:
        records, waits = await self._store.read(lambda view: _news(view, seq))
        if not records:
            return seq
        for seconds in waits:
            self._waited(seconds)
        for job in {record.job for record in records if record.job}:
            self.touched(job)
        self._wake(_EVERYTHING)
        return records[-1].seq

    def touched(self, job: str) -> None:
        """Drop the kept copy of a job that was written, and wake its polls."""
        self._kept.pop(job, None)
        self._wake(job)

    def close(self) -> None:
        """End all long polls: the server ends."""
        self._closed = True
        self._wake_all()

    @property
    def closed(self) -> bool:
        return self._closed

    async def job(self, job_id: str) -> jobs.Job | None:
        """Return the job as of at most `KEPT_S` ago, and after the last wake. Concurrent requests share one reading."""
        kept = self._kept.get(job_id)
        if kept is None or self._clock() - kept.at > KEPT_S:
            if len(self._kept) >= MAX_KEPT:
                self._kept.clear()
            reading = asyncio.ensure_future(self._store.read(lambda view: view.job(job_id)))
            kept = self._kept[job_id] = Kept(reading, self._clock())
            reading.add_done_callback(lambda done: self._forget_failed(job_id, done))
        return await asyncio.shield(kept.reading)

    async def job_after(self, job_id: str, known: jobs.Job | None) -> jobs.Job | None:
        """Return the job from a later reading than that of `known`."""
        kept = self._kept.get(job_id)
        if kept is not None and kept.reading.done() and kept.reading.result() is known:
            del self._kept[job_id]
        return await self.job(job_id)

    @contextlib.contextmanager
    def listening(self, job_id: str = _EVERYTHING) -> Iterator[Ear]:
        """Yield an ear for the job, or for all jobs. Enter it before reading the store, so that no change is missed."""
        ear = Ear(self, job_id)
        try:
            yield ear
        finally:
            ear.leave()

    def _wake(self, name: str) -> None:
        for future in self._waiting.pop(name, ()):
            if not future.done():
                future.set_result(None)

    def _wake_all(self) -> None:
        self._kept.clear()
        for name in list(self._waiting):
            self._wake(name)

    def _forget_failed(self, job_id: str, done: asyncio.Task[jobs.Job | None]) -> None:
        if done.cancelled() or done.exception() is not None:
            kept = self._kept.get(job_id)
            if kept is not None and kept.reading is done:
                del self._kept[job_id]


def _news(view: stores.View, seq: int) -> tuple[list[events.Record], list[float]]:
    """Return the lines after `seq`, and the queue times in seconds of the jobs that they admit for the first time."""
    records = view.records(seq, limit=_PAGE)
    admitted = {one.job: one.at for one in records if one.kind == _ADMITTED and one.data.get("attempt") == 1}
    found = view.jobs_by_id(admitted)
    return records, [max(0.0, at - found[job].created_at) for job, at in admitted.items() if job in found]


class Ear:
    """A listener. After a wake between two waits, the next wait returns at once."""

    def __init__(self, wakes: Wakes, name: str) -> None:
        self._wakes = wakes
        self._name = name
        self._future = self._listen()

    async def wait(self, timeout_s: float) -> bool:
        """Return after a wake since the last wait, or after the time-out: whether there was a wake."""
        await asyncio.wait((self._future,), timeout=timeout_s)
        woken = self._future.done()
        if woken:
            self._future = self._listen()
        return woken

    def leave(self) -> None:
        """Stop listening."""
        waiting = self._wakes._waiting.get(self._name)
        if waiting is not None:
            waiting.discard(self._future)
            if not waiting:
                del self._wakes._waiting[self._name]

    def _listen(self) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._wakes._waiting.setdefault(self._name, set()).add(future)
        return future

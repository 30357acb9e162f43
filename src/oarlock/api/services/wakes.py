"""Long polls without a thread or a query for each: one task follows the event log and wakes whoever waits for a job.

Thousands of agents wait for orders. Each waits on a future under its job's id; `follow` reads what is new in the log,
once for all of them. A wake is a hint: whoever is woken looks at the store again, and a poll that nobody wakes ends by
its own time-out.

Jobs that were read are kept for whoever asks next, for `KEPT_S`, or until the log names them. What must not be stale
(registration, checkpoints) is checked again inside a transaction; the rest is addressed by the task's own key.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator

import msgspec
import structlog

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
    """A job that was asked for: the reading that all who ask share, and when it began."""

    reading: asyncio.Task[jobs.Job | None]
    at: float


class Wakes:
    """Belongs to one event loop. `clock` is monotonic seconds; `waited` hears how long a job that starts was queued."""

    def __init__(
        self, store: stores.Store, clock: Callable[[], float], waited: Callable[[float], None] = lambda _: None
    ) -> None:
        self._store = store
        self._clock = clock
        self._waited = waited
        self._waiting: dict[str, set[asyncio.Future[None]]] = {}
        self._kept: dict[str, Kept] = {}
        self._closed = False

    async def follow(self) -> None:
        """Until cancelled: wake those whose job is named in the log. What fails is tried again after a while."""
        seq: int | None = None
        while True:
            try:
                if seq is None:  # what happened until now was not heard: everybody looks again
                    seq = await self._store.read(lambda view: view.last_seq())
                    self._wake_all()
                await self._store.wait(seq, _WAIT_S)
                seq = await self._spread(seq)
            except errors.Gone:  # compacted while we were away
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
        for job in {record.job for record in records}:
            self.touched(job)
        self._wake(_EVERYTHING)
        return records[-1].seq

    def touched(self, job: str) -> None:
        """The job was written: what is kept of it is old, and those who wait look again."""
        self._kept.pop(job, None)
        self._wake(job)

    def close(self) -> None:
        """No long poll waits any longer: the server ends."""
        self._closed = True
        self._wake_all()

    @property
    def closed(self) -> bool:
        return self._closed

    async def job(self, job_id: str) -> jobs.Job | None:
        """The job as it was at most `KEPT_S` ago, and not before the last wake. Who ask at once share one reading."""
        kept = self._kept.get(job_id)
        if kept is None or self._clock() - kept.at > KEPT_S:
            if len(self._kept) >= MAX_KEPT:
                self._kept.clear()
            reading = asyncio.ensure_future(self._store.read(lambda view: view.job(job_id)))
            kept = self._kept[job_id] = Kept(reading, self._clock())
            reading.add_done_callback(lambda done: self._forget_failed(job_id, done))
        return await asyncio.shield(kept.reading)

    @contextlib.contextmanager
    def listening(self, job_id: str = _EVERYTHING) -> Iterator[Ear]:
        """Hear of the job (of anything, without one) from now on: enter before looking at the store, then wait."""
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
    """The lines after `seq`, and how long the jobs that were first admitted in them had been queued."""
    records = view.records(seq, limit=_PAGE)
    waits = []
    for record in records:
        if record.kind == _ADMITTED and record.data.get("attempt") == 1:
            job = view.job(record.job)
            if job is not None:
                waits.append(max(0.0, record.at - job.created_at))
    return records, waits


class Ear:
    """One who listens. What is said between two waits is not lost: the next wait returns at once."""

    def __init__(self, wakes: Wakes, name: str) -> None:
        self._wakes = wakes
        self._name = name
        self._future = self._listen()

    async def wait(self, timeout_s: float) -> None:
        """Return once something was said since the last wait, or after the time-out."""
        await asyncio.wait((self._future,), timeout=timeout_s)
        if self._future.done():
            self._future = self._listen()

    def leave(self) -> None:
        waiting = self._wakes._waiting.get(self._name)
        if waiting is not None:
            waiting.discard(self._future)
            if not waiting:
                del self._wakes._waiting[self._name]

    def _listen(self) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._wakes._waiting.setdefault(self._name, set()).add(future)
        return future

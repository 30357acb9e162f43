"""The controller of TensorBoards: one for each job that asks for it, as long as an attempt of the job lives.

    living attempts of jobs with `tensorboard: true` ──> those that lack one: make; those without an attempt: remove

The cluster is the only memory, so that a server after a killed one finds what it made. It is read again and again only
while there is one, or should be one; else rarely, for one that a server made late which led before.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import structlog

from oarlock.backends import tensorboards
from oarlock.controllers import leadership, rosters
from oarlock.spec import errors, intents, jobs
from oarlock.store import stores

PERIOD_S = 5.0
EMPTY_S = 600.0
"""A cluster that was seen without any is read again after this time."""

_log = structlog.get_logger(__name__)


class TensorBoards:
    """Without a way to run them it does nothing."""

    name = "tensorboards"

    def __init__(
        self,
        store: stores.Store,
        way: tensorboards.TensorBoards | None,
        leading: leadership.Leading,
        *,
        clock: Callable[[], float],
    ) -> None:
        self._way = way
        self._leading = leading
        self._clock = clock
        self._roster = rosters.Roster(store)
        self._epoch: int | None = None  # of the last look
        self._last = 0.0  # when that was
        self._wanted: set[tensorboards.Key] = set()  # at the last look
        self._empty = False  # at the last look
        self._whole: set[str] = set()  # UIDs of those that were made, or found whole, in this epoch

    def wake_at(self) -> float | None:
        if self._way is None or self._leading.epoch is None:
            return None
        if self._leading.epoch != self._epoch:
            return self._clock()
        return self._last + (EMPTY_S if self._empty else PERIOD_S)

    async def tick(self) -> None:
        epoch, now, way = self._leading.epoch, self._clock(), self._way
        if epoch is None or way is None:
            return
        await self._roster.refresh()
        wait_s = EMPTY_S if self._empty else PERIOD_S
        waits = epoch == self._epoch and 0 <= now - self._last < wait_s
        if waits and self._attempts(way).keys() == self._wanted:
            return
        if epoch != self._epoch:
            self._whole.clear()
        self._epoch, self._last = epoch, now
        try:
            await self._look(way, lambda: self._leading.epoch == epoch)
        except errors.StaleEpoch:
            self._epoch = None

    async def _look(self, way: tensorboards.TensorBoards, still: Callable[[], bool]) -> None:
        """Compare the cluster with the jobs. The jobs are read after the cluster: an attempt that is not among them
        then has ended, also where this server does not lead any more.
        """
        self._wanted, self._empty = set(self._attempts(way)), False
        there = {one.key: one for one in await way.there()}
        await self._roster.refresh()
        wanted = self._attempts(way)
        self._wanted, self._empty = set(wanted), not there and not wanted
        self._whole &= {one.uid for one in there.values()}
        for key, board in sorted(there.items()):
            if key not in wanted or not board.good:
                await self._part("remove", key, way.remove(board, still))
        for key, job in sorted(wanted.items()):
            found = there.get(key)
            if found is not None and found.good and found.uid in self._whole:
                continue
            if made := await self._part("make", key, way.make(job, still)):
                self._whole.add(made)

    def _attempts(self, way: tensorboards.TensorBoards) -> dict[tensorboards.Key, jobs.Job]:
        found = self._roster.jobs.values() if way.makes else ()
        return {(job.id, job.live.number): job for job in found if job.live is not None and wants(job)}

    async def _part(self, what: str, key: tensorboards.Key, work: Awaitable[str | None]) -> str | None:
        """Do one of them. One that fails holds up no other, and is tried again at the next look."""
        try:
            return await work
        except errors.StaleEpoch:
            raise
        except errors.OarlockError as error:
            _log.warning("tensorboard.failed", what=what, job=key[0], attempt=key[1], error=str(error))
            return None


def wants(job: jobs.Job) -> bool:
    """Return whether the job is to have a TensorBoard now."""
    return job.spec.tensorboard and job.live is not None and job.intent is intents.Intent.RUN

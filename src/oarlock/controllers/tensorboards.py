"""The controller of TensorBoards: one for each job that asks for it, as long as an attempt of the job lives.

    jobs with `tensorboard: true` and a living attempt ──> those that lack one: make; those without such a job: remove

The cluster is the only memory, so that a server after a killed one finds what it made. It is read again and again only
while there is one, or should be one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import structlog

from oarlock.backends import tensorboards
from oarlock.controllers import leadership, rosters
from oarlock.spec import errors, intents, jobs
from oarlock.store import stores

PERIOD_S = 5.0

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
        self._last: float | None = None
        self._wanted: set[tuple[str, int]] = set()  # at the last look: jobs and their attempts
        self._clean: int | None = None  # the epoch in which the cluster was seen without any

    def wake_at(self) -> float | None:
        if self._way is None or self._leading.epoch is None or self._last is None:
            return None
        return None if self._clean == self._leading.epoch else self._last + PERIOD_S

    async def tick(self) -> None:
        epoch, now, way = self._leading.epoch, self._clock(), self._way
        if epoch is None or way is None:
            return
        await self._roster.refresh()
        wanted = {job.id: job for job in self._roster.jobs.values() if way.makes and wants(job)}
        if self._clean == epoch and not wanted:
            return
        attempts = {(job.id, job.live.number) for job in wanted.values() if job.live is not None}
        if attempts == self._wanted and self._last is not None and 0 <= now - self._last < PERIOD_S:
            return
        self._last, self._wanted = now, attempts
        there = await way.there()
        for job_id in sorted(there.keys() - wanted.keys()):
            await self._part("remove", job_id, way.remove(job_id))
        for job_id in sorted(wanted.keys() - there.keys()):
            await self._part("make", job_id, way.make(wanted[job_id]))
        self._clean = epoch if not there and not wanted else None

    async def _part(self, what: str, job: str, work: Awaitable[None]) -> None:
        """Do one of them. One that fails holds up no other, and is tried again at the next look."""
        try:
            await work
        except errors.OarlockError as error:
            _log.warning("tensorboard.failed", what=what, job=job, error=str(error))


def wants(job: jobs.Job) -> bool:
    """Return whether the job is to have a TensorBoard now."""
    return job.spec.tensorboard and job.live is not None and job.intent is intents.Intent.RUN

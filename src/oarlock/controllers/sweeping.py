"""The sweeper: it removes objects of attempts, and of requests for nodes, that no job's record names.

    objects of jobs in the cluster ──> the records of these jobs, read later ──> the objects that none names: remove

The record of an attempt is written before the first object of it is made, and the objects are listed before the records
are read: an object that no record names then is one that a server made late, which did not lead any more. Tasks are
the guardian's.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog

from oarlock.backends import remains
from oarlock.controllers import leadership
from oarlock.spec import errors, jobs
from oarlock.store import stores

PERIOD_S = 30.0

_log = structlog.get_logger(__name__)


class Sweeping:
    """Without a way to such objects it does nothing."""

    name = "sweeping"

    def __init__(
        self,
        store: stores.Store,
        way: remains.Remains | None,
        leading: leadership.Leading,
        *,
        clock: Callable[[], float],
    ) -> None:
        self._store = store
        self._way = way
        self._leading = leading
        self._clock = clock
        self._epoch: int | None = None  # of the last look
        self._last = 0.0  # when that was

    def wake_at(self) -> float | None:
        if self._way is None or self._leading.epoch is None:
            return None
        return self._clock() if self._leading.epoch != self._epoch else self._last + PERIOD_S

    async def tick(self) -> None:
        epoch, now, way = self._leading.epoch, self._clock(), self._way
        if epoch is None or way is None or (epoch == self._epoch and 0 <= now - self._last < PERIOD_S):
            return
        self._epoch, self._last = epoch, now
        there = await way.there()
        ids = sorted({one.job for one in there})
        known = await self._store.read(lambda view: view.jobs_by_id(ids)) if ids else {}
        for one in there:
            if not _is_named(one, known.get(one.job)):
                await self._remove(way, one, lambda: self._leading.epoch == epoch)

    async def _remove(self, way: remains.Remains, one: remains.Remain, still: Callable[[], bool]) -> None:
        """Remove the object. One that cannot be removed holds up no other, and is tried again at the next look."""
        try:
            await way.remove(one, still)
        except errors.StaleEpoch:
            raise
        except errors.OarlockError as error:
            _log.warning("sweeping.failed", object=f"{one.plural}/{one.name}", error=str(error))
        else:
            _log.info("sweeping.removed", object=f"{one.plural}/{one.name}", job=one.job, number=one.number)


def _is_named(one: remains.Remain, job: jobs.Job | None) -> bool:
    """Return whether the job's record names the attempt or the request for which the object was made."""
    if job is None:
        return False
    if one.of_attempt:
        return job.live is not None and job.live.number == one.number
    return job.node_request is not None and job.node_request.number == one.number

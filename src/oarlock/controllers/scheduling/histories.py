"""The service of jobs that are over: from it a policy may learn how long others will last.

Read from the store once, then job by job as they end. A server that starts again knows the same, but for jobs whose
record was removed since.
"""

from __future__ import annotations

from collections.abc import Iterable

from oarlock.spec import jobs, phases, plans
from oarlock.spec.access import privacy
from oarlock.store import stores

KEPT = 500
"""The number of jobs remembered: those that ended last."""


class History:
    """`ended` is the same object until another job ends."""

    def __init__(self, store: stores.Store, names: privacy.Names = privacy.PUBLIC) -> None:
        self._store = store
        self._names = names
        self._known: dict[str, plans.Ended] | None = None
        self.ended: tuple[plans.Ended, ...] = ()

    async def learn(self, gone: Iterable[str]) -> None:
        """Add those of the jobs `gone`, no longer active, that are over."""
        ids = [job_id for job_id in gone if self._known is None or job_id not in self._known]
        if self._known is None:
            over = stores.JobFilter(phases=phases.TERMINAL, limit=KEPT)
            seen = sorted(await self._store.read(lambda view: view.jobs(over)), key=_by_end)
            self._known = {}
        elif ids:
            seen = await self._store.read(lambda view: [job for job_id in ids if (job := view.job(job_id)) is not None])
        else:
            return
        self._add(self._known, seen)

    def _add(self, known: dict[str, plans.Ended], seen: Iterable[jobs.Job]) -> None:
        for job in seen:
            if job.terminal and job.served_s > 0:
                known[job.id] = plans.Ended(
                    owner=job.owner,
                    name=self._names.of(job),
                    served_s=job.served_s,
                    types=() if job.curve is None else job.curve.types,
                )
        for job_id in list(known)[: max(0, len(known) - KEPT)]:
            del known[job_id]
        self.ended = tuple(known.values())


def _by_end(job: jobs.Job) -> tuple[float, str]:
    return job.ended_at or 0.0, job.id

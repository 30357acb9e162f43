"""The scheduler's view of each job: the very same object until the job changes in the scheduler's eyes.

A plan of ten thousand gangs is made again at every change of one of them. The scheduler keeps its work on a gang by the
gang's identity, so a job that is rewritten without a change that a scheduler would see must remain the same object.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from oarlock.scheduler import gangs
from oarlock.spec import holdings, jobs, plans
from oarlock.spec.access import privacy

T = TypeVar("T")


class Candidates:
    def __init__(self, names: privacy.Names = privacy.PUBLIC, profiles: gangs.Profiles = ()) -> None:
        self._names = names
        self._profiles = profiles
        self._gangs: dict[str, tuple[int, plans.Gang]] = {}
        self._running: dict[str, tuple[int, plans.Running]] = {}

    def gang(self, job: jobs.Job) -> plans.Gang:
        """Return a job that waits."""
        self._running.pop(job.id, None)
        version, known = self._gangs.get(job.id, (0, None))
        if known is None or version != job.version:
            known = _kept(known, gangs.gang(job, self._names, self._profiles))
            self._gangs[job.id] = (job.version, known)
        return known

    def running(self, job: jobs.Job, claims: tuple[holdings.Holding, ...]) -> plans.Running:
        """Return a job that holds these."""
        version, known = self._running.get(job.id, (0, None))
        if known is None or version != job.version:
            seen = gangs.running(job, claims, self._names, self._profiles)
            _, gang = self._gangs.get(job.id, (0, None))
            gang = _kept(gang, seen.gang)
            self._gangs[job.id] = (job.version, gang)
            known = _kept(known, msgspec.structs.replace(seen, gang=gang))
            self._running[job.id] = (job.version, known)
        return known

    def forget(self, job_id: str) -> None:
        self._gangs.pop(job_id, None)
        self._running.pop(job_id, None)


def _kept(known: T | None, seen: T) -> T:
    return known if known is not None and known == seen else seen

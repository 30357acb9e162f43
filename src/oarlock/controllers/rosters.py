"""The active jobs, kept up to date by the event log: ten thousand ended jobs cost nothing.

A roster reads each job once, then only those that the log names, and of these not the ones that its own controller has
written last. The log carries no progress: a decision that depends on progress is made again from the stored job, inside
the transaction that records it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from oarlock.spec import errors, holdings, jobs, phases
from oarlock.store import stores


def is_active(job: jobs.Job) -> bool:
    """Return whether anything may still have to be done for it."""
    return not job.terminal and (job.phase is not phases.Phase.HALTED or job.live is not None)


class Roster:
    """One for each controller. `jobs` are the active ones by id, `held` the holdings of those with an attempt."""

    def __init__(self, store: stores.Store) -> None:
        self._store = store
        self._seq: int | None = None
        self._unsure: set[str] = set()  # jobs that others have changed, with holdings not read yet
        self.jobs: dict[str, jobs.Job] = {}
        self.held: dict[str, tuple[holdings.Holding, ...]] = {}

    @property
    def seq(self) -> int:
        """Up to where the log was read."""
        return self._seq if self._seq is not None else 0

    async def refresh(self) -> frozenset[str]:
        """Read the log since the last call; return the ids of jobs that changed, including those that are gone."""
        if self._seq is None:
            return await self._list()
        after = self._seq
        if await self._store.wait(after, 0.0) <= after:  # most ticks find no news
            return frozenset()
        try:
            seq, told, held = await self._store.read(lambda view: _news(view, after, self._knows))
        except errors.Gone:
            return await self._list()
        self._seq = seq
        self._unsure -= {one for one, job in told.items() if _version(job) >= _version(self.jobs.get(one))}
        return frozenset(job_id for job_id, job in told.items() if self._learn(job_id, job, held.get(job_id, ())))

    def _knows(self, job_id: str, version: int) -> bool:
        """Return whether this is the job's present version, with its holdings."""
        known = self.jobs.get(job_id)
        return known is not None and known.version >= version and job_id not in self._unsure

    def adopt(self, written: Iterable[jobs.Job | None]) -> None:
        """Take over jobs that this controller has just written: they are no news later."""
        for job in written:
            if job is None:
                continue
            if job.version > _version(self.jobs.get(job.id)) + 1:
                self._unsure.add(job.id)
            self._learn(job.id, job, self.held.get(job.id, ()))

    def hold(self, job: jobs.Job, claims: tuple[holdings.Holding, ...]) -> None:
        """Take over a job with its present holdings."""
        self._unsure.discard(job.id)
        self._learn(job.id, job, claims)

    async def reread(self, ids: Iterable[str]) -> None:
        """Read these jobs again, for changes that are not in the log."""
        wanted = list(ids)
        if wanted:
            found = await self._store.read(lambda view: view.jobs_by_id(wanted))
            self._unsure |= {one for one, job in found.items() if job.version > _version(self.jobs.get(one))}
            self.adopt(found.values())

    async def _list(self) -> frozenset[str]:
        seq, active, held = await self._store.read(_everything)
        before = self.jobs
        self.jobs, self.held, self._seq = {job.id: job for job in active if is_active(job)}, held, seq
        self._unsure.clear()
        changed = {job_id for job_id, job in self.jobs.items() if _version(before.get(job_id)) != job.version}
        return frozenset(changed | (before.keys() - self.jobs.keys()))

    def _learn(self, job_id: str, job: jobs.Job | None, claims: tuple[holdings.Holding, ...]) -> bool:
        known = self.jobs.get(job_id)
        if job is not None and known is not None and job.version <= known.version:
            if job.version == known.version and job.live is not None:
                self.held[job_id] = claims  # the job may have been adopted without the holdings that came with it
            return False
        if job is None or not is_active(job):
            self.held.pop(job_id, None)
            return self.jobs.pop(job_id, None) is not None
        self.jobs[job_id] = job
        if job.live is not None:
            self.held[job_id] = claims
        else:
            self.held.pop(job_id, None)
        return True


_News = tuple[int, dict[str, jobs.Job | None], dict[str, tuple[holdings.Holding, ...]]]


def _news(view: stores.View, after: int, knows: Callable[[str, int], bool]) -> _News:
    seq = view.last_seq()
    ids = {job_id for job_id, version in view.changed_jobs(after).items() if not knows(job_id, version)}
    found = view.jobs_by_id(ids)
    claims = view.holdings_by_job([job.id for job in found.values() if job.live is not None])
    held = {job_id: tuple(of_job) for job_id, of_job in claims.items()}
    return max(seq, after), {job_id: found.get(job_id) for job_id in ids}, held


def _everything(view: stores.View) -> tuple[int, list[jobs.Job], dict[str, tuple[holdings.Holding, ...]]]:
    held: dict[str, list[holdings.Holding]] = {}
    for claim in view.holdings():
        held.setdefault(claim.job, []).append(claim)
    return view.last_seq(), view.active(), {job_id: tuple(claims) for job_id, claims in held.items()}


def _version(job: jobs.Job | None) -> int:
    return job.version if job is not None else 0

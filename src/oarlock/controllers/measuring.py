"""Speed curves: reports of running jobs on their steps, gathered by shape, fitted, and kept with the job.

Reports come once a second and are not logged; this controller samples each job's last report. It gathers new samples in
memory, and once a minute it writes the curve that is fitted to all of them: a crash loses a minute of samples of a job
that goes on being measured. Both are done for a limited number of jobs at a time, those first that have waited longest,
so that ten thousand running jobs cost no more than a thousand, and are only sampled less often.

For a job that shares a device, the record tells with which other job it was measured: a policy decides by that whether
the two go on together, so it is written at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from oarlock.controllers import bulkwrites, leadership, rosters
from oarlock.scheduler.speed import samples
from oarlock.spec import curves, events, jobs, roles
from oarlock.store import stores

PERIOD_S = 5.0
READ_AT_MOST = 200
"""Jobs whose reports are read in one tick."""

WRITTEN_EVERY_S = 60.0
WRITTEN_AT_MOST = 20
"""Curves that are fitted and written in one round."""

TOGETHER_S = 2.0
"""Steps that began before both had trained for so long are not counted as done beside each other."""

LOSSES_KEPT = 512
"""Pairs (step, loss) kept for one job. Beyond that number every second pair is dropped."""


class Measuring:
    name = "measuring"

    def __init__(
        self,
        store: stores.Store,
        leading: leadership.Leading,
        *,
        clock: Callable[[], float],
        report: bulkwrites.Report,
        period_s: float = PERIOD_S,
        read_at_most: int = READ_AT_MOST,
        written_at_most: int = WRITTEN_AT_MOST,
    ) -> None:
        self._store = store
        self._leading = leading
        self._clock = clock
        self._report = report
        self._period_s = period_s
        self._read_at_most = read_at_most
        self._written_at_most = written_at_most
        self._roster = rosters.Roster(store)
        self._known: dict[str, _Known] = {}
        self._due = 0.0

    def wake_at(self) -> float | None:
        return self._due if self._leading.epoch is not None else None

    async def tick(self) -> None:
        epoch, now = self._leading.epoch, self._clock()
        if epoch is None or 0 < self._due - now <= self._period_s:
            return
        self._due = now + self._period_s
        await self._roster.refresh()
        running = self._running()
        self._known = {job.id: self._known.get(job.id) or _Known() for job in running}
        turn = sorted(self._known, key=lambda job_id: (self._known[job_id].read_at, job_id))[: self._read_at_most]
        await self._roster.reread(turn)
        mates = self._mates()
        for job_id in turn:
            if (job := self._roster.jobs.get(job_id)) is not None:
                self._known[job_id].learn(job, now, self._roster.jobs.get(mates.get(job_id, "")))
        await self._write(now, epoch)

    def _running(self) -> list[jobs.Job]:
        return [
            job
            for job in self._roster.jobs.values()
            if job.live is not None and job.live.processing_at is not None and job.live.stop is None
        ]

    def _mates(self) -> dict[str, str]:
        """Return the partner of each job that shares a whole device."""
        on: dict[tuple[str, int], list[str]] = {}
        for job_id, claims in self._roster.held.items():
            job = self._roster.jobs.get(job_id)
            if job is None or len(claims) != 1 or not claims[0].amount.gpu_milli:
                continue
            if job.spec.roles[roles.RoleName(claims[0].role)].gpus == 1:
                on.setdefault((claims[0].node, claims[0].devices[0]), []).append(job_id)
        pairs = (pair for pair in on.values() if len(pair) == 2)
        return {one: other for pair in pairs for one, other in (pair, pair[::-1])}

    async def _write(self, now: float, epoch: int) -> None:
        due = [
            job_id
            for job_id, known in self._known.items()
            if known.new
            and known.last is not None
            and (known.new[-1].beside or not 0 <= now - known.written_at < WRITTEN_EVERY_S)
        ]
        due.sort(key=lambda job_id: (self._known[job_id].written_at, job_id))
        told: list[tuple[str, events.AnyEvent]] = []
        for job_id in due[: self._written_at_most]:
            known, job = self._known[job_id], self._roster.jobs.get(job_id)
            if job is not None and known.last is not None:
                curve = samples.curve(job, known.last, known.new, known.losses)
                told.append((job_id, events.Measured(curve=curve)))
                known.new, known.written_at = [], now
        self._roster.adopt(await bulkwrites.tell(self._store, told, epoch=epoch, at=now, report=self._report))


class _Known:
    """The samples of one running job."""

    def __init__(self) -> None:
        self.read_at = 0.0
        self.written_at = 0.0
        self.last: samples.Seen | None = None
        self.new: list[curves.Sample] = []
        self.losses: list[tuple[float, float]] = []

    def learn(self, job: jobs.Job, now: float, mate: jobs.Job | None) -> None:
        self.read_at = now
        seen = samples.seen(job, "" if mate is None else mate.id)
        if seen is None or (self.last is not None and seen.at <= self.last.at):
            return
        if mate is not None and not seen.at >= _trains_since(mate) + TOGETHER_S:
            return
        self.last = seen
        self.new.append(seen.sample)
        if seen.loss is not None:
            self.losses.append((float(seen.step), seen.loss))
            if len(self.losses) > LOSSES_KEPT:
                self.losses = self.losses[::2]


def _trains_since(job: jobs.Job) -> float:
    """Return when all its processes had told of a step; infinity where they have not, or where it is being stopped."""
    live = job.live
    told = [task.first_progress for task in live.tasks] if live is not None and live.stop is None else []
    return max((math.inf if one is None else one.at for one in told), default=math.inf)

"""Gangs into places: builds the snapshot, asks the scheduler for a plan, and commits what it says.

Each launch is committed whole: holdings, attempt and phase in one transaction, in which the job is looked at again, so
that a plan that has grown old launches nothing. A refusal is written when it says something new.

A thousand waiting jobs must not make each start of one of them slow. So a plan is asked for only when something has
changed that a scheduler can see; while the queue is long, most plans look at its head alone, and a plan of all of it
follows at most every `FULL_ROUND_S`; and of refusals that only count down, few are written.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from typing import Protocol

import msgspec

from oarlock.controllers import batches, rosters
from oarlock.controllers import leading as leads
from oarlock.lifecycle import stepping
from oarlock.scheduler import gangs
from oarlock.spec import events, failpoints, intents, jobs, nodes, phases, plans, pools, refusals
from oarlock.store import port as stores

HEAD = 64
"""Waiting gangs that every plan looks at."""

FULL_ROUND_S = 2.0
RESYNC_S = 5.0
"""While anything waits, a plan is made at least so often: nodes and pools change without a line in the log."""

REFUSAL_AGE_S = 30.0
"""A refusal that differs from the last one in its numbers only is written when that one is so old."""

RETRY_S = 0.5
"""After a launch that somebody else's claim has prevented, and while the first node has yet to be heard of."""


class Plan(Protocol):
    def __call__(self, snapshot: plans.Snapshot, now: float) -> plans.Plan: ...


class Scheduling:
    name = "scheduling"

    def __init__(
        self,
        store: stores.Store,
        leading: leads.Leading,
        plan: Plan,
        *,
        clock: Callable[[], float],
        report: batches.Report,
    ) -> None:
        self._store = store
        self._leading = leading
        self._plan = plan
        self._clock = clock
        self._report = report
        self._roster = rosters.Roster(store)
        self._gangs: dict[str, tuple[int, plans.Gang]] = {}
        self._running: dict[str, tuple[int, plans.Running]] = {}
        self._shapes: dict[str, object] = {}
        self._refused_at: dict[str, float] = {}
        self._ground: tuple[list[nodes.Node], list[pools.Pool]] = ([], [])
        self._full_at = 0.0
        self._retry = False
        self._due: float | None = 0.0

    def wake_at(self) -> float | None:
        return self._due

    async def tick(self) -> None:
        epoch, now = self._leading.epoch, self._clock()
        if epoch is None:
            self._due = None
            return
        changed = self._notice(await self._roster.refresh())
        if not changed and self._due is not None and now < self._due <= now + RESYNC_S:
            return
        ground = await self._store.read(lambda view: (view.nodes(), view.pools()))
        if ground != self._ground:
            self._ground, self._full_at = ground, 0.0
        waiting = self._waiting()
        full = len(waiting) <= HEAD or not 0 <= now - self._full_at < FULL_ROUND_S
        if full:
            self._full_at = now
        await self._round(waiting if full else self._head(waiting), epoch, now)
        self._due = self._next_due(waiting, full=full, now=now)

    def _notice(self, changed: Iterable[str]) -> bool:
        """Whether among these jobs is one that a scheduler sees differently now."""
        differs = False
        for job_id in changed:
            shape = _shape(self._roster.jobs.get(job_id))
            if shape != self._shapes.get(job_id):
                differs = True
            if shape is None:
                for known in (self._shapes, self._gangs, self._running, self._refused_at):
                    known.pop(job_id, None)
            else:
                self._shapes[job_id] = shape
        return differs

    def _waiting(self) -> list[jobs.Job]:
        return [job for job in self._roster.jobs.values() if _waits(job)]

    def _head(self, waiting: list[jobs.Job]) -> list[jobs.Job]:
        """Those that any policy looks at first. Whom this overlooks, the next plan of all of them finds."""
        return heapq.nsmallest(HEAD, waiting, key=lambda job: (-job.spec.priority, job.created_at, job.id))

    async def _round(self, waiting: list[jobs.Job], epoch: int, now: float) -> None:
        if not waiting and not self._roster.held:
            return
        ground_nodes, ground_pools = self._ground
        snapshot = plans.Snapshot(
            nodes=tuple(ground_nodes),
            pools=tuple(ground_pools),
            waiting=tuple(self._gang(job) for job in waiting),
            running=tuple(self._holder(self._roster.jobs[job_id]) for job_id in self._roster.held),
        )
        plan = self._plan(snapshot, now)
        failpoints.hit("scheduling.before_commit")
        await self._launch(plan.launches, epoch, now)
        await self._preempt(plan.preemptions, epoch, now)
        await self._refuse(plan.refusals, epoch, now)
        failpoints.hit("scheduling.after_commit")

    def _gang(self, job: jobs.Job) -> plans.Gang:
        version, gang = self._gangs.get(job.id, (0, None))
        if gang is None or version != job.version:
            gang = gangs.gang(job)
            self._gangs[job.id] = (job.version, gang)
        return gang

    def _holder(self, job: jobs.Job) -> plans.Running:
        version, running = self._running.get(job.id, (0, None))
        if running is None or version != job.version:
            running = gangs.running(job, self._roster.held[job.id])
            self._running[job.id] = (job.version, running)
        return running

    async def _launch(self, launches: tuple[plans.Launch, ...], epoch: int, now: float) -> None:
        def commit(tx: stores.Transaction, launch: plans.Launch) -> tuple[jobs.Job, events.Admitted] | None:
            job = tx.job(launch.job)
            number = 1 if job is None or job.attempt is None else job.attempt.number + 1
            claims = tuple(msgspec.structs.replace(claim, attempt=number) for claim in launch.holdings)
            admitted = events.Admitted(attempt=number, holdings=claims)
            after = stepping.step(job, admitted, now) if job is not None else None
            if after is None or after is job:  # it is not what it was when the plan was made
                return None
            tx.hold(claims)
            return tx.put_job(after, [admitted], at=now), admitted

        done = await batches.each(
            self._store, launches, commit, epoch=epoch, report=self._report, named=lambda launch: launch.job
        )
        self._retry = any(launched is None for launched in done)
        for launched in done:
            if launched is not None:
                self._roster.hold(launched[0], launched[1].holdings)
                self._notice([launched[0].id])

    async def _preempt(self, preemptions: tuple[plans.Preemption, ...], epoch: int, now: float) -> None:
        await self._tell(
            [
                (one.job, events.Intended(intent=intents.Intent.PREEMPT, by="scheduler", reason=one.reason))
                for one in preemptions
            ],
            epoch,
            now,
        )

    async def _refuse(self, refused: dict[str, refusals.Refusal], epoch: int, now: float) -> None:
        worth = [(job_id, refusal) for job_id, refusal in refused.items() if self._says_something(job_id, refusal, now)]
        await self._tell([(job_id, events.Refused(refusal=refusal)) for job_id, refusal in worth], epoch, now)
        for job_id, _ in worth:
            self._refused_at[job_id] = now

    def _says_something(self, job_id: str, refusal: refusals.Refusal, now: float) -> bool:
        job = self._roster.jobs.get(job_id)
        if job is None or refusal.same_kind(job.refusal):
            return False
        if job.refusal is None or job.refusal.code is not refusal.code:
            return True
        return not 0 <= now - self._refused_at.get(job_id, job.phase_at) < REFUSAL_AGE_S

    async def _tell(self, told: list[tuple[str, events.AnyEvent]], epoch: int, now: float) -> None:
        written = await batches.tell(self._store, told, epoch=epoch, at=now, report=self._report)
        self._roster.adopt(written)
        self._notice([job.id for job in written if job is not None])

    def _next_due(self, waiting: list[jobs.Job], *, full: bool, now: float) -> float | None:
        """When a plan may be another by time alone."""
        still = [self._roster.jobs[job.id] for job in waiting if _waits(self._roster.jobs.get(job.id))]
        if not still:
            return None
        if self._retry or not self._ground[0]:
            return now + RETRY_S
        times = [now + RESYNC_S] if full else [self._full_at + FULL_ROUND_S]
        times += [job.not_before for job in still if job.not_before is not None and job.not_before > now]
        return min(times)


def _waits(job: jobs.Job | None) -> bool:
    return (
        job is not None and job.phase is phases.Phase.QUEUED and job.live is None and job.intent is intents.Intent.RUN
    )


def _shape(job: jobs.Job | None) -> object:
    """What of a job a plan depends on; None where it depends on nothing of it."""
    if _waits(job) and job is not None:
        return ("waits", job.not_before)
    if job is not None and job.live is not None:
        return ("runs", job.live.number, job.intent)
    return None

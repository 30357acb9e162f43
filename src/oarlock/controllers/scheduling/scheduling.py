"""The scheduling controller: builds the snapshot, asks the scheduler for a plan, and commits the plan.

Each launch is one transaction: holdings, attempt and phase. The transaction reads the job again, so an outdated plan
launches nothing. Workers of an elastic gang join and leave at once (`reshaping`). Any other gang that must give way, or
run at another size or place, is told so (`stops`): it ends at its next checkpoint and waits again, and a later plan
launches both gangs. A refusal is written when it says something new.

A queue of a thousand jobs must not slow down each launch. A plan is therefore made only after a change that a
scheduler can see, or when time alone asks for one (`planningrounds`). While the queue is long, most plans look at its
head alone, and few of the refusals that only count down are written. A memo of the scheduler's own keeps work between
plans. The event log does not carry progress: running jobs are read again before each plan that may touch them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec

from oarlock.backends import provisioners
from oarlock.controllers import bulkwrites, leadership, nodeclasses, rosters
from oarlock.controllers.scheduling import candidates, histories, planningrounds, stops
from oarlock.lifecycle import reshaping, stepping
from oarlock.scheduler import pricing
from oarlock.spec import errors, events, holdings, jobs, plans, refusals
from oarlock.spec.access import privacy
from oarlock.spec.cluster import nodes, pools
from oarlock.spec.process import failpoints
from oarlock.store import stores

Named = TypeVar("Named", nodes.Node, pools.Pool)

READ_AT_ONCE = 500
"""Jobs in one look at the store: others want to look, too."""

REFUSAL_AGE_S = 30.0
"""A refusal that differs from the last one in its numbers only is written when that one is so old."""


class Plan(Protocol):
    """`memo` is the same object at every call; the plan is the same without it."""

    def __call__(self, snapshot: plans.Snapshot, now: float, memo: Any) -> plans.Plan: ...


class Scheduling:
    name = "scheduling"

    def __init__(
        self,
        store: stores.Store,
        leading: leadership.Leading,
        plan: Plan,
        *,
        clock: Callable[[], float],
        report: bulkwrites.Report,
        rules: plans.Rules | None = None,
        provisioner: provisioners.Provisioner | None = None,
        names: privacy.Names = privacy.PUBLIC,
        memo: Any = None,
        resync_s: float = planningrounds.RESYNC_S,
    ) -> None:
        self._store = store
        self._leading = leading
        self._plan = plan
        self._clock = clock
        self._report = report
        self._rules = rules or plans.Rules()
        self._classes = nodeclasses.NodeClasses(self._rules, provisioner)
        self._memo = memo
        self._roster = rosters.Roster(store)
        self._history = histories.History(store, names)
        self._rounds = planningrounds.PlanningRounds(self._rules.round_s, resync_s)
        self._candidates = candidates.Candidates(names, self._rules.profiles)
        self._shapes: dict[str, object] = {}
        self._refused_at: dict[str, float] = {}
        self._ground: tuple[tuple[nodes.Node, ...], tuple[pools.Pool, ...]] = ((), ())
        self._book = pricing.Book(())
        self._nodes: dict[str, nodes.Node] = {}
        self._retry = False
        self._due: float | None = 0.0

    def wake_at(self) -> float | None:
        return self._due

    async def tick(self) -> None:
        epoch = self._leading.epoch
        if epoch is None:
            self._due = None
            return
        changed = await self._roster.refresh()
        now = (
            self._clock()
        )  # after the snapshot's facts, so that no gang starts before the gang that made way has ended
        await self._history.learn(job_id for job_id in changed if job_id not in self._roster.jobs)
        if not self._notice(changed) and not self._rounds.is_due(now):
            self._due = self._rounds.due
            return
        await self._look_around()
        touches = self._rounds.touches(now)
        if touches:
            await self._read_progress()
        waiting = [job for job in self._roster.jobs.values() if planningrounds.waits(job)]
        if waiting or (touches and self._roster.held):
            whole = self._rounds.whole(len(waiting), now, touches=touches)
            snapshot = self._snapshot(waiting if whole else self._rounds.head(waiting), touches=touches)
            plan = self._plan(snapshot, now, self._memo)
            self._rounds.planned(snapshot, plan, now, whole=whole)
            await self._commit(plan, epoch, now)
        self._rest(waiting, now)

    async def _look_around(self) -> None:
        """Read nodes and pools; those that are as they were stay the same objects."""
        rules = self._classes.rules()
        if rules is not self._rules:
            self._rules = rules
            self._rounds.start_anew()
        seen = await self._store.read(lambda view: (tuple(view.nodes()), tuple(view.pools())))
        if seen != self._ground:
            self._ground = (_same(self._ground[0], seen[0]), _same(self._ground[1], seen[1]))
            self._book = pricing.Book(seen[0])
            self._nodes = {node.name: node for node in seen[0]}
            self._rounds.start_anew()

    async def _read_progress(self) -> None:
        running = [job_id for job_id in self._roster.held if _processes(self._roster.jobs.get(job_id))]
        for start in range(0, len(running), READ_AT_ONCE):
            await self._roster.reread(running[start : start + READ_AT_ONCE])
        self._notice(running)

    def _notice(self, changed: Iterable[str]) -> bool:
        """Return whether among these jobs is one that a scheduler sees differently now."""
        differs = False
        for job_id in changed:
            shape = _shape(self._roster.jobs.get(job_id))
            if shape != self._shapes.get(job_id):
                differs = True
            if shape is None:
                self._shapes.pop(job_id, None)
                self._refused_at.pop(job_id, None)
                self._candidates.forget(job_id)
            else:
                self._shapes[job_id] = shape
        if differs:
            self._rounds.changed()
        return differs

    def _snapshot(self, waiting: list[jobs.Job], *, touches: bool) -> plans.Snapshot:
        ground_nodes, ground_pools = self._ground
        held = ((self._roster.jobs[job_id], claims) for job_id, claims in self._roster.held.items())
        return plans.Snapshot(
            nodes=ground_nodes,
            pools=ground_pools,
            waiting=tuple(self._candidates.gang(job) for job in waiting),
            running=tuple(self._candidates.running(job, claims) for job, claims in held),
            ended=self._history.ended,
            rules=self._rules,
            reallocate=touches,
        )

    async def _commit(self, plan: plans.Plan, epoch: int, now: float) -> None:
        """Commit launches first: free resources are taken before any gang is stopped for more."""
        failpoints.hit("scheduling.before_commit")
        await self._launch(plan.launches, epoch, now)
        failpoints.hit("scheduling.after_launches")
        within = await self._reshape(plan, epoch, now)
        told = stops.of(plan, self._roster.jobs)
        await self._tell([one for one in told if one[0] not in within], epoch, now)
        failpoints.hit("scheduling.after_stops")
        await self._tell(self._batches(plan), epoch, now)
        await self._refuse(plan.refusals, epoch, now)
        failpoints.hit("scheduling.after_commit")

    async def _launch(self, launches: tuple[plans.Launch, ...], epoch: int, now: float) -> None:
        def commit(tx: stores.Transaction, launch: plans.Launch) -> tuple[jobs.Job, events.Admitted] | None:
            job = tx.job(launch.job)
            number = 1 if job is None or job.attempt is None else job.attempt.number + 1
            claims = tuple(msgspec.structs.replace(claim, attempt=number) for claim in launch.holdings)
            admitted = events.Admitted(
                attempt=number,
                holdings=claims,
                reason=launch.reason,
                batch=launch.batch,
                price_per_h=self._book.per_hour(claims),
                gpu_types=nodes.gpu_types(self._nodes, claims),
            )
            after = stepping.step(job, admitted, now) if job is not None else None
            if after is None or after is job:  # the job has changed since the plan was made
                return None
            tx.hold(claims)
            return tx.put_job(after, [admitted], at=now), admitted

        done = await bulkwrites.each(
            self._store,
            launches,
            commit,
            epoch=epoch,
            report=self._report,
            named=lambda launch: launch.job,
            prepare=lambda tx, some: tx.holdings_by_job([launch.job for launch in some]),
        )
        self._retry = any(launched is None for launched in done)
        for launched in done:
            if launched is not None:
                self._roster.hold(launched[0], launched[1].holdings)
                self._notice([launched[0].id])

    async def _reshape(self, plan: plans.Plan, epoch: int, now: float) -> frozenset[str]:
        """Change the size of the gangs that can go on at another size; return those that need not be stopped for it."""

        def commit(tx: stores.Transaction, resize: plans.Resize) -> _Reshaping | None:
            job = tx.job(resize.job)
            held = tuple(tx.holdings(resize.job))
            change = reshaping.change(job, held, resize.to) if job is not None else None
            if job is None or job.live is None or change is None:
                return None
            claims = (*held, *change.added)
            reshaped = events.Reshaped(
                attempt=job.live.number,
                round=job.live.round,
                added=change.added,
                removed=change.removed,
                reason=stops.resized(job, resize),
                held=sum((claim.amount for claim in claims), holdings.Resources()),
                price_per_h=self._book.per_hour(claims),
                gpu_types=nodes.gpu_types(self._nodes, claims),
            )
            after = stepping.step(job, reshaped, now)
            if after is job:  # it has that size already, or it is on the way
                return _Reshaping(job, held)
            try:
                tx.hold(change.added)
            except errors.AlreadyHeld:  # another gang has yet to make room: a later plan finds it
                return _Reshaping(job, held)
            return _Reshaping(tx.put_job(after, [reshaped], at=now), claims)

        done = await bulkwrites.each(
            self._store, plan.resizes, commit, epoch=epoch, report=self._report, named=lambda resize: resize.job
        )
        changed = [one for one in done if one is not None]
        for one in changed:
            self._roster.hold(one.job, one.claims)
        self._notice([one.job.id for one in changed])
        return frozenset(one.job.id for one in changed)

    def _batches(self, plan: plans.Plan) -> list[tuple[str, events.AnyEvent]]:
        known = ((job_id, self._roster.jobs.get(job_id), batch) for job_id, batch in plan.batches.items())
        return [
            (job_id, events.BatchDecided(attempt=job.live.number, batch=batch))
            for job_id, job, batch in known
            if job is not None and job.live is not None
        ]

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
        written = await bulkwrites.tell(self._store, told, epoch=epoch, at=now, report=self._report)
        self._roster.adopt(written)
        self._notice([job.id for job in written if job is not None])

    def _rest(self, waiting: list[jobs.Job], now: float) -> None:
        still = [job for job in (self._roster.jobs.get(one.id) for one in waiting) if planningrounds.waits(job)]
        retry = self._retry or not self._ground[0]
        self._rounds.rest(still, now, held=bool(self._roster.held), retry=retry)
        self._due = self._rounds.due


class _Reshaping(NamedTuple):
    """A job that goes on at another size, or is on its way there, with its holdings."""

    job: jobs.Job
    claims: tuple[holdings.Holding, ...]


def _processes(job: jobs.Job | None) -> bool:
    return job is not None and job.live is not None and job.live.processing_at is not None


def _shape(job: jobs.Job | None) -> object:
    """Return the part of a job that plans depend on, as far as the log tells; None if they do not depend on it."""
    if planningrounds.waits(job):
        return ("waits", job.not_before, *_wishes(job))
    if job is not None and job.live is not None:
        held = tuple(task.name for task in job.live.tasks if task.holds)
        return ("runs", job.live.number, job.intent, held, *_wishes(job))
    return None


def _wishes(job: jobs.Job) -> tuple[object, ...]:
    """Return the fields that the job's owner may change (`events.Edited`)."""
    return job.pool, job.spec.priority, *((role.min, role.max) for role in job.spec.roles.values())


def _same(before: tuple[Named, ...], now: tuple[Named, ...]) -> tuple[Named, ...]:
    known = {one.name: one for one in before}
    return tuple(known[one.name] if known.get(one.name) == one else one for one in now)

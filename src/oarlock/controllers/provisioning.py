"""The provisioning controller: it requests the nodes that waiting gangs lack of the cluster's autoscaler.

    last refusals, free space ──> missing (pure) ──> request in the job's record ──> request in the cluster
             answer of the autoscaler ──> answer in the job's record ──> `why`, measurements

The record comes first: a server that ends between the two finds a request that the cluster lacks, and makes it. A
request in the cluster that no record names is withdrawn, so that nothing has to be remembered when a gang starts,
changes or ends. Without a class of nodes that holds too, once for each server that leads: the classes may have been
removed from the settings.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import structlog

from oarlock.backends import provisioners
from oarlock.controllers import bulkwrites, leadership, nodeclasses, rosters
from oarlock.controllers.scheduling import candidates, planningrounds
from oarlock.scheduler.provisioning import missing, requesting
from oarlock.spec import errors, events, jobs, plans
from oarlock.spec.cluster import provisioning
from oarlock.store import stores

PERIOD_S = 5.0
"""The autoscaler's answers are read so often while a request is open."""

SPACING_S = 1.0
"""A queue that changes all the time is looked at so often."""

_log = structlog.get_logger(__name__)


class Provisioning:
    """Without a provisioner it does nothing; without a class of nodes it withdraws the requests of before."""

    name = "provisioning"

    def __init__(
        self,
        store: stores.Store,
        provisioner: provisioners.Provisioner | None,
        leading: leadership.Leading,
        *,
        clock: Callable[[], float],
        report: bulkwrites.Report,
        rules: plans.Rules,
    ) -> None:
        self._store = store
        self._provisioner = provisioner
        self._leading = leading
        self._clock = clock
        self._report = report
        self._rules = rules
        self._classes = nodeclasses.NodeClasses(rules, provisioner)
        self._roster = rosters.Roster(store)
        self._candidates = candidates.Candidates(profiles=rules.profiles)
        self._due = 0.0
        self._last: float | None = None
        self._changed = True
        self._is_clean = False  # the cluster has no request of ours
        self._vain: frozenset[str] = frozenset()  # jobs: the last looks found no node class for them
        self._unsure: set[tuple[str, int]] = set()  # requests that were not made, or perhaps in part
        self._settled: int | None = None  # the epoch in which nothing was left to do, without a class of nodes

    def wake_at(self) -> float | None:
        epoch = self._leading.epoch
        return None if epoch is None or self._provisioner is None or epoch == self._settled else self._due

    async def tick(self) -> None:
        epoch, now = self._leading.epoch, self._clock()
        provisioner = self._provisioner
        if epoch is None or provisioner is None or epoch == self._settled:
            return
        if self._last is not None and 0 <= now - self._last < SPACING_S:
            self._due = self._last + SPACING_S
            return
        self._changed = bool(await self._roster.refresh()) or self._changed
        if self._last is not None and 0 <= now - self._last < (SPACING_S if self._changed else PERIOD_S):
            self._due = self._last + (SPACING_S if self._changed else PERIOD_S)
            return
        self._last, self._changed, self._due = now, False, now + PERIOD_S
        waiting = [job for job in self._roster.jobs.values() if planningrounds.waits(job)]
        idle = self._is_clean and not any(job.node_request for job in self._roster.jobs.values())
        if idle and not self._rules.node_classes:
            self._settled = epoch
        if idle and (not waiting or epoch == self._settled):
            return
        seen = await self._answered(provisioner)
        after = await self._decide(waiting, seen, now)
        changed = [job for job in self._roster.jobs.values() if after.get(job.id) != job.node_request]
        told: list[tuple[str, events.AnyEvent]] = [
            (job.id, events.NodesRequested(request=after.get(job.id))) for job in changed
        ]
        written = await bulkwrites.tell(self._store, told, epoch=epoch, at=now, report=self._report)
        self._roster.adopt(written)
        await self._apply(provisioner, seen)
        for before, job in zip(changed, written, strict=True):
            if job is not None and job.node_request is not None and _news(before.node_request, job.node_request):
                await self._part("tell", job.id, provisioner.tell(job.id, job.node_request, job.resource))

    async def _answered(self, provisioner: provisioners.Provisioner) -> list[provisioning.Answered] | None:
        try:
            return await provisioner.answered()
        except errors.Forbidden:
            if self._rules.node_classes:
                raise
            return None  # a server without this right has never made a request

    async def _decide(
        self, waiting: list[jobs.Job], seen: list[provisioning.Answered] | None, now: float
    ) -> dict[str, provisioning.NodeRequest]:
        """Return the request of each waiting job that has one."""
        known = {(one.job, one.number): one for one in seen or ()}
        current = {
            job.id: requesting.answered(job.node_request, known.get((job.id, job.node_request.number)), now)
            for job in waiting
            if job.node_request is not None
        }
        kept = {job: request.need for job, request in current.items() if request.open} if seen is not None else {}
        # A measurement is kept nowhere, so that each look measures the same gangs.
        vain = self._vain if seen is not None else frozenset()
        needs, self._vain = missing.look(await self._snapshot(waiting), kept, vain)
        last: dict[str, int] = {}  # numbers that are taken: a request of before may not have been withdrawn yet
        for job_id, number in {*known, *self._unsure}:
            last[job_id] = max(number, last.get(job_id, 0))
        following = (
            (
                job.id,
                requesting.following(
                    current.get(job.id), needs.get(job.id), now, answering=seen is not None, last=last.get(job.id, 0)
                ),
            )
            for job in waiting
        )
        return {job: request for job, request in following if request is not None}

    async def _snapshot(self, waiting: list[jobs.Job]) -> plans.Snapshot:
        nodes, pools = await self._store.read(lambda view: (tuple(view.nodes()), tuple(view.pools())))
        held = ((self._roster.jobs[job_id], claims) for job_id, claims in self._roster.held.items())
        return plans.Snapshot(
            nodes=nodes,
            pools=pools,
            waiting=tuple(self._candidates.gang(job) for job in waiting),
            running=tuple(self._candidates.running(job, claims) for job, claims in held),
            rules=self._classes.rules(),
        )

    async def _apply(self, provisioner: provisioners.Provisioner, seen: list[provisioning.Answered] | None) -> None:
        """Make the requests that the cluster lacks, and withdraw those that no job's record names."""
        if seen is None:
            self._is_clean = True
            return
        wanted = {
            (job.id, job.node_request.number): job.node_request
            for job in self._roster.jobs.values()
            if job.node_request is not None and job.node_request.open
        }
        there = {(one.job, one.number) for one in seen}
        for job, number in sorted((there | self._unsure) - wanted.keys()):
            if await self._part("withdraw", job, provisioner.withdraw(job, number)):
                self._unsure.discard((job, number))
        for job, number in sorted(wanted.keys() - there):
            self._unsure.add((job, number))
            if await self._part(
                "request", job, provisioner.request(job, wanted[job, number], self._roster.jobs[job].resource)
            ):
                self._unsure.discard((job, number))
        self._is_clean = not there and not wanted and not self._unsure

    async def _part(self, what: str, job: str, work: Awaitable[None]) -> bool:
        """Do one request to the cluster. One that fails holds up no other, and is tried again at the next look."""
        try:
            await work
        except errors.OarlockError as error:
            _log.warning("provisioning.failed", what=what, job=job, error=str(error))
            return False
        return True


def _news(before: provisioning.NodeRequest | None, after: provisioning.NodeRequest) -> bool:
    """Return whether other nodes are missing than before."""
    return before is None or before.need.nodes != after.need.nodes

"""Resource pools: their entitlements and holdings, and changes by administrators.

The entitlement is computed from the same nouns and by the same function as in the scheduler, so the answer shows the
numbers that decide. A change is checked and written in one transaction, so that no job enters a pool that is removed or
becomes a parent (see `api/jobs/submissions.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from oarlock.api import routes
from oarlock.scheduler.policies import registry
from oarlock.scheduler.pools import entitlement, standing
from oarlock.spec import bodies, errors, events, holdings, jobs, phases
from oarlock.spec.access import users
from oarlock.spec.cluster import poolchanges, pools, pooltrees
from oarlock.store import stores

COUNTED_JOBS = 100
"""The most jobs that are counted as obstacles to a change."""


async def show_all(call: routes.Call) -> bodies.PoolList:
    return await call.access.shared(lambda view: tree(view, view.pools()))


async def change(call: routes.Call) -> routes.Answer:
    wanted, name, now = call.body(poolchanges.Change), call.path["pool"], call.services.clock()
    if isinstance(wanted.policy, str):
        registry.named(wanted.policy)

    def write(tx: stores.Transaction) -> tuple[bool, pools.Pool]:
        before, after = checked(tx, name, wanted)
        if after == before:
            return False, after
        tx.tell(events.POOLS, (name,), at=now)
        return before is None, tx.put_pool(after)

    made, pool = await call.access.administer(write)
    return routes.Answer(201 if made else 200, pool)


def checked(view: stores.View, name: str, wanted: poolchanges.Change) -> tuple[pools.Pool | None, pools.Pool]:
    """Return the stored pool, None where it is new, and the pool after the change.

    Raises VersionMismatch, and InvalidInput or Conflict with the numbers for a change that does not fit into the tree.
    """
    declared = view.pools()
    before = next((pool for pool in declared if pool.name == name), None)
    _check_version(name, before, wanted.version)
    after = poolchanges.changed(before or pools.Pool(name=name), wanted)
    pooltrees.check(after, declared, lambda pool: names(view, pool))
    return before, after


async def remove(call: routes.Call) -> None:
    name, now = call.path["pool"], call.services.clock()

    def write(tx: stores.Transaction) -> None:
        pooltrees.check_removal(name, tx.pools(), lambda pool: names(tx, pool))
        tx.remove_pool(name)
        tx.tell(events.POOLS, (name,), at=now)

    await call.access.administer(write)


def _check_version(name: str, before: pools.Pool | None, version: int | None) -> None:
    stored = before.version if before is not None else 0
    if version is not None and version != stored:
        raise errors.VersionMismatch(
            f"`{name[:63]}` is at version {stored}, not {version}.",
            hint="See the present pool, and decide whether to change it: oarlock pools",
            detail={"version": stored},
        )


def names(view: stores.View, pool: str) -> list[str]:
    """Return the names of jobs of the pool, as far as they are counted."""
    which = stores.JobFilter(pool=pool, phases=phases.NOT_OVER, limit=COUNTED_JOBS)
    return [job.name for job in view.jobs(which)]


def tree(view: stores.View, declared: Sequence[pools.Pool]) -> bodies.PoolList:
    """Return the tree that the declared pools make of the present jobs and nodes."""
    active, machines = view.active(), view.nodes()
    held, capacity, demand, entitled = standing.of(machines, declared, active, view.holdings())
    reserved = entitlement.reserved(declared, capacity)
    sums = _Sums(declared, [job.pool for job in active], demand)
    for job in active:
        sums.count(job, held.get(job.id, []))
    items = tuple(
        bodies.PoolState(
            pool=sums.known[name],
            held=sums.held[name],
            entitled=entitled.get(name, {}),
            demand=sums.demand[name],
            reserved=reserved.get(name, {}),
            running=sums.running[name],
            waiting=sums.waiting[name],
        )
        for name in sums.order()
    )
    return bodies.PoolList(items=items, capacity=capacity, notes=_notes(declared, capacity))


class _Sums:
    """Sums for each pool and all pools above it."""

    def __init__(self, declared: Iterable[pools.Pool], named: Iterable[str], demand: dict[str, bodies.Amounts]) -> None:
        self.known = {pool.name: pool for pool in declared}
        for name in (pools.DEFAULT, *named):
            self.known.setdefault(name, pools.Pool(name=name))
        self.held = dict.fromkeys(self.known, holdings.Resources())
        self.running = dict.fromkeys(self.known, 0)
        self.waiting = dict.fromkeys(self.known, 0)
        self.demand: dict[str, bodies.Amounts] = {name: dict.fromkeys(pools.RESOURCES, 0.0) for name in self.known}
        self._lines = {name: pooltrees.line(name, self.known) for name in self.known}
        for name, amounts in demand.items():
            for above in self._lines[name]:
                for resource, amount in amounts.items():
                    self.demand[above][resource] += amount

    def count(self, job: jobs.Job, held: Sequence[holdings.Holding]) -> None:
        amount = sum((holding.amount for holding in held), holdings.Resources())
        for name in self._lines[job.pool]:
            self.held[name] += amount
            self.running[name] += job.live is not None
            self.waiting[name] += standing.waits(job)

    def order(self) -> list[str]:
        """Return the names in the order of the drawn tree: a parent, then its children by name."""
        return sorted(self.known, key=lambda name: self._lines[name][::-1])


def _notes(declared: Iterable[pools.Pool], capacity: bodies.Amounts) -> tuple[str, ...]:
    return tuple(
        f"The pools reserve {pooltrees.shown(resource, together)} together, and the nodes that are ready have "
        f"{pooltrees.shown(resource, there)}: every reservation is reduced to the same part."
        for resource, together, there in entitlement.shortages(declared, capacity)
    )


ROUTES: tuple[routes.Route, ...] = (
    routes.look(
        "/api/v1/pools", show_all, "the tree of pools: entitlement, holdings and demand of each", bodies.PoolList
    ),
    routes.Route(
        method="PATCH",
        path="/api/v1/pools/{pool}",
        handler=change,
        needs=users.Right.ADMIN,
        summary="make or change a pool; fields that are left out stay as they are",
        body=poolchanges.Change,
        answer=pools.Pool,
        others={201: "the new pool"},
    ),
    routes.Route(
        method="DELETE",
        path="/api/v1/pools/{pool}",
        handler=remove,
        needs=users.Right.ADMIN,
        summary="remove a pool that has neither jobs nor pools below it",
        status=204,
    ),
)

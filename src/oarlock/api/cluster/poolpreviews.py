"""The dry run of a change of a pool: what the administrator would see after it, and what the scheduler would do.

The tree is computed as `api/cluster/pools.py` does, with and without the change. The scheduler plans twice on the same
snapshot, and the answer has the difference: the gangs that would start because of the change, those that would have to
give back their places, and those that would wait, with the reason in numbers. Nothing is written. A change that would
be refused is refused here with the same error. A user makes one such pair of plans, or one forecast, at a time.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable, Mapping

import msgspec

from oarlock.api import routes
from oarlock.api.cluster import pools
from oarlock.scheduler import planning
from oarlock.scheduler.policies import registry
from oarlock.spec import bodies, jobs, plans, refusals
from oarlock.spec.access import users
from oarlock.spec.cluster import poolchanges, pooltrees
from oarlock.spec.cluster import pools as nouns
from oarlock.store import stores

MOST_LOOKED_AT = 10_000
"""The largest sum of nodes, running and waiting gangs for which the plans are made."""

MOST_WAITS = 100
"""The most waiting jobs that are told with their reasons."""


class _Seen(msgspec.Struct, frozen=True):
    """The state of the store, and the two trees."""

    before: bodies.PoolList
    after: bodies.PoolList
    declared: tuple[nouns.Pool, ...]
    pool: nouns.Pool
    snapshot: plans.Snapshot
    jobs: dict[str, jobs.Job]


async def preview(call: routes.Call) -> bodies.PoolPreview:
    wanted, name, services = call.body(poolchanges.Change), call.path["pool"], call.services
    if isinstance(wanted.policy, str):
        registry.named(wanted.policy)
    now, rules = services.clock(), services.rules()

    def look(view: stores.View) -> _Seen:
        _, after = pools.checked(view, name, wanted)
        declared = (*(pool for pool in view.pools() if pool.name != name), after)
        return _Seen(
            before=pools.tree(view, view.pools()),
            after=pools.tree(view, declared),
            declared=declared,
            pool=after,
            snapshot=services.forecaster.snapshot(view, rules, now),
            jobs={job.id: job for job in view.active()},
        )

    async with services.forecast_turns.of(call.access.user.name):
        seen = await call.access.administered(look)
        snapshot = seen.snapshot
        planned = len(snapshot.nodes) + len(snapshot.running) + len(snapshot.waiting) <= MOST_LOOKED_AT
        told = _Difference()
        if planned:
            changed = msgspec.structs.replace(snapshot, pools=seen.declared)
            told = await asyncio.to_thread(_difference, snapshot, changed, name, now)
    return bodies.PoolPreview(
        pool=seen.pool,
        before=seen.before.items,
        after=seen.after.items,
        notes=seen.after.notes,
        starts=_tenants(call, seen.jobs, told.starts),
        stops=_tenants(call, seen.jobs, told.stops),
        shrinks=_tenants(call, seen.jobs, told.shrinks),
        waits=_refused(call, seen.jobs, told.waits),
        waiting=len(told.waits),
        planned=planned,
    )


class _Difference(msgspec.Struct, frozen=True):
    """Ids of the jobs that only the plan with the change starts, stops or resizes; and the jobs that it refuses."""

    starts: tuple[str, ...] = ()
    stops: tuple[str, ...] = ()
    shrinks: tuple[str, ...] = ()
    waits: tuple[tuple[str, refusals.Refusal], ...] = ()


def _difference(before: plans.Snapshot, after: plans.Snapshot, pool: str, now: float) -> _Difference:
    one, other = planning.plan(before, now), planning.plan(after, now)
    declared = {known.name: known for known in after.pools}
    own = {gang.job for gang in after.waiting if pool in pooltrees.line(gang.pool, declared)}
    return _Difference(
        starts=_new(one.launches, other.launches),
        stops=_new(one.preemptions, other.preemptions),
        shrinks=_new(one.resizes, other.resizes),
        waits=tuple(
            (job, refusal)
            for job, refusal in other.refusals.items()
            if job in own or not refusal.same_kind(one.refusals.get(job))
        ),
    )


def _new(
    before: Iterable[plans.Launch | plans.Preemption | plans.Resize],
    after: Iterable[plans.Launch | plans.Preemption | plans.Resize],
) -> tuple[str, ...]:
    known = {one.job for one in before}
    return tuple(one.job for one in after if one.job not in known)


def _tenants(call: routes.Call, known: Mapping[str, jobs.Job], ids: Iterable[str]) -> tuple[bodies.Tenant, ...]:
    return tuple(call.access.tenant(known[job]) for job in ids if job in known)


def _refused(
    call: routes.Call, known: Mapping[str, jobs.Job], waits: Iterable[tuple[str, refusals.Refusal]]
) -> tuple[bodies.Refused, ...]:
    return tuple(
        bodies.Refused(**msgspec.structs.asdict(call.access.tenant(known[job])), refusal=refusal)
        for job, refusal in itertools.islice(waits, MOST_WAITS)
        if job in known
    )


ROUTES: tuple[routes.Route, ...] = (
    routes.Route(
        method="POST",
        path="/api/v1/pools/{pool}/preview",
        handler=preview,
        needs=users.Right.ADMIN,
        summary="the effects of a change of a pool, which is not made",
        body=poolchanges.Change,
        answer=bodies.PoolPreview,
    ),
)

"""The entitlements that the declared pools have with the present jobs and nodes: the numbers that decide."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from oarlock.scheduler import gangs
from oarlock.scheduler.pools import entitlement
from oarlock.spec import holdings, jobs, phases
from oarlock.spec.cluster import nodes, pools


class Standing(NamedTuple):
    """`held` is by job; `demand` by leaf, `entitled` by pool, each by resource, as the capacity is."""

    held: dict[str, list[holdings.Holding]]
    capacity: entitlement.Amounts
    demand: dict[str, entitlement.Amounts]
    entitled: dict[str, entitlement.Amounts]


def of(
    machines: Sequence[nodes.Node],
    declared: Sequence[pools.Pool],
    active: Sequence[jobs.Job],
    claims: Iterable[holdings.Holding],
) -> Standing:
    held: dict[str, list[holdings.Holding]] = {}
    for holding in claims:
        held.setdefault(holding.job, []).append(holding)
    capacity = entitlement.capacity(machines)
    demand = entitlement.demand(
        [gangs.gang(job) for job in active if waits(job)],
        [gangs.running(job, held[job.id]) for job in active if job.id in held],
    )
    return Standing(held, capacity, demand, entitlement.divide(declared, capacity, demand))


def waits(job: jobs.Job) -> bool:
    return job.phase is phases.Phase.QUEUED and job.live is None

"""Samples of the cluster's use, so that the pages can show it over time.

Entitlements depend on the demand of the moment, and a node that was lost leaves no trace once it is back: neither can
be worked out later. Nor can the devices that were reserved for the first waiting job, which come from a forecast. It
uses the progress of the running jobs, not the durations of earlier jobs. A sample is taken every few minutes, and kept
for a month.
"""

from __future__ import annotations

import asyncio
import collections
import time
from collections.abc import Callable, Iterable, Sequence, Set
from typing import NamedTuple

from oarlock.controllers import leadership
from oarlock.scheduler import gangs
from oarlock.scheduler.forecasting import forecasts
from oarlock.scheduler.pools import standing
from oarlock.spec import holdings, jobs, phases, plans
from oarlock.spec.cluster import nodes, pools, pooltrees, samples
from oarlock.store import stores

PERIOD_S = 300.0
KEPT_S = 31 * 86_400.0

Device = tuple[str, int]
"""A node's name, and the index of a device."""


class Sampling:
    name = "sampling"

    def __init__(
        self,
        store: stores.Store,
        leading: leadership.Leading,
        *,
        clock: Callable[[], float],
        rules: plans.Rules,
        monotonic: Callable[[], float] = time.monotonic,
        period_s: float = PERIOD_S,
        kept_s: float = KEPT_S,
    ) -> None:
        self._store = store
        self._leading = leading
        self._clock = clock
        self._rules = rules
        self._monotonic = monotonic
        self._period_s = period_s
        self._kept_s = kept_s
        self._due = 0.0

    def wake_at(self) -> float | None:
        return self._due if self._leading.epoch is not None else None

    async def tick(self) -> None:
        epoch, now = self._leading.epoch, self._clock()
        if epoch is None or 0 < self._due - now <= self._period_s:
            return
        self._due = now + self._period_s

        def look(view: stores.View) -> Cluster:
            return Cluster(view.nodes(), view.pools(), view.active(), view.holdings())

        found = await asyncio.to_thread(self._sample, await self._store.read(look), now)

        def write(tx: stores.Transaction) -> None:
            tx.add_sample(found)
            tx.forget_samples(now - self._kept_s)

        await self._store.write(write, epoch=epoch)

    def _sample(self, cluster: Cluster, now: float) -> samples.Sample:
        began = self._monotonic()
        return sample(now, cluster, promised(cluster, self._rules, now, lambda: self._monotonic() - began))


class Cluster(NamedTuple):
    """What is sampled, as it stands in the store."""

    machines: Sequence[nodes.Node]
    declared: Sequence[pools.Pool]
    active: Sequence[jobs.Job]
    held: Sequence[holdings.Holding]


def promised(cluster: Cluster, rules: plans.Rules, now: float, spent: forecasts.Spent) -> set[Device] | None:
    """Return the devices where the first waiting job with a known start is expected to start; None without a forecast.

    `spent` gives the seconds since the beginning: a forecast ends within its own budget.
    """
    claims: dict[str, list[holdings.Holding]] = collections.defaultdict(list)
    for one in cluster.held:
        claims[one.job].append(one)
    waiting = [job for job in cluster.active if job.phase is phases.Phase.QUEUED and job.live is None]
    if not waiting:
        return set()
    running = [job for job in cluster.active if job.id in claims]
    snapshot = plans.Snapshot(
        nodes=tuple(cluster.machines),
        pools=tuple(cluster.declared),
        waiting=tuple(gangs.gang(job, of=rules.profiles) for job in waiting),
        running=tuple(gangs.running(job, claims[job.id], of=rules.profiles) for job in running),
        rules=rules,
    )
    if forecasts.too_large(snapshot):
        return None
    bounded = {job.id for job in running if job.live is None or all(task.left_s is None for task in job.live.tasks)}
    found = forecasts.forecasts(snapshot, now, spent, bounded).values()
    starts = [one for one in found if one.when is plans.When.LATER and one.placement]
    first = min(starts, key=lambda one: one.position, default=None)
    return {(one.node, index) for one in first.placement for index in one.devices} if first is not None else set()


def sample(now: float, cluster: Cluster, kept: Set[Device] | None = frozenset()) -> samples.Sample:
    """Return the sample of a moment. `kept` are the devices that are reserved for the first waiting job; None if they
    are not known.
    """
    machines, declared, active, held = cluster
    found = standing.of(machines, declared, active, held)
    known = {pool.name: pool for pool in declared} | {
        name: pools.Pool(name=name) for name in found.entitled if name not in {pool.name for pool in declared}
    }
    used: dict[str, holdings.Resources] = collections.defaultdict(holdings.Resources)
    for job in active:
        amount = sum((one.amount for one in found.held.get(job.id, ())), holdings.Resources())
        for name in pooltrees.line(job.pool, known) if amount != holdings.Resources() else ():
            used[name] += amount
    return samples.Sample(
        at=now,
        devices=_devices(machines, held, kept),
        pools={
            name: samples.PoolUse(
                used={"gpus": used[name].devices, "cpus": used[name].cpus_milli / 1000},
                entitled={one: found.entitled[name].get(one, 0.0) for one in samples.RESOURCES},
            )
            for name in sorted(found.entitled)
        },
    )


def _devices(
    machines: Iterable[nodes.Node], held: Iterable[holdings.Holding], kept: Set[Device] | None
) -> dict[str, samples.Devices]:
    taken: dict[Device, float] = collections.defaultdict(float)
    for one in held:
        for index in one.devices:
            taken[one.node, index] += one.amount.devices / len(one.devices)
    sums: dict[str, dict[str, float]] = {}
    for node in machines:
        for device in node.devices:
            used = min(1.0, taken[node.name, device.index]) if node.ready else 0.0
            rest = (
                "not_ready" if not node.ready else "reserved" if (node.name, device.index) in (kept or ()) else "idle"
            )
            counted = sums.setdefault(device.type, dict.fromkeys(("used", "idle", "not_ready", "reserved"), 0.0))
            counted["used"] += used
            counted[rest] += 1.0 - used
    return {
        kind: samples.Devices(
            used=round(found["used"], 6),
            idle=round(found["idle"], 6),
            not_ready=round(found["not_ready"], 6),
            reserved=round(found["reserved"], 6) if kept is not None else None,
        )
        for kind, found in sorted(sums.items())
    }

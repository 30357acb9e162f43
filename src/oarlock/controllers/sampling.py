"""Samples of the cluster's use, so that the pages can show it over time.

Entitlements depend on the demand of the moment, and a node that was lost leaves no trace once it is back: neither can
be worked out later. A sample is taken every few minutes, and kept for a month.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable, Sequence

from oarlock.controllers import leadership
from oarlock.scheduler.pools import standing
from oarlock.spec import holdings, jobs
from oarlock.spec.cluster import nodes, pools, pooltrees, samples
from oarlock.store import stores

PERIOD_S = 300.0
KEPT_S = 31 * 86_400.0


class Sampling:
    name = "sampling"

    def __init__(
        self,
        store: stores.Store,
        leading: leadership.Leading,
        *,
        clock: Callable[[], float],
        period_s: float = PERIOD_S,
        kept_s: float = KEPT_S,
    ) -> None:
        self._store = store
        self._leading = leading
        self._clock = clock
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

        def look(view: stores.View) -> samples.Sample:
            return sample(now, view.nodes(), view.pools(), view.active(), view.holdings())

        found = await self._store.read(look)

        def write(tx: stores.Transaction) -> None:
            tx.add_sample(found)
            tx.forget_samples(now - self._kept_s)

        await self._store.write(write, epoch=epoch)


def sample(
    now: float,
    machines: Sequence[nodes.Node],
    declared: Sequence[pools.Pool],
    active: Sequence[jobs.Job],
    held: Sequence[holdings.Holding],
) -> samples.Sample:
    """Return the sample of a moment."""
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
        devices=_devices(machines, held),
        pools={
            name: samples.PoolUse(
                used={"gpus": used[name].devices, "cpus": used[name].cpus_milli / 1000},
                entitled={one: found.entitled[name].get(one, 0.0) for one in samples.RESOURCES},
            )
            for name in sorted(found.entitled)
        },
    )


def _devices(machines: Iterable[nodes.Node], held: Iterable[holdings.Holding]) -> dict[str, samples.Devices]:
    taken: dict[tuple[str, int], float] = collections.defaultdict(float)
    for one in held:
        for index in one.devices:
            taken[one.node, index] += one.amount.devices / len(one.devices)
    sums: dict[str, tuple[float, float, float]] = {}
    for node in machines:
        for device in node.devices:
            used = min(1.0, taken[node.name, device.index])
            used, idle, lost = (used, 1.0 - used, 0.0) if node.ready else (0.0, 0.0, 1.0)
            before = sums.get(device.type, (0.0, 0.0, 0.0))
            sums[device.type] = before[0] + used, before[1] + idle, before[2] + lost
    return {kind: samples.Devices(*(round(one, 6) for one in found)) for kind, found in sorted(sums.items())}

"""What each pool's gangs hold, against its limit, its entitlement and its reservation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from oarlock.scheduler import entitlement
from oarlock.spec import holdings, plans, pools

SLACK = 1e-9
"""Entitlements are quotients: what exceeds one by less than this share of it is within it."""


class Over(NamedTuple):
    """A bound of `pool` that would be exceeded: `used` of `bound` are held already."""

    pool: str
    resource: str
    used: float
    bound: float


def numbers(amount: holdings.Resources) -> dict[str, float]:
    """Cores, bytes, devices; what is zero is left out."""
    named = {"cpus": amount.cpus_milli / 1000, "memory": float(amount.memory_bytes), "gpus": amount.devices}
    return {name: value for name, value in named.items() if value}


class Usage:
    """Counts what is held from the root down, as gangs come and go within one plan.

    `entitled` and `reserved` are by pool and resource; a pool or a resource that is not in them is not bounded by them.
    """

    def __init__(self, snapshot: plans.Snapshot, capacity: holdings.Resources) -> None:
        self.pools: dict[str, pools.Pool] = {pool.name: pool for pool in snapshot.pools}
        self.single = len({*self.pools, pools.DEFAULT}) == 1 and not any(
            (pool.limit, pool.reserve) != ({}, {}) for pool in snapshot.pools
        )
        self.held: dict[str, dict[str, float]] = {}
        self.fixed: dict[str, dict[str, float]] = {}  # held by gangs that must not be preempted
        self._lines: dict[str, tuple[str, ...]] = {}
        for job in snapshot.running:
            self.add(job.gang, sum((one.amount for one in job.holdings), holdings.Resources()))
        if self.single:
            return
        total = numbers(capacity)
        demand = entitlement.demand(snapshot.waiting, snapshot.running)
        self.entitled = entitlement.divide(snapshot.pools, total, demand)
        self.reserved = entitlement.reserved(snapshot.pools, total)

    def add(self, gang: plans.Gang, amount: holdings.Resources, times: int = 1) -> None:
        """`times` -1: it is gone."""
        for resource, value in numbers(amount).items():
            for name in self.line(gang.pool):
                held = self.held.setdefault(name, {})
                held[resource] = held.get(resource, 0.0) + times * value
            if not gang.preemptible:
                fixed = self.fixed.setdefault(gang.pool, {})
                fixed[resource] = fixed.get(resource, 0.0) + times * value

    def line(self, pool: str) -> tuple[str, ...]:
        """The pool and those above it."""
        if pool not in self._lines:
            line: list[str] = []
            name: str | None = pool
            while name is not None and name not in line:
                line.append(name)
                name = self.pools[name].parent if name in self.pools else None
            self._lines[pool] = tuple(line)
        return self._lines[pool]

    def over_limit(self, gang: plans.Gang, amount: holdings.Resources) -> Over | None:
        """The first limit that would be exceeded, of its pool or of one above."""
        asked = numbers(amount)
        for name in self.line(gang.pool):
            if name in self.pools and (over := self._over(name, asked, self.pools[name].limit, self.held)):
                return over
        return None

    def over_reservation(self, gang: plans.Gang, amount: holdings.Resources) -> Over | None:
        """What must not be preempted stays within its pool's reservation."""
        if gang.preemptible or self.single:
            return None
        bound = dict.fromkeys(numbers(amount), 0.0) | self.reserved.get(gang.pool, {})
        return self._over(gang.pool, numbers(amount), bound, self.fixed)

    def over_entitlement(self, gang: plans.Gang, amount: holdings.Resources) -> Over | None:
        if self.single:
            return None
        return self._over(gang.pool, numbers(amount), self.entitled.get(gang.pool, {}), self.held)

    def borrows(self, pool: str, resources: Iterable[str]) -> bool:
        """Whether the pool holds more than it is entitled to, of any of these."""
        if self.single:
            return False
        held, entitled = self.held.get(pool, {}), self.entitled.get(pool, {})
        return any(held.get(name, 0.0) > entitled.get(name, 0.0) * (1 + SLACK) for name in resources)

    def ratio(self, pool: str) -> float:
        """How much of its entitlement the pool holds, of the resource of which that is most."""
        if self.single:
            return 0.0
        held, entitled = self.held.get(pool, {}), self.entitled.get(pool, {})
        return max((value / max(entitled.get(name, 0.0), SLACK) for name, value in held.items()), default=0.0)

    def _over(
        self, pool: str, asked: Mapping[str, float], bounds: Mapping[str, float], held: dict[str, dict[str, float]]
    ) -> Over | None:
        used = held.get(pool, {})
        for resource, value in asked.items():
            bound = bounds.get(resource)
            if bound is not None and used.get(resource, 0.0) + value > bound * (1 + SLACK):
                return Over(pool, resource, used.get(resource, 0.0), bound)
        return None

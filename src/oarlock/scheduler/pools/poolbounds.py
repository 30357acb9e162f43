"""The holdings of each pool's gangs, against its limit, its entitlement and its reservation.

All three are bounds on a sum. A limit bounds the holdings of a pool and everything below it. An entitlement bounds the
holdings of a leaf, and a reservation those of a leaf's gangs that must not be preempted. Each sum is counted twice:
`now` is held at this instant, and `due` is held once all stopping gangs are gone and all promised gangs have come. A
gang is admitted by `due`, and launched only where limits and reservations hold for `now` too.

A bound keeps a share for a gang that came first and waits for it. Later gangs get only the amount that is left when its
turn comes, unless they end before (`backfilling` says when that is). So small gangs do not take the pool's share from a
large one again and again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from oarlock.scheduler import amounts
from oarlock.scheduler.pools import entitlement
from oarlock.scheduler.reuse import leaftotals
from oarlock.spec import holdings, plans
from oarlock.spec.cluster import pools

Key = leaftotals.Key

SLACK = 1e-9
"""Entitlements are quotients: an excess of less than this part of one is within it."""

INFINITE = float("inf")


class Kind(StrEnum):
    LIMIT = "limit"
    RESERVATION = "reservation"
    ENTITLEMENT = "entitlement"
    STATIC = "static"  # the static reservations of other pools, which cannot be borrowed


class Over(NamedTuple):
    """A bound of `pool` that a gang would exceed.

    `used` of `bound` is held already, or kept for the gang `first`, which came before and waits for the same.
    """

    pool: str
    resource: str
    used: float
    bound: float
    kind: Kind = Kind.LIMIT
    first: plans.Gang | None = None
    exceeded: bool = True  # False: the bound holds, but would not hold any more for `first`

    @property
    def lends(self) -> bool:
        """Whether borrowing may exceed the bound."""
        return self.exceeded and self.kind is Kind.ENTITLEMENT

    @property
    def beyond(self) -> bool:
        """Whether borrowing exceeds it already."""
        return self.lends and self.used > self.bound

    @property
    def forbids(self) -> bool:
        """Whether it also bounds borrowing."""
        return self.kind is not Kind.ENTITLEMENT or self.first is not None


class KeptShare:
    """The share of a bound that is kept for `gang`.

    Later gangs may take `spare`, by resource; None means any amount. `at` is as in `backfilling.KeptPlace`.
    """

    __slots__ = ("at", "gang", "spare")

    def __init__(self, gang: plans.Gang, spare: list[int | None], at: float | None) -> None:
        self.gang = gang
        self.spare = spare
        self.at = at


class Bound:
    """A bound on a sum of holdings: `most` by resource, None where there is no such bound."""

    __slots__ = ("due", "kept_shares", "kind", "most", "now", "pool")

    def __init__(self, kind: Kind, pool: str, most: Sequence[int | None]) -> None:
        self.kind = kind
        self.pool = pool
        self.most = tuple(most)
        self.now = [0, 0, 0]
        self.due = [0, 0, 0]
        self.kept_shares: list[KeptShare] = []

    @property
    def hard(self) -> bool:
        """Whether it holds at every instant. An entitlement may be exceeded by borrowing."""
        return self.kind is not Kind.ENTITLEMENT

    def over(self, place: int, used: int, first: plans.Gang | None, *, exceeded: bool) -> Over:
        bound, unit = self.most[place] or 0, amounts.UNITS[place]
        return Over(self.pool, pools.RESOURCES[place], used / unit, bound / unit, self.kind, first, exceeded)


class PoolBounds:
    """The holdings below each pool against its bounds, as gangs come and go within one plan.

    `entitled` is by pool and resource; a missing entry is no bound. `single`: there is only one pool, without a bound,
    and no sums are needed.
    """

    def __init__(
        self, snapshot: plans.Snapshot, now: float, capacity: holdings.Resources, totals: leaftotals.LeafTotals
    ) -> None:
        self._now = now
        self.changes = 0  # number of grants and returns
        self.given_up = 0  # number of returns
        self.pools: dict[str, pools.Pool] = {pool.name: pool for pool in snapshot.pools}
        self.single = len({*self.pools, pools.DEFAULT}) == 1 and not any(
            (pool.limit, pool.reserve) != ({}, {}) for pool in snapshot.pools
        )
        self.entitled: dict[str, dict[str, float]] = {}
        self._reserved: dict[str, dict[str, float]] = {}
        self._limits: dict[str, Bound] = {}
        self._entitlements: dict[str, Bound] = {}
        self._bounds: dict[Key, tuple[Bound, ...]] = {}
        self._total: dict[str, float] = {}
        self._static: frozenset[str] = frozenset()
        self._owners: dict[str, list[str]] = {}
        self._snapshot = snapshot
        self._on_lost: entitlement.Amounts | None = None
        if self.single:
            return
        total = self._total = pools.amounts(capacity)
        self._static = frozenset(resource for pool in snapshot.pools for resource in pool.static)
        self.entitled = entitlement.divide(snapshot.pools, total, totals.demand())
        self._reserved = entitlement.reserved(snapshot.pools, total)
        for key, (held, leaving) in totals.held().items():
            for bound in self._of(key):
                for place in range(3):
                    bound.due[place] += held[place]
                    bound.now[place] += held[place] + leaving[place]

    def add(self, gang: plans.Gang, amount: amounts.Amount, times: int = 1, *, now: bool = False) -> None:
        """Count that the gang will have the amount, and with `now` that it has it.

        `times` -1: it gives the amount up.
        """
        self.changes += 1
        self.given_up += times < 0
        for bound in self.bounds(gang):
            for place in range(3):
                bound.due[place] += times * amount[place]
                if now:
                    bound.now[place] += times * amount[place]
            if times > 0:
                self._take_from_kept_shares(bound, gang, amount)

    def bounds(self, gang: plans.Gang) -> tuple[Bound, ...]:
        """Return all bounds on the gang: the limits from its leaf up, its reservation, its entitlement."""
        return () if self.single else self._of((gang.pool, gang.preemptible))

    def over(
        self,
        gang: plans.Gang,
        amount: amounts.Amount,
        freed: Mapping[Key, amounts.Amount] | None = None,
        *,
        lent: bool = False,
    ) -> Over | None:
        """Return the first bound that the gang would exceed once `freed` is gone; None if all hold.

        With `lent` the leaf may stay beyond its entitlement as far as it is now, but not with static reservations of
        other pools.
        """
        borrows = False
        for bound in self.bounds(gang):
            for place, most in enumerate(bound.most):
                if most is None or not amount[place]:
                    continue
                used = bound.due[place]
                if freed:
                    gone = self._gone(bound, place, freed)
                    if lent and not bound.hard:
                        borrows = borrows or used - gone + amount[place] > most
                        most = max(most, used)
                    used -= gone
                first = self._kept_for(bound, place, gang, amount) if bound.kept_shares else None
                exceeded = used + amount[place] > most
                if exceeded or first is not None:
                    return bound.over(place, used, first, exceeded=exceeded)
        return self._over_static(gang.pool, amount, freed) if borrows and freed else None

    def over_borrowing(
        self, gang: plans.Gang, amount: amounts.Amount, freed: Mapping[Key, amounts.Amount] | None = None
    ) -> Over | None:
        """Return the first bound that it would exceed if it may borrow the unused entitlements of other pools."""
        over = self.over(gang, amount, freed)
        if over is None or over.forbids:
            return over
        return self._over_static(gang.pool, amount, freed or {})

    def over_growing(
        self, gang: plans.Gang, amount: amounts.Amount, freed: Mapping[Key, amounts.Amount]
    ) -> Over | None:
        """Return the first bound that it would exceed if it may borrow idle resources.

        Static reservations of other pools are excluded, even if the gang's own entitlement is lent.
        """
        over = self.over(gang, amount, freed)
        return over if over is not None and over.forbids else self._over_static(gang.pool, amount, freed)

    def fits_now(self, gang: plans.Gang, amount: amounts.Amount) -> bool:
        """Return whether limits and reservations hold with it at this instant."""
        return not any(
            most is not None and amount[place] and bound.now[place] + amount[place] > most
            for bound in self.bounds(gang)
            if bound.hard
            for place, most in enumerate(bound.most)
        )

    # Shares kept for gangs that came first

    def keep_for(
        self,
        gang: plans.Gang,
        amount: amounts.Amount,
        ended: Mapping[Key, amounts.Amount],
        at: float | None,
        only: Bound | None = None,
    ) -> None:
        """Keep `amount` for `gang` at the time `at`, when `ended` is gone.

        Later gangs that run then get only the rest. With `only`, that bound alone keeps it.
        """
        for bound in self.bounds(gang):
            if only is not None and bound is not only:
                continue
            spare: list[int | None] = [None, None, None]
            for place, most in enumerate(bound.most):
                if most is not None and amount[place]:
                    spare[place] = max(0, most - (bound.due[place] - self._gone(bound, place, ended)) - amount[place])
            if any(one is not None for one in spare):
                bound.kept_shares.append(KeptShare(gang, spare, at))

    def bound(self, gang: plans.Gang, over: Over) -> Bound:
        """Return the bound that the gang would exceed."""
        return next(one for one in self.bounds(gang) if one.kind is over.kind and one.pool == over.pool)

    def kept_until(self, gang: plans.Gang) -> float | None:
        """Return when the last of the gangs that came first takes its share of the gang's bounds.

        Return None if unknown, or if none waits.
        """
        known = (kept.at for bound in self.bounds(gang) for kept in bound.kept_shares if kept.at is not None)
        return max(known, default=None)

    def could_fit(self, gang: plans.Gang, amount: amounts.Amount) -> bool:
        """Return whether all its bounds would hold if it was alone."""
        return all(
            most is None or amount[place] <= most
            for bound in self.bounds(gang)
            for place, most in enumerate(bound.most)
        )

    def keys(self, bound: Bound) -> set[Key]:
        """Return the keys of all gangs that hold, or will hold, anything within the bound."""
        return {key for key, bounds in self._bounds.items() if bound in bounds}

    def missing(self, bound: Bound, amount: amounts.Amount) -> amounts.Amount:
        """Return by how much the amount would exceed the bound, by resource; 0 or less if it would not."""
        left = [
            due + asked - most if most is not None and asked else 0
            for most, due, asked in zip(bound.most, bound.due, amount, strict=True)
        ]
        return left[0], left[1], left[2]

    def _gone(self, bound: Bound, place: int, freed: Mapping[Key, amounts.Amount]) -> int:
        """Return the part of `freed` that counts within a bound."""
        return sum(amount[place] for key, amount in freed.items() if bound in self._of(key))

    def _kept_for(self, bound: Bound, place: int, gang: plans.Gang, amount: amounts.Amount) -> plans.Gang | None:
        for kept in bound.kept_shares:
            spare = kept.spare[place]
            if spare is not None and amount[place] > spare and not self._ends_before(gang, kept):
                return kept.gang
        return None

    def _take_from_kept_shares(self, bound: Bound, gang: plans.Gang, amount: amounts.Amount) -> None:
        for kept in bound.kept_shares:
            if kept.gang is not gang and not self._ends_before(gang, kept):
                kept.spare = [
                    spare if spare is None else max(0, spare - amount[place]) for place, spare in enumerate(kept.spare)
                ]

    def _ends_before(self, gang: plans.Gang, kept: KeptShare) -> bool:
        if kept.gang is gang:
            return True
        return kept.at is not None and gang.at_most_s is not None and self._now + gang.at_most_s <= kept.at

    # Borrowing

    def borrows(self, pool: str, asked: amounts.Amount) -> bool:
        """Return whether the leaf will hold more than its entitlement of any requested resource."""
        return any(asked[place] and self.excess(pool, place) > 0 for place in range(3))

    def excess(self, pool: str, place: int) -> int:
        """Return by how much the leaf will exceed its entitlement of a resource; negative if it will not."""
        bound = self._entitlements.get(pool)
        most = None if bound is None else bound.most[place]
        return 0 if bound is None or most is None else bound.due[place] - most

    def within_reservation(self, gang: plans.Gang, amount: amounts.Amount, without: amounts.Amount) -> bool:
        """Return whether the leaf stays within its reservation with the gang, for each requested resource.

        `without` is the amount that the leaf gives up for it.
        """
        pool, bound = self.pools.get(gang.pool), self._entitlements.get(gang.pool)
        if pool is None or not pool.reserve or bound is None:
            return False
        kept = _units(self._reserved.get(gang.pool, {}), SLACK)
        return all(
            not asked or bound.due[place] - without[place] + asked <= (kept[place] or 0)
            for place, asked in enumerate(amount)
        )

    def ratio(self, pool: str) -> float:
        """Return the largest part of its entitlement, over the resources, that the leaf will hold."""
        bound, most = self._entitlements.get(pool), 0.0
        if bound is not None:
            for due, entitled in zip(bound.due, bound.most, strict=True):
                if due > 0 and entitled is not None:
                    most = max(most, due / entitled if entitled else INFINITE)
        return most

    def keeps(self, pool: str, without: amounts.Amount, asked: amounts.Amount) -> float:
        """Return the same as `ratio`, for the requested resources only and after `without` is given up.

        It is infinite where the leaf has no entitlement.
        """
        bound = self._entitlements.get(pool)
        return (
            max(
                (
                    (due - gone) / entitled if entitled else INFINITE
                    for due, gone, entitled, wanted in zip(bound.due, without, bound.most, asked, strict=True)
                    if wanted and entitled is not None
                ),
                default=INFINITE,
            )
            if bound is not None
            else INFINITE
        )

    def others(self, pool: str, resource: str) -> list[str]:
        """Return the leaves that are entitled to the rest of a resource, most entitled first."""
        if resource not in self._owners:
            leaves = self.entitled.keys() - {one.parent for one in self.pools.values()}
            entitled = {leaf: self.entitled[leaf].get(resource, 0.0) for leaf in leaves}
            by_amount = sorted(leaves, key=lambda leaf: (-entitled[leaf], leaf))
            self._owners[resource] = [leaf for leaf in by_amount if entitled[leaf] > 0]
        return [leaf for leaf in self._owners[resource] if leaf != pool]

    def _over_static(self, borrower: str, amount: amounts.Amount, freed: Mapping[Key, amounts.Amount]) -> Over | None:
        """Return the bound that the idle part of other pools' static reservations sets, if the amount exceeds it."""
        if not any(amount[place] and name in self._static for place, name in enumerate(pools.RESOURCES)):
            return None
        held, lost = self._held(freed), self._lost()
        kept = entitlement.withheld(self.pools.values(), self._total, held, borrower)
        for place, name in enumerate(pools.RESOURCES):
            if not amount[place] or name not in kept:
                continue
            used = sum(of.get(name, 0.0) for leaf, of in held.items() if leaf in self._entitlements) - lost[name]
            most = self._total[name] - kept[name]
            if used + amount[place] / amounts.UNITS[place] > most * (1 + SLACK):
                return Over(borrower, name, used, most, Kind.STATIC)
        return None

    def _lost(self) -> entitlement.Amounts:
        """Return the holdings on nodes that are not ready, or were removed: they are no part of the capacity."""
        if self._on_lost is None:
            ready = {node.name for node in self._snapshot.nodes if node.ready}
            lost = [
                claim.amount
                for job in self._snapshot.running
                if not job.stopping
                for claim in job.holdings
                if claim.node not in ready
            ]
            self._on_lost = pools.amounts(sum(lost, holdings.Resources()))
        return self._on_lost

    def _held(self, freed: Mapping[Key, amounts.Amount]) -> dict[str, entitlement.Amounts]:
        """Return the amounts that each pool will hold, with everything below it, once `freed` is gone."""
        held: dict[str, entitlement.Amounts] = {}
        for leaf, bound in self._entitlements.items():
            for place, resource in enumerate(pools.RESOURCES):
                value = (bound.due[place] - self._gone(bound, place, freed)) / amounts.UNITS[place]
                for name in self._up(leaf):
                    of = held.setdefault(name, {})
                    of[resource] = of.get(resource, 0.0) + value
        return held

    # The bounds

    def _of(self, key: Key) -> tuple[Bound, ...]:
        known = self._bounds.get(key)
        if known is None:
            known = self._bounds[key] = tuple(self._made(*key))
        return known

    def _made(self, leaf: str, preemptible: bool) -> Iterable[Bound]:
        for name in self._line(leaf):
            if name not in self._limits:
                self._limits[name] = Bound(Kind.LIMIT, name, _units(self.pools[name].limit))
            yield self._limits[name]
        if not preemptible:
            reserved = dict.fromkeys(pools.RESOURCES, 0.0) | self._reserved.get(leaf, {})
            yield Bound(Kind.RESERVATION, leaf, _units(reserved, SLACK))
        if leaf not in self._entitlements:
            self._entitlements[leaf] = Bound(Kind.ENTITLEMENT, leaf, _units(self.entitled.get(leaf, {}), SLACK))
        yield self._entitlements[leaf]

    def _line(self, pool: str) -> Iterable[str]:
        """Yield the pool and those above it that have a limit."""
        return (name for name in self._up(pool) if name in self.pools and self.pools[name].limit)

    def _up(self, pool: str) -> Iterable[str]:
        """Yield the pool and those above it."""
        seen: set[str] = set()
        name: str | None = pool
        while name is not None and name not in seen:
            seen.add(name)
            yield name
            name = self.pools[name].parent if name in self.pools else None


def _units(by_resource: Mapping[str, float], slack: float = 0.0) -> list[int | None]:
    found: list[int | None] = []
    for name, unit in zip(pools.RESOURCES, amounts.UNITS, strict=True):
        value = by_resource.get(name)
        bounded = value is not None and value < float("inf")
        found.append(int(value * unit * (1 + slack) + 1e-6) if value is not None and bounded else None)
    return found

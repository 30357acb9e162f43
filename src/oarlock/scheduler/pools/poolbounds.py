"""What each pool's gangs hold, against its limit, its entitlement and its reservation.

All three are bounds on a sum: a limit on what is held below its pool, an entitlement on a leaf, a reservation on what
the gangs of a leaf hold that must not be preempted. Each is counted twice: `now` is what is held at this instant, `due`
what will be, once all that is being stopped is gone and all that was promised has come. A gang is admitted by what is
due, and launched only where limits and reservations hold now too.

Who came first and waits for a bound casts a shadow: those after it get only as much as will be left when its turn has
come, or what is over before (`backfilling` says when that is). So small gangs do not starve a large one of its pool's
share.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from oarlock.scheduler import amounts
from oarlock.scheduler.pools import entitlement
from oarlock.scheduler.reuse import leaftotals
from oarlock.spec import holdings, plans, pools

Key = leaftotals.Key

SLACK = 1e-9
"""Entitlements are quotients: what exceeds one by less than this share of it is within it."""

SUMS = 64
"""So many of what was asked about last are remembered by what they are for each bound."""
INFINITE = float("inf")


class Kind(StrEnum):
    LIMIT = "limit"
    RESERVATION = "reservation"
    ENTITLEMENT = "entitlement"
    STATIC = "static"  # what others have reserved statically: nobody borrows it


class Over(NamedTuple):
    """A bound of `pool` that would be exceeded: `used` of `bound` are held already, or kept for `first`, who came
    before and waits for the same.
    """

    pool: str
    resource: str
    used: float
    bound: float
    kind: Kind = Kind.LIMIT
    first: plans.Gang | None = None
    exceeded: bool = True  # False: it holds, but would not any more for `first`

    @property
    def lends(self) -> bool:
        """Whether it may be exceeded by what is borrowed."""
        return self.exceeded and self.kind is Kind.ENTITLEMENT

    @property
    def beyond(self) -> bool:
        """Whether so much is borrowed already."""
        return self.lends and self.used > self.bound

    @property
    def forbids(self) -> bool:
        """Whether it holds for what is borrowed too."""
        return self.kind is not Kind.ENTITLEMENT or self.first is not None


class Shadow:
    """What those after `gang` may take of a bound; None: as much as they like. `at` as in `backfilling.KeptPlace`."""

    __slots__ = ("at", "gang", "spare")

    def __init__(self, gang: plans.Gang, spare: list[int | None], at: float | None) -> None:
        self.gang = gang
        self.spare = spare
        self.at = at


class Bound:
    """`most` by resource, None where there is no such bound."""

    __slots__ = ("due", "kind", "most", "now", "pool", "shadows")

    def __init__(self, kind: Kind, pool: str, most: Sequence[int | None]) -> None:
        self.kind = kind
        self.pool = pool
        self.most = tuple(most)
        self.now = [0, 0, 0]
        self.due = [0, 0, 0]
        self.shadows: list[Shadow] = []

    @property
    def hard(self) -> bool:
        """It holds at every instant; an entitlement may be exceeded, by what is lent."""
        return self.kind is not Kind.ENTITLEMENT

    def over(self, place: int, used: int, first: plans.Gang | None, *, exceeded: bool) -> Over:
        bound, unit = self.most[place] or 0, amounts.UNITS[place]
        return Over(self.pool, pools.RESOURCES[place], used / unit, bound / unit, self.kind, first, exceeded)


class PoolBounds:
    """Counts what is held from the root down, as gangs come and go within one plan.

    `entitled` is by pool and resource; a pool or a resource that is not in it is not bounded by it. `single`: there is
    one pool without a bound, and nothing needs to be counted.
    """

    def __init__(
        self, snapshot: plans.Snapshot, now: float, capacity: holdings.Resources, totals: leaftotals.LeafTotals
    ) -> None:
        self._now = now
        self.changes = 0  # how often anything was given away, or up
        self.given_up = 0  # how often the latter
        self.pools: dict[str, pools.Pool] = {pool.name: pool for pool in snapshot.pools}
        self.single = len({*self.pools, pools.DEFAULT}) == 1 and not any(
            (pool.limit, pool.reserve) != ({}, {}) for pool in snapshot.pools
        )
        self._sums: dict[int, tuple[Mapping[Key, amounts.Amount], dict[Bound, amounts.Amount]]] = {}
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
        """It is to have this; with `now` it has it. `times` -1: it gives it up."""
        self.changes += 1
        self.given_up += times < 0
        for bound in self.bounds(gang):
            for place in range(3):
                bound.due[place] += times * amount[place]
                if now:
                    bound.now[place] += times * amount[place]
            if times > 0:
                self._take_from_shadows(bound, gang, amount)

    def bounds(self, gang: plans.Gang) -> tuple[Bound, ...]:
        """All that hold for it: the limits from its leaf up, its reservation, its entitlement."""
        return () if self.single else self._of((gang.pool, gang.preemptible))

    def over(
        self,
        gang: plans.Gang,
        amount: amounts.Amount,
        freed: Mapping[Key, amounts.Amount] | None = None,
        *,
        lent: bool = False,
    ) -> Over | None:
        """The first bound that it would exceed, once what is `freed` is gone. With `lent` the leaf may be beyond its
        entitlement, as far as it is, but not with what others have reserved statically.
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
                first = self._shaded(bound, place, gang, amount) if bound.shadows else None
                exceeded = used + amount[place] > most
                if exceeded or first is not None:
                    return bound.over(place, used, first, exceeded=exceeded)
        return self._over_static(gang.pool, amount, freed) if borrows and freed else None

    def over_borrowing(
        self, gang: plans.Gang, amount: amounts.Amount, freed: Mapping[Key, amounts.Amount] | None = None
    ) -> Over | None:
        """The first bound that it would exceed, if it may have what others are entitled to, and do not use."""
        over = self.over(gang, amount, freed)
        if over is None or over.forbids:
            return over
        return self._over_static(gang.pool, amount, freed or {})

    def over_growing(
        self, gang: plans.Gang, amount: amounts.Amount, freed: Mapping[Key, amounts.Amount]
    ) -> Over | None:
        """The first bound that it would exceed, if it may have what lies idle: but nothing that others have reserved
        statically, though what it is entitled to is borrowed.
        """
        over = self.over(gang, amount, freed)
        return over if over is not None and over.forbids else self._over_static(gang.pool, amount, freed)

    def fits_now(self, gang: plans.Gang, amount: amounts.Amount) -> bool:
        """Whether limits and reservations hold with it at this instant."""
        return not any(
            most is not None and amount[place] and bound.now[place] + amount[place] > most
            for bound in self.bounds(gang)
            if bound.hard
            for place, most in enumerate(bound.most)
        )

    # What is kept for those who came first

    def shade(
        self,
        gang: plans.Gang,
        amount: amounts.Amount,
        ended: Mapping[Key, amounts.Amount],
        at: float | None,
        only: Bound | None = None,
    ) -> None:
        """`gang` is to have `amount` at `at`, when what is `ended` is gone: those after it get what is left then."""
        for bound in self.bounds(gang):
            if only is not None and bound is not only:
                continue
            spare: list[int | None] = [None, None, None]
            for place, most in enumerate(bound.most):
                if most is not None and amount[place]:
                    spare[place] = max(0, most - (bound.due[place] - self._gone(bound, place, ended)) - amount[place])
            if any(one is not None for one in spare):
                bound.shadows.append(Shadow(gang, spare, at))

    def bound(self, gang: plans.Gang, over: Over) -> Bound:
        """The one that it would exceed."""
        return next(one for one in self.bounds(gang) if one.kind is over.kind and one.pool == over.pool)

    def kept_until(self, gang: plans.Gang, over: Over) -> float | None:
        """When the last of those who came first takes what is kept of that bound; None where nobody knows, or waits."""
        known = (shadow.at for shadow in self.bound(gang, over).shadows if shadow.at is not None)
        return max(known, default=None)

    def could_fit(self, gang: plans.Gang, amount: amounts.Amount) -> bool:
        """Whether all its bounds would hold, were it alone."""
        return all(
            most is None or amount[place] <= most
            for bound in self.bounds(gang)
            for place, most in enumerate(bound.most)
        )

    def keys(self, bound: Bound) -> set[Key]:
        """Of all gangs that hold or are to hold anything within it."""
        return {key for key, bounds in self._bounds.items() if bound in bounds}

    def missing(self, bound: Bound, amount: amounts.Amount) -> amounts.Amount:
        """By how much it would be exceeded; 0 and less: not at all."""
        left = [
            due + asked - most if most is not None and asked else 0
            for most, due, asked in zip(bound.most, bound.due, amount, strict=True)
        ]
        return left[0], left[1], left[2]

    def _gone(self, bound: Bound, place: int, freed: Mapping[Key, amounts.Amount]) -> int:
        """Who asks about the same again and again gives the same object, and does not change it meanwhile."""
        known = self._sums.get(id(freed))
        if known is None:
            if len(self._sums) >= SUMS:
                self._sums.clear()
            known = self._sums[id(freed)] = freed, {}
        gone = known[1].get(bound)
        if gone is None:
            gone = amounts.NOTHING
            for key, one in freed.items():
                if bound in self._of(key):
                    gone = amounts.plus(gone, one)
            known[1][bound] = gone
        return gone[place]

    def _shaded(self, bound: Bound, place: int, gang: plans.Gang, amount: amounts.Amount) -> plans.Gang | None:
        for shadow in bound.shadows:
            spare = shadow.spare[place]
            if spare is not None and amount[place] > spare and not self._is_over_before(gang, shadow):
                return shadow.gang
        return None

    def _take_from_shadows(self, bound: Bound, gang: plans.Gang, amount: amounts.Amount) -> None:
        for shadow in bound.shadows:
            if shadow.gang is not gang and not self._is_over_before(gang, shadow):
                shadow.spare = [
                    spare if spare is None else max(0, spare - amount[place])
                    for place, spare in enumerate(shadow.spare)
                ]

    def _is_over_before(self, gang: plans.Gang, shadow: Shadow) -> bool:
        if shadow.gang is gang:
            return True
        return shadow.at is not None and gang.at_most_s is not None and self._now + gang.at_most_s <= shadow.at

    # Pools against each other

    def borrows(self, pool: str, asked: amounts.Amount) -> bool:
        """Whether the leaf is to hold more than it is entitled to, of any resource that is asked for."""
        return any(asked[place] and self.excess(pool, place) > 0 for place in range(3))

    def excess(self, pool: str, place: int) -> int:
        """How much more than its entitlement the leaf is to hold of a resource; less than 0: less."""
        bound = self._entitlements.get(pool)
        most = None if bound is None else bound.most[place]
        return 0 if bound is None or most is None else bound.due[place] - most

    def within_reservation(self, gang: plans.Gang, amount: amounts.Amount, without: amounts.Amount) -> bool:
        """Whether its leaf is to hold no more with it, and `without` so much, than is reserved for it, of whatever it
        asks for.
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
        """How much of its entitlement the leaf is to hold, of the resource of which that is most."""
        bound, most = self._entitlements.get(pool), 0.0
        if bound is not None:
            for due, entitled in zip(bound.due, bound.most, strict=True):
                if due > 0 and entitled is not None:
                    most = max(most, due / entitled if entitled else INFINITE)
        return most

    def keeps(self, pool: str, without: amounts.Amount, asked: amounts.Amount) -> float:
        """As `ratio`, of what is asked for, after so much has been given up. Of what it is not entitled to it needs to
        keep nothing.
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
        """The leaves that are entitled to what `pool` is not, most first."""
        if resource not in self._owners:
            leaves = self.entitled.keys() - {one.parent for one in self.pools.values()}
            entitled = {leaf: self.entitled[leaf].get(resource, 0.0) for leaf in leaves}
            by_amount = sorted(leaves, key=lambda leaf: (-entitled[leaf], leaf))
            self._owners[resource] = [leaf for leaf in by_amount if entitled[leaf] > 0]
        return [leaf for leaf in self._owners[resource] if leaf != pool]

    def _over_static(self, borrower: str, amount: amounts.Amount, freed: Mapping[Key, amounts.Amount]) -> Over | None:
        """What would take of what lies idle of others' static reservations."""
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
        """What is held yet of nodes that are not ready: it is none of what there is to lend."""
        if self._on_lost is None:
            ready = {node.name for node in self._snapshot.nodes if node.ready}
            lost = [
                claim.amount
                for job in (self._snapshot.running if len(ready) < len(self._snapshot.nodes) else ())
                if not job.stopping
                for claim in job.holdings
                if claim.node not in ready
            ]
            self._on_lost = pools.amounts(sum(lost, holdings.Resources()))
        return self._on_lost

    def _held(self, freed: Mapping[Key, amounts.Amount]) -> dict[str, entitlement.Amounts]:
        """By pool, with all that lies below it: what it is to hold once that is gone."""
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
        """The pool and those above it, as far as they limit anything."""
        return (name for name in self._up(pool) if name in self.pools and self.pools[name].limit)

    def _up(self, pool: str) -> Iterable[str]:
        """The pool, and those above it."""
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

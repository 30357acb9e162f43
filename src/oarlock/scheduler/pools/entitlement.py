"""The entitlement of each pool: its part of the cluster in this round.

The definition is that of Uber's Peloton (resmgr/entitlement).

The cluster is the root of the tree of pools. From there down, level by level and for each resource by itself, a pool's
amount is divided among its children:

1. The demand of a leaf is the sum of what its jobs hold and wait for; the demand of another pool is the sum of its
   children's. No demand exceeds the pool's limit, and none is below a static reservation.
2. Each child gets the lesser of its demand and its reservation. If these together exceed the amount (nodes were lost),
   every reservation is met to the same part.
3. The rest is divided by share among the children with unmet demand, none of which gets more than its demand.
4. The amount without demand is divided by share up to the limits, so that later demand is met at once.

All these steps ask the same question: how high water stands in connected vessels of given widths and heights. So they
are one function (`_pour`) and one pass over the tree: n pools cost n log n.

Resources are named as in `spec.cluster.pools`; amounts are cores, bytes and devices. The result does not depend on the
order of the arguments, not even in the last digit: sums are taken in the order of names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from oarlock.spec import holdings, plans, refusals
from oarlock.spec.cluster import nodes, pools

Amounts = dict[str, float]

EXACT = 1e-9
"""Relative difference below which two sums of fractions count as equal."""

_NO_LIMIT = float("inf")
_NOTHING = holdings.Resources()


class Shortage(NamedTuple):
    """A resource of which the topmost pools together reserve more than there is.

    Each of them gets its part of `capacity` only.
    """

    resource: str
    reserved: float
    capacity: float


def divide(
    declared: Iterable[pools.Pool], capacity: Mapping[str, float], demand: Mapping[str, Mapping[str, float]]
) -> dict[str, Amounts]:
    """Return the entitlement of each pool, by pool and resource of `capacity`, for leaves and for the pools above them.

    `demand` is by leaf. A leaf that is not declared (its pool was removed while a job ran) counts as a topmost pool
    with a share and no reservation; so does the default pool, if it is not declared.
    """
    tree = _Tree(declared, demand)
    found: dict[str, Amounts] = {name: {} for name in tree.pools}
    for resource, amount in capacity.items():
        division = _Division(tree, resource, demand)
        for name, entitled in division.divided(amount):
            found[name][resource] = entitled
    return found


def reserved(declared: Iterable[pools.Pool], capacity: Mapping[str, float]) -> dict[str, Amounts]:
    """Return, by leaf and resource, the amount within which jobs that must not be preempted are admitted.

    - If reservations exceed the capacity, each is met to the same part.
    - The default pool, without a reservation of its own, gets what its neighbours leave unreserved. So such jobs can
      run before any pool is declared.
    - A resource that no pool reserves does not restrict a pool that reserves another one: a pool that reserves only
      GPUs can use them with any number of CPUs.

    A pool that was removed has no entry, and no reservation.
    """
    tree = _Tree(declared, ())
    leaves = [name for name in tree.pools if name not in tree.children]
    found: dict[str, Amounts] = {name: {} for name in leaves}
    for resource, amount in capacity.items():
        scarce = any(resource in pool.reserve for pool in tree.pools.values())
        kept = _kept(tree, resource, amount)
        for name in leaves:
            free = not scarce and any(tree.pools[name].reserve.values())
            found[name][resource] = min(amount, _limit(tree.pools[name], resource)) if free else kept[name]
    return found


def shortages(declared: Iterable[pools.Pool], capacity: Mapping[str, float]) -> tuple[Shortage, ...]:
    """Return the resources of which the topmost pools together reserve more than there is."""
    tree = _Tree(declared, ())
    found = []
    for resource, amount in sorted(capacity.items()):
        together = sum(_reserve(tree.pools[name], resource) for name in tree.children[None])
        if together > amount * (1 + EXACT):
            found.append(Shortage(resource, together, amount))
    return tuple(found)


def withheld(
    declared: Iterable[pools.Pool],
    capacity: Mapping[str, float],
    held: Mapping[str, Mapping[str, float]],
    borrower: str,
) -> Amounts:
    """Return, by resource, the idle part of static reservations, which cannot be lent to the leaf `borrower`.

    The leaf may use the idle part of a pool above it, unless one of its neighbours there has reserved it statically
    too. `held` is by pool, with everything below it. The result is empty without a static reservation.
    """
    tree = _Tree(declared, (borrower,))
    found: Amounts = {}
    for resource in sorted({resource for pool in tree.pools.values() for resource in pool.static} & set(capacity)):
        kept = _kept(tree, resource, capacity[resource])
        above = set(tree.line(borrower))
        idle: Amounts = {}
        for name in reversed(tree.order):
            below = sum(idle[child] for child in tree.children.get(name, ()))
            static = resource in tree.pools[name].static and resource in tree.pools[name].reserve
            own = kept[name] - held.get(name, {}).get(resource, 0.0) if static else 0.0
            idle[name] = below if name in above else max(below, own)
        found[resource] = sum(idle[name] for name in tree.children[None])
    return found


def demand(waiting: Iterable[plans.Gang], running: Iterable[plans.Running]) -> dict[str, Amounts]:
    """Return, by leaf, the amounts that its gangs would hold at their largest sizes.

    Gangs that are being stopped for good do not count, nor do gangs that no state of the cluster could hold.
    """
    wanted: dict[str, holdings.Resources] = {}
    asking = [gang for gang in waiting if gang.refusal is None or gang.refusal.code not in refusals.NEVER]
    asking += [job.gang for job in running if not job.stopping or job.returns]
    for gang in asking:
        wanted[gang.pool] = wanted.get(gang.pool, _NOTHING) + gang.amount(gang.largest)
    return {name: pools.amounts(amount) for name, amount in wanted.items()}


def capacity(of: Iterable[nodes.Node]) -> Amounts:
    """Return the amounts to divide: the usable parts of the ready nodes."""
    return pools.amounts(sum((node.usable for node in of if node.ready), _NOTHING))


class _Tree:
    """The pools by name, and the children of each pool by name; the children of None are the topmost pools.

    Pools that could not be stored (with a missing parent, or in a cycle) are topmost pools here.
    """

    def __init__(self, declared: Iterable[pools.Pool], named: Iterable[str]) -> None:
        self.pools = {pool.name: pool for pool in declared}
        for name in (pools.DEFAULT, *named):
            if name not in self.pools:
                self.pools[name] = pools.Pool(name=name)
        self.children: dict[str | None, list[str]] = {None: []}
        for name in sorted(self.pools):
            self.children.setdefault(self._parent(name), []).append(name)
        self.order = list(self._downwards())

    def _parent(self, name: str) -> str | None:
        parent = above = self.pools[name].parent
        if parent not in self.pools:
            return None
        seen: set[str] = set()
        while above in self.pools and above not in seen:
            if above == name:
                return None
            seen.add(above)
            above = self.pools[above].parent
        return parent

    def line(self, name: str) -> Iterator[str]:
        """Yield the pool and those above it."""
        above: str | None = name
        while above is not None:
            yield above
            above = self._parent(above)

    def families(self) -> Iterator[tuple[str | None, list[str]]]:
        """Yield parents and their children, from the root down."""
        return ((parent, self.children[parent]) for parent in (None, *self.order) if parent in self.children)

    def _downwards(self) -> Iterator[str]:
        """Yield all pools, parents first."""
        ahead = list(self.children[None])
        while ahead:
            name = ahead.pop()
            yield name
            ahead += self.children.get(name, ())


class _Division:
    """One resource in a tree: the demand of every pool, and the division."""

    def __init__(self, tree: _Tree, resource: str, demand: Mapping[str, Mapping[str, float]]) -> None:
        self._tree = tree
        self.limit = {name: _limit(pool, resource) for name, pool in tree.pools.items()}
        self.reserve = {
            name: min(pool.reserve.get(resource, 0.0), self.limit[name]) for name, pool in tree.pools.items()
        }
        self.share = {name: pool.share.get(resource, 1.0) for name, pool in tree.pools.items()}
        self.wanted: dict[str, float] = {}
        for name in reversed(tree.order):
            amount = demand[name].get(resource, 0.0) if name in demand else 0.0
            if name in tree.children:
                amount += sum(self.wanted[child] for child in tree.children[name])
            if resource in tree.pools[name].static:
                amount = max(amount, self.reserve[name])
            self.wanted[name] = min(amount, self.limit[name])

    def divided(self, amount: float) -> Iterator[tuple[str, float]]:
        entitled: dict[str | None, float] = {None: amount}
        for parent, children in self._tree.families():
            for name, given in zip(children, self._among(children, entitled[parent]), strict=True):
                entitled[name] = given
                yield name, given

    def _among(self, children: Sequence[str], amount: float) -> list[float]:
        """Return the part of `amount` that each of these siblings gets. A filled vessel holds exactly its height."""
        wanted = [self.wanted[name] for name in children]
        reserve = [self.reserve[name] for name in children]
        shares = [self.share[name] for name in children]
        claims = [min(want, kept) for want, kept in zip(wanted, reserve, strict=True)]
        given = _pour(amount, claims, reserve)
        for heights in (wanted, [self.limit[name] for name in children]):
            left = amount - sum(given)
            if left <= amount * EXACT:
                break
            room = [height - had for height, had in zip(heights, given, strict=True)]
            more = _pour(left, room, shares)
            given = [
                height if extra == space else had + extra
                for had, extra, space, height in zip(given, more, room, heights, strict=True)
            ]
        return given


def _kept(tree: _Tree, resource: str, amount: float) -> Amounts:
    """Return the part of each pool's reservation that can be met."""
    kept: dict[str | None, float] = {None: amount}
    for parent, children in tree.families():
        reserve = [_reserve(tree.pools[name], resource) for name in children]
        kept.update(zip(children, _pour(kept[parent], reserve, reserve), strict=True))
        if pools.DEFAULT in children and resource not in tree.pools[pools.DEFAULT].reserve:
            rest = max(0.0, kept[parent] - sum(kept[name] for name in children))
            kept[pools.DEFAULT] = min(rest, _limit(tree.pools[pools.DEFAULT], resource))
    return {name: value for name, value in kept.items() if name is not None}


def _reserve(pool: pools.Pool, resource: str) -> float:
    return min(pool.reserve.get(resource, 0.0), _limit(pool, resource))


def _limit(pool: pools.Pool, resource: str) -> float:
    return pool.limit.get(resource, _NO_LIMIT)


def _pour(amount: float, heights: Sequence[float], widths: Sequence[float]) -> list[float]:
    """Pour `amount` into vessels that are connected at their floors. Return the amount in each.

    Each vessel takes in proportion to its width until it is full; then the others share the rest. A vessel without
    width takes nothing. A full vessel holds exactly its height, and all together hold at most `amount`.
    """
    wide = [place for place, width in enumerate(widths) if width > 0 and heights[place] > 0]
    held = [0.0] * len(heights)
    if sum(heights[place] for place in wide) <= amount * (1 + EXACT):
        for place in wide:
            held[place] = heights[place]
        return held
    wide.sort(key=lambda place: heights[place] / widths[place])
    breadth = [0.0] * (len(wide) + 1)  # of a vessel and those that fill later
    for place in range(len(wide) - 1, -1, -1):
        breadth[place] = breadth[place + 1] + widths[wide[place]]
    left = amount
    for turn, place in enumerate(wide):
        level = max(0.0, left) / breadth[turn]
        if heights[place] > level * widths[place]:
            for later in wide[turn:]:
                held[later] = min(heights[later], level * widths[later])
            break
        held[place] = heights[place]
        left -= heights[place]
    return held

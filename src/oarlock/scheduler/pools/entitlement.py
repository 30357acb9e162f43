"""What each pool is entitled to: the pools' part of every round, as Uber's Peloton defined it (resmgr/entitlement).

The cluster is the root of the tree of pools. From there down, level by level and for each resource by itself, a pool's
amount is divided among its children:

1. A child's demand is the sum of its own children's, a leaf's what its jobs hold and wait for; none exceeds the child's
   limit. What is reserved statically counts as wanted.
2. Each gets the lesser of its demand and its reservation; where these together exceed what there is to divide (nodes
   were lost), every reservation is kept to the same part.
3. The rest goes by share to those who want more, none gets more than it wants.
4. What nobody wants is spread by share up to the limits, so that whoever wants it next has it at once.

All three are one and the same question, how high water stands in vessels of given widths and heights, so they are one
function (`_poured`) and one pass over the tree: n pools cost n log n.

Resources are named as in `oarlock.spec.pools`; amounts are cores, bytes and devices. The order of the arguments changes
nothing, not even the last digit: sums are taken in the order of names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from oarlock.spec import holdings, nodes, plans, pools, refusals

Amounts = dict[str, float]

EXACT = 1e-9
"""The part of an amount by which sums of fractions may differ and still mean the same."""

_NO_LIMIT = float("inf")
_NOTHING = holdings.Resources()


class Shortage(NamedTuple):
    """The topmost pools together reserve more of a resource than there is: each gets its part of `capacity` alone."""

    resource: str
    reserved: float
    capacity: float


def divide(
    declared: Iterable[pools.Pool], capacity: Mapping[str, float], demand: Mapping[str, Mapping[str, float]]
) -> dict[str, Amounts]:
    """By pool and resource of `capacity`, for leaves and for those above them.

    `demand` is by leaf. One that is not declared (its pool has gone while a job ran) is a leaf beside the topmost
    pools, with a share and no reservation; so is the default pool, where nobody has declared it.
    """
    tree = _Tree(declared, demand)
    found: dict[str, Amounts] = {name: {} for name in tree.pools}
    for resource, amount in capacity.items():
        division = _Division(tree, resource, demand)
        for name, entitled in division.divided(amount):
            found[name][resource] = entitled
    return found


def reserved(declared: Iterable[pools.Pool], capacity: Mapping[str, float]) -> dict[str, Amounts]:
    """By leaf and resource: within what a job that must not be preempted can be admitted.

    - Where reservations exceed what there is, every one is kept to the same part.
    - What its neighbours leave unreserved counts as the default pool's, where that declares no reservation of its own:
      so such jobs can run before anybody has made a pool.
    - A resource that no pool at all reserves holds back none that reserves another: who reserves GPUs alone can use
      them, with as many CPUs as there are.

    A pool that has gone has no entry, and nothing reserved.
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
    """The resources of which the topmost pools together reserve more than there is: nodes were lost, or never came."""
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
    """By resource: what lies idle of static reservations, and cannot be lent to the leaf `borrower`. It may use that of
    a pool that it lies below, as far as none of its neighbours there has reserved it statically too.

    `held` is by pool, with all that lies below it. Without a static reservation there is nothing in the answer.
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
    """By leaf: what its gangs would hold, were there room for each at its largest. What is being stopped for good wants
    nothing any more; a gang that no state of the cluster could hold wants in vain, and takes nothing from others.
    """
    wanted: dict[str, holdings.Resources] = {}
    asking = [gang for gang in waiting if gang.refusal is None or gang.refusal.code not in refusals.NEVER]
    asking += [job.gang for job in running if not job.stopping or job.returns]
    for gang in asking:
        wanted[gang.pool] = wanted.get(gang.pool, _NOTHING) + gang.amount(gang.largest)
    return {name: pools.amounts(amount) for name, amount in wanted.items()}


def capacity(of: Iterable[nodes.Node]) -> Amounts:
    """What there is to divide: of the nodes that are ready."""
    return pools.amounts(sum((node.usable for node in of if node.ready), _NOTHING))


class _Tree:
    """The pools by name, and each one's children in the order of their names; None's are the topmost.

    What could not be stored (a parent that is not there, a circle) is nevertheless a tree here: such pools are topmost.
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
        """The pool and those above it."""
        above: str | None = name
        while above is not None:
            yield above
            above = self._parent(above)

    def families(self) -> Iterator[tuple[str | None, list[str]]]:
        """Parents and their children, from the root down."""
        return ((parent, self.children[parent]) for parent in (None, *self.order) if parent in self.children)

    def _downwards(self) -> Iterator[str]:
        """All pools, parents first."""
        ahead = list(self.children[None])
        while ahead:
            name = ahead.pop()
            yield name
            ahead += self.children.get(name, ())


class _Division:
    """One resource in a tree: what every pool wants of it, and how it is divided."""

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
        """What each of these siblings gets of `amount`. What fills a vessel is its height to the last digit."""
        wanted = [self.wanted[name] for name in children]
        reserve = [self.reserve[name] for name in children]
        shares = [self.share[name] for name in children]
        claims = [min(want, kept) for want, kept in zip(wanted, reserve, strict=True)]
        given = _poured(amount, claims, reserve)
        for heights in (wanted, [self.limit[name] for name in children]):
            left = amount - sum(given)
            if left <= amount * EXACT:
                break
            room = [height - had for height, had in zip(heights, given, strict=True)]
            more = _poured(left, room, shares)
            given = [
                height if extra == space else had + extra
                for had, extra, space, height in zip(given, more, room, heights, strict=True)
            ]
        return given


def _kept(tree: _Tree, resource: str, amount: float) -> Amounts:
    """How much of each pool's reservation can be kept."""
    kept: dict[str | None, float] = {None: amount}
    for parent, children in tree.families():
        reserve = [_reserve(tree.pools[name], resource) for name in children]
        kept.update(zip(children, _poured(kept[parent], reserve, reserve), strict=True))
        if pools.DEFAULT in children and resource not in tree.pools[pools.DEFAULT].reserve:
            rest = max(0.0, kept[parent] - sum(kept[name] for name in children))
            kept[pools.DEFAULT] = min(rest, _limit(tree.pools[pools.DEFAULT], resource))
    return {name: value for name, value in kept.items() if name is not None}


def _reserve(pool: pools.Pool, resource: str) -> float:
    return min(pool.reserve.get(resource, 0.0), _limit(pool, resource))


def _limit(pool: pools.Pool, resource: str) -> float:
    return pool.limit.get(resource, _NO_LIMIT)


def _poured(amount: float, heights: Sequence[float], widths: Sequence[float]) -> list[float]:
    """Pour `amount` into vessels that are connected at their floors: each takes in proportion to its width until it is
    full, and then the others share what is left. What has no width takes nothing.

    Returns what each holds: its height exactly where it is full, at most `amount` together.
    """
    wide = [place for place, width in enumerate(widths) if width > 0 and heights[place] > 0]
    held = [0.0] * len(heights)
    if sum(heights[place] for place in wide) <= amount * (1 + EXACT):
        for place in wide:
            held[place] = heights[place]
        return held
    wide.sort(key=lambda place: heights[place] / widths[place])
    breadth = [0.0] * (len(wide) + 1)  # of a vessel and those that are full later than it
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

"""The nodes that waiting gangs lack: how many of which declared class would let each of them start.

The gangs are looked at in the order of the queue. Each is placed, at its smallest size, on the space that is free now,
with the fewest and cheapest new nodes that it needs. An earlier gang's new nodes stay for the later ones, which may fit
beside it. So several gangs together never ask for more nodes than hold them, nor for more than the class may have.

A gang that the limit of its pool holds back asks for none, because new nodes would not help it. Neither does a gang
whose place is being cleared, or that waits after a failure of the platform.

A gang with an open request keeps it: nodes come one by one, and a request that shrank with each of them would be made
anew again and again. So does one that its owner has just changed, which has no refusal until the next plan.

A search costs time with the number of new nodes. One look searches for `SEARCHED` gangs at most, and the next look goes
on with the others: those for which it searched in vain come again after all others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from oarlock.scheduler.placement import freespace, placing
from oarlock.scheduler.pools import entitlement
from oarlock.spec import holdings, plans, refusals
from oarlock.spec.cluster import nodes, pools, provisioning

Code = refusals.Code

WANTING = frozenset(
    {
        Code.NO_CAPACITY,
        Code.NO_NODES,
        Code.BEHIND,
        Code.RESERVED,
        Code.OUTRANKED,
        Code.POOL_SHARE,
        Code.NOT_RESERVED,
    }
)
"""Refusals that more nodes may end."""

KEEPING = WANTING | {Code.BACKING_OFF}
"""Refusals under which an open request stays."""

SEARCHED = 200
"""Gangs without a request whose nodes are searched for in one look."""


class Look(NamedTuple):
    """The nodes that gangs lack, by job, and the jobs for which these looks searched in vain."""

    needs: dict[str, provisioning.Need]
    vain: frozenset[str]


def missing(
    snapshot: plans.Snapshot, requested: Mapping[str, provisioning.Need] | None = None
) -> dict[str, provisioning.Need]:
    """Return the needs of one look that stands alone."""
    return look(snapshot, requested or {}, frozenset()).needs


def look(snapshot: plans.Snapshot, requested: Mapping[str, provisioning.Need], vain: frozenset[str]) -> Look:
    """Return, by job, the nodes that the waiting gangs of `snapshot` lack; gangs that lack none are left out.

    The reason why a gang waits is its last refusal. `requested` has the needs of open requests, which stay as they are
    while their gangs wait and are of the same size. `vain` is that of the look before.
    """
    if not snapshot.rules.node_classes:
        return Look({}, frozenset())
    given = requested
    queue = sorted((gang for gang in snapshot.waiting if _may_want(gang, given)), key=_order)
    found = {gang.job: given[gang.job] for gang in queue if gang.job in given and _same_size(gang, given)}
    lacking = [gang.job for gang in queue if gang.job not in found]
    fresh = [job for job in lacking if job not in vain]
    searched = frozenset([*fresh, *(job for job in lacking if job in vain)][:SEARCHED])
    search = Search(snapshot, [gang for gang in queue if gang.job in found or gang.job in searched])
    search.spend(found.values())
    for gang in search.queue:
        if gang.job in found and not search.serves(gang, found[gang.job]):
            found.pop(gang.job)
        if not search.within_pools(gang):
            found.pop(gang.job, None)
        elif gang.job in found:
            search.expect(gang, found[gang.job])
        elif gang.refusal is not None and gang.refusal.code in WANTING:
            need = search.need(gang)
            if need is not None and need.nodes:
                found[gang.job] = need
    before = vain.intersection(lacking) if fresh else frozenset[str]()
    return Look(found, before | (searched - found.keys()))


def _may_want(gang: plans.Gang, given: Mapping[str, provisioning.Need]) -> bool:
    if gang.refusal is None:
        return gang.job in given and _same_size(gang, given)
    return gang.refusal.code in KEEPING


def _order(gang: plans.Gang) -> tuple[int, float, str]:
    return gang.refusal.ahead if gang.refusal is not None else 0, gang.submitted_at, gang.job


def _same_size(gang: plans.Gang, given: Mapping[str, provisioning.Need]) -> bool:
    """Return whether the gang still asks for the tasks for which its nodes were requested."""
    asked = {
        (ask.role, ask.amount, ask.constraints): count
        for ask, count in zip(gang.asks, gang.smallest, strict=True)
        if count
    }
    told: dict[tuple[str, holdings.Resources, nodes.Constraints | None], int] = {}
    for tasks in given[gang.job].tasks:
        key = tasks.role, tasks.amount, tasks.constraints
        told[key] = told.get(key, 0) + tasks.count
    return told == asked


class Search:
    """The free space of the present nodes, with the new nodes beside it that there may be.

    New nodes that are not asked for are closed. The search opens as few of them as possible.
    """

    def __init__(self, snapshot: plans.Snapshot, queue: Sequence[plans.Gang]) -> None:
        self.queue = queue
        self._classes = snapshot.rules.node_classes
        self._pools = {pool.name: pool for pool in snapshot.pools}
        self._held: dict[str, holdings.Resources] = {}
        self._kept: dict[str, holdings.Resources] = {}  # of it, by gangs that must not be preempted
        for job in snapshot.running:
            self._hold(job.gang, sum((claim.amount for claim in job.holdings), freespace.NOTHING))
        tasks = sum(sum(gang.smallest) for gang in queue)
        self._new = {
            one.name: [one.node(index) for index in range(min(tasks, one.missing(snapshot.nodes)))]
            for one in self._classes
        }
        self._class = {node.name: name for name, listed in self._new.items() for node in listed}
        self._class |= {node.name: node.node_class for node in snapshot.nodes if node.node_class in self._new}
        every = [*snapshot.nodes, *(node for listed in self._new.values() for node in listed)]
        self._space = freespace.FreeSpace(every, (claim for job in snapshot.running for claim in job.holdings))
        self._reserved = entitlement.reserved(snapshot.pools, entitlement.capacity(every))
        self._open: set[str] = set()
        self._shut: tuple[int, frozenset[str]] | None = None  # new nodes that are not open, by the number that are

    def spend(self, needs: Iterable[provisioning.Need]) -> None:
        """Take the nodes of open requests off those that there may be."""
        for need in needs:
            for name, count in need.nodes.items():
                for node in self._closed(name)[:count]:
                    self._open.add(node.name)

    def within_pools(self, gang: plans.Gang) -> bool:
        """Return whether the limits of its pools, and its reservation, allow the gang beside those that hold or ask."""
        amount = gang.amount(gang.smallest)
        for pool in self._above(gang.pool):
            held = pools.amounts(self._held.get(pool.name, freespace.NOTHING) + amount)
            if any(held[resource] > limit for resource, limit in pool.limit.items()):
                return False
        if gang.preemptible or gang.pool not in self._reserved:
            return True
        kept = pools.amounts(self._kept.get(gang.pool, freespace.NOTHING) + amount)
        return all(kept[name] <= most * (1 + entitlement.EXACT) for name, most in self._reserved[gang.pool].items())

    def serves(self, gang: plans.Gang, need: provisioning.Need) -> bool:
        """Return whether new nodes of these classes are still open to the gang: its volume may lie elsewhere now."""
        return all(one.model.admits(gang.constraints) for one in self._classes if need.nodes.get(one.name))

    def expect(self, gang: plans.Gang, need: provisioning.Need) -> None:
        """Take the place of a gang whose nodes are requested, on any of the nodes that are there or expected."""
        if self._shut is None or self._shut[0] != len(self._open):  # nodes are opened, and never closed again
            self._shut = len(self._open), self._without(self._open)
        claims = placing.place(gang, self._space, gang.smallest, keep=self._shut[1])
        self._take(gang, claims or ())

    def need(self, gang: plans.Gang) -> provisioning.Need | None:
        """Return the nodes to be added for the gang, and take its place; None where no nodes help it."""
        best: tuple[tuple[float, int, int], list[str], holdings.Claims] | None = None
        for place, counts in enumerate(self._ways(gang)):
            opened = [node for one in self._classes for node in self._closed(one.name)[: counts[one.name]]]
            claims = self._place(gang, counts)
            if claims is None:
                continue
            cost = sum(node.price_per_h for node in opened), len(opened), place
            if best is None or cost < best[0]:
                best = cost, [node.name for node in opened], claims
        if best is None:
            return None
        _, names, claims = best
        self._open.update(names)
        self._take(gang, claims)
        added: dict[str, int] = {}
        for name in names:
            added[self._class[name]] = added.get(self._class[name], 0) + 1
        return provisioning.Need(nodes=added, tasks=self._tasks(gang, claims))

    # The numbers of new nodes

    def _ways(self, gang: plans.Gang) -> list[dict[str, int]]:
        """Return the numbers of new nodes to compare: none, nodes of one class, or the fewest of several classes."""
        none = dict.fromkeys(self._new, 0)
        if self._place(gang, none) is not None:
            return [none]
        tasks = sum(gang.smallest)
        most = {name: min(tasks, len(self._closed(name))) for name in self._new}
        alone = [self._fewest(gang, {**none, name: most[name]}, name) for name in self._new if most[name]]
        found = [counts for counts in alone if counts is not None]
        if found or self._place(gang, most) is None:
            return found
        for name in sorted(self._new, key=self._price, reverse=True):
            most = self._fewest(gang, most, name) or most
        return [most]

    def _fewest(self, gang: plans.Gang, counts: dict[str, int], name: str) -> dict[str, int] | None:
        """Return the numbers with the fewest nodes of the class `name`; None where even all of them do not suffice."""
        if self._place(gang, counts) is None:
            return None
        low, high = 0, counts[name]
        while low < high:
            middle = (low + high) // 2
            if self._place(gang, {**counts, name: middle}) is None:
                low = middle + 1
            else:
                high = middle
        return {**counts, name: high}

    def _price(self, name: str) -> float:
        return next(one.model.price_per_h for one in self._classes if one.name == name)

    def _place(self, gang: plans.Gang, counts: Mapping[str, int]) -> holdings.Claims | None:
        opened = {node.name for name, count in counts.items() for node in self._closed(name)[:count]}
        return placing.place(gang, self._space, gang.smallest, keep=self._without(self._open | opened))

    def _closed(self, name: str) -> list[nodes.Node]:
        return [node for node in self._new[name] if node.name not in self._open] if name in self._new else []

    def _without(self, opened: set[str]) -> frozenset[str]:
        """Return the new nodes that must not be used."""
        return frozenset(node.name for listed in self._new.values() for node in listed if node.name not in opened)

    # Places that are taken

    def _take(self, gang: plans.Gang, claims: holdings.Claims) -> None:
        self._space.take(claims)
        self._hold(gang, gang.amount(gang.smallest))

    def _hold(self, gang: plans.Gang, amount: holdings.Resources) -> None:
        for pool in self._above(gang.pool):
            self._held[pool.name] = self._held.get(pool.name, freespace.NOTHING) + amount
        if not gang.preemptible:
            self._kept[gang.pool] = self._kept.get(gang.pool, freespace.NOTHING) + amount

    def _above(self, name: str | None) -> list[pools.Pool]:
        """Return the pool and those above it."""
        found: list[pools.Pool] = []
        while name in self._pools and self._pools[name] not in found:
            found.append(self._pools[name])
            name = found[-1].parent
        return found

    def _tasks(self, gang: plans.Gang, claims: holdings.Claims) -> tuple[provisioning.Tasks, ...]:
        counts: dict[tuple[str, str], int] = {}
        for claim in claims:
            key = claim.role, self._class.get(claim.node, "")
            counts[key] = counts.get(key, 0) + 1
        amount = {ask.role: ask.amount for ask in gang.asks}
        return tuple(
            provisioning.Tasks(
                role=role, amount=amount[role], node_class=name, count=count, constraints=gang.constraints
            )
            for (role, name), count in sorted(counts.items())
        )

"""The numbers that the refusals of one plan share.

They are the free and total resources, the largest holders, and the impossible requests.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable

from oarlock.scheduler import amounts, wording
from oarlock.scheduler.explaining import impossible
from oarlock.scheduler.placement import freenodes, freespace
from oarlock.spec import holdings, plans, refusals
from oarlock.spec.cluster import nodes

Numbers = dict[str, float]

SHOWN_HOLDERS = 5
REFRESHED = 256
"""A gang behind so many others keeps its refusal for as long as the reason holds."""

DETAILED = 32
"""Gangs of one plan for which the number of fitting tasks is computed: that may walk over all nodes."""


class Context:
    """The numbers that the refusals of one plan share, computed once and only on demand.

    `space` is the plan's own free space, without the amounts granted so far; by default it is made from the snapshot. A
    `terse` context writes no sentences about missing capacity, for plans that are made without their refusals.
    """

    terse = False

    def __init__(
        self,
        snapshot: plans.Snapshot,
        space: freespace.FreeSpace | None = None,
        declared: impossible.Declared | None = None,
    ) -> None:
        self.snapshot = snapshot
        self.declared = declared or impossible.Declared(snapshot.nodes, snapshot.pools, snapshot.rules.node_classes)
        self.space = freespace.FreeSpace(snapshot.nodes, _held(snapshot)) if space is None else space
        # Reserved for gangs that came first: taken in `space`, but free.
        self.kept: Callable[[], Iterable[holdings.Holding]] = tuple
        self._kept: tuple[tuple[holdings.Holding, ...], holdings.Resources] = ((), freespace.NOTHING)
        self._ready: list[freenodes.FreeNode] | None = None
        self._open_to: dict[nodes.Constraints | None, list[nodes.Node]] = {}
        self._totals: dict[wording.Cards, Numbers] = {}
        self._free: dict[wording.Cards, tuple[holdings.Resources, Numbers, float]] = {}
        self._holders: dict[tuple[str, wording.Cards], tuple[refusals.Holder, ...]] = {}
        self._detailed = 0

    @property
    def ready(self) -> list[freenodes.FreeNode]:
        if self._ready is None:
            self._ready = self.space.ready()
        return self._ready

    def open_to(self, constraints: nodes.Constraints | None) -> list[nodes.Node]:
        """Return the nodes that take new tasks of gangs with these constraints."""
        if constraints not in self._open_to:
            self._open_to[constraints] = [one.node for one in self.ready if one.node.admits(constraints)]
        return self._open_to[constraints]

    def free(self, cards: wording.Cards = wording.ANY) -> Numbers:
        """Return the free amounts on nodes that take tasks of the gang. `gpus` counts only the GPUs that match."""
        return self._count_free(cards)[1]

    def most_on_one_node(self, cards: wording.Cards = wording.ANY) -> float:
        """Return the most free GPUs on one node."""
        return self._count_free(cards)[2]

    def _count_free(self, cards: wording.Cards) -> tuple[holdings.Resources, Numbers, float]:
        """Return the free amounts, the same as numbers, and the most free GPUs on one node.

        Nodes with the same free amounts are looked at once for all of them, and again after a change.
        """
        kept = tuple(self.kept())
        if self._kept[0] is not kept:
            self._kept = kept, sum((one.amount for one in kept), freespace.NOTHING)
        free = self._kept[1] + self.space.free()
        found = self._free.get(cards)
        if found is None or found[0] != free:
            more: dict[str, float] = {}
            for claim in kept:
                more[claim.node] = more.get(claim.node, 0.0) + claim.amount.devices
            together, most, beyond = 0.0, 0.0, freespace.NOTHING
            for node, count in self.space.alike():
                if not node.kind.admits(cards.constraints):
                    beyond += node.free.times(count)
                    continue
                each = wording.devices(node.node, node.free.devices, cards)
                together, most = together + count * each, max(most, each)
            for claim in kept:
                if not self.space.nodes[claim.node].kind.admits(cards.constraints):
                    beyond += claim.amount
                    more.pop(claim.node, None)
            for name, devices in more.items():
                node = self.space.nodes[name]
                extra = wording.devices(node.node, devices, cards) if node.node.open else 0.0
                together, most = together + extra, max(most, extra and node.free.devices + extra)
            numbers = amounts.numbers(free - beyond) | ({"gpus": round(together, 6)} if cards.choose else {})
            found = self._free[cards] = free, numbers, most
        return found

    def total(self, cards: wording.Cards = wording.ANY) -> Numbers:
        """Return the total amounts on ready nodes."""
        if cards not in self._totals:
            self._totals[cards] = wording.total(self.open_to(cards.constraints), cards)
        return self._totals[cards]

    def holders(self, resource: str, cards: wording.Cards = wording.ANY) -> tuple[refusals.Holder, ...]:
        """Return the jobs that hold most of a resource, most first. Only GPUs that match `cards` count."""
        key = (resource, cards)
        if key not in self._holders:
            self._holders[key] = _holders(self.snapshot, resource, cards)
        return self._holders[key]

    def detailed(self) -> bool:
        """Return whether one more gang of this plan gets the computations that take time."""
        self._detailed += 1
        return self._detailed <= DETAILED

    def never(self, gang: plans.Gang) -> refusals.Refusal | None:
        """Return the refusal of a gang that can never run; None if it can."""
        return self.declared.never(gang)


def _holders(snapshot: plans.Snapshot, resource: str, cards: wording.Cards) -> tuple[refusals.Holder, ...]:
    suiting = [node for node in snapshot.nodes if node.admits(cards.constraints)]
    where = {node.name for node in suiting} if len(suiting) < len(snapshot.nodes) else None
    if cards.choose and resource == "gpus":
        where = {node.name for node in suiting if cards.on(node)}
    of = _OF[resource]
    held = [
        (-sum(of(one.amount) for one in job.holdings if where is None or one.node in where), job.job, place)
        for place, job in enumerate(snapshot.running)
    ]
    most = heapq.nsmallest(SHOWN_HOLDERS, (one for one in held if one[0]))
    jobs = [snapshot.running[place] for _, _, place in most]
    return tuple(
        refusals.Holder(
            job.job,
            job.name,
            amounts.numbers(_sum(one for one in job.holdings if where is None or one.node in where)),
            job.gang.owner,
            job.gang.pool,
        )
        for job in jobs
    )


_OF: dict[str, Callable[[holdings.Resources], float]] = {
    "gpus": lambda amount: amount.devices,
    "cpus": lambda amount: amount.cpus_milli,
    "memory": lambda amount: amount.memory_bytes,
}


def _held(snapshot: plans.Snapshot) -> Iterable[holdings.Holding]:
    return (claim for job in snapshot.running for claim in job.holdings)


def _sum(claims: Iterable[holdings.Holding]) -> holdings.Resources:
    return sum((claim.amount for claim in claims), freespace.NOTHING)

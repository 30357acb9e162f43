"""The requests that the declared nodes and pools could never hold, and the part of them that would fit."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import cached_property

import msgspec

from oarlock.scheduler import amounts, sizes, wording
from oarlock.scheduler.placement import freespace, placing
from oarlock.scheduler.pools import entitlement, poolbounds
from oarlock.spec import jobfile, plans, refusals
from oarlock.spec.cluster import nodes, pools
from oarlock.spec.input import quantities

Code = refusals.Code


ANOTHER_POOL = "Choose another pool, or have the administrator change the profiles of this one."
ANOTHER_VOLUME = "Mount another volume, or ask the administrator for one that more nodes can mount."
CPU_STEPS = 5
LEAST_CPUS_MILLI = 100
KEPT = 10_000
"""Shapes of gangs for which the answer is remembered."""


class Declared:
    """The declared nodes, node classes and pools, as if all nodes were open and empty.

    Its answers are kept while the declaration stays.
    """

    def __init__(
        self,
        nodes: tuple[nodes.Node, ...],
        pools: tuple[pools.Pool, ...],
        classes: tuple[nodes.NodeClass, ...] = (),
    ) -> None:
        self.nodes = nodes
        self.pools = pools
        self.classes = classes
        self._never: dict[object, refusals.Refusal | None] = {}

    def follow(self, snapshot: plans.Snapshot) -> Declared:
        """Return itself, or a new one if the snapshot declares other nodes or pools."""
        classes = snapshot.rules.node_classes
        same = _same(self.nodes, snapshot.nodes) and _same(self.pools, snapshot.pools) and _same(self.classes, classes)
        return self if same else Declared(snapshot.nodes, snapshot.pools, classes)

    @cached_property
    def lasting(self) -> Declared:
        """The declaration without what may pass soon: the claims that nodes did not serve lately."""
        if not any(node.barred for node in self.nodes):
            return self
        nodes = tuple(msgspec.structs.replace(node, barred=()) if node.barred else node for node in self.nodes)
        return Declared(nodes, self.pools, self.classes)

    @cached_property
    def empty(self) -> freespace.FreeSpace:
        return freespace.FreeSpace(self._ready)

    @cached_property
    def grown(self) -> freespace.FreeSpace:
        """The empty cluster with as many nodes as there may be."""
        return freespace.FreeSpace([*self._ready, *self._new]) if self._new else self.empty

    @cached_property
    def reserved(self) -> dict[str, entitlement.Amounts]:
        """The reserved amounts, by leaf pool and resource."""
        return entitlement.reserved(self.pools, entitlement.capacity([*self._ready, *self._new]))

    @cached_property
    def _ready(self) -> list[nodes.Node]:
        return [
            msgspec.structs.replace(
                node, ready=True, taken=freespace.NOTHING, taints=tuple(one for one in node.taints if one.tolerable)
            )
            for node in self.nodes
        ]

    @cached_property
    def _new(self) -> list[nodes.Node]:
        """The nodes that may be added."""
        return [one.node(index) for one in self.classes for index in range(one.missing(self.nodes))]

    def open_to(self, constraints: nodes.Constraints | None) -> Declared:
        """Return the declaration without the nodes and classes that are closed to such gangs alone."""
        present = tuple(node for node in self.nodes if node.admits(constraints))
        classes = tuple(one for one in self.classes if one.model.admits(constraints))
        same = len(present) == len(self.nodes) and len(classes) == len(self.classes)
        return self if same else Declared(present, self.pools, classes)

    def never(self, gang: plans.Gang) -> refusals.Refusal | None:
        """Return the refusal of a gang that can never run; None if it can.

        Without any node only the pools can make a request impossible. The answer is computed once for all gangs of one
        shape.
        """
        shape = (gang.pool, gang.preemptible, gang.asks, gang.topology, gang.mixed, gang.beside, gang.placement)
        if shape not in self._never:
            if len(self._never) >= KEPT:
                self._never.clear()
            self._never[shape] = _never(gang, self.lasting)
        return self._never[shape]


def _same(ones: Sequence[object], others: Sequence[object]) -> bool:
    return ones is others or (len(ones) == len(others) and all(map(operator.is_, ones, others)))


def elsewhere(of: Sequence[nodes.Node], constraints: nodes.Constraints | None) -> str:
    """Return the change that helps such gangs where their volumes, or the profiles of their pool, close nodes."""
    if constraints is not None:
        others = tuple(claim for claim in constraints.claims if not nodes.is_volume(claim))
        without = msgspec.structs.replace(constraints, claims=others)
        if any(node.admits(without) and not node.admits(constraints) for node in of):
            return ANOTHER_VOLUME
    return ANOTHER_POOL


def _never(gang: plans.Gang, cluster: Declared) -> refusals.Refusal | None:
    above = _above_limit(gang, cluster) or _above_reservation(gang, cluster)
    if above is not None or not (cluster.nodes or cluster.classes):
        return above
    if placing.fits(gang, cluster.grown, gang.smallest):
        return None
    if any(ask.amount.devices and not _has_device(ask, cluster) for ask in gang.asks):
        return _no_such_device(gang, cluster)
    every = [*cluster.nodes, *(one.model for one in cluster.classes)]
    barred = wording.closed(every, gang.constraints)
    cluster = cluster.open_to(gang.constraints)
    closed = f" Closed to it: {barred}." if barred else ""
    if not cluster.nodes and not cluster.classes:
        return refusals.Refusal(
            code=Code.NEVER_FITS,
            message=f"It needs {wording.wanted(gang)}; no node is open to it.{closed}",
            needed=wording.needed(gang),
            change=elsewhere(every, gang.constraints),
        )
    return refusals.Refusal(
        code=Code.NEVER_FITS,
        message=f"It needs {wording.wanted(gang)}; {_lacking_when_empty(gang, cluster)}{_nor_new(cluster)}.{closed}",
        needed=wording.needed(gang),
        total=wording.total(cluster.nodes, wording.cards(gang)),
        change=_would_fit(gang, cluster.grown),
    )


def _nor_new(cluster: Declared) -> str:
    """Return a clause about the node classes, which do not help; an empty text where there are none."""
    if not cluster.classes:
        return ""
    most = [f"{one.most} of {one.name}" for one in cluster.classes]
    return f". More nodes do not help: there may be at most {wording.named(most, 'more classes')}"


def _would_fit(gang: plans.Gang, space: freespace.FreeSpace) -> str:
    """Return the changes that fit in the empty cluster.

    They are fewer workers, fewer CPUs for each, or more processes in each.
    """
    most = most_workers(gang, space)
    others = [words for words in (_with_fewer_cpus(gang, space), _with_more_processes(gang, space, most)) if words]
    if not most:
        return f"It would fit as {others[0]}." if others else "Ask for less for each task."
    also = f"; so would {', or '.join(others)}" if others else ""
    return f"At most {wording.workers(most)} would fit{also}."


def _with_fewer_cpus(gang: plans.Gang, space: freespace.FreeSpace) -> str:
    """Return the most CPUs per worker with which all workers fit, halved until they do.

    Return an empty text if they never do.
    """
    place = _place_of_workers(gang)
    if place is None:
        return ""
    ask = gang.asks[place]
    for step in range(1, CPU_STEPS + 1):
        milli = max(LEAST_CPUS_MILLI, ask.amount.cpus_milli // 2**step // 50 * 50)
        if milli >= ask.amount.cpus_milli:
            return ""
        fewer = msgspec.structs.replace(ask, amount=msgspec.structs.replace(ask.amount, cpus_milli=milli))
        if _fits_with(gang, space, place, fewer, ask.min):
            return f"{wording.workers(ask.min)} with `--cpus {milli / 1000:g}`"
    return ""


def _with_more_processes(gang: plans.Gang, space: freespace.FreeSpace, most: int) -> str:
    """Return the fewer tasks, with more processes each, that fit; an empty text if there are none.

    The number of processes stays. Tasks with devices are left out, because fewer tasks would have fewer devices.
    """
    place = _place_of_workers(gang)
    if place is None or gang.asks[place].amount.devices or gang.asks[place].min < gang.asks[place].count:
        return ""
    ask = gang.asks[place]
    for tasks in (count for count in range(most, 0, -1) if ask.min % count == 0):
        nproc = ask.nproc * (ask.min // tasks)
        if nproc > jobfile.MAX_NPROC:
            return ""
        fuller = msgspec.structs.replace(ask, nproc=nproc, ports=ask.ports + nproc - ask.nproc if ask.ports else 0)
        if _fits_with(gang, space, place, fuller, tasks):
            return f"{wording.workers(tasks)} with `--nproc {nproc}`"
    return ""


def _fits_with(gang: plans.Gang, space: freespace.FreeSpace, place: int, ask: plans.Ask, count: int) -> bool:
    changed = msgspec.structs.replace(gang, asks=(*gang.asks[:place], ask, *gang.asks[place + 1 :]))
    return placing.fits(changed, space, (*gang.smallest[:place], count, *gang.smallest[place + 1 :]))


def _place_of_workers(gang: plans.Gang) -> int | None:
    return next((place for place, ask in enumerate(gang.asks) if ask.role == "worker"), None)


def in_pool(gang: plans.Gang, pool: str, resource: str, limit: float) -> refusals.Refusal:
    """Return the refusal of a gang that needs more than the limit of a pool."""
    needed, most = wording.needed(gang), wording.shown(resource, limit)
    return refusals.Refusal(
        code=Code.NEVER_IN_POOL,
        message=f"It needs {wording.shown(resource, needed[resource])}, and the pool {pool} is limited to {most}.",
        needed=needed,
        total={resource: limit},
        change=f"Ask for {most} at most, choose another pool, or have the limit raised.",
    )


def in_reservation(gang: plans.Gang, resource: str, reserved: float) -> refusals.Refusal:
    """Return the refusal of a gang that must not be preempted and needs more than the reservation of its pool."""
    needed, most = wording.needed(gang), wording.shown(resource, reserved)
    return refusals.Refusal(
        code=Code.NEVER_IN_POOL,
        message=f"It must not be preempted, and needs {wording.shown(resource, needed[resource])}; the pool "
        f"{gang.pool} has a reservation of {most}.",
        needed=needed,
        total={resource: reserved},
        change="With `preemptible: true` it need not be within the reservation.",
    )


def most_workers(gang: plans.Gang, space: freespace.FreeSpace) -> int:
    """Return the most workers, fewer than its minimum, with which the gang fits in `space`; 0 if it never fits."""
    place = _place_of_workers(gang)
    if place is None:
        return 0
    before, after = gang.smallest[:place], gang.smallest[place + 1 :]
    most = sizes.last(
        0,
        gang.asks[place].min,
        lambda count: count if placing.fits(gang, space, (*before, count, *after)) else None,
    )
    return most or 0


def _lacking_when_empty(gang: plans.Gang, cluster: Declared) -> str:
    large = next((words for ask in gang.asks if ask.min and (words := _too_large(ask, cluster))), "")
    if large:
        return large
    cards = wording.cards(gang)
    total = wording.total(cluster.nodes, cards)
    have = wording.several({name: total.get(name, 0.0) for name in wording.needed(gang)}, cards)
    tasks, slots = sum(gang.smallest), min(cluster.empty.slots(ask, mixed=gang.mixed) for ask in gang.asks if ask.min)
    if gang.topology is not None and gang.topology.required and slots >= tasks:
        return f"all nodes together have {have}, and no {gang.topology.same} holds it even when it is empty"
    if len(gang.asks) > 1 or slots >= tasks:
        return f"all nodes together have {have}, and even empty they do not hold all its tasks at once"
    return (
        f"all nodes together have {have}, and even empty they hold {f'only {slots}' if slots else 'none'} of its tasks"
    )


def _too_large(ask: plans.Ask, cluster: Declared) -> str:
    """Return a clause about a resource of which one task needs more than any node has.

    Return an empty text if there is none.
    """
    asked = amounts.numbers(ask.amount)
    for name in ("gpus", "cpus", "memory"):
        most = max((amounts.numbers(node.capacity).get(name, 0.0) for node in cluster.nodes), default=0.0)
        if asked.get(name, 0.0) > most:
            needs = wording.shown(name, asked[name], wording.Cards(ask.gpu_types))
            than = wording.shown(name, most) if name == "memory" else wording.plain(most)
            return f"one task needs {needs}, and no node has {f'more than {than}' if most else 'any'}"
    return ""


def _above_limit(gang: plans.Gang, cluster: Declared) -> refusals.Refusal | None:
    """Return a refusal if the limit of its pool, or of a pool above it, is below the minimum of the gang."""
    declared = {pool.name: pool for pool in cluster.pools}
    name: str | None = gang.pool
    seen: set[str] = set()
    needed = wording.needed(gang)
    while name in declared and name not in seen:
        seen.add(name)
        limit = declared[name].limit
        for resource, asked in needed.items():
            if asked > limit.get(resource, asked):
                return in_pool(gang, name, resource, limit[resource])
        name = declared[name].parent
    return None


def _above_reservation(gang: plans.Gang, cluster: Declared) -> refusals.Refusal | None:
    """Return a refusal if the reservation of its pool, with all nodes ready, is below the minimum of the gang."""
    if gang.preemptible or not (cluster.nodes or cluster.classes):
        return None
    reserved = cluster.reserved.get(gang.pool)
    if reserved is None:
        return None
    for resource, asked in wording.needed(gang).items():
        if asked > reserved.get(resource, 0.0) * (1 + poolbounds.SLACK):
            return in_reservation(gang, resource, reserved.get(resource, 0.0))
    return None


def _no_such_device(gang: plans.Gang, cluster: Declared) -> refusals.Refusal:
    wanted = wording.cards(gang)
    with_memory = f" with {quantities.memory_text(wanted.memory_bytes)}" if wanted.memory_bytes else ""
    every = (*cluster.nodes, *(one.model for one in cluster.classes))
    devices = {(one.type, one.memory_bytes) for node in every for one in node.devices}
    present = [f"{kind} ({quantities.memory_text(size)})" if with_memory else kind for kind, size in sorted(devices)]
    types = f"{' or '.join(wanted.types)} " if wanted.types else ""
    return refusals.Refusal(
        code=Code.NO_SUCH_DEVICE,
        message=f"It needs {types}GPUs{with_memory}; "
        + (f"the nodes have {wording.listed(list(dict.fromkeys(present)))}." if present else "no node has any."),
        needed=wording.needed(gang),
        total=wording.total(cluster.nodes),
        change="Choose among these." if present else "Ask for none, or add a node that has some.",
    )


def _has_device(ask: plans.Ask, cluster: Declared) -> bool:
    """Return whether a node has a device that matches the request."""
    cards = wording.Cards(ask.gpu_types, ask.gpu_memory_bytes)
    return any(cards.on(node) for node in (*cluster.nodes, *(one.model for one in cluster.classes)))

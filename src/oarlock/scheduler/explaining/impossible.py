"""What no state of the declared nodes and pools could hold, and how much of it they could."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import cached_property

import msgspec

from oarlock.scheduler import amounts, sizes, wording
from oarlock.scheduler.placement import freespace, placing
from oarlock.scheduler.pools import entitlement, poolbounds
from oarlock.spec import jobfile, nodes, plans, pools, quantities, refusals

Code = refusals.Code


CPU_STEPS = 5
LEAST_CPUS_MILLI = 100
KEPT = 10_000
"""Of so many shapes of gangs it is remembered whether they are possible."""


class Declared:
    """Nodes and pools as they were declared, as if all nodes were open and nothing ran. What was found out of them is
    kept for as long as they are the same.
    """

    def __init__(self, nodes: tuple[nodes.Node, ...], pools: tuple[pools.Pool, ...]) -> None:
        self.nodes = nodes
        self.pools = pools
        self._never: dict[object, refusals.Refusal | None] = {}

    def follow(self, snapshot: plans.Snapshot) -> Declared:
        """Itself, or one of what is declared now."""
        same = _same(self.nodes, snapshot.nodes) and _same(self.pools, snapshot.pools)
        return self if same else Declared(snapshot.nodes, snapshot.pools)

    @cached_property
    def empty(self) -> freespace.FreeSpace:
        return freespace.FreeSpace(self._ready)

    @cached_property
    def reserved(self) -> dict[str, entitlement.Amounts]:
        """By leaf and resource."""
        return entitlement.reserved(self.pools, entitlement.capacity(self._ready))

    @cached_property
    def _ready(self) -> list[nodes.Node]:
        return [msgspec.structs.replace(node, ready=True, taken=freespace.NOTHING, taints=()) for node in self.nodes]

    def never(self, gang: plans.Gang) -> refusals.Refusal | None:
        """Why it can never run; None where it can. Without any node nothing is impossible yet, but what the pools
        forbid. It is found out once for all gangs of one shape.
        """
        shape = (gang.pool, gang.preemptible, gang.asks, gang.topology, gang.mixed, gang.beside, gang.placement)
        if shape not in self._never:
            if len(self._never) >= KEPT:
                self._never.clear()
            self._never[shape] = _never(gang, self)
        return self._never[shape]


def _same(ones: Sequence[object], others: Sequence[object]) -> bool:
    return ones is others or (len(ones) == len(others) and all(map(operator.is_, ones, others)))


def _never(gang: plans.Gang, there: Declared) -> refusals.Refusal | None:
    beyond = _beyond_the_pool(gang, there) or _beyond_the_reservation(gang, there)
    if beyond is not None or not there.nodes:
        return beyond
    if any(ask.amount.devices and not _somewhere(ask, there) for ask in gang.asks):
        return _no_such_device(gang, there)
    if placing.fits(gang, there.empty, gang.smallest):
        return None
    return refusals.Refusal(
        code=Code.NEVER_FITS,
        message=f"It needs {wording.wanted(gang)}; {_even_empty(gang, there)}.",
        needed=wording.needed(gang),
        total=wording.total(there.nodes, wording.cards(gang)),
        change=_would_fit(gang, there.empty),
    )


def _would_fit(gang: plans.Gang, space: freespace.FreeSpace) -> str:
    """What was tried in the empty cluster and fits: fewer workers, fewer CPUs for each, or more processes in each."""
    most = most_workers(gang, space)
    others = [words for words in (_with_fewer_cpus(gang, space), _with_more_processes(gang, space, most)) if words]
    if not most:
        return f"It would fit as {others[0]}." if others else "Ask for less for each task."
    also = f"; so would {', or '.join(others)}" if others else ""
    return f"At most {wording.workers(most)} would fit{also}."


def _with_fewer_cpus(gang: plans.Gang, space: freespace.FreeSpace) -> str:
    """The most CPUs with which all workers fit: halved, and halved again."""
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
    """As many processes as were asked for, in fewer tasks. With devices that would be fewer devices."""
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
    """The limit of a pool is below what it needs."""
    needed, most = wording.needed(gang), wording.shown(resource, limit)
    return refusals.Refusal(
        code=Code.NEVER_IN_POOL,
        message=f"It needs {wording.shown(resource, needed[resource])}, and the pool {pool} is limited to {most}.",
        needed=needed,
        total={resource: limit},
        change=f"Ask for {most} at most, choose another pool, or have the limit raised.",
    )


def in_reservation(gang: plans.Gang, resource: str, reserved: float) -> refusals.Refusal:
    """It must not be preempted, and less than it needs is reserved for its pool."""
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
    """With how many workers, fewer than it cannot do without, there is a place for it in `space`; 0: with none."""
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


def _even_empty(gang: plans.Gang, there: Declared) -> str:
    large = next((words for ask in gang.asks if ask.min and (words := _too_large(ask, there))), "")
    if large:
        return large
    cards = wording.cards(gang)
    total = wording.total(there.nodes, cards)
    have = wording.several({name: total.get(name, 0.0) for name in wording.needed(gang)}, cards)
    tasks, slots = sum(gang.smallest), min(there.empty.slots(ask, mixed=gang.mixed) for ask in gang.asks if ask.min)
    if gang.topology is not None and gang.topology.required and slots >= tasks:
        return f"all nodes together have {have}, and no {gang.topology.same} holds it even when it is empty"
    if len(gang.asks) > 1 or slots >= tasks:
        return f"all nodes together have {have}, and even empty they do not hold all its tasks at once"
    return (
        f"all nodes together have {have}, and even empty they hold {f'only {slots}' if slots else 'none'} of its tasks"
    )


def _too_large(ask: plans.Ask, there: Declared) -> str:
    """Where no node has so much of something as one task needs."""
    asked = amounts.numbers(ask.amount)
    for name in ("gpus", "cpus", "memory"):
        most = max((amounts.numbers(node.capacity).get(name, 0.0) for node in there.nodes), default=0.0)
        if asked.get(name, 0.0) > most:
            needs = wording.shown(name, asked[name], wording.Cards(ask.gpu_types))
            than = wording.shown(name, most) if name == "memory" else wording.plain(most)
            return f"one task needs {needs}, and no node has {f'more than {than}' if most else 'any'}"
    return ""


def _beyond_the_pool(gang: plans.Gang, there: Declared) -> refusals.Refusal | None:
    """The limit of its pool, or of one above it, is below what it cannot do without."""
    declared = {pool.name: pool for pool in there.pools}
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


def _beyond_the_reservation(gang: plans.Gang, there: Declared) -> refusals.Refusal | None:
    """What is reserved for its pool is less than it cannot do without, were all nodes ready."""
    if gang.preemptible or not there.nodes:
        return None
    reserved = there.reserved.get(gang.pool)
    if reserved is None:
        return None
    for resource, asked in wording.needed(gang).items():
        if asked > reserved.get(resource, 0.0) * (1 + poolbounds.SLACK):
            return in_reservation(gang, resource, reserved.get(resource, 0.0))
    return None


def _no_such_device(gang: plans.Gang, there: Declared) -> refusals.Refusal:
    wanted = wording.cards(gang)
    with_memory = f" with {quantities.memory_text(wanted.memory_bytes)}" if wanted.memory_bytes else ""
    devices = {(one.type, one.memory_bytes) for node in there.nodes for one in node.devices}
    present = [f"{kind} ({quantities.memory_text(size)})" if with_memory else kind for kind, size in sorted(devices)]
    types = f"{' or '.join(wanted.types)} " if wanted.types else ""
    return refusals.Refusal(
        code=Code.NO_SUCH_DEVICE,
        message=f"It needs {types}GPUs{with_memory}; "
        + (f"the nodes have {wording.listed(list(dict.fromkeys(present)))}." if present else "no node has any."),
        needed=wording.needed(gang),
        total=wording.total(there.nodes),
        change="Choose among these." if present else "Ask for none, or add a node that has some.",
    )


def _somewhere(ask: plans.Ask, there: Declared) -> bool:
    """Whether some node has a device that would do."""
    cards = wording.Cards(ask.gpu_types, ask.gpu_memory_bytes)
    return any(cards.on(node) for node in there.nodes)

"""Upper bounds on the tasks that would fit if all candidates for preemption were gone.

A search gives back and takes the holdings of thousands of gangs. Most often, sums per node show that it would be in
vain. The sums are too high rather than too low: they leave out ports, and how tasks of several roles fit together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from oarlock.scheduler.placement import freespace, placing, shapes
from oarlock.spec import holdings, plans

Freed = Mapping[str, list[int]]
"""By node: devices in thousandths, cores in thousandths, bytes."""


def freed(claims: Iterable[holdings.Holding]) -> dict[str, list[int]]:
    """Return the amounts that these holdings give back, by node."""
    found: dict[str, list[int]] = {}
    for claim in claims:
        amount, sums = claim.amount, found.get(claim.node)
        if sums is None:
            sums = found[claim.node] = [0, 0, 0]
        sums[0] += amount.gpus * shapes.DEVICE_MILLI + amount.gpu_milli
        sums[1] += amount.cpus_milli
        sums[2] += amount.memory_bytes
    return found


def could_fit(gang: plans.Gang, size: plans.Size, more: Freed, space: freespace.FreeSpace) -> bool:
    """Return whether the gang may have a place at `size` once each node has so much more."""
    level = str(gang.topology.same) if gang.topology is not None and gang.topology.required else None
    wanted = [(ask, count) for ask, count in zip(gang.asks, size, strict=True) if count]
    return any(
        all(_slots(shapes.shape(ask, kind), more, space, level) >= count for ask, count in wanted)
        for kind in placing.gpu_types(gang, space)
    )


def _slots(need: shapes.Shape, more: Freed, space: freespace.FreeSpace, level: str | None) -> int:
    """Return how many tasks of a shape fit at most; with `level`, in the domain that takes most of them."""
    index = space.index(need)
    sums = {"": index.total} if level is None else dict(index.table(level, space.levels(level)).totals)
    for name, sum_of in more.items():
        node = space.nodes.get(name)
        domain = None if node is None else "" if level is None else node.domain(level)
        if node is not None and node.state is not None and domain is not None:
            gain = _fit(need, node.state, sum_of) - index.count(node.state)
            if gain > 0:
                sums[domain] = sums.get(domain, 0) + gain
    return max(sums.values(), default=0)


def _fit(need: shapes.Shape, state: shapes.State, more: list[int]) -> int:
    """Return how many tasks fit at most on one node in that state that has so much more."""
    if not state.kind.admits(need.constraints):
        return 0
    count = shapes.MANY
    if need.cpus:
        count = (max(state.cpus, 0) + more[1]) // need.cpus
    if need.memory:
        count = min(count, (max(state.memory, 0) + more[2]) // need.memory)
    if need.gpus or need.milli:
        groups = state.kind.suiting(need)
        if not groups:
            return 0
        devices = sum(state.whole[place] * shapes.DEVICE_MILLI + sum(state.cuts[place]) for place in groups) + more[0]
        count = min(count, devices // (need.gpus * shapes.DEVICE_MILLI or need.milli))
    return count

"""The choice of nodes for the tasks of one shape, and the number of tasks on each.

`sizes` has the number of nodes by the number of tasks that each could take: `{8: 100, 3: 2}` is a hundred empty nodes,
and two nodes that take three more tasks. `node_counts` and `evenly` choose among such numbers alone. `packed` and
`spread` then name the nodes, out of `Candidates`: all nodes, or some of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Protocol

from oarlock.scheduler.placement import freenodes, freespace, indexes

Sizes = Mapping[int, int]


def node_counts(sizes: Sizes, count: int) -> dict[int, int] | None:
    """Return the number of nodes of each size for `count` tasks: as few nodes as possible, and of those the fullest.

    The largest nodes are enough by definition. Then one after the other, the smallest of them first, is exchanged for
    the smallest node with which it is still enough. So empty nodes stay empty for gangs that need whole nodes.
    """
    chosen: dict[int, int] = {}
    over = -count
    for slots in sorted(sizes, reverse=True):
        if over >= 0:
            break
        chosen[slots] = min(sizes[slots], (-over + slots - 1) // slots)
        over += slots * chosen[slots]
    if over < 0:
        return None
    left = {slots: sizes[slots] - chosen.get(slots, 0) for slots in sizes}
    ascending = sorted(sizes)
    for slots in sorted(chosen):
        while over > 0 and chosen[slots]:
            better = next((one for one in ascending if slots - over <= one < slots and left[one] > 0), None)
            if better is None:
                break
            left[better] -= 1
            left[slots] += 1
            chosen[slots] -= 1
            chosen[better] = chosen.get(better, 0) + 1
            over -= slots - better
    return {slots: nodes for slots, nodes in chosen.items() if nodes}


def evenly(sizes: Sizes, count: int) -> tuple[int, int] | None:
    """Return the most tasks per node, as few as possible, and the number of nodes that get one less than that.

    Only nodes that could take the most are in that number. Return None if all nodes together do not take `count` tasks.
    """
    if sum(slots * nodes for slots, nodes in sizes.items()) < count:
        return None
    most, taken = 0, 0
    open_nodes = sum(sizes.values())
    for slots in sorted(sizes):  # nodes of that size fill up; the larger ones go on
        step = slots - most
        if taken + step * open_nodes >= count:
            most += -((taken - count) // open_nodes)
            break
        taken += step * open_nodes
        most = slots
        open_nodes -= sizes[slots]
    reached = sum(min(slots, most) * nodes for slots, nodes in sizes.items())
    return most, reached - count


NodeTasks = list[tuple[freenodes.FreeNode, int]]
"""Nodes with their number of tasks."""


class Candidates(Protocol):
    """The nodes to choose from.

    `sizes` is as above, and `nodes` gives those with exactly so many slots, best first.
    """

    @property
    def sizes(self) -> Sizes: ...

    def nodes(self, slots: int) -> Iterator[freenodes.FreeNode]: ...


class AllNodes:
    """All ready nodes except those named in `without`; those named in `prefer` come first among equals."""

    def __init__(
        self,
        space: freespace.FreeSpace,
        index: indexes.Index,
        without: Collection[str] = (),
        prefer: Sequence[str] = (),
    ) -> None:
        self._space = space
        self._index = index
        self._without = without
        self._prefer = prefer
        self.sizes = index.sizes
        if without:
            self.sizes = dict(index.sizes)
            for name in without:
                node = space.nodes.get(name)
                if node is not None and (taken := node.slots(index)):
                    self.sizes[taken] -= 1

    def nodes(self, slots: int) -> Iterator[freenodes.FreeNode]:
        first = []
        for name in self._prefer:
            node = self._space.nodes.get(name)
            if node is not None and name not in self._without and node.slots(self._index) == slots:
                first.append(name)
                yield node
        for name in self._index.names(slots):
            if name not in self._without and name not in first:
                yield self._space.nodes[name]


class SomeNodes:
    """These nodes only; those named in `prefer` come first among equals."""

    def __init__(self, index: indexes.Index, nodes: Iterable[freenodes.FreeNode], prefer: Collection[str] = ()) -> None:
        self._by_slots: dict[int, list[freenodes.FreeNode]] = {}
        for node in nodes:
            if taken := node.slots(index):
                self._by_slots.setdefault(taken, []).append(node)
        self._prefer = prefer
        self.sizes = {slots: len(nodes) for slots, nodes in self._by_slots.items()}

    def nodes(self, slots: int) -> Iterator[freenodes.FreeNode]:
        return iter(sorted(self._by_slots.get(slots, ()), key=self._rank))

    def _rank(self, node: freenodes.FreeNode) -> tuple[bool, object, str]:
        return node.name not in self._prefer, node.state.key if node.state else (), node.name


def packed(candidates: Candidates, count: int) -> NodeTasks | None:
    """Return the fewest nodes that take `count` tasks, and of those the fullest; None if all together do not."""
    counts = node_counts(candidates.sizes, count)
    if counts is None:
        return None
    chosen: NodeTasks = []
    for each in sorted(counts):  # the unused slots stay together, on the largest node
        for node in islice(candidates.nodes(each), counts[each]):
            chosen.append((node, min(each, count)))
            count -= chosen[-1][1]
    return chosen


def spread(candidates: Candidates, count: int) -> NodeTasks | None:
    """Return as many nodes as possible, with tasks spread evenly, the emptiest first.

    Return None if all together do not take `count`.
    """
    found = evenly(candidates.sizes, count)
    if found is None:
        return None
    most, less = found
    full = sum(nodes for each, nodes in candidates.sizes.items() if each >= most) - less
    chosen: NodeTasks = []
    for each in sorted(candidates.sizes, reverse=True):
        for node in candidates.nodes(each):
            tasks = min(each, most)
            if each >= most:
                tasks -= full <= 0
                full -= 1
            if tasks == 0:
                return chosen
            chosen.append((node, tasks))
    return chosen

"""The nodes for the tasks of one shape: which nodes, and how many tasks on each.

`sizes` counts the nodes by the number of tasks that each could take: `{8: 100, 3: 2}` is a hundred empty nodes, and two
that take three more. `node_counts` and `evenly` choose among such numbers alone; `packed` and `spread` then name the
nodes of a `Field`: all nodes, or some of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Protocol

from oarlock.scheduler.placement import freenodes, freespace, indexes

Sizes = Mapping[int, int]


def fewest(sizes: Sizes, count: int) -> int | None:
    """The least number of nodes that take `count` tasks; None where all together do not."""
    nodes = 0
    for slots in sorted(sizes, reverse=True):
        if count <= slots * sizes[slots]:
            return nodes - (-count // slots)
        count -= slots * sizes[slots]
        nodes += sizes[slots]
    return nodes if count <= 0 else None


def node_counts(sizes: Sizes, count: int) -> dict[int, int] | None:
    """How many nodes of each size to use for `count` tasks: as few as possible, and of those the fullest.

    The largest are enough by definition. Then one after the other, the smallest of them first, is exchanged for the
    smallest node with which it is still enough: whole nodes stay whole for those who need them.
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
    """Spread evenly: the most tasks that any node gets, as few as possible, and how many of those that could take so
    many get one less. None where all together do not take `count`.
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


Spots = list[tuple[freenodes.FreeNode, int]]
"""Nodes, and how many tasks each gets."""


class Field(Protocol):
    """`sizes` as above; `nodes` gives those with just so many slots, the best first."""

    @property
    def sizes(self) -> Sizes: ...

    def nodes(self, slots: int) -> Iterator[freenodes.FreeNode]: ...


class Everywhere:
    """All ready nodes but those named in `without`."""

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


class Among:
    """These nodes only; those named in `prefer` first among those with as many slots."""

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


def packed(field: Field, count: int) -> Spots | None:
    """The fewest nodes that take `count` tasks, and of those the fullest; None where all together do not."""
    chosen = node_counts(field.sizes, count)
    if chosen is None:
        return None
    spots: Spots = []
    for each in sorted(chosen):  # what is left over stays in one piece, on the largest
        for node in islice(field.nodes(each), chosen[each]):
            spots.append((node, min(each, count)))
            count -= spots[-1][1]
    return spots


def spread(field: Field, count: int) -> Spots | None:
    """As many nodes as there are, evenly, the emptiest first; None where all together do not take `count`."""
    found = evenly(field.sizes, count)
    if found is None:
        return None
    most, less = found
    full = sum(nodes for each, nodes in field.sizes.items() if each >= most) - less
    spots: Spots = []
    for each in sorted(field.sizes, reverse=True):
        for node in field.nodes(each):
            tasks = min(each, most)
            if each >= most:
                tasks -= full <= 0
                full -= 1
            if tasks == 0:
                return spots
            spots.append((node, tasks))
    return spots

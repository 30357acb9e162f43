"""Where the tasks of one shape may go: all nodes, or some; how many on each, and which come first."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice
from typing import Protocol

from oarlock.scheduler import packing, slots
from oarlock.scheduler import room as rooms

Spots = list[tuple[rooms.NodeRoom, int]]
"""Nodes, and how many tasks each gets."""


class Field(Protocol):
    """`sizes` as in `packing`; `nodes` gives those with just so many slots, the best first."""

    @property
    def sizes(self) -> packing.Sizes: ...

    def nodes(self, slots: int) -> Iterator[rooms.NodeRoom]: ...


class Everywhere:
    """All ready nodes but those named in `without`."""

    def __init__(
        self, room: rooms.Room, index: slots.Index, without: Collection[str] = (), prefer: Sequence[str] = ()
    ) -> None:
        self._room = room
        self._index = index
        self._without = without
        self._prefer = prefer
        self.sizes = index.sizes
        if without:
            self.sizes = dict(index.sizes)
            for name in without:
                node = room.nodes.get(name)
                if node is not None and (taken := node.slots(index)):
                    self.sizes[taken] -= 1

    def nodes(self, slots: int) -> Iterator[rooms.NodeRoom]:
        first = []
        for name in self._prefer:
            node = self._room.nodes.get(name)
            if node is not None and name not in self._without and node.slots(self._index) == slots:
                first.append(name)
                yield node
        for name in self._index.names(slots):
            if name not in self._without and name not in first:
                yield self._room.nodes[name]


class Among:
    """These nodes only; those named in `prefer` first among those with as many slots."""

    def __init__(self, index: slots.Index, nodes: Iterable[rooms.NodeRoom], prefer: Collection[str] = ()) -> None:
        self._by_slots: dict[int, list[rooms.NodeRoom]] = {}
        for node in nodes:
            if taken := node.slots(index):
                self._by_slots.setdefault(taken, []).append(node)
        self._prefer = prefer
        self.sizes = {slots: len(nodes) for slots, nodes in self._by_slots.items()}

    def nodes(self, slots: int) -> Iterator[rooms.NodeRoom]:
        return iter(sorted(self._by_slots.get(slots, ()), key=self._rank))

    def _rank(self, node: rooms.NodeRoom) -> tuple[bool, object, str]:
        return node.name not in self._prefer, node.state.key if node.state else (), node.name


def packed(field: Field, count: int) -> Spots | None:
    """The fewest nodes that take `count` tasks, and of those the fullest; None where all together do not."""
    chosen = packing.packed(field.sizes, count)
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
    found = packing.level(field.sizes, count)
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

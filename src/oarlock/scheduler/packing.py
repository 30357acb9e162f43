"""Which nodes to use, as arithmetic: only how many tasks each could take matters here, not which node it is.

`sizes` says of how many nodes each number of tasks would go onto one: `{8: 100, 3: 2}` is a hundred empty nodes, and
two that take three more.
"""

from __future__ import annotations

from collections.abc import Mapping

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


def packed(sizes: Sizes, count: int) -> dict[int, int] | None:
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


def level(sizes: Sizes, count: int) -> tuple[int, int] | None:
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

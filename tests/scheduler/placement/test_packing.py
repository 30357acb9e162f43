"""The number of nodes of each size for the tasks of a gang."""

from __future__ import annotations

import itertools

import pytest

from oarlock.scheduler.placement import packing

SIZES = [{8: 3}, {8: 1, 3: 2}, {4: 2, 2: 2, 1: 3}, {5: 1, 4: 1, 2: 1}, {1: 4}, {}]


def possible(sizes: dict[int, int], count: int) -> list[tuple[int, ...]]:
    """Return every choice of nodes that takes `count` tasks."""
    nodes = [slots for slots, number in sizes.items() for _ in range(number)]
    chosen = (one for number in range(len(nodes) + 1) for one in itertools.combinations(sorted(nodes), number))
    return [one for one in chosen if sum(one) >= count]


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("count", [1, 2, 3, 5, 7, 8, 9, 12, 24])
def test_the_fewest_nodes_and_of_those_the_fullest(sizes: dict[int, int], count: int) -> None:
    found = packing.node_counts(sizes, count)
    choices = possible(sizes, count)
    if not choices:
        assert found is None
        return
    assert found is not None
    least = min(map(len, choices))
    chosen = sorted(slots for slots, nodes in found.items() for _ in range(nodes))
    assert len(chosen) == least
    assert sum(chosen) == min(sum(one) for one in choices if len(one) == least)


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("count", [1, 2, 3, 5, 7, 8, 9, 12, 24])
def test_tasks_are_spread_evenly_over_as_many_nodes_as_possible(sizes: dict[int, int], count: int) -> None:
    found = packing.evenly(sizes, count)
    nodes = sorted(slots for slots, number in sizes.items() for _ in range(number))
    if sum(nodes) < count:
        assert found is None
        return
    assert found is not None
    most, less = found
    assert most == min(one for one in range(1, 9) if sum(min(one, slots) for slots in nodes) >= count)
    assert sum(min(most, slots) for slots in nodes) - less == count

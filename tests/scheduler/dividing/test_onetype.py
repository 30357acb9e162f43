"""Water-filling, against every possible division where values are concave, and by its promises where they are not."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from oarlock.scheduler.dividing import onetype


def bidder(name, worth, *, rungs=(1, 2, 3, 4), size=1, grow=True, shrink=True) -> onetype.Bidder:
    return onetype.Bidder(name, rungs, size, worth, grow=grow, shrink=shrink)


def root(weight: float):
    return lambda units: weight * math.sqrt(units)


def sizes(bidders: list[onetype.Bidder]) -> dict[str, int]:
    return {one.name: one.size for one in bidders}


@pytest.mark.parametrize("seed", range(40))
def test_no_division_of_concave_values_is_better(seed: int) -> None:
    """From wherever it starts. Units are given one by one, so the greedy way is the best way."""
    draw = random.Random(seed)
    weights = [draw.uniform(0.5, 4) for _ in range(4)]
    total = draw.randint(4, 14)
    start = [1, 1, 1, 1]
    for _ in range(draw.randint(0, total - 4)):
        grown = draw.randrange(4)
        start[grown] = min(4, start[grown] + 1)
    crowd = [bidder(f"j{i}", root(weight), size=start[i]) for i, weight in enumerate(weights)]
    onetype.divide(crowd, total)
    found = sum(one.value(one.size) for one in crowd)
    best = max(
        sum(weight * math.sqrt(units) for weight, units in zip(weights, division, strict=True))
        for division in itertools.product((1, 2, 3, 4), repeat=4)
        if sum(division) <= total
    )
    assert found == pytest.approx(best, rel=0.02)  # a step may be of several units: the last ones can be misplaced
    assert sum(one.size for one in crowd) <= total


def test_free_units_go_to_the_bidder_that_gains_most() -> None:
    crowd = [bidder("large", root(3)), bidder("small", root(1))]
    onetype.divide(crowd, 5)
    assert sizes(crowd) == {"large": 4, "small": 1}


def test_a_growth_is_paid_by_bidders_that_lose_less() -> None:
    crowd = [bidder("has", root(1), size=4), bidder("wants", root(5), size=1)]
    onetype.divide(crowd, 5)
    assert sizes(crowd) == {"has": 1, "wants": 4}


def test_nothing_moves_where_a_change_costs_more_than_it_brings() -> None:
    """Each is worth least where it is changed: the present division is not the best, and stays."""

    def settled(weight: float, size: int):
        return lambda units: weight * math.sqrt(units) * (1.0 if units == size else 0.5)

    crowd = [bidder("a", settled(1, 3), size=3), bidder("b", settled(1.2, 2), size=2)]
    onetype.divide(crowd, 5)
    assert sizes(crowd) == {"a": 3, "b": 2}


def test_two_rungs_that_bring_nothing_do_not_hide_a_third_that_does() -> None:
    steps = {1: 1.0, 2: 0.8, 3: 0.9, 4: 3.0}
    crowd = [bidder("a", steps.__getitem__)]
    onetype.divide(crowd, 4)
    assert sizes(crowd) == {"a": 4}
    crowd = [bidder("a", steps.__getitem__)]
    onetype.divide(crowd, 3)
    assert sizes(crowd) == {"a": 1}


def test_bidders_that_may_shrink_and_lose_least_give_the_excess_back() -> None:
    crowd = [
        bidder("dear", root(9), size=4),
        bidder("cheap", root(1), size=4),
        bidder("cheapest but fixed", root(0.1), size=4, shrink=False),
    ]
    onetype.divide(crowd, 9)
    assert sizes(crowd) == {"dear": 4, "cheap": 1, "cheapest but fixed": 4}


def test_a_bidder_that_may_not_grow_does_not() -> None:
    crowd = [bidder("a", root(9), grow=False), bidder("b", root(1))]
    onetype.divide(crowd, 8)
    assert sizes(crowd) == {"a": 1, "b": 4}


def test_the_order_of_bidders_changes_nothing_and_no_more_than_the_total_is_given() -> None:
    draw = random.Random(9)
    for _ in range(200):
        worth = [sorted(draw.uniform(0, 5) for _ in range(4)) for _ in range(5)]
        draw.shuffle(worth[0])  # one is better off with less
        start = [draw.randint(1, 4) for _ in range(5)]
        total = draw.randint(5, 20)

        def crowd(order, worth=worth, start=start) -> list[onetype.Bidder]:
            return [bidder(f"j{i}", lambda units, i=i: worth[i][units - 1], size=start[i]) for i in order]

        once, again = crowd(range(5)), crowd(reversed(range(5)))
        onetype.divide(once, total)
        onetype.divide(again, total)
        assert sizes(once) == sizes(again)
        assert sum(one.size for one in once) <= total


def test_no_bidders() -> None:
    onetype.divide([], 8)
    alone = [bidder("a", root(1), rungs=(2,), size=2)]
    onetype.divide(alone, 0)
    assert sizes(alone) == {"a": 2}

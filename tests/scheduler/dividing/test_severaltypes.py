"""Devices of several types among gangs: against every possible division where there are few, by its promises else."""

from __future__ import annotations

import itertools
import random

import pytest

from oarlock.scheduler.dividing import severaltypes

Option = severaltypes.Option


def bidder(name: str, **types: dict[int, float]) -> severaltypes.Bidder:
    return severaltypes.Bidder(
        name, [Option(of, units, value) for of, values in types.items() for units, value in values.items()]
    )


def choices(bidders: list[severaltypes.Bidder]) -> dict[str, tuple[str, int] | None]:
    return {one.name: one.choice and (one.choice.gpu_type, one.choice.units) for one in bidders}


def within(bidders: list[severaltypes.Bidder], capacity: dict[str, int]) -> bool:
    held = dict.fromkeys(capacity, 0)
    for one in bidders:
        if one.choice is not None:
            held[one.choice.gpu_type] += one.choice.units
    return all(held[name] <= capacity[name] for name in capacity)


def test_a_gang_that_gains_little_leaves_the_fast_type_to_one_that_gains_much() -> None:
    crowd = [
        bidder("gains", slow={1: 1.0, 4: 2.0}, fast={4: 8.0}),
        bidder("little", slow={1: 1.0, 4: 2.0}, fast={4: 2.5}),
    ]
    severaltypes.allot(crowd, {"slow": 4, "fast": 4})
    assert choices(crowd) == {"gains": ("fast", 4), "little": ("slow", 4)}


def test_two_gangs_change_places_at_once() -> None:
    """Neither could move first: all devices of both types are wanted."""
    crowd = [bidder("a", slow={2: 1.0}, fast={2: 3.0}), bidder("b", slow={2: 1.0}, fast={2: 2.0})]
    for place, of in enumerate(("slow", "fast")):
        crowd[place].choice = next(one for one in crowd[place].options if one.gpu_type == of)
    severaltypes.allot(crowd, {"slow": 2, "fast": 2})
    assert choices(crowd) == {"a": ("fast", 2), "b": ("slow", 2)}


def test_a_scarce_type_has_a_price_and_a_plentiful_one_has_none() -> None:
    crowd = [bidder(f"j{place}", slow={1: 1.0}, fast={1: 3.0}) for place in range(4)]
    prices = severaltypes.allot(crowd, {"slow": 8, "fast": 2})
    assert sorted(choices(crowd).values(), key=str) == [("fast", 1)] * 2 + [("slow", 1)] * 2
    assert prices["slow"] == 0
    assert prices["fast"] == pytest.approx(2.0, rel=0.01), "the gain of a fast one over a slow one"


def test_where_not_all_find_room_the_least_is_lost() -> None:
    crowd = [bidder("large", fast={2: 5.0}), bidder("small", fast={2: 1.0})]
    severaltypes.allot(crowd, {"fast": 3})
    assert choices(crowd) == {"large": ("fast", 2), "small": None}


def drawn(seed: int) -> list[severaltypes.Bidder]:
    """Two to five gangs, each with numbers up to all there is: the hardest case, for little fits beside little."""
    draw = random.Random(seed)
    crowd = []
    for place in range(draw.randint(2, 5)):
        weight, faster, bent = draw.uniform(0.3, 1), draw.uniform(1, 6), draw.uniform(0.3, 0.9)
        crowd.append(
            bidder(
                f"j{place}",
                t4={units: weight * units**bent for units in (1, 2, 4, 8)},
                a100={units: weight * (faster * units) ** bent for units in (1, 2, 4)},
            )
        )
    return crowd


def test_of_few_gangs_with_coarse_numbers_few_divisions_are_better() -> None:
    capacity, reached = {"t4": 8, "a100": 4}, []
    for seed in range(30):
        crowd = drawn(seed)
        prices = severaltypes.allot(crowd, capacity)
        found, best = severaltypes.total(crowd), 0.0
        bound = sum(one.surplus for one in crowd) + sum(prices[name] * capacity[name] for name in capacity)
        assert within(crowd, capacity)
        for division in itertools.product(*[(None, *one.options) for one in crowd]):
            for one, option in zip(crowd, division, strict=True):
                one.choice = option
            if within(crowd, capacity):
                best = max(best, severaltypes.total(crowd))
        assert best <= bound + 1e-9, "options are left out because of this bound"
        reached.append(found / best)
    assert min(reached) > 0.85
    assert sum(reached) / len(reached) > 0.98


@pytest.mark.parametrize("seed", range(5))
def test_the_order_in_which_they_are_named_changes_nothing(seed: int) -> None:
    draw = random.Random(seed)
    values = {f"j{place}": [draw.random() for _ in range(6)] for place in range(12)}

    def crowd(names: list[str]) -> list[severaltypes.Bidder]:
        return [
            bidder(name, t4=dict(zip((1, 2, 4), values[name], strict=False)), a100=dict(zip((1, 2), values[name][3:])))  # noqa: B905
            for name in names
        ]

    first, second = crowd(sorted(values)), crowd(sorted(values, reverse=True))
    for one in (first, second):
        severaltypes.allot(one, {"t4": 10, "a100": 6})
    assert choices(first) == choices(second)

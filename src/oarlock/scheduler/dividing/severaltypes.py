"""The division of GPUs of several types among gangs. Each gang gets devices of one type; the total value is the aim.

Each type has a price per device. A gang takes the option that is worth most to it after the price. Where gangs ask for
more devices of a type than there are, its price rises; where they ask for fewer, it falls (a Lagrangian relaxation of
the choice). Prices alone seldom give whole numbers that fit. So steps and exchanges that gain settle the rest: a gang
takes another option that fits, or gets it from gangs that lose less.

The result is within a few per cent of the best division, most often within one, and takes milliseconds. The prices tell
the value of one more device of each type.
"""

from __future__ import annotations

import bisect
import heapq
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

ROUNDS = 3
"""Number of times that each type's price is set anew, given the prices of the other types."""

STEPS = 65_536
"""Steps of a price: it is a multiple of this part of the highest price that any gang would pay."""

PASSES = 8
LEAST_GAIN = 1e-9
PAIRED = 24
TRIED = 32
"""Gangs for which one pass looks for an exchange: those that would gain most."""


class Option(NamedTuple):
    """`units` devices of `gpu_type`, and their value to the gang."""

    gpu_type: str
    units: int
    value: float


def _rank(option: Option) -> tuple[float, int, str]:
    return -option.value, option.units, option.gpu_type


class Bidder:
    """A gang with its options, none of negative value. `choice` is None where it gets nothing."""

    def __init__(self, name: str, options: Sequence[Option], *, choice: Option | None = None) -> None:
        self.name = name
        self.options = options
        self.choice = choice
        self.dearest_first = sorted(options, key=_rank)
        of_type: dict[str, list[Option]] = {}
        for one in self.dearest_first:
            of_type.setdefault(one.gpu_type, []).append(one)
        self._corners = {gpu_type: _corners(ones) for gpu_type, ones in of_type.items()}

    def best_of(self, gpu_type: str, price: float) -> tuple[float, Option] | None:
        """Return the option of that type with the highest value after the price, and that value.

        Ties go to the smaller option.
        """
        if gpu_type not in self._corners:
            return None
        below, corners = self._corners[gpu_type]
        best = corners[bisect.bisect_left(below, -price) - 1]
        return best.value - price * best.units, best

    def demand(self, gpu_type: str, elsewhere: float) -> list[tuple[float, int]]:
        """Return the prices below which the gang asks for more devices of that type, each with the number of them.

        `elsewhere` is the most value that the gang can get from another type, after its price.
        """
        if gpu_type not in self._corners:
            return []
        below, corners = self._corners[gpu_type]
        highest = max((one.value - max(0.0, elsewhere)) / one.units for one in corners)
        if highest < 0:
            return []
        first = bisect.bisect_left(below, -highest)
        more = [
            (-below[place], corners[place].units - corners[place - 1].units) for place in range(first, len(corners))
        ]
        return [(highest, corners[first - 1].units), *more]


def _corners(options: Iterable[Option]) -> tuple[list[float], list[Option]]:
    """Return the options of one type that are best at some price, smallest first, and the negative prices below which
    they are: the corners of the concave hull of their values.
    """
    smallest, *larger = sorted(options, key=lambda it: it.units)
    below, corners = [-math.inf], [smallest]
    for one in larger:
        if one.value > corners[-1].value:
            while (price := _price_between(corners[-1], one)) >= -below[-1]:
                below.pop()
                corners.pop()
            below.append(-price)
            corners.append(one)
    return below, corners


def _price_between(smaller: Option, larger: Option) -> float:
    """Return the price at which both are worth the same."""
    return (larger.value - smaller.value) / (larger.units - smaller.units)


def allot(bidders: Iterable[Bidder], capacity: Mapping[str, int]) -> dict[str, float]:
    """Set each bidder's choice, all of them together within `capacity`. Return the price per unit of each type."""
    gangs = sorted((one for one in bidders if one.options), key=lambda one: one.name)
    present = [one.choice for one in gangs]
    prices = _prices(gangs, capacity)
    starts = [[one.choice for one in gangs], *([present] if any(present) else [])]
    found = [_improve(gangs, start, capacity, prices) for start in starts]
    best = max(range(len(found)), key=lambda place: (round(found[place][0], 9), -place))
    for one, choice in zip(gangs, found[best][1], strict=True):
        one.choice = choice
    return prices


def _improve(
    gangs: Sequence[Bidder],
    start: Sequence[Option | None],
    capacity: Mapping[str, int],
    prices: Mapping[str, float],
) -> tuple[float, list[Option | None]]:
    """Return the value and the choices that steps and exchanges reach from the choices in `start`."""
    free = dict(capacity)
    for one, choice in zip(gangs, start, strict=True):
        one.choice = choice
        if choice is not None:
            free[choice.gpu_type] -= choice.units
    _return_excess(gangs, free)
    for _ in range(PASSES):
        if not (_give_free(gangs, free) + _exchange(gangs, free, prices) + _choose_pairs_anew(gangs, free)):
            break
    return total(gangs), [one.choice for one in gangs]


def _prices(gangs: Sequence[Bidder], capacity: Mapping[str, int]) -> dict[str, float]:
    """Return prices at which demand roughly meets capacity. Leave each bidder with its choice at these prices."""
    prices = dict.fromkeys(capacity, 0.0)
    dearest = max((option.value / option.units for one in gangs for option in one.options), default=0.0)
    best = {name: [one.best_of(name, 0.0) for one in gangs] for name in prices}
    for _ in range(ROUNDS):
        for name, units in capacity.items():
            elsewhere = [
                max((found[0] for other in prices if other != name and (found := best[other][place])), default=0.0)
                for place in range(len(gangs))
            ]
            step, wanted, price = dearest / STEPS or 1.0, 0, 0.0
            demands = (one.demand(name, other) for one, other in zip(gangs, elsewhere, strict=True))
            for below, more in sorted(itertools.chain.from_iterable(demands), reverse=True):
                wanted += more
                if wanted > units:
                    price = min(dearest, (below // step + 1) * step)
                    break
            prices[name] = price
            best[name] = [one.best_of(name, price) for one in gangs]
    for place, one in enumerate(gangs):
        found = max((worth for name in prices if (worth := best[name][place])), key=lambda it: it[0], default=None)
        one.choice = found[1] if found is not None and found[0] >= 0 else None
    return prices


def _fits(option: Option, had: Option | None, free: Mapping[str, int]) -> bool:
    back = had.units if had is not None and had.gpu_type == option.gpu_type else 0
    return option.units <= free[option.gpu_type] + back


def _take(one: Bidder, option: Option | None, free: dict[str, int]) -> None:
    if one.choice is not None:
        free[one.choice.gpu_type] += one.choice.units
    if option is not None:
        free[option.gpu_type] -= option.units
    one.choice = option


def _return_excess(gangs: Sequence[Bidder], free: dict[str, int]) -> None:
    """Where more was chosen than there is, take it from the gangs that lose least by it."""
    for name in sorted(free):
        while free[name] < 0:
            cheapest: tuple[float, str, Bidder, Option | None] | None = None
            for one in gangs:
                had = one.choice
                if had is None or had.gpu_type != name:
                    continue
                for option in (*one.options, None):
                    same = option is not None and option.gpu_type == name
                    if option is not None and (option.units >= had.units if same else not _fits(option, had, free)):
                        continue
                    gives = had.units - (option.units if option is not None and same else 0)
                    loss = (had.value - (option.value if option is not None else 0.0)) / min(gives, -free[name])
                    if cheapest is None or (loss, one.name) < cheapest[:2]:
                        cheapest = loss, one.name, one, option
            if cheapest is None:
                return
            _take(cheapest[2], cheapest[3], free)


def _value(option: Option | None) -> float:
    return option.value if option is not None else 0.0


def _give_free(gangs: Sequence[Bidder], free: dict[str, int]) -> int:
    """Give free devices to the gang that gains most per unit, one step after the other. Return the number of steps."""
    steps = 0
    while True:
        best: tuple[float, Bidder, Option] | None = None
        for one in gangs:
            here = _value(one.choice)
            for option in one.dearest_first:
                gain = option.value - here
                if gain <= LEAST_GAIN:
                    break
                if option.units <= free[option.gpu_type] or _fits(option, one.choice, free):
                    each = gain / option.units
                    if best is None or each > best[0]:
                        best = each, one, option
        if best is None:
            return steps
        _take(best[1], best[2], free)
        steps += 1


def _exchange(gangs: Sequence[Bidder], free: dict[str, int], prices: Mapping[str, float]) -> int:
    """Let a gang have more where other gangs lose less by it than it gains, largest gain after prices first.

    Return the number of exchanges.
    """
    wishes = []
    for one in gangs:
        here = _value(one.choice)
        paid = here - (prices[one.choice.gpu_type] * one.choice.units if one.choice is not None else 0.0)
        wishes += [
            (paid - option.value + prices[option.gpu_type] * option.units, one.name, option, one)
            for option in one.options
            if option.value > here
        ]
    done = 0
    for _, _, option, one in heapq.nsmallest(TRIED, wishes):
        gain = option.value - _value(one.choice)
        if gain <= LEAST_GAIN:
            continue
        before = [(one, one.choice)]
        _take(one, option, free)
        while free[option.gpu_type] < 0 and gain > LEAST_GAIN:
            payer = _cheapest_donor(gangs, [changed for changed, _ in before], option.gpu_type, free, gain)
            if payer is None:
                break
            gain -= _value(payer[0].choice) - _value(payer[1])
            before.append((payer[0], payer[0].choice))
            _take(payer[0], payer[1], free)
        if free[option.gpu_type] < 0 or gain <= LEAST_GAIN:
            for changed, had in reversed(before):
                _take(changed, had, free)
        else:
            done += 1
    return done


def _choose_pairs_anew(gangs: Sequence[Bidder], free: dict[str, int]) -> int:
    """Choose anew for two gangs at a time, for every pair; for none where there are many gangs.

    Return the number of pairs that gained.
    """
    if len(gangs) > PAIRED:
        return 0
    done = 0
    for place, one in enumerate(gangs):
        for other in gangs[place + 1 :]:
            had = one.choice, other.choice
            best, chosen = _value(had[0]) + _value(had[1]) + LEAST_GAIN, None
            if one.dearest_first[0].value + other.dearest_first[0].value <= best:
                continue
            _take(one, None, free)
            _take(other, None, free)
            most = _value(_dearest(other, free))
            for first in one.dearest_first:
                if first.value + most <= best:
                    break
                if first.units > free[first.gpu_type]:
                    continue
                free[first.gpu_type] -= first.units
                second = _dearest(other, free)
                free[first.gpu_type] += first.units
                if first.value + _value(second) > best:
                    best, chosen = first.value + _value(second), (first, second)
            done += chosen is not None
            _take(one, (chosen or had)[0], free)
            _take(other, (chosen or had)[1], free)
    return done


def _dearest(one: Bidder, free: Mapping[str, int]) -> Option | None:
    """Return the option of most value for which there are devices."""
    for option in one.dearest_first:
        if option.units <= free[option.gpu_type]:
            return option
    return None


def _cheapest_donor(
    gangs: Sequence[Bidder], changed: Sequence[Bidder], gpu_type: str, free: Mapping[str, int], below: float
) -> tuple[Bidder, Option | None] | None:
    """Return the gang that gives up devices of that type at the least loss per missing unit, and the option it keeps.

    The loss is less than `below` in all; None if there is no such gang.
    """
    best: tuple[float, Bidder, Option | None] | None = None
    lacks, below = -free[gpu_type], below - LEAST_GAIN
    for one in gangs:
        had = one.choice
        if had is None or had.gpu_type != gpu_type or one in changed:
            continue
        for option in one.dearest_first:
            same = option.gpu_type == gpu_type
            if option.units >= had.units if same else option.units > free[option.gpu_type]:
                continue
            loss = had.value - option.value
            if loss >= below or (best is not None and loss >= best[0] * lacks):
                break
            each = loss / min(had.units - option.units if same else had.units, lacks)
            if best is None or each < best[0]:
                best = each, one, option
    return None if best is None else (best[1], best[2])


def total(bidders: Iterable[Bidder]) -> float:
    """Return the value of all choices together."""
    return math.fsum(_value(one.choice) for one in bidders)

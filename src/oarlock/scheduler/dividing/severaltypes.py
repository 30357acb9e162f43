"""The division of GPUs of several types among gangs. Each gang gets devices of one type; the total value is the aim.

Each type has a price per device. A gang takes the option that is worth most to it after the price. Where gangs ask for
more devices of a type than there are, its price rises; where they ask for fewer, it falls (a Lagrangian relaxation of
the choice). Prices alone seldom give whole numbers that fit. So steps and exchanges that gain settle the rest: a gang
takes another option that fits, or gets it from gangs that lose less.

The result is within a few per cent of the best division, most often within one, and takes milliseconds. The prices tell
the value of one more device of each type. They also bound the value of every division (`_reach`), so an option that
would lose too much for the other gangs to make up for it is not tried.
"""

from __future__ import annotations

import bisect
import heapq
import itertools
import math
import operator
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


_smallest_first = operator.itemgetter(1, 0)
_value_of = operator.itemgetter(2)


class Bidder:
    """A gang with its options, none of negative value. `choice` is None where it gets nothing.

    `surplus` is the value of its best option after the price, 0 if it is better off without any.
    """

    def __init__(self, name: str, options: Sequence[Option], *, choice: Option | None = None) -> None:
        self.name = name
        self.options = options
        self.choice = choice
        self.surplus = 0.0
        smallest_first = sorted(options, key=_smallest_first)
        self.dearest_first = sorted(smallest_first, key=_value_of, reverse=True)
        of_type: dict[str, list[Option]] = {}
        for one in smallest_first:
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


def _corners(smallest_first: Iterable[Option]) -> tuple[list[float], list[Option]]:
    """Return the options of one type that are best at some price, smallest first, and the negative prices below which
    they are: the corners of the concave hull of their values.
    """
    smallest, *larger = smallest_first
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
    reach = _reach(gangs, capacity, prices)
    priced = [one.choice for one in gangs]
    starts = [priced, present] if any(present) and present != priced else [priced]
    found = [_improve(gangs, start, capacity, prices, reach) for start in starts]
    best = max(range(len(found)), key=lambda place: (round(found[place][0], 9), -place))
    for one, choice in zip(gangs, found[best][1], strict=True):
        one.choice = choice
    return prices


def _improve(
    gangs: Sequence[Bidder],
    start: Sequence[Option | None],
    capacity: Mapping[str, int],
    prices: Mapping[str, float],
    reach: float,
) -> tuple[float, list[Option | None]]:
    """Return the value and the choices that steps and exchanges reach from the choices in `start`."""
    free = dict(capacity)
    for one, choice in zip(gangs, start, strict=True):
        one.choice = choice
        if choice is not None:
            free[choice.gpu_type] -= choice.units
    _return_excess(gangs, free)
    paired = 1
    for _ in range(PASSES):
        given, exchanged = _give_free(gangs, free), _exchange(gangs, free, prices, reach)
        if given or exchanged or paired:  # else the pairs are those that gained nothing last time
            paired = _choose_pairs_anew(gangs, free, prices, reach)
        if not (exchanged or paired):  # and no more can be given
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
        one.surplus, one.choice = found if found is not None and found[0] >= 0 else (0.0, None)
    return prices


def _reach(gangs: Iterable[Bidder], capacity: Mapping[str, int], prices: Mapping[str, float]) -> float:
    """Return a value that no division exceeds: what the prices leave to each gang, and the price of all devices."""
    return math.fsum(one.surplus for one in gangs) + math.fsum(prices[name] * capacity[name] for name in capacity)


def _forgone(one: Bidder, option: Option, prices: Mapping[str, float]) -> float:
    """Return how far below `_reach` any division stays in which the gang has that option."""
    return one.surplus - option.value + prices[option.gpu_type] * option.units


def _fits(option: Option, had: Option | None, free: Mapping[str, int]) -> bool:
    back = had.units if had is not None and had.gpu_type == option.gpu_type else 0
    return option.units <= free[option.gpu_type] + back


def _take(one: Bidder, option: Option | None, free: dict[str, int]) -> None:
    _put_back(one.choice, free)
    _take_out(option, free)
    one.choice = option


def _take_out(option: Option | None, free: dict[str, int]) -> None:
    if option is not None:
        free[option.gpu_type] -= option.units


def _put_back(option: Option | None, free: dict[str, int]) -> None:
    if option is not None:
        free[option.gpu_type] += option.units


def _return_excess(gangs: Sequence[Bidder], free: dict[str, int]) -> None:
    """Take back what was chosen beyond what there is, from the gangs that lose least by it."""
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
                gpu_type, units, value = option
                gain = value - here
                if gain <= LEAST_GAIN:
                    break
                if units <= free[gpu_type] or _fits(option, one.choice, free):
                    each = gain / units
                    if best is None or each > best[0]:
                        best = each, one, option
        if best is None:
            return steps
        _take(best[1], best[2], free)
        steps += 1


def _exchange(gangs: Sequence[Bidder], free: dict[str, int], prices: Mapping[str, float], reach: float) -> int:
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
    done, possible = 0, reach - total(gangs)
    for _, _, option, one in heapq.nsmallest(TRIED, wishes):
        gain = option.value - _value(one.choice)
        if gain <= LEAST_GAIN or _forgone(one, option, prices) >= possible:
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
            possible -= gain
    return done


def _choose_pairs_anew(gangs: Sequence[Bidder], free: dict[str, int], prices: Mapping[str, float], reach: float) -> int:
    """Choose anew for two gangs at a time, for every pair that could gain; for none where there are many gangs.

    Return the number of pairs that gained.
    """
    if len(gangs) > PAIRED:
        return 0
    done, possible = 0, reach - total(gangs)
    tried = [(one, [it for it in one.dearest_first if _forgone(one, it, prices) < possible]) for one in gangs]
    able = [(one, options) for one, options in tried if options]
    for place, (one, firsts) in enumerate(able):
        for other, seconds in able[place + 1 :]:
            had, has = one.choice, other.choice
            best, chosen = _value(had) + _value(has) + LEAST_GAIN, None
            if firsts[0].value + seconds[0].value <= best:
                continue
            _put_back(had, free)
            _put_back(has, free)
            most = _value(_dearest(seconds, free))
            for first in firsts:
                gpu_type, units, value = first
                if value + most <= best:
                    break
                if units > free[gpu_type]:
                    continue
                free[gpu_type] -= units
                second = _dearest(seconds, free)
                free[gpu_type] += units
                if value + _value(second) > best:
                    best, chosen = value + _value(second), (first, second)
            if chosen is not None:
                one.choice, other.choice = chosen
                done += 1
            _take_out(one.choice, free)
            _take_out(other.choice, free)
    return done


def _dearest(dearest_first: Iterable[Option], free: Mapping[str, int]) -> Option | None:
    """Return the option of most value for which there are devices."""
    for option in dearest_first:
        gpu_type, units, _ = option
        if units <= free[gpu_type]:
            return option
    return None


def _cheapest_donor(
    gangs: Sequence[Bidder], changed: Sequence[Bidder], gpu_type: str, free: Mapping[str, int], below: float
) -> tuple[Bidder, Option | None] | None:
    """Return the gang that gives up devices of that type at the least loss per missing unit, and the option it keeps.

    The loss is less than `below` in all; None if there is no such gang.
    """
    found: tuple[Bidder, Option | None] | None = None
    lacks, least, below = -free[gpu_type], math.inf, below - LEAST_GAIN
    for one in gangs:
        had = one.choice
        if had is None or had.gpu_type != gpu_type or one in changed:
            continue
        _, had_units, had_value = had
        for option in one.dearest_first:
            of, units, value = option
            loss = had_value - value
            if loss >= below:
                break
            if units >= had_units if of == gpu_type else units > free[of]:
                continue
            each = loss / min(had_units - units if of == gpu_type else had_units, lacks)
            if each < least:
                least, found = each, (one, option)
                below = min(below, each * lacks)
    return found


def total(bidders: Iterable[Bidder]) -> float:
    """Return the value of all choices together."""
    return math.fsum(_value(one.choice) for one in bidders)

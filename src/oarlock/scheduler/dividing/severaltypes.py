"""Dividing GPUs of several types among gangs: each gets a number of one type, such that all of it together is worth
most.

Each type has a price for a device. A gang takes what is worth most to it less the price. Where more of a type is wanted
than there is, its price rises; where less is wanted, it falls (a Lagrangian relaxation of the choice). Prices alone
seldom give whole numbers that fit. So the rest is settled by steps and exchanges that gain: a gang takes another option
that fits, or gets it from others who lose less.

The result is within a few per cent of the best division, most often within one, and takes milliseconds. The prices say
what a device of each type is worth to the gangs at the margin.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

ROUNDS = 3
"""How often each type's price is set anew, given those of the others."""

HALVINGS = 16
"""Of the interval in which a price is looked for: then it is known to a part in 65,536."""

PASSES = 8
LEAST_GAIN = 1e-9
PAIRED = 24
TRIED = 32
"""Gangs for which an exchange is looked for in one pass: those to which it would bring most."""


class Option(NamedTuple):
    """So many `units` of `gpu_type`, and what they are worth."""

    gpu_type: str
    units: int
    value: float


class Bidder:
    """A gang with its options, none of which is worth less than nothing. `choice` None: it gets nothing."""

    def __init__(self, name: str, options: Sequence[Option], *, choice: Option | None = None) -> None:
        self.name = name
        self.options = options
        self.choice = choice
        self.dearest_first = sorted(options, key=lambda one: (-one.value, one.units, one.gpu_type))
        self._of_type: dict[str, list[Option]] = {}
        for one in options:
            self._of_type.setdefault(one.gpu_type, []).append(one)

    def best_of(self, gpu_type: str, price: float) -> tuple[float, Option] | None:
        """The option of that type that is worth most beyond its price; of equals the smaller one."""
        best: tuple[float, Option] | None = None
        for one in self._of_type.get(gpu_type, ()):
            worth = one.value - price * one.units
            if best is None or worth > best[0]:
                best = worth, one
        return best


def allot(bidders: Iterable[Bidder], capacity: Mapping[str, int]) -> dict[str, float]:
    """Set each bidder's choice, all of them together within `capacity`; return the price of a unit of each type."""
    ones = sorted((one for one in bidders if one.options), key=lambda one: one.name)
    present = [one.choice for one in ones]
    prices = _prices(ones, capacity)
    starts = [[one.choice for one in ones], *([present] if any(present) else [])]
    found = [_improved(ones, start, capacity, prices) for start in starts]
    best = max(range(len(found)), key=lambda place: (round(found[place][0], 9), -place))
    for one, choice in zip(ones, found[best][1], strict=True):
        one.choice = choice
    return prices


def _improved(
    ones: Sequence[Bidder],
    start: Sequence[Option | None],
    capacity: Mapping[str, int],
    prices: Mapping[str, float],
) -> tuple[float, list[Option | None]]:
    """Return what can be reached from these choices by steps and exchanges, and what it is worth."""
    free = dict(capacity)
    for one, choice in zip(ones, start, strict=True):
        one.choice = choice
        if choice is not None:
            free[choice.gpu_type] -= choice.units
    _relieve(ones, free)
    for _ in range(PASSES):
        if not (_step(ones, free) + _exchange(ones, free, prices) + _together(ones, free)):
            break
    return total(ones), [one.choice for one in ones]


def _prices(ones: Sequence[Bidder], capacity: Mapping[str, int]) -> dict[str, float]:
    """Return prices at which about as much of each type is wanted as there is; leave each bidder's choice at them."""
    prices = dict.fromkeys(capacity, 0.0)
    dearest = max((option.value / option.units for one in ones for option in one.options), default=0.0)
    best = {name: [one.best_of(name, 0.0) for one in ones] for name in prices}
    for _ in range(ROUNDS):
        for name, units in capacity.items():
            elsewhere = [
                max((found[0] for other in prices if other != name and (found := best[other][place])), default=0.0)
                for place in range(len(ones))
            ]
            low, high = 0.0, dearest
            if _wanted(ones, name, 0.0, elsewhere) <= units:
                high = 0.0
            for _ in range(HALVINGS if high else 0):
                middle = (low + high) / 2
                if _wanted(ones, name, middle, elsewhere) > units:
                    low = middle
                else:
                    high = middle
            prices[name] = high
            best[name] = [one.best_of(name, high) for one in ones]
    for place, one in enumerate(ones):
        found = max((worth for name in prices if (worth := best[name][place])), key=lambda it: it[0], default=None)
        one.choice = found[1] if found is not None and found[0] >= 0 else None
    return prices


def _wanted(ones: Sequence[Bidder], name: str, price: float, elsewhere: Sequence[float]) -> int:
    """How many units of that type are wanted at `price`, by those who get less elsewhere."""
    wanted = 0
    for one, other in zip(ones, elsewhere, strict=True):
        found = one.best_of(name, price)
        if found is not None and found[0] >= other and found[0] >= 0:
            wanted += found[1].units
    return wanted


def _fits(option: Option, had: Option | None, free: Mapping[str, int]) -> bool:
    back = had.units if had is not None and had.gpu_type == option.gpu_type else 0
    return option.units <= free[option.gpu_type] + back


def _take(one: Bidder, option: Option | None, free: dict[str, int]) -> None:
    if one.choice is not None:
        free[one.choice.gpu_type] += one.choice.units
    if option is not None:
        free[option.gpu_type] -= option.units
    one.choice = option


def _relieve(ones: Sequence[Bidder], free: dict[str, int]) -> None:
    """Where more was chosen than there is, take from those who lose least by it."""
    for name in sorted(free):
        while free[name] < 0:
            cheapest: tuple[float, str, Bidder, Option | None] | None = None
            for one in ones:
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


def _worth(option: Option | None) -> float:
    return option.value if option is not None else 0.0


def _step(ones: Sequence[Bidder], free: dict[str, int]) -> int:
    """Give what is free to whom it brings most for each unit, one after the other. Return how many steps."""
    steps = 0
    while True:
        best: tuple[float, Bidder, Option] | None = None
        for one in ones:
            here = _worth(one.choice)
            for option in one.dearest_first:
                gain = option.value - here
                if gain <= LEAST_GAIN:
                    break
                if _fits(option, one.choice, free):
                    each = gain / option.units
                    if best is None or each > best[0]:
                        best = each, one, option
        if best is None:
            return steps
        _take(best[1], best[2], free)
        steps += 1


def _exchange(ones: Sequence[Bidder], free: dict[str, int], prices: Mapping[str, float]) -> int:
    """Let one have more where others lose less by it than it gains: first where it gains most beyond the prices. Return
    how many exchanges.
    """
    wishes = []
    for one in ones:
        here = _worth(one.choice)
        paid = here - (prices[one.choice.gpu_type] * one.choice.units if one.choice is not None else 0.0)
        wishes += [
            (paid - option.value + prices[option.gpu_type] * option.units, one.name, option, one)
            for option in one.options
            if option.value > here
        ]
    done = 0
    for _, _, option, one in heapq.nsmallest(TRIED, wishes, key=lambda wish: wish[:3]):
        gain = option.value - _worth(one.choice)
        if gain <= LEAST_GAIN:
            continue
        before = [(one, one.choice)]
        _take(one, option, free)
        while free[option.gpu_type] < 0 and gain > LEAST_GAIN:
            payer = _payer(ones, [changed for changed, _ in before], option.gpu_type, free, gain)
            if payer is None:
                break
            gain -= _worth(payer[0].choice) - _worth(payer[1])
            before.append((payer[0], payer[0].choice))
            _take(payer[0], payer[1], free)
        if free[option.gpu_type] < 0 or gain <= LEAST_GAIN:
            for changed, had in reversed(before):
                _take(changed, had, free)
        else:
            done += 1
    return done


def _together(ones: Sequence[Bidder], free: dict[str, int]) -> int:
    """Choose anew for two gangs at a time, for each two where there are few. Return how often that gained."""
    if len(ones) > PAIRED:
        return 0
    done = 0
    for place, one in enumerate(ones):
        for other in ones[place + 1 :]:
            had = one.choice, other.choice
            best, chosen = _worth(had[0]) + _worth(had[1]) + LEAST_GAIN, None
            _take(one, None, free)
            _take(other, None, free)
            for first in one.dearest_first:
                if first.value + other.dearest_first[0].value <= best:
                    break
                if first.units > free[first.gpu_type]:
                    continue
                free[first.gpu_type] -= first.units
                second = next((it for it in other.dearest_first if it.units <= free[it.gpu_type]), None)
                free[first.gpu_type] += first.units
                if first.value + _worth(second) > best:
                    best, chosen = first.value + _worth(second), (first, second)
            done += chosen is not None
            _take(one, (chosen or had)[0], free)
            _take(other, (chosen or had)[1], free)
    return done


def _payer(
    ones: Sequence[Bidder], changed: Sequence[Bidder], gpu_type: str, free: Mapping[str, int], below: float
) -> tuple[Bidder, Option | None] | None:
    """Return who gives up devices of that type for the least loss for each that is lacking, less than `below` in all,
    and what it goes on with.
    """
    best: tuple[float, Bidder, Option | None] | None = None
    lacks = -free[gpu_type]
    for one in ones:
        had = one.choice
        if had is None or had.gpu_type != gpu_type or one in changed:
            continue
        for option in one.dearest_first:
            loss = had.value - option.value
            if loss >= below - LEAST_GAIN or (best is not None and loss >= best[0] * lacks):
                break
            same = option.gpu_type == gpu_type
            gives = had.units - option.units if same else had.units
            if gives <= 0 or not (same or option.units <= free[option.gpu_type]):
                continue
            each = loss / min(gives, lacks)
            if best is None or each < best[0]:
                best = each, one, option
    return None if best is None else (best[1], best[2])


def total(bidders: Iterable[Bidder]) -> float:
    """What all choices are worth together."""
    return math.fsum(_worth(one.choice) for one in bidders)

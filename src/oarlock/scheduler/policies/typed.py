"""The type and the number of GPUs of each gang, decided together where a cluster has several types.

The options of a gang are its possible sizes on each type that it accepts. The policy tells their worth (`Part.worths`);
this module gathers the options, divides the devices (`severaltypes`), and returns the result. Every gang gets its
smallest size before any gets more: first the gangs that hold devices, then those that wait, as far as the devices go.
A running gang that must not be restarted keeps its devices.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, TypeVar

import msgspec

from oarlock.scheduler.dividing import severaltypes
from oarlock.scheduler.policies import contract
from oarlock.spec import holdings, plans

ADMITTED = 100.0
"""Added value of the first devices of a gang: more than any other gang could gain from them."""

LOOKED_AT = 96
"""Most gangs that one plan compares: that takes some 20 ms."""

HELD = 10 * ADMITTED
"""The same for a running gang: it gives way only if the levels of its policy say so, not here."""


class Part(Protocol):
    """One gang with its options and its result. Sizes are numbers of tasks; `units` are the devices of one task.

    `fixed` are the devices of all roles that are not divided.
    """

    job: str
    units: int
    fixed: int
    tasks: int
    gpu_type: str
    prices: Mapping[str, float]

    def present(self) -> tuple[str, int] | None:
        """Return the present type and size; None where the gang has no devices."""
        ...

    def worths(self, of: contract.TypeShare) -> Iterable[tuple[int, float]]:
        """Return the sizes on that type, smallest first, each with its worth: the sizes that the gang may be changed to
        now, and its present one.
        """
        ...


P = TypeVar("P", bound=Part)


def divides(gang: plans.Gang) -> bool:
    """Return whether a gang takes part: it has devices, and all of them are whole ones."""
    return any(ask.amount.gpus for ask in gang.asks) and not any(ask.amount.gpu_milli for ask in gang.asks)


def admitted(
    ranked: Iterable[contract.Candidate], least: Mapping[str, int], types: Sequence[contract.TypeShare]
) -> list[contract.Candidate]:
    """Return the gangs for which there are enough devices of any type, at their smallest sizes.

    The gangs that hold devices come first, then those that wait.
    """
    left = sum(one.devices for one in types)
    having, waiting = [], []
    for one in ranked:
        if one.running is None and not one.gang.destined:
            waiting.append(one)
        else:
            having.append(one)
            left -= least[one.gang.job]
    for one in waiting:
        if least[one.gang.job] <= left:
            left -= least[one.gang.job]
            having.append(one)
    return having


def in_turn(ones: Sequence[contract.Candidate], now: float, round_s: float) -> list[contract.Candidate]:
    """Return the gangs that are looked at in this plan: all of them where they are few, else the first that wait and a
    part of those that run, another part in each round.
    """
    if len(ones) <= LOOKED_AT:
        return list(ones)
    waiting = [one for one in ones if one.running is None and not one.gang.destined][: LOOKED_AT // 2]
    having = [one for one in ones if one.running is not None or one.gang.destined]
    parts = max(1, -(-len(having) // (LOOKED_AT - len(waiting))))
    return [*having[int(now // max(1.0, round_s)) % parts :: parts], *waiting]


def types_of(budget: contract.Budget, claim: holdings.Holding) -> list[str]:
    """Return the type of each device of a claim; empty text where it is not known."""
    uniform = budget.type_of.get(claim.node)
    return [uniform or budget.type_of.get(f"{claim.node}/{index}", "") for index in claim.devices]


def without(budget: contract.Budget, others: Iterable[contract.Candidate]) -> list[contract.TypeShare]:
    """Return the types without the devices of `others`: gangs with shares of devices, or with several types."""
    held = dict.fromkeys((of.gpu_type for of in budget.types), 0.0)
    for one in others:
        for claim in one.running.holdings if one.running is not None and not one.running.stopping else ():
            for name in types_of(budget, claim):
                if name in held:
                    held[name] += claim.amount.devices / len(claim.devices)
    return [
        msgspec.structs.replace(of, devices=max(0, of.devices - math.ceil(held[of.gpu_type]))) for of in budget.types
    ]


def divide(parts: Iterable[P], types: Sequence[contract.TypeShare]) -> list[P]:
    """Give each part its type and its size. Return those that get something."""
    ones = list(parts)
    bidders = {}
    for part in ones:
        options, had = _options(part, types), part.present()
        here = next((one for one in options if (one.gpu_type, one.units) == _units(part, had)), None)
        bidders[part.job] = severaltypes.Bidder(part.job, options, choice=here)
    prices = severaltypes.allot(bidders.values(), {one.gpu_type: one.devices for one in types})
    served = []
    for part in ones:
        choice = bidders[part.job].choice
        if choice is not None:
            part.gpu_type, part.tasks = choice.gpu_type, (choice.units - part.fixed) // part.units
            part.prices = prices
            served.append(part)
    return served


def _units(part: Part, had: tuple[str, int] | None) -> tuple[str, int] | None:
    return None if had is None else (had[0], had[1] * part.units + part.fixed)


def _options(part: Part, types: Sequence[contract.TypeShare]) -> list[severaltypes.Option]:
    had = part.present()
    found = []
    for of in types:
        for tasks, worth in part.worths(of):
            units = tasks * part.units + part.fixed
            if (units <= of.devices and worth > 0) or had == (of.gpu_type, tasks):
                found.append(severaltypes.Option(of.gpu_type, units, (ADMITTED if had is None else HELD) + worth))
    return found

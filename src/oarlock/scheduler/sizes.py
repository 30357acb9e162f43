"""Sizes of a gang: how many tasks of each role."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from oarlock.spec import holdings, plans

T = TypeVar("T")


def of_claims(gang: plans.Gang, claims: Sequence[holdings.Holding]) -> plans.Size:
    """Return the size that a gang has with these holdings."""
    if len(gang.asks) == 1:
        return (len(claims),)
    return tuple(sum(claim.role == ask.role for claim in claims) for ask in gang.asks)


def steps(least: plans.Size, most: plans.Size) -> int:
    """Return the number of steps from one size to the other."""
    return max((above - below for below, above in zip(least, most, strict=True)), default=0)


def step(least: plans.Size, most: plans.Size, number: int) -> plans.Size:
    """Return the size after `number` steps: every role grows in proportion."""
    whole = steps(least, most)
    if number >= whole:
        return most
    return tuple(below + (above - below) * number // whole for below, above in zip(least, most, strict=True))


def largest(least: plans.Size, most: plans.Size, test: Callable[[plans.Size], T | None]) -> T | None:
    """Return the answer of `test` for the largest size from `least` to `most` that has one; None where none has.

    `test` answers None for a size that does not do. `most` is tried first, then `least`, then the sizes between them.
    """
    found = test(most)
    if found is not None or least == most:
        return found
    found = test(least)
    if found is None:
        return None
    better = last(0, steps(least, most), lambda number: test(step(least, most, number)))
    return found if better is None else better


def last(low: int, high: int, test: Callable[[int], T | None]) -> T | None:
    """Return the answer of `test` for the largest number between `low` and `high`, both excluded, that has one.

    None: no number has one. `test` answers None for a number that does not do; no larger number does then.
    """
    found = None
    while high - low > 1:
        middle = (low + high) // 2
        answer = test(middle)
        if answer is None:
            high = middle
        else:
            low, found = middle, answer
    return found

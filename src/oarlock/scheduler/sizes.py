"""Sizes of a gang: how many tasks of each role."""

from __future__ import annotations

from collections.abc import Sequence

from oarlock.spec import holdings, plans


def of_claims(gang: plans.Gang, claims: Sequence[holdings.Holding]) -> plans.Size:
    if len(gang.asks) == 1:
        return (len(claims),)
    return tuple(sum(claim.role == ask.role for claim in claims) for ask in gang.asks)


def at_least(size: plans.Size, other: plans.Size) -> bool:
    return all(one >= two for one, two in zip(size, other, strict=True))


def steps(least: plans.Size, most: plans.Size) -> int:
    """How many steps lead from the one size to the other."""
    return max((above - below for below, above in zip(least, most, strict=True)), default=0)


def step(least: plans.Size, most: plans.Size, number: int) -> plans.Size:
    """The size after so many steps: every role grows in proportion."""
    whole = steps(least, most)
    if number >= whole:
        return most
    return tuple(below + (above - below) * number // whole for below, above in zip(least, most, strict=True))

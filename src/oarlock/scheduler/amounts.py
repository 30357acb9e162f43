"""Amounts of resources as whole numbers, so that sums are exact in any order."""

from __future__ import annotations

from collections.abc import Iterable

from oarlock.spec import holdings

UNITS = (1000, 1000, 1)


def numbers(amount: holdings.Resources) -> dict[str, float]:
    """Return cores, bytes and devices by name, without those that are zero."""
    named = {"cpus": amount.cpus_milli / 1000, "memory": float(amount.memory_bytes), "gpus": amount.devices}
    return {name: value for name, value in named.items() if value}


Amount = tuple[int, int, int]
"""Thousandths of a device, thousandths of a core, bytes: whole numbers, so that sums are exact in any order."""

NOTHING: Amount = (0, 0, 0)


def amount(of: holdings.Resources) -> Amount:
    return of.gpus * 1000 + of.gpu_milli, of.cpus_milli, of.memory_bytes


def plus(one: Amount, other: Amount) -> Amount:
    return one[0] + other[0], one[1] + other[1], one[2] + other[2]


def of_claims(claims: Iterable[holdings.Holding]) -> Amount:
    """Return the sum of these holdings."""
    together = NOTHING
    for claim in claims:
        together = plus(together, amount(claim.amount))
    return together


def weight(of: Amount) -> float:
    """Return the number of devices, or of cores where there is no device."""
    return (of[0] or of[1]) / 1000

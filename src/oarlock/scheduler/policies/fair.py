"""Dominant resource fairness among the owners of a pool (Ghodsi et al., NSDI '11): the least share comes first.

An owner's dominant share is the largest of the shares that the owner's gangs together hold of each resource. The next
gang is always the first one of the owner with the least dominant share. The gangs of one owner are in order of arrival,
running gangs first.

Gangs are stopped only to restore shares. A gang runs on if its owner, without it, would hold less than the owner of the
newcomer with the newcomer. So no two gangs can stop each other in turn.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from oarlock.scheduler.policies import contract, parameters
from oarlock.spec import holdings, plans

name = "fair"
reserves = True
sizing = False

PARAMETERS: Mapping[str, float] = {}

INFINITE = float("inf")
EXACT = 9
"""Digits to which shares are compared, so that equal ones are equal whatever the order of their sums."""


def wishes(
    candidates: Sequence[contract.Candidate],
    budget: contract.Budget,
    now: float,
    rules: plans.Rules,
    given: Mapping[str, float],
) -> list[contract.Wish]:
    parameters.read(name, given, PARAMETERS)
    return [
        contract.Wish(
            job=job,
            size=size,
            level=after - 0.5 * 10**-EXACT if waits else before,
            reason=f"{one.gang.owner or 'its owner'} has {before:.0%} of the pool before it, {after:.0%} with it",
        )
        for before, _, job, after, waits, size, one in sorted(_shares(candidates, budget.amount))
    ]


Share = tuple[float, float, str, float, bool, plans.Size, contract.Candidate]
"""The owner's dominant share before the gang; its submission, its id; the share with it; whether it waits; its size.

The level of a running gang lets it be stopped if the newcomer's owner gets no more than is left to this owner.
"""


def _shares(candidates: Iterable[contract.Candidate], whole: holdings.Resources) -> list[Share]:
    """Return the shares before and with each gang. Whole numbers make this fast for ten thousand gangs."""
    owners: dict[str, list[tuple[bool, float, str, contract.Candidate]]] = {}
    for one in candidates:
        waits = one.running is None or one.running.stopping
        owners.setdefault(one.gang.owner, []).append((waits, one.gang.submitted_at, one.gang.job, one))
    all_cpus, all_memory, all_milli = _whole(whole)
    found: list[Share] = []
    for theirs in owners.values():
        theirs.sort()
        cpus = memory = milli = 0
        share = 0.0
        for waits, came, job, one in theirs:
            size = one.asked
            for ask, count in zip(one.gang.asks, size, strict=True):
                amount = ask.amount
                cpus += amount.cpus_milli * count
                memory += amount.memory_bytes * count
                milli += (amount.gpus * 1000 + amount.gpu_milli) * count
            before = share
            share = round(max(cpus / all_cpus, memory / all_memory, milli / all_milli), EXACT)
            found.append((before, came, job, share, waits, size, one))
    return found


def _whole(whole: holdings.Resources) -> tuple[float, float, float]:
    """Return the totals of CPUs, memory and devices; infinite where there is none, so that each share of it is 0."""
    return (
        whole.cpus_milli or INFINITE,
        whole.memory_bytes or INFINITE,
        (whole.gpus * 1000 + whole.gpu_milli) or INFINITE,
    )


def dominant(held: holdings.Resources, whole: holdings.Resources) -> float:
    """Return the largest share of any resource that there is, as a fraction."""
    return round(max((amount / total for amount, total in _pairs(held, whole) if total), default=0.0), EXACT)


def _pairs(held: holdings.Resources, whole: holdings.Resources) -> Iterable[tuple[float, float]]:
    return (
        (held.cpus_milli, whole.cpus_milli),
        (held.memory_bytes, whole.memory_bytes),
        (held.devices, whole.devices),
    )

"""Whoever holds least comes first: dominant resource fairness among the owners of a pool (Ghodsi et al., NSDI '11).

An owner's dominant share is the largest of the shares that its gangs together hold of each resource. The next gang is
always the first one of the owner whose dominant share is least. Within an owner what runs goes before what waits, and
then whoever came first.

Gangs are stopped only to restore shares: one runs on where its owner, without it, would hold less than the owner of
the newcomer with the newcomer. So no two gangs can stop each other in turn.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from oarlock.scheduler.policies import parameters, port
from oarlock.spec import holdings, plans

name = "fair"
reserves = True
sizing = False

PARAMETERS: Mapping[str, float] = {}

EXACT = 9
"""Digits to which shares are compared, so that equal ones are equal whatever the order of their sums."""


def wishes(
    candidates: Sequence[port.Candidate],
    budget: port.Budget,
    now: float,
    rules: plans.Rules,
    given: Mapping[str, float],
) -> list[port.Wish]:
    parameters.read(name, given, PARAMETERS)
    ranked = sorted(_shares(candidates, budget.amount), key=lambda it: (it[0], it[2].arrival))
    return [
        port.Wish(
            job=one.gang.job,
            size=one.asked,
            level=_level(one, before, after),
            reason=f"{one.gang.owner or 'its owner'} has {before:.0%} of the pool before it, {after:.0%} with it",
        )
        for before, after, one in ranked
    ]


def _level(one: port.Candidate, before: float, after: float) -> float:
    """A share: what runs may be stopped for a newcomer whose owner gets no more with it than is left to this one's."""
    return before if any(one.size) else after - 0.5 * 10**-EXACT


def _shares(
    candidates: Sequence[port.Candidate], whole: holdings.Resources
) -> Iterator[tuple[float, float, port.Candidate]]:
    """Of each candidate: its owner's dominant share before it and with it."""
    owners: dict[str, list[port.Candidate]] = {}
    for one in candidates:
        owners.setdefault(one.gang.owner, []).append(one)
    for theirs in owners.values():
        held, share = holdings.Resources(), 0.0
        for one in sorted(theirs, key=lambda one: (not any(one.size), one.arrival)):
            held += one.gang.amount(one.asked)
            before, share = share, dominant(held, whole)
            yield before, share, one


def dominant(held: holdings.Resources, whole: holdings.Resources) -> float:
    """The largest share of any resource, as a fraction; of what there is none of nobody has a share."""
    return round(max((amount / total for amount, total in _pairs(held, whole) if total), default=0.0), EXACT)


def _pairs(held: holdings.Resources, whole: holdings.Resources) -> Iterable[tuple[float, float]]:
    return (
        (held.cpus_milli, whole.cpus_milli),
        (held.memory_bytes, whole.memory_bytes),
        (held.devices, whole.devices),
    )

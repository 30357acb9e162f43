"""Sums by leaf pool over all gangs, carried from one snapshot to the next."""

from __future__ import annotations

from typing import TypeVar

from oarlock.scheduler import amounts
from oarlock.scheduler.reuse import differences, gangfacts
from oarlock.spec import plans
from oarlock.spec.cluster import pools

T = TypeVar("T")

Key = tuple[str, bool]
"""A leaf pool, and whether the gang may be preempted. The two decide which bounds hold for the gang."""

Counted = tuple[int, amounts.Amount]
"""A number of gangs, and the sum that they hold or ask for."""

_NONE: Counted = (0, amounts.NOTHING)


class LeafTotals:
    """Sums by leaf pool. A gang that is the same object in the next snapshot is not counted again."""

    def __init__(self, facts: gangfacts.Facts) -> None:
        self._facts = facts
        self._held: dict[Key, Counted] = {}
        self._leaving: dict[Key, Counted] = {}
        self._wanted: dict[str, Counted] = {}

    def follow(self, changed: differences.Differences) -> None:
        for gang in changed.waiting_went:
            self._want(gang, -1)
        for gang in changed.waiting_came:
            self._want(gang, 1)
        for job in changed.running_went:
            self._hold(job, -1)
        for job in changed.running_came:
            self._hold(job, 1)

    def held(self) -> dict[Key, tuple[amounts.Amount, amounts.Amount]]:
        """Return the amounts held by gangs that stay, and by gangs that are being stopped."""
        return {
            key: (self._held.get(key, _NONE)[1], self._leaving.get(key, _NONE)[1])
            for key in self._held.keys() | self._leaving.keys()
        }

    def demand(self) -> dict[str, dict[str, float]]:
        """Return the demand of each leaf: the sum of its gangs' largest sizes (as `entitlement.demand`)."""
        return {
            pool: {name: of / unit for name, unit, of in zip(pools.RESOURCES, amounts.UNITS, wanted, strict=True)}
            for pool, (_, wanted) in self._wanted.items()
        }

    def _want(self, gang: plans.Gang, times: int) -> None:
        profile = self._facts.of(gang)
        if not profile.impossible:
            _add(self._wanted, gang.pool, profile.most, times)

    def _hold(self, job: plans.Running, times: int) -> None:
        to = self._leaving if job.stopping else self._held
        _add(to, (job.gang.pool, job.gang.preemptible), self._facts.held(job).amount, times)
        if not job.stopping or job.returns:
            _add(self._wanted, job.gang.pool, self._facts.of(job.gang).most, times)


def _add(sums: dict[T, Counted], key: T, amount: amounts.Amount, times: int) -> None:
    count, one = sums.get(key, _NONE)
    if count + times:
        sums[key] = (
            count + times,
            (
                one[0] + times * amount[0],
                one[1] + times * amount[1],
                one[2] + times * amount[2],
            ),
        )
    else:
        del sums[key]

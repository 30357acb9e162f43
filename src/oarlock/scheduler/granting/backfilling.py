"""A place that is kept for a gang that fits nowhere yet: later gangs may start beside it, and never delay it.

Imagine that the running gangs end one after the other: first the gangs with known ends, in their order,
then the others, the oldest first. The place of the gang is found at the first moment at which it fits. The part of it
that is free already is taken off the free space. A later gang starts elsewhere, or its time-out ends it before that
moment.

This delays no gang. In the next plan, the sequence has the same gangs, without those that have ended. The gangs that
started since lie outside the place, or end before that moment. So the place is there at the same point of the sequence
at the latest, and by induction the gang starts no later than if no other gang had been started. (This is the argument
of EASY backfilling, Mu'alem and Feitelson 2001, with unknown ends in a fixed order after the known ones.) In addition,
the gangs that the place waits for (`enders`) are not stopped or moved for another gang.

The same holds for the bounds of pools: a part of a bound is kept for the first gang that waits for it
(`PoolBounds.keep_for`).
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Sequence

from oarlock.scheduler import amounts
from oarlock.scheduler.placement import departures, freespace, placing, timelines
from oarlock.scheduler.pools import poolbounds
from oarlock.scheduler.reuse import gangfacts
from oarlock.spec import holdings, plans

Amount = amounts.Amount


class ExpectedEnds:
    """The running gangs in the order of their expected ends, with the gangs that this plan starts.

    Stopping gangs are left out. The order is made only where a gang waits.
    """

    def __init__(self, running: Iterable[plans.Running]) -> None:
        self._running = running
        self._order: list[plans.Running] | None = None
        self._by_pool: dict[str, list[plans.Running]] | None = None
        self._gone: set[str] = set()
        self._come: list[plans.Running] = []

    def order(self) -> list[plans.Running]:
        if self._order is None:
            self._order = sorted((job for job in self._running if not job.stopping), key=_by_end)
        if self._gone:
            self._order = [job for job in self._order if job.gang.job not in self._gone]
            self._gone.clear()
            self._by_pool = None
        if self._come:
            self._order = sorted([*self._order, *self._come], key=_by_end)
            self._come.clear()
            self._by_pool = None
        return self._order

    def of(self, pools: Collection[str]) -> Iterable[plans.Running]:
        """Return the gangs of these pools alone, in order."""
        order = self.order()
        if self._by_pool is None:
            self._by_pool = {}
            for job in order:
                self._by_pool.setdefault(job.gang.pool, []).append(job)
        return heapq.merge(*(self._by_pool.get(pool, ()) for pool in sorted(pools)), key=_by_end)

    def gone(self, job: str) -> None:
        """Remove a gang that this plan stops, or a promise that it has taken back."""
        self._gone.add(job)
        self._come = [one for one in self._come if one.gang.job != job]

    def come(self, gang: plans.Gang, claims: holdings.Claims, now: float, *, at_once: bool) -> None:
        """Add a gang that this plan starts (`at_once`), or to which it promises a place."""
        end = now + gang.lasts_s if at_once and gang.lasts_s is not None else None
        self._come.append(plans.Running(gang=gang, holdings=claims, started_at=now, expected_end=end))


class KeptPlace:
    """The place that is kept for one gang.

    `at` is the time at which the place is expected to be free (Unix seconds); None where it depends on an unknown end.
    """

    def __init__(
        self,
        gang: plans.Gang,
        size: plans.Size,
        claims: holdings.Claims,
        enders: Sequence[plans.Running],
        promised: timelines.Timeline,
    ) -> None:
        self.gang = gang
        self.size = size
        self.claims = claims
        self.enders = frozenset(job.gang.job for job in enders)
        self.at = at(enders)
        self._enders = enders
        self._spaces = promised.spaces
        self._parts: list[holdings.Claims] = []
        self.take()

    @property
    def parts(self) -> holdings.Claims:
        """The part of the place that is free now, and is taken so that no other gang gets it."""
        return self._parts[0] if self._parts else ()

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(claim.node for claim in self.claims))

    def take(self) -> None:
        """Take the free part of the place."""
        nodes = set(self.nodes)
        for space in self._spaces:
            spare = timelines.Returning(claim for job in self._enders for claim in job.holdings if claim.node in nodes)
            self._parts.append(spare.keep(self.claims, space))

    def give_back(self) -> None:
        for space, parts in zip(self._spaces, self._parts, strict=True):
            space.give_back(parts)
        self._parts.clear()

    def lasts(self, gang: plans.Gang, now: float) -> bool:
        """Return whether the time-out of `gang` ends it before the place is needed."""
        return self.at is not None and gang.at_most_s is not None and now + gang.at_most_s <= self.at


def keep(
    gang: plans.Gang,
    size: plans.Size,
    order: Sequence[plans.Running],
    promised: timelines.Timeline,
    facts: gangfacts.Facts,
) -> tuple[KeptPlace, list[plans.Running]] | None:
    """Return the place of a gang once the first gangs of `order` have ended, and those gangs.

    Return None where the end of all of them is not enough.
    """
    space, amount = promised.later, facts.of(gang).amount(size)
    leaving = departures.Departures(space, order, lambda job: job.holdings, lambda job: facts.held(job).amount)
    with space.trial():
        count = leaving.first(lambda _: placing.fits(gang, space, size), short(amount, space))
        claims = None if count is None else placing.place(gang, space, size)
    if count is None or claims is None:
        return None
    nodes = {claim.node for claim in claims}
    enders = [job for job in order[:count] if not nodes.isdisjoint(facts.held(job).nodes)]
    return KeptPlace(gang, size, claims, enders, promised), list(order[:count])


def keep_for(
    gang: plans.Gang,
    amount: Amount,
    over: poolbounds.Over,
    bounds: poolbounds.PoolBounds,
    ends: ExpectedEnds,
    facts: gangfacts.Facts,
) -> None:
    """Keep `amount` of a bound for `gang`, from the time at which enough gangs within the bound have ended."""
    bound = bounds.bound(gang, over)
    keys = bounds.keys(bound)
    left = bounds.missing(bound, amount)
    ended: dict[poolbounds.Key, Amount] = {}
    enders: list[plans.Running] = []
    for job in ends.of({pool for pool, _ in keys}):
        if left[0] <= 0 and left[1] <= 0 and left[2] <= 0:
            break
        key = job.gang.pool, job.gang.preemptible
        if key in keys:
            held = facts.held(job).amount
            ended[key] = amounts.plus(ended.get(key, amounts.NOTHING), held)
            left = left[0] - held[0], left[1] - held[1], left[2] - held[2]
            enders.append(job)
    if all(one <= 0 for one in left):
        bounds.keep_for(gang, amount, ended, at(enders), bound)


def ended(over: Iterable[plans.Running], facts: gangfacts.Facts) -> dict[poolbounds.Key, Amount]:
    """Return the sums that these gangs hold, by leaf and by whether they may be preempted."""
    found: dict[poolbounds.Key, Amount] = {}
    for job in over:
        key = job.gang.pool, job.gang.preemptible
        found[key] = amounts.plus(found.get(key, amounts.NOTHING), facts.held(job).amount)
    return found


def short(amount: Amount, space: freespace.FreeSpace) -> Amount:
    """Return the amount that is missing in sum; less than 0 where some is left."""
    free = amounts.amount(space.free())
    return amount[0] - free[0], amount[1] - free[1], amount[2] - free[2]


def at(enders: Sequence[plans.Running]) -> float | None:
    """Return the time at which all of these have ended; None where an end is not known."""
    ends = [job.expected_end for job in enders]
    known = [end for end in ends if end is not None]
    return max(known) if known and len(known) == len(ends) else None


def _by_end(job: plans.Running) -> tuple[bool, float, str]:
    known = job.expected_end is not None
    return not known, job.expected_end if job.expected_end is not None else job.started_at, job.job

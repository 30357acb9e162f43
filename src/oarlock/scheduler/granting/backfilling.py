"""A place that is kept for a gang that fits nowhere yet, so that those behind it may start, and never delay it.

Imagine the running gangs ended one after the other: those whose end is expected in the order of those ends, then the
others, the oldest first. The gang's place is found at the first moment at which it fits; what of that place is free
already is taken off the room. Whoever starts later goes elsewhere, or is over before that moment by its own time-out.

Why this delays nobody: in the next plan the gangs that this sequence is made of are the same less those that have
ended, and what has started since lies outside the place, or ends before that moment. So the place is still there at the
same point of the sequence at the latest; by induction the gang starts no later than if nothing had been started beside
it. (The argument of EASY backfilling, Mu'alem and Feitelson 2001, with unknown ends in a fixed order after the known.)
Nor may another one have those stopped, or moved, whose ends the place waits for (`enders`).

What holds for devices holds for the bounds of pools: who waits for one has so much of it kept (`PoolBounds.keep_for`).
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Sequence

from oarlock.scheduler import amounts
from oarlock.scheduler.placement import departures, freespace, placing, timelines
from oarlock.scheduler.pools import poolbounds
from oarlock.scheduler.reuse import gangfacts
from oarlock.spec import holdings, plans

Claims = tuple[holdings.Holding, ...]
Amount = amounts.Amount


class ExpectedEnds:
    """The running gangs in the order in which they are imagined to end, those too that this plan starts; those that are
    being stopped are no part of it. Put in order only where somebody waits.
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
        """Those of these pools alone."""
        order = self.order()
        if self._by_pool is None:
            self._by_pool = {}
            for job in order:
                self._by_pool.setdefault(job.gang.pool, []).append(job)
        return heapq.merge(*(self._by_pool.get(pool, ()) for pool in sorted(pools)), key=_by_end)

    def gone(self, job: str) -> None:
        """This plan has decided its end, or withdrawn what it had promised."""
        self._gone.add(job)
        self._come = [one for one in self._come if one.gang.job != job]

    def come(self, gang: plans.Gang, claims: Claims, now: float, *, at_once: bool) -> None:
        """This plan starts it (`at_once`), or has promised it a place: it ends too, some day."""
        end = now + gang.lasts_s if at_once and gang.lasts_s is not None else None
        self._come.append(plans.Running(gang=gang, holdings=claims, started_at=now, expected_end=end))


class KeptPlace:
    """The place of one gang. `at` is when it is expected to be free (Unix seconds), None where that hangs on an unknown
    end.
    """

    def __init__(
        self,
        gang: plans.Gang,
        size: plans.Size,
        claims: Claims,
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
        self._parts: list[Claims] = []
        self.take()

    @property
    def parts(self) -> Claims:
        """Of the place, what is free now, and taken so that nobody else gets it."""
        return self._parts[0] if self._parts else ()

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(claim.node for claim in self.claims))

    def take(self) -> None:
        """Of the place, what is free."""
        nodes = set(self.nodes)
        for space in self._spaces:
            spare = timelines.Returning(claim for job in self._enders for claim in job.holdings if claim.node in nodes)
            self._parts.append(spare.keep(self.claims, space))

    def give_back(self) -> None:
        for space, parts in zip(self._spaces, self._parts, strict=True):
            space.give_back(parts)
        self._parts.clear()

    def lasts(self, gang: plans.Gang, now: float) -> bool:
        """Whether the place is not needed before `gang` is over, as its time-out promises."""
        return self.at is not None and gang.at_most_s is not None and now + gang.at_most_s <= self.at


def keep(
    gang: plans.Gang,
    size: plans.Size,
    order: Sequence[plans.Running],
    promised: timelines.Timeline,
    facts: gangfacts.Facts,
) -> tuple[KeptPlace, list[plans.Running]] | None:
    """Of `order` the first to end make room: the place, and all that are over then. None where not even all would."""
    space, amount = promised.later, facts.of(gang).amount(size)
    leaving = departures.Departures(space, order, _holdings, lambda job: facts.held(job).amount)
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
    """Keep so much of a bound for `gang`, as of when enough of those have ended that are within it now."""
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
    """What these hold, by what decides which bounds hold for them."""
    found: dict[poolbounds.Key, Amount] = {}
    for job in over:
        key = job.gang.pool, job.gang.preemptible
        found[key] = amounts.plus(found.get(key, amounts.NOTHING), facts.held(job).amount)
    return found


def short(amount: Amount, space: freespace.FreeSpace) -> Amount:
    """What is missing in sum; less than 0: what is left."""
    free = amounts.amount(space.free())
    return amount[0] - free[0], amount[1] - free[1], amount[2] - free[2]


def at(enders: Sequence[plans.Running]) -> float | None:
    """When all of these are over; None where nobody knows."""
    ends = [job.expected_end for job in enders]
    known = [end for end in ends if end is not None]
    return max(known) if known and len(known) == len(ends) else None


def _holdings(job: plans.Running) -> Claims:
    return job.holdings


def _by_end(job: plans.Running) -> tuple[bool, float, str]:
    known = job.expected_end is not None
    return not known, job.expected_end if job.expected_end is not None else job.started_at, job.job

"""Who may have to give way to whom.

In the order in which they are asked: gangs that can be moved and lose nothing but a restart; elastic ones, of what is
above their least, and those that their policy wishes smaller; then whole gangs, where the policy ranks them strictly
lower (levels, within one leaf) or their pool holds more than it is entitled to. Never one that must not be preempted,
that has run for less than the minimum, or that has given way in this plan already.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from oarlock.scheduler import ordering, preempting
from oarlock.scheduler import room as rooms
from oarlock.scheduler import usage as usages
from oarlock.spec import holdings, plans

Victim = preempting.Victim
Claims = tuple[holdings.Holding, ...]

MOVED_AT_MOST = 64
"""Gangs that are looked at for moves: the smallest first."""


class Victims:
    def __init__(self, snapshot: plans.Snapshot, now: float, usage: usages.Usage) -> None:
        self._now = now
        self._usage = usage
        self._min_runtime_s = snapshot.rules.min_runtime_s
        self._running = {job.job: job for job in snapshot.running if not job.stopping}
        self._turns: dict[str, ordering.Turn] = {}
        self._gone: set[str] = set()
        self._free: list[plans.Running] | None = None

    def learn(self, turn: ordering.Turn) -> None:
        """What its policy wishes for a gang that runs."""
        if turn.candidate.running is not None:
            self._turns[turn.wish.job] = turn

    def gone(self, job: str) -> None:
        """It has given way, or is about to grow: nobody asks it again."""
        self._gone.add(job)

    def is_gone(self, job: str) -> bool:
        return job in self._gone

    def staying(self) -> list[plans.Running]:
        """Those whose end nobody has decided."""
        return [job for job in self._running.values() if job.job not in self._gone]

    def movable(self, gang: plans.Gang) -> list[Victim]:
        """Smaller gangs that could stand elsewhere."""
        most = preempting.weight_of(gang.amount(gang.smallest)) / 2
        found = [self._whole(job, stays=True) for job in self._willing()]
        found = [one for one in found if preempting.weight(one.claims) <= most]
        return sorted(found, key=_smallest_first)[:MOVED_AT_MOST]

    def donors(self, gang: plans.Gang) -> list[Victim]:
        """Gangs of its leaf that their policy wishes smaller, by what they are to give up."""
        return [one for job in self._willing() if self._same_leaf(job, gang) and (one := self._surplus(job))]

    def shrinkable(self, gang: plans.Gang, level: float) -> list[Victim]:
        """Donors, and what others that do not rank before it have above their least."""
        found = self.donors(gang)
        known = {one.running.job for one in found}
        for job in self._willing():
            turn = self._turns.get(job.job)
            if turn is None or turn.sizing or job.job in known or not job.gang.elastic:
                continue
            may = turn.wish.level >= level if self._same_leaf(job, gang) else self._borrows(job, gang)
            if may and sum(job.size) > sum(job.gang.smallest):
                found.append(self._to(job, job.gang.smallest))
        return found

    def killable(self, gang: plans.Gang, level: float) -> Iterator[Victim]:
        """Whole gangs that rank lower, or that run on what their pool has borrowed."""
        lent: dict[str, list[plans.Running]] = {}
        for job in self._willing():
            turn = self._turns.get(job.job)
            if self._same_leaf(job, gang):
                if turn is not None and turn.wish.level > level:
                    yield self._whole(job)
            elif self._borrows(job, gang):
                lent.setdefault(job.pool, []).append(job)
        for pool, ones in lent.items():
            yield from self._reclaimed(pool, ones, gang)

    def _reclaimed(self, pool: str, ones: list[plans.Running], gang: plans.Gang) -> Iterator[Victim]:
        """Of a pool that borrows: lower priority first, then the newest, until it borrows no more."""
        asked = usages.numbers(gang.amount(gang.smallest))
        taken: list[plans.Running] = []
        for job in sorted(ones, key=_cheapest_to_owner):
            if not self._usage.borrows(pool, asked):
                break
            self._usage.add(job.gang, _held(job), -1)
            taken.append(job)
        for job in taken:
            self._usage.add(job.gang, _held(job))
            yield self._whole(job)

    def _willing(self) -> Iterator[plans.Running]:
        """Those that may be stopped at all."""
        if self._free is None:
            self._free = [
                job
                for job in self._running.values()
                if job.gang.preemptible and self._now - job.started_at >= self._min_runtime_s
            ]
        return (job for job in self._free if job.job not in self._gone)

    def _same_leaf(self, job: plans.Running, gang: plans.Gang) -> bool:
        return self._usage.single or job.pool == gang.pool

    def _borrows(self, job: plans.Running, gang: plans.Gang) -> bool:
        return job.pool != gang.pool and self._usage.borrows(job.pool, usages.numbers(gang.amount(gang.smallest)))

    def _surplus(self, job: plans.Running) -> Victim | None:
        turn = self._turns.get(job.job)
        if turn is None or not turn.sizing or sum(turn.wish.size) >= sum(job.size):
            return None
        return self._to(job, turn.wish.size)

    def _whole(self, job: plans.Running, *, stays: bool = False) -> Victim:
        nothing = (0,) * len(job.gang.asks)
        return Victim(job, job.holdings, nothing, preempting.lost_work(job, self._now), stays)

    def _to(self, job: plans.Running, size: plans.Size) -> Victim:
        return Victim(job, surplus(job, size), size, preempting.lost_work(job, self._now))


def surplus(job: plans.Running, size: plans.Size) -> Claims:
    """The claims that it gives up to go on with `size`: from the nodes where it has the fewest first."""
    here: dict[str, int] = {}
    for claim in job.holdings:
        here[claim.node] = here.get(claim.node, 0) + 1

    def fewest_first(claim: holdings.Holding) -> tuple[int, str, int]:
        return here[claim.node], claim.node, -claim.index

    given: list[holdings.Holding] = []
    for ask, count in zip(job.gang.asks, size, strict=True):
        claims = sorted((claim for claim in job.holdings if claim.role == ask.role), key=fewest_first)
        given += claims[: max(0, len(claims) - count)]
    return tuple(given)


def left(job: plans.Running, given: Claims) -> Claims:
    """What it goes on with, its tasks numbered anew."""
    gone = {(claim.role, claim.index) for claim in given}
    count: dict[str, int] = {}
    kept: list[holdings.Holding] = []
    for claim in sorted(job.holdings, key=_by_index):
        if (claim.role, claim.index) not in gone:
            index = count.get(claim.role, 0)
            count[claim.role] = index + 1
            kept.append(msgspec.structs.replace(claim, index=index, attempt=0))
    return tuple(kept)


def _by_index(claim: holdings.Holding) -> tuple[str, int]:
    return claim.role, claim.index


def _held(job: plans.Running) -> holdings.Resources:
    return sum((claim.amount for claim in job.holdings), rooms.NOTHING)


def _smallest_first(victim: Victim) -> tuple[float, float, str]:
    return preempting.weight(victim.claims), victim.cost, victim.running.job


def _cheapest_to_owner(job: plans.Running) -> tuple[int, float, str]:
    return job.gang.priority, -job.started_at, job.job

"""Who may have to give way to whom.

In the order in which they are asked: gangs that can be moved and lose nothing but a restart; elastic ones, of what is
above their least, and those that their policy wishes smaller; then whole gangs, where the policy ranks them strictly
lower (levels, within one leaf) or their pool holds more than it is entitled to. Never one that must not be preempted,
that has run for less than the minimum, that has given way in this plan already, or whose end somebody waits for who
came first.

What a pool has borrowed it gives back to whoever is entitled to it; but as long as no reservation is at stake, it is
not left with less of its entitlement than the newcomer's pool has already. (A gang of 40 devices in a pool that is
entitled to 33 runs on while the others have 30 of theirs.) Else it would come first next, and have its turn.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

import msgspec

from oarlock.scheduler import ordering, profiles
from oarlock.scheduler import usage as usages
from oarlock.spec import holdings, plans

Claims = tuple[holdings.Holding, ...]
Amount = profiles.Amount

MOVED_AT_MOST = 64
"""Gangs that are looked at for moves: the smallest first."""

RECLAIMED_AT_MOST = 256
"""Gangs of each pool that borrows that are looked at."""

SETTLED = 10.0
"""A gang is not moved before it has run so many times as long as a restart takes."""


class Victim(NamedTuple):
    """A running gang that may be stopped: `claims` are what it gives up, `left` the size that it goes on with.

    `stays`: it gives up nothing in the end, but is placed elsewhere in the same plan (a move). `bends`: it may as well
    give up less. `cost` is the work that it loses, in device-seconds.
    """

    running: plans.Running
    claims: Claims
    left: plans.Size
    cost: float
    amount: Amount
    stays: bool = False
    bends: bool = False

    @property
    def job(self) -> str:
        return self.running.gang.job

    @property
    def key(self) -> tuple[float, str]:
        return self.cost, self.running.gang.job


class Victims:
    def __init__(self, snapshot: plans.Snapshot, now: float, usage: usages.Usage, known: profiles.Profiles) -> None:
        self._now = now
        self._usage = usage
        self._known = known
        self._rules = snapshot.rules
        self._running = snapshot.running
        self._turns: dict[str, ordering.Turn] = {}
        self._gone: set[str] = set()
        self._spared: Collection[str] = ()
        self._by_leaf: dict[str, list[plans.Running]] | None = None
        self._whole: dict[str, Victim] = {}

    def learn(self, turn: ordering.Turn) -> None:
        """What its policy wishes for a gang that runs."""
        if turn.candidate.running is not None:
            self._turns[turn.wish.job] = turn

    def gone(self, job: str) -> None:
        """It has given way, or is about to grow: nobody asks it again."""
        self._gone.add(job)

    def is_gone(self, job: str) -> bool:
        return job in self._gone

    def spare(self, jobs: Collection[str]) -> None:
        """Nobody asks these, until others are named."""
        self._spared = jobs

    def movable(self, gang: plans.Gang, level: float) -> list[Victim]:
        """Smaller gangs that could stand elsewhere, none that ranks before it."""
        most = profiles.weight(self._known.of(gang).least) / 2
        settled_at = self._now - SETTLED * self._rules.restart_s
        found = [
            (held.weight, job.gang.job, job)
            for leaf in self._leaves()
            for job in self._willing(leaf)
            if job.started_at <= settled_at
            and (held := self._known.held(job)).weight <= most
            and (not self._same_leaf(job, gang) or self._level(job, level) >= level)
        ]
        return [self._all_of(job)._replace(stays=True) for _, _, job in sorted(found)[:MOVED_AT_MOST]]

    def donors(self, gang: plans.Gang) -> list[Victim]:
        """Gangs of its leaf that their policy wishes smaller, by what they are to give up."""
        found = []
        for job in self._willing(self._leaf(gang)):
            turn = self._turns.get(job.gang.job)
            if turn is not None and turn.sizing and sum(turn.wish.size) < sum(self._known.held(job).size):
                found.append(self._to(job, turn.wish.size))
        return found

    def shrinkable(self, gang: plans.Gang, level: float, *, own: bool = False) -> list[Victim]:
        """Donors, and what others that do not rank before it have above their least; `own`: of its leaf alone."""
        found = self.donors(gang)
        for leaf in self._leaves():
            if leaf == self._leaf(gang):
                found += (
                    self._to(job, self._known.of(job.gang).smallest)._replace(bends=True)
                    for job in self._elastic(leaf)
                    if self._level(job, level) >= level
                )
            elif not own and self._lends(leaf, gang):
                found += self._bent(leaf, gang)
        return found

    def killable(self, gang: plans.Gang, amount: Amount, level: float, *, own: bool = False) -> Iterator[Victim]:
        """Whole gangs that rank lower, or (not with `own`) that run on what their pool has borrowed."""
        lower = [job for job in self._willing(self._leaf(gang)) if self._level(job, level) > level]
        yield from (self._all_of(job) for job in lower)
        if not own:
            together = profiles.NOTHING
            for job in lower:
                together = profiles.plus(together, self._known.held(job).amount)
            guaranteed = self._usage.within_reservation(gang, amount, together)
            for leaf in self._leaves():
                if leaf != self._leaf(gang) and self._lends(leaf, gang):
                    yield from self._reclaimed(leaf, gang, amount, guaranteed=guaranteed)

    def reshaped(self, victim: Victim, size: plans.Size) -> Victim:
        """One that bends, giving up less."""
        return self._to(victim.running, size)._replace(bends=True)

    # What pools have borrowed

    def _lends(self, leaf: str, gang: plans.Gang) -> bool:
        return self._usage.borrows(leaf, self._known.of(gang).least)

    def _bent(self, leaf: str, gang: plans.Gang) -> Iterator[Victim]:
        """Elastic gangs of a pool that borrows, each by no more than is borrowed."""
        asked = self._known.of(gang).least
        excess = [self._usage.excess(leaf, one) if asked[one] else 0 for one in range(3)]
        for job in sorted(self._elastic(leaf), key=_cheapest_to_owner):
            if all(have <= 0 for have in excess):
                break
            profile, size = self._known.of(job.gang), self._known.held(job).size
            number = profiles.steps(profile.smallest, size)
            enough = False
            while number and not enough:
                number -= 1
                left = profile.amount(profiles.step(profile.smallest, size, number))
                gives = [had - has for had, has in zip(profile.amount(size), left, strict=True)]
                enough = all(have <= given for have, given in zip(excess, gives, strict=True))
            one = self._to(job, profiles.step(profile.smallest, size, number))
            excess = [have - given for have, given in zip(excess, one.amount, strict=True)]
            yield one._replace(bends=True)

    def _reclaimed(self, leaf: str, gang: plans.Gang, amount: Amount, *, guaranteed: bool) -> Iterator[Victim]:
        """Of a pool that borrows: lower priority first, then the newest, until it borrows no more."""
        least = self._usage.ratio(gang.pool)
        excess = [self._usage.excess(leaf, place) for place in range(3)]
        given = profiles.NOTHING
        for job in sorted(self._willing(leaf), key=_cheapest_to_owner)[:RECLAIMED_AT_MOST]:
            if not any(amount[place] and excess[place] > given[place] for place in range(3)):
                break
            together = profiles.plus(given, self._known.held(job).amount)
            if guaranteed or self._usage.keeps(leaf, together, amount) >= least:
                given = together
                yield self._all_of(job)

    # Who can be asked

    def _leaf(self, gang: plans.Gang) -> str:
        return "" if self._usage.single else gang.pool

    def _leaves(self) -> list[str]:
        return sorted(self._grouped())

    def _grouped(self) -> dict[str, list[plans.Running]]:
        """Those that may be stopped at all, in the order of their ids."""
        if self._by_leaf is None:
            self._by_leaf = {}
            latest = self._now - self._rules.min_runtime_s
            for job in self._running:
                if not job.stopping and job.gang.preemptible and job.started_at <= latest:
                    self._by_leaf.setdefault(self._leaf(job.gang), []).append(job)
            for ones in self._by_leaf.values():
                ones.sort(key=_by_id)
        return self._by_leaf

    def _willing(self, leaf: str) -> Iterator[plans.Running]:
        gone, spared = self._gone, self._spared
        return (job for job in self._grouped().get(leaf, ()) if job.gang.job not in gone and job.gang.job not in spared)

    def _elastic(self, leaf: str) -> Iterator[plans.Running]:
        """Those that hold more than their least, and whose policy leaves sizes to their owners."""
        for job in self._willing(leaf):
            turn = self._turns.get(job.gang.job)
            owned = turn is not None and not turn.sizing
            if owned and job.gang.elastic and sum(self._known.held(job).size) > sum(self._known.of(job.gang).smallest):
                yield job

    def _same_leaf(self, job: plans.Running, gang: plans.Gang) -> bool:
        return self._leaf(job.gang) == self._leaf(gang)

    def _level(self, job: plans.Running, default: float) -> float:
        turn = self._turns.get(job.gang.job)
        return default if turn is None else turn.wish.level

    # What they give up

    def _all_of(self, job: plans.Running) -> Victim:
        known = self._whole.get(job.gang.job)
        if known is None:
            nothing = (0,) * len(job.gang.asks)
            amount = self._known.held(job).amount
            known = self._whole[job.gang.job] = Victim(job, job.holdings, nothing, self._lost_work(job), amount)
        return known

    def _to(self, job: plans.Running, size: plans.Size) -> Victim:
        if not any(size):
            return self._all_of(job)
        claims = surplus(job, size)
        amount = profiles.NOTHING
        for claim in claims:
            amount = profiles.plus(amount, profiles.amount(claim.amount))
        return Victim(job, claims, size, self._lost_work(job), amount)

    def _lost_work(self, job: plans.Running) -> float:
        return lost_s(job, self._now) * self._known.held(job).weight


def lost_s(job: plans.Running, now: float) -> float:
    """Seconds of work that stopping it now would lose."""
    since = job.started_at if job.checkpoint_at is None else max(job.checkpoint_at, job.started_at)
    return max(0.0, now - since)


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


def left(job: plans.Running, given: Sequence[holdings.Holding]) -> Claims:
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


def _by_id(job: plans.Running) -> str:
    return job.gang.job


def _cheapest_to_owner(job: plans.Running) -> tuple[int, float, str]:
    return job.gang.priority, -job.started_at, job.gang.job

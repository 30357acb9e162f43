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

import bisect
import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import msgspec

from oarlock.scheduler import amounts, sizes
from oarlock.scheduler.ordering import turnorder
from oarlock.scheduler.pools import poolbounds
from oarlock.scheduler.reuse import gangfacts
from oarlock.spec import holdings, plans

Claims = tuple[holdings.Holding, ...]
Amount = amounts.Amount

MOVED_AT_MOST = 64
"""Gangs that are looked at for moves: the smallest first."""

RECLAIMED_AT_LEAST = 64
"""So many gangs of each pool that borrows are looked at, and more only until they hold twice what is asked for."""

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


class Herd:
    """Those of one leaf that may be stopped at all, put in order as it is asked for."""

    def __init__(self, jobs: list[plans.Running], order: turnorder.Order, facts: gangfacts.Facts) -> None:
        self._jobs = jobs
        self._order = order
        self._facts = facts

    @cached_property
    def lowest_first(self) -> list[tuple[float, str, plans.Running]]:
        """By what their policy says: those that rank lowest have the highest level, which is negated here."""
        return sorted((-self._order.level(job), job.gang.job, job) for job in self._jobs)

    def below(self, level: float) -> Amount:
        """What those hold together that rank strictly lower."""
        return self._sums[bisect.bisect_left(self.lowest_first, (-level,))]

    @cached_property
    def _sums(self) -> list[Amount]:
        """What the first of `lowest_first` hold together: none, one, two..."""
        held = (self._facts.held(job).amount for _, _, job in self.lowest_first)
        return list(itertools.accumulate(held, amounts.plus, initial=amounts.NOTHING))

    @property
    def held(self) -> Amount:
        """What all of them hold together."""
        return self._sums[-1]

    @cached_property
    def cheapest_first(self) -> list[plans.Running]:
        """What costs its owners least: lower priority first, then the newest."""
        return sorted(self._jobs, key=_cheapest_to_owner)

    @cached_property
    def elastic(self) -> list[plans.Running]:
        """Those that hold more than their least, as above; none where the policy decides sizes."""
        return [job for job in self.cheapest_first if job.gang.elastic and self._has_more(job)]

    def _has_more(self, job: plans.Running) -> bool:
        return sum(self._facts.held(job).size) > sum(self._facts.of(job.gang).smallest)


class Victims:
    def __init__(
        self,
        snapshot: plans.Snapshot,
        now: float,
        bounds: poolbounds.PoolBounds,
        order: turnorder.Order,
        facts: gangfacts.Facts,
    ) -> None:
        self._now = now
        self._bounds = bounds
        self._facts = facts
        self._rules = snapshot.rules
        self._reallocates = snapshot.reallocate
        self._running = snapshot.running
        self._order = order
        self._decided: set[str] = set()
        self._spared: Collection[str] = ()
        self._whole: dict[str, Victim] = {}
        self._most: dict[object, dict[poolbounds.Key, Amount]] = {}
        self._most_at = -1

    def decided(self, job: str) -> None:
        """Note that this plan stops, resizes or moves a job: it does so once at most."""
        self._decided.add(job)

    def is_decided(self, job: str) -> bool:
        return job in self._decided

    def spare(self, jobs: Collection[str]) -> None:
        """Note the jobs whose ends an earlier gang is waiting for. The jobs of an earlier call are no longer spared."""
        self._spared = jobs

    @property
    def settled_s(self) -> float:
        """Seconds that a gang runs before it is restarted for a place that no other gang needs."""
        return max(self._rules.min_runtime_s, SETTLED * self._rules.restart_s)

    def may_restart(self, job: plans.Running, after_s: float = 0.0) -> bool:
        """Return whether this plan may restart a running gang for its own sake, after `after_s` seconds of running.

        The plan may touch running gangs, the gang is preemptible and not stopping, and the plan has decided nothing
        else about it. A size or type that its policy wishes needs no minimum run time: the policy weighs the restart.
        """
        return self._reallocates and self._has_run(job, after_s) and job.gang.job not in self._decided

    def may_give_way(self, job: plans.Running) -> bool:
        """Return whether this plan may stop, shrink or move a running gang for the sake of another gang.

        The gang has also run for the minimum run time, and no earlier gang is waiting for its end.
        """
        return self.may_restart(job, self._rules.min_runtime_s) and job.gang.job not in self._spared

    def _has_run(self, job: plans.Running, seconds: float) -> bool:
        """Return whether a gang is preemptible, is not stopping, and has run for so many seconds."""
        return not job.stopping and job.gang.preemptible and job.started_at <= self._now - seconds

    def most(self, gang: plans.Gang, level: float, *, own: bool = False) -> Mapping[poolbounds.Key, Amount]:
        """What could be given up for it at most, by what decides which bounds hold for whom. The same object for all
        for whom it is the same, until something is given away.
        """
        if self._most_at != self._bounds.changes:
            self._most_at = self._bounds.changes
            self._most.clear()
        least = self._facts.of(gang).least
        like = self._order.leaf(gang), level, own, least[0] > 0, least[1] > 0, least[2] > 0
        known = self._most.get(like)
        if known is None:
            known = self._most[like] = self._most_for(gang, level, own=own)
        return known

    def _most_for(self, gang: plans.Gang, level: float, *, own: bool) -> dict[poolbounds.Key, Amount]:
        own_leaf = self._order.leaf(gang)
        found: dict[poolbounds.Key, Amount] = {}
        for leaf, herd in self._herds.items():
            if leaf == own_leaf:
                found[leaf, True] = herd.held if self._order.sizes(leaf) or herd.elastic else herd.below(level)
            elif not own and self._lends(leaf, gang):
                found[leaf, True] = herd.held
        return found

    def movable(self, gang: plans.Gang, level: float) -> list[Victim]:
        """Smaller gangs that could stand elsewhere, none that ranks before it."""
        most = amounts.weight(self._facts.of(gang).least) / 2
        found: list[Victim] = []
        for weight, _, job in self._settled:
            if weight > most or len(found) == MOVED_AT_MOST:
                break
            if self.may_give_way(job) and (job.gang.pool != gang.pool or self._order.level(job) >= level):
                found.append(self._all_of(job)._replace(stays=True))
        return found

    def donors(self, gang: plans.Gang) -> list[Victim]:
        """Gangs of its leaf that their policy wishes smaller, by what they are to give up."""
        leaf = self._order.leaf(gang)
        if not self._order.sizes(leaf):
            return []
        wished = [
            (self._order.turn(job).wish, job) for _, _, job in self._herd(leaf).lowest_first if self.may_give_way(job)
        ]
        return [
            self._to(job, wish.size)
            for wish, job in wished
            if not wish.on and sum(wish.size) < sum(self._facts.held(job).size)
        ]

    def shrinkable(self, gang: plans.Gang, level: float, *, own: bool = False) -> list[Victim]:
        """Donors, and what others that do not rank before it have above their least; `own`: of its leaf alone."""
        found, own_leaf = self.donors(gang), self._order.leaf(gang)
        for leaf in self._herds:
            if self._order.sizes(leaf):
                continue
            if leaf == own_leaf:
                found += (
                    self._to(job, self._facts.of(job.gang).smallest)._replace(bends=True)
                    for job in self._herd(leaf).elastic
                    if self.may_give_way(job) and self._order.extras_level(job) >= level
                )
            elif not own and self._lends(leaf, gang):
                found += self._bent(leaf, gang)
        return found

    def killable(self, gang: plans.Gang, amount: Amount, level: float, *, own: bool = False) -> list[Victim]:
        """Whole gangs that rank lower, or (not with `own`) that run on what their pool has borrowed."""
        own_leaf, found, together = self._order.leaf(gang), [], amounts.NOTHING
        for lower, _, job in self._herd(own_leaf).lowest_first:
            if -lower <= level:
                break
            if self.may_give_way(job):
                found.append(self._all_of(job))
                together = amounts.plus(together, found[-1].amount)
        if not own:
            guaranteed = self._bounds.within_reservation(gang, amount, together)
            for leaf in self._herds:
                if leaf != own_leaf and self._lends(leaf, gang):
                    found += self._reclaimed(leaf, gang, amount, guaranteed=guaranteed)
        return found

    def reshaped(self, victim: Victim, size: plans.Size) -> Victim:
        """One that bends, giving up less."""
        return self._to(victim.running, size)._replace(bends=True)

    # What pools have borrowed

    def _lends(self, leaf: str, gang: plans.Gang) -> bool:
        return self._bounds.borrows(leaf, self._facts.of(gang).least)

    def _bent(self, leaf: str, gang: plans.Gang) -> Iterator[Victim]:
        """Elastic gangs of a pool that borrows, each by no more than is borrowed."""
        asked = self._facts.of(gang).least
        excess = [self._bounds.excess(leaf, one) if asked[one] else 0 for one in range(3)]
        for job in self._herd(leaf).elastic:
            if all(have <= 0 for have in excess):
                break
            if not self.may_give_way(job):
                continue
            profile, size = self._facts.of(job.gang), self._facts.held(job).size
            number, enough = sizes.steps(profile.smallest, size), False
            while number and not enough:
                number -= 1
                left = profile.amount(sizes.step(profile.smallest, size, number))
                gives = [had - has for had, has in zip(profile.amount(size), left, strict=True)]
                enough = all(have <= given for have, given in zip(excess, gives, strict=True))
            one = self._to(job, sizes.step(profile.smallest, size, number))
            excess = [have - given for have, given in zip(excess, one.amount, strict=True)]
            yield one._replace(bends=True)

    def _reclaimed(self, leaf: str, gang: plans.Gang, amount: Amount, *, guaranteed: bool) -> Iterator[Victim]:
        """Of a pool that borrows: lower priority first, then the newest, until it borrows no more."""
        least = self._bounds.ratio(gang.pool)
        excess = [self._bounds.excess(leaf, place) for place in range(3)]
        given = amounts.NOTHING
        for number, job in enumerate(self._herd(leaf).cheapest_first):
            enough = number >= RECLAIMED_AT_LEAST and all(
                2 * asked <= had for asked, had in zip(amount, given, strict=True)
            )
            if enough or not any(amount[place] and excess[place] > given[place] for place in range(3)):
                break
            together = amounts.plus(given, self._facts.held(job).amount)
            if self.may_give_way(job) and (guaranteed or self._bounds.keeps(leaf, together, amount) >= least):
                given = together
                yield self._all_of(job)

    # Who can be asked

    def _herd(self, leaf: str) -> Herd:
        return self._herds.get(leaf) or Herd([], self._order, self._facts)

    @cached_property
    def _herds(self) -> dict[str, Herd]:
        """By leaf, in the order of their names."""
        found: dict[str, list[plans.Running]] = {}
        for job in self._running:
            if self._has_run(job, self._rules.min_runtime_s):
                found.setdefault(self._order.leaf(job.gang), []).append(job)
        return {leaf: Herd(found[leaf], self._order, self._facts) for leaf in sorted(found)}

    @cached_property
    def _settled(self) -> list[tuple[float, str, plans.Running]]:
        """Those that are worth a move, the smallest first."""
        return sorted(
            (self._facts.held(job).weight, job.gang.job, job)
            for job in self._running
            if self._has_run(job, self.settled_s)
        )

    # What they give up

    def _all_of(self, job: plans.Running) -> Victim:
        known = self._whole.get(job.gang.job)
        if known is None:
            nothing = (0,) * len(job.gang.asks)
            amount = self._facts.held(job).amount
            known = self._whole[job.gang.job] = Victim(job, job.holdings, nothing, self._lost_work(job), amount)
        return known

    def _to(self, job: plans.Running, size: plans.Size) -> Victim:
        if not any(size):
            return self._all_of(job)
        claims = surplus(job, size)
        amount = amounts.NOTHING
        for claim in claims:
            amount = amounts.plus(amount, amounts.amount(claim.amount))
        return Victim(job, claims, size, self._lost_work(job), amount)

    def _lost_work(self, job: plans.Running) -> float:
        return lost_s(job, self._now) * self._facts.held(job).weight


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


def _cheapest_to_owner(job: plans.Running) -> tuple[int, float, str]:
    return job.gang.priority, -job.started_at, job.gang.job

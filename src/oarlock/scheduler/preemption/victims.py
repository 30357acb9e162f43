"""The running gangs that may have to give way to a waiting gang.

They are considered in this order: gangs that can be moved, and lose nothing but a restart; elastic gangs, down to their
smallest size, and gangs that their policy wishes smaller; whole gangs that the policy ranks strictly lower (levels,
within one leaf), or that belong to a pool beyond its entitlement. `may_give_way` says which gangs are never considered.

A pool gives back to an entitled gang the amount that it has borrowed. As long as no reservation is at stake, it keeps
at least as large a part of its entitlement as the newcomer's pool has already. (A gang of 40 devices in a pool that is
entitled to 33 runs on while the other pools have 30 of theirs.) Otherwise it would be the next to take devices back.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Collection, Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

import msgspec

from oarlock.scheduler import amounts, sizes
from oarlock.scheduler.ordering import turnorder
from oarlock.scheduler.pools import poolbounds
from oarlock.scheduler.reuse import gangfacts
from oarlock.spec import holdings, plans
from oarlock.spec.cluster import nodes

Amount = amounts.Amount

MOVED_AT_MOST = 64
"""Gangs that are considered for moves, the smallest first."""

RECLAIMED_AT_LEAST = 64
"""Gangs considered of each pool that borrows; more only until they hold twice the amount that is asked for."""

SETTLED = 10.0
"""Times the duration of a restart that a gang runs before it is restarted for a better place."""


class Victim(NamedTuple):
    """A running gang that may be stopped: `claims` are the holdings that it gives up, `left` is its size afterwards.

    `stays`: it is moved, that is, placed elsewhere in the same plan. `bends`: it may also give up less. `cost` is the
    work that it loses, in device-seconds.
    """

    running: plans.Running
    claims: holdings.Claims
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


class LeafCandidates:
    """The running gangs of one leaf pool that may be stopped, in several orders."""

    def __init__(self, jobs: list[plans.Running], order: turnorder.Order, facts: gangfacts.Facts) -> None:
        self._jobs = jobs
        self._order = order
        self._facts = facts

    @cached_property
    def lowest_first(self) -> list[tuple[float, str, plans.Running]]:
        """Gangs with their negated levels: the gangs that their policy ranks lowest have the highest level."""
        return sorted((-self._order.level(job), job.gang.job, job) for job in self._jobs)

    def below(self, level: float) -> Amount:
        """Return the sum that the gangs that rank strictly lower hold."""
        return self._sums[bisect.bisect_left(self.lowest_first, (-level,))]

    @cached_property
    def _sums(self) -> list[Amount]:
        """Sums that the first gangs of `lowest_first` hold: of no gang, of one, of two..."""
        held = (self._facts.held(job).amount for _, _, job in self.lowest_first)
        return list(itertools.accumulate(held, amounts.plus, initial=amounts.NOTHING))

    @property
    def held(self) -> Amount:
        """The sum that all of these gangs hold."""
        return self._sums[-1]

    @cached_property
    def cheapest_first(self) -> list[plans.Running]:
        """The gangs by their cost to the owners: lower priority first, then the newest."""
        return sorted(self._jobs, key=_cheapest_to_owner)

    @cached_property
    def elastic(self) -> list[plans.Running]:
        """Elastic gangs above their smallest size, in the order of `cheapest_first`."""
        held, of = self._facts.held, self._facts.of
        able = (job for job in self.cheapest_first if job.gang.elastic)
        return [job for job in able if sum(held(job).size) > sum(of(job.gang).smallest)]


class Victims:
    """The victims that one plan may choose from, and the gangs about which it has decided."""

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
        self._declared = snapshot.nodes
        self._order = order
        self._decided: set[str] = set()
        self._spared: Collection[str] = ()

    def decided(self, job: str) -> None:
        """Note that this plan stops, resizes or moves a job: it does so once at most."""
        self._decided.add(job)

    def is_decided(self, job: str) -> bool:
        return job in self._decided

    def spare(self, jobs: Collection[str]) -> None:
        """Note the jobs that must end for an earlier gang: they are spared, instead of those of the last call."""
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

    def may_shrink(self, job: plans.Running) -> bool:
        """Return whether this plan may shrink a running gang in its place for the sake of another gang.

        No node that it runs on has closed to it: a gang that restarts there would get another place, or none.
        """
        there = (self._nodes.get(name) for name in self._facts.held(job).nodes)
        constraints = job.gang.constraints
        return self.may_give_way(job) and all(
            node is not None and node.open and node.admits(constraints) for node in there
        )

    @cached_property
    def _nodes(self) -> dict[str, nodes.Node]:
        return {node.name: node for node in self._declared}

    def _has_run(self, job: plans.Running, seconds: float) -> bool:
        """Return whether a gang is preemptible, is not stopping, and has run for so many seconds."""
        return not job.stopping and job.gang.preemptible and job.started_at <= self._now - seconds

    def most(self, gang: plans.Gang, level: float, *, own: bool) -> dict[poolbounds.Key, Amount]:
        """Return the most that running gangs could give up for a gang, by leaf; with `own`, of its own leaf alone."""
        own_leaf = self._order.leaf(gang)
        found: dict[poolbounds.Key, Amount] = {}
        for leaf, candidates in self._by_leaf.items():
            if leaf == own_leaf:
                found[leaf, True] = (
                    candidates.held if self._order.sizes(leaf) or candidates.elastic else candidates.below(level)
                )
            elif not own and self._lends(leaf, gang):
                found[leaf, True] = candidates.held
        return found

    def movable(self, gang: plans.Gang, level: float) -> list[Victim]:
        """Return smaller gangs that could be moved, none that ranks before `gang`."""
        most = amounts.weight(self._facts.of(gang).least) / 2
        found: list[Victim] = []
        for weight, _, job in self._settled:
            if weight > most or len(found) == MOVED_AT_MOST:
                break
            if self.may_give_way(job) and (job.gang.pool != gang.pool or self._order.level(job) >= level):
                found.append(self._all_of(job)._replace(stays=True))
        return found

    def donors(self, gang: plans.Gang) -> list[Victim]:
        """Return gangs of the same leaf that their policy wishes smaller, each with the holdings to give up."""
        leaf = self._order.leaf(gang)
        if not self._order.sizes(leaf):
            return []
        wished = [
            (self._order.turn(job).wish, job)
            for _, _, job in self._of_leaf(leaf).lowest_first
            if self.may_give_way(job)
        ]
        return [
            self._to(job, wish.size)
            for wish, job in wished
            if not wish.on
            and sum(wish.size) < sum(self._facts.held(job).size)
            and (not any(wish.size) or self.may_shrink(job))
        ]

    def shrinkable(self, gang: plans.Gang, level: float, *, own: bool = False) -> list[Victim]:
        """Return donors, and elastic gangs that do not rank before `gang`; with `own`, of its leaf alone."""
        found, own_leaf = self.donors(gang), self._order.leaf(gang)
        for leaf in self._by_leaf:
            if self._order.sizes(leaf):
                continue
            if leaf == own_leaf:
                found += (
                    self._to(job, self._facts.of(job.gang).smallest)._replace(bends=True)
                    for job in self._of_leaf(leaf).elastic
                    if self.may_shrink(job) and self._order.extras_level(job) >= level
                )
            elif not own and self._lends(leaf, gang):
                found += self._bent(leaf, gang)
        return found

    def killable(self, gang: plans.Gang, amount: Amount, level: float, *, own: bool = False) -> list[Victim]:
        """Return whole gangs that rank lower or, without `own`, gangs of pools that have borrowed."""
        own_leaf, found, together = self._order.leaf(gang), [], amounts.NOTHING
        for lower, _, job in self._of_leaf(own_leaf).lowest_first:
            if -lower <= level:
                break
            if self.may_give_way(job):
                found.append(self._all_of(job))
                together = amounts.plus(together, found[-1].amount)
        if not own:
            guaranteed = self._bounds.within_reservation(gang, amount, together)
            for leaf in self._by_leaf:
                if leaf != own_leaf and self._lends(leaf, gang):
                    found += self._reclaimed(leaf, gang, amount, guaranteed=guaranteed)
        return found

    def reshaped(self, victim: Victim, size: plans.Size) -> Victim:
        """Return a victim that bends at another size."""
        return self._to(victim.running, size)._replace(bends=True)

    # Pools that have borrowed

    def _lends(self, leaf: str, gang: plans.Gang) -> bool:
        return self._bounds.borrows(leaf, self._facts.of(gang).least)

    def _bent(self, leaf: str, gang: plans.Gang) -> Iterator[Victim]:
        """Yield elastic gangs of a pool that borrows; together they give up no more than the pool has borrowed."""
        asked = self._facts.of(gang).least
        excess = [self._bounds.excess(leaf, one) if asked[one] else 0 for one in range(3)]
        for job in self._of_leaf(leaf).elastic:
            if all(have <= 0 for have in excess):
                break
            if not self.may_shrink(job):
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
        """Yield gangs of a pool that borrows, lower priority first, then the newest, until it borrows no more."""
        least = self._bounds.ratio(gang.pool)
        excess = [self._bounds.excess(leaf, place) for place in range(3)]
        given = amounts.NOTHING
        for number, job in enumerate(self._of_leaf(leaf).cheapest_first):
            enough = number >= RECLAIMED_AT_LEAST and all(
                2 * asked <= had for asked, had in zip(amount, given, strict=True)
            )
            if enough or not any(amount[place] and excess[place] > given[place] for place in range(3)):
                break
            together = amounts.plus(given, self._facts.held(job).amount)
            if self.may_give_way(job) and (guaranteed or self._bounds.keeps(leaf, together, amount) >= least):
                given = together
                yield self._all_of(job)

    # The gangs that may be stopped

    def _of_leaf(self, leaf: str) -> LeafCandidates:
        return self._by_leaf.get(leaf) or LeafCandidates([], self._order, self._facts)

    @cached_property
    def _by_leaf(self) -> dict[str, LeafCandidates]:
        """Candidates by leaf, in the order of the leaves' names."""
        found: dict[str, list[plans.Running]] = {}
        for job in self._running:
            if self._has_run(job, self._rules.min_runtime_s):
                found.setdefault(self._order.leaf(job.gang), []).append(job)
        return {leaf: LeafCandidates(found[leaf], self._order, self._facts) for leaf in sorted(found)}

    @cached_property
    def _settled(self) -> list[tuple[float, str, plans.Running]]:
        """Gangs that have run long enough to be moved, the smallest first."""
        return sorted(
            (self._facts.held(job).weight, job.gang.job, job)
            for job in self._running
            if self._has_run(job, self.settled_s)
        )

    # The victims

    def _all_of(self, job: plans.Running) -> Victim:
        nothing = (0,) * len(job.gang.asks)
        return Victim(job, job.holdings, nothing, self._lost_work(job), self._facts.held(job).amount)

    def _to(self, job: plans.Running, size: plans.Size) -> Victim:
        if not any(size):
            return self._all_of(job)
        claims = surplus(job, size)
        return Victim(job, claims, size, self._lost_work(job), amounts.of_claims(claims))

    def _lost_work(self, job: plans.Running) -> float:
        return lost_s(job, self._now) * self._facts.held(job).weight


def lost_s(job: plans.Running, now: float) -> float:
    """Return the seconds of work that a stop at `now` loses."""
    since = job.started_at if job.checkpoint_at is None else max(job.checkpoint_at, job.started_at)
    return max(0.0, now - since)


def surplus(job: plans.Running, size: plans.Size) -> holdings.Claims:
    """Return the holdings that a gang gives up to go on at `size`: first those on nodes where it has fewest."""
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


def left(job: plans.Running, given: Sequence[holdings.Holding]) -> holdings.Claims:
    """Return the holdings that a gang keeps. Its tasks are numbered from 0 again."""
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

"""The plan as far as it has been made: what is given away is taken off the room and counted in the pools at once.

Nothing is changed here that is not in the plan in the end. Who tries something out does so in a room that he leaves as
it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property

from oarlock.scheduler import amounts, sizes
from oarlock.scheduler.explaining import contexts, impossible
from oarlock.scheduler.granting import backfilling
from oarlock.scheduler.ordering import turnorder, turns
from oarlock.scheduler.placement import freespace, placing, timelines
from oarlock.scheduler.pools import poolbounds
from oarlock.scheduler.preemption import clearing, victims
from oarlock.scheduler.reuse import gangfacts
from oarlock.spec import curves, holdings, plans, refusals

Claims = tuple[holdings.Holding, ...]

TRIALS = 48
"""With so many trials of whether a gang fits once these or those are gone, no other search for whom to stop begins in
the same plan: the next one goes on.
"""


class Draft:
    """`later` is the free space beside the gangs that stay; `space` itself where that is the same, and will be."""

    def __init__(
        self,
        snapshot: plans.Snapshot,
        now: float,
        space: freespace.FreeSpace,
        later: freespace.FreeSpace,
        bounds: poolbounds.PoolBounds,
        order: turnorder.Order,
        facts: gangfacts.Facts,
        declared: impossible.Declared,
    ) -> None:
        self.snapshot = snapshot
        self.now = now
        self.rules = snapshot.rules
        self.space = space
        self.bounds = bounds
        self.facts = facts
        self.context = contexts.Context(snapshot, space, declared)
        self._stopping = [job for job in snapshot.running if job.stopping]
        self.timeline = timelines.Timeline(space, later, self._stopping)
        self.order = order
        self.victims = victims.Victims(snapshot, now, bounds, order, facts)
        self.ends = backfilling.ExpectedEnds(snapshot.running)
        self.effort = clearing.Effort(TRIALS)
        self.heads: dict[object, backfilling.KeptPlace] = {}
        self.launches: list[plans.Launch] = []
        self.preemptions: dict[str, plans.Preemption] = {}
        self.resizes: dict[str, plans.Resize] = {}
        self.moves: dict[str, plans.Move] = {}
        self.going_to: dict[str, Claims] = {}  # of those that go on elsewhere, or with another part of their device
        self.refused: dict[str, refusals.Refusal] = {}
        self.restless = False  # as in the plan
        self._misses: dict[tuple[int, bool], list[plans.Size]] = {}
        self._parts: Claims = ()
        self.context.kept = lambda: self._parts

    @cached_property
    def running(self) -> dict[str, plans.Running]:
        """Those that hold something, by their ids."""
        return {job.gang.job: job for job in self.snapshot.running}

    def finished(self, batches: dict[str, curves.Batch]) -> plans.Plan:
        return plans.Plan(
            launches=tuple(self.launches),
            preemptions=tuple(self.preemptions.values()),
            resizes=tuple(self.resizes.values()),
            moves=tuple(self.moves.values()),
            refusals=self.refused,
            batches=batches,
            restless=self.restless,
        )

    # Places

    def full(self, amount: amounts.Amount) -> bool:
        """Whether there is not so much left, in sum, now or later."""
        return self.timeline.later.exceeds(amount) and self.space.exceeds(amount)

    def place(self, gang: plans.Gang, size: plans.Size, *, later: bool = False) -> Claims | None:
        """A place in what is free now, or `later`. What has failed once in this plan fails for all that are like it,
        until more is cleared.
        """
        profile, space = self.facts.of(gang), self.timeline.later if later else self.space
        if space.exceeds(profile.amount(size)):
            return None
        missed = self._misses.setdefault((profile.shape, space is not self.space), [])
        if any(sizes.at_least(size, one) for one in missed):
            return None
        claims = placing.place(gang, space, size)
        if claims is None:
            missed[:] = [one for one in missed if not sizes.at_least(one, size)]
            missed.append(size)
        return claims

    def largest(self, gang: plans.Gang, least: plans.Size, most: plans.Size, *, later: bool = False) -> Claims | None:
        """The place of the largest size between these for which there is one."""
        return sizes.largest(least, most, lambda size: self.place(gang, size, later=later))

    # What is given away

    def launch(self, turn: turns.Turn, claims: Claims, why: str = "") -> None:
        gang, size = turn.candidate.gang, sizes.of_claims(turn.candidate.gang, claims)
        self.timeline.launch(claims)
        self.ends.come(gang, claims, self.now, at_once=True)
        self.bounds.add(gang, self._amount(gang, claims), now=True)
        reason = "; ".join(one for one in (why, turn.wish.reason) if one)
        self.launches.append(plans.Launch(job=gang.job, holdings=claims, reason=reason, batch=turn.batch(size)))

    def promise(self, gang: plans.Gang, claims: Claims) -> None:
        """It comes as soon as that is free."""
        self.timeline.promise(claims)
        self.ends.come(gang, claims, self.now, at_once=False)
        self.bounds.add(gang, self._amount(gang, claims))

    def withdraw(self, gang: plans.Gang, claims: Claims) -> None:
        """What it was promised is as it was before."""
        self.timeline.withdraw(claims)
        self.ends.gone(gang.job)
        self.bounds.add(gang, self._amount(gang, claims), -1)
        self._misses.clear()

    def _amount(self, gang: plans.Gang, claims: Claims) -> amounts.Amount:
        """What it holds with these: as it asks, but of a device that it shares its part."""
        if any(claim.amount.gpu_milli for claim in claims):
            return amounts.of_claims(claims)
        return self.facts.of(gang).amount(sizes.of_claims(gang, claims))

    def stop(self, cleared: clearing.Clearance, gang: plans.Gang) -> None:
        """These give way to `gang`."""
        for victim in cleared.victims:
            self._leave(victim.running)
        places = iter(cleared.moved)
        for victim in cleared.victims:
            if victim.stays:
                self._move(victim.running, next(places), f"moved to make room for {gang.name}")
            elif any(victim.left):
                reason = f"to make room for {gang.name}"
                self._resize(victim.running, victims.left(victim.running, victim.claims), reason, by=gang.job)
            else:
                self.preemptions[victim.job] = plans.Preemption(
                    job=victim.job, reason=f"{gang.name} takes its place", by=gang.job
                )
                self.order.back(victim.running)

    def resize(self, running: plans.Running, claims: Claims, reason: str) -> None:
        """It goes on at another size."""
        self._leave(running)
        self._resize(running, claims, reason)

    def move(self, running: plans.Running, claims: Claims, reason: str) -> None:
        """It goes on elsewhere, or with another part of its device."""
        self._leave(running)
        self._move(running, claims, reason)

    def give_up(self, running: plans.Running, reason: str) -> None:
        """It stops for nobody else's sake, and waits again."""
        self._leave(running)
        self.preemptions[running.gang.job] = plans.Preemption(job=running.gang.job, reason=reason)
        self.order.back(running)

    def _leave(self, running: plans.Running) -> None:
        self._stopping.append(running)
        self.victims.decided(running.gang.job)
        self.ends.gone(running.gang.job)
        self.bounds.add(running.gang, self.facts.held(running).amount, -1)
        self.timeline.clear(running.holdings)
        self._misses = {key: sizes for key, sizes in self._misses.items() if not key[1]}

    def _resize(self, running: plans.Running, to: Claims, reason: str, by: str = "") -> None:
        gang, size = running.gang, sizes.of_claims(running.gang, to)
        self.promise(gang, to)
        self.resizes[gang.job] = plans.Resize(job=gang.job, size=size, to=to, reason=reason, by=by)

    def _move(self, running: plans.Running, to: Claims, reason: str) -> None:
        self.promise(running.gang, to)
        self.moves[running.gang.job] = plans.Move(job=running.gang.job, to=to, reason=reason)

    # What is kept

    def keep(self, gang: plans.Gang, size: plans.Size) -> backfilling.KeptPlace | None:
        """A place for one that fits nowhere now: those after it get round it."""
        found = backfilling.keep(gang, size, self.ends.order(), self.timeline, self.facts)
        if found is None:
            return None
        kept, over = found
        amount = self.facts.of(gang).amount(size)
        self.bounds.keep_for(gang, amount, backfilling.ended(over, self.facts), kept.at)
        self.heads[self.facts.of(gang).kind] = kept
        self.victims.spare({job for head in self.heads.values() for job in head.enders})
        self._parts += kept.parts
        return kept

    def lasting(self, gang: plans.Gang) -> list[backfilling.KeptPlace]:
        """The kept places that are not needed before it is over."""
        return [head for head in self.heads.values() if head.lasts(gang, self.now)]

    @contextmanager
    def without(self, heads: Iterable[backfilling.KeptPlace]) -> Iterator[None]:
        """As if no place were kept for these. Who starts meanwhile is not kept for either."""
        heads = list(heads)
        for head in heads:
            head.give_back()
        yield
        for head in heads:
            head.take()
        self._parts = tuple(part for head in self.heads.values() for part in head.parts)

    # Words

    def refuse(self, gang: plans.Gang, refusal: refusals.Refusal) -> None:
        self.refused[gang.job] = refusal

    def stopping(self, gang: plans.Gang, claims: Claims) -> list[plans.Gang]:
        """Who holds now what was promised: its place, or else what its pool is limited to."""
        nodes = {claim.node for claim in claims}
        there = [job.gang for job in self._stopping if not nodes.isdisjoint(self.facts.held(job).nodes)]
        return there or [job.gang for job in self._stopping if job.gang.pool == gang.pool]

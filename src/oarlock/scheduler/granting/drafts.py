"""The plan as far as it has been made: each decision is taken off the free space and counted in the pools at once.

All changes to a draft are part of the plan in the end. Code that only tries something does so in a trial.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property

from oarlock.scheduler import amounts, sizes
from oarlock.scheduler.explaining import contexts
from oarlock.scheduler.granting import backfilling
from oarlock.scheduler.ordering import turnorder, turns
from oarlock.scheduler.placement import freespace, placing, timelines
from oarlock.scheduler.pools import poolbounds
from oarlock.scheduler.preemption import clearing, victims
from oarlock.scheduler.reuse import memos, shortcuts
from oarlock.spec import curves, holdings, plans, refusals


class Draft:
    """The decisions of one plan. `later` is the free space after all stops; `space` itself if no gang stops."""

    def __init__(
        self,
        snapshot: plans.Snapshot,
        now: float,
        memo: memos.Memo,
        later: freespace.FreeSpace,
        bounds: poolbounds.PoolBounds,
        order: turnorder.Order,
        taken: shortcuts.Shortcuts,
    ) -> None:
        self.snapshot = snapshot
        self.now = now
        self.rules = snapshot.rules
        self.space = memo.space
        self.bounds = bounds
        self.facts = memo.facts
        self.context = contexts.Context(snapshot, self.space, memo.declared)
        self._stopping = sorted((job for job in snapshot.running if job.stopping), key=_by_id)
        self.timeline = timelines.Timeline(self.space, later, self._stopping)
        self.order = order
        self.victims = victims.Victims(snapshot, now, bounds, order, self.facts)
        self.ends = backfilling.ExpectedEnds(snapshot.running)
        self.searches = clearing.Searches(taken)
        self.taken = taken
        self.heads: dict[object, backfilling.KeptPlace] = {}
        self.launches: list[plans.Launch] = []
        self.preemptions: dict[str, plans.Preemption] = {}
        self.resizes: dict[str, plans.Resize] = {}
        self.moves: dict[str, plans.Move] = {}
        self.going_to: dict[str, holdings.Claims] = {}  # new places of gangs that are moved
        self.refused: dict[str, refusals.Refusal] = {}
        self.restless = False  # as in the plan
        self._parts: holdings.Claims = ()
        self.context.kept = lambda: self._parts

    @cached_property
    def running(self) -> dict[str, plans.Running]:
        """The gangs that hold anything, by their ids."""
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
        """Return whether sums show that less is free than `amount`, now and later."""
        return self.taken.sums and self.timeline.later.exceeds(amount) and self.space.exceeds(amount)

    def place(self, gang: plans.Gang, size: plans.Size, *, later: bool = False) -> holdings.Claims | None:
        """Return a place in the space that is free now, or `later`; None where there is none."""
        space = self.timeline.later if later else self.space
        if self.taken.sums and space.exceeds(self.facts.of(gang).amount(size)):
            return None
        return placing.place(gang, space, size)

    def largest(
        self, gang: plans.Gang, least: plans.Size, most: plans.Size, *, later: bool = False
    ) -> holdings.Claims | None:
        """Return the place of the largest size between `least` and `most` that has one; None where none has."""
        return sizes.largest(least, most, lambda size: self.place(gang, size, later=later))

    # Decisions

    def launch(self, turn: turns.Turn, claims: holdings.Claims, why: str = "") -> None:
        gang, size = turn.candidate.gang, sizes.of_claims(turn.candidate.gang, claims)
        self.timeline.launch(claims)
        self.ends.come(gang, claims, self.now, at_once=True)
        self.bounds.add(gang, self._amount(gang, claims), now=True)
        reason = "; ".join(one for one in (why, turn.wish.reason) if one)
        self.launches.append(plans.Launch(job=gang.job, holdings=claims, reason=reason, batch=turn.batch(size)))

    def promise(self, gang: plans.Gang, claims: holdings.Claims) -> None:
        """Promise a place to a gang: it is launched there as soon as the place is free."""
        self.timeline.promise(claims)
        self.ends.come(gang, claims, self.now, at_once=False)
        self.bounds.add(gang, self._amount(gang, claims))

    def withdraw(self, gang: plans.Gang, claims: holdings.Claims) -> None:
        """Take back the promise of a place."""
        self.timeline.withdraw(claims)
        self.ends.gone(gang.job)
        self.bounds.add(gang, self._amount(gang, claims), -1)

    def _amount(self, gang: plans.Gang, claims: holdings.Claims) -> amounts.Amount:
        """Return the amount of these holdings: as the gang asks, but only its part of a shared device."""
        if any(claim.amount.gpu_milli for claim in claims):
            return amounts.of_claims(claims)
        return self.facts.of(gang).amount(sizes.of_claims(gang, claims))

    def stop(self, cleared: clearing.Clearance, gang: plans.Gang) -> None:
        """Let victims give way to `gang`."""
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

    def resize(self, running: plans.Running, claims: holdings.Claims, reason: str) -> None:
        """Restart a gang at another size."""
        self._leave(running)
        self._resize(running, claims, reason)

    def move(self, running: plans.Running, claims: holdings.Claims, reason: str) -> None:
        """Restart a gang in another place, or with another part of its device."""
        self._leave(running)
        self._move(running, claims, reason)

    def give_up(self, running: plans.Running, reason: str) -> None:
        """Stop a gang for its own sake. It waits again."""
        self._leave(running)
        self.preemptions[running.gang.job] = plans.Preemption(job=running.gang.job, reason=reason)
        self.order.back(running)

    def _leave(self, running: plans.Running) -> None:
        self._stopping.append(running)
        self.victims.decided(running.gang.job)
        self.ends.gone(running.gang.job)
        self.bounds.add(running.gang, self.facts.held(running).amount, -1)
        self.timeline.clear(running.holdings)

    def _resize(self, running: plans.Running, to: holdings.Claims, reason: str, by: str = "") -> None:
        gang, size = running.gang, sizes.of_claims(running.gang, to)
        self.promise(gang, to)
        self.resizes[gang.job] = plans.Resize(job=gang.job, size=size, to=to, reason=reason, by=by)

    def _move(self, running: plans.Running, to: holdings.Claims, reason: str) -> None:
        self.promise(running.gang, to)
        self.moves[running.gang.job] = plans.Move(job=running.gang.job, to=to, reason=reason)

    # Kept places

    def keep(self, gang: plans.Gang, size: plans.Size) -> backfilling.KeptPlace | None:
        """Keep a place for a gang that fits nowhere now, and return it; None where no end of gangs makes it fit."""
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
        """Return the kept places that are not needed before `gang` ends."""
        return [head for head in self.heads.values() if head.lasts(gang, self.now)]

    @contextmanager
    def without(self, heads: Iterable[backfilling.KeptPlace]) -> Iterator[None]:
        """Free the kept places of `heads` within the block. A gang may be launched there meanwhile."""
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

    def stopping(self, gang: plans.Gang, claims: holdings.Claims) -> list[plans.Gang]:
        """Return the stopping gangs that hold the promised place, or else the limit of the pool."""
        nodes = {claim.node for claim in claims}
        there = [job.gang for job in self._stopping if not nodes.isdisjoint(self.facts.held(job).nodes)]
        return there or [job.gang for job in self._stopping if job.gang.pool == gang.pool]


def _by_id(job: plans.Running) -> str:
    return job.job

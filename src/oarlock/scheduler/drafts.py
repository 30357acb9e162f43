"""The plan as far as it has been made: what is given away is taken off the room and counted in the pools at once.

Nothing is changed here that is not in the plan in the end. Who tries something out does so in a room that he leaves as
it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property

from oarlock.scheduler import explaining, impossible, ordering, placement, preempting, profiles, promises, reserving
from oarlock.scheduler import room as rooms
from oarlock.scheduler import usage as usages
from oarlock.scheduler import victims as giving
from oarlock.spec import curves, holdings, plans, refusals

Claims = tuple[holdings.Holding, ...]

TRIALS = 48
"""With so many trials of whether a gang fits once these or those are gone, no other search for whom to stop begins in
the same plan: the next one goes on.
"""


class Draft:
    """`later` is the room of the gangs that stay; `room` itself where that is the same, and will be."""

    def __init__(
        self,
        snapshot: plans.Snapshot,
        now: float,
        room: rooms.Room,
        later: rooms.Room,
        usage: usages.Usage,
        order: ordering.Order,
        known: profiles.Profiles,
        declared: impossible.Declared,
    ) -> None:
        self.snapshot = snapshot
        self.now = now
        self.rules = snapshot.rules
        self.room = room
        self.usage = usage
        self.known = known
        self.scene = explaining.Scene(snapshot, room, declared)
        self._stopping = [job for job in snapshot.running if job.stopping]
        self.promises = promises.Promises(room, later, self._stopping)
        self.order = order
        self.victims = giving.Victims(snapshot, now, usage, order, known)
        self.ends = reserving.Ends(snapshot.running)
        self.effort = preempting.Effort(TRIALS)
        self.heads: dict[object, reserving.Kept] = {}
        self.launches: list[plans.Launch] = []
        self.preemptions: dict[str, plans.Preemption] = {}
        self.resizes: dict[str, plans.Resize] = {}
        self.moves: dict[str, plans.Move] = {}
        self.going_to: dict[str, Claims] = {}  # of those that go on elsewhere, or with another part of their device
        self.refused: dict[str, refusals.Refusal] = {}
        self.restless = False  # as in the plan
        self._misses: dict[tuple[int, bool], list[plans.Size]] = {}
        self._parts: Claims = ()
        self.scene.kept = lambda: self._parts

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

    def full(self, amount: profiles.Amount) -> bool:
        """Whether there is not so much left, in sum, now or later."""
        return self.promises.later.exceeds(amount) and self.room.exceeds(amount)

    def place(self, gang: plans.Gang, size: plans.Size, *, later: bool = False) -> Claims | None:
        """A place in what is free now, or `later`. What has failed once in this plan fails for all that are like it,
        until more is cleared.
        """
        profile, room = self.known.of(gang), self.promises.later if later else self.room
        if room.exceeds(profile.amount(size)):
            return None
        missed = self._misses.setdefault((profile.shape, room is not self.room), [])
        if any(_at_least(size, one) for one in missed):
            return None
        claims = placement.place(gang, room, size)
        if claims is None:
            missed[:] = [one for one in missed if not _at_least(one, size)]
            missed.append(size)
        return claims

    def largest(self, gang: plans.Gang, least: plans.Size, most: plans.Size, *, later: bool = False) -> Claims | None:
        """The place of the largest size between these for which there is one."""
        claims = self.place(gang, most, later=later)
        if claims is not None or least == most:
            return claims
        claims = self.place(gang, least, later=later)
        if claims is None:
            return None
        low, high = 0, profiles.steps(least, most)
        while high - low > 1:
            middle = (low + high) // 2
            more = self.place(gang, profiles.step(least, most, middle), later=later)
            if more is None:
                high = middle
            else:
                low, claims = middle, more
        return claims

    # What is given away

    def launch(self, turn: ordering.Turn, claims: Claims, why: str = "") -> None:
        gang, size = turn.candidate.gang, sizes_of(turn.candidate.gang, claims)
        self.promises.launch(claims)
        self.ends.come(gang, claims, self.now, at_once=True)
        self.usage.add(gang, self._amount(gang, claims), now=True)
        reason = "; ".join(one for one in (why, turn.wish.reason) if one)
        self.launches.append(plans.Launch(job=gang.job, holdings=claims, reason=reason, batch=turn.batch(size)))

    def promise(self, gang: plans.Gang, claims: Claims) -> None:
        """It comes as soon as that is free."""
        self.promises.promise(claims)
        self.ends.come(gang, claims, self.now, at_once=False)
        self.usage.add(gang, self._amount(gang, claims))

    def withdraw(self, gang: plans.Gang, claims: Claims) -> None:
        """What it was promised is as it was before."""
        self.promises.withdraw(claims)
        self.ends.gone(gang.job)
        self.usage.add(gang, self._amount(gang, claims), -1)
        self._misses.clear()

    def _amount(self, gang: plans.Gang, claims: Claims) -> profiles.Amount:
        """What it holds with these: as it asks, but of a device that it shares its part."""
        if any(claim.amount.gpu_milli for claim in claims):
            return profiles.of_claims(claims)
        return self.known.of(gang).amount(sizes_of(gang, claims))

    def stop(self, cleared: preempting.Clearance, gang: plans.Gang) -> None:
        """These give way to `gang`."""
        for victim in cleared.victims:
            self._leave(victim.running)
        places = iter(cleared.moved)
        for victim in cleared.victims:
            if victim.stays:
                self._move(victim.running, next(places), f"moved to make room for {gang.name}")
            elif any(victim.left):
                reason = f"to make room for {gang.name}"
                self._resize(victim.running, giving.left(victim.running, victim.claims), reason, by=gang.job)
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
        self.victims.gone(running.gang.job)
        self.ends.gone(running.gang.job)
        self.usage.add(running.gang, self.known.held(running).amount, -1)
        self.promises.clear(running.holdings)
        self._misses = {key: sizes for key, sizes in self._misses.items() if not key[1]}

    def _resize(self, running: plans.Running, to: Claims, reason: str, by: str = "") -> None:
        gang, size = running.gang, sizes_of(running.gang, to)
        self.promise(gang, to)
        self.resizes[gang.job] = plans.Resize(job=gang.job, size=size, to=to, reason=reason, by=by)

    def _move(self, running: plans.Running, to: Claims, reason: str) -> None:
        self.promise(running.gang, to)
        self.moves[running.gang.job] = plans.Move(job=running.gang.job, to=to, reason=reason)

    # What is kept

    def keep(self, gang: plans.Gang, size: plans.Size) -> reserving.Kept | None:
        """A place for one that fits nowhere now: those after it get round it."""
        found = reserving.keep(gang, size, self.ends.order(), self.promises, self.known)
        if found is None:
            return None
        kept, over = found
        amount = self.known.of(gang).amount(size)
        self.usage.shade(gang, amount, reserving.ended(over, self.known), kept.at)
        self.heads[self.known.of(gang).kind] = kept
        self._parts += kept.parts
        return kept

    def lasting(self, gang: plans.Gang) -> list[reserving.Kept]:
        """The kept places that are not needed before it is over."""
        return [head for head in self.heads.values() if head.lasts(gang, self.now)]

    def spare_enders(self) -> None:
        """Nobody is to stop those whose ends somebody waits for who came first."""
        self.victims.spare({job for head in self.heads.values() for job in head.enders})

    @contextmanager
    def without(self, heads: Iterable[reserving.Kept]) -> Iterator[None]:
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
        there = [job.gang for job in self._stopping if not nodes.isdisjoint(self.known.held(job).nodes)]
        return there or [job.gang for job in self._stopping if job.gang.pool == gang.pool]


def sizes_of(gang: plans.Gang, claims: Sequence[holdings.Holding]) -> plans.Size:
    if len(gang.asks) == 1:
        return (len(claims),)
    return tuple(sum(claim.role == ask.role for claim in claims) for ask in gang.asks)


def _at_least(size: plans.Size, other: plans.Size) -> bool:
    return all(one >= two for one, two in zip(size, other, strict=True))

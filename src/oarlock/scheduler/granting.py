"""Wish by wish: who starts where, who grows, who is stopped for whom, and what the others wait for.

Each gang is one transaction: it gets a whole place, or nothing of it is taken. In its turn a gang

1. must be admitted by its pool: the limits; its reservation, where it must not be preempted; its entitlement, else it
   is looked at again at the end, when it may borrow what nobody entitled wants;
2. is launched where it fits into what is free;
3. is promised what is being cleared, where it fits then;
4. has others moved, shrunk or stopped for it, where the policy's levels or the pools' entitlements allow it;
5. is kept a place for, if it is the first of its kind that fits nowhere (`reserving`), so that those after it may start
   beside it and never in its way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import msgspec

from oarlock.scheduler import explaining, ordering, placement, preempting, promises, reserving
from oarlock.scheduler import room as rooms
from oarlock.scheduler import usage as usages
from oarlock.scheduler import victims as giving
from oarlock.spec import curves, holdings, plans, refusals

Claims = promises.Claims

CLEARANCES = 16
"""Gangs for which a plan looks whom to stop: the first in order; the others have their turn in the next round."""

HEADS = 4
"""Gangs for which a place is kept, each of another kind of device."""


Word = Callable[[plans.Gang, usages.Over, int], refusals.Refusal]


class Granting:
    """The state of one plan. `grant` every turn, then `finish`."""

    def __init__(self, snapshot: plans.Snapshot, now: float, room: rooms.Room, usage: usages.Usage) -> None:
        self.snapshot = snapshot
        self.now = now
        self.room = room
        self.usage = usage
        self.rules = snapshot.rules
        self.scene = explaining.Scene(snapshot, room)
        self.promises = promises.Promises(
            room, (claim for job in snapshot.running if job.stopping for claim in job.holdings)
        )
        self.victims = giving.Victims(snapshot, now, usage)
        self.heads: dict[object, reserving.Kept] = {}
        self.scene.kept = lambda: (part for head in self.heads.values() for part in head.parts)
        self.launches: list[plans.Launch] = []
        self.preemptions: dict[str, plans.Preemption] = {}
        self.resizes: dict[str, plans.Resize] = {}
        self.moves: dict[str, plans.Move] = {}
        self.refused: dict[str, refusals.Refusal] = {}
        self._deferred: list[tuple[ordering.Turn, usages.Over]] = []
        self._clearances = CLEARANCES
        self._ahead = 0
        self._kept: list[ordering.Turn] = []  # whose batch size was decided
        self._idle = True  # nobody waits for room

    def consider(self, turns: Iterable[ordering.Turn]) -> None:
        """All wishes at once: who wishes for less than it has gives the rest to whoever has a use for it."""
        for turn in turns:
            self.victims.learn(turn)
            if turn.wish.batch is not None:
                self._kept.append(turn)

    def grant(self, turn: ordering.Turn) -> None:
        candidate, wish = turn.candidate, turn.wish
        running = candidate.running
        if running is not None and not running.stopping:
            if self.snapshot.reallocate and turn.sizing and _more(wish.size, running.size):
                self._grow(turn, running)
            return
        gang = candidate.gang
        if running is None:
            self._ahead += 1
        if gang.not_before is not None and gang.not_before > self.now:
            self.refused[gang.job] = explaining.backing_off(gang)
        elif not any(wish.size):
            self._refuse(gang, explaining.outranked(gang, wish.reason, self._ahead - 1))
        elif (size := self._admitted(turn)) is not None:
            self._seat(turn, size)

    def finish(self) -> plans.Plan:
        for turn, over in self._deferred:
            self._lend(turn, over)
        return plans.Plan(
            launches=tuple(self.launches),
            preemptions=tuple(self.preemptions.values()),
            resizes=tuple(self.resizes.values()),
            moves=tuple(self.moves.values()),
            refusals=self.refused,
            batches=self._batches(),
        )

    def _batches(self) -> dict[str, curves.Batch]:
        """Who goes on where it is, with another batch size."""
        stopped = {*self.preemptions, *self.resizes, *self.moves}
        found: dict[str, curves.Batch] = {}
        for turn in self._kept if self.snapshot.reallocate else ():
            running = turn.candidate.running
            if running is not None and not running.stopping and running.job not in stopped:
                batch = _batch(turn, running.size)
                if batch is not None and batch != running.batch:
                    found[running.job] = batch
        return found

    # Admission

    def _admitted(self, turn: ordering.Turn) -> plans.Size | None:
        """The largest size within the pool's bounds; None where not even the smallest is: refused, or put off."""
        gang, over = turn.candidate.gang, None
        for size in sizes(gang, turn.wish.size):
            over = self._over(gang, gang.amount(size))
            if over is None:
                return size
        if over is not None and over[1] is explaining.pool_share and gang.preemptible:
            self._deferred.append((turn, over[0]))
        elif over is not None:
            self._refuse(gang, over[1](gang, over[0], self._ahead - 1))
        return None

    def _over(self, gang: plans.Gang, amount: holdings.Resources) -> tuple[usages.Over, Word] | None:
        """The bound that it would exceed, and how that is said."""
        if limit := self.usage.over_limit(gang, amount):
            return limit, explaining.pool_limit
        if reservation := self.usage.over_reservation(gang, amount):
            return reservation, explaining.not_reserved
        if entitlement := self.usage.over_entitlement(gang, amount):
            return entitlement, explaining.pool_share
        return None

    # Places

    def _seat(self, turn: ordering.Turn, size: plans.Size) -> None:
        gang = turn.candidate.gang
        if self.heads and not self.rules.backfill:
            self._refuse(gang, explaining.behind(gang, self._first_head(), self._ahead - 1))
            return
        tried = [size] if turn.sizing and not self.snapshot.reallocate else list(sizes(gang, size))
        returning = turn.candidate.running is not None
        for one in tried:
            if (claims := self._free_place(gang, one)) is not None:
                self._promise(gang, claims) if returning else self._launch(turn, claims)
                return
        if self.promises.clearing:
            for one in tried:
                if (claims := self.promises.place(gang, one)) is not None:
                    self._promise(gang, claims)
                    self._refuse(gang, explaining.stopping(gang, self._stopping(claims)))
                    return
        if not returning and not self._clear(turn, tried[-1] if not turn.sizing else size):
            self._wait(gang, tried[-1])

    def _free_place(self, gang: plans.Gang, size: plans.Size) -> Claims | None:
        """Where it was destined to go, if that is free; else the best place."""
        if gang.destined and _counts(gang, gang.destined) == size and promises.is_free(gang.destined, self.room):
            return gang.destined
        return placement.place(gang, self.room, size)

    def _launch(self, turn: ordering.Turn, claims: Claims) -> None:
        gang = turn.candidate.gang
        self.room.take(claims)
        self.usage.add(gang, _sum(claims))
        reason = turn.wish.reason
        if self.heads:
            beside = f"beside {self._first_head().name}, whose place is kept"
            reason = f"{beside}; {reason}" if reason else beside
        self.launches.append(
            plans.Launch(job=gang.job, holdings=claims, reason=reason, batch=_batch(turn, _counts(gang, claims)))
        )

    def _promise(self, gang: plans.Gang, claims: Claims) -> None:
        self.promises.promise(claims)
        self.usage.add(gang, _sum(claims))

    def _wait(self, gang: plans.Gang, size: plans.Size) -> None:
        """It fits nowhere now: never, or later. The first of its kind has its place kept."""
        impossible = explaining.newly_impossible(gang, self.scene)
        if impossible is not None:
            self._refuse(gang, impossible)
            return
        self._idle = False
        kind = reserving.kind(gang)
        head = self.heads.get(kind)
        refusal = explaining.no_capacity(gang, self.scene, self._ahead - 1)
        if head is None and len(self.heads) < HEADS:
            head = reserving.keep(gang, size, self.victims.staying(), self.promises)
            if head is not None:
                self.heads[kind] = head
                refusal = msgspec.structs.replace(refusal, kept=head.nodes)
        elif head is not None and (claims := head.before(gang, size, self.now)) is not None:
            self.usage.add(gang, _sum(claims))
            reason = f"it is over before the place of {head.gang.name} is free"
            self.launches.append(plans.Launch(job=gang.job, holdings=claims, reason=reason))
            return
        elif head is not None and self.scene.telling(self._ahead) and head.in_the_way(gang, size):
            refusal = explaining.reserved(gang, head.gang, head.at, self._ahead - 1)
        self._refuse(gang, refusal)

    def _lend(self, turn: ordering.Turn, over: usages.Over) -> None:
        """Beyond its entitlement, of what nobody entitled can use: only what is free, and to be given back."""
        gang = turn.candidate.gang
        for size in sizes(gang, turn.wish.size):
            amount = gang.amount(size)
            if self.usage.over_limit(gang, amount) is None and (claims := self._free_place(gang, size)) is not None:
                if turn.candidate.running is not None:
                    self._promise(gang, claims)
                else:
                    self._launch(turn, claims)
                return
        self._refuse(gang, explaining.pool_share(gang, over, self._ahead - 1))

    # Others give way

    def _clear(self, turn: ordering.Turn, size: plans.Size) -> bool:
        """Move, shrink or stop others for it; False where that would not do, or is not to be done now."""
        if not self.snapshot.reallocate or self._clearances == 0:
            return False
        self._clearances -= 1
        gang = turn.candidate.gang
        for candidates in self._ways(gang, size, turn.wish.level):
            cleared = preempting.clear(gang, size, candidates, self.promises)
            if cleared is not None:
                self._stop(cleared, gang)
                self._promise(gang, cleared.claims)
                self._refuse(gang, explaining.stopping(gang, [one.running.gang for one in cleared.victims]))
                return True
        return False

    def _ways(self, gang: plans.Gang, size: plans.Size, level: float) -> Iterator[list[preempting.Victim]]:
        """From what costs others least: moving them, shrinking them, stopping them."""
        if gang.amount(size).fits(self.room.free()):
            yield self.victims.movable(gang)
        shrinkable = self.victims.shrinkable(gang, level)
        yield shrinkable
        whole = list(self.victims.killable(gang, level))
        ended = {victim.running.job for victim in whole}
        yield [*(victim for victim in shrinkable if victim.running.job not in ended), *whole]

    def _stop(self, cleared: preempting.Clearance, gang: plans.Gang) -> None:
        places = iter(cleared.moved)
        for victim in cleared.victims:
            job = victim.running.job
            self.victims.gone(job)
            self.promises.clear(victim.running.holdings)
            if victim.stays:
                to = next(places)
                self.promises.promise(to)
                self.moves[job] = plans.Move(job=job, to=to, reason=f"moved to make room for {gang.name}")
            elif any(victim.left):
                left = giving.left(victim.running, victim.claims)
                self.promises.promise(left)
                self.usage.add(victim.running.gang, _sum(victim.claims), -1)
                reason = f"from {_text(victim.running.gang, victim.running.size)} to make room for {gang.name}"
                self.resizes[job] = plans.Resize(job=job, size=victim.left, to=left, reason=reason)
            else:
                self.usage.add(victim.running.gang, _sum(victim.claims), -1)
                reason = f"{gang.name} takes its place"
                self.preemptions[job] = plans.Preemption(job=job, reason=reason, by=gang.job)

    def _grow(self, turn: ordering.Turn, running: plans.Running) -> None:
        """A running gang to a larger size: with what it has and what is free, or what others give up for it."""
        gang, size = running.gang, turn.wish.size
        more = gang.amount(size) - gang.amount(running.size)
        if self.usage.over_limit(gang, more) or running.job in self.resizes or self.victims.is_gone(running.job):
            return
        claims = self.promises.place(gang, size, running.holdings)
        if claims is None and self._clearances:
            self._clearances -= 1
            for candidates in (self.victims.donors(gang),):
                cleared = preempting.clear(gang, size, candidates, self.promises, running.holdings)
                if cleared is not None:
                    self._stop(cleared, gang)
                    claims = cleared.claims
                    break
        if claims is None:
            return
        self.victims.gone(running.job)
        self.promises.clear(running.holdings)
        self.promises.promise(claims)
        self.usage.add(gang, more)
        reason = turn.wish.reason or f"from {_text(gang, running.size)}: devices are idle"
        self.resizes[running.job] = plans.Resize(job=running.job, size=size, to=claims, reason=reason)

    # Words

    def _refuse(self, gang: plans.Gang, refusal: refusals.Refusal) -> None:
        self.refused[gang.job] = refusal

    def _first_head(self) -> plans.Gang:
        return next(iter(self.heads.values())).gang

    def _stopping(self, claims: Claims) -> list[plans.Gang]:
        """Who holds now what was promised."""
        nodes = {claim.node for claim in claims}
        return [
            job.gang for job in self.snapshot.running if job.stopping and any(one.node in nodes for one in job.holdings)
        ]


def sizes(gang: plans.Gang, size: plans.Size) -> Iterator[plans.Size]:
    """`size`, then less and less of what is above the gang's least, then that."""
    if size == gang.smallest:
        yield size
        return
    seen: set[plans.Size] = set()
    for share in (4, 3, 2, 1, 0):
        one = tuple(least + (wanted - least) * share // 4 for least, wanted in zip(gang.smallest, size, strict=True))
        if one not in seen:
            seen.add(one)
            yield one


def _more(size: plans.Size, than: plans.Size) -> bool:
    return sum(size) > sum(than)


def _counts(gang: plans.Gang, claims: Claims) -> plans.Size:
    return tuple(sum(claim.role == ask.role for claim in claims) for ask in gang.asks)


def _batch(turn: ordering.Turn, size: plans.Size) -> curves.Batch | None:
    """The batch size that was decided for it, if it gets the size for which it was decided."""
    return turn.wish.batch if turn.wish.size == size else None


def _sum(claims: Iterable[holdings.Holding]) -> holdings.Resources:
    return sum((claim.amount for claim in claims), rooms.NOTHING)


def _text(gang: plans.Gang, size: plans.Size) -> str:
    """`4 workers, 1 ps`."""
    return ", ".join(
        f"{count} {ask.role}{'s' if count != 1 and ask.role != 'ps' else ''}"
        for ask, count in zip(gang.asks, size, strict=True)
        if count
    )

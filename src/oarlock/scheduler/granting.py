"""Wish by wish: who starts where, who is stopped for whom, and what the others wait for.

Each gang is one transaction: it gets a whole place, or nothing of it is taken. In its turn a gang

1. must be admitted by its pool: the limits; its reservation, where it must not be preempted; its entitlement, else it
   is looked at again at the end, when it may borrow what nobody entitled wants;
2. is launched where it fits into what is free, at the largest size that does;
3. is promised what is being cleared, where it fits then;
4. has others moved, shrunk or stopped for it, where the policy's levels or the pools' entitlements allow it;
5. is kept a place for, if it is the first of its kind that fits nowhere (`reserving`), so that those after it may start
   beside it and never in its way; unless its policy sees to it by levels that they make way for it later.

Who was stopped only to go on elsewhere or at another size comes before all others: its place is waiting for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from oarlock.scheduler import (
    drafts,
    explaining,
    growing,
    ordering,
    placement,
    preempting,
    profiles,
    reserving,
    resuming,
)
from oarlock.scheduler import usage as usages
from oarlock.spec import curves, holdings, plans, refusals

Claims = tuple[holdings.Holding, ...]

CLEARANCES = 16
"""Gangs for which a plan looks whom to stop: the first in order; the others have their turn in the next round."""

HEADS = 4
"""Gangs for which a place is kept, each of another kind of device."""

TRIED_WITHOUT_HEADS = 32
"""Gangs of which it is tried whether they would fit, were no place kept for others: only words hang on it."""

_WORDS = {
    usages.Kind.LIMIT: explaining.pool_limit,
    usages.Kind.RESERVATION: explaining.not_reserved,
    usages.Kind.ENTITLEMENT: explaining.pool_share,
}


class Granting:
    """The turns of one plan, from all leaves' policies."""

    def __init__(self, draft: drafts.Draft, order: ordering.Order) -> None:
        self.draft = draft
        self.rules = draft.rules
        self.usage = draft.usage
        self._turns = order.turns
        self._deferred: dict[str, list[ordering.Turn]] = {}
        self._over: dict[str, usages.Over] = {}
        self._seated: dict[str, Claims] = {}  # where those go on that were stopped only for that
        self._resumed: set[str] = set()  # those of them that start now
        self._promised: dict[str, Claims] = {}  # what is kept, until its turn, for one for which others were stopped
        self._clearances = CLEARANCES if draft.snapshot.reallocate else 0
        self._hopeless: dict[tuple[str, int, plans.Size, bool], float] = {}
        self._tried = 0
        self._ahead = 0
        self._crowded = False  # somebody waits for room
        self._overtaken: dict[str, plans.Gang] = {}  # of each pool the first that does

    def plan(self) -> plans.Plan:
        for turn in self._all():
            self.draft.victims.learn(turn)
        turns = sorted(self._all(), key=lambda turn: turn.candidate.arrival)
        self._seated = resuming.destined(self.draft, turns)
        self._resumed = {launch.job for launch in self.draft.launches}
        self._promised = resuming.promised(self.draft, turns)
        for turn in ordering.by_need(self._turns, self.usage, self._goes_on):
            self._grant(turn)
        for turn in ordering.by_need(self._deferred, self.usage, lambda _: False):
            self._lend(turn)
        if self.draft.snapshot.reallocate and not self._crowded:
            growing.into_idle(self.draft, self._all())
        return self.draft.finished(self._batches())

    def _goes_on(self, turn: ordering.Turn) -> bool:
        """It runs as its owner asked, and nobody has taken its place in this plan."""
        return turn.runs and not turn.sizing and turn.wish.job not in self.draft.preemptions

    def _all(self) -> Iterator[ordering.Turn]:
        return (turn for turns in self._turns.values() for turn in turns)

    def _batches(self) -> dict[str, curves.Batch]:
        """Who goes on where it is, with another batch size."""
        found: dict[str, curves.Batch] = {}
        for turn in self._all() if self.draft.snapshot.reallocate else ():
            running = turn.candidate.running
            if turn.wish.batch is not None and running is not None and turn.runs:
                batch = turn.batch(running.size)
                if batch is not None and batch != running.batch and not self.draft.victims.is_gone(running.job):
                    found[running.job] = batch
        return found

    # One after the other

    def _grant(self, turn: ordering.Turn) -> None:
        gang = turn.candidate.gang
        if turn.runs and gang.job not in self.draft.preemptions:
            if self.draft.snapshot.reallocate:
                self._clearances -= growing.as_wished(self.draft, turn, clear=self._clearances > 0)
            return
        if turn.candidate.running is None:
            self._ahead += 1
        promised = self._promised.pop(gang.job, None)
        if promised is not None:
            self.draft.withdraw(gang, promised)
        if gang.job in self._seated:
            self._say_stopping(turn, self._seated[gang.job])
        if gang.job in self._seated or gang.job in self._resumed:
            return
        if self._backs_off(gang):
            self._refuse(turn, explaining.backing_off(gang))
        elif not any(turn.wish.size):
            self._refuse(turn, explaining.outranked(gang, turn.wish.reason, self._ahead - 1))
        elif promised is None and self.draft.heads and not self.rules.backfill:
            self._refuse(turn, explaining.behind(gang, self._first_head(), self._ahead - 1))
        else:
            size, over = self._admitted(turn, promised=promised is not None)
            if size is not None:
                self._seat(turn, size, promised=promised is not None)
            elif over is not None and not self._clear(turn, self._least(turn)):
                self._hold_off(turn, over)

    def _admitted(self, turn: ordering.Turn, *, promised: bool) -> tuple[plans.Size | None, usages.Over | None]:
        """The largest size within the bounds of its pools; None where not even its least is, and which one that is. For
        one that was promised its place it is enough that no limit is exceeded.
        """
        gang, most, least = turn.candidate.gang, turn.wish.size, self._least(turn)
        profile = self.draft.known.of(gang)

        def over(size: plans.Size) -> usages.Over | None:
            found = self.usage.over(gang, profile.amount(size))
            soft = found is not None and (found.kind is usages.Kind.ENTITLEMENT or found.first is not None)
            return None if promised and soft else found

        if over(most) is None:
            return most, None
        if (found := over(least)) is not None:
            return None, found
        return self._largest(least, most, lambda size: over(size) is None), None

    def _largest(self, least: plans.Size, most: plans.Size, fits: Callable[[plans.Size], bool]) -> plans.Size:
        """Between these; `least` is known to fit, `most` not to."""
        low, high = 0, profiles.steps(least, most)
        while high - low > 1:
            middle = (low + high) // 2
            if fits(profiles.step(least, most, middle)):
                low = middle
            else:
                high = middle
        return profiles.step(least, most, low)

    def _least(self, turn: ordering.Turn) -> plans.Size:
        """Below this it is not started. A size that a policy has decided is right once others have given way, so it is
        cut down only in a plan in which they may.
        """
        if turn.sizing and not self.draft.snapshot.reallocate:
            return turn.wish.size
        return turn.candidate.gang.smallest

    def _hold_off(self, turn: ordering.Turn, over: usages.Over) -> None:
        """It exceeds a bound: it waits until it does not, or borrows. The first that waits for it casts a shadow."""
        gang, draft = turn.candidate.gang, self.draft
        if over.first is not None:
            self._refuse(turn, explaining.behind(gang, over.first, self._ahead - 1))
            return
        least = draft.known.of(gang).least
        if not self.usage.bound(gang, over).shadows and self.usage.could_fit(gang, least):
            reserving.shade(gang, least, over, self.usage, draft.ends, draft.known)
        if over.kind is usages.Kind.ENTITLEMENT and gang.preemptible:
            self._deferred.setdefault(gang.pool, []).append(turn)
            self._over[gang.job] = over
        self._refuse(turn, _WORDS[over.kind](gang, over, self._ahead - 1))

    def _seat(self, turn: ordering.Turn, size: plans.Size, *, promised: bool) -> None:
        """It is within its pools' bounds at `size`. One that was promised a place has one again, now or later."""
        gang, least, draft = turn.candidate.gang, self._least(turn), self.draft
        if not turn.reserves and not gang.preemptible and not promised and (first := self._overtaken.get(gang.pool)):
            self._refuse(turn, explaining.behind(gang, first, self._ahead - 1))
            return
        claims = draft.largest(gang, least, size)
        if claims is not None:
            self._take(turn, claims)
        elif draft.promises.later is not draft.room and (
            (claims := draft.largest(gang, least, size, later=True)) is not None
        ):
            self._promise(turn, claims, cleared=promised)
        elif not self._clear(turn, size if turn.sizing else least):
            self._wait(turn, least)

    def _take(self, turn: ordering.Turn, claims: Claims) -> None:
        """What is free now: at once, unless it is stopping itself, or others hold what its pool is limited to."""
        gang = turn.candidate.gang
        amount = self.draft.known.of(gang).amount(drafts.sizes_of(gang, claims))
        if turn.candidate.running is not None or not self.usage.fits_now(gang, amount):
            self._promise(turn, claims)
        else:
            beside = f"beside {self._first_head().name}, whose place is kept" if self.draft.heads else ""
            self._launch(turn, claims, beside)

    def _launch(self, turn: ordering.Turn, claims: Claims, why: str = "") -> None:
        self.draft.launch(turn, claims, why)
        self.draft.refused.pop(turn.wish.job, None)

    def _promise(self, turn: ordering.Turn, claims: Claims, *, cleared: bool = False) -> None:
        """It comes once that is free. With `cleared` it is for its sake that it will be (see `resuming`)."""
        gang = turn.candidate.gang
        self.draft.promise(gang, claims)
        self._say_stopping(turn, claims, cleared=cleared)

    def _wait(self, turn: ordering.Turn, size: plans.Size) -> None:
        """It fits nowhere now: never, or later. The first of its kind has its place kept."""
        gang, draft = turn.candidate.gang, self.draft
        impossible = explaining.newly_impossible(gang, draft.scene)
        if impossible is not None:
            self._refuse(turn, impossible)
            return
        self._crowded = True
        self._overtaken.setdefault(gang.pool, gang)
        kind = draft.known.of(gang).kind
        if kind not in draft.heads and len(draft.heads) < HEADS and (turn.reserves or not self.rules.backfill):
            refusal = explaining.no_capacity(gang, draft.scene, self._ahead - 1)
            head = draft.keep(gang, size)
            self._refuse(turn, refusal if head is None else msgspec.structs.replace(refusal, kept=head.nodes))
        elif not self._before(turn, size):
            self._refuse(turn, self._reserved(gang, size) or explaining.no_capacity(gang, draft.scene, self._ahead - 1))

    def _before(self, turn: ordering.Turn, size: plans.Size) -> bool:
        """Start one that is over before the places are needed that are kept, as its time-out promises."""
        gang, draft = turn.candidate.gang, self.draft
        lasting = [head for head in draft.heads.values() if head.lasts(gang, draft.now)]
        if not lasting or turn.candidate.running is not None:
            return False
        with draft.without(lasting):
            claims = placement.place(gang, draft.room, size)
            if claims is None or not self.usage.fits_now(gang, draft.known.of(gang).amount(size)):
                return False
            self._launch(turn, claims, f"it is over before the place of {lasting[0].gang.name} is free")
        return True

    def _reserved(self, gang: plans.Gang, size: plans.Size) -> refusals.Refusal | None:
        """Whether it only waits because places are kept. Deep in the queue what was found before holds."""
        known = gang.refusal
        deep = self._ahead > explaining.REFRESHED and known is not None and known.code is not refusals.Code.RESERVED
        if deep or not self.draft.heads or self.draft.scene.terse or self._tried >= TRIED_WITHOUT_HEADS:
            return None
        self._tried += 1
        draft = self.draft
        with draft.without(draft.heads.values()):
            if placement.place(gang, draft.room, size) is None:
                return None
        head = draft.heads.get(draft.known.of(gang).kind) or next(iter(draft.heads.values()))
        return explaining.reserved(gang, head.gang, head.at, self._ahead - 1, head.nodes)

    def _lend(self, turn: ordering.Turn) -> None:
        """Beyond its entitlement, of what nobody entitled can use: what is free, and to be given back. Where nobody
        entitled waits for room, the first for whom there is none takes the place of those in its pool that rank lower.
        """
        gang, draft = turn.candidate.gang, self.draft
        most, least, profile = turn.wish.size, self._least(turn), draft.known.of(gang)

        def lendable(size: plans.Size) -> bool:
            over = self.usage.over(gang, profile.amount(size))
            return over is None or (over.kind is usages.Kind.ENTITLEMENT and over.first is None)

        if not lendable(least):
            return
        size = most if lendable(most) else self._largest(least, most, lendable)
        if (claims := draft.largest(gang, least, size)) is not None:
            self._take(turn, claims)
        elif (claims := draft.largest(gang, least, size, later=True)) is not None:
            self._promise(turn, claims)
        elif self._crowded or not self._clear(turn, least, lent=True):
            self._crowded = True

    # Others give way

    def _clear(self, turn: ordering.Turn, size: plans.Size, *, lent: bool = False) -> bool:
        """Move, shrink or stop others for it; False where that would not do, or is not to be done now. With `lent` its
        pool is beyond its entitlement, and may be as far beyond it afterwards.
        """
        gang, draft = turn.candidate.gang, self.draft
        if turn.candidate.running is not None or self._clearances <= 0:
            return False
        profile, level = draft.known.of(gang), turn.wish.level
        key = gang.pool, profile.shape, size, lent
        if key in self._hopeless and level >= self._hopeless[key]:
            return False
        amount = profile.amount(size)
        need = preempting.Need(
            gang,
            size,
            amount,
            lambda freed: self.usage.over(gang, amount, freed, lent=lent) is None,
            tuple(draft.heads.values()),
        )
        draft.spare_enders()
        looked = False
        for candidates in self._ways(turn, size, lent=lent):
            self._clearances -= bool(candidates) and not looked
            looked = looked or bool(candidates)
            cleared = preempting.clear(need, candidates, draft.promises.later, draft.victims.reshaped)
            if cleared is not None:
                draft.stop(cleared, gang)
                self._promise(turn, cleared.claims, cleared=True)
                return True
        self._hopeless[key] = level
        return False

    def _ways(self, turn: ordering.Turn, size: plans.Size, *, lent: bool) -> Iterator[list[preempting.Victim]]:
        """From what costs others least: moving them, shrinking them, stopping them."""
        gang, victims = turn.candidate.gang, self.draft.victims
        if gang.amount(size).fits(self.draft.promises.later.free()):
            yield victims.movable(gang, turn.wish.level)
        shrinkable = victims.shrinkable(gang, turn.wish.level, own=lent)
        yield shrinkable
        amount = self.draft.known.of(gang).amount(size)
        whole = list(victims.killable(gang, amount, turn.wish.level, own=lent))
        ended = {victim.job for victim in whole}
        yield [*(victim for victim in shrinkable if victim.job not in ended), *whole]

    # Words

    def _say_stopping(self, turn: ordering.Turn, claims: Claims, *, cleared: bool = False) -> None:
        gang = turn.candidate.gang
        kept = tuple(dict.fromkeys(claim.node for claim in claims)) if cleared else ()
        self._refuse(turn, explaining.stopping(gang, self.draft.stopping(gang, claims), self._ahead - 1, kept))

    def _refuse(self, turn: ordering.Turn, refusal: refusals.Refusal) -> None:
        if turn.candidate.running is None:
            self.draft.refuse(turn.candidate.gang, refusal)

    def _backs_off(self, gang: plans.Gang) -> bool:
        return gang.not_before is not None and gang.not_before > self.draft.now

    def _first_head(self) -> plans.Gang:
        return next(iter(self.draft.heads.values())).gang

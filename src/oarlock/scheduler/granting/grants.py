"""The decisions of one plan, wish by wish: launches, preemptions, and the refusals of the gangs that wait.

Each gang is one transaction: it gets a whole place, or nothing of it is taken. In its turn a gang

1. must be admitted by its pool: by the limits, by the reservation if the gang must not be preempted, and by the
   entitlement. A gang beyond the entitlement has another turn at the end: it may borrow from other pools;
2. is launched where it fits into the free space, at the largest size that fits;
3. is promised space that is being cleared, if it fits there;
4. shares the device of another gang, if its policy wishes that (`sharing`);
5. has other gangs moved, shrunk or stopped for it, if the policy's levels or the pools' entitlements allow it;
6. has a place kept for it, if it is the first of its kind that fits nowhere (`backfilling`). Later gangs may start
   beside that place and never delay it. No place is kept where the policy's levels make later gangs give way.

Before all turns, gangs that were stopped for a resize or a move go on in their places (`resuming`), and running gangs
go to the type of GPU that their policy wishes (`rearranging`). In the end, running gangs get the space that no waiting
gang could use: a better place (`moving`), or a larger size (`growing`).
"""

from __future__ import annotations

import collections
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import msgspec

from oarlock.scheduler import amounts, sizes
from oarlock.scheduler.explaining import contexts, reasons
from oarlock.scheduler.granting import backfilling, drafts, growing, moving, rearranging, resuming, sharing
from oarlock.scheduler.ordering import queues, turnorder, turns
from oarlock.scheduler.placement import placing
from oarlock.scheduler.pools import poolbounds
from oarlock.scheduler.preemption import clearing
from oarlock.spec import curves, holdings, plans, refusals

LOWEST = (32, 128)
"""Numbers of candidates that are searched before all of them are, so that the gangs that rank lowest give way."""

HEADS = 4
"""Gangs for which a place is kept, each of another kind of device."""

TRIED_WITHOUT_HEADS = 32
"""Gangs that are tried in the free space without the kept places. Only the text of refusals depends on it."""

WAITS = frozenset(
    {
        refusals.Code.NO_CAPACITY,
        refusals.Code.RESERVED,
        refusals.Code.BEHIND,
        refusals.Code.POOL_LIMIT,
        refusals.Code.POOL_SHARE,
        refusals.Code.NOT_RESERVED,
    }
)
"""Reasons that are repeated for a gang deep in the queue.

The gangs before it have to start first, and the exact reason changes with every job that ends.
"""


class Blocked(NamedTuple):
    """The refusal of the first gang of a kin. Later gangs of the kin that rank no higher are refused too.

    The reason is a bound (`over`), an impossible request, or too little free space. A gang that ends before `until` is
    exempt: the part of a bound that is kept for an earlier gang is not needed sooner.

    A later gang would be refused by itself, until some gang gives something up: `given_up` is the number of such events
    before the refusal (as in `PoolBounds`). After that it might fit, but it does not overtake the first one.
    """

    level: float
    given_up: int
    over: poolbounds.Over | None = None
    lends: bool = False
    until: float | None = None
    impossible: bool = False


class Granting:
    """The turns of one plan, from the policies of all leaf pools."""

    def __init__(self, draft: drafts.Draft) -> None:
        self.draft = draft
        self.rules = draft.rules
        self.bounds = draft.bounds
        self.order = draft.order
        self._single = draft.bounds.single
        self._seated: dict[str, holdings.Claims] = {}  # places of gangs that were stopped for a resize or a move
        self._resumed: set[str] = set()  # the gangs among them that start now
        self._promised: dict[str, holdings.Claims] = {}  # places of gangs for which others are being stopped
        self._blocked: dict[int, Blocked] = {}  # by kin, or by claim where a bound forbids it
        self._follows = False  # an earlier gang of the kin of the gang in turn was refused, and that holds for it too
        self._deferred: dict[str, queues.Deferred] = collections.defaultdict(queues.Deferred)
        self._not_lent: set[object] = set()  # kin, or claim where sums forbid it
        self._forbidden: turns.Turn | None = None  # the last gang with bounds that no preemption can satisfy
        self._deep = max(1, contexts.REFRESHED // max(1, len(self.order.queues)))
        self._tried = 0
        self._ahead: dict[str, int] = collections.defaultdict(int)  # by leaf: waiting gangs that have had their turn
        self._crowded = False  # some gang waits for free space
        self._overtaken: dict[str, plans.Gang] = {}  # by pool: the first gang that does

    def plan(self) -> plans.Plan:
        noted = self.order.noted()
        self._seated = resuming.destined(self.draft, noted)
        self._resumed = {launch.job for launch in self.draft.launches}
        self._promised = resuming.promised(self.draft, noted)
        sharing.undo(self.draft)
        if self.draft.snapshot.reallocate:
            rearranging.carry_out(self.draft)
        blocked_by, likeness = self._blocked.get, self.draft.taken.likeness
        for turn in turnorder.by_need(self.order.queues, self.bounds):
            self._follows = False
            if turn.alike:
                blocked = blocked_by(turn.profile.claim) or blocked_by(turn.profile.kin)
                if (
                    blocked is not None
                    and turn.wish.level >= blocked.level
                    and not (blocked.until is not None and self._is_over(turn.candidate.gang, blocked.until))
                    and not (blocked.impossible and reasons.is_possible(turn.candidate.gang))
                ):
                    self._follows = True
                    if likeness or blocked.given_up != self.bounds.given_up:
                        self._refuse_too(turn, blocked)
                        continue
            self._grant(turn)
        not_lent = self._not_lent
        for turn in turnorder.by_need(self._deferred, self.bounds):
            profile = turn.profile
            if turn.sizing or not (
                profile.claim in not_lent
                or profile.kin in not_lent
                or (profile.claim, turn.candidate.gang.at_most_s) in not_lent
            ):
                self._lend(turn)
        if self.draft.snapshot.reallocate:
            moving.to_better_places(self.draft)
            if not self._crowded:
                sharing.apart(self.draft)
                growing.into_idle(self.draft)
        return self.draft.finished(self._batches())

    def _batches(self) -> dict[str, curves.Batch]:
        """Return new batch sizes of running gangs that keep their places."""
        found: dict[str, curves.Batch] = {}
        for turn in self.order.listed() if self.draft.snapshot.reallocate else ():
            running = turn.candidate.running
            if turn.wish.batch is not None and running is not None and turn.runs:
                batch = turn.batch(running.size)
                if batch is not None and batch != running.batch and not self.draft.victims.is_decided(running.job):
                    found[running.job] = batch
        return found

    # One after the other

    def _grant(self, turn: turns.Turn) -> None:
        gang = turn.candidate.gang
        if turn.runs and gang.job not in self.draft.preemptions:
            if self.draft.snapshot.reallocate and not turn.wish.on:
                growing.as_wished(self.draft, turn, clear=self.draft.searches.left)
            return
        ahead = self._place(turn)
        promised = self._promised.pop(gang.job, None)
        if promised is not None:
            self.draft.withdraw(gang, promised)
        if gang.job in self._seated:
            self._say_stopping(turn, self._seated[gang.job], ahead)
        elif gang.job in self._resumed:
            pass
        elif self._backs_off(gang):
            self._refuse(turn, reasons.backing_off(gang, ahead))
        elif not any(turn.wish.size):
            self._refuse(turn, reasons.outranked(gang, turn.wish.reason, ahead))
        elif promised is None and self.draft.heads and not self.rules.backfill:
            self._refuse(turn, reasons.behind(gang, self._first_head(), ahead))
        else:
            size, over = self._admitted(turn, promised=promised is not None)
            if size is not None:
                self._seat(turn, size, ahead, promised=promised is not None)
            elif over is not None and not self._clear(turn, self._least(turn), ahead, lent=over.beyond):
                self._hold_off(turn, over, ahead)

    def _place(self, turn: turns.Turn) -> int:
        """Return the number of waiting gangs before this one in its leaf."""
        candidate = turn.candidate
        leaf = "" if self._single else candidate.gang.pool
        ahead = self._ahead[leaf]
        if candidate.running is None:
            self._ahead[leaf] = ahead + 1
        return ahead

    def _refuse_too(self, turn: turns.Turn, blocked: Blocked) -> None:
        """Refuse a gang as an earlier gang of its kin was refused. Most turns of a long queue end here."""
        gang, over = turn.candidate.gang, blocked.over
        known, leaf = gang.refusal, "" if self._single else gang.pool
        ahead = self._ahead[leaf]
        self._ahead[leaf] = ahead + 1
        if over is None:
            if blocked.impossible or (gang.at_most_s is not None and self.draft.heads and self.draft.lasting(gang)):
                self._wait(turn, self._least(turn), ahead)
                return
        elif blocked.lends and gang.preemptible:
            self._deferred[gang.pool].append(turn)
        if ahead >= self._deep and known is not None and known.code in WAITS:
            self.draft.refused[gang.job] = known
        elif over is not None:
            self._refuse(turn, self._said(gang, over, ahead))
        else:
            self._refuse(turn, self._no_room(turn, self._least(turn), ahead))

    def _again(self, gang: plans.Gang, ahead: int) -> refusals.Refusal | None:
        """Return the present refusal of a gang that is deep in the queue; None where it needs a new one."""
        known = gang.refusal
        return None if ahead < self._deep or known is None or known.code not in WAITS else known

    def _admitted(self, turn: turns.Turn, *, promised: bool) -> tuple[plans.Size | None, poolbounds.Over | None]:
        """Return the largest size within the bounds of the gang's pools; or None, and the bound that forbids any size.

        A gang that was promised its place only needs to be within the limits.
        """
        gang, least = turn.candidate.gang, self._least(turn)
        profile = self.draft.facts.of(gang)

        def over(size: plans.Size) -> poolbounds.Over | None:
            found = self.bounds.over(gang, profile.amount(size))
            soft = found is not None and (found.kind is poolbounds.Kind.ENTITLEMENT or found.first is not None)
            return None if promised and soft else found

        admitted = sizes.largest(least, turn.wish.size, lambda size: size if over(size) is None else None)
        return admitted, over(least) if admitted is None else None

    def _least(self, turn: turns.Turn) -> plans.Size:
        """Return the smallest size at which the gang starts.

        A size that a policy has decided is right once other gangs have given way. So it is cut down only in a plan in
        which they may.
        """
        if turn.sizing and not self.draft.snapshot.reallocate:
            return turn.wish.size
        return turn.profile.smallest

    def _hold_off(self, turn: turns.Turn, over: poolbounds.Over, ahead: int) -> None:
        """Refuse a gang that exceeds a bound, or let it borrow at the end.

        For the first gang that waits for the bound, a part of the bound is kept, unless an earlier gang of its kin
        waits for space.
        """
        gang, draft = turn.candidate.gang, self.draft
        least = turn.profile.least
        first = over.first is None and not self._follows
        if first and not self.bounds.bound(gang, over).kept_shares and self.bounds.could_fit(gang, least):
            backfilling.keep_for(gang, least, over, self.bounds, draft.ends, draft.facts)
        if over.lends and gang.preemptible:
            self._deferred[gang.pool].append(turn)
        self._refuse(turn, self._again(gang, ahead) or self._said(gang, over, ahead))
        alone = not self._searches or self._forbidden is turn
        until = self.bounds.kept_until(gang) if self._searches or not over.exceeded else None
        blocked = Blocked(turn.wish.level, self.bounds.given_up, over, over.lends, until)
        self._block(turn.profile.claim if alone else turn.profile.kin, turn, blocked)

    def _block(self, kin: int, turn: turns.Turn, blocked: Blocked) -> None:
        waits = turn.profile.plain and turn.candidate.running is None
        if waits and not turn.sizing and not self._follows:  # gangs may give way to the others
            self._blocked[kin] = blocked

    def _seat(self, turn: turns.Turn, size: plans.Size, ahead: int, *, promised: bool) -> None:
        """Find a place for a gang that is within the bounds of its pools at `size`, or let it wait.

        A gang that was promised a place gets one again, now or later.
        """
        gang, least, draft = turn.candidate.gang, self._least(turn), self.draft
        first = None if turn.reserves or gang.preemptible or promised else self._overtaken.get(gang.pool)
        if first is not None:
            self._refuse(turn, reasons.behind(gang, first, ahead))
            return
        claims = draft.largest(gang, least, size)
        if claims is not None:
            self._take(turn, claims, ahead)
        elif draft.timeline.later is not draft.space and (
            (claims := draft.largest(gang, least, size, later=True)) is not None
        ):
            self._promise(turn, claims, ahead, cleared=promised)
        elif turn.wish.beside and (claims := sharing.beside(draft, turn)) is not None:
            self._share(turn, claims, ahead)
        elif not self._clear(turn, size if turn.sizing else least, ahead):
            self._wait(turn, least, ahead)

    def _share(self, turn: turns.Turn, claims: holdings.Claims, ahead: int) -> None:
        """Place a gang beside another on its device: at once, if half of the device is free already."""
        gang, amount = turn.candidate.gang, amounts.of_claims(claims)
        waits, host = turn.candidate.running is None, self.draft.running.get(turn.wish.beside)
        if waits and self.draft.space.holds(claims, gang.constraints) and self.bounds.fits_now(gang, amount):
            self._launch(turn, claims, f"it shares a GPU with {host.name}" if host is not None else "it shares a GPU")
        else:
            self._promise(turn, claims, ahead, cleared=True)

    def _take(self, turn: turns.Turn, claims: holdings.Claims, ahead: int) -> None:
        """Launch a gang in free space.

        It is promised the space instead while the gang itself is stopping, or while its pool still reaches a limit.
        """
        gang = turn.candidate.gang
        amount = self.draft.facts.of(gang).amount(sizes.of_claims(gang, claims))
        if turn.candidate.running is not None or not self.bounds.fits_now(gang, amount):
            self._promise(turn, claims, ahead)
        else:
            beside = f"beside {self._first_head().name}, whose place is kept" if self.draft.heads else ""
            self._launch(turn, claims, beside)

    def _launch(self, turn: turns.Turn, claims: holdings.Claims, why: str = "") -> None:
        self.draft.launch(turn, claims, why)
        self.draft.refused.pop(turn.wish.job, None)

    def _promise(self, turn: turns.Turn, claims: holdings.Claims, ahead: int, *, cleared: bool = False) -> None:
        """Promise a place to a gang. With `cleared`, other gangs are being stopped for it (see `resuming`)."""
        self.draft.promise(turn.candidate.gang, claims)
        self._say_stopping(turn, claims, ahead, cleared=cleared)

    def _wait(self, turn: turns.Turn, size: plans.Size, ahead: int) -> None:
        """Refuse a gang that fits nowhere now. The first gang of its kind has a place kept."""
        gang, draft = turn.candidate.gang, self.draft
        impossible = reasons.newly_impossible(gang, draft.context)
        if impossible is not None:
            self._refuse(turn, impossible)
            self._block(turn.profile.kin, turn, Blocked(turn.wish.level, self.bounds.given_up, impossible=True))
            return
        self._crowded = True
        self._overtaken.setdefault(gang.pool, gang)
        keeps = turn.reserves or not self.rules.backfill
        if turn.profile.kind not in draft.heads and len(draft.heads) < HEADS and keeps:
            refusal = reasons.no_capacity(gang, draft.context, ahead)
            head = draft.keep(gang, size)
            self._refuse(turn, refusal if head is None else msgspec.structs.replace(refusal, kept=head.nodes))
        elif self._before(turn, size):
            return
        else:
            self._refuse(turn, self._again(gang, ahead) or self._no_room(turn, size, ahead))
        self._block(turn.profile.kin, turn, Blocked(turn.wish.level, self.bounds.given_up))

    def _before(self, turn: turns.Turn, size: plans.Size) -> bool:
        """Start a gang in kept places, if its time-out ends it before they are needed. Return whether it starts."""
        gang, draft = turn.candidate.gang, self.draft
        lasting = draft.lasting(gang)
        if not lasting or turn.candidate.running is not None:
            return False
        with draft.without(lasting):
            claims = placing.place(gang, draft.space, size)
            if claims is None or not self.bounds.fits_now(gang, draft.facts.of(gang).amount(size)):
                return False
            self._launch(turn, claims, f"it is over before the place of {lasting[0].gang.name} is free")
        return True

    def _lend(self, turn: turns.Turn) -> None:
        """Let a gang borrow free space beyond its pool's entitlement, which the pool has to give back later.

        Where no entitled gang waits for space, the first gang that finds none takes the place of gangs of its pool
        that rank lower.
        """
        gang, draft = turn.candidate.gang, self.draft
        least, profile = self._least(turn), turn.profile
        known = draft.refused.get(gang.job)
        ahead = 0 if known is None else known.ahead
        if draft.full(profile.amount(least)) and (self._crowded or not self._searches):
            self._not_lent.add(profile.claim)
            return

        def lendable(size: plans.Size) -> plans.Size | None:
            return size if self.bounds.over_borrowing(gang, profile.amount(size)) is None else None

        size = sizes.largest(least, turn.wish.size, lendable)
        if size is None:
            self._not_lent.add((profile.claim, gang.at_most_s))  # a gang that ends in time may pass earlier gangs
            return
        if (claims := draft.largest(gang, least, size)) is not None:
            self._take(turn, claims, ahead)
        elif (claims := draft.largest(gang, least, size, later=True)) is not None:
            self._promise(turn, claims, ahead)
        elif self._crowded or not self._clear(turn, least, ahead, lent=True):
            self._crowded = True
            self._not_lent.add(profile.kin)

    # Others give way

    def _clear(self, turn: turns.Turn, size: plans.Size, ahead: int, *, lent: bool = False) -> bool:
        """Move, shrink or stop other gangs for this one. Return whether that was possible and was done.

        With `lent`, its pool is beyond its entitlement, and stays as far beyond it: the gang takes the place of other
        gangs of its pool.
        """
        gang, draft = turn.candidate.gang, self.draft
        if turn.candidate.running is not None or not self._searches:
            return False
        amount = turn.profile.amount(size)
        bound = self.bounds.over(gang, amount) is not None

        def within(freed: Mapping[poolbounds.Key, amounts.Amount]) -> bool:
            return self.bounds.over(gang, amount, freed, lent=lent) is None

        if bound and not self._might_give_way(turn, lent=lent):
            self._forbidden = turn
            return False
        need = clearing.Need(gang, size, amount, within if bound else None)
        draft.searches.looks -= 1
        for candidates in self._ways(turn, need, lent=lent):
            draft.searches.clearances -= 1
            cleared = clearing.clear(need, candidates, draft.timeline.later, draft.victims.reshaped, draft.searches)
            if cleared is not None:
                draft.stop(cleared, gang)
                self._promise(turn, cleared.claims, ahead, cleared=True)
                return True
        return False

    @property
    def _searches(self) -> bool:
        """Whether this plan may still search for gangs to stop."""
        return self.draft.snapshot.reallocate and self.draft.searches.left

    def _might_give_way(self, turn: turns.Turn, *, lent: bool = False) -> bool:
        """Return whether its pool's bounds allow its smallest size once all possible victims are gone."""
        gang = turn.candidate.gang
        most = self.draft.victims.most(gang, turn.wish.level, own=lent)
        return self.bounds.over(gang, turn.profile.least, most, lent=lent) is None

    def _ways(self, turn: turns.Turn, need: clearing.Need, *, lent: bool) -> Iterator[list[clearing.Victim]]:
        """Yield lists of candidates that may suffice: to be moved first, then to shrink, then to be stopped."""
        gang, level, victims, space = need.gang, turn.wish.level, self.draft.victims, self.draft.timeline.later
        may_do = self.draft.searches.may_do
        if gang.amount(need.size).fits(space.free()):
            movable = victims.movable(gang, level)
            if may_do(need, movable, space):
                yield movable
        shrinkable = victims.shrinkable(gang, level, own=lent)
        whole = victims.killable(gang, need.amount, level, own=lent)
        ended = {victim.job for victim in whole}
        together = [*(victim for victim in shrinkable if victim.job not in ended), *whole]
        if may_do(need, together, space):
            if may_do(need, shrinkable, space):
                yield shrinkable
            for count in LOWEST:
                if count < len(together) and may_do(need, together[:count], space):
                    yield together[:count]
                    break
            yield together

    # Words

    def _say_stopping(self, turn: turns.Turn, claims: holdings.Claims, ahead: int, *, cleared: bool = False) -> None:
        gang = turn.candidate.gang
        kept = tuple(dict.fromkeys(claim.node for claim in claims)) if cleared else ()
        self._refuse(turn, reasons.stopping(gang, self.draft.stopping(gang, claims), ahead, kept))

    def _said(self, gang: plans.Gang, over: poolbounds.Over, ahead: int) -> refusals.Refusal:
        """Return the refusal for a bound that is exceeded, or that is kept for an earlier gang."""
        if over.first is not None and not over.exceeded:
            return reasons.behind(gang, over.first, ahead)
        if over.kind is poolbounds.Kind.LIMIT:
            return reasons.pool_limit(gang, over, ahead)
        if over.kind is poolbounds.Kind.RESERVATION:
            return reasons.not_reserved(gang, over, self.draft.context, ahead)
        return reasons.pool_share(gang, over, ahead, self.bounds.others(over.pool, over.resource))

    def _no_room(self, turn: turns.Turn, size: plans.Size, ahead: int) -> refusals.Refusal:
        """Return the refusal of a gang that fits nowhere, and that may wait only because places are kept for others."""
        gang, draft = turn.candidate.gang, self.draft
        if draft.heads and self._telling(ahead) and self._tried < TRIED_WITHOUT_HEADS:
            self._tried += 1
            with draft.without(draft.heads.values()):
                fits = placing.fits(gang, draft.space, size)
            if fits:
                head = draft.heads.get(turn.profile.kind) or next(iter(draft.heads.values()))
                return reasons.reserved(gang, head.gang, head.at, ahead)
        return reasons.no_capacity(gang, draft.context, ahead)

    def _telling(self, ahead: int) -> bool:
        """Return whether a gang so far back gets a detailed refusal."""
        return not self.draft.context.terse and ahead < self._deep

    def _refuse(self, turn: turns.Turn, refusal: refusals.Refusal) -> None:
        if turn.candidate.running is None:
            self.draft.refuse(turn.candidate.gang, refusal)

    def _is_over(self, gang: plans.Gang, at: float) -> bool:
        """Return whether the gang ends by `at`, as its time-out promises."""
        return gang.at_most_s is not None and self.draft.now + gang.at_most_s <= at

    def _backs_off(self, gang: plans.Gang) -> bool:
        return gang.not_before is not None and gang.not_before > self.draft.now

    def _first_head(self) -> plans.Gang:
        return next(iter(self.draft.heads.values())).gang

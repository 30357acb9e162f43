"""Those for whom a place was found in an earlier plan, before anybody else has a turn.

Who was stopped for a resize or a move goes on where it was meant to. Who was promised the place of others that are
being stopped for it has that promise kept: else somebody with an earlier turn, who had no right to stop them, would get
what was cleared for another, and more would have to be stopped. Neither lasts long: a gang that stops is gone soon.

Both are read from the snapshot: the one's place is the job's `destined`, the other's are the nodes in its refusal.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from oarlock.scheduler import sizes
from oarlock.scheduler.granting import drafts
from oarlock.scheduler.ordering import turns
from oarlock.scheduler.placement import placing
from oarlock.scheduler.pools import poolbounds
from oarlock.spec import holdings, plans, refusals

Claims = tuple[holdings.Holding, ...]


def destined(draft: drafts.Draft, turns: Iterable[turns.Turn]) -> dict[str, Claims]:
    """Launches those that go on elsewhere or at another size, or promises them their place: these by job."""
    found: dict[str, Claims] = {}
    for turn in turns:
        gang = turn.candidate.gang
        if not turn.candidate.resumes(draft.now, draft.rules) or not any(turn.wish.size):
            continue
        claims = tuple(msgspec.structs.replace(claim, attempt=0) for claim in gang.destined)
        size = sizes.of_claims(gang, claims)
        if not _allowed(gang, size) or not _within(draft, gang, size) or not draft.timeline.later.holds(claims):
            continue
        draft.going_to[gang.job] = claims
        amount = draft.facts.of(gang).amount(size)
        if turn.candidate.running is None and draft.bounds.fits_now(gang, amount) and draft.space.holds(claims):
            draft.launch(turn, claims)
        else:
            draft.promise(gang, claims)
            found[gang.job] = claims
    return found


def promised(draft: drafts.Draft, turns: Iterable[turns.Turn]) -> dict[str, Claims]:
    """What is kept, until their turn, for those for whom others were stopped; by job."""
    found: dict[str, Claims] = {}
    for turn in turns:
        gang, refusal = turn.candidate.gang, turn.candidate.gang.refusal
        if refusal is None or refusal.code is not refusals.Code.STOPPING or not refusal.kept:
            continue
        if not any(turn.wish.size) or not _within(draft, gang, gang.smallest):
            continue
        claims = _on(refusal.kept, draft, gang)
        if claims is not None:
            draft.promise(gang, claims)
            found[gang.job] = claims
    return found


def _on(names: tuple[str, ...], draft: drafts.Draft, gang: plans.Gang) -> Claims | None:
    """Its place on these nodes; where that has gone, on any."""
    space, size = draft.timeline.later, gang.smallest
    others = frozenset(space.nodes).difference(names)
    claims = placing.place(gang, space, size, keep=others, prefer=names)
    return claims if claims is not None else placing.place(gang, space, size, prefer=names)


def _within(draft: drafts.Draft, gang: plans.Gang, size: plans.Size) -> bool:
    """Its place was within what its pool is entitled to, or lent, when it was found."""
    if gang.not_before is not None and gang.not_before > draft.now:
        return False
    over = draft.bounds.over(gang, draft.facts.of(gang).amount(size))
    return over is None or over.kind is poolbounds.Kind.ENTITLEMENT


def _allowed(gang: plans.Gang, size: plans.Size) -> bool:
    return all(ask.min <= count <= ask.max for ask, count in zip(gang.asks, size, strict=True))

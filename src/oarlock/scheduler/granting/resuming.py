"""Places that an earlier plan found: they are kept before any gang has its turn.

A gang that was stopped for a resize or a move goes on in its new place. A gang for which others are being stopped gets
the place that they leave. Without this, a gang with an earlier turn, but with no right to stop the others, would take
the place, and more gangs would have to be stopped. Neither takes long: a stopping gang is gone soon.

Both kinds are read from the snapshot: the first as the job's `destined`, the second as the nodes in its refusal.
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


def destined(draft: drafts.Draft, turns: Iterable[turns.Turn]) -> dict[str, holdings.Claims]:
    """Launch gangs that were stopped for a resize or a move, or promise them their places. Return the latter by job."""
    found: dict[str, holdings.Claims] = {}
    for turn in turns:
        gang = turn.candidate.gang
        if not turn.candidate.resumes(draft.now, draft.rules) or not any(turn.wish.size):
            continue
        claims = tuple(msgspec.structs.replace(claim, attempt=0) for claim in gang.destined)
        size = sizes.of_claims(gang, claims)
        if not _allowed(gang, size) or not _within(draft, gang, size):
            continue
        if not draft.timeline.later.holds(claims, gang.constraints):
            continue
        draft.going_to[gang.job] = claims
        amount = draft.facts.of(gang).amount(size)
        free = draft.space.holds(claims, gang.constraints)
        if turn.candidate.running is None and draft.bounds.fits_now(gang, amount) and free:
            draft.launch(turn, claims)
        else:
            draft.promise(gang, claims)
            found[gang.job] = claims
    return found


def promised(draft: drafts.Draft, turns: Iterable[turns.Turn]) -> dict[str, holdings.Claims]:
    """Promise places to gangs for which others are being stopped, until their turns. Return the places by job."""
    found: dict[str, holdings.Claims] = {}
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


def _on(names: tuple[str, ...], draft: drafts.Draft, gang: plans.Gang) -> holdings.Claims | None:
    """Return a place on the named nodes; on any nodes where that is gone; None where there is no place."""
    space, size = draft.timeline.later, gang.smallest
    others = frozenset(space.nodes).difference(names)
    claims = placing.place(gang, space, size, keep=others, prefer=names)
    return claims if claims is not None else placing.place(gang, space, size, prefer=names)


def _within(draft: drafts.Draft, gang: plans.Gang, size: plans.Size) -> bool:
    """Return whether the bounds of the gang's pools allow the place.

    The place was within the pool's entitlement, or was lent, when it was found: that bound is not asked again.
    """
    if gang.not_before is not None and gang.not_before > draft.now:
        return False
    over = draft.bounds.over(gang, draft.facts.of(gang).amount(size))
    return over is None or over.kind is poolbounds.Kind.ENTITLEMENT


def _allowed(gang: plans.Gang, size: plans.Size) -> bool:
    """Return whether the job still allows the size."""
    return all(ask.min <= count <= ask.max for ask, count in zip(gang.asks, size, strict=True))

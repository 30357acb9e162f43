"""The growth of running gangs: into idle devices, or as their policy wishes.

Growth is a restart from the checkpoint, so the gain has to pay for the restart. A policy that decides sizes weighs the
two itself. Under the other policies an elastic gang grows only while no gang waits for room: by `LEAST_GROWTH` at
least, after `Victims.settled_s` of running, and only if it then ends sooner, the restart included. Where its end is not
known, the growth is taken to pay. No gang grows onto a slower type of GPU (`heldtypes`).
"""

from __future__ import annotations

from collections.abc import Mapping

from oarlock.scheduler import amounts, sizes
from oarlock.scheduler.granting import drafts, heldtypes
from oarlock.scheduler.ordering import turns
from oarlock.scheduler.pools import poolbounds
from oarlock.scheduler.preemption import clearing
from oarlock.scheduler.speed import rates
from oarlock.spec import holdings, plans

LEAST_GROWTH = 1.25
TRIED = 64
"""Gangs for which one plan looks for idle devices."""


def into_idle(draft: drafts.Draft) -> None:
    """Grow elastic gangs into idle devices, those that rank first in their pools first."""
    able = [job for job in draft.snapshot.running if _may_grow(draft, job)]
    owned = [
        (turn.wish.level, turn.candidate.arrival, job) for job in able if not (turn := draft.order.turn(job)).sizing
    ]
    for _, _, running in sorted(owned)[:TRIED]:
        claims = _largest(draft, running, running.gang.largest)
        if claims is not None and ends_sooner(draft, running, speedup(running, claims)):
            draft.resize(running, claims, "devices are idle")


def as_wished(draft: drafts.Draft, turn: turns.Turn, *, clear: bool) -> None:
    """Grow a running gang to the size that its policy wishes, or as near to it as it can.

    The gang grows into free space. With `clear`, gangs of its leaf that are to shrink may make room for it.
    """
    running, size = turn.candidate.running, turn.wish.size
    if running is None or not draft.victims.may_restart(running) or sum(size) <= sum(draft.facts.held(running).size):
        return
    reason = turn.wish.reason
    claims = _place(draft, running, size)
    if claims is None and clear:
        cleared = _cleared(draft, turn, running)
        if cleared is not None:
            draft.stop(cleared, running.gang)
            claims = cleared.claims
    if claims is None:
        claims = _largest(draft, running, size)
    if claims is not None:
        draft.resize(running, claims, reason)
    draft.searches.clearances -= clear


def _may_grow(draft: drafts.Draft, running: plans.Running) -> bool:
    """Return whether an elastic gang may be restarted to grow into idle devices."""
    gang, size = running.gang, draft.facts.held(running).size
    return (
        gang.elastic
        and not gang.destined
        and draft.victims.may_restart(running, draft.victims.settled_s)
        and sum(gang.largest) >= LEAST_GROWTH * sum(size)
    )


def ends_sooner(draft: drafts.Draft, running: plans.Running, faster: float) -> bool:
    """Return whether the gang ends sooner at `faster` times its speed, the restart included.

    True where its end is not known.
    """
    if running.expected_end is None:
        return True
    left_s = max(0.0, running.expected_end - draft.now)
    return left_s / max(faster, 1e-9) + draft.rules.restart_s < left_s


def speedup(running: plans.Running, claims: holdings.Claims) -> float:
    """Return the speed of a running gang with these holdings, relative to its present speed."""
    return _speed(running, claims) / max(_speed(running, running.holdings), 1e-9)


def _speed(running: plans.Running, claims: holdings.Claims) -> float:
    """Return the speed of a job with these holdings, in a unit of its own.

    Without a speed curve it is taken to be in proportion to the number of tasks.
    """
    devices = sum(claim.amount.gpus for claim in claims)
    if running.gang.curve is None or not devices:
        return float(len(claims))
    servers = sum(claim.role == "ps" for claim in claims)
    shape = rates.Shape(nodes=len({claim.node for claim in claims}), devices=devices, servers=servers)
    return rates.rate(running.gang.curve, running.gang.batch, shape)


def _largest(draft: drafts.Draft, running: plans.Running, most: plans.Size) -> holdings.Claims | None:
    """Return the place of the largest possible size up to `most`; None where the growth is not worth a restart."""
    size = draft.facts.held(running).size
    found = sizes.last(
        0, sizes.steps(size, most) + 1, lambda number: _place(draft, running, sizes.step(size, most, number))
    )
    return found if found is not None and len(found) >= LEAST_GROWTH * sum(size) else None


def _place(draft: drafts.Draft, running: plans.Running, size: plans.Size) -> holdings.Claims | None:
    """Return a place for the gang at `size`, in its present place and the free space; None where there is none."""
    return heldtypes.place(draft, running, size) if over(draft, running, size) is None else None


def _cleared(draft: drafts.Draft, turn: turns.Turn, running: plans.Running) -> clearing.Clearance | None:
    """Return which gangs of its leaf shrink so that the gang can grow; None where that is not enough."""
    gang, size, space = running.gang, turn.wish.size, draft.timeline.later
    amount = draft.facts.of(gang).amount(size)
    own = {(gang.pool, gang.preemptible): draft.facts.held(running).amount}

    def within(freed: Mapping[poolbounds.Key, amounts.Amount]) -> bool:
        together = {
            key: amounts.plus(own.get(key, amounts.NOTHING), freed.get(key, amounts.NOTHING))
            for key in own.keys() | freed.keys()
        }
        return draft.bounds.over_borrowing(gang, amount, together) is None

    donors = [one for one in draft.victims.donors(gang) if one.job != gang.job]
    need = clearing.Need(gang, size, amount, within)
    with space.trial():
        space.give_back(running.holdings)
        if not draft.searches.may_do(need, donors, space):
            return None
        cleared = clearing.clear(need, donors, space, draft.victims.reshaped, draft.searches)
    return None if cleared is None or heldtypes.is_slower(draft, running, cleared.claims) else cleared


def over(draft: drafts.Draft, running: plans.Running, size: plans.Size) -> poolbounds.Over | None:
    """Return the limit or reservation that the gang would exceed at `size`, or the amount kept for another gang."""
    gang, held = running.gang, draft.facts.held(running).amount
    return draft.bounds.over_growing(gang, draft.facts.of(gang).amount(size), {(gang.pool, gang.preemptible): held})

"""Running gangs that grow: into what is idle, or as their policy wishes.

Growth is a restart from the checkpoint, so it is budgeted against what it gains. Where a policy decides sizes, that is
the policy's own matter. Where it leaves them to the owners, an elastic gang grows when nobody waits for room, by at
least `LEAST_GROWTH`, not before it has run `SETTLED` times as long as a restart takes, and only if it is over sooner
for it, the restart included, as far as anybody can tell when it will be over.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from oarlock.scheduler import amounts, sizes
from oarlock.scheduler.granting import drafts
from oarlock.scheduler.ordering import turns
from oarlock.scheduler.placement import placing
from oarlock.scheduler.pools import poolbounds
from oarlock.scheduler.preemption import clearing
from oarlock.scheduler.speed import rates
from oarlock.spec import holdings, plans

Claims = tuple[holdings.Holding, ...]

LEAST_GROWTH = 1.25
SETTLED = 10.0
TRIED = 64
"""Gangs for which a plan looks for idle devices."""


def into_idle(draft: drafts.Draft) -> None:
    """Those that rank first in their pools come first, each as far as there is room."""
    able = [job for job in draft.snapshot.running if job.gang.elastic and not job.stopping and _may_grow(draft, job)]
    owned = [
        (turn.wish.level, turn.candidate.arrival, job) for job in able if not (turn := draft.order.turn(job)).sizing
    ]
    for _, _, running in sorted(owned)[:TRIED]:
        claims = _largest(draft, running, running.gang.largest)
        if claims is not None and _pays(draft, running, claims):
            draft.resize(running, claims, "devices are idle")


def as_wished(draft: drafts.Draft, turn: turns.Turn, *, clear: bool) -> bool:
    """A gang whose policy wishes it larger: with what it has and what is free, or what others give up for it (`clear`).
    True where others were looked at.
    """
    running, size = turn.candidate.running, turn.wish.size
    if running is None or not _may_be_touched(draft, running) or sum(size) <= sum(draft.facts.held(running).size):
        return False
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
    return clear


def _may_be_touched(draft: drafts.Draft, running: plans.Running) -> bool:
    return running.gang.preemptible and not draft.victims.is_gone(running.gang.job)


def _may_grow(draft: drafts.Draft, running: plans.Running) -> bool:
    """Whether the restart would be within its budget."""
    profile, size = draft.facts.of(running.gang), draft.facts.held(running).size
    return (
        running.gang.elastic
        and _may_be_touched(draft, running)
        and sum(running.gang.largest) >= LEAST_GROWTH * sum(size)
        and draft.now - running.started_at >= max(SETTLED * draft.rules.restart_s, draft.rules.min_runtime_s)
        and profile.gang.destined == ()
    )


def _pays(draft: drafts.Draft, running: plans.Running, claims: Claims) -> bool:
    """Whether it is over sooner; where nobody knows when, it is taken to be worth it."""
    if running.expected_end is None:
        return True
    left_s = max(0.0, running.expected_end - draft.now)
    faster = speed(running, claims) / max(speed(running, running.holdings), 1e-9)
    return left_s / max(faster, 1e-9) + draft.rules.restart_s < left_s


def speed(running: plans.Running, claims: Iterable[holdings.Holding]) -> float:
    """In any unit. Of a job without a curve it is reckoned to grow as its tasks do."""
    claims = list(claims)
    devices = sum(claim.amount.gpus for claim in claims)
    if running.gang.curve is None or not devices:
        return float(len(claims))
    servers = sum(claim.role == "ps" for claim in claims)
    shape = rates.Shape(nodes=len({claim.node for claim in claims}), devices=devices, servers=servers)
    return rates.rate(running.gang.curve, running.gang.batch, shape)


def _largest(draft: drafts.Draft, running: plans.Running, most: plans.Size) -> Claims | None:
    """Its place at the largest size up to `most` for which there is one, if that is worth a restart."""
    size = draft.facts.held(running).size
    low, high, found = 0, sizes.steps(size, most) + 1, None
    while high - low > 1:
        middle = (low + high) // 2
        claims = _place(draft, running, sizes.step(size, most, middle))
        if claims is None:
            high = middle
        else:
            low, found = middle, claims
    return found if found is not None and len(found) >= LEAST_GROWTH * sum(size) else None


def _place(draft: drafts.Draft, running: plans.Running, size: plans.Size) -> Claims | None:
    """Where it would go on at `size`: with what it has itself and what is free, near where it stands."""
    if over(draft, running, size) is not None:
        return None
    space = draft.timeline.later
    mark = space.mark()
    space.give_back(running.holdings)
    claims = placing.place(running.gang, space, size, prefer=draft.facts.held(running).nodes)
    space.rollback(mark)
    return claims


def _cleared(draft: drafts.Draft, turn: turns.Turn, running: plans.Running) -> clearing.Clearance | None:
    """What others of its leaf are to give up, so that it grows."""
    gang, size, space = running.gang, turn.wish.size, draft.timeline.later
    amount = draft.facts.of(gang).amount(size)
    own = {(gang.pool, gang.preemptible): draft.facts.held(running).amount}

    def within(freed: Mapping[poolbounds.Key, amounts.Amount]) -> bool:
        together = {
            key: amounts.plus(own.get(key, amounts.NOTHING), freed.get(key, amounts.NOTHING))
            for key in own.keys() | freed.keys()
        }
        return draft.bounds.over_borrowing(gang, amount, together) is None

    mark = space.mark()
    space.give_back(running.holdings)
    draft.spare_enders()
    donors = [one for one in draft.victims.donors(gang) if one.job != gang.job]
    need = clearing.Need(gang, size, amount, within)
    promising = clearing.may_do(need, donors, space)
    cleared = clearing.clear(need, donors, space, draft.victims.reshaped, draft.effort) if promising else None
    space.rollback(mark)
    return cleared


def over(draft: drafts.Draft, running: plans.Running, size: plans.Size) -> poolbounds.Over | None:
    """The limit or reservation that it would exceed at `size`, or what is kept for somebody else."""
    gang, held = running.gang, draft.facts.held(running).amount
    return draft.bounds.over_growing(gang, draft.facts.of(gang).amount(size), {(gang.pool, gang.preemptible): held})

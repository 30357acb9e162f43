"""Running gangs that go on in a better place, where their policy would have them moved.

What others have left may suit a gang better than what it found when it started: fewer nodes, so that less of its
exchange goes over the network; or a type of GPU that it names before the one that it has. A move is a restart from the
checkpoint: one that is not known to save any is left where it is. A gang is moved only after it has run
`victims.SETTLED` times as long as a restart takes, and only if it is over sooner for it: by its speed curve, or else by
a gain of `ASSUMED`. (Gandiva, OSDI '18, migrates when a job has departed.)

Moves that make room for others are part of what is cleared for them (`victims.movable`).
"""

from __future__ import annotations

from oarlock.scheduler.granting import drafts, growing
from oarlock.scheduler.placement import placing
from oarlock.spec import holdings, jobfile, plans

Claims = tuple[holdings.Holding, ...]

ASSUMED = 1.1
"""How much faster a gang is taken to be in a better place of which its curve tells nothing."""

SHOWN_S = 300.0
"""By then a gang has told of its steps, or made a checkpoint, if it ever does."""

TRIED = 64
"""Gangs for which a plan looks for a better place: the largest first."""


def to_better_places(draft: drafts.Draft) -> None:
    """After all wishes have been granted: with what nobody else could use."""
    latest = draft.now - draft.victims.settled_s
    able = [
        job
        for turn in draft.order.listed()
        if turn.wish.moves
        and (job := turn.candidate.running) is not None
        and draft.victims.may_restart(job)
        and not any(claim.amount.gpu_milli for claim in job.holdings)
        and _rank(job.gang, job.holdings, draft) > (1, 0)
    ]
    settled = [job for job in able if job.started_at <= latest and _saves(job)]
    shown_by = draft.now - SHOWN_S
    draft.restless |= any(job.started_at > (latest if _saves(job) else min(latest, shown_by)) for job in able)
    settled.sort(key=lambda job: (-draft.facts.held(job).weight, job.gang.job))
    for job in settled[:TRIED]:
        claims = _elsewhere(draft, job)
        if claims is not None and _pays(draft, job, claims):
            draft.move(job, claims, _reason(draft, job, claims))


def _saves(job: plans.Running) -> bool:
    """Whether it has shown that it can resume."""
    return job.gang.curve is not None or job.checkpoint_at is not None


def _elsewhere(draft: drafts.Draft, job: plans.Running) -> Claims | None:
    """A better place for it at its size, in what it has itself and what is left; None where there is none."""
    space = draft.timeline.later
    with space.trial():
        space.give_back(job.holdings)
        claims = placing.place(job.gang, space, job.size, prefer=draft.facts.held(job).nodes)
    if claims is None or _rank(job.gang, claims, draft) >= _rank(job.gang, job.holdings, draft):
        return None
    return claims


def _rank(gang: plans.Gang, claims: Claims, draft: drafts.Draft) -> tuple[int, int]:
    """How many nodes, and how far down its own list of types the worst of its devices stands. Less is better; but a
    gang that is to be spread is so already.
    """
    named = next((ask.gpu_types for ask in gang.asks if ask.gpu_types), ())
    worst = 0
    for claim in claims if len(named) > 1 else ():
        node = draft.space.nodes.get(claim.node)
        kinds = {device.type for device in node.node.devices if device.index in claim.devices} if node else set()
        worst = max((worst, *(named.index(kind) for kind in kinds if kind in named)))
    packs = gang.placement is jobfile.Placement.PACK
    return len({claim.node for claim in claims}) if packs else 1, worst


def _pays(draft: drafts.Draft, job: plans.Running, claims: Claims) -> bool:
    """Whether it is over sooner, the restart included; where nobody knows when, it is taken to be worth it."""
    if job.expected_end is None:
        return True
    left_s = max(0.0, job.expected_end - draft.now)
    known = job.gang.curve is not None and len({claim.node for claim in claims}) < len(draft.facts.held(job).nodes)
    faster = growing.speed(job, claims) / max(growing.speed(job, job.holdings), 1e-9) if known else ASSUMED
    return left_s / max(faster, 1e-9) + draft.rules.restart_s < left_s


def _reason(draft: drafts.Draft, job: plans.Running, claims: Claims) -> str:
    before, after = (_rank(job.gang, one, draft) for one in (job.holdings, claims))
    if after[0] < before[0]:
        return f"all of it fits {'one node' if after[0] == 1 else f'{after[0]} nodes'}"
    return "a type of GPU that it prefers is free"

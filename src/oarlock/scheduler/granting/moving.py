"""Moves of running gangs to better places, for policies that wish them.

A place that another gang has left may be better than the present one: fewer nodes, so that less of the exchange goes
over the network, or a type of GPU that the gang names earlier. A gang that names no order of types is not moved to a
slower one (`heldtypes`). A move is a restart from the checkpoint, so a gang that is not known to save any stays. A gang
is moved only after `Victims.settled_s` of running, and only if it then ends sooner: by its speed curve, or else by a
gain of `ASSUMED`. (Gandiva, OSDI '18, migrates when a job has departed.)

Moves that make room for other gangs belong to preemption (`victims.Victims.movable`).
"""

from __future__ import annotations

from oarlock.scheduler.granting import drafts, growing, heldtypes
from oarlock.spec import holdings, jobfile, plans

ASSUMED = 1.1
"""Assumed speedup in a better place that the speed curve does not cover."""

SHOWN_S = 300.0
"""Seconds within which a gang reports its steps or saves a checkpoint, if it ever does."""

TRIED = 64
"""Gangs for which one plan looks for a better place, the largest first."""


def to_better_places(draft: drafts.Draft) -> None:
    """Move gangs into free space that no waiting gang could use. Call this after all wishes have been granted."""
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
    """Return whether a gang has shown that it can resume from a checkpoint."""
    return job.gang.curve is not None or job.checkpoint_at is not None


def _elsewhere(draft: drafts.Draft, job: plans.Running) -> holdings.Claims | None:
    """Return a better place at the same size, in its present place and the free space; None where there is none."""
    claims = heldtypes.place(draft, job, job.size, slower=len(_named(job.gang)) > 1)
    if claims is None or _rank(job.gang, claims, draft) >= _rank(job.gang, job.holdings, draft):
        return None
    return claims


def _rank(gang: plans.Gang, claims: holdings.Claims, draft: drafts.Draft) -> tuple[int, int]:
    """Return the number of nodes, and the position of the worst device in the gang's own list of types. Less is better.

    A gang that is to be spread counts as on one node.
    """
    named, worst = _named(gang), 0
    for claim in claims if len(named) > 1 else ():
        node = draft.space.nodes.get(claim.node)
        kinds = {device.type for device in node.node.devices if device.index in claim.devices} if node else set()
        worst = max((worst, *(named.index(kind) for kind in kinds if kind in named)))
    packs = gang.placement is jobfile.Placement.PACK
    return len({claim.node for claim in claims}) if packs else 1, worst


def _named(gang: plans.Gang) -> tuple[str, ...]:
    """Return the types of GPU that the gang names, the preferred one first."""
    return next((ask.gpu_types for ask in gang.asks if ask.gpu_types), ())


def _pays(draft: drafts.Draft, job: plans.Running, claims: holdings.Claims) -> bool:
    """Return whether the gang ends sooner in that place. The speed curve knows the gain of fewer nodes alone."""
    known = job.gang.curve is not None and len({claim.node for claim in claims}) < len(draft.facts.held(job).nodes)
    return growing.ends_sooner(draft, job, growing.speedup(job, claims) if known else ASSUMED)


def _reason(draft: drafts.Draft, job: plans.Running, claims: holdings.Claims) -> str:
    before, after = (_rank(job.gang, one, draft) for one in (job.holdings, claims))
    if after[0] < before[0]:
        return f"all of it fits {'one node' if after[0] == 1 else f'{after[0]} nodes'}"
    return "a type of GPU that it prefers is free"

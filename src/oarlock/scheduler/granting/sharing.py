"""Two gangs on one device, where each of them asks for a whole device.

A policy wishes this where it expects the two to progress faster together (`contract.Wish.beside`), until measurements
say otherwise (`contract.Wish.yields`).

Each gang holds half of the device. The running gang, the host, is restarted from its checkpoint, because its holdings
change. The other gang, the guest, starts beside it as soon as the host has stopped. Meanwhile the host's half is its
`destined` place, which tells the next plan where the guest belongs. Where the host is alone on a device that it shared
before, the guest starts at once. Both gangs must need no more than half of the device's memory.

When no gang waits for room and a device is free, the two part. A gang that is left alone gets its whole device again,
so that no other gang is placed there.
"""

from __future__ import annotations

import msgspec

from oarlock.scheduler.granting import drafts, growing, heldtypes
from oarlock.scheduler.ordering import turns
from oarlock.scheduler.placement import freespace, placing
from oarlock.spec import holdings, plans

HALF_MILLI = 500


def beside(draft: drafts.Draft, turn: turns.Turn) -> holdings.Claims | None:
    """Return the place of a gang on its host's device, now or later; None where there is no place, or not now.

    A host that holds the whole device is moved to half of it.
    """
    gang, host = turn.candidate.gang, turn.wish.beside
    running = draft.running.get(host)
    whole = running is not None and not running.stopping and not _is_shared(running.holdings)
    if not whole:
        there = running.holdings if running is not None and not running.stopping else draft.going_to.get(host, ())
        return _half(gang, draft.timeline.later, there[0]) if len(there) == 1 and _is_shared(there) else None
    if running is None or not draft.victims.may_give_way(running):
        return None
    space = draft.timeline.later
    with space.trial():
        space.give_back(running.holdings)
        own = _half(running.gang, space, running.holdings[0]) if len(running.holdings) == 1 else None
        space.take(own or ())
        found = None if own is None else _half(gang, space, own[0])
    if own is not None and found is not None:
        draft.move(running, own, f"it shares its GPU with {gang.name}, which waits")
        draft.going_to[host] = own
    return found


def undo(draft: drafts.Draft) -> None:
    """Stop the gangs that are to leave a shared device, though no gang waits for their place."""
    for turn in draft.order.listed():
        job = turn.candidate.running
        if turn.wish.yields and job is not None and draft.victims.may_restart(job, draft.rules.min_runtime_s):
            draft.give_up(job, turn.wish.reason)


def apart(draft: drafts.Draft) -> None:
    """Move each host to a free device, or give it the whole of its device again.

    Call this only where no gang waits for room.
    """
    space = draft.timeline.later
    for turn in draft.order.listed():
        job = turn.candidate.running
        if job is None or not turn.runs or not _is_host(job):
            continue
        draft.restless = True  # until it has been measured whether that pays, and as long as it may cease to
        may_move = draft.victims.may_restart(job, draft.victims.settled_s)
        if not may_move or growing.over(draft, job, job.size) is not None:
            continue
        whole = (msgspec.structs.replace(job.holdings[0], amount=job.gang.asks[0].amount, attempt=0),)
        with space.trial():
            space.give_back(job.holdings)
            stays = space.holds(whole, job.gang.constraints)
        claims = whole if stays else heldtypes.place(draft, job, job.size)
        if claims is not None:
            draft.move(job, claims, "a GPU is free for it alone")


def _half(gang: plans.Gang, space: freespace.FreeSpace, near: holdings.Holding) -> holdings.Claims | None:
    """Return a gang's place on half of the device of `near`; None where no half is free, or its memory is too small."""
    ask = gang.asks[0]
    cut = msgspec.structs.replace(ask.amount, gpus=0, gpu_milli=HALF_MILLI)
    halved = msgspec.structs.replace(gang, asks=(msgspec.structs.replace(ask, amount=cut),))
    node, device = space.nodes.get(near.node), near.devices[0]
    if node is None or not node.node.open:
        return None
    for (need,) in placing.ways(halved, space):
        suits = any(node.kind.groups[place].mask >> device & 1 for place in node.kind.suiting(need))
        if suits and node.slots(space.index(need)):
            (claim,) = node.claims(gang.job, halved.asks[0], need, [0])
            claim = msgspec.structs.replace(claim, devices=(device,))
            if space.holds((claim,), gang.constraints):
                return (claim,)
    return None


def _is_host(job: plans.Running) -> bool:
    """Return whether a running gang holds a share of a device, and asked for the whole device."""
    (claim, *others), ask = job.holdings, job.gang.asks[0]
    return not others and claim.amount.gpu_milli > 0 and ask.amount.gpus == 1


def _is_shared(claims: holdings.Claims) -> bool:
    """Return whether any of these holdings is a share of a device."""
    return any(claim.amount.gpu_milli for claim in claims)

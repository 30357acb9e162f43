"""Two gangs that ask for a whole device each, on one: where their policy expects the two together to get on faster
(`port.Wish.beside`), and until it knows better (`port.Wish.yields`).

Each holds half of the device. The one that runs there, the host, is restarted from its checkpoint, since what it holds
changes; its guest starts beside it as soon as that is done. In between the host stops with its half as the place to
which it is to come back (`destined`), which is how the next plan knows where the guest belongs. Where the host is alone
on a device that it shared before, the guest just starts. A half is enough only where half of the device's memory is.

Where nobody waits for room, and a device is free, the two part; who is left alone gets its whole device again, so that
nobody else is put there.
"""

from __future__ import annotations

import msgspec

from oarlock.scheduler.granting import drafts, growing
from oarlock.scheduler.ordering import turns
from oarlock.scheduler.placement import freespace, placing
from oarlock.spec import holdings, plans

Claims = tuple[holdings.Holding, ...]

HALF_MILLI = 500


def beside(draft: drafts.Draft, turn: turns.Turn) -> Claims | None:
    """The place of a gang on the device of the one with which it may share: now or later. If need be the host is told
    to make room. None: there is none, or not now.
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
    """Those stop that are not to run on where they are, though nobody waits for their place."""
    for turn in draft.order.listed():
        job = turn.candidate.running
        if turn.wish.yields and job is not None and draft.victims.may_restart(job, draft.rules.min_runtime_s):
            draft.give_up(job, turn.wish.reason)


def apart(draft: drafts.Draft) -> None:
    """Where nobody waits for room each goes to a device that is free, or has its own to itself again."""
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
            claims = whole if space.holds(whole) else placing.place(job.gang, space, job.size)
        if claims is not None:
            draft.move(job, claims, "a GPU is free for it alone")


def _half(gang: plans.Gang, space: freespace.FreeSpace, near: holdings.Holding) -> Claims | None:
    """The place of such a gang on half of that device; None where that is not free, or has not the memory for it."""
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
            if space.holds((claim,)):
                return (claim,)
    return None


def _is_host(job: plans.Running) -> bool:
    """Whether it has a share of the device of which it asked for the whole."""
    (claim, *others), ask = job.holdings, job.gang.asks[0]
    return not others and claim.amount.gpu_milli > 0 and ask.amount.gpus == 1


def _is_shared(claims: Claims) -> bool:
    return any(claim.amount.gpu_milli for claim in claims)

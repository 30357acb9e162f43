"""Refusals: why a gang does not run now, in numbers and in one plain sentence.

There is one function for each code of `oarlock.spec.refusals`. A round may refuse ten thousand gangs, and hardly any of
them for another reason than the round before; so each function compares code and numbers with the gang's last refusal
first, and hands that one back where nothing has materially changed. Words are made of what remains. Deep in the queue
(behind `REFRESHED` others) numbers that drift are no news: only another reason is. Whoever asks for one job (`oarlock
why`) gets all of it afresh, with the smallest change tried out (`oarlock.scheduler.forecasting.remedies`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from oarlock.scheduler import wording
from oarlock.scheduler.explaining import contexts, impossible
from oarlock.scheduler.pools import poolbounds
from oarlock.spec import nodes, plans, refusals

Code = refusals.Code
Numbers = dict[str, float]

_SCATTERED = ", but not where its tasks fit"


def never(gang: plans.Gang, context: contexts.Context) -> refusals.Refusal | None:
    """The refusal of a gang that no state of the declared nodes and pools could hold, else None."""
    found = context.never(gang)
    return found if found is None else _known(gang, found.code, found.needed, found.free, 0) or found


def newly_impossible(gang: plans.Gang, context: contexts.Context) -> refusals.Refusal | None:
    """As `never`, of a gang that has been refused for another reason before: that it is possible is known."""
    return never(gang, context) if gang.refusal is None or gang.refusal.code in refusals.NEVER else None


def no_capacity(gang: plans.Gang, context: contexts.Context, ahead: int = 0) -> refusals.Refusal:
    """It would fit an emptier cluster: what it needs, what is free, and who holds the rest."""
    needed, cards = wording.needed(gang), wording.cards(gang)
    if not context.ready:
        return _no_nodes(gang, needed, context, ahead)
    if context.terse:
        return refusals.Refusal(code=Code.NO_CAPACITY, message="", needed=needed, ahead=ahead)
    known = _deep(gang, Code.NO_CAPACITY, needed, ahead)
    if known is not None:
        return known
    free = context.free(cards)
    short = [name for name in needed if needed[name] > free.get(name, 0.0)]
    worst = min(short or needed or ["cpus"], key=lambda name: free.get(name, 0.0) / needed.get(name, 1.0))
    holders = context.holders(worst, cards)
    known = _known(gang, Code.NO_CAPACITY, needed, free, ahead, holders)
    if known is not None:
        return known
    fewer = _fewer(gang, context) if context.detailed() else ""
    waited_for = f"It fits once {holders[0].name} ends." if len(holders) == 1 else ""
    return refusals.Refusal(
        code=Code.NO_CAPACITY,
        message=f"It needs {wording.wanted(gang)}; {_free_text(gang, context, needed, free, short)}.",
        needed=needed,
        free=free,
        total=context.total(cards),
        holders=holders,
        ahead=ahead,
        change=fewer or waited_for,
    )


def behind(gang: plans.Gang, first: plans.Gang, ahead: int = 0) -> refusals.Refusal:
    """It waits its turn: what is free is kept for those before it. Not said anew when another one is first."""
    needed = wording.needed(gang)
    return _known(gang, Code.BEHIND, needed, {}, ahead) or refusals.Refusal(
        code=Code.BEHIND,
        message=f"{first.name} came first and waits for {wording.wanted(first)}.",
        needed=needed,
        ahead=ahead,
    )


def reserved(
    gang: plans.Gang, head: plans.Gang, until: float | None = None, ahead: int = 0, kept: tuple[str, ...] = ()
) -> refusals.Refusal:
    """It would fit now, but then `head` could not start at `until` (Unix seconds; None: not known)."""
    needed, others = wording.needed(gang), (_holder(head),)
    known = _known(gang, Code.RESERVED, needed, {}, ahead, others)
    if known is not None:
        return known if known.until == until else msgspec.structs.replace(known, until=until)
    return refusals.Refusal(
        code=Code.RESERVED,
        message=f"There is room for its {wording.wanted(gang)}, kept for {head.name}, which came first and "
        f"needs {wording.wanted(head)}.",
        needed=needed,
        holders=others,
        ahead=ahead,
        until=until,
        kept=kept,
    )


def outranked(gang: plans.Gang, reason: str = "", ahead: int = 0, by: Sequence[plans.Gang] = ()) -> refusals.Refusal:
    """The policy gives what there is to others for now; `reason` is its own word for why, with the numbers."""
    needed = wording.needed(gang)
    others = tuple(_holder(other) for other in by[: contexts.SHOWN_HOLDERS])
    known = _deep(gang, Code.OUTRANKED, needed, ahead) or _known(gang, Code.OUTRANKED, needed, {}, ahead, others)
    if known is not None:
        return known
    whom = wording.named([other.name for other in by]) or "others"
    because = f": {reason.rstrip('.')}" if reason else ""
    return refusals.Refusal(
        code=Code.OUTRANKED,
        message=f"It needs {wording.wanted(gang)}, and what there is goes to {whom} for now{because}.",
        needed=needed,
        holders=others,
        ahead=ahead,
    )


def stopping(
    gang: plans.Gang, victims: Sequence[plans.Gang], ahead: int = 0, kept: tuple[str, ...] = ()
) -> refusals.Refusal:
    """Its place is being cleared: it starts once these have saved a checkpoint and are gone. `kept`: on these nodes,
    where that is done for its sake.
    """
    needed = wording.needed(gang)
    others = tuple(_holder(one) for one in victims[: contexts.SHOWN_HOLDERS])
    known = _known(gang, Code.STOPPING, needed, {}, ahead, others)
    if known is not None and known.kept == kept:
        return known
    return refusals.Refusal(
        code=Code.STOPPING,
        message=f"Its place is being cleared: {wording.named([one.name for one in victims]) or 'a job'} "
        f"{'is' if len(victims) < 2 else 'are'} being stopped.",
        needed=needed,
        holders=others,
        ahead=ahead,
        kept=kept,
    )


def pool_limit(gang: plans.Gang, over: poolbounds.Over, ahead: int = 0) -> refusals.Refusal:
    """The limit of its pool, or of one above, is used up; or is less than it needs, and always will be."""
    if wording.needed(gang).get(over.resource, 0.0) > over.bound:
        return impossible.in_pool(gang, over.pool, over.resource, over.bound)
    return _over(
        gang,
        Code.POOL_LIMIT,
        over,
        ahead,
        lambda asked, used, most: f"It needs {asked}; the pool {over.pool} uses {used} of its limit of {most}.",
    )


def pool_share(gang: plans.Gang, over: poolbounds.Over, ahead: int = 0, wants: Sequence[str] = ()) -> refusals.Refusal:
    """Its pool has what it is entitled to, and `wants` (pools) have a right to the rest."""
    whom = f"; the rest belongs to {wording.named(wants)}" if wants else ""
    return _over(
        gang,
        Code.POOL_SHARE,
        over,
        ahead,
        lambda asked, used, most: (
            f"It needs {asked}; the pool {over.pool} has {used} of the {most} that it is entitled to{whom}."
        ),
    )


def not_reserved(
    gang: plans.Gang, over: poolbounds.Over, context: contexts.Context, ahead: int = 0
) -> refusals.Refusal:
    """It must not be preempted, so it needs room within what is reserved for its pool. Where that is too little, were
    all nodes ready, it always will be.
    """
    if wording.needed(gang).get(over.resource, 0.0) > over.bound:
        return never(gang, context) or _over(
            gang,
            Code.NOT_RESERVED,
            over,
            ahead,
            lambda asked, _, most: (
                f"It must not be preempted, and needs {asked}; the pool {over.pool} has a reservation of {most}."
            ),
        )
    return _over(
        gang,
        Code.NOT_RESERVED,
        over,
        ahead,
        lambda asked, used, most: (
            f"It must not be preempted, and needs {asked} within the {most} reserved for the "
            f"pool {over.pool}, of which jobs like it hold {used}."
        ),
    )


def backing_off(gang: plans.Gang, ahead: int = 0) -> refusals.Refusal:
    needed = wording.needed(gang)
    known = _known(gang, Code.BACKING_OFF, needed, {}, ahead)
    if known is not None and known.not_before == gang.not_before:
        return known
    return refusals.Refusal(
        code=Code.BACKING_OFF,
        message="The platform failed it a moment ago; it is tried again soon.",
        needed=needed,
        ahead=ahead,
        not_before=gang.not_before,
    )


def held_by(refusal: refusals.Refusal, now: float) -> str:
    """Who has what it needs, or is to have it, in one sentence; empty where nobody is named."""
    if refusal.code is Code.RESERVED and refusal.until is not None and refusal.holders:
        return f"{refusal.holders[0].name} should start in about {wording.about(max(0.0, refusal.until - now))}."
    if refusal.code is not Code.NO_CAPACITY or not refusal.holders:
        return ""
    short = [name for name, value in refusal.needed.items() if value > refusal.free.get(name, 0.0)]
    name = next((name for name in ("gpus", "cpus", "memory") if name in (short or refusal.needed)), "cpus")
    told = [
        f"{one.name} holds {wording.shown(name, one.amount[name])}" for one in refusal.holders if name in one.amount
    ]
    return f"{wording.listed(told[: wording.NAMED])}." if told else ""


# What is as it was


def _known(
    gang: plans.Gang,
    code: refusals.Code,
    needed: Numbers,
    free: Numbers,
    ahead: int,
    holders: tuple[refusals.Holder, ...] = (),
) -> refusals.Refusal | None:
    """The gang's last refusal, where it says the same; with its place in the queue as it is now."""
    known = gang.refusal
    if known is None or (known.code, known.needed, known.free) != (code, needed, free):
        return None
    if [one.job for one in known.holders] != [one.job for one in holders]:
        return None
    return known if known.ahead == ahead else msgspec.structs.replace(known, ahead=ahead)


def _deep(gang: plans.Gang, code: refusals.Code, needed: Numbers, ahead: int) -> refusals.Refusal | None:
    """The same for a gang deep in the queue, whatever its numbers have become."""
    known = gang.refusal
    if ahead < contexts.REFRESHED or known is None or (known.code, known.needed) != (code, needed):
        return None
    return known if known.ahead == ahead else msgspec.structs.replace(known, ahead=ahead)


# The parts of the sentences


def _over(
    gang: plans.Gang,
    code: refusals.Code,
    over: poolbounds.Over,
    ahead: int,
    sentence: Callable[[str, str, str], str],
) -> refusals.Refusal:
    """A bound of a pool. `sentence` is made of what is asked for, what is used, and the bound."""
    asked, free = wording.needed(gang), {over.resource: round(over.bound - over.used, 6)}
    known = _deep(gang, code, asked, ahead) or _known(gang, code, asked, free, ahead)
    if known is not None:
        return known
    name = over.resource
    used = wording.plain(round(over.used, 3)) if name != "memory" else wording.shown(name, over.used)
    return refusals.Refusal(
        code=code,
        message=sentence(wording.shown(name, asked.get(name, 0.0)), used, wording.shown(name, over.bound)),
        needed=asked,
        free=free,
        total={name: over.bound},
        ahead=ahead,
    )


def _no_nodes(gang: plans.Gang, needed: Numbers, context: contexts.Context, ahead: int) -> refusals.Refusal:
    return _known(gang, Code.NO_NODES, needed, {}, ahead) or refusals.Refusal(
        code=Code.NO_NODES,
        message=_no_nodes_text(context.snapshot.nodes),
        needed=needed,
        change="Bring a node back; `oarlock nodes` says what each waits for.",
        ahead=ahead,
    )


def _no_nodes_text(of: Sequence[nodes.Node]) -> str:
    if not of:
        return "There is no node yet."
    if not any(node.ready for node in of):
        return f"None of {len(of)} nodes is ready."
    return f"None of {len(of)} nodes takes new tasks: {', '.join(_closed(of))}."


def _free_text(
    gang: plans.Gang, context: contexts.Context, needed: Numbers, free: Numbers, short: Sequence[str]
) -> str:
    """`0 of 4 GPUs are free`: what is short; where nothing is, how what is free lies apart."""
    cards = wording.cards(gang)
    total = context.total(cards)
    told = short or [name for name in ("gpus", "cpus", "memory") if name in needed][:1]
    text = wording.listed([wording.part(name, free.get(name, 0.0), total.get(name, 0.0), cards) for name in told]) + (
        " is free" if [free.get(name, 0.0) for name in told] == [1] else " are free"
    )
    if not short:
        text += _apart(gang, context)
    notes = _closed(context.snapshot.nodes) + _taken_by_others(context, told, cards)
    return f"{text} ({'; '.join(notes)})" if notes else text


def _closed(of: Sequence[nodes.Node]) -> list[str]:
    """Nodes that take no new tasks."""
    down, closed = sum(not node.ready for node in of), sum(node.ready and not node.open for node in of)
    found = [f"{down} of {len(of)} nodes not ready"] if down else []
    return found + ([f"{closed} of {len(of)} nodes cordoned or tainted"] if closed else [])


def _taken_by_others(context: contexts.Context, told: Sequence[str], cards: wording.Cards) -> list[str]:
    """The amounts of these resources that programs of others take."""
    taken = wording.taken([one.node for one in context.ready], cards)
    parts = [wording.shown(name, taken[name], cards) for name in told if taken.get(name)]
    return [f"pods of others take {wording.listed(parts)}"] if parts else []


def _apart(gang: plans.Gang, context: contexts.Context) -> str:
    """There is enough in sum."""
    devices = max((ask.amount.devices for ask in gang.asks), default=0.0)
    most = context.most_on_one_node(wording.cards(gang))
    if devices > most:
        return f", but at most {wording.plain(most)} on one node"
    if gang.topology is not None and gang.topology.required:
        return f", but not within one {gang.topology.same}"
    if not context.detailed():
        return _SCATTERED
    slots = min(context.space.slots(ask, mixed=gang.mixed) for ask in gang.asks if ask.min)
    return f", but hold only {slots} of its {sum(gang.smallest)} tasks" if len(gang.asks) == 1 else _SCATTERED


def _fewer(gang: plans.Gang, context: contexts.Context) -> str:
    """Whether it would fit with fewer workers, and with how many: tried out, not guessed."""
    least, most = _workers(gang), impossible.most_workers(gang, context.space)
    return f"With {wording.workers(most)} instead of {least} it would fit now." if most else ""


def _workers(gang: plans.Gang) -> int:
    return next((ask.min for ask in gang.asks if ask.role == "worker"), 0)


def _holder(gang: plans.Gang) -> refusals.Holder:
    """One that is to have it."""
    return refusals.Holder(gang.job, gang.name, wording.needed(gang), gang.owner, gang.pool)

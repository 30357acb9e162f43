"""Refusals: the reason why a gang does not run now, in numbers and in one plain sentence.

There is one function for each code of `oarlock.spec.refusals`. A round may refuse ten thousand gangs, and hardly any of
them for another reason than in the round before. So each function first compares code and numbers with the gang's last
refusal, and returns that one if nothing has materially changed. Sentences are written only for the rest. Deep in the
queue (behind `REFRESHED` others) changed numbers do not count: only another reason does. A request for one job
(`oarlock why`) gets a new refusal, with the smallest change that helps (`oarlock.scheduler.forecasting.remedies`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from oarlock.scheduler import wording
from oarlock.scheduler.explaining import contexts, impossible
from oarlock.scheduler.pools import poolbounds
from oarlock.spec import plans, refusals
from oarlock.spec.cluster import nodes

Code = refusals.Code
Numbers = dict[str, float]

_SCATTERED = ", but not where its tasks fit"


def never(gang: plans.Gang, context: contexts.Context) -> refusals.Refusal | None:
    """Return the refusal of a gang that the declared nodes and pools could never hold; None if they could."""
    found = context.never(gang)
    return found if found is None else _unchanged(gang, found.code, found.needed, found.free, 0) or found


def newly_impossible(gang: plans.Gang, context: contexts.Context) -> refusals.Refusal | None:
    """Return the same as `never`.

    Return None for a gang that was refused for another reason before, since that one is possible.
    """
    return None if is_possible(gang) else never(gang, context)


def is_possible(gang: plans.Gang) -> bool:
    """Return whether the gang was refused for another reason before than that it could never run."""
    return gang.refusal is not None and gang.refusal.code not in refusals.NEVER


def no_capacity(gang: plans.Gang, context: contexts.Context, ahead: int = 0) -> refusals.Refusal:
    """Return the refusal of a gang that fits an emptier cluster.

    It has the needs of the gang, the free amounts, and the largest holders.
    """
    needed, cards = wording.needed(gang), wording.cards(gang)
    if not context.open_to(gang.constraints):
        return _no_nodes(gang, needed, context, ahead)
    if context.terse:
        return refusals.Refusal(code=Code.NO_CAPACITY, message="", needed=needed, ahead=ahead)
    last = _unchanged_deep(gang, Code.NO_CAPACITY, needed, ahead)
    if last is not None:
        return last
    free = context.free(cards)
    short = [name for name in needed if needed[name] > free.get(name, 0.0)]
    worst = min(short or needed or ["cpus"], key=lambda name: free.get(name, 0.0) / needed.get(name, 1.0))
    holders = context.holders(worst, cards)
    last = _unchanged(gang, Code.NO_CAPACITY, needed, free, ahead, holders)
    if last is not None:
        return last
    fewer = _fewer_workers(gang, context) if context.detailed() else ""
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
    """Return the refusal of a gang that waits for its turn: free resources are reserved for the gangs ahead of it.

    It is not written anew when another gang becomes the first one.
    """
    needed = wording.needed(gang)
    return _unchanged(gang, Code.BEHIND, needed, {}, ahead) or refusals.Refusal(
        code=Code.BEHIND,
        message=f"{first.name} came first and waits for {wording.wanted(first)}.",
        needed=needed,
        ahead=ahead,
    )


def reserved(
    gang: plans.Gang, head: plans.Gang, until: float | None = None, ahead: int = 0, kept: tuple[str, ...] = ()
) -> refusals.Refusal:
    """Return the refusal of a gang that fits now, but would delay `head`.

    `until` is the expected start of `head` in Unix seconds; None if it is unknown.
    """
    needed, others = wording.needed(gang), (_holder(head),)
    last = _unchanged(gang, Code.RESERVED, needed, {}, ahead, others)
    if last is not None:
        return last if last.until == until else msgspec.structs.replace(last, until=until)
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
    """Return the refusal of a gang to which the policy prefers the gangs in `by`.

    `reason` is the policy's own, with numbers.
    """
    needed = wording.needed(gang)
    others = tuple(_holder(other) for other in by[: contexts.SHOWN_HOLDERS])
    last = _unchanged_deep(gang, Code.OUTRANKED, needed, ahead) or _unchanged(
        gang, Code.OUTRANKED, needed, {}, ahead, others
    )
    if last is not None:
        return last
    names = wording.named([other.name for other in by]) or "others"
    because = f": {reason.rstrip('.')}" if reason else ""
    return refusals.Refusal(
        code=Code.OUTRANKED,
        message=f"It needs {wording.wanted(gang)}, and the free resources go to {names} for now{because}.",
        needed=needed,
        holders=others,
        ahead=ahead,
    )


def stopping(
    gang: plans.Gang, victims: Sequence[plans.Gang], ahead: int = 0, kept: tuple[str, ...] = ()
) -> refusals.Refusal:
    """Return the refusal of a gang that starts once `victims` have saved a checkpoint and are gone.

    `kept` names the nodes that are reserved for the gang, if the victims are stopped for its sake.
    """
    needed = wording.needed(gang)
    others = tuple(_holder(one) for one in victims[: contexts.SHOWN_HOLDERS])
    last = _unchanged(gang, Code.STOPPING, needed, {}, ahead, others)
    if last is not None and last.kept == kept:
        return last
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
    """Return the refusal by the limit of its pool, or of a pool above it, which is used up or too low."""
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
    """Return the refusal of a gang in a pool that has its entitlement.

    The pools in `wants` have a right to the rest.
    """
    names = f"; the rest belongs to {wording.named(wants)}" if wants else ""
    return _over(
        gang,
        Code.POOL_SHARE,
        over,
        ahead,
        lambda asked, used, most: (
            f"It needs {asked}; the pool {over.pool} has {used} of the {most} that it is entitled to{names}."
        ),
    )


def not_reserved(
    gang: plans.Gang, over: poolbounds.Over, context: contexts.Context, ahead: int = 0
) -> refusals.Refusal:
    """Return the refusal of a gang that must not be preempted and is not within the reservation of its pool.

    The refusal is final if the reservation is too small even with all nodes ready.
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
    """Return the refusal of a gang that waits before its next try."""
    needed = wording.needed(gang)
    last = _unchanged(gang, Code.BACKING_OFF, needed, {}, ahead)
    if last is not None and last.not_before == gang.not_before:
        return last
    return refusals.Refusal(
        code=Code.BACKING_OFF,
        message="Its last start failed because of the platform; the next try follows soon.",
        needed=needed,
        ahead=ahead,
        not_before=gang.not_before,
    )


def held_by(refusal: refusals.Refusal, now: float) -> str:
    """Return a sentence with the jobs that hold the missing resources, or will.

    Return an empty text if the refusal names none.
    """
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


# Refusals that have not changed


def _unchanged(
    gang: plans.Gang,
    code: refusals.Code,
    needed: Numbers,
    free: Numbers,
    ahead: int,
    holders: tuple[refusals.Holder, ...] = (),
) -> refusals.Refusal | None:
    """Return the gang's last refusal if it says the same, with the present place in the queue; else None."""
    last = gang.refusal
    if last is None or (last.code, last.needed, last.free) != (code, needed, free):
        return None
    if [one.job for one in last.holders] != [one.job for one in holders]:
        return None
    return last if last.ahead == ahead else msgspec.structs.replace(last, ahead=ahead)


def _unchanged_deep(gang: plans.Gang, code: refusals.Code, needed: Numbers, ahead: int) -> refusals.Refusal | None:
    """Return the last refusal of a gang deep in the queue, if its reason is the same, whatever its numbers are."""
    last = gang.refusal
    if ahead < contexts.REFRESHED or last is None or (last.code, last.needed) != (code, needed):
        return None
    return last if last.ahead == ahead else msgspec.structs.replace(last, ahead=ahead)


# The parts of the sentences


def _over(
    gang: plans.Gang,
    code: refusals.Code,
    over: poolbounds.Over,
    ahead: int,
    sentence: Callable[[str, str, str], str],
) -> refusals.Refusal:
    """Return the refusal for a bound of a pool.

    `sentence` takes the requested amount, the used amount and the bound.
    """
    asked, free = wording.needed(gang), {over.resource: round(over.bound - over.used, 6)}
    last = _unchanged_deep(gang, code, asked, ahead) or _unchanged(gang, code, asked, free, ahead)
    if last is not None:
        return last
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
    return _unchanged(gang, Code.NO_NODES, needed, {}, ahead) or refusals.Refusal(
        code=Code.NO_NODES,
        message=_no_nodes_text(context.snapshot, gang.constraints),
        needed=needed,
        change=impossible.elsewhere(context.snapshot.nodes, gang.constraints)
        if context.ready
        else "Bring a node back; `oarlock nodes` tells the reason.",
        ahead=ahead,
    )


def _no_nodes_text(snapshot: plans.Snapshot, constraints: nodes.Constraints | None) -> str:
    of = snapshot.nodes
    if not of:
        return "There is no node yet."
    if not any(node.ready for node in of):
        return f"None of {len(of)} nodes is ready."
    return (
        f"None of {len(of)} nodes takes new tasks: {', '.join(_closed(of, constraints, snapshot.rules.node_classes))}."
    )


def _free_text(
    gang: plans.Gang, context: contexts.Context, needed: Numbers, free: Numbers, short: Sequence[str]
) -> str:
    """Return a clause such as `0 of 4 GPUs are free`: the missing resources, or the reason why enough do not help."""
    cards = wording.cards(gang)
    total = context.total(cards)
    told = short or [name for name in ("gpus", "cpus", "memory") if name in needed][:1]
    text = wording.listed([wording.part(name, free.get(name, 0.0), total.get(name, 0.0), cards) for name in told]) + (
        " is free" if [free.get(name, 0.0) for name in told] == [1] else " are free"
    )
    if not short:
        text += _scattered(gang, context)
    classes = context.snapshot.rules.node_classes
    notes = _closed(context.snapshot.nodes, gang.constraints, classes) + _taken_by_others(context, told, cards)
    return f"{text} ({'; '.join(notes)})" if notes else text


def _closed(
    of: Sequence[nodes.Node], constraints: nodes.Constraints | None, classes: Sequence[nodes.NodeClass]
) -> list[str]:
    """Return clauses that count the nodes that take no new tasks, and name those that take none of this gang; and one
    that names the classes of nodes where none of them takes it.
    """
    down, closed = sum(not node.ready for node in of), sum(node.ready and not node.open for node in of)
    found = [f"{down} of {len(of)} nodes not ready"] if down else []
    found += [f"{closed} of {len(of)} nodes cordoned or tainted"] if closed else []
    barred = wording.closed((node for node in of if node.open), constraints)
    found += [f"closed to it: {barred}"] if barred else []
    models = [one.model for one in classes]
    if models and not any(model.admits(constraints) for model in models):
        found.append(f"no new node would help it: {wording.closed(models, constraints)}")
    return found


def _taken_by_others(context: contexts.Context, told: Sequence[str], cards: wording.Cards) -> list[str]:
    """Return a clause with the amounts of these resources that the pods of others take."""
    taken = wording.taken([one.node for one in context.ready], cards)
    parts = [wording.shown(name, taken[name], cards) for name in told if taken.get(name)]
    return [f"pods of others take {wording.listed(parts)}"] if parts else []


def _scattered(gang: plans.Gang, context: contexts.Context) -> str:
    """Return the reason why a gang does not fit although there is enough in sum."""
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


def _fewer_workers(gang: plans.Gang, context: contexts.Context) -> str:
    """Return a sentence with the most workers that would fit now; an empty text if none would."""
    least, most = _workers(gang), impossible.most_workers(gang, context.space)
    return f"With {wording.workers(most)} instead of {least} it would fit now." if most else ""


def _workers(gang: plans.Gang) -> int:
    return next((ask.min for ask in gang.asks if ask.role == "worker"), 0)


def _holder(gang: plans.Gang) -> refusals.Holder:
    """Return the gang as the future holder of its minimum."""
    return refusals.Holder(gang.job, gang.name, wording.needed(gang), gang.owner, gang.pool)

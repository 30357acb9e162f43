"""Refusals: why a gang does not run now, in numbers and in one plain sentence."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from oarlock.scheduler import placement
from oarlock.scheduler import room as rooms
from oarlock.spec import holdings, nodes, plans, quantities, refusals

SHOWN_HOLDERS = 5


class OverLimit(NamedTuple):
    """The pool (the gang's own or one above it) whose limit a gang would exceed."""

    pool: str
    resource: str
    used: float
    limit: float


def needed(gang: plans.Gang) -> holdings.Resources:
    return sum((task.amount for task in gang.tasks), rooms.NOTHING)


def never(gang: plans.Gang, snapshot: plans.Snapshot) -> refusals.Refusal | None:
    """The refusal of a gang that no state of the declared nodes and pools could hold, else None."""
    amount = needed(gang)
    limit = next((pool.limit for pool in snapshot.pools if pool.name == gang.pool), {})
    for name, asked in numbers(amount).items():
        if name in limit and asked > limit[name]:
            most = shown(name, limit[name])
            return refusals.Refusal(
                code=refusals.Code.NEVER_IN_POOL,
                message=f"It needs {shown(name, asked)}, and the pool {gang.pool} is limited to {most}.",
                needed=numbers(amount),
                total=dict(limit),
                change="Ask for less, choose another pool, or have the limit raised.",
            )
    if not snapshot.nodes:
        return None
    empty = rooms.Room(_revived(snapshot))
    if not placement.gpu_types(gang, empty):
        return _no_such_device(gang, empty)
    if placement.place(gang, empty) is not None:
        return None
    fitting = placement.most(gang, empty)
    total = numbers(empty.total())
    return refusals.Refusal(
        code=refusals.Code.NEVER_FITS,
        message=f"It needs {_sum_text(gang)}; all nodes together have {_amount_text(empty.total())}, "
        f"and even empty they hold only {fitting} of its {len(gang.tasks)} tasks.",
        needed=numbers(amount),
        total=total,
        change=_smaller(gang, fitting) or "Ask for less per task.",
    )


def no_capacity(gang: plans.Gang, snapshot: plans.Snapshot, room: rooms.Room, ahead: int) -> refusals.Refusal:
    """It would fit an emptier cluster: what it needs, what is free, and who holds the rest."""
    if not room.ready():
        return refusals.Refusal(
            code=refusals.Code.NO_NODES,
            message=f"None of {len(room.nodes)} nodes is ready.",
            needed=numbers(needed(gang)),
            change="Bring a node back; `oarlock nodes` says what each waits for.",
            ahead=ahead,
        )
    free = room.free()
    short = _shortest(needed(gang), free)
    holders = _holders(snapshot.running, short)
    held_by = ", ".join(f"{holder.name} holds {shown(short, holder.amount[short])}" for holder in holders)
    fitting = placement.most(gang, room)
    waited_for = f"Wait for {holders[0].name} to end." if holders else "Wait."
    return refusals.Refusal(
        code=refusals.Code.NO_CAPACITY,
        message=f"It needs {_sum_text(gang)}; {_free_text(gang, room)}{': ' + held_by if held_by else ''}.",
        needed=numbers(needed(gang)),
        free=numbers(free),
        total=numbers(room.total()),
        holders=holders,
        ahead=ahead,
        change=_smaller(gang, fitting) or waited_for,
    )


def pool_limit(gang: plans.Gang, over: OverLimit, ahead: int) -> refusals.Refusal:
    name, used, limit = over.resource, over.used, over.limit
    asked = numbers(needed(gang))[name]
    return refusals.Refusal(
        code=refusals.Code.POOL_LIMIT,
        message=f"It needs {shown(name, asked)}; the pool {over.pool} uses {shown(name, used)} "
        f"of its {shown(name, limit)}.",
        needed=numbers(needed(gang)),
        free={name: limit - used},
        total={name: limit},
        ahead=ahead,
        change="Wait for a job of this pool to end, choose another pool, or have the limit raised.",
    )


def behind(gang: plans.Gang, first: plans.Gang, ahead: int) -> refusals.Refusal:
    """It waits its turn. Kept as it is for as long as it does, so that a long queue is not rewritten."""
    if gang.refusal is not None and gang.refusal.code is refusals.Code.BEHIND:
        return gang.refusal
    return refusals.Refusal(
        code=refusals.Code.BEHIND,
        message=f"{first.name} came first and waits for {_sum_text(first)}.",
        needed=numbers(needed(gang)),
        ahead=ahead,
        change="Wait, or raise its priority.",
    )


def backing_off(gang: plans.Gang) -> refusals.Refusal:
    return refusals.Refusal(
        code=refusals.Code.BACKING_OFF,
        message="The platform failed it a moment ago; it is tried again soon.",
        needed=numbers(needed(gang)),
        not_before=gang.not_before,
    )


def numbers(amount: holdings.Resources) -> dict[str, float]:
    """Cores, bytes, devices; what is zero is left out."""
    named = {"cpus": amount.cpus_milli / 1000, "memory": float(amount.memory_bytes), "gpus": float(amount.gpus)}
    return {name: value for name, value in named.items() if value}


def shown(name: str, value: float) -> str:
    if name == "memory":
        return quantities.memory_text(value)
    if name == "cpus":
        return f"{value:g} CPU{'' if value == 1 else 's'}"
    return f"{value:g} GPU{'' if value == 1 else 's'}"


def _amount_text(amount: holdings.Resources) -> str:
    return ", ".join(shown(name, value) for name, value in numbers(amount).items()) or "nothing"


def _sum_text(gang: plans.Gang) -> str:
    within = f" within one {gang.topology.same}" if gang.topology is not None and gang.topology.required else ""
    return f"{_amount_text(needed(gang))} for {len(gang.tasks)} task{'' if len(gang.tasks) == 1 else 's'}{within}"


def _free_text(gang: plans.Gang, room: rooms.Room) -> str:
    """`0 of 4 GPUs, 3 of 16 CPUs are free`: only what the gang asks for."""
    asked, free, total = (numbers(amount) for amount in (needed(gang), room.free(), room.total()))
    parts = []
    for name in asked:
        have = quantities.memory_text(free.get(name, 0.0)) if name == "memory" else f"{free.get(name, 0.0):g}"
        parts.append(f"{have} of {shown(name, total.get(name, 0.0))}")
    return f"{', '.join(parts)} are free"


def _shortest(asked: holdings.Resources, free: holdings.Resources) -> str:
    """The resource of which the least share of what is asked for is free."""
    have = {"cpus": free.cpus_milli / 1000, "memory": float(free.memory_bytes), "gpus": float(free.gpus)}
    return min(numbers(asked) or {"cpus": 0.0}, key=lambda name: have[name] / (numbers(asked).get(name) or 1.0))


def _holders(running: Iterable[plans.Running], short: str) -> tuple[refusals.Holder, ...]:
    found = []
    for job in running:
        held = numbers(sum((holding.amount for holding in job.holdings), rooms.NOTHING))
        if held.get(short):
            found.append(refusals.Holder(job.job, job.name, held))
    found.sort(key=lambda holder: (-holder.amount[short], holder.job))
    return tuple(found[:SHOWN_HOLDERS])


def _smaller(gang: plans.Gang, fitting: int) -> str:
    """The smallest change that would admit it: fewer workers; empty where that would not do."""
    workers = [task for task in gang.tasks if task.role == "worker"]
    fewer = len(workers) - (len(gang.tasks) - fitting)
    if workers and fewer >= 1:
        return f"With {fewer} worker{'' if fewer == 1 else 's'} instead of {len(workers)} it would fit."
    return ""


def _no_such_device(gang: plans.Gang, empty: rooms.Room) -> refusals.Refusal:
    wanted = sorted({kind for task in gang.tasks for kind in task.gpu_types})
    present = sorted({device.type for node in empty.nodes.values() for device in node.node.devices})
    return refusals.Refusal(
        code=refusals.Code.NO_SUCH_DEVICE,
        message=f"It needs GPUs{' of type ' + ' or '.join(wanted) if wanted else ''}; "
        + (f"the nodes have {', '.join(present)}." if present else "no node has one."),
        needed=numbers(needed(gang)),
        total=numbers(empty.total()),
        change=f"Choose one of {', '.join(present)}." if present else "Ask for none, or add a node that has one.",
    )


def _revived(snapshot: plans.Snapshot) -> list[nodes.Node]:
    """The declared nodes as if all of them were ready."""
    return [msgspec.structs.replace(node, ready=True) for node in snapshot.nodes]

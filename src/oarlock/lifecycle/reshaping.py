"""Another number of workers within an attempt: the scheduler's growth, or shrinking in favour of others.

    change    return the difference between the present gang and the place that the scheduler gives it
    reshaped  the job after that was decided: tasks that join, and members that leave in the next round
    vacated   the job after tasks that have left have given their places back

The members that stay keep processes and places. A member that leaves hears of a round without it, and ends by itself at
the next step boundary; if it does not, it is ended by force after the grace. Only then its place is free. It may be
started again later, as another incarnation and perhaps elsewhere.

Where this is not possible, the whole gang ends at its next checkpoint and starts again, as every gang does that cannot
rejoin: its members did not all say that they can; tasks would have to move; or the task that stores the results of the
job would have to leave.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from oarlock.lifecycle import ends
from oarlock.spec import attempts, events, holdings, intents, jobfile, jobs, phases, roles
from oarlock.spec.input import quantities

Part = attempts.Part
TaskPhase = phases.TaskPhase
replace = msgspec.structs.replace

FORCE_AFTER_S = 5.0
"""After the grace, as at the end of an attempt."""

_LAST = {Part.MEMBER: 0, Part.JOINING: 1, Part.LEFT: 2}


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """Holdings of tasks that join, and the names of tasks that leave. Both may be empty, never both full."""

    added: tuple[holdings.Holding, ...] = ()
    removed: tuple[str, ...] = ()


def change(job: jobs.Job, held: Sequence[holdings.Holding], to: Sequence[holdings.Holding]) -> Change | None:
    """Return how the gang comes from its present holdings to `to` without an end; None where it cannot."""
    live = job.live
    if live is None or not is_possible(job, live):
        return None
    claims = {claim.task: claim for claim in held if claim.attempt == live.number}
    staying = [task for task in live.tasks if task.holds and task.name in claims]
    now = collections.Counter((task.role, claims[task.name].node) for task in staying)
    then = collections.Counter((roles.RoleName(claim.role), claim.node) for claim in to)
    more, fewer = then - now, now - then
    if (more and fewer) or any(role is not roles.RoleName.WORKER for role, _ in (*more, *fewer)):
        return None
    if fewer:
        removed = [name for (_, node), count in fewer.items() for name in _last(staying, claims, node, count)]
        kept = [task for task in staying if task.name not in removed]
        return Change(removed=tuple(sorted(removed))) if _may_stay(job, kept, staying) else None
    if more and live.closed:
        return None
    kept_claims = [claims[task.name] for task in staying]
    indexes = _free_indexes(live)
    added: list[holdings.Holding] = []
    for (_, node), count in more.items():
        places = _spare([claim for claim in to if claim.node == node], kept_claims, count)
        if places is None:
            return None
        added += [replace(place, attempt=live.number, index=next(indexes)) for place in places]
    return Change(added=tuple(added))


def is_possible(job: jobs.Job, live: attempts.Attempt) -> bool:
    """Return whether members may join and leave now: all train, and have said that they can go on among others."""
    members = [task for task in live.members if task.role in ends.COLLECTIVE_ROLES]
    return (
        jobfile.reshapes(job.spec)
        and job.intent is intents.Intent.RUN
        and live.stop is None
        and live.failing_since is None
        and bool(members)
        and all(task.can_rejoin and task.phase is TaskPhase.PROCESSING for task in members)
    )


def reshaped(job: jobs.Job, live: attempts.Attempt, event: events.Reshaped, now: float) -> attempts.Attempt:
    """Return the attempt with the change; the same one where it is not possible any more, or was told before."""
    held = {task.name for task in live.tasks if task.holds}
    there = {task.name for task in live.tasks if task.part is not Part.AWAY}
    known = {claim.task for claim in event.added} & there
    if event.round != live.round or not is_possible(job, live) or known or not held.issuperset(event.removed):
        return live
    leaving = [task for task in live.tasks if task.name in event.removed]
    tasks = [_leaving(job, task, now) if task in leaving else task for task in live.tasks]
    for claim in event.added:
        before = next((task for task in tasks if task.name == claim.task), None)
        tasks = [task for task in tasks if task is not before]
        tasks.append(_joining(claim, before, now))
    order = {role: place for place, role in enumerate(job.spec.roles)}
    live = _with_claims(live, event, now) if event.added else live
    return replace(
        live,
        round=live.round + any(task.part is Part.MEMBER for task in leaving),
        tasks=tuple(sorted(tasks, key=lambda task: (order[task.role], task.index))),
    )


def vacated(live: attempts.Attempt, event: events.Vacated, now: float) -> attempts.Attempt:
    """Return the attempt without the places of these tasks, as far as nothing of them is known to run."""
    named = {(key.role, key.index, key.incarnation) for key in event.tasks}
    found = [task for task in live.tasks if (task.role, task.index, task.incarnation) in named and is_vacant(task)]
    if live.stop is not None or not found or len(found) != len(named):
        return live
    leaving = {task.name for task in found}
    tasks = tuple(_away(task) if task.name in leaving else task for task in live.tasks)
    return replace(_with_claims(live, event, now), tasks=tasks)


def is_vacant(task: attempts.Task) -> bool:
    """Return whether the task has left for good, and was gone, or not made, by the record."""
    return task.part is Part.LEFT and task.leave_by is not None and (task.gone or task.phase is TaskPhase.PENDING)


def _last(staying: Iterable[attempts.Task], claims: dict[str, holdings.Holding], node: str, count: int) -> list[str]:
    """Return the tasks of a node that leave: those that do not train before those that do, the later before."""
    here = [task for task in staying if task.role is roles.RoleName.WORKER and claims[task.name].node == node]
    here.sort(key=lambda task: (_LAST[task.part], task.index), reverse=True)
    return [task.name for task in here[:count]]


def _may_stay(job: jobs.Job, kept: Sequence[attempts.Task], before: Sequence[attempts.Task]) -> bool:
    """Return whether enough members are left, and with them the task that stores the results of the job."""
    workers = job.spec.roles[roles.RoleName.WORKER]
    members = [task for task in kept if task.part is Part.MEMBER]
    first = next((task for task in before if task.role in ends.COLLECTIVE_ROLES), None)
    enough = sum(task.role is roles.RoleName.WORKER for task in members) >= max(1, workers.min or workers.count)
    return enough and first in members


def _free_indexes(live: attempts.Attempt) -> Iterator[int]:
    taken = {task.index for task in live.tasks if task.role is roles.RoleName.WORKER and task.part is not Part.AWAY}
    index = 0
    while True:
        if index not in taken:
            yield index
        index += 1


def _spare(
    to: Sequence[holdings.Holding], kept: Sequence[holdings.Holding], count: int
) -> list[holdings.Holding] | None:
    """Return the places of `count` workers on a node, with devices and ports of `to` that no kept task holds.

    The scheduler has placed the whole gang anew, so the devices and ports of a place may be those of two tasks that
    stay.
    """
    workers = [claim for claim in to if claim.role == roles.RoleName.WORKER]
    first = workers[0]
    kept = [claim for claim in kept if claim.node == first.node]
    shared = bool(first.amount.gpu_milli)
    devices = [device for claim in workers for device in claim.devices]
    free = devices if shared else _without(devices, [device for claim in kept for device in claim.devices])
    ports = _without([port for claim in to for port in claim.ports], [port for claim in kept for port in claim.ports])
    each, block = len(first.devices), len(first.ports)
    if any((len(claim.devices), len(claim.ports)) != (each, block) for claim in workers):
        return None
    if len(free) < each * count or len(ports) < block * count:
        return None
    return [
        replace(
            first,
            devices=tuple(free[place * each : (place + 1) * each]),
            ports=tuple(ports[place * block : (place + 1) * block]),
        )
        for place in range(count)
    ]


def _without(numbers: Iterable[int], taken: Iterable[int]) -> list[int]:
    not_free = set(taken)
    return [number for number in numbers if number not in not_free]


def _leaving(job: jobs.Job, task: attempts.Task, now: float) -> attempts.Task:
    """Return the task as one that leaves.

    A member ends by itself, once all are in the next round. The others do nothing that needs an end.
    """
    member = task.part is Part.MEMBER
    by = now + quantities.seconds(job.spec.grace) + FORCE_AFTER_S if member else now
    return replace(task, part=Part.LEFT, leave_by=by)


def _joining(claim: holdings.Holding, before: attempts.Task | None, now: float) -> attempts.Task:
    return attempts.Task(
        role=roles.RoleName(claim.role),
        index=claim.index,
        incarnation=1 if before is None else before.incarnation + 1,
        node=claim.node,
        ports=claim.ports,
        devices=claim.devices,
        part=Part.JOINING,
        phase_at=now,
        moved_at=now,
        last_end=None if before is None else before.last_end,
    )


def _away(task: attempts.Task) -> attempts.Task:
    phase = TaskPhase.STOPPED if task.phase is TaskPhase.PENDING else task.phase
    return replace(task, part=Part.AWAY, leave_by=None, phase=phase, gone=True)


def _with_claims(live: attempts.Attempt, event: events.Reshaped | events.Vacated, now: float) -> attempts.Attempt:
    types = event.gpu_types if isinstance(event, events.Reshaped) else ()
    return replace(
        live,
        spent=live.spent_at(now),
        held_at=now,
        held=event.held,
        price_per_h=event.price_per_h,
        gpu_types=tuple(sorted({*live.gpu_types, *types})),
    )

"""Members of an elastic job that come and go within an attempt.

A worker that fails leaves, if the others have said that they can go on without it and enough of them are left: the next
round begins in the same transaction, before blame is settled. Once nothing of the worker runs, another incarnation
takes its place. The barrier lets that one through alone, so the others do not wait for it. It joins them, in one more
round, when it has said that it is ready.

A failure of its own spends a restart, as a restart of the gang does. A failure of the platform spends none.
"""

from __future__ import annotations

import msgspec

from oarlock.lifecycle import ends, retries
from oarlock.spec import attempts, jobfile, jobs, phases, roles

Part = attempts.Part
TaskPhase = phases.TaskPhase
replace = msgspec.structs.replace


def let_go(job: jobs.Job, live: attempts.Attempt, now: float) -> tuple[jobs.Job, attempts.Attempt]:
    """Go on without the workers that have failed."""
    if live.stop is not None or live.failing_since is not None or not jobfile.rejoins(job.spec):
        return job, live
    for task in live.tasks:
        if _may_leave(job, live, task):
            member = task.part is Part.MEMBER
            tasks = tuple(replace(task, part=Part.LEFT) if one is task else one for one in live.tasks)
            live = replace(live, tasks=tasks, round=live.round + member)
            if task.exit is not None and retries.spends_restart(task.exit.cause):
                job = replace(job, restarts=job.restarts + 1)
    return job, live


def replace_left(job: jobs.Job, live: attempts.Attempt, now: float) -> attempts.Attempt:
    """Start those that have left again, in their places, once nothing of them runs."""
    if live.stop is not None or not any(task.part is Part.LEFT for task in live.tasks):
        return live
    return replace(live, tasks=tuple(_fresh(job, task, now) if _returns(job, task) else task for task in live.tasks))


def admit(live: attempts.Attempt) -> attempts.Attempt:
    """Let those that are to join through the barrier, alone."""
    if live.stop is not None or not any(_waits(task) for task in live.tasks):
        return live
    return replace(live, tasks=tuple(replace(task, round=live.round) if _waits(task) else task for task in live.tasks))


def take_in(live: attempts.Attempt) -> attempts.Attempt:
    """Take those in that are ready, in the next round."""
    if live.stop is not None or not any(_is_ready(live, task) for task in live.tasks):
        return live
    number = live.round + 1
    return replace(
        live,
        round=number,
        tasks=tuple(
            replace(task, part=Part.MEMBER, round=number) if _is_ready(live, task) else task for task in live.tasks
        ),
    )


def not_made(live: attempts.Attempt, now: float) -> attempts.Attempt | None:
    """Return the attempt without the tasks that the platform could not make, if all of them were to join others. They
    give their places back, so that the scheduler may find others.
    """
    missing = [task for task in live.tasks if task.phase is TaskPhase.PENDING and task.holds]
    if live.launched_at is None or any(task.part is not Part.JOINING for task in missing):
        return None
    return replace(
        live,
        tasks=tuple(replace(task, part=Part.LEFT, leave_by=now) if task in missing else task for task in live.tasks),
    )


def _may_leave(job: jobs.Job, live: attempts.Attempt, task: attempts.Task) -> bool:
    if task.phase is not TaskPhase.FAILED or task.exit is None or task.role is not roles.RoleName.WORKER:
        return False
    if task.part is Part.JOINING:
        return True
    if task.part is not Part.MEMBER or not task.round:
        return False
    others = [one for one in live.members if one.role in ends.COLLECTIVE_ROLES and one.phase not in phases.ENDED]
    workers = job.spec.roles[roles.RoleName.WORKER]
    enough = sum(one.role is roles.RoleName.WORKER for one in others) >= max(1, workers.min or workers.count)
    own = retries.spends_restart(task.exit.cause)
    return (
        enough
        and all(one.can_rejoin for one in others)
        and (not own or (job.restarts < job.spec.max_restarts and not retries.hopeless_in_place(job, task)))
    )


def _returns(job: jobs.Job, task: attempts.Task) -> bool:
    """Whether the task is started again: not after the same end as before, with no progress between."""
    if task.part is not Part.LEFT or task.leave_by is not None or not task.gone or task.exit is None:
        return False
    before = task.last_end
    if retries.spends_restart(task.exit.cause):
        return job.restarts <= job.spec.max_restarts and not retries.hopeless_in_place(job, task)
    return before is None or before.cause is not task.exit.cause or before.reached_step != job.reached_step


def _fresh(job: jobs.Job, task: attempts.Task, now: float) -> attempts.Task:
    assert task.exit is not None
    return replace(ends.fresh(job, task, now), part=Part.JOINING)


def _waits(task: attempts.Task) -> bool:
    return task.part is Part.JOINING and not task.round and task.phase is TaskPhase.REGISTERED


def _is_ready(live: attempts.Attempt, task: attempts.Task) -> bool:
    return (
        task.part is Part.JOINING
        and task.can_rejoin
        and task.phase is TaskPhase.PROCESSING
        and all(
            one.can_rejoin
            for one in live.members
            if one.role in ends.COLLECTIVE_ROLES and one.phase not in phases.ENDED
        )
    )

"""`wants(job, observed, now) -> actions`: the work left for a job, from its present state alone.

It gives the same actions until they are done and recorded: a controller may die at any point and be followed by
another. Orders of the agents are in `orders`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from oarlock.lifecycle import deadlines, ends, joining, reshaping
from oarlock.lifecycle.failures import blame
from oarlock.spec import attempts, events, jobs, phases, roles
from oarlock.spec.input import quantities
from oarlock.spec.reconciling import actions, observations

State = observations.State
TaskPhase = phases.TaskPhase


def wants(job: jobs.Job, observed: Sequence[observations.Observed], now: float) -> tuple[actions.Action, ...]:
    """Return the actions that are left to do.

    `observed` is all that the backend lists of this job. Notes come first: they may change the rest.
    """
    live = job.live
    found = list(_old(job, observed))
    if live is None:
        return tuple(found)
    seen = {one.key: one for one in observed if one.key.attempt == live.number}
    found += _notes(job, live, seen, now)
    found += _launches(live, deadlines.whole(job, live, observed))
    found += _vacations(job, live, seen)
    found += _kills(job, live, seen, now)
    if _is_over(job, live, seen, now):
        found.append(actions.Release(attempt=live.number))
    return tuple(sorted(found, key=lambda action: not isinstance(action, actions.Note)))


def next_wake(job: jobs.Job, observed: Sequence[observations.Observed], now: float) -> float | None:
    """Return the earliest time after `now` at which `wants` or `orders` may change by time alone."""
    live = job.live
    if live is None:
        return None
    return min((at for at in deadlines.every(job, live, observed) if at > now), default=None)


def _old(job: jobs.Job, observed: Sequence[observations.Observed]) -> Iterator[actions.Action]:
    """Yield actions for tasks of earlier lives: kill those that run, forget them once all of an attempt is gone.

    Tasks of a later life than the record knows are left alone: then the record, or its reader, is behind.
    """
    live = job.live
    last = job.attempt.number if job.attempt is not None else 0
    by_attempt: dict[int, list[observations.Observed]] = {}
    for one in observed:
        if one.key.attempt <= last:
            by_attempt.setdefault(one.key.attempt, []).append(one)
    for number, listed in sorted(by_attempt.items()):
        present = live if live is not None and live.number == number else None
        stale = [_stand_in(one.key) for one in listed if one.state is not State.GONE and _is_stale(one.key, present)]
        if stale:
            yield actions.Kill(attempt=number, tasks=tuple(stale), reason="stale")
        elif present is None:
            yield actions.Discard(attempt=number)


def _is_stale(key: attempts.TaskKey, present: attempts.Attempt | None) -> bool:
    if present is None:
        return True
    task = present.task(key.role, key.index)
    return task is None or key.incarnation < task.incarnation


def _stand_in(key: attempts.TaskKey) -> attempts.Task:
    return attempts.Task(role=roles.RoleName(key.role), index=key.index, incarnation=key.incarnation)


def _notes(
    job: jobs.Job,
    live: attempts.Attempt,
    seen: dict[attempts.TaskKey, observations.Observed],
    now: float,
) -> Iterator[actions.Action]:
    """Yield at most one decision: the first ends the attempt."""
    if _due(deadlines.settled(live), now) and (found := _blamed(job, live)) is not None:
        yield actions.Note(event=_stop(live, found.cause, found.message, found.task))
    elif _due(deadlines.timeout(job, live), now):
        limit = quantities.duration_text(quantities.seconds(job.spec.timeout or 0))
        yield actions.Note(event=_stop(live, attempts.Cause.TIMEOUT, f"the job's time of {limit} is over"))
    elif _due(deadlines.whole(job, live, seen.values()), now):
        count = len(deadlines.bound(job, live, seen.values()))
        of_the_first = f"within {deadlines.PART_BOUND_S:.0f} s of the first"
        bound = f"only {count} of {len(live.tasks)} tasks were bound {of_the_first}"
        yield actions.Note(event=events.LaunchFailed(attempt=live.number, reason=bound))
    elif _due(joining.late(job, live), now):
        yield actions.Note(event=events.LaunchFailed(attempt=live.number, reason="a new worker did not come in time"))
    elif _due(deadlines.barrier(job, live), now):
        cause = attempts.Cause.PLATFORM if _lost_its_place(live) else attempts.Cause.START_TIMEOUT
        yield actions.Note(event=_stop(live, cause, _absent(job, live)))
    elif _due(deadlines.stacks(live), now) and (mute := joining.mute(job, live)):
        yield actions.Note(event=events.Ousted(attempt=live.number, tasks=mute, message=live.stop_message))
    elif _due(deadlines.stacks(live), now):
        yield actions.Note(event=_stop(live, attempts.Cause.HANG, live.stop_message, live.stop_task))
    elif live.stop is None and live.stacks_at is None and (hanging := _hanging(job, live, now)) is not None:
        idle = quantities.duration_text(hanging.idle_s)
        message = f"{hanging.name} made no progress for {idle}"
        yield actions.Note(event=events.StacksAsked(attempt=live.number, task=hanging.name, message=message))


def _blamed(job: jobs.Job, live: attempts.Attempt) -> blame.Blame | None:
    """Return the task to blame; the attempt itself is at fault where no task failed and no end was decided."""
    found = blame.settle((*live.wave, *live.members), job.spec)
    if found is not None and found.cause is attempts.Cause.PEER:  # of one, perhaps, that has left
        found = blame.settle((*live.wave, *live.tasks), job.spec)
    if found is None:
        message = "every task ended, and none that decides ended well"
        return blame.Blame(task="", cause=attempts.Cause.ERROR, message=message)
    return found


def _stop(live: attempts.Attempt, cause: attempts.Cause, message: str, task: str = "") -> events.StopDecided:
    return events.StopDecided(attempt=live.number, cause=cause, message=message, task=task)


def _lost_its_place(live: attempts.Attempt) -> bool:
    """Return whether all tasks that did not come were started again where the platform had failed."""
    late = [task for task in live.members if not task.round and task.phase is not TaskPhase.REGISTERED]
    return bool(late) and all(task.last_end and task.last_end.cause is attempts.Cause.PLATFORM for task in late)


def _absent(job: jobs.Job, live: attempts.Attempt) -> str:
    late = [task for task in live.tasks if not task.round and task.phase is not TaskPhase.REGISTERED] or live.tasks
    first = late[0]
    detail = f" ({why})" if (why := first.obstacle or first.detail) else ""
    limit = quantities.duration_text(quantities.seconds(job.spec.start_timeout))
    return f"{first.name} was still {first.phase}{detail} when the start-up time of {limit} was over"


def _hanging(job: jobs.Job, live: attempts.Attempt, now: float) -> attempts.Task | None:
    """Return the task that has stood still for longest, where that is too long. After the loss of one, the others get
    the same time again, and after each phase of a successor for which they wait.
    """
    if job.spec.hang_timeout is None:
        return None
    limit = quantities.seconds(job.spec.hang_timeout)
    if any(at is not None and now - at < limit for at in (live.spared_at, joining.awaited_since(job, live))):
        return None
    still = [
        task
        for task in live.members
        if task.phase is TaskPhase.PROCESSING and task.idle_s >= limit and ends.of(job.spec, task.role).watched
    ]
    return max(still, key=lambda task: task.idle_s, default=None)


def _launches(live: attempts.Attempt, until: float | None) -> Iterator[actions.Action]:
    pending = tuple(task for task in live.tasks if task.phase is TaskPhase.PENDING and task.holds)
    if live.stop is None and pending:
        yield actions.Launch(attempt=live.number, tasks=pending, until=until)


def _vacations(
    job: jobs.Job, live: attempts.Attempt, seen: dict[attempts.TaskKey, observations.Observed]
) -> Iterator[actions.Action]:
    """Yield the places to give back: of tasks that have left for good and of which the backend shows nothing."""
    vacant = tuple(task for task in live.tasks if reshaping.is_vacant(task) and _is_gone(job, live, task, seen))
    if live.stop is None and vacant:
        yield actions.Vacate(attempt=live.number, tasks=vacant)


def _is_gone(
    job: jobs.Job,
    live: attempts.Attempt,
    task: attempts.Task,
    seen: dict[attempts.TaskKey, observations.Observed],
) -> bool:
    one = seen.get(task.key(job.id, live.number))
    return one is None or one.state is State.GONE


def _kills(
    job: jobs.Job,
    live: attempts.Attempt,
    seen: dict[attempts.TaskKey, observations.Observed],
    now: float,
) -> Iterator[actions.Action]:
    """Yield the tasks to end by force. One that is gone may be there again: a server that did not know yet that it no
    longer leads has made it once more.
    """
    overdue = tuple(
        task
        for task in live.tasks
        if (one := seen.get(task.key(job.id, live.number))) is not None
        and one.state is not State.GONE
        and (task.gone or one.state is State.ENDED or _due(deadlines.kill(job, live, task), now))
    )
    if overdue:
        yield actions.Kill(attempt=live.number, tasks=overdue, reason=live.stop_message or _why(overdue))


def _why(overdue: Sequence[attempts.Task]) -> str:
    if all(task.exit is not None and task.exit.cause is attempts.Cause.HANG for task in overdue):
        return "it hung, and the others go on without it"
    return "its place was given away" if all(task.leave_by is not None for task in overdue) else "its agent is gone"


def _is_over(
    job: jobs.Job,
    live: attempts.Attempt,
    seen: dict[attempts.TaskKey, observations.Observed],
    now: float,
) -> bool:
    """Return whether nothing of the attempt runs, by the record and by the backend, and no freeze keeps it."""
    return (
        live.stop is not None
        and all(one.state is State.GONE for one in seen.values())
        and all(
            task.gone or (task.phase is TaskPhase.PENDING and task.key(job.id, live.number) not in seen)
            for task in live.tasks
        )
        and (live.frozen_until is None or now >= live.frozen_until)
    )


def _due(at: float | None, now: float) -> bool:
    return at is not None and now >= at

"""`step(job, event, now) -> job`: the record after a fact.

A fact may be told again, late or never. News of another attempt or incarnation than the present one change nothing, and
nothing changes a terminal job. A known fact gives the very same job object, so that nothing needs to be written. Each
handler writes down its fact alone; its consequences (the barrier, a failure, success, the phase) are derived afterwards
in `settling`, from the whole of the job.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from oarlock.lifecycle import deadlines, ends, joining, reshaping, settling, shifting, sizes, verdicts
from oarlock.lifecycle.failures import blame
from oarlock.spec import attempts, events, holdings, intents, jobfile, jobs, phases, roles
from oarlock.spec.input import edits

Intent = intents.Intent
TaskPhase = phases.TaskPhase
replace = msgspec.structs.replace

_ORDER: dict[TaskPhase, int] = {phase: place for place, phase in enumerate(TaskPhase)}
_REPORTED = {str(phase): phase for phase in (TaskPhase.DOWNLOADING, TaskPhase.PROCESSING, TaskPhase.STORING)}
_BEFORE_BARRIER = frozenset({TaskPhase.DEPLOYING, TaskPhase.DOWNLOADING})


def step(job: jobs.Job, event: events.AnyEvent, now: float) -> jobs.Job:
    """Return the job after `event`, recorded at `now` (Unix seconds): `job` itself where that changes nothing."""
    if job.terminal:
        return job
    after = _HANDLERS[type(event)](job, event, now)
    return job if after is job or after == job else settling.settle(after, now)


def _intended(job: jobs.Job, event: events.Intended, now: float) -> jobs.Job:
    if not _prevails(job, event.intent):
        return job
    destined = event.to if event.intent is Intent.RESIZE else ()
    wanted = None if event.intent in {Intent.HALT, Intent.CANCEL} else job.node_request
    job = replace(job, intent=event.intent, reason=_wish(event), destined=destined, node_request=wanted)
    live = job.live
    if live is not None and live.stop is attempts.Cause.STOPPED and event.intent is not Intent.RUN:
        live = replace(live, stop_message=job.reason)  # it is being stopped for a lesser wish: this one counts
        job = _with(job, live)
    if live is not None and live.frozen_until is not None and event.intent in {Intent.HALT, Intent.CANCEL}:
        job = _with(job, replace(live, frozen_until=min(live.frozen_until, now)))
    return job


def _prevails(job: jobs.Job, wanted: Intent) -> bool:
    """Return whether the wish is heard: a stronger one is not overwritten, except that `run` resumes a job that is
    halting.
    """
    if wanted is Intent.RUN:
        return job.intent is Intent.HALT
    if wanted in {Intent.PREEMPT, Intent.RESIZE} and job.live is None:
        return False
    return intents.STRENGTH[wanted] > intents.STRENGTH[job.intent]


_DONE = {
    Intent.RUN: "resumed",
    Intent.RESIZE: "resized",
    Intent.PREEMPT: "preempted",
    Intent.HALT: "halted",
    Intent.CANCEL: "canceled",
}


def _wish(event: events.Intended) -> str:
    """Return the wish in words. For a resize the scheduler gives all of them: `resized from 4 to 8 workers: ...`."""
    if event.intent is Intent.RESIZE and event.reason:
        return event.reason
    by = f" by {event.by}" if event.by else ""
    return f"{_DONE[event.intent]}{by}" + (f": {event.reason}" if event.reason else "")


def _edited(job: jobs.Job, event: events.Edited, now: float) -> jobs.Job:
    change = edits.Edit(priority=event.priority, pool=event.pool, min=event.min, max=event.max)
    spec = edits.edited(job.spec, change)
    if spec is job.spec:
        return job
    placed = spec.roles == job.spec.roles and spec.pool == job.pool
    job = replace(job, spec=spec, pool=spec.pool, destined=job.destined if placed else ())
    if job.refusal is not None:
        told = job.reason == job.refusal.message
        job = replace(job, refusal=None, reason="" if told else job.reason)
    return job


def _refused(job: jobs.Job, event: events.Refused, now: float) -> jobs.Job:
    if job.phase is not phases.Phase.QUEUED:
        return job
    return replace(job, refusal=event.refusal, reason=event.refusal.message)


def _nodes_requested(job: jobs.Job, event: events.NodesRequested, now: float) -> jobs.Job:
    if event.request is not None and (job.phase is not phases.Phase.QUEUED or job.live is not None):
        return job
    return replace(job, node_request=event.request)


def _projected(job: jobs.Job, event: events.Projected, now: float) -> jobs.Job:
    return job if job.resource is not None else replace(job, resource=event.resource)


def _admitted(job: jobs.Job, event: events.Admitted, now: float) -> jobs.Job:
    last = job.attempt
    number = 1 if last is None else last.number + 1
    if job.phase is not phases.Phase.QUEUED or job.live is not None or event.attempt != number or not event.holdings:
        return job
    sizes.check(job, event.holdings)
    begun = attempts.Attempt(
        number=number,
        started_at=now,
        reason=event.reason,
        batch=event.batch,
        held=sum((claim.amount for claim in event.holdings), holdings.Resources()),
        price_per_h=event.price_per_h,
        gpu_types=event.gpu_types,
        offered_step=_offered(job, last),
        tasks=tuple(
            attempts.Task(
                role=roles.RoleName(held.role),
                index=held.index,
                node=held.node,
                ports=held.ports,
                devices=held.devices,
                phase_at=now,
                moved_at=now,
            )
            for held in event.holdings
        ),
    )
    return replace(
        job,
        attempts=(*job.attempts, begun)[-jobs.KEPT_ATTEMPTS :],
        refusal=None,
        node_request=None,
        not_before=None,
        destined=(),
        reason="",
    )


def _offered(job: jobs.Job, last: attempts.Attempt | None) -> int | None:
    """Return the step of the newest checkpoint: of the last attempt, an earlier one, or the job that it continues."""
    if last is None:
        return job.continues.step if job.continues is not None else None
    return last.offered_step if last.checkpoint_step is None else last.checkpoint_step


def _batch_decided(job: jobs.Job, event: events.BatchDecided, now: float) -> jobs.Job:
    live = _live(job, event.attempt)
    if live is None or live.stop is not None:
        return job
    return _with(job, replace(live, batch=event.batch))


def _reshaped(job: jobs.Job, event: events.Reshaped, now: float) -> jobs.Job:
    live = _live(job, event.attempt)
    if live is None:
        return job
    after = reshaping.reshaped(job, live, event, now)
    return job if after is live else _with(job, after)


def _vacated(job: jobs.Job, event: events.Vacated, now: float) -> jobs.Job:
    live = _live(job, event.attempt)
    if live is None:
        return job
    after = reshaping.vacated(live, event, now)
    return job if after is live else _with(job, after)


def _measured(job: jobs.Job, event: events.Measured, now: float) -> jobs.Job:
    return replace(job, curve=event.curve)


def _launched(job: jobs.Job, event: events.Launched, now: float) -> jobs.Job:
    live = _live(job, event.attempt)
    if live is None:
        return job
    made = {(key.role, key.index, key.incarnation) for key in event.tasks}
    tasks = tuple(
        replace(task, phase=TaskPhase.DEPLOYING, phase_at=now, moved_at=now)
        if task.phase is TaskPhase.PENDING and _was_made(task, made)
        else task
        for task in live.tasks
    )
    whole = live.launched_at is None and not event.tasks
    return _with(job, replace(live, tasks=tasks, launched_at=now if whole else live.launched_at))


def _was_made(task: attempts.Task, made: set[tuple[str, int, int]]) -> bool:
    """Return whether the task was made. Without any name in `made`, all tasks of the gang were."""
    return (task.role, task.index, task.incarnation) in made if made else task.incarnation == 1


def _launch_failed(job: jobs.Job, event: events.LaunchFailed, now: float) -> jobs.Job:
    live = _live(job, event.attempt)
    if live is None or live.stop is not None:
        return job
    without = joining.not_made(job, live, now) if jobfile.reshapes(job.spec) else None
    if without is not None:
        return _with(job, without)
    return _with(job, _stopped(live, attempts.Cause.PLATFORM, f"the launch failed: {event.reason}", "", now))


def _registered(job: jobs.Job, event: events.TaskRegistered, now: float) -> jobs.Job:
    live, task = _task(job, event)
    if live is None or task is None or _ORDER[task.phase] >= _ORDER[TaskPhase.REGISTERED]:
        return job
    ports = event.ports or task.ports
    return _with_task(
        job,
        live,
        replace(
            task,
            phase=TaskPhase.REGISTERED,
            phase_at=now,
            moved_at=now,
            address=event.address,
            ports=ports,
            gpu_uuids=event.gpu_uuids,
            detail="",
        ),
    )


def _reported(job: jobs.Job, event: events.TaskReported, now: float) -> jobs.Job:
    live, task = _task(job, event)
    if live is None or task is None:
        return job
    if task.phase in phases.ENDED:
        return _reported_late(job, live, task, event.progress)
    phase = _REPORTED.get(event.phase or "", task.phase)
    if _ORDER[phase] <= _ORDER[task.phase] or (phase is not TaskPhase.DOWNLOADING and not task.round):
        phase = task.phase  # no step back, and no user process that the barrier has not let through
    detail = event.detail or (task.detail if phase is task.phase else "")
    moved = phase is not task.phase or (detail != task.detail and phase in _BEFORE_BARRIER)
    progress = task.progress if _is_old(event.progress, task.progress) else event.progress
    if progress is not None:
        job = replace(job, reached_step=_farther(job.reached_step, progress.step))
    return _with_task(
        job,
        live,
        replace(
            task,
            phase=phase,
            phase_at=now if phase is not task.phase else task.phase_at,
            moved_at=now if moved else task.moved_at,
            detail=detail,
            progress=progress,
            first_progress=task.first_progress or progress,
            idle_s=task.idle_s if event.idle_s is None else event.idle_s,
            can_rejoin=task.can_rejoin if event.can_rejoin is None else event.can_rejoin,
            lost_round=task.lost_round if event.lost_round is None else event.lost_round,
        ),
    )


def _hindered(job: jobs.Job, event: events.TaskHindered, now: float) -> jobs.Job:
    """Take note of an obstacle. Its words may change any number of times: that brings the task no nearer to the
    barrier.
    """
    live, task = _task(job, event)
    if live is None or task is None or task.gone or event.obstacle == task.obstacle:
        return job
    return _with_task(job, live, replace(task, obstacle=event.obstacle, obstacle_at=now if event.obstacle else 0.0))


def _reported_late(
    job: jobs.Job, live: attempts.Attempt, task: attempts.Task, told: attempts.Progress | None
) -> jobs.Job:
    """Take in an agent's last report, which comes after its exit record was read: its progress still counts."""
    known = task.progress
    if told is None or told == known or (known is not None and told.step < known.step):
        return job
    job = replace(job, reached_step=_farther(job.reached_step, told.step))
    return _with_task(job, live, replace(task, progress=told, first_progress=task.first_progress or told))


def _farther(reached: int | None, step: int) -> int | None:
    """Return the farthest step; None while no step was done."""
    return max(reached or 0, step) or None


def _is_old(told: attempts.Progress | None, known: attempts.Progress | None) -> bool:
    return told is None or (known is not None and told.at < known.at)


def _exited(job: jobs.Job, event: events.TaskExited, now: float) -> jobs.Job:
    live, task = _task(job, event)
    if live is None or task is None:
        return job
    if task.exit is not None:
        return _explained(job, live, task, event.exit)
    if event.exit.step is not None:  # its report may come later, or never
        job = replace(job, reached_step=_farther(job.reached_step, event.exit.step))
        task = _at_step(task, event.exit.step, event.exit.at)
    return _with_task(job, live, _ended(job, live, task, event.exit, now))


def _explained(job: jobs.Job, live: attempts.Attempt, task: attempts.Task, told: attempts.Exit) -> jobs.Job:
    """Let the backend say why a task was stopped from outside. Its agent, which is heard first, knows only the fact."""
    if task.exit is None or not blame.explains(task.exit, told):
        return job
    after = replace(task, exit=replace(task.exit, reason=told.reason))
    if live.stop_message == blame.sentence(task):
        live = replace(live, stop_message=blame.sentence(after))
    return _with_task(job, live, after)


def _at_step(task: attempts.Task, step: int, at: float) -> attempts.Task:
    """Return the task at the step of its exit record, if that is farther than its agent's last report."""
    known = task.progress
    if known is not None and known.step >= step:
        return task
    told = attempts.Progress(step=step, at=at) if known is None else replace(known, step=step, at=max(at, known.at))
    return replace(task, progress=told, first_progress=task.first_progress or told)


def _kept(job: jobs.Job, event: events.TaskKept, now: float) -> jobs.Job:
    live, task = _task(job, event)
    if live is None or task is None:
        return job
    return _with_task(job, live, replace(task, kept=event.kept))


def _gone(job: jobs.Job, event: events.TaskGone, now: float) -> jobs.Job:
    live, task = _task(job, event)
    if live is None or task is None or task.gone:
        return job
    if task.exit is None:
        unknown = attempts.Exit(code=1, cause=attempts.Cause.PLATFORM, at=now, reason="exit_unknown")
        if live.stop is not None or task.leave_by is not None:
            unknown = replace(unknown, code=137, cause=attempts.Cause.STOPPED)
        task = _ended(job, live, task, unknown, now)
    return _with_task(job, live, replace(task, gone=True, obstacle="", obstacle_at=0.0))


def _ended(
    job: jobs.Job, live: attempts.Attempt, task: attempts.Task, told: attempts.Exit, now: float
) -> attempts.Task:
    """Return the task with its end, understood in the light of the job's intent."""
    how = blame.refined(told)
    if task.leave_by is not None:
        if how.cause is not attempts.Cause.SUCCEEDED:  # it was to leave, so its end is no failure
            how = replace(how, cause=attempts.Cause.STOPPED)
    elif live.stop is None:
        ours = deadlines.stop(job, live, task) is not None
        if how.cause is attempts.Cause.STOPPED and not ours:  # a drained node, an agent that was told so by mistake
            how = replace(how, cause=attempts.Cause.PLATFORM, reason=how.reason or "stopped")
        elif how.cause is attempts.Cause.SUCCEEDED and not task.round:
            how = replace(how, cause=attempts.Cause.PLATFORM, reason="not_admitted")
        elif how.cause is attempts.Cause.SUCCEEDED and ends.of(job.spec, task.role).needed:
            how = replace(how, cause=attempts.Cause.LEFT_EARLY)
    phase = {attempts.Cause.SUCCEEDED: TaskPhase.SUCCEEDED, attempts.Cause.STOPPED: TaskPhase.STOPPED}.get(
        how.cause, TaskPhase.FAILED
    )
    return replace(task, exit=how, phase=phase, phase_at=now, detail="")


def _logs_missing(job: jobs.Job, event: events.LogsMissing, now: float) -> jobs.Job:
    live, task = _task(job, event)
    if live is None or task is None or event.missing == task.log_gap:
        return job
    return _with_task(job, live, replace(task, log_gap=event.missing))


def _stacks_taken(job: jobs.Job, event: events.StacksTaken, now: float) -> jobs.Job:
    live, task = _task(job, event)
    if live is None or task is None or event.request != live.stacks_request:
        return job
    if any(taken.task == task.name for taken in live.stacks):
        return job
    taken = attempts.Stacks(task=task.name, at=now, stacks=event.stacks)
    return _with(job, replace(live, stacks=(*live.stacks, taken)))


def _stop_decided(job: jobs.Job, event: events.StopDecided, now: float) -> jobs.Job:
    live = _live(job, event.attempt)
    if live is None or live.stop is not None:
        return job
    live = _stopped(live, event.cause, event.message, event.task, now)
    live = replace(live, no_restart=verdicts.no_restart(job, live, now))
    if job.spec.freeze is not None and verdicts.final(job, live):
        live = replace(live, frozen_until=settling.frozen_until(job, now))
    return _with(job, live)


def _stacks_asked(job: jobs.Job, event: events.StacksAsked, now: float) -> jobs.Job:
    live = _live(job, event.attempt)
    if live is None or live.stop is not None or live.stacks_at is not None:
        return job
    return _with(
        job,
        replace(
            live,
            stacks_request=live.stacks_request + 1,
            stacks_at=now,
            stop_task=event.task,
            stop_message=event.message,
        ),
    )


def _ousted(job: jobs.Job, event: events.Ousted, now: float) -> jobs.Job:
    live = _live(job, event.attempt)
    if live is None or live.stop is not None or live.stacks_at is None:
        return job
    how = attempts.Exit(code=137, cause=attempts.Cause.HANG, at=now)
    named = {(key.role, key.index, key.incarnation) for key in event.tasks}
    tasks = tuple(
        replace(task, exit=how, phase=TaskPhase.FAILED, phase_at=now, detail="")
        if (task.role, task.index, task.incarnation) in named and task.exit is None
        else task
        for task in live.tasks
    )
    return _with(job, replace(live, tasks=tasks, stacks_at=None, stacks=(), stop_task="", stop_message=""))


def _released(job: jobs.Job, event: events.Released, now: float) -> jobs.Job:
    """Release the attempt. The event is believed only where nothing is known to run."""
    live = _live(job, event.attempt)
    if live is None or live.stop is None:
        return job
    if any(not task.gone and task.phase is not TaskPhase.PENDING for task in live.tasks):
        return job
    return verdicts.released(job, live, now)


def _checkpoint_visible(job: jobs.Job, event: events.CheckpointVisible, now: float) -> jobs.Job:
    live = _live(job, event.attempt)
    if live is None:
        return job
    if live.checkpoint_step is not None and event.checkpoint_step <= live.checkpoint_step:
        return job
    job = replace(job, reached_step=_farther(job.reached_step, event.checkpoint_step))
    return _with(job, replace(live, checkpoint_step=event.checkpoint_step, checkpoint_at=now))


def _checkpoint_restored(job: jobs.Job, event: events.CheckpointRestored, now: float) -> jobs.Job:
    live, _ = _task(job, event)
    return job if live is None else _with(job, replace(live, restore_step=event.step))


def _clock_stepped(job: jobs.Job, event: events.ClockStepped, now: float) -> jobs.Job:
    return shifting.shifted(job, event.by_s)


def _stopped(live: attempts.Attempt, cause: attempts.Cause, message: str, task: str, now: float) -> attempts.Attempt:
    return replace(live, stop=cause, stop_at=now, stop_message=message, stop_task=task)


def _live(job: jobs.Job, number: int) -> attempts.Attempt | None:
    live = job.live
    return live if live is not None and live.number == number else None


def _task(job: jobs.Job, event: events.TaskEvent) -> tuple[attempts.Attempt | None, attempts.Task | None]:
    """Return the live attempt and the present incarnation of which the event tells, or nothing."""
    live = _live(job, event.key.attempt)
    task = live.task(event.key.role, event.key.index) if live is not None else None
    return (live, task) if task is not None and task.incarnation == event.key.incarnation else (None, None)


def _with(job: jobs.Job, live: attempts.Attempt) -> jobs.Job:
    return replace(job, attempts=(*job.attempts[:-1], live))


def _with_task(job: jobs.Job, live: attempts.Attempt, task: attempts.Task) -> jobs.Job:
    tasks = tuple(task if (one.role, one.index) == (task.role, task.index) else one for one in live.tasks)
    return _with(job, replace(live, tasks=tasks))


_HANDLERS: dict[type[events.Event], Callable[[jobs.Job, Any, float], jobs.Job]] = {
    events.Intended: _intended,
    events.Edited: _edited,
    events.Refused: _refused,
    events.NodesRequested: _nodes_requested,
    events.Projected: _projected,
    events.Admitted: _admitted,
    events.Reshaped: _reshaped,
    events.Vacated: _vacated,
    events.BatchDecided: _batch_decided,
    events.Measured: _measured,
    events.Launched: _launched,
    events.LaunchFailed: _launch_failed,
    events.TaskRegistered: _registered,
    events.TaskReported: _reported,
    events.TaskHindered: _hindered,
    events.TaskExited: _exited,
    events.TaskKept: _kept,
    events.TaskGone: _gone,
    events.LogsMissing: _logs_missing,
    events.StacksTaken: _stacks_taken,
    events.StopDecided: _stop_decided,
    events.StacksAsked: _stacks_asked,
    events.Ousted: _ousted,
    events.Released: _released,
    events.CheckpointVisible: _checkpoint_visible,
    events.CheckpointRestored: _checkpoint_restored,
    events.ClockStepped: _clock_stepped,
}

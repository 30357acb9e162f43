"""Consequences of a job's facts: replaced tasks, the barrier, failure, success, wishes that are granted, the phase.

They are derived again from the whole job after every fact, in the same transaction, so that a reader always sees them.
Settling twice is settling once.
"""

from __future__ import annotations

import msgspec

from oarlock.lifecycle import aborting, ends, joining
from oarlock.lifecycle.failures import retries
from oarlock.spec import attempts, errors, intents, jobs, phases
from oarlock.spec.input import quantities

Intent = intents.Intent
Phase = phases.Phase
TaskPhase = phases.TaskPhase
replace = msgspec.structs.replace

_PLACE = {phase: place for place, phase in enumerate(phases.FORWARD)}
_ON_THE_WAY = frozenset({TaskPhase.PENDING, TaskPhase.DEPLOYING})
_STARTED = frozenset({TaskPhase.PROCESSING, TaskPhase.STORING}) | phases.ENDED


def settle(job: jobs.Job, now: float) -> jobs.Job:
    live = job.live
    if live is None:
        return _moved(job, _unattended_phase(job), now)
    job, live = joining.let_go(job, live, now)
    job, live = _replace_in_place(job, live, now)
    live = joining.replace_left(job, live, now)
    live = _launch(live, now)
    live = _meet(live, now)
    live = joining.meet_again(job, joining.send_back(joining.take_in(joining.admit(live))))
    live = _begin(live, now)
    before, live = live, _fail(job, live, now)
    job = joining.refund(job, before, live)
    live = aborting.abort(job, live, now)
    live = _store(job, _decide(job, live, now), now)
    job = replace(
        job,
        attempts=(*job.attempts[:-1], live),
        started_at=live.processing_at if job.started_at is None else job.started_at,
        reason=live.stop_message if live.stop is not None else job.reason,
    )
    return _moved(job, _attended_phase(job, live), now)


def frozen_until(job: jobs.Job, now: float) -> float | None:
    """Return until when a failure at `now` is kept for a look inside; None where a stop is wanted."""
    if job.spec.freeze is None or job.intent in {Intent.HALT, Intent.CANCEL}:
        return None
    return now + quantities.seconds(job.spec.freeze)


def _unattended_phase(job: jobs.Job) -> Phase:
    """Return the phase of a job of which nothing runs: a wish is granted at once."""
    if job.terminal:
        return job.phase
    if job.intent is Intent.CANCEL:
        return Phase.CANCELED
    if job.phase is Phase.QUEUED and job.intent is Intent.HALT:
        return Phase.HALTED
    if job.phase is Phase.HALTED and job.intent is Intent.RUN:
        return Phase.QUEUED
    return job.phase


def _replace_in_place(job: jobs.Job, live: attempts.Attempt, now: float) -> tuple[jobs.Job, attempts.Attempt]:
    """Start a failed task again alone where it may, once nothing of it runs. A failure of its own spends a restart.

    While the blame is being decided no task is replaced: a task that was replaced could not be blamed.
    """
    if live.stop is not None or live.failing_since is not None:
        return job, live
    for task in live.tasks:
        if (
            task.gone
            and task.part is attempts.Part.MEMBER
            and task.exit is not None
            and ends.restarts_in_place(job, live, task)
        ):
            fresh = ends.fresh(job, task, now)
            live = replace(live, tasks=tuple(fresh if one is task else one for one in live.tasks))
            job = replace(job, restarts=job.restarts + retries.spends_restart(task.exit.cause))
    return job, live


def _launch(live: attempts.Attempt, now: float) -> attempts.Attempt:
    """Mark all tasks as made once every task was heard of, even if the server that made them died before saying so."""
    if live.launched_at is None and all(task.phase is not TaskPhase.PENDING for task in live.tasks):
        return replace(live, launched_at=now)
    return live


def _meet(live: attempts.Attempt, now: float) -> attempts.Attempt:
    """Let the tasks through the barrier, in the next round, when all tasks that have not ended stand there."""
    absent = [task for task in live.members if not task.round]
    if live.stop is not None or not absent or any(task.phase is not TaskPhase.REGISTERED for task in absent):
        return live
    number = live.round + 1
    tasks = tuple(
        task if task.round or task.part is not attempts.Part.MEMBER else replace(task, round=number)
        for task in live.tasks
    )
    return replace(live, round=number, tasks=tasks, barrier_at=now if live.barrier_at is None else live.barrier_at)


def _begin(live: attempts.Attempt, now: float) -> attempts.Attempt:
    if live.processing_at is None and any(task.round and task.phase in _STARTED for task in live.tasks):
        return replace(live, processing_at=now)
    return live


def _fail(job: jobs.Job, live: attempts.Attempt, now: float) -> attempts.Attempt:
    """Start the second in which blame is settled: at the first failure, or once all tasks have ended undecided."""
    if live.stop is not None or live.failing_since is not None:
        return live
    failed = any(task.phase is TaskPhase.FAILED and ends.fails_attempt(job, live, task) for task in live.tasks)
    idle = all(task.phase in phases.ENDED for task in live.members) and not any(
        ends.restarts_in_place(job, live, task) for task in live.tasks
    )
    if failed or (idle and not ends.decided(job.spec, live.tasks)):
        return replace(live, failing_since=now)
    return live


def _decide(job: jobs.Job, live: attempts.Attempt, now: float) -> attempts.Attempt:
    """End the attempt on success or by a wish, in the transaction that recorded it: the earlier of the two wins.

    A job that has only to store its results may do so, unless it is canceled.
    """
    if live.stop is not None:
        return live
    if ends.decided(job.spec, live.tasks):
        return replace(live, stop=attempts.Cause.SUCCEEDED, stop_at=now, stop_message="", stop_task="")
    if job.intent is Intent.RUN:
        return live
    if job.intent is not Intent.CANCEL and ends.decided(job.spec, live.tasks, ends.ENDED_WELL_OR_STORING):
        return live
    return replace(live, stop=attempts.Cause.STOPPED, stop_at=now, stop_message=job.reason, stop_task="")


def _store(job: jobs.Job, live: attempts.Attempt, now: float) -> attempts.Attempt:
    if live.storing_at is None and ends.decided(job.spec, live.tasks, ends.ENDED_WELL_OR_STORING):
        return replace(live, storing_at=now)
    return live


def _attended_phase(job: jobs.Job, live: attempts.Attempt) -> Phase:
    """Return the phase by the tasks' phases. It never goes back within the attempt."""
    if live.storing_at is not None:
        phase = Phase.STORING
    elif live.processing_at is not None:
        phase = Phase.PROCESSING
    elif any(task.phase not in _ON_THE_WAY for task in live.tasks):
        phase = Phase.DOWNLOADING
    else:
        phase = Phase.DEPLOYING
    return max(phase, job.phase, key=_PLACE.__getitem__)


def _moved(job: jobs.Job, phase: Phase, now: float) -> jobs.Job:
    if phase is job.phase:
        return job
    if phase not in phases.ALLOWED[job.phase]:
        raise errors.Conflict(f"{job.id} cannot go from {job.phase} to {phase}", hint="This is a defect: report it.")
    canceled = phase is Phase.CANCELED
    return replace(
        job,
        phase=phase,
        phase_at=now,
        refusal=job.refusal if phase is Phase.QUEUED else None,
        ended_at=now if canceled else job.ended_at,
        exit_code=130 if canceled else job.exit_code,
    )

"""Orders of a task's agent: derived from the job at every request, stored nowhere.

Orders may change by time alone (an evaluator's time is up, a freeze is over): ask again at `wanting.next_wake`.
"""

from __future__ import annotations

import hashlib

import msgspec

from oarlock.lifecycle import aborting, batching, deadlines
from oarlock.spec import attempts, errors, jobs, phases
from oarlock.spec.protocol import assignments


def orders(job: jobs.Job, key: attempts.TaskKey, now: float) -> assignments.Orders:
    """Return the orders for an agent.

    Raise StaleTask when `key` is not of the live attempt, or not the present incarnation: its agent must go.
    """
    live, task = _present(job, key)
    stop_at = deadlines.stop(job, live, task)
    leave_at = deadlines.let_go(job, live, task)
    told = {taken.task for taken in live.stacks}
    batch = batching.told(job, live)
    asked = live.stacks_request and task.phase is phases.TaskPhase.PROCESSING and task.name not in told
    unversioned = assignments.Orders(
        version="",
        stop=_stop(job, live) if stop_at is not None and now >= stop_at else None,
        stacks=live.stacks_request if asked else None,
        round=live.round,
        release=leave_at is not None and now >= leave_at,
        batch=assignments.Batch(batch.local, batch.accumulate) if batch is not None else None,
    )
    digest = hashlib.sha256(msgspec.json.encode(unversioned)).hexdigest()[:16]
    return msgspec.structs.replace(unversioned, version=digest)


def admitted(job: jobs.Job, key: attempts.TaskKey) -> bool:
    """Return whether the barrier has let this incarnation through: only then may it be told the rendezvous.

    No process starts once the attempt is to stop. But those that run may still meet in a round that was decided before:
    together they save what they have. Raises StaleTask as `orders` does.
    """
    live, task = _present(job, key)
    goes_on = live.stop is None and live.aborted_at is None
    return task.round > 0 and (goes_on or task.phase is phases.TaskPhase.PROCESSING)


def _present(job: jobs.Job, key: attempts.TaskKey) -> tuple[attempts.Attempt, attempts.Task]:
    live = job.live
    task = live.task(key.role, key.index) if live is not None and live.number == key.attempt else None
    if key.job != job.id or live is None or task is None or task.incarnation != key.incarnation:
        raise errors.StaleTask(f"{key} is not the present incarnation of its task", hint="End its processes and go.")
    return live, task


def _stop(job: jobs.Job, live: attempts.Attempt) -> assignments.Stop:
    message = "the job has succeeded" if live.stop is attempts.Cause.SUCCEEDED else live.stop_message
    return assignments.Stop(deadlines.grace_s(job), message if live.stop is not None else aborting.MESSAGE)

"""Due times of a job, from its state and what its backend shows: Unix seconds, None for never.

Everything that happens by the passing of time is here, so that `wanting.next_wake` cannot forget one.
"""

from __future__ import annotations

from collections.abc import Iterable

from oarlock.lifecycle import ends, joining
from oarlock.lifecycle.failures import blame
from oarlock.spec import attempts, jobfile, jobs, phases, roles
from oarlock.spec.input import quantities
from oarlock.spec.reconciling import observations

LAUNCH_BOUND_S = 30.0
"""The time of a launch: by then all tasks of the gang are made and bound."""

PART_BOUND_S = 25.0
"""From the first task bound to the last one, also where several servers launch the gang one after the other. A gang
that is not whole by then is removed, in the rest of the 30 s for which a gang may be bound in part."""

STACKS_WAIT_S = 5.0
"""How long the ranks of a hanging gang have to tell their stacks."""

KILL_AFTER_S = 5.0
"""After the grace. Half of the 10 s in which everything must be gone."""

LEAVE_S = 30.0
"""The time for an agent to go once it was allowed to: it may still have log lines to deliver."""

_RUNS = frozenset({phases.TaskPhase.REGISTERED, phases.TaskPhase.PROCESSING})
_UNMADE = frozenset({phases.TaskPhase.PENDING, phases.TaskPhase.DEPLOYING})


def grace_s(job: jobs.Job) -> float:
    return quantities.seconds(job.spec.grace)


def bound(job: jobs.Job, live: attempts.Attempt, observed: Iterable[observations.Observed]) -> list[float]:
    """Return the times at which the tasks of the gang that have their places got them: not before its attempt began."""
    keys = {task.key(job.id, live.number) for task in live.tasks}
    return [max(one.bound_at, live.started_at) for one in observed if one.key in keys and one.bound_at is not None]


def whole(job: jobs.Job, live: attempts.Attempt, observed: Iterable[observations.Observed]) -> float | None:
    """Return when a gang that is bound in part, and whose launch has not ended, must be whole."""
    if live.stop is not None or live.launched_at is not None:
        return None
    since = bound(job, live, observed)
    return min(since) + PART_BOUND_S if 0 < len(since) < len(live.tasks) else None


def barrier(job: jobs.Job, live: attempts.Attempt) -> float | None:
    """Return when `start_timeout` is over.

    It stands still while a task that has yet to come moves: it counts from its last step.
    """
    if live.stop is not None or live.launched_at is None or all(task.round for task in live.members):
        return None
    moved_at = max(task.moved_at for task in live.members if not task.round)
    return max(live.launched_at, moved_at) + quantities.seconds(job.spec.start_timeout)


def timeout(job: jobs.Job, live: attempts.Attempt) -> float | None:
    """Return when the sum of all attempts' PROCESSING exceeds the timeout. A job that only has to store may go on."""
    if job.spec.timeout is None or live.stop is not None or live.processing_at is None:
        return None
    if ends.decided(job.spec, live.tasks, ends.ENDED_WELL_OR_STORING):
        return None
    return live.processing_at + quantities.seconds(job.spec.timeout) - job.processed_s


def settled(live: attempts.Attempt) -> float | None:
    """Return when blame is settled: a second after the first failure, or once no task is left that could fail."""
    if live.stop is not None or live.failing_since is None:
        return None
    if all(task.phase in phases.ENDED for task in live.members):
        return live.failing_since
    return live.failing_since + blame.SETTLE_S


def stacks(live: attempts.Attempt) -> float | None:
    if live.stop is not None or live.stacks_at is None:
        return None
    told = {taken.task for taken in live.stacks}
    asked = [task for task in live.tasks if task.phase is phases.TaskPhase.PROCESSING]
    return live.stacks_at if all(task.name in told for task in asked) else live.stacks_at + STACKS_WAIT_S


def stop(job: jobs.Job, live: attempts.Attempt, task: attempts.Task) -> float | None:
    """Return when the task is told to stop: at the end of the attempt, or at the failure that ends it (`aborting`).

    After success an evaluator has the grace to come to an end by itself, and a task that ended well may store. A halt
    that came when only storing was left does not stop it. Parameter servers stop after the workers, which end their
    step and save with what the servers hold.
    """
    stop_at = live.aborted_at if live.stop is None else live.stop_at
    if stop_at is None or task.phase in phases.ENDED or _is_needed(job, live, task):
        return None
    if live.stop is attempts.Cause.SUCCEEDED:
        if task.phase is phases.TaskPhase.STORING:
            return None
        return stop_at + (grace_s(job) if ends.of(job.spec, task.role).lingers else 0.0)
    return stop_at


def _is_needed(job: jobs.Job, live: attempts.Attempt, task: attempts.Task) -> bool:
    """Return whether the task is a parameter server of workers whose processes run."""
    return (
        task.role is roles.RoleName.PS
        and jobfile.serves(job.spec)
        and any(peer.role in ends.COLLECTIVE_ROLES and peer.round > 0 and peer.phase in _RUNS for peer in live.tasks)
    )


def let_go(job: jobs.Job, live: attempts.Attempt, task: attempts.Task) -> float | None:
    """Return when the agent of an ended task may leave: at once, or when the freeze is over.

    A failed task that may yet be frozen stays until blame is settled; a task that is started again in place, or that is
    no loss, does not.
    """
    if task.phase not in phases.ENDED:
        return None
    if job.spec.freeze is not None and live.stop is None and ends.fails_attempt(job, live, task):
        return None
    return max(task.phase_at, live.frozen_until or 0.0)


def kill(job: jobs.Job, live: attempts.Attempt, task: attempts.Task) -> float | None:
    """Return when the task is ended by force. A task without a user process needs no grace.

    While the blame is being decided none is: a task that is gone without an exit record is taken for lost.
    """
    if task.gone:
        return None
    if task.exit is not None and task.exit.cause is attempts.Cause.HANG:
        return task.phase_at
    if task.leave_by is not None and task.phase not in phases.ENDED:
        at_end = _at_end(job, live, task)
        return task.leave_by if at_end is None else min(task.leave_by, at_end)
    return _at_end(job, live, task)


def _at_end(job: jobs.Job, live: attempts.Attempt, task: attempts.Task) -> float | None:
    if (leave_at := let_go(job, live, task)) is not None:
        return leave_at + LEAVE_S
    stop_at = stop(job, live, task) if live.stop is not None else None
    if stop_at is None or task.phase in _UNMADE:
        return stop_at
    return stop_at + grace_s(job) + KILL_AFTER_S


def every(job: jobs.Job, live: attempts.Attempt, observed: Iterable[observations.Observed]) -> list[float]:
    times = [whole(job, live, observed), barrier(job, live), timeout(job, live), settled(live), stacks(live)]
    times += [live.frozen_until, joining.late(job, live)]
    for task in live.tasks:
        times += [stop(job, live, task), let_go(job, live, task), kill(job, live, task)]
    return [at for at in times if at is not None]

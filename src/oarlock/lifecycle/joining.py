"""Members of an elastic job that come and go within an attempt.

A worker that fails leaves, if the others have said that they can go on without it and enough of them are left: the next
round begins in the same transaction, before blame is settled. Once nothing of the worker runs, another incarnation
takes its place. The barrier lets that one through alone, so the others do not wait for it. It joins them, in one more
round, when it has said that it is ready.

A failure of its own spends a restart, as a restart of the gang does. A failure of the platform spends none. One bug may
end all workers at the same step, one after the other: failures within the second of blame count once. If they end the
attempt after all, only that end spends a restart, and the first of them is to blame.

A newcomer that fails twice in the same way, or never comes, gives its place back. The steps of the others are not its
progress.

In a job of a fixed size (`jobfile.waits`) the others make no step before the newcomer is there. One of them is enough
to give it the state. Where no newcomer comes, the gang restarts.

Connections may break while all members live. Those that notice it say so, if nobody is found dead within seconds, and
the same members meet in the next round. A link that breaks again and again lets no step through, and then the gang
restarts. gloo aborts the process of a connection that ends in a way, or at a moment, that it does not expect: that
worker is replaced, and spends no restart.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence

import msgspec

from oarlock.lifecycle import ends
from oarlock.lifecycle.failures import retries
from oarlock.spec import attempts, jobfile, jobs, phases, roles
from oarlock.spec.input import quantities

Part = attempts.Part
TaskPhase = phases.TaskPhase
replace = msgspec.structs.replace

ENDED_WELL = ends.ENDED_WELL_OR_STORING
MOST_AGAIN = 5
"""The rounds in a row that the same members may begin without a step."""

_ON_THE_WAY = frozenset({TaskPhase.PENDING, TaskPhase.DEPLOYING, TaskPhase.DOWNLOADING})


def let_go(job: jobs.Job, live: attempts.Attempt, now: float) -> tuple[jobs.Job, attempts.Attempt]:
    """Go on without the workers that have failed. A newcomer that the others wait for in vain counts as one of them, so
    that its failure is that of the attempt.
    """
    if live.stop is not None or live.failing_since is not None or not jobfile.reshapes(job.spec):
        return job, live
    for task in live.tasks:
        if _may_leave(job, live, task, now):
            member = task.part is Part.MEMBER
            tasks = tuple(replace(task, part=Part.LEFT) if one is task else one for one in live.tasks)
            live = _lost(replace(live, tasks=tasks)) if member else replace(live, tasks=tasks)
            if _is_own(task) and not _in_wave(live, now):
                job = replace(job, restarts=job.restarts + 1)
                live = replace(live, spared=task, spared_at=now)
        elif task.part is Part.JOINING and task.phase is TaskPhase.FAILED:
            tasks = tuple(replace(task, part=Part.MEMBER) if one is task else one for one in live.tasks)
            live = replace(live, tasks=tasks)
    return job, live


def refund(job: jobs.Job, before: attempts.Attempt, live: attempts.Attempt) -> jobs.Job:
    """Return the job with the restart that the first of these failures spent, once they end the whole attempt."""
    began = before.failing_since is None and live.failing_since is not None
    return replace(job, restarts=job.restarts - 1) if began and live.wave else job


def replace_left(job: jobs.Job, live: attempts.Attempt, now: float) -> attempts.Attempt:
    """Start those that have left again, in their places, once nothing of them runs; or give the places back."""
    if live.stop is not None or not any(task.part is Part.LEFT for task in live.tasks):
        return live
    over = [task for task in live.tasks if _is_over(task)]
    tasks = tuple(_after(job, task, now) if task in over else task for task in live.tasks) if over else live.tasks
    closed = live.closed or any(_is_own(task) and not _returns(job, task) for task in over)
    return replace(live, tasks=tasks, closed=closed)


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


def meet_again(job: jobs.Job, live: attempts.Attempt) -> attempts.Attempt:
    """Let the same members meet in the next round, if they have lost connections though all of them live."""
    if live.stop is not None or live.failing_since is not None or not jobfile.rejoins(job.spec):
        return live
    members = [task for task in live.members if task.role in ends.COLLECTIVE_ROLES]
    lost = any(task.lost_round == live.round for task in members)
    if not lost or not all(task.can_rejoin and task.phase is TaskPhase.PROCESSING for task in members):
        return live
    again = live.again + 1 if live.again_from == job.reached_step else 1
    return _lost(replace(live, again=again, again_from=job.reached_step)) if again <= MOST_AGAIN else live


def send_back(live: attempts.Attempt) -> attempts.Attempt:
    """Let tasks wait again that were taken in too late: the others ended well without them, in an earlier round."""
    ended = [task.round for task in live.members if task.role in ends.COLLECTIVE_ROLES and task.phase in ENDED_WELL]
    if live.stop is not None or not ended:
        return live
    late = [task for task in live.members if task.round > max(ended) and _never_trained(task)]
    if not late:
        return live
    return replace(live, tasks=tuple(replace(task, part=Part.JOINING) if task in late else task for task in live.tasks))


def mute(job: jobs.Job, live: attempts.Attempt) -> tuple[attempts.TaskKey, ...]:
    """Return the members of a hanging gang that did not tell their stacks, if the others can go on without them.

    A process that was stopped, or that waits for a dead disk, cannot tell them. The others can: they only wait for it.
    """
    told = {taken.task for taken in live.stacks if taken.stacks}
    train = [task for task in live.members if task.role in ends.COLLECTIVE_ROLES and task.phase not in phases.ENDED]
    silent = [task for task in train if task.phase is TaskPhase.PROCESSING and task.name not in told]
    others = [task for task in train if task not in silent]
    left = job.restarts < job.spec.max_restarts and _enough(job, others) and all(one.can_rejoin for one in others)
    only = all(task.role is roles.RoleName.WORKER for task in silent)
    return (
        tuple(task.key(job.id, live.number) for task in silent) if jobfile.rejoins(job.spec) and left and only else ()
    )


def awaited_since(job: jobs.Job, live: attempts.Attempt) -> float | None:
    """Return when a successor came nearer to the others for the last time, where they wait for it without progress."""
    if not jobfile.waits(job.spec):
        return None
    successors = [task for task in live.tasks if task.part is not Part.MEMBER or task.incarnation > 1]
    return max((task.phase_at for task in successors), default=None)


def late(job: jobs.Job, live: attempts.Attempt) -> float | None:
    """Return when the start-up time of the first task that is to join is over."""
    coming = [task.moved_at for task in live.tasks if _is_coming(task)]
    if live.stop is not None or not coming:
        return None
    return min(coming) + quantities.seconds(job.spec.start_timeout)


def not_made(job: jobs.Job, live: attempts.Attempt, now: float) -> attempts.Attempt | None:
    """Return the attempt without the tasks that the platform could not make, or that did not come in time, if all of
    them were to join others. They give their places back, so that the scheduler may find others. None where the gang
    has to restart.
    """
    if jobfile.waits(job.spec):
        return None
    start_s = quantities.seconds(job.spec.start_timeout)
    missing = [
        task
        for task in live.tasks
        if task.holds and (task.phase is TaskPhase.PENDING or (_is_coming(task) and task.moved_at + start_s <= now))
    ]
    if live.launched_at is None or any(task.part is not Part.JOINING for task in missing):
        return None
    return replace(
        live,
        tasks=tuple(replace(task, part=Part.LEFT, leave_by=now) if task in missing else task for task in live.tasks),
    )


def _lost(live: attempts.Attempt) -> attempts.Attempt:
    """Begin the next round, because the exchanges of the present one cannot end."""
    return replace(live, round=live.round + 1, lost_round=live.round)


def _may_leave(job: jobs.Job, live: attempts.Attempt, task: attempts.Task, now: float) -> bool:
    if task.phase is not TaskPhase.FAILED or task.exit is None or task.role is not roles.RoleName.WORKER:
        return False
    if task.part is Part.JOINING:
        return not jobfile.waits(job.spec) or _may_return(job, live, task, now)
    if task.part is not Part.MEMBER or not task.round or not jobfile.rejoins(job.spec):
        return False
    others = [one for one in live.members if one.role in ends.COLLECTIVE_ROLES and one.phase not in phases.ENDED]
    return _enough(job, others) and all(one.can_rejoin for one in others) and _may_return(job, live, task, now)


def _may_return(job: jobs.Job, live: attempts.Attempt, task: attempts.Task, now: float) -> bool:
    """Return whether this failure leaves a successor, which the platform's failures need only where all wait for it."""
    if _is_own(task):
        left = _in_wave(live, now) or job.restarts < job.spec.max_restarts
        return left and not _is_hopeless(job, task)
    return not jobfile.waits(job.spec) or _returns(job, task)


def _enough(job: jobs.Job, left: Sequence[attempts.Task]) -> bool:
    if jobfile.waits(job.spec):
        return bool(left)
    workers = job.spec.roles.get(roles.RoleName.WORKER)
    least = max(1, workers.min or workers.count) if workers is not None else 1
    return sum(task.role is roles.RoleName.WORKER for task in left) >= least


def _is_own(task: attempts.Task) -> bool:
    return task.exit is not None and retries.spends_restart(task.exit.cause) and not _was_cut_off(task.exit)


def _was_cut_off(how: attempts.Exit) -> bool:
    """Return whether a library has aborted the process for a broken connection. Its peers go on, so none of them died
    before it.
    """
    return how.cause is attempts.Cause.PEER and how.code == 128 + signal.SIGABRT  # a shell between them has the code


def _in_wave(live: attempts.Attempt, now: float) -> bool:
    return live.spared_at is not None and now - live.spared_at <= attempts.WAVE_S


def _is_over(task: attempts.Task) -> bool:
    return task.part is Part.LEFT and task.leave_by is None and task.gone and task.exit is not None


def _after(job: jobs.Job, task: attempts.Task, now: float) -> attempts.Task:
    """Return the next incarnation of a task that has left, or the task, which gives its place back."""
    if jobfile.waits(job.spec) or _returns(job, task):
        return replace(ends.fresh(job, task, now), part=Part.JOINING)
    return replace(task, leave_by=now)


def _returns(job: jobs.Job, task: attempts.Task) -> bool:
    """Return whether the task is started again: not after the same end as before, with no progress between."""
    assert task.exit is not None
    if _is_own(task):
        return job.restarts <= job.spec.max_restarts and not _is_hopeless(job, task)
    before = task.last_end
    farther = task.progress is not None and (before is None or before.reached_step != job.reached_step)
    return before is None or before.cause is not task.exit.cause or farther


def _is_hopeless(job: jobs.Job, task: attempts.Task) -> bool:
    """Return whether it would fail in the same way again. What the others reach is no progress of a newcomer."""
    if task.progress is None and task.last_end is not None:
        job = replace(job, reached_step=task.last_end.reached_step)
    return retries.hopeless_in_place(job, task)


def _never_trained(task: attempts.Task) -> bool:
    return task.phase is TaskPhase.PROCESSING and task.progress is None and task.can_rejoin


def _is_coming(task: attempts.Task) -> bool:
    return task.part is Part.JOINING and task.holds and task.phase in _ON_THE_WAY


def _waits(task: attempts.Task) -> bool:
    return task.part is Part.JOINING and not task.round and task.phase is TaskPhase.REGISTERED


def _is_ready(live: attempts.Attempt, task: attempts.Task) -> bool:
    return (
        task.part is Part.JOINING
        and task.can_rejoin
        and task.phase is TaskPhase.PROCESSING
        and all(
            one.can_rejoin and one.phase not in ENDED_WELL
            for one in live.members
            if one.role in ends.COLLECTIVE_ROLES and one.phase is not TaskPhase.FAILED
        )
    )

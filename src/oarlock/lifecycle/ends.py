"""The effect of one task's end on its job: the policies of the roles.

A role's `on_success` and `on_failure` come from the job file, else from this table: the chief decides, else all
workers; a parameter server is needed until the end; an evaluator is given time to look at the last checkpoint; MPI's
launcher decides, its workers are hands.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from oarlock.lifecycle.failures import retries
from oarlock.spec import attempts, jobfile, jobs, phases, roles

ENDED_WELL = frozenset({phases.TaskPhase.SUCCEEDED})
ENDED_WELL_OR_STORING = ENDED_WELL | {phases.TaskPhase.STORING}

COLLECTIVE = frozenset({roles.Framework.TORCH, roles.Framework.JAX, roles.Framework.MPI})
"""Frameworks that join all processes in one communicator: it breaks with each of them, unless the survivors said
otherwise.
"""

COLLECTIVE_ROLES = frozenset({roles.RoleName.CHIEF, roles.RoleName.WORKER, roles.RoleName.LAUNCHER})

_REPLACED = frozenset({roles.RoleName.CHIEF, roles.RoleName.WORKER, roles.RoleName.PS})
"""Roles whose tasks are replaced alone under parameter servers."""


OF_THE_PLACE = frozenset({"port_taken"})
"""Failures of the platform that would meet the next task in the same place."""


class Ends(msgspec.Struct, frozen=True, kw_only=True):
    """The policy of one role. `needed`: to end well before the others have is a failure. `watched`: its progress is the
    job's, so that `hang_timeout` applies. `lingers`: after the job's success it may go on for the grace before it is
    told to stop.
    """

    on_success: roles.OnSuccess
    on_failure: roles.OnFailure = roles.OnFailure.ATTEMPT
    needed: bool = False
    watched: bool = False
    lingers: bool = False


_DECIDES = Ends(on_success=roles.OnSuccess.JOB, watched=True)
_ONE_OF_ALL = Ends(on_success=roles.OnSuccess.ALL, watched=True)
_FOLLOWS = Ends(on_success=roles.OnSuccess.NONE, watched=True)
_SERVES = Ends(on_success=roles.OnSuccess.NONE, needed=True)
_LOOKS_ON = Ends(on_success=roles.OnSuccess.NONE, on_failure=roles.OnFailure.IGNORE, lingers=True)
_HAND = Ends(on_success=roles.OnSuccess.NONE)


def of(spec: jobfile.JobSpec, role: roles.RoleName) -> Ends:
    """Return the policy of `role`: the job file's values over the defaults."""
    default = _default(spec, role)
    if jobfile.serves(spec) and role in _REPLACED:
        default = msgspec.structs.replace(default, on_failure=roles.OnFailure.RESTART)
    said = spec.roles.get(role)
    if said is None:
        return default
    on_success = said.on_success or default.on_success
    return msgspec.structs.replace(
        default,
        on_success=on_success,
        on_failure=said.on_failure or default.on_failure,
        needed=default.needed and on_success is roles.OnSuccess.NONE,
    )


def _default(spec: jobfile.JobSpec, role: roles.RoleName) -> Ends:
    if role is roles.RoleName.WORKER:
        if roles.RoleName.LAUNCHER in spec.roles:
            return _HAND
        return _FOLLOWS if roles.RoleName.CHIEF in spec.roles else _ONE_OF_ALL
    if role is roles.RoleName.PS:
        return _SERVES
    return _LOOKS_ON if role is roles.RoleName.EVALUATOR else _DECIDES


def decided(
    spec: jobfile.JobSpec, tasks: Sequence[attempts.Task], good: Collection[phases.TaskPhase] = ENDED_WELL
) -> bool:
    """Return whether the job has succeeded, where a task in one of the phases `good` is taken to have ended well.

    One task of a role that decides is enough; else all of the roles that count together, those left out that failed
    and may. Where no role counts, all tasks do.
    """
    tasks = [task for task in tasks if task.part is attempts.Part.MEMBER]
    if not any(task.phase in good for task in tasks):  # asked after every fact of a gang of a thousand
        return False
    policies = {role: of(spec, role) for role in {task.role for task in tasks}}
    counted = [task for task in tasks if policies[task.role].on_success is roles.OnSuccess.ALL]
    deciding = [task for task in tasks if policies[task.role].on_success is roles.OnSuccess.JOB]
    if any(task.phase in good for task in deciding):
        return True
    if not counted and not deciding:
        counted = list(tasks)
    left = [
        task
        for task in counted
        if task.phase is not phases.TaskPhase.FAILED or policies[task.role].on_failure is not roles.OnFailure.IGNORE
    ]
    return bool(left) and all(task.phase in good for task in left)


def fails_attempt(job: jobs.Job, live: attempts.Attempt, task: attempts.Task) -> bool:
    """Return whether this task has failed, and with it the attempt.

    Before the barrier no failure is ignored: a gang does not start without one of its tasks.
    """
    return (
        task.phase is phases.TaskPhase.FAILED
        and task.part is attempts.Part.MEMBER
        and (of(job.spec, task.role).on_failure is not roles.OnFailure.IGNORE or not task.round)
        and not restarts_in_place(job, live, task)
    )


def restarts_in_place(job: jobs.Job, live: attempts.Attempt, task: attempts.Task) -> bool:
    """Return whether this failed task is to be started again alone, while the others live on.

    Its role must say so, `max_restarts` leave one unless the platform failed, and it must not fail in the same way
    again and again. In a communicator the survivors must have said that they can take a new peer. Where the library may
    choose parameter servers, a worker must have said so since its choice: before it nothing goes by way of the servers.
    Workers that come and go within an attempt have rules of their own (`joining`): where these refuse, the gang
    restarts.
    """
    return (
        task.phase is phases.TaskPhase.FAILED
        and not (task.role is roles.RoleName.WORKER and jobfile.rejoins(job.spec))
        and of(job.spec, task.role).on_failure is roles.OnFailure.RESTART
        and task.exit is not None
        and _may_come_back(job, task, task.exit)
        and (not _is_open(job.spec, task.role) or any(peer.can_rejoin for peer in _survivors(live, task)))
        and (
            job.spec.framework not in COLLECTIVE
            or task.role not in COLLECTIVE_ROLES
            or _others_go_on(_survivors(live, task), task.exit)
        )
    )


def _may_come_back(job: jobs.Job, task: attempts.Task, how: attempts.Exit) -> bool:
    """Return whether another incarnation may do better in the same place. After a failure of the platform the place is
    in doubt: it gets one try until there is progress, and then the gang looks for another.
    """
    if how.cause is attempts.Cause.PLATFORM:
        before = task.last_end
        farther = before is not None and (job.reached_step or 0) > (before.reached_step or 0)
        again = before is None or before.cause is not attempts.Cause.PLATFORM or farther
        return again and how.reason not in OF_THE_PLACE
    return job.restarts < job.spec.max_restarts and not retries.hopeless_in_place(job, task)


def _is_open(spec: jobfile.JobSpec, role: roles.RoleName) -> bool:
    """Return whether the library may do without servers, and the job file says nothing of a server's failures. For a
    worker it says too little: the successor meets others at the servers, whatever the script has chosen.
    """
    said = spec.roles.get(role)
    return jobfile.may_do_without(spec) and (role in COLLECTIVE_ROLES or said is None or said.on_failure is None)


def _others_go_on(survivors: Sequence[attempts.Task], how: attempts.Exit) -> bool:
    """Return whether the others can take a new peer. Without any the platform's failure was that of the whole gang."""
    return all(peer.can_rejoin for peer in survivors) and (bool(survivors) or how.cause is not attempts.Cause.PLATFORM)


def fresh(job: jobs.Job, task: attempts.Task, now: float) -> attempts.Task:
    """Return the next incarnation of an ended task, in the same place."""
    assert task.exit is not None
    return attempts.Task(
        role=task.role,
        index=task.index,
        incarnation=task.incarnation + 1,
        node=task.node,
        ports=task.ports,
        devices=task.devices,
        phase_at=now,
        moved_at=now,
        last_end=retries.end_of(task.role, task.exit.cause, task.exit, job.reached_step),
    )


def _survivors(live: attempts.Attempt, task: attempts.Task) -> list[attempts.Task]:
    return [
        peer
        for peer in live.tasks
        if peer.role in COLLECTIVE_ROLES and peer.phase not in phases.ENDED and peer.name != task.name
    ]

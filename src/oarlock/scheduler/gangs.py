"""The gang of a job, and its holdings while it runs: the border between job files and plain numbers."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

import msgspec

from oarlock.scheduler.speed import samples
from oarlock.spec import attempts, holdings, intents, jobfile, jobs, plans, roles
from oarlock.spec.access import privacy
from oarlock.spec.cluster import nodes, profiles
from oarlock.spec.input import quantities

PORTS_PER_TASK = 4
"""Ports of a task on a shared host: its own service, the rendezvous, and two for additions of a framework."""

GONE_WITHIN_S = 10.0
"""Seconds after the grace period by which all processes are gone."""


Profiles = Sequence[profiles.Profile]


def gang(job: jobs.Job, names: privacy.Names = privacy.PUBLIC, of: Profiles = ()) -> plans.Gang:
    """Return the gang of a job: its asks and the facts about it.

    `names` gives the name that all users may read. The profiles in `of` tell the constraints on its nodes.
    """
    mounted = [volume.claim for volume in job.spec.volumes]
    return plans.Gang(
        job=job.id,
        name=names.of(job),
        pool=job.pool,
        owner=job.owner,
        asks=tuple(asks(job.spec, profiles.constraints(of, job.pool, job.owner, mounted))),
        submitted_at=job.created_at,
        priority=job.spec.priority,
        preemptible=job.spec.preemptible,
        placement=job.spec.placement,
        topology=job.spec.topology,
        mixed=any(role.mixed for role in job.spec.roles.values()),
        beside=None if job.spec.ps_placement is None else job.spec.ps_placement is jobfile.PsPlacement.BESIDE,
        not_before=job.not_before,
        refusal=job.refusal,
        served_s=job.served_s,
        starts=len(job.attempts) if job.attempt is None else job.attempt.number,
        silent_starts=_silent_starts(job),
        stopped_at=job.stopped_at,
        destined=job.destined,
        at_most_s=at_most_s(job),
        lasts_s=job.lasts_s,
        curve=job.curve,
        batch=job.spec.batch,
        restart_s=_restart_s(job),
    )


def in_pool(one: plans.Gang, pool: str, of: Profiles) -> plans.Gang:
    """Return the gang as it would be in another pool, whose profiles may be others."""
    held = profiles.constraints(of, pool, one.owner, one.constraints.claims if one.constraints is not None else ())
    moved = tuple(msgspec.structs.replace(ask, constraints=held) for ask in one.asks)
    return msgspec.structs.replace(one, pool=pool, asks=moved)


def asks(spec: jobfile.JobSpec, constraints: nodes.Constraints | None = None) -> Iterable[plans.Ask]:
    """Yield one ask for each role, the chief first, so that the deciding tasks get the best places."""
    for name in sorted(spec.roles, key=_RANK.__getitem__):
        role = spec.roles[name]
        yield plans.Ask(
            role=name,
            count=role.count,
            min=role.count if role.min is None else role.min,
            max=role.count if role.max is None else role.max,
            amount=holdings.Resources(
                cpus_milli=quantities.cpus_milli(role.held_cpus),
                memory_bytes=quantities.memory_bytes(role.memory) if role.memory is not None else 0,
                gpus=int(role.gpus),
                gpu_milli=round(role.gpus % 1 * 1000),
            ),
            ports=PORTS_PER_TASK + role.nproc - 1,
            nproc=role.nproc,
            gpu_types=(role.gpu_type,) if isinstance(role.gpu_type, str) else role.gpu_type,
            gpu_memory_bytes=quantities.memory_bytes(role.gpu_memory) if role.gpu_memory is not None else 0,
            constraints=constraints,
        )


def running(
    job: jobs.Job, held: Iterable[holdings.Holding], names: privacy.Names = privacy.PUBLIC, of: Profiles = ()
) -> plans.Running:
    """Return the running gang of a job with an attempt: its holdings, and its possible ends."""
    live = job.live
    stopping = live is not None and (live.stop is not None or job.intent is not intents.Intent.RUN)
    return plans.Running(
        gang=gang(job, names, of),
        holdings=tuple(held),
        started_at=live.started_at if live else job.created_at,
        expected_end=expected_end(job),
        starting=_starting(job),
        began_at=_trains_since(live) or live.processing_at if live else None,
        latest_end=latest_end(job),
        checkpoint_at=live.checkpoint_at if live else None,
        stopping=stopping,
        returns=stopping and _returns(job),
        speed=samples.speed(job),
        batch=live.batch if live else None,
    )


def _starting(job: jobs.Job) -> bool:
    """Return whether a job has not begun to train.

    Its processes have not begun; or the job reported steps in an earlier attempt, and not yet in this one.
    """
    live = job.live
    if live is None or live.processing_at is None:
        return live is not None
    return job.curve is not None and _trains_since(live) is None


def _trains_since(live: attempts.Attempt) -> float | None:
    """Return the time at which the first of its processes reported a step; None where none has."""
    return min((task.first_progress.at for task in live.tasks if task.first_progress is not None), default=None)


def _silent_starts(job: jobs.Job) -> int:
    """Return the number of attempts without a reported step since the last attempt with one."""
    ended = (attempt for attempt in reversed(job.attempts) if attempt.ended_at is not None)
    return sum(1 for _ in itertools.takewhile(lambda attempt: _trains_since(attempt) is None, ended))


def _restart_s(job: jobs.Job) -> float | None:
    """Return the seconds that its last start took until a step was reported; None where none was."""
    for attempt in reversed(job.attempts):
        at = _trains_since(attempt)
        if at is not None:
            return max(0.0, at - attempt.started_at)
    return None


def _returns(job: jobs.Job) -> bool:
    """Return whether a stopping job waits again: the scheduler stopped it, or it may fail once more."""
    if job.intent in {intents.Intent.HALT, intents.Intent.CANCEL} or job.live is None:
        return False
    if job.live.stop in {attempts.Cause.PLATFORM, attempts.Cause.STOPPED, None}:
        return True
    ends = job.live.stop in {attempts.Cause.SUCCEEDED, attempts.Cause.TIMEOUT}
    return not ends and not job.live.no_restart and job.restarts < job.spec.max_restarts


def at_most_s(job: jobs.Job) -> float | None:
    """Return the seconds after a start by which a job certainly ends; None where it has no time-out.

    They are the sum of the start time-out, the rest of the time-out, and the grace period.
    """
    spec = job.spec
    if spec.timeout is None:
        return None
    left_s = max(0.0, quantities.seconds(spec.timeout) - job.processed_s)
    return quantities.seconds(spec.start_timeout) + left_s + quantities.seconds(spec.grace) + GONE_WITHIN_S


def latest_end(job: jobs.Job) -> float | None:
    """Return the time (Unix seconds) by which its time-out certainly ends it; None where it has no time-out."""
    if job.spec.timeout is None or job.live is None or job.live.processing_at is None:
        return None
    left_s = quantities.seconds(job.spec.timeout) - job.processed_s
    return job.live.processing_at + left_s + quantities.seconds(job.spec.grace) + GONE_WITHIN_S


def expected_end(job: jobs.Job) -> float | None:
    """Return the expected end (Unix seconds); None where neither progress nor a time-out tells."""
    live = job.live
    if live is None or live.processing_at is None:
        return None
    ends = [task.progress.at + left_s for task in live.members if task.progress and (left_s := task.left_s) is not None]
    if job.spec.timeout is not None:
        limit = live.processing_at + quantities.seconds(job.spec.timeout) - job.processed_s
        return min(limit, max(ends)) if ends else limit
    return max(ends) if ends else None


_RANK = {
    roles.RoleName.LAUNCHER: 0,
    roles.RoleName.CHIEF: 1,
    roles.RoleName.WORKER: 2,
    roles.RoleName.PS: 3,
    roles.RoleName.EVALUATOR: 4,
}

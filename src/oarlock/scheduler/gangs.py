"""From a job to the gang that is placed, and to what a running job holds: the border of spec and plain numbers."""

from __future__ import annotations

from collections.abc import Iterable

from oarlock.spec import holdings, jobfile, jobs, plans, quantities, roles

PORTS_PER_TASK = 4
"""Size of a task's port block on a shared host: its own service, the rendezvous, and two for what a framework adds."""


def gang(job: jobs.Job) -> plans.Gang:
    """The tasks of `job` that are admitted as one: every role's `min`. (Extras are placed by elastic policies.)"""
    return plans.Gang(
        job=job.id,
        name=job.name,
        pool=job.pool,
        tasks=tuple(tasks(job.spec)),
        submitted_at=job.created_at,
        priority=job.spec.priority,
        placement=job.spec.placement,
        topology=job.spec.topology,
        not_before=job.not_before,
        refusal=job.refusal,
    )


def tasks(spec: jobfile.JobSpec) -> Iterable[plans.GangTask]:
    """One line for each task, chief first, so that the deciding tasks get the best places."""
    for name in sorted(spec.roles, key=_RANK.__getitem__):
        role = spec.roles[name]
        types = (role.gpu_type,) if isinstance(role.gpu_type, str) else role.gpu_type
        line = plans.GangTask(
            role=name,
            index=0,
            amount=holdings.Resources(
                cpus_milli=quantities.cpus_milli(role.held_cpus),
                memory_bytes=quantities.memory_bytes(role.memory) if role.memory is not None else 0,
                gpus=int(role.gpus),
            ),
            ports=PORTS_PER_TASK + role.nproc - 1,
            gpu_types=types,
            gpu_memory_bytes=quantities.memory_bytes(role.gpu_memory) if role.gpu_memory is not None else 0,
        )
        for index in range(role.count):
            yield plans.GangTask(
                role=line.role,
                index=index,
                amount=line.amount,
                ports=line.ports,
                gpu_types=line.gpu_types,
                gpu_memory_bytes=line.gpu_memory_bytes,
            )


def running(job: jobs.Job, held: Iterable[holdings.Holding]) -> plans.Running:
    """A job with an attempt, and when it may end: by its progress where it reports steps, else by its time-out."""
    return plans.Running(
        job=job.id,
        name=job.name,
        pool=job.pool,
        holdings=tuple(held),
        started_at=job.live.started_at if job.live else job.created_at,
        expected_end=expected_end(job),
        priority=job.spec.priority,
        preemptible=job.spec.preemptible,
    )


def expected_end(job: jobs.Job) -> float | None:
    """Unix seconds; None where neither progress nor a time-out tells."""
    live = job.live
    if live is None or live.processing_at is None:
        return None
    ends = [task.progress.at + left_s for task in live.tasks if task.progress and (left_s := task.left_s) is not None]
    if job.spec.timeout is not None and job.started_at is not None:
        limit = job.started_at + quantities.seconds(job.spec.timeout)
        return min(limit, max(ends)) if ends else limit
    return max(ends) if ends else None


_RANK = {
    roles.RoleName.LAUNCHER: 0,
    roles.RoleName.CHIEF: 1,
    roles.RoleName.WORKER: 2,
    roles.RoleName.PS: 3,
    roles.RoleName.EVALUATOR: 4,
}

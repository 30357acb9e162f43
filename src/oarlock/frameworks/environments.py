"""The rendezvous of one task: the values that each of its processes gets once the gang has met at the barrier.

Pure: from the job's record and the task's key. It gives the same values throughout a round.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from oarlock.frameworks import clusters, elastic, jax, mpi, plain, servers, tensorflow, torch
from oarlock.spec import attempts, errors, jobs, roles
from oarlock.spec.protocol import assignments

Environment = Callable[[clusters.Cluster, clusters.Member, int], dict[str, str]]

ENVIRONMENTS: dict[roles.Framework, Environment] = {
    roles.Framework.TORCH: torch.environment,
    roles.Framework.TENSORFLOW: tensorflow.environment,
    roles.Framework.JAX: jax.environment,
    roles.Framework.MPI: mpi.environment,
    roles.Framework.PLAIN: plain.environment,
}


def rendezvous(job: jobs.Job, key: attempts.TaskKey, restore: Sequence[str] = ()) -> assignments.Rendezvous:
    """Return the rendezvous of the task `key`. Raises StaleTask when the job's present attempt has no such incarnation.

    `restore` are the paths of the visible checkpoints, best first.
    """
    live = job.live
    task = live.task(key.role, key.index) if live is not None and live.number == key.attempt else None
    if live is None or task is None or task.incarnation != key.incarnation:
        raise errors.StaleTask(f"{key} is not of the present attempt")
    cluster = clusters.cluster(job, live, joins=task)
    member = next(one for one in cluster.members if (one.role, one.index) == (task.role, task.index))
    framework = ENVIRONMENTS[job.spec.framework]
    files = plain.files(cluster, member)
    if job.spec.framework is roles.Framework.MPI:
        files |= mpi.files(cluster)
    processes = tuple(
        assignments.ProcessEnv(
            {
                name: value
                for name, value in {
                    **plain.environment(cluster, member, process),
                    **framework(cluster, member, process),
                    **servers.environment(job.spec, cluster, member, process),
                    **elastic.environment(job.spec, task),
                }.items()
                if name not in job.spec.env  # the job file's own values win
                and not (name == "RANK" and task.part is attempts.Part.LEFT)  # by this it knows that it is to end
            }
        )
        for process in range(member.nproc)
    )
    return assignments.Rendezvous(
        round=live.round, lost=live.lost_round, processes=processes, files=files, restore=tuple(restore)
    )

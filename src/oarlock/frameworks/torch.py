"""The environment that torchrun gives its workers, so that a script written for it runs unchanged; and `PET_*`, so that
torchrun itself runs as the command.

Ranks go over chief and workers, the chief first; a task with `nproc` processes has as many ranks in a row. Source: the
environment variables listed in torch.distributed.run's documentation, and the worker environment of torch 2.13's local
elastic agent.
"""

from __future__ import annotations

from oarlock.frameworks import clusters
from oarlock.spec import roles

RANKED = (roles.RoleName.CHIEF, roles.RoleName.WORKER)


def environment(cluster: clusters.Cluster, member: clusters.Member, process: int) -> dict[str, str]:
    """Return the variables of process `process` of `member`.

    A task without a rank (an evaluator) is told where rank 0 is, no more.
    """
    ranked = cluster.of(*RANKED)
    master = (ranked or [member])[0]
    place = {"MASTER_ADDR": master.address, "MASTER_PORT": str(master.ports[0] if master.ports else 0)}
    threads = {"OMP_NUM_THREADS": str(max(1, member.cpus_milli // 1000 // member.nproc))}
    if member not in ranked:
        return {**place, **threads}
    before = sum(other.nproc for other in ranked[: ranked.index(member)])
    world = sum(other.nproc for other in ranked)
    return {
        **place,
        **threads,
        "RANK": str(before + process),
        "WORLD_SIZE": str(world),
        "LOCAL_RANK": str(process),
        "LOCAL_WORLD_SIZE": str(member.nproc),
        "GROUP_RANK": str(ranked.index(member)),
        "GROUP_WORLD_SIZE": str(len(ranked)),
        "ROLE_NAME": "default",
        "ROLE_RANK": str(before + process),
        "ROLE_WORLD_SIZE": str(world),
        "TORCHELASTIC_RUN_ID": f"{cluster.job}-{cluster.attempt}-{cluster.round}",
        "TORCHELASTIC_RESTART_COUNT": str(cluster.attempt - 1),
        "TORCHELASTIC_MAX_RESTARTS": str(cluster.max_restarts),
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
        "TORCHELASTIC_ERROR_FILE": f"{{task_dir}}/error-{process}.json",
        "PET_NNODES": str(len(ranked)),
        "PET_NPROC_PER_NODE": str(member.gpus or member.nproc),
        "PET_NODE_RANK": str(ranked.index(member)),
        "PET_MASTER_ADDR": place["MASTER_ADDR"],
        "PET_MASTER_PORT": place["MASTER_PORT"],
        "PET_RDZV_ID": f"{cluster.job}-{cluster.attempt}-{cluster.round}",
    }

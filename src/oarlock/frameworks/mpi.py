"""A hostfile, and the variables with which `mpirun` finds it: Open MPI 4 (`OMPI_MCA_*`) and 5 (`PRTE_MCA_*`), and Hydra
(MPICH, Intel MPI).

The launcher runs the user's command (`mpirun python train.py`); the workers hold the slots. Hosts that share one
address are one line, since there `mpirun` starts the processes itself.
"""

from __future__ import annotations

from oarlock.frameworks import cluster as clusters
from oarlock.spec import roles

HOSTFILE = "hostfile"


def environment(cluster: clusters.Cluster, member: clusters.Member, process: int) -> dict[str, str]:
    path = f"{{task_dir}}/{HOSTFILE}"
    slots = sum(worker.nproc for worker in cluster.of(roles.RoleName.WORKER))
    return {
        "OARLOCK_HOSTFILE": path,
        "OARLOCK_SLOTS": str(slots),
        "OMPI_MCA_orte_default_hostfile": path,
        "PRTE_MCA_prte_default_hostfile": path,
        "HYDRA_HOST_FILE": path,
    }


def files(cluster: clusters.Cluster) -> dict[str, str]:
    """`host slots=N`, one line for each address, in the order of the workers."""
    slots: dict[str, int] = {}
    for worker in cluster.of(roles.RoleName.WORKER):
        slots[worker.address] = slots.get(worker.address, 0) + worker.nproc
    return {HOSTFILE: "".join(f"{address} slots={count}\n" for address, count in slots.items())}

"""Hostfiles, and the variables with which `mpirun` finds them and starts its daemons.

    Open MPI 4, 5          OMPI_MCA_*, PRTE_MCA_*    hostfile          host slots=N
    Hydra of MPICH         HYDRA_*                   hostfile.hydra    host:N
    Hydra of Intel MPI     I_MPI_HYDRA_*             hostfile.hydra    host:N

The launcher runs the user's command (`mpirun python train.py`) once; the workers hold the slots. Hosts that share one
address are one line, since there `mpirun` starts the processes itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from oarlock.frameworks import clusters
from oarlock.spec import jobfile, roles

HOSTFILE = "hostfile"
HYDRA_HOSTFILE = "hostfile.hydra"
"""Hydra refuses the words `slots=N`. It knows no IPv6 addresses: the text behind the first colon is a number to it."""
LAUNCHER_MEMORY = "256Mi"
"""The memory of mpirun and of the agent, where memory is counted."""


def with_launcher(spec: jobfile.JobSpec) -> jobfile.JobSpec:
    """Return the job with the launcher that runs its command once; `spec` itself where it has one, or is not an MPI
    job.

    The launcher holds no CPU: it waits while the processes of the workers' slots compute.
    """
    worker = spec.roles.get(roles.RoleName.WORKER)
    if spec.framework is not roles.Framework.MPI or roles.RoleName.LAUNCHER in spec.roles or worker is None:
        return spec
    launcher = jobfile.Role(cpus=0, memory=LAUNCHER_MEMORY if worker.memory is not None else None)
    return msgspec.structs.replace(spec, roles={roles.RoleName.LAUNCHER: launcher, **spec.roles})


def environment(cluster: clusters.Cluster, member: clusters.Member, process: int) -> dict[str, str]:
    path = f"{{task_dir}}/{HOSTFILE}"
    of_hydra = f"{{task_dir}}/{HYDRA_HOSTFILE}"
    slots = sum(worker.nproc for worker in cluster.of(roles.RoleName.WORKER))
    return {
        "OARLOCK_ADDRESS": member.address,
        "OARLOCK_HOSTFILE": path,
        "OARLOCK_SLOTS": str(slots),
        "OMPI_MCA_orte_default_hostfile": path,
        "PRTE_MCA_prte_default_hostfile": path,
        "HYDRA_HOST_FILE": of_hydra,
        "I_MPI_HYDRA_HOST_FILE": of_hydra,
    }


def remote(shell: Sequence[str]) -> dict[str, str]:
    """Return the variables with which the launcher reaches tasks at other addresses: `shell` in the place of ssh.

    Every daemon is started by the launcher itself, since no worker has the shell. Hydra takes the program and its
    arguments apart, and calls it as it calls rsh: it would put options of its own between the arguments of ssh.
    """
    agent = " ".join(shell)
    program, arguments = shell[0], " ".join(shell[1:])
    return {
        "OMPI_MCA_plm_rsh_agent": agent,
        "OMPI_MCA_plm_rsh_no_tree_spawn": "1",
        "PRTE_MCA_plm_ssh_agent": agent,
        "PRTE_MCA_plm_ssh_no_tree_spawn": "1",
        "HYDRA_LAUNCHER": "rsh",
        "HYDRA_LAUNCHER_EXEC": program,
        "HYDRA_LAUNCHER_EXTRA_ARGS": arguments,
        "I_MPI_HYDRA_BOOTSTRAP": "rsh",
        "I_MPI_HYDRA_BOOTSTRAP_EXEC": program,
        "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS": arguments,
        "I_MPI_HYDRA_BRANCH_COUNT": "-1",
    }


def files(cluster: clusters.Cluster) -> dict[str, str]:
    """Return the hostfiles, with one line for each address, in the order of the workers."""
    slots: dict[str, int] = {}
    for worker in cluster.of(roles.RoleName.WORKER):
        slots[worker.address] = slots.get(worker.address, 0) + worker.nproc
    return {
        HOSTFILE: "".join(f"{address} slots={count}\n" for address, count in slots.items()),
        HYDRA_HOSTFILE: "".join(f"{address}:{count}\n" for address, count in slots.items()),
    }

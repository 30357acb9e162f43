"""The coordinator's address, the number of processes and which one this is: the arguments of
`jax.distributed.initialize`.

jax itself reads only the address from the environment; docs/frameworks.md shows the call that passes the other two.
"""

from __future__ import annotations

from oarlock.frameworks import clusters
from oarlock.spec import roles

PREALLOCATED = 0.9
"""The part of its share; the rest is for the memory of the driver and libraries."""

RANKED = (roles.RoleName.CHIEF, roles.RoleName.WORKER)


def environment(cluster: clusters.Cluster, member: clusters.Member, process: int) -> dict[str, str]:
    ranked = cluster.of(*RANKED)
    if member not in ranked:
        return _bounded(member)
    before = sum(other.nproc for other in ranked[: ranked.index(member)])
    return {
        "JAX_COORDINATOR_ADDRESS": ranked[0].endpoint(),
        "JAX_NUM_PROCESSES": str(sum(other.nproc for other in ranked)),
        "JAX_PROCESS_ID": str(before + process),
        "JAX_LOCAL_PROCESS_ID": str(process),
        **_bounded(member),
    }


def _bounded(member: clusters.Member) -> dict[str, str]:
    """Return the bound on a shared device: XLA takes three quarters of the whole at its start unless it is told."""
    if not member.gpu_share:
        return {}
    return {"XLA_PYTHON_CLIENT_MEM_FRACTION": f"{PREALLOCATED * member.gpu_share / member.nproc:.4g}"}

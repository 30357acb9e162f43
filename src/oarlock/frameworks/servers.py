"""The parameter servers of `oarlock.train`: where each listens. The tasks of the role `ps` of a torch job run them."""

from __future__ import annotations

from oarlock.frameworks import clusters
from oarlock.spec import jobfile, roles

_RANKED = frozenset({roles.RoleName.CHIEF, roles.RoleName.WORKER})


def environment(
    spec: jobfile.JobSpec, cluster: clusters.Cluster, member: clusters.Member, process: int
) -> dict[str, str]:
    """Return the addresses of all servers, to a server its own, and to a worker that may come and go its number."""
    if not jobfile.runs_servers(spec):
        return {}
    servers = [one.endpoint(number) for one in cluster.of(roles.RoleName.PS) for number in range(one.nproc)]
    own = {"OARLOCK_SERVER": member.endpoint(process)} if member.role is roles.RoleName.PS else {}
    if jobfile.numbered(spec) and member.role in _RANKED:
        own["OARLOCK_WORKER"] = str(_number(cluster, member, process))
    return {"OARLOCK_SERVERS": ",".join(servers), **own}


def _number(cluster: clusters.Cluster, member: clusters.Member, process: int) -> int:
    """Return the number that a process keeps while others come and go: in a whole gang it is the rank."""
    chiefs = cluster.of(roles.RoleName.CHIEF) if member.role is roles.RoleName.WORKER else []
    return sum(one.nproc for one in chiefs) + member.index * member.nproc + process

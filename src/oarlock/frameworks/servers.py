"""The parameter servers of `oarlock.train`: where each listens. A job has them by `strategy: {kind: ps}`, or `auto`
where it has tasks of the role `ps`.
"""

from __future__ import annotations

from oarlock.frameworks import clusters
from oarlock.spec import jobfile, roles


def environment(
    spec: jobfile.JobSpec, cluster: clusters.Cluster, member: clusters.Member, process: int
) -> dict[str, str]:
    """Return the addresses of all servers, and to a server its own."""
    if not jobfile.serves(spec):
        return {}
    servers = [one.endpoint(number) for one in cluster.of(roles.RoleName.PS) for number in range(one.nproc)]
    own = {"OARLOCK_SERVER": member.endpoint(process)} if member.role is roles.RoleName.PS else {}
    return {"OARLOCK_SERVERS": ",".join(servers), **own}

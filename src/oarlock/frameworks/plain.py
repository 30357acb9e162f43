"""The cluster as a JSON file, for scripts that bring their own idea of training together.

Every framework's tasks have it too.
"""

from __future__ import annotations

import json

from oarlock.frameworks import clusters

FILE = "cluster.json"


def environment(cluster: clusters.Cluster, member: clusters.Member, process: int) -> dict[str, str]:
    return {"OARLOCK_CLUSTER": f"{{task_dir}}/{FILE}"}


def files(cluster: clusters.Cluster, member: clusters.Member) -> dict[str, str]:
    """Return `{job, attempt, round, self: {role, index}, tasks: [{role, index, address, ports, nproc}]}`."""
    described = {
        "job": cluster.job,
        "attempt": cluster.attempt,
        "round": cluster.round,
        "self": {"role": str(member.role), "index": member.index},
        "tasks": [
            {
                "role": str(one.role),
                "index": one.index,
                "address": one.address,
                "ports": list(one.ports),
                "nproc": one.nproc,
            }
            for one in cluster.members
        ],
    }
    return {FILE: json.dumps(described, indent=2) + "\n"}

"""`TF_CONFIG`, as TensorFlow's own operator writes it: the cluster's endpoints by role, and which of them this task is.

The evaluator is a task of its own kind that stands outside the cluster. Process K of a task serves on its K-th port and
counts as a worker of its own.
"""

from __future__ import annotations

import json

from oarlock.frameworks import clusters
from oarlock.spec import roles

IN_CLUSTER = (roles.RoleName.CHIEF, roles.RoleName.WORKER, roles.RoleName.PS)


def environment(cluster: clusters.Cluster, member: clusters.Member, process: int) -> dict[str, str]:
    endpoints = {
        str(role): [one.endpoint(k) for one in cluster.of(role) for k in range(one.nproc)]
        for role in IN_CLUSTER
        if cluster.of(role)
    }
    task = {"type": str(member.role), "index": member.index * member.nproc + process}
    config = {"cluster": endpoints, "task": task, "environment": "cloud"}
    # Otherwise TensorFlow takes all of a device's memory at its start, shares of other tasks included.
    grows = {"TF_FORCE_GPU_ALLOW_GROWTH": "true"} if member.gpu_share else {}
    return {"TF_CONFIG": json.dumps(config), **grows}

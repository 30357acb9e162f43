"""The facts of one cluster that an administrator declares: the table `[kubernetes]` of the server's configuration.

[kubernetes]
namespace = "training"
gpu_resource = "nvidia.com/gpu"
tolerate = ["nvidia.com/gpu"]

[kubernetes.domains]
rack = "example.com/rack"
"""

from __future__ import annotations

import msgspec

DOMAINS = {"zone": "topology.kubernetes.io/zone", "nvlink": "nvidia.com/gpu.clique"}
NVIDIA = "nvidia.com/gpu"


class Site(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`installation` tells the pods of one Oarlock from those of another in the same cluster. Without one the server
    derives it from its task secret. `server` is the URL by which pods reach the server. `ca_pem` is the authority that
    they trust for it, where the system's do not suffice.

    `domains` gives the node label of each level of the topology. `tolerate` lists keys of taints that tasks tolerate;
    a node with another closing taint takes no tasks. `nodes` are labels that a node must have to be used.
    """

    installation: str = ""
    server: str = ""
    ca_pem: str = ""
    namespace: str = "oarlock"
    context: str | None = None  # of the kubeconfig; else the current one
    gpu_resource: str = NVIDIA
    gpu_type: str = ""  # of all nodes, where no label says it
    gpu_product_label: str = "nvidia.com/gpu.product"
    gpu_memory_label: str = "nvidia.com/gpu.memory"  # in MiB
    class_label: str = "node.kubernetes.io/instance-type"
    domains: dict[str, str] = msgspec.field(default_factory=lambda: dict(DOMAINS))
    tolerate: tuple[str, ...] = (NVIDIA,)
    nodes: dict[str, str] = {}
    image: str = ""  # the server's own image, which brings agent and interpreter; found by itself in a pod
    images: dict[str, str] = {}  # by framework, for jobs that name none
    pull_policy: str = "IfNotPresent"
    pull_secrets: tuple[str, ...] = ()
    checkpoint_claim: str = ""  # the claim of a volume for checkpoints, which all tasks mount
    checkpoint_path: str = "/oarlock/checkpoints"  # where they mount it
    user_id: int = 10_001  # of the processes in pods, and their group

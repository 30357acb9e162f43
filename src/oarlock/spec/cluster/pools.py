"""Resource pools: a tree, jobs in its leaves."""

from __future__ import annotations

import msgspec

from oarlock.spec import holdings

DEFAULT = "default"
"""The pool of jobs that name none. It is there without anybody making it."""

RESOURCES = ("gpus", "cpus", "memory")
"""The resources that pools reserve, limit and share: devices, cores, bytes."""


class Pool(msgspec.Struct, frozen=True, kw_only=True):
    """A node of the tree: per resource (`cpus`, `memory`, `gpus`) a reservation (absent: none), a limit (absent: none)
    and a share (absent: 1). For the resources in `static` the whole reservation is kept for the pool, wanted or not;
    the unused part of others is lent.

    `policy` orders the jobs of a leaf; None: the cluster's. `object_uid` is the UID of the OarlockPool that shows the
    pool, on Kubernetes.
    """

    name: str
    parent: str | None = None
    reserve: dict[str, float] = {}
    limit: dict[str, float] = {}
    share: dict[str, float] = {}
    static: tuple[str, ...] = ()
    policy: str | None = None
    object_uid: str | None = None
    version: int = 0


def amounts(of: holdings.Resources) -> dict[str, float]:
    """Return the same amount by the names and in the units of pools: devices, cores, bytes; zeros too."""
    return {"gpus": of.devices, "cpus": of.cpus_milli / 1000, "memory": float(of.memory_bytes)}

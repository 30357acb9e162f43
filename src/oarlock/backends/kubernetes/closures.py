"""The nodes that were closed to a gang after its plan: by a cordon, a taint, or a label that was taken away.

The server binds pods itself, past the scheduler that would look at these. So a launch looks again, before it makes pods
and before it binds them. The planner has the same rules: `spec.cluster.nodes`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from oarlock.backends import backends
from oarlock.backends.kubernetes import clusterstate
from oarlock.backends.kubernetes.site import CORDON, Site
from oarlock.spec import errors
from oarlock.spec.cluster import nodes, profiles


def check(tasks: Iterable[backends.TaskLaunch], state: clusterstate.ClusterState, site: Site) -> None:
    """Raise Unavailable where the node of one of these tasks, which are not there yet, takes it no more."""
    seen: set[tuple[str, str, str]] = set()
    for one in tasks:
        pool, owner, name = said = one.container.pool, one.container.owner, one.holding.node
        node = None if said in seen else state.node(name)
        seen.add(said)
        why = ", ".join(_reasons(node, profiles.constraints(site.planned, pool, owner))) if node is not None else ""
        if why:
            raise errors.Unavailable(
                f"node {name} was closed after the plan: {why}", hint="It is tried again on other nodes."
            )


def _reasons(node: nodes.Node, constraints: nodes.Constraints | None) -> Iterator[str]:
    for taint in node.taints:
        if taint.effect in nodes.CLOSING and not taint.tolerable:
            yield "cordoned" if taint.key == CORDON else f"taint {taint}"
    yield from node.barriers(constraints)

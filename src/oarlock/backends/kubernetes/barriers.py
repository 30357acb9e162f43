"""The nodes as a plan sees them: each with the claims that it cannot serve, and those that it did not serve lately.

    a node of the cluster ──> a taint where it lacks places ──> claims without a way there ──> claims that are barred

The stock scheduler did not find a barred claim on the node (`bars`). Here is the state on which its refusal depends.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Sequence

import msgspec

from oarlock.backends import backends
from oarlock.backends.kubernetes import bars, clusterstate, places, slices, steering, volumes
from oarlock.backends.kubernetes.pods import ownpods, rendering
from oarlock.backends.kubernetes.site import Site
from oarlock.spec import attempts
from oarlock.spec.cluster import nodes


class Barriers:
    """Belongs to one event loop."""

    def __init__(
        self,
        site: Site,
        state: clusterstate.ClusterState,
        own: ownpods.OwnPods,
        free: places.Places,
        mounted: volumes.Volumes,
        offered: slices.Slices,
        *,
        monotonic: Callable[[], float],
    ) -> None:
        self._site = site
        self._state = state
        self._own = own
        self._places = free
        self._volumes = mounted
        self._slices = offered
        self._bars = bars.Bars(monotonic=monotonic)

    def marked(self, node: nodes.Node) -> nodes.Node:
        """Return the node with the claims that it cannot serve, and with those that it did not serve lately."""
        node = self._volumes.marked(self._places.closed(node), self._state.labels.get(node.name, {}))
        barred = tuple(claim for claim in self._bars.of(node.name, self._served) if claim not in node.lacks)
        return msgspec.structs.replace(node, barred=barred) if barred else node

    def put(self, error: steering.Unbound, local: Sequence[str], wanted: Sequence[backends.TaskLaunch]) -> None:
        """Close nodes for a while to the claims that the scheduler did not find there."""
        failed = [one for one in wanted if one.key in error.keys]
        claims = list(local) if error.by_volume else []
        if error.by_device:
            templates = {name for one in failed for name in rendering.device_claims(one, self._site).values()}
            claims += sorted(nodes.DEVICES + name for name in templates)
        claims += sorted(
            {
                f"{nodes.RESOURCES}{name}={amount}"
                for one in failed
                for name, amount in rendering.extended(one, self._site).items()
                if error.lacks(name)
            }
        )
        going = {one.key for one in wanted}
        self._bars.put(claims, {one.holding.node for one in failed}, functools.partial(self._served, without=going))
        if not self._site.node_classes:  # else a new node may be the one
            lacks = {node.name: node.lacks for node in self._state.nodes()}
            for claim in claims:
                able = self._volumes.able(claim, self._state.labels)
                self._bars.lift(claim, [name for name in able if claim not in lacks.get(name, ())])

    def _served(self, claim: str, name: str, *, without: Collection[attempts.TaskKey] = ()) -> bars.Seen:
        """Return the state on which it depends whether the scheduler finds the claim on the node."""
        node = self._state.node(name)
        facts = (node.capacity, node.ready, node.taints, self._state.labels.get(name)) if node is not None else None
        devices = self._slices.of(name) if claim.startswith(nodes.DEVICES) else None
        there = (key for key in self._own.on(name) if key not in without and self._own.is_bound(key))
        return bars.Seen((facts, devices), self._volumes.terms(claim), frozenset(there), self._state.freed(name))

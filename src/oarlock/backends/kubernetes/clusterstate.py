"""The nodes of the cluster as the scheduler reads them, kept current by two watches.

    nodes ──────────────> capacity, GPUs with type and memory, domains, taints, readiness ──┐
                                                                                            ├──> spec.cluster.nodes.Node
    pods of others ──> the amounts that each of them takes of its node ──> sums by node ────┘

A pod of ours is not counted here: its holding is in the store. A pod of others counts from its binding until its end,
also while it is stuck terminating.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable

import msgspec

from oarlock.backends import gpunames
from oarlock.backends.kubernetes import amounts
from oarlock.backends.kubernetes.apiserver import client, objects, watches
from oarlock.backends.kubernetes.pods import labels
from oarlock.backends.kubernetes.site import CORDON, Site
from oarlock.spec import holdings
from oarlock.spec.cluster.nodes import Device, Node, Taint

MAX_GPUS = 1024
NODE_LOST = "node lost"
_OWN_TAINTS = frozenset({"node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"})
"""Taints that say again that a node is not ready."""
_CORDON = objects.Taint(key=CORDON, effect="NoSchedule")
_NOTHING = holdings.Resources()


class Taken(msgspec.Struct, frozen=True, gc=False):
    """The part of a node that one pod takes."""

    node: str
    amount: holdings.Resources
    holds: bool  # volumes of drivers, or devices by claims


class ClusterState:
    """Belongs to one event loop. `changed` is called after each change that may matter."""

    def __init__(
        self,
        api: client.Client,
        site: Site,
        *,
        monotonic: Callable[[], float],
        changed: Callable[[], object] = lambda: None,
    ) -> None:
        self._site = site
        self._changed = changed
        self._sums: dict[str, holdings.Resources] | None = None
        self._counts: dict[str, int] = {}  # by node: pods of others, as of the sums
        self._most_pods: dict[str, int] = {}
        self._freed: dict[str, int] = {}
        self.labels: dict[str, dict[str, str]] = {}  # by node: all of them
        self._named: dict[str, Node] | None = None
        self._nodes = watches.Watch(
            api,
            "/api/v1/nodes",
            objects.Node,
            self._node,
            monotonic=monotonic,
            changed=self._nodes_changed,
            missing=lambda uid, was, last: self.labels.pop(was.name, None),
        )
        self._others = watches.Watch(
            api,
            "/api/v1/pods",
            objects.MountingPod,
            self._pod,
            monotonic=monotonic,
            params={"fieldSelector": "status.phase!=Succeeded,status.phase!=Failed"},
            changed=self._others_changed,
            missing=lambda uid, was, last: self._has_left(was),
        )

    async def run(self) -> None:
        """Follow the cluster until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._nodes.run())
            group.create_task(self._others.run())

    @property
    def is_synced(self) -> bool:
        return self._nodes.synced.is_set() and self._others.synced.is_set()

    async def synced(self) -> None:
        """Return once the cluster has been read."""
        await self._nodes.synced.wait()
        await self._others.synced.wait()

    def nodes(self) -> list[Node]:
        """Return the nodes by name."""
        sums = self._taken()
        return sorted(
            (_with(node, sums.get(node.name, _NOTHING)) for node in self._nodes.items.values()),
            key=lambda node: node.name,
        )

    def node(self, name: str) -> Node | None:
        found = self._by_name().get(name)
        return None if found is None else _with(found, self._taken().get(name, _NOTHING))

    def alike(self, node_class: str) -> list[dict[str, str]]:
        """Return the labels of the nodes of this class, of all nodes where it has none. Any thread may ask."""
        found = list(self.labels.values())
        return [one for one in found if one.get(self._site.class_label) == node_class] or found

    def most_pods(self, name: str) -> int | None:
        """Return the number of pods that the node takes; None where it does not say."""
        return self._most_pods.get(name)

    def pods_of_others(self, name: str) -> int:
        self._taken()
        return self._counts.get(name, 0)

    def freed(self, name: str) -> int:
        """Return how often a pod of others has left the node that held volumes or devices by claims."""
        return self._freed.get(name, 0)

    def trouble(self, name: str) -> str:
        """Return why this node is not ready; empty for one that is, or that is not there."""
        found = self._by_name().get(name)
        return "" if found is None or found.ready else found.reason

    def _node(self, found: objects.Node) -> Node | None:
        most = found.status.allocatable.get("pods")
        if most is None:
            self._most_pods.pop(found.metadata.name, None)
        else:
            self._most_pods[found.metadata.name] = amounts.units(most, up=False)
        kept = node(found, self._site)
        if kept is None:
            self.labels.pop(found.metadata.name, None)
        elif self.labels.get(kept.name) != found.metadata.labels:
            self.labels[kept.name] = found.metadata.labels
        return kept

    def _has_left(self, was: Taken) -> None:
        if was.holds:
            self._freed[was.node] = self._freed.get(was.node, 0) + 1

    def _pod(self, found: objects.MountingPod) -> Taken | None:
        if not found.spec.node_name or labels.ours(found.metadata, self._site):
            return None
        return Taken(sys.intern(found.spec.node_name), needs(found.spec, self._site.gpu_resource), found.spec.holds)

    def _by_name(self) -> dict[str, Node]:
        if self._named is None:
            self._named = {node.name: node for node in self._nodes.items.values()}
        return self._named

    def _nodes_changed(self) -> None:
        self._named = None
        self._changed()

    def _others_changed(self) -> None:
        self._sums = None
        self._changed()

    def _taken(self) -> dict[str, holdings.Resources]:
        if self._sums is None:
            sums: dict[str, holdings.Resources] = {}
            self._counts = {}
            for taken in self._others.items.values():
                sums[taken.node] = sums.get(taken.node, _NOTHING) + taken.amount
                self._counts[taken.node] = self._counts.get(taken.node, 0) + 1
            self._sums = sums
        return self._sums


def node(found: objects.Node, site: Site) -> Node | None:
    """Return the node as the scheduler reads it; None for one that is not to be used."""
    said, status = found.metadata.labels, found.status
    if any(said.get(label) != value for label, value in site.nodes.items()):
        return None
    capacity = amounts.resources(status.allocatable, site.gpu_resource, up=False)
    capacity = msgspec.structs.replace(capacity, gpus=min(capacity.gpus, MAX_GPUS))
    ready, reason = _readiness(status.conditions)
    return Node(
        name=found.metadata.name,
        capacity=capacity,
        devices=_devices(capacity.gpus, said, site),
        labels=site.selecting(said),
        domains={level: said[label] for level, label in site.domain_labels.items() if said.get(label)},
        node_class=said.get(site.class_label, ""),
        ready=ready,
        reason=reason,
        address=next((one.address for one in status.addresses if one.type == "InternalIP"), ""),
        taints=_taints(found.spec, site),
        lacks=site.lacking(status.allocatable),
    )


def needs(spec: objects.PodSpec, gpu: str) -> holdings.Resources:
    """Return the amounts for which the scheduler and the kubelet need space: the sum of the containers, or more where
    an init container needs more, and the overhead of the runtime. Source: `PodRequests` of Kubernetes.
    """
    running = _NOTHING
    for container in spec.containers:
        running += amounts.resources(container.resources.requests, gpu, up=True)
    beside, most = _NOTHING, _NOTHING
    for container in spec.init_containers:
        own = amounts.resources(container.resources.requests, gpu, up=True)
        if container.restart_policy == "Always":
            beside += own
            most = _larger(most, beside)
        else:
            most = _larger(most, beside + own)
    return _larger(running + beside, most) + amounts.resources(spec.overhead, gpu, up=True)


def _larger(one: holdings.Resources, other: holdings.Resources) -> holdings.Resources:
    return holdings.Resources(
        max(one.cpus_milli, other.cpus_milli), max(one.memory_bytes, other.memory_bytes), max(one.gpus, other.gpus)
    )


def _with(node: Node, taken: holdings.Resources) -> Node:
    return node if taken == _NOTHING else msgspec.structs.replace(node, taken=taken)


def _devices(count: int, said: dict[str, str], site: Site) -> tuple[Device, ...]:
    """Return one slot for each GPU: which of them a pod gets is the device plugin's choice."""
    product = said.get(site.gpu_product_label, "")
    kind = gpunames.type_name(product) if product else site.gpu_type or "gpu"
    memory = said.get(site.gpu_memory_label, "")
    memory_bytes = int(memory) << 20 if memory.isdigit() else 0
    return tuple(Device(index=index, type=kind, memory_bytes=memory_bytes) for index in range(count))


def _readiness(conditions: tuple[objects.Condition, ...]) -> tuple[bool, str]:
    said = next((one for one in conditions if one.type == "Ready"), None)
    if said is None:
        return False, "its kubelet has not reported yet"
    if said.status == "True":
        return True, ""
    if said.status == "Unknown":
        return False, NODE_LOST
    return False, f"not ready: {said.message or said.reason}"[:200]


def _taints(spec: objects.NodeSpec, site: Site) -> tuple[Taint, ...]:
    """Return the taints that not all of our tasks tolerate. A cordon becomes a taint only after a while."""
    said = list(spec.taints)
    if spec.unschedulable and not any(taint.key == _CORDON.key for taint in said):
        said.append(_CORDON)
    return site.taints(
        Taint(key=taint.key, value=taint.value, effect=taint.effect) for taint in said if taint.key not in _OWN_TAINTS
    )

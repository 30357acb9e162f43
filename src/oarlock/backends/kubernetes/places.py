"""The places for pods on each node. A kubelet takes so many pods (`status.allocatable.pods`), however small they are.

The planner counts amounts, not pods. So a launch takes its places here before it makes any pod, and is refused where
too few are free. A taint then closes the node to new tasks until that many are free, for a minute at most, so that the
next plan goes elsewhere. A node without any free place is closed too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import msgspec

from oarlock.backends.kubernetes import clusterstate
from oarlock.backends.kubernetes.pods import ownpods
from oarlock.spec import attempts, errors
from oarlock.spec.cluster.nodes import Node, Taint

FULL = "oarlock.dev/pods"
"""The key of the taint. Its value is the number of pods that the node takes."""

CLOSED_S = 60.0
"""The longest time for which a node is closed that has some places, but too few for a gang."""

Keys = set[attempts.TaskKey]


class Places:
    """Belongs to one event loop."""

    def __init__(
        self, state: clusterstate.ClusterState, own: ownpods.OwnPods, *, monotonic: Callable[[], float]
    ) -> None:
        self._state = state
        self._own = own
        self._monotonic = monotonic
        self._going: dict[str, Keys] = {}  # by node: tasks that were launched there, and are not seen there yet
        self._lacking: dict[str, tuple[int, float]] = {}  # by node: places that a launch did not find; closed until

    def take(self, wanted: Mapping[attempts.TaskKey, str]) -> None:
        """Take a place on its node for each task. A task that has one keeps it. Raises Unavailable, and takes none."""
        asked: dict[str, Keys] = {}
        for key, name in wanted.items():
            asked.setdefault(name, set()).add(key)
        for name, keys in asked.items():
            new, free = len(keys - self._there(name)), self._free(name)
            if free is not None and new > free:
                self._lacking[name] = new, self._monotonic() + CLOSED_S
                raise errors.Unavailable(
                    f"node {name} takes {self._state.most_pods(name)} pods: {new} more are needed, {max(0, free)} fit",
                    hint="It is tried again elsewhere.",
                )
        for name, keys in asked.items():
            self._going.setdefault(name, set()).update(keys)

    def leave(self, keys: Iterable[attempts.TaskKey]) -> None:
        """Give up the places of tasks that were not launched, or are gone."""
        gone = set(keys)
        for name in [name for name, going in self._going.items() if going & gone]:
            self._going[name] -= gone

    def closed(self, node: Node) -> Node:
        """Return the node with a taint where it lacks places."""
        free = self._free(node.name)
        needed, until = self._lacking.get(node.name, (1, 0.0))
        if free is None or free >= (needed if self._monotonic() < until else 1):
            self._lacking.pop(node.name, None)
            return node
        full = Taint(key=FULL, value=str(self._state.most_pods(node.name)), effect="NoSchedule")
        return msgspec.structs.replace(node, taints=(*node.taints, full))

    def _free(self, name: str) -> int | None:
        """Return the number of free places; None where the node does not say how many it has."""
        most = self._state.most_pods(name)
        return None if most is None else most - self._state.pods_of_others(name) - len(self._there(name))

    def _there(self, name: str) -> Keys:
        """Return our tasks that have a place on the node."""
        on, going = self._own.on(name), self._going.pop(name, None)
        if going:
            still = {key for key in going if key not in on and not self._is_bound(key)}
            if still:
                self._going[name] = still
                return on | still
        return on

    def _is_bound(self, key: attempts.TaskKey) -> bool:
        """Return whether the pod has been seen on its node: it counts there, or has ended."""
        pod = self._own.by_key.get(key)
        return pod is not None and bool(pod.spec.node_name)

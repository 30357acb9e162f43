"""The pods of this installation, kept current by a watch: by the key of their task, and by node.

A launch looks up its own tasks and nodes alone, so that a thousand launches at the same time do not read all pods a
thousand times. A pod counts as the pod of a task if it has the labels and the name of that task.

The cluster's clock may be ahead of ours. The time at which a pod was bound is taken back by the difference, and is not
later than the pod was seen bound. Every server follows the pods, also one that does not lead.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import msgspec

from oarlock.backends.kubernetes import clusterstate
from oarlock.backends.kubernetes.apiserver import client, objects, watches
from oarlock.backends.kubernetes.pods import labels, podstates
from oarlock.backends.kubernetes.site import Site
from oarlock.spec import attempts, holdings
from oarlock.spec.reconciling import observations

_ENDED = frozenset({"Succeeded", "Failed"})
_NOTHING = holdings.Resources()

Missing = Callable[[attempts.TaskKey, objects.Pod], object]


class OwnPods:
    """Belongs to one event loop. `missing` is called for each pod that is gone, with the pod as it was last seen."""

    def __init__(
        self,
        api: client.Client,
        path: str,
        site: Site,
        *,
        clock: Callable[[], float],
        ours: Callable[[float], float],
        monotonic: Callable[[], float],
        changed: Callable[[], object],
        missing: Missing,
    ) -> None:
        self.by_key: dict[attempts.TaskKey, objects.Pod] = {}
        self._site = site
        self._clock = clock
        self._ours = ours  # the cluster's time by our clock
        self._missing = missing
        self._bound_by: dict[str, float] = {}  # by UID: when it was bound at the latest, as it was first seen bound
        self._on: dict[str, dict[attempts.TaskKey, holdings.Resources]] = {}  # by node: what its unended tasks take
        self._node_of: dict[attempts.TaskKey, str] = {}  # of the tasks in `_on`
        self._pulls: dict[attempts.TaskKey, str] = {}  # why an image could not be pulled
        self._watch: watches.Watch[objects.Pod, objects.Pod] = watches.Watch(
            api,
            path,
            objects.Pod,
            self._keep,
            monotonic=monotonic,
            params={"labelSelector": f"{labels.INSTALLATION}={site.installation}"},
            changed=changed,
            entered=self._enter,
            missing=self._lose,
        )
        self.synced = self._watch.synced
        self.run = self._watch.run
        self.put = self._watch.put
        self.renew = self._watch.renew

    def pull(self, key: attempts.TaskKey) -> str:
        """Return why an image of the pod could not be pulled when that was last said."""
        return self._pulls.get(key, "")

    def by_our_clock(self, pod: objects.Pod, seen: observations.Observed) -> observations.Observed:
        """Return the observation of the pod with the time of its binding by our clock."""
        latest = self._bound_by.get(pod.metadata.uid)
        if latest is None or seen.bound_at is None or seen.bound_at <= latest:
            return seen
        return msgspec.structs.replace(seen, bound_at=latest)

    def taken(self, node: str, without: Collection[attempts.TaskKey]) -> holdings.Resources:
        """Return the amounts that tasks on the node take, without those of some tasks."""
        there = self._on.get(node, {})
        return sum((amount for key, amount in there.items() if key not in without), _NOTHING)

    def is_bound(self, key: attempts.TaskKey) -> bool:
        return key in self.by_key and bool(self.by_key[key].spec.node_name)

    def reserve(self, key: attempts.TaskKey, node: str, amount: holdings.Resources) -> None:
        """Count a task that is about to be made, until its pod is seen bound, ended or gone."""
        self._leave(key)
        self._on.setdefault(node, {})[key] = amount
        self._node_of[key] = node

    def release(self, keys: Collection[attempts.TaskKey]) -> None:
        """Count those of the tasks that have no pod no longer: their launch has failed."""
        for key in keys:
            if key not in self.by_key:
                self._leave(key)

    def on(self, node: str) -> set[attempts.TaskKey]:
        """Return the tasks with a pod on the node that has not ended."""
        return set(self._on.get(node, ()))

    def _keep(self, pod: objects.Pod) -> objects.Pod | None:
        key = podstates.key(pod)
        return pod if key is not None and pod.metadata.name == labels.pod_name(key) else None

    def _enter(self, pod: objects.Pod) -> None:
        key = podstates.key(pod)
        if key is None:
            return
        self.by_key[key] = pod
        if pod.spec.node_name and pod.metadata.uid not in self._bound_by:
            told, now = podstates.bound_at(pod), self._clock()
            self._bound_by[pod.metadata.uid] = min(now, self._ours(told)) if told else now
        if pod.status.phase in _ENDED:
            self._leave(key)
        elif pod.spec.node_name:
            self.reserve(key, pod.spec.node_name, clusterstate.needs(pod.spec, self._site.gpu_resource))
        if why := podstates.pull_failure(pod):
            self._pulls[key] = why

    def _lose(self, uid: str, was: objects.Pod, last: objects.Pod | None) -> None:
        key = podstates.key(was)
        if key is None:
            return
        if key in self.by_key and self.by_key[key].metadata.uid == uid:
            del self.by_key[key]
            self._leave(key)
            self._pulls.pop(key, None)
        self._missing(key, last if last is not None else was)
        self._bound_by.pop(uid, None)

    def _leave(self, key: attempts.TaskKey) -> None:
        node = self._node_of.pop(key, None)
        if node is not None:
            del self._on[node][key]
            if not self._on[node]:
                del self._on[node]

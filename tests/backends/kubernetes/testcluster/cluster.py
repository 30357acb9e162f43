"""A pretend cluster over the real API server: nodes that a test declares, and a kubelet that plays the pods on them.

A pod that is bound starts (`starts` counts), runs as its script says, and is confirmed gone after its deletion. Nodes
can be lost, cordoned and removed. Everything goes through the API server, so that the code under test sees what a real
cluster would tell.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import msgspec

from oarlock.backends.kubernetes import site
from oarlock.backends.kubernetes.apiserver import client, objects, watches
from oarlock.backends.kubernetes.pods import rendering
from oarlock.spec import errors

GPU = "nvidia.com/gpu"
IMAGE = "registry.example/train:1"
SERVER_IMAGE = "registry.example/oarlock:1"
RIGHTS = ("rolebindings", "roles")


class Play(msgspec.Struct, frozen=True, kw_only=True):
    """The fate of a pod once its kubelet has it.

    It exits with `code`, or runs on (None). `record`: its agent leaves an exit record. `pull`: its image cannot be
    pulled, and why. `reason` and `message` end the whole pod without a word about containers (an eviction).
    """

    code: int | None = None
    record: bool = True
    oom: bool = False
    pull: str = ""
    reason: str = ""
    message: str = ""


class Cluster:
    def __init__(self, api: client.Client, namespace: str) -> None:
        self.api = api
        self.namespace = namespace
        self.plays: dict[str, Play] = {}  # by the pod's name; of a check, by the name without its ending
        self.starts: Counter[str] = Counter()
        self.lost: set[str] = set()
        self.kubelet_port = 0  # where a subclass serves commands in pods
        self._known: dict[str, str] = {}  # what was done with a pod, by UID
        self._watch: watches.Watch[objects.Pod, objects.Pod] = watches.Watch(
            api, self.path("pods"), objects.Pod, lambda pod: pod, monotonic=time.monotonic, changed=self._wake
        )
        self._woken = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def site(self) -> site.Site:
        """The settings of an Oarlock that uses only these nodes."""
        return site.Site(
            installation=self.namespace,
            namespace=self.namespace,
            nodes={"example.com/test": self.namespace},
            domains={"zone": "topology.kubernetes.io/zone", "rack": "example.com/rack"},
            image=SERVER_IMAGE,
            images={"torch": IMAGE},
        )

    def path(self, plural: str) -> str:
        return f"/api/v1/namespaces/{self.namespace}/{plural}"

    def node(self, name: str) -> str:
        """The node's name in the cluster, which all tests share."""
        return f"{self.namespace}-{name}"

    # Nodes

    async def add(
        self,
        name: str = "n1",
        *,
        cpu: str = "8",
        memory: str = "32Gi",
        gpus: int = 0,
        labels: dict[str, str] | None = None,
        taints: list[dict[str, str]] | None = None,
        pods: int = 110,
    ) -> str:
        said = {"example.com/test": self.namespace, **(labels or {})}
        body = {"metadata": {"name": self.node(name), "labels": said}, "spec": {"taints": taints or []}}
        await self.api.create("/api/v1/nodes", body, objects.Bare)
        capacity = {"cpu": cpu, "memory": memory, "pods": str(pods), **({GPU: str(gpus)} if gpus else {})}
        status: dict[str, object] = {"capacity": capacity, "allocatable": capacity}
        if self.kubelet_port:
            status["addresses"] = [{"type": "InternalIP", "address": "127.0.0.1"}]
            status["daemonEndpoints"] = {"kubeletEndpoint": {"Port": self.kubelet_port}}
        await self.api.patch(f"/api/v1/nodes/{self.node(name)}/status", {"status": status}, objects.Bare)
        await self.ready(name)
        return self.node(name)

    async def ready(self, name: str, status: str = "True", message: str = "") -> None:
        condition = {"type": "Ready", "status": status, "reason": "Test", "message": message}
        body = {"status": {"conditions": [condition]}}
        await self.api.patch(f"/api/v1/nodes/{self.node(name)}/status", body, objects.Bare)

    async def cordon(self, name: str, on: bool = True) -> None:
        await self.api.patch(f"/api/v1/nodes/{self.node(name)}", {"spec": {"unschedulable": on}}, objects.Bare)

    async def lose(self, name: str) -> None:
        """Its kubelet does nothing any more, and the cluster has noticed."""
        self.lost.add(self.node(name))
        await self.ready(name, "Unknown", "Kubelet stopped posting node status.")

    async def preempt(self, pod: objects.Pod, message: str = "") -> None:
        """Take the pod away as another scheduler does that needs its place (1.26 and newer say so in the pod)."""
        why = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler", "message": message}
        there = [one for one in msgspec.to_builtins(pod.status.conditions) if one["type"] != why["type"]]
        await self._tell(pod, {"conditions": [*there, why]})
        await self.api.delete(f"{self.path('pods')}/{pod.metadata.name}", uid=pod.metadata.uid)

    async def preempt_silently(self, pod: objects.Pod, message: str) -> None:
        """Take the pod away as the scheduler of a cluster before 1.26 does, which says so in an Event after that."""
        await self.api.delete(f"{self.path('pods')}/{pod.metadata.name}", uid=pod.metadata.uid)
        about = {"kind": "Pod", "namespace": self.namespace, "name": pod.metadata.name, "uid": pod.metadata.uid}
        body = {
            "metadata": {"name": f"{pod.metadata.name}.preempted", "namespace": self.namespace},
            "involvedObject": about,
            "reason": "Preempted",
            "message": message,
            "type": "Normal",
        }
        await self.api.create(self.path("events"), body, objects.Bare)

    def hang(self, name: str, on: bool = True) -> None:
        """Let the kubelet of this node confirm nothing: its pods stay, also once they are deleted."""
        (self.lost.add if on else self.lost.discard)(self.node(name))
        self._wake()

    async def find(self, name: str) -> None:
        self.lost.discard(self.node(name))
        await self.ready(name)
        self._wake()

    async def remove(self, name: str) -> None:
        """Delete the node and, as Kubernetes' garbage collector does, its pods."""
        self.lost.add(self.node(name))
        await self.api.delete(f"/api/v1/nodes/{self.node(name)}")
        for pod in await self.api.list(self.path("pods"), objects.Pod):
            if pod.spec.node_name == self.node(name):
                await self.api.delete(f"{self.path('pods')}/{pod.metadata.name}", uid=pod.metadata.uid, grace_s=0)

    async def foreign(self, name: str, node: str, *, namespace: str = "default", **requests: str) -> objects.Pod:
        """A pod of another user, bound to that node."""
        amounts = {"requests": requests, "limits": {name: amount for name, amount in requests.items() if "/" in name}}
        spec = {
            "nodeName": self.node(node),
            "containers": [{"name": "c", "image": "none", "resources": amounts}],
        }
        body = {"metadata": {"name": f"{self.namespace}-{name}"}, "spec": spec}
        return await self.api.create(f"/api/v1/namespaces/{namespace}/pods", body, objects.Pod)

    async def quota(self, name: str, **hard: str) -> None:
        """Limit the namespace, and wait until the API server obeys: its cache learns of a quota a moment later."""
        path = self.path("resourcequotas")
        await self.api.create(path, {"metadata": {"name": name}, "spec": {"hard": hard}}, objects.Bare)
        status = {"hard": hard, "used": dict.fromkeys(hard, "0")}  # else written by a controller
        await self.api.patch(f"{path}/{name}/status", {"status": status}, objects.Bare)
        amounts = {"requests": {"cpu": "1000"}}
        pod = {
            "metadata": {"name": "too-large"},
            "spec": {"containers": [{"name": "c", "image": "none", "resources": amounts}]},
        }
        for _ in range(600):
            try:
                await self.api.create(self.path("pods"), pod, objects.Bare)
            except errors.Forbidden:
                return
            await self.api.delete(f"{self.path('pods')}/too-large", grace_s=0)
            await asyncio.sleep(0.1)
        raise AssertionError(f"the API server does not obey the quota {name}")

    # The namespace. No controller of namespaces runs: a test plays it.

    async def delete_namespace(self) -> None:
        """Begin to delete the namespace, as `kubectl delete namespace` does: nothing new is made in it any more."""
        await self.api.delete(f"/api/v1/namespaces/{self.namespace}")

    async def empty_namespace(self, *plurals: str) -> None:
        """Delete all objects of these kinds. Pods have their grace, and go once their kubelet has confirmed the end."""
        for plural in plurals:
            group = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{self.namespace}"
            path = f"{group}/{plural}" if plural in RIGHTS else self.path(plural)
            await self.api.delete_all(path, {})
            if plural == "persistentvolumeclaims":  # no controller of claims lets them go
                for claim in await self.api.list(path, objects.Bare):
                    free = {"metadata": {"finalizers": None}}
                    await self.api.patch(f"{path}/{claim.metadata.name}", free, objects.Bare)

    async def end_namespace(self) -> None:
        """Take the finalizer off, so that the namespace goes: once the controller has found nothing in it."""
        path = f"/api/v1/namespaces/{self.namespace}"
        body = {**await self.api.get(path, dict[str, object]), "spec": {"finalizers": []}}
        await self.api.call("PUT", f"{path}/finalize", objects.Bare, body=body)
        await self.api.delete(path)

    # Volumes

    async def claim(self, name: str, phase: str = "Bound", **spec: object) -> None:
        """Make a claim of a volume. No controller looks at it."""
        wanted = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}, **spec}
        path = self.path("persistentvolumeclaims")
        await self.api.create(path, {"metadata": {"name": name}, "spec": wanted}, objects.Bare)
        await self.api.patch(f"{path}/{name}/status", {"status": {"phase": phase}}, objects.Bare)

    # The kubelet

    def open(self) -> None:
        self._tasks = [asyncio.create_task(self._watch.run()), asyncio.create_task(self._kubelet())]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for node in await self.api.list("/api/v1/nodes", objects.Node):
            if node.metadata.labels.get("example.com/test") == self.namespace:
                await self.api.delete(f"/api/v1/nodes/{node.metadata.name}")

    async def until(self, holds: Callable[[], bool], what: str, patience_s: float = 120.0) -> None:
        deadline = time.monotonic() + patience_s
        while not holds():
            self.check()
            assert time.monotonic() < deadline, f"waited for: {what}"
            await asyncio.sleep(0.02)

    def check(self) -> None:
        """Fail with the error that has ended the kubelet, if one has: nothing starts any more."""
        for task in self._tasks:
            if task.done():
                task.result()

    def _wake(self) -> None:
        self._woken.set()

    async def _kubelet(self) -> None:
        await self._watch.synced.wait()
        while True:
            self._woken.clear()
            for uid, pod in list(self._watch.items.items()):
                if pod.spec.node_name and pod.spec.node_name not in self.lost:
                    await self._look(uid, pod)
            await self._woken.wait()

    async def _look(self, uid: str, pod: objects.Pod) -> None:
        done = self._known.get(uid, "")
        try:
            if pod.metadata.deletion_timestamp is not None:
                if done != "gone":
                    self._known[uid] = "gone"
                    await self._end(uid, pod)
            elif not done:
                self._known[uid] = "started"
                await self._begin(pod)
        except errors.NotFound:
            return

    async def _begin(self, pod: objects.Pod) -> None:
        """Play the pod. A subclass may run it."""
        name = pod.metadata.name
        play = self.plays.get(name) or self.plays.get(name.rpartition("-")[0], Play())
        if play.pull:
            await self._tell(pod, waiting("ErrImagePull", play.pull))
            return
        if play.reason:
            body = {"phase": "Failed", "reason": play.reason, "message": play.message}
            await self._tell(pod, body)
            return
        self.starts[name] += 1
        await self._tell(pod, running())
        if play.code is not None:
            record = json.dumps({"key": name, "code": play.code, "reason": "exited", "processes": []})
            why = "OOMKilled" if play.oom else "Error" if play.code else "Completed"
            await self._tell(pod, ended(play.code, record if play.record else "", why))

    async def _end(self, uid: str, pod: objects.Pod) -> None:
        """Confirm that nothing of the deleted pod runs."""
        if pod.status.phase not in {"Succeeded", "Failed"}:
            await self._tell(pod, ended(137, "", ""))
        await self.api.delete(f"{self.path('pods')}/{pod.metadata.name}", uid=uid, grace_s=0)

    async def _tell(self, pod: objects.Pod, status: dict[str, object]) -> None:
        path = f"{self.path('pods')}/{pod.metadata.name}/status"
        await self.api.patch(path, {"status": status}, objects.Bare)


def _container(state: dict[str, object], name: str = rendering.TASK) -> dict[str, object]:
    return {
        "name": name,
        "image": IMAGE,
        "imageID": "",
        "ready": False,
        "restartCount": 0,
        "state": state,
    }


def running(address: str = "10.1.2.3", names: Sequence[str] = (rendering.TASK,)) -> dict[str, object]:
    started = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
    return {
        "phase": "Running",
        "podIP": address,
        "containerStatuses": [_container(started, name) for name in names],
    }


def waiting(reason: str, message: str) -> dict[str, object]:
    state = {"waiting": {"reason": reason, "message": message}}
    return {"phase": "Pending", "containerStatuses": [_container(state)]}


def ended(code: int, message: str, reason: str) -> dict[str, object]:
    return all_ended({rendering.TASK: code}, {rendering.TASK: message}, reason)


def all_ended(codes: Mapping[str, int], messages: Mapping[str, str], reason: str = "") -> dict[str, object]:
    return {
        "phase": "Failed" if any(codes.values()) else "Succeeded",
        "containerStatuses": [_terminated(name, code, messages[name], reason) for name, code in codes.items()],
    }


def _terminated(name: str, code: int, message: str, reason: str) -> dict[str, object]:
    ended = {"exitCode": code, "message": message, "reason": reason, "finishedAt": "2026-01-01T00:00:10Z"}
    return _container({"terminated": ended, "running": None}, name)

"""An API server in memory, for the order of events that a real one cannot be told: pages that fail, answers that are
held back. Only what the backend needs of one namespace: nodes, pods and their watches.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec

from oarlock.backends import backends
from oarlock.backends.kubernetes.apiserver import objects
from oarlock.backends.kubernetes.pods import labels, rendering
from oarlock.backends.kubernetes.site import Site
from oarlock.spec import attempts, errors, holdings, jobfile
from oarlock.spec.protocol import assignments

SITE = Site(namespace="ns", installation="i", image="oarlock:1", server="http://server")
TWO_CPUS = holdings.Resources(cpus_milli=2000, memory_bytes=1 << 28)


class Access:
    server, inside, namespace = "http://memory", False, "ns"


class Cluster:
    """Stands where `client.Client` stands. A pod that is bound to a node has the status of `runs[node]`."""

    access = Access()

    def __init__(self, *names: str) -> None:
        self.nodes = {name: _node(name) for name in names}
        self.pods: dict[str, dict[str, Any]] = {}
        self.volumes: list[dict[str, Any]] = []
        self.bound: list[tuple[str, str]] = []
        self.runs: dict[str, dict[str, Any]] = {}
        self.creates = asyncio.Event()  # creations take effect once it is set
        self.creates.set()
        self.binds = asyncio.Event()
        self.binds.set()
        self.asked = 0  # creations of pods
        self.binds_asked = 0
        self.admits: Callable[[dict[str, Any]], dict[str, Any]] = lambda pod: pod  # a webhook
        self.after_first_page: Callable[[], object] | None = None  # then the list of our pods fails, once
        self._versions = itertools.count(1)
        self._watches: list[tuple[str, asyncio.Queue[bytes]]] = []
        self._events: list[tuple[str, dict[str, Any]]] = []

    async def pages(self, path: str, kind: Any, params: Any = None) -> AsyncIterator[Any]:
        version = str(next(self._versions))
        items = self.nodes.values() if path.endswith("nodes") else [p for p in self.pods.values() if _shown(p, path)]
        items = self.volumes if path.endswith("persistentvolumes") else items
        page = {"metadata": {"resourceVersion": version}, "items": list(items)}
        fails = self.after_first_page if "namespaces" in path else None
        yield _as(page, objects.Page[kind])
        if fails is not None:
            self.after_first_page = None
            fails()
            raise errors.Unavailable("no answer", hint="")

    async def list(self, path: str, kind: Any, params: Any, accept: str) -> list[Any]:
        assert path.endswith("pods")
        return [_as(pod, kind) for pod in self.pods.values()]

    async def lines(self, path: str, params: Any) -> AsyncIterator[bytes]:
        queue: asyncio.Queue[bytes] = asyncio.Queue()
        self._watches.append((path, queue))
        for what, pod in self._events:  # what happened since the list
            if int(pod["metadata"]["resourceVersion"]) > int(params["resourceVersion"]):
                _put(queue, path, what, pod)
        while True:
            yield await queue.get()

    async def create(self, path: str, body: dict[str, Any], kind: Any) -> Any:
        if not path.endswith("pods"):
            return None
        self.asked += 1
        # A request that has been sent takes effect, also where nothing waits for its answer any more.
        return _as(await asyncio.shield(asyncio.ensure_future(self._create(body))), kind)

    async def _create(self, body: dict[str, Any]) -> dict[str, Any]:
        await self.creates.wait()
        made = self.add(self.admits(body))
        if node := body["spec"].get("nodeName"):
            self.bound.append((made["metadata"]["name"], node))
            self.change(made["metadata"]["name"], status=self.runs.get(node, {"phase": "Pending"}))
        return made

    async def get(self, path: str, kind: Any) -> Any:
        name = path.rsplit("/", 1)[1]
        if "persistentvolumeclaims" in path:
            return _as({"status": {"phase": "Bound"}}, kind)
        if name not in self.pods:
            raise errors.NotFound("no such pod", hint="")
        return _as(self.pods[name], kind)

    async def bind(self, namespace: str, name: str, uid: str, node: str) -> None:
        self.binds_asked += 1
        await self.binds.wait()
        pod = self.pods[name]
        assert pod["metadata"]["uid"] == uid
        self.bound.append((name, node))
        self.change(name, spec={**pod["spec"], "nodeName": node}, status=self.runs.get(node, {"phase": "Pending"}))

    async def delete(self, path: str, uid: str | None = None, grace_s: int | None = None) -> None:
        name = path.rsplit("/", 1)[1]
        if name in self.pods and uid in {None, self.pods[name]["metadata"]["uid"]}:
            self._tell("DELETED", self.pods.pop(name))

    async def delete_all(self, path: str, params: Any) -> None: ...

    async def close(self) -> None: ...

    def add(self, body: dict[str, Any]) -> dict[str, Any]:
        meta = {"labels": {}, **body["metadata"], "uid": f"u-{next(self._versions)}"}
        self.pods[meta["name"]] = {"status": {"phase": "Pending"}, **body, "metadata": meta}
        self.change(meta["name"], "ADDED")
        return self.pods[meta["name"]]

    def change(self, name: str, what: str = "MODIFIED", **parts: Any) -> None:
        pod = self.pods[name]
        meta = {**pod["metadata"], "resourceVersion": str(next(self._versions))}
        self.pods[name] = {**pod, **parts, "metadata": meta}
        self._tell(what, self.pods[name])

    def _tell(self, what: str, pod: dict[str, Any]) -> None:
        self._events.append((what, pod))
        for path, queue in self._watches:
            _put(queue, path, what, pod)


def launch_of(
    job: str, node: str = "n1", amount: holdings.Resources = TWO_CPUS, volumes: tuple[jobfile.Volume, ...] = ()
) -> backends.TaskLaunch:
    key = attempts.TaskKey(job, 1, "worker", 0, 1)
    return backends.TaskLaunch(
        key=key,
        assignment=assignments.Assignment(key=str(key), server="http://server", token="t", command="c"),
        holding=holdings.Holding(job=job, attempt=1, role="worker", index=0, node=node, amount=amount),
        limit=amount,
        container=backends.Container(image="any:1", volumes=volumes),
    )


def bound_pod(job: str, node: str) -> rendering.Manifest:
    """Return a pod of ours that runs."""
    made = rendering.pod(launch_of(job), SITE, "secret")
    return {**made, "spec": {**made["spec"], "nodeName": node}, "status": {"phase": "Running"}}


def foreign_pod(name: str, node: str, cpu: str) -> dict[str, Any]:
    containers = [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]
    return {"metadata": {"name": name}, "spec": {"nodeName": node, "containers": containers}}


def _node(name: str) -> dict[str, Any]:
    status = {
        "allocatable": {"cpu": "4", "memory": "8Gi"},
        "conditions": [{"type": "Ready", "status": "True"}],
    }
    return {"metadata": {"name": name, "uid": name, "resourceVersion": "1"}, "spec": {}, "status": status}


def _put(queue: asyncio.Queue[bytes], path: str, what: str, pod: dict[str, Any]) -> None:
    if path.endswith("pods") and _shown(pod, path):
        queue.put_nowait(msgspec.json.encode({"type": what, "object": pod}))


def _shown(pod: dict[str, Any], path: str) -> bool:
    """Our namespace is read with our label. A pod of ours in the list of all is not counted there."""
    return "namespaces" not in path or pod["metadata"]["labels"].get(labels.INSTALLATION) == SITE.installation


def _as(found: Any, kind: Any) -> Any:
    return msgspec.json.decode(msgspec.json.encode(found), type=kind)

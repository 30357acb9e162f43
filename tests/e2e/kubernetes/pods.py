"""A user whose server runs the tasks as pods: a real API server, and a kubelet that runs the real agents here."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import difflib
import itertools
import json
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, Generic, TypeVar

import pytest
import yaml
from tests import objectstores
from tests.backends.kubernetes import conftest
from tests.backends.kubernetes.testcluster import apiserver, kubelet, rights
from tests.e2e import shell as shells
from tests.e2e.kubernetes import clocks

from oarlock.api.jobs import outlook
from oarlock.backends.kubernetes import noderequests, projecting, tensorboards
from oarlock.backends.kubernetes.apiserver import client, objects
from oarlock.backends.kubernetes.pods import boards, labels
from oarlock.controllers.guarding import launching
from oarlock.spec import attempts, errors

T = TypeVar("T")

SHOWN = """
name: shown
command: sleep 600
framework: plain
image: registry.example/plain:1
grace: 1s
roles: {worker: {count: 2, cpus: 0.5, memory: 64Mi}}
"""

BOARD = "-tensorboard"
TRIES = 60
"""A kubelet gives no pod up where the API server is away, as one that starts again on a busy machine: two minutes."""

_numbers = itertools.count(1)


class PodShell(shells.Shell):
    """The shell of a user, and the cluster beside it, which lives on a thread of its own."""

    def __init__(
        self, folder: Path, api_server: apiserver.ApiServer, *, checkpoint_claim: bool = True, checkpoint_url: str = ""
    ) -> None:
        super().__init__(folder)
        self._claim = (
            f"""
            checkpoint_claim = "checkpoints"
            checkpoint_path = "{self.home.parent}/cluster/claims/checkpoints"  # tasks have no file system of their own
            """
            if checkpoint_claim
            else f'checkpoint_url = "{checkpoint_url}"'
        )
        self.api_server = api_server
        self.namespace = f"pods-{next(_numbers)}"
        (self.port,) = apiserver.free_ports(1)
        self.env["KUBECONFIG"] = str(api_server.kubeconfig(rights.SERVER))
        self.cluster: kubelet.RunningCluster
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="kubelet", daemon=True)

    def on_cluster(self, work: Coroutine[Any, Any, T]) -> T:
        """Do the work on the cluster's thread."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(280)

    def open(self) -> None:
        self._thread.start()
        self.on_cluster(self._open())
        self.configure()
        self.do("up", "--backend", "kubernetes", "--detach")

    async def _open(self) -> None:
        self._api = client.Client(conftest.access(self.api_server), tries=TRIES)
        self.cluster = kubelet.RunningCluster(self._api, self.namespace, self.home.parent / "cluster")
        await self.cluster.listen()
        await self.make_namespace()
        await self.add_nodes()
        self.cluster.open()

    async def make_namespace(self) -> None:
        """Make the namespace of the jobs, with the server's rights in it, as `kubectl apply -k` does."""
        await self._api.create("/api/v1/namespaces", {"metadata": {"name": self.namespace}}, objects.Bare)
        await rights.grant(self._api, self.namespace)
        await self.cluster.claim("checkpoints")

    async def add_nodes(self) -> None:
        await self.cluster.add("n1")
        await self.cluster.add("n2")

    def configure(self, more: str = "") -> None:
        self.home.mkdir(exist_ok=True)
        (self.home / "config.toml").write_text(
            f"""
            [server]
            port = {self.port}

            [kubernetes]
            namespace = "{self.namespace}"
            server = "http://127.0.0.1:{self.port}"
            image = "registry.example/oarlock:1"
            nodes = {{"example.com/test" = "{self.namespace}"}}
            {self._claim}
            {more}

            [kubernetes.images]
            torch = "registry.example/torch:1"
            tensorboard = "registry.example/tensorboard:1"

            [kubernetes.node_classes.huge]
            cpus = 64
            memory = "256Gi"
            max = 2

            [kubernetes.profiles.dedicated]
            pools = ["dedicated"]
            tolerate = ["team=ours"]
            node_labels = {{"example.com/disk" = "ssd"}}

            [kubernetes.profiles.meshed]
            pools = ["meshed"]
            labels = {{"example.com/mesh" = "on"}}

            [[kubernetes.profiles.meshed.containers]]
            name = "proxy"
            image = "registry.example/proxy:1"
            command = ["sh", "-c", "while :; do sleep 0.1; done"]
            """
        )

    async def make_volume(self, name: str, spec: dict[str, Any]) -> None:
        """Make a volume that is bound to its claim. No controller looks at it; it goes with the API server."""
        path, body = "/api/v1/persistentvolumes", {"metadata": {"name": f"{self.namespace}-{name}"}, "spec": spec}
        await self._api.create(path, body, objects.Bare)
        await self._api.patch(f"{path}/{self.namespace}-{name}/status", {"status": {"phase": "Bound"}}, objects.Bare)

    def pods(self) -> list[objects.Pod]:
        return self.on_cluster(self._api.list(self.cluster.path("pods"), objects.Pod))

    def secrets(self) -> list[objects.Bare]:
        return self.on_cluster(self._api.list(self.cluster.path("secrets"), objects.Bare))

    def pod_names(self) -> list[str]:
        return [pod.metadata.name for pod in self.pods()]

    def raw(self, plural: str) -> list[dict[str, Any]]:
        """Return the objects of the namespace with all their fields."""
        return self.on_cluster(self._api.list(self.cluster.path(plural), dict))

    def missing(self, name: str) -> list[str]:
        """Return the missing nodes that the Events of the job name."""
        found = self.on_cluster(self._api.get(self.cluster.path("events"), dict[str, Any]))["items"]
        job = self.job(name)["id"]
        theirs = (one for one in found if one["involvedObject"]["name"] == job)
        return [one["metadata"]["annotations"][noderequests.MISSING] for one in theirs]

    def starts(self, name: str) -> int:
        """Return how many pods of the job have started."""
        prefix = self.job(name)["id"]
        return sum(count for pod, count in self.cluster.starts.items() if pod.startswith(prefix))

    def processes(self, name: str) -> list[int]:
        """Return the processes of the job, with those that its tasks started."""
        mark = f"OARLOCK_JOB={self.job(name)['id']}".encode()
        found = []
        for place in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if mark in (place / "environ").read_bytes().split(b"\0"):
                    found.append(int(place.name))
        return found

    def uid(self, name: str, role: str, index: int) -> str:
        """Return the UID of the pod of a task of the present attempt."""
        job = self.job(name)
        mine = labels.pod_name(attempts.TaskKey(job["id"], job["attempts"][-1]["number"], role, index, 1))
        (found,) = (pod.metadata.uid for pod in self.pods() if pod.metadata.name == mine)
        return found

    def delete_pod(self, name: str, role: str, index: int) -> None:
        """Delete the task's pod, as `kubectl delete pod` does."""
        job = self.job(name)
        key = attempts.TaskKey(job["id"], job["attempts"][-1]["number"], role, index, 1)
        mine = labels.pod_name(key)
        self.on_cluster(self._api.delete(f"{self.cluster.path('pods')}/{mine}"))

    def bind(self, pod: str, node: str) -> None:
        """Bind a pod, as the stock scheduler does."""
        path = f"{self.cluster.path('pods')}/{pod}"
        uid = self.on_cluster(self._api.get(path, objects.Pod)).metadata.uid
        self.on_cluster(self._api.bind(self.namespace, pod, uid, self.cluster.node(node)))

    def bind_steered(self, name: str) -> list[str]:
        """Bind the pods of the job that are made for the stock scheduler, each to its node; return those on a node."""
        job, bound = self.job(name)["id"], []
        for pod in self.raw("pods"):
            meta, spec = pod["metadata"], pod["spec"]
            if meta["labels"].get(labels.JOB) != job or "affinity" not in spec:
                continue
            if not spec.get("nodeName"):
                required = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
                (term,) = required["nodeSelectorTerms"]
                (node,) = term["matchFields"][0]["values"]
                self.on_cluster(self._api.bind(self.namespace, meta["name"], meta["uid"], node))
            bound.append(meta["name"])
        return bound

    def has_board(self, name: str) -> str:
        """The job has a TensorBoard, which is whole. Return the name of its Secret, the last one to be made."""
        secret = f"{self.job(name)['id']}-1{BOARD}"
        self.until(lambda: secret in [one.metadata.name for one in self.secrets()], "the Secret of TensorBoard")
        return secret

    def planned(self, file: str) -> list[dict[str, Any]]:
        """Return the objects that `oarlock plan` prints."""
        return list(yaml.safe_load_all(self.do("plan", file, "--backend", "kubernetes", "-o", "yaml").stdout))

    def is_as_planned(self, name: str, planned: list[dict[str, Any]]) -> None:
        """The launch of the job has made what the API server would have made of the planned objects, in each field,
        but for what nobody knows before: the id of the job, the UIDs of owners, the nodes, and the tokens.
        """
        job = self.job(name)
        made = {
            (kind, one["metadata"]["name"]): one
            for kind, path in {one["kind"]: _path(one) for one in planned}.items()
            for one in self.on_cluster(self._api.list(path, dict))
        }
        known = _known(planned, {key: one for key, one in made.items() if key[1].startswith(f"{job['id']}-1-")})
        known[outlook.PLANNED] = job["id"]
        if job["resource"] is not None:
            known[f'"{name}-planned"'] = f'"{job["resource"]["name"]}"'
            known[projecting.PLANNED_UID] = job["resource"]["uid"]
        for manifest in planned:
            answer = self.on_cluster(self._api.create(f"{_path(manifest)}?dryRun=All", manifest, dict))
            text = json.dumps(_readable(answer))
            for before, after in known.items():
                text = text.replace(before, after)
            there = _readable(made[manifest["kind"], json.loads(text)["metadata"]["name"]])
            told = json.loads(text.replace(launching.PLANNED_NODE, there.get("spec", {}).get("nodeName", "")))
            if "nodeName" not in told.get("spec", {}):  # it was bound later
                there.get("spec", {}).pop("nodeName", None)
            for one in (told, there):
                one["metadata"] = {field: one["metadata"].get(field) for field in _OURS}
                for field in ("status", "apiVersion", "kind"):  # a list does not repeat the last two
                    one.pop(field, None)
            lines = [json.dumps(one, indent=1, sort_keys=True).splitlines() for one in (told, there)]
            assert told == there, "\n".join(difflib.unified_diff(*lines, "planned", "made", lineterm=""))

    def until(self, holds: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + 240
        while not holds():
            assert time.monotonic() < deadline, f"waited for: {what}"
            time.sleep(0.1)

    def within(self, bound_s: float, what: str) -> contextlib.AbstractContextManager[None]:
        """Fail where the body takes longer, by a clock that is as slow as the machine."""
        return clocks.within(self._loop, self._ask, bound_s, what)

    async def _ask(self) -> None:
        with contextlib.suppress(errors.OarlockError):
            await self._api.get(f"/api/v1/namespaces/{self.namespace}", objects.Bare)

    def evidence(self) -> list[tuple[str, str]]:
        found = super().evidence()
        found.append(("the pods", "\n".join(_line(pod) for pod in self.pods())))
        found.append(("the failures of the kubelet", "\n".join(self.cluster.failures)))
        return found

    def close(self) -> None:
        self.end_server()
        self.on_cluster(self._close())
        self.on_cluster(_end_tasks())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60)
        self._loop.close()

    async def _close(self) -> None:
        await self.cluster.close()
        await self._api.close()


async def _end_tasks() -> None:
    """End what still runs on this event loop. Left behind, it would be told in the midst of another test."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for one in others:
        one.cancel()
    await asyncio.gather(*others, return_exceptions=True)


_OURS = ("name", "namespace", "labels", "annotations", "ownerReferences")
"""The metadata that we write."""


def _path(manifest: dict[str, Any]) -> str:
    group = manifest["apiVersion"]
    root = "/api/v1" if group == "v1" else f"/apis/{group}"
    return f"{root}/namespaces/{manifest['metadata']['namespace']}/{manifest['kind'].lower()}s"


Made = dict[tuple[str, str], dict[str, Any]]
"""Objects by their kind and name."""


def _known(planned: list[dict[str, Any]], made: Made) -> dict[str, str]:
    """Return what stands for the names, UIDs and digests of the planned objects in the objects that were made."""
    before = {(one["kind"], one["metadata"]["name"]): one for one in planned}
    (secret,), (planned_secret,) = ([key[1] for key in some if _is_of_tasks(key)] for some in (made, before))
    known = {planned_secret: secret}
    for one, other in zip(_boards(before), _boards(made), strict=True):
        known[tensorboards.PLANNED_UID] = other["metadata"]["uid"]
        known[one["metadata"]["annotations"][boards.CONTENT]] = other["metadata"]["annotations"][boards.CONTENT]
    return known


def _is_of_tasks(key: tuple[str, str]) -> bool:
    kind, name = key
    return kind == "Secret" and not name.endswith(BOARD)


def _boards(some: Made) -> list[dict[str, Any]]:
    return [one for (kind, name), one in some.items() if kind == "Pod" and name.endswith(BOARD)]


def _readable(found: dict[str, Any]) -> dict[str, Any]:
    """Return the object with its assignments as they are, but for their tokens."""
    data = {}
    for item, content in found.get("data", {}).items():
        data[item] = json.loads(base64.b64decode(content))
        assert data[item].pop("token")
    return {**found, **({"data": data} if data else {})}


def _line(pod: objects.Pod) -> str:
    going = ", is being deleted" if pod.metadata.deletion_timestamp else ""
    return f"{pod.metadata.name} on {pod.spec.node_name or 'no node'}: {pod.status.phase}{going}"


S = TypeVar("S", bound=PodShell)


class Clusters(Generic[S]):
    """The cluster that the tests of a file share. A test that fails may leave anything behind, so the next one gets a
    new cluster. After `MOST` failures the other tests fail at once: each would only wait until its time is over.
    """

    MOST = 4
    """One more than the failures that CI repeats (`.ci/run`): a test that was not tried is one more failure."""

    def __init__(self, opened: Callable[[], contextlib.AbstractContextManager[S]]) -> None:
        self._opened = opened
        self._stack = contextlib.ExitStack()
        self._shell: S | None = None
        self._failed: list[str] = []

    @contextlib.contextmanager
    def serving(self, test: pytest.Item) -> Iterator[S]:
        """Yield the cluster's shell for one test."""
        if len(self._failed) >= self.MOST:
            pytest.fail(f"not tried: {' and '.join(self._failed)} failed, each on a cluster of its own", pytrace=False)
        try:
            if self._shell is None:
                self._shell = self._stack.enter_context(self._opened())
            yield self._shell
        except pytest.skip.Exception:
            raise
        except BaseException:
            self._give_up(test)
            raise
        if test.stash.get(shells.FAILED, False):
            self._give_up(test)

    def _give_up(self, test: pytest.Item) -> None:
        self._failed.append(test.name)
        self._shell = None
        with contextlib.suppress(Exception):  # the test has told what is wrong
            self._stack.close()

    def close(self) -> None:
        self._stack.close()


@contextlib.contextmanager
def shared(opened: Callable[[], contextlib.AbstractContextManager[S]]) -> Iterator[Clusters[S]]:
    with contextlib.closing(Clusters(opened)) as clusters:
        yield clusters


@contextlib.contextmanager
def opened(
    folder: Path,
    api_server: apiserver.ApiServer,
    *,
    checkpoint_claim: bool = True,
    bucket: objectstores.Bucket | None = None,
) -> Iterator[PodShell]:
    """Open a shell of its own. With `bucket` the installation keeps checkpoints there, by the server's credentials."""
    url = f"{bucket.url}/kept" if bucket is not None else ""
    one = PodShell(folder, api_server, checkpoint_claim=checkpoint_claim and not url, checkpoint_url=url)
    try:
        one.env.update(bucket.env if bucket is not None else {})
        one.open()
        yield one
    finally:
        one.close()
    assert not one.cluster.failures

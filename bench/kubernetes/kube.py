"""Launches on Kubernetes: pods created and bound in a second, against a bare client with the stock scheduler.

A real API server with its etcd, 500 pretend nodes and no kubelet. The jobs wait behind a limit of their pool, so that
neither their submission nor the making of their OarlockJobs is measured. The figure is the time from the first pod
created to the last pod bound, as a watch of this process sees it. The bare side creates the same pods over the same
client, and the stock scheduler binds them (one gang: this process binds them too). Both sides run in turn, in
namespaces of their own.

The cluster has the definitions of `deploy/`, so that each job gets an OarlockJob, its status and its Events; the API
server must store custom objects. `kube-alone` measures the same without them.

KUBEBUILDER_ASSETS names the folder with kube-apiserver, etcd and kube-scheduler.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
from tests.backends.kubernetes.testcluster import apiserver

from bench import server as servers
from bench import table
from bench.pages import stage
from oarlock.api.customresources import definitions
from oarlock.backends import backends
from oarlock.backends.kubernetes import oarlockpools, projecting, site
from oarlock.backends.kubernetes.apiserver import client, credentials, objects
from oarlock.backends.kubernetes.pods import rendering
from oarlock.backends.kubernetes.projecting import PLURAL
from oarlock.spec import attempts, errors, holdings, resources
from oarlock.spec.protocol import assignments

AT_ONCE = 64
NODES, ROUNDS = (20, 1) if stage.SHORT else (500, 2)
CASES = (("2,000 jobs of one pod", 2000, 1), ("125 gangs of 16", 125, 16))
if stage.SHORT:
    CASES = (("40 jobs of one pod", 40, 1), ("4 gangs of 8", 4, 8))
GANG = 16 if stage.SHORT else 256
WATCHED_NODES, WATCHED_PODS = (30, 200) if stage.SHORT else (1000, 10_000)
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
IMAGE = "registry.example/train:1"
LABEL = "example.com/bench"
PATIENCE_S = 900.0
AMOUNT = holdings.Resources(cpus_milli=1000, memory_bytes=1 << 28)


def run(*, defined: bool = True) -> list[table.Row]:
    """Return the figures. `defined` says whether the cluster has the definitions of OarlockJob and OarlockPool."""
    folder = Path(tempfile.mkdtemp(prefix="oarlock-bench-"))
    try:
        with apiserver.running(folder / "api") as api_server, _scheduler(api_server):
            rows = asyncio.run(_measured(api_server, defined))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    how = "with OarlockJobs" if defined else "without OarlockJobs"
    named = rows if defined else [dataclasses.replace(row, what=f"{row.what}, {how}") for row in rows]
    return [dataclasses.replace(row, detail="; ".join(filter(None, (row.detail, how)))) for row in named]


def alone() -> list[table.Row]:
    """Return the figures without the definitions."""
    return run(defined=False)


@contextlib.contextmanager
def _scheduler(api_server: apiserver.ApiServer) -> Iterator[None]:
    """Run the stock scheduler, without the limits of its client."""
    with (api_server.folder / "kube-scheduler.log").open("wb") as log:
        process = subprocess.Popen(
            [
                str(apiserver.ASSETS / "kube-scheduler"),
                f"--kubeconfig={api_server.kubeconfig()}",
                "--leader-elect=false",
                "--kube-api-qps=5000",
                "--kube-api-burst=5000",
                "--secure-port=0",
                "--port=0",
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        yield
    finally:
        process.terminate()
        process.wait()


async def _measured(api_server: apiserver.ApiServer, defined: bool) -> list[table.Row]:
    environ = {"KUBECONFIG": str(api_server.kubeconfig())}
    access = credentials.find(environ, clock=time.time, monotonic=time.monotonic)
    async with client.Client(access, connections=AT_ONCE) as api:
        bench = Bench(api_server, api, defined)
        await bench.define()
        await bench.add_nodes(NODES)
        rows: list[table.Row] = []
        for name, jobs, size in CASES:
            ours, bare = [], []
            for _ in range(ROUNDS):
                bare.append(jobs * size / await bench.bare(jobs * size, by_hand=False))
                ours.append(jobs * size / await bench.launched(jobs, size))
            detail = f"{table.spread(ours, 'pods/s')}; bare client and stock scheduler {table.spread(bare, 'pods/s')}"
            ratio = table.median([our / other for our, other in zip(ours, bare, strict=True)])
            rows += [
                table.Row("kube", f"pods bound, {name}", table.median(ours), "pods/s", detail=detail),
                table.Row("kube", f"against the stock scheduler, {name}", ratio, "x", 1.0, at_least=True),
            ]
        ours, bare = [], []
        for _ in range(4 * ROUNDS):
            bare.append(await bench.bare(GANG, by_hand=True))
            ours.append(await bench.submitted(GANG))
        detail = f"{table.spread(ours)}; bare loop {table.spread(bare)}"
        ratio = table.median([our / other for our, other in zip(ours, bare, strict=True)])
        what = f"one gang of {GANG}, submitted to all bound, against a bare loop"
        rows.append(table.Row("kube", what, ratio, "x", 1.5, detail=detail))
        return [*rows, await bench.memory()]


class Bench:
    """One API server. Each measurement has a namespace of its own, and leaves no pods."""

    def __init__(self, api_server: apiserver.ApiServer, api: client.Client, defined: bool) -> None:
        self._api_server = api_server
        self._api = api
        self._defined = defined
        self._number = 0

    async def define(self) -> None:
        """Install the definitions, if this bench has them, and return once they are served."""
        if not self._defined:
            return
        for one, plural in ((definitions.definition(), PLURAL), (definitions.pool_definition(), oarlockpools.PLURAL)):
            await self._api.create(DEFINITIONS, one, objects.Bare)
            deadline = time.monotonic() + PATIENCE_S
            while not await projecting.defined(self._api, plural):
                if time.monotonic() > deadline:
                    raise RuntimeError(f"{plural} are not served")
                await asyncio.sleep(0.1)

    async def add_nodes(self, count: int, first: int = 0) -> None:
        capacity = {"cpu": "64", "memory": "256Gi", "pods": "110"}
        status = {
            "capacity": capacity,
            "allocatable": capacity,
            "conditions": [{"type": "Ready", "status": "True", "reason": "Pretended"}],
        }

        async def add(number: int) -> None:
            body = {"metadata": {"name": f"node-{number:04}", "labels": {LABEL: "yes"}}}
            await self._api.create("/api/v1/nodes", body, objects.Bare)
            await self._api.patch(f"/api/v1/nodes/node-{number:04}/status", {"status": status}, objects.Bare)
            # The API server adds the taint `not-ready`, and no controller removes it here.
            await self._api.patch(f"/api/v1/nodes/node-{number:04}", {"spec": {"taints": None}}, objects.Bare)

        await _side_by_side(add, range(first, count))

    async def bare(self, count: int, *, by_hand: bool) -> float:
        """Create pods as Oarlock makes them; return the seconds until all are bound."""
        namespace = await self._namespace()
        path = f"/api/v1/namespaces/{namespace}/pods"

        async def make(number: int) -> None:
            manifest = _manifest(number, namespace)
            if not by_hand:
                manifest["spec"]["schedulerName"] = "default-scheduler"
            made = await self._api.create(path, manifest, objects.Pod)
            if by_hand:
                await self._api.bind(namespace, made.metadata.name, made.metadata.uid, f"node-{number % NODES:04}")

        async with self._watched(namespace, count) as bound:
            began = time.perf_counter()
            await _side_by_side(make, range(count))
            first, last = await bound
        await self._clear(namespace)
        return last - (began if by_hand else first)

    async def launched(self, jobs: int, size: int) -> float:
        """Let Oarlock launch jobs that wait behind a limit; return the seconds from the first pod to all bound."""
        async with self._server() as (server, namespace):
            await asyncio.to_thread(server.run, "pool", "set", "default", "--limit", f"cpus={size}")
            await self._submit(server, 1, size, "first")
            await self._bound(namespace, size)
            await self._submit(server, jobs, size, "measured")
            await self._told(namespace, jobs + 1)
            async with self._watched(namespace, jobs * size) as bound:
                await asyncio.to_thread(server.run, "pool", "set", "default", "--limit", "cpus=1000000")
                first, last = await bound
            return last - first

    async def submitted(self, size: int) -> float:
        """Submit one gang; return the seconds until all of its pods are bound."""
        async with self._server() as (server, namespace), self._watched(namespace, size) as bound:
            began = time.perf_counter()
            await self._submit(server, 1, size, "gang")
            _, last = await bound
            return last - began

    async def memory(self) -> table.Row:
        """Return the memory of a server with 2,000 pods of its own, on a cluster with as many others as is measured."""
        await self.add_nodes(WATCHED_NODES, first=NODES)
        others = await self._namespace()
        own = CASES[0][1]

        async def make(number: int) -> None:
            manifest = _manifest(number, others)
            manifest["spec"]["nodeName"] = f"node-{number % WATCHED_NODES:04}"
            await self._api.create(f"/api/v1/namespaces/{others}/pods", manifest, objects.Bare)

        await _side_by_side(make, range(WATCHED_PODS - own))
        async with self._server() as (server, namespace), self._watched(namespace, own) as bound:
            await self._submit(server, own, 1, "own")
            await bound
            await asyncio.sleep(5)
            said = Path(f"/proc/{server.pid}/status").read_text()
            now, most = (int(said.partition(f"{name}:")[2].split()[0]) / 1024 for name in ("VmRSS", "VmHWM"))
        await self._clear(others)
        what = f"memory of the server, {WATCHED_NODES:,} nodes and {WATCHED_PODS:,} pods watched"
        return table.Row("kube", what, now, "MB", 300, detail=f"{own:,} of them its own; at most {most:.0f} MB before")

    @contextlib.asynccontextmanager
    async def _server(self) -> AsyncIterator[tuple[servers.Server, str]]:
        """Run a fresh server of a fresh home, over a namespace of its own."""
        namespace = await self._namespace()
        home = Path(tempfile.mkdtemp(prefix="oarlock-bench-"))
        (port,) = apiserver.free_ports(1)
        (home / "config.toml").write_text(
            f"""
            [server]
            port = {port}
            [kubernetes]
            namespace = "{namespace}"
            server = "http://127.0.0.1:{port}"
            image = "registry.example/oarlock:1"
            nodes = {{"{LABEL}" = "yes"}}
            """
        )
        server = servers.Server(home)
        server.env["KUBECONFIG"] = str(self._api_server.kubeconfig())
        kubelet = asyncio.create_task(self._reach(namespace))
        try:
            await asyncio.to_thread(server.start, "--backend", "kubernetes")
            kubelet.cancel()
            yield server, namespace
        finally:
            kubelet.cancel()
            await asyncio.to_thread(server.run, "down", check=False)
            shutil.rmtree(home, ignore_errors=True)
            await self._clear(namespace)

    async def _reach(self, namespace: str) -> None:
        """Let the pod succeed by which a server that starts tries whether pods reach it."""
        path = f"/api/v1/namespaces/{namespace}/pods"
        while True:
            for pod in await self._api.list(path, objects.Pod):
                if pod.spec.node_name and pod.status.phase != "Succeeded":
                    with contextlib.suppress(errors.NotFound):
                        status = {"status": {"phase": "Succeeded"}}
                        await self._api.patch(f"{path}/{pod.metadata.name}/status", status, objects.Bare)
            await asyncio.sleep(0.1)

    async def _submit(self, server: servers.Server, jobs: int, size: int, key: str) -> None:
        roles = {"worker": {"count": size, "cpus": 1, "memory": "256Mi"}}
        body = {"spec": {"command": "sleep 1000", "framework": "plain", "image": IMAGE, "roles": roles}}
        async with server.async_client(16) as api:

            async def one(number: int) -> None:
                answer = await api.post("/jobs", json=body, headers={"Idempotency-Key": f"{key}-{number}"})
                answer.raise_for_status()

            await _side_by_side(one, range(jobs), 16)

    async def _namespace(self) -> str:
        self._number += 1
        name = f"bench-{self._number}"
        await self._api.create("/api/v1/namespaces", {"metadata": {"name": name}}, objects.Bare)
        return name

    async def _bound(self, namespace: str, count: int) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            there = await self._api.list(f"/api/v1/namespaces/{namespace}/pods", objects.Pod)
            if sum(bool(pod.spec.node_name) for pod in there) >= count:
                return
            if time.monotonic() > deadline:
                raise RuntimeError(f"{len(there)} pods after {PATIENCE_S:.0f} s, {count} expected")
            await asyncio.sleep(0.2)

    async def _told(self, namespace: str, jobs: int) -> None:
        """Return once so many jobs have an OarlockJob that tells their phase."""
        path = f"{resources.API}/namespaces/{namespace}/{PLURAL}"
        deadline = time.monotonic() + PATIENCE_S
        while self._defined:
            there = await self._api.list(path, resources.OarlockJob)
            if sum(bool(one.told().phase) for one in there) >= jobs:
                return
            if time.monotonic() > deadline:
                raise RuntimeError(f"{len(there)} OarlockJobs after {PATIENCE_S:.0f} s, {jobs} expected")
            await asyncio.sleep(0.5)

    @contextlib.asynccontextmanager
    async def _watched(self, namespace: str, count: int) -> AsyncIterator[asyncio.Task[tuple[float, float]]]:
        """Yield a task that returns when the first of `count` pods was created, and when the last was bound."""
        path = f"/api/v1/namespaces/{namespace}/pods"
        version = (await anext(self._api.pages(path, objects.Bare))).metadata.resource_version

        async def follow() -> tuple[float, float]:
            first, bound = 0.0, set()
            lines = self._api.lines(path, {"watch": "true", "resourceVersion": version, "timeoutSeconds": 3600})
            async with contextlib.aclosing(lines), asyncio.timeout(PATIENCE_S):
                async for line in lines:
                    event = msgspec.json.decode(line, type=_Event)
                    first = first or time.perf_counter()
                    if event.object.spec.node_name:
                        bound.add(event.object.metadata.uid)
                    if len(bound) == count:
                        return first, time.perf_counter()
            raise RuntimeError(f"the watch ended with {len(bound)} of {count} pods bound")

        task = asyncio.create_task(follow())
        try:
            yield task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _clear(self, namespace: str) -> None:
        """Delete what was made there. There is no kubelet that would confirm the end of pods."""
        made = [f"/api/v1/namespaces/{namespace}/pods"]
        if self._defined:
            made += [f"{resources.API}/namespaces/{namespace}/{PLURAL}", oarlockpools.PATH]
        for path in made:
            while await self._api.list(path, objects.Bare):
                await self._api.delete_all(path, {"gracePeriodSeconds": 0})


class _Event(msgspec.Struct):
    object: objects.Pod


async def _side_by_side(work: Callable[[Any], Awaitable[object]], items: Any, limit: int = AT_ONCE) -> None:
    gate = asyncio.Semaphore(limit)

    async def one(item: Any) -> None:
        async with gate:
            await work(item)

    await asyncio.gather(*[one(item) for item in items])


def _manifest(number: int, namespace: str) -> dict[str, Any]:
    key = attempts.TaskKey(f"j-bench-{number}", 1, "worker", 0, 1)
    told = assignments.Assignment(key=str(key), server="http://10.0.0.1:7317", token="t", command="sleep 1000")
    held = holdings.Holding(job=key.job, attempt=1, role="worker", index=0, node="", amount=AMOUNT)
    launch = backends.TaskLaunch(
        key=key, assignment=told, holding=held, limit=AMOUNT, container=backends.Container(image=IMAGE)
    )
    return rendering.pod(launch, site.Site(namespace=namespace, installation="bench", image=IMAGE), "none")


if __name__ == "__main__":
    os.environ.setdefault("KUBEBUILDER_ASSETS", str(apiserver.ASSETS))
    for row in run():
        print(row.cells())

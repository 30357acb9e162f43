"""Mode `steer` and claims without a volume: the stock kube-scheduler binds the pods, on the nodes of the plan."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any

import msgspec
import pytest
from tests.backends import contract
from tests.backends.kubernetes import conftest
from tests.backends.kubernetes.test_backend import KubernetesRig
from tests.backends.kubernetes.testcluster import apiserver, cluster, rights

from oarlock.backends import backends
from oarlock.backends.kubernetes import backend, site, steering
from oarlock.backends.kubernetes.apiserver import client, objects
from oarlock.backends.kubernetes.pods import labels, podstates, rendering
from oarlock.spec import errors, jobfile
from oarlock.spec.reconciling import observations

pytestmark = [apiserver.needed, apiserver.scheduled]
key = contract.key
PATIENT_S = KubernetesRig.PATIENCE_S
"""The time that a launch has here: one that the scheduler never binds tells why before the test's own time is over."""
STORAGE = "/apis/storage.k8s.io/v1/storageclasses"


class SteeredRig(KubernetesRig):
    """A rig whose server lets the stock scheduler bind, if `mode` says so. The time for that is over when a test says
    so, unless the scheduler takes very long.
    """

    mode = site.Mode.STEER
    ahead_s = 0.0

    def open(self, **fields: Any) -> backend.KubernetesBackend:
        """Return another server, whose settings have these fields."""
        api = client.Client(conftest.access(self.server, rights.SERVER))
        told = msgspec.structs.replace(self.cluster.site, mode=self.mode, **fields)
        opened = backend.KubernetesBackend(
            api, told, clock=time.time, monotonic=lambda: time.monotonic() + self.ahead_s
        )
        opened.open()
        self.opened.append(opened)
        return opened

    async def launched_in_vain(
        self, launches: Sequence[backends.TaskLaunch], *, when: Callable[[objects.Pod], object]
    ) -> errors.Unavailable:
        """Return the error of a launch whose time is over once this holds of each pod that the server sees."""
        launching = asyncio.create_task(self.backend.launch(launches))

        def holds() -> bool:
            there = [self.backend._own.by_key.get(one.key) for one in launches]
            return launching.done() or all(pod is not None and when(pod) for pod in there)

        await self.cluster.until(holds, "the scheduler has spoken", self.PATIENCE_S)
        self.ahead_s += PATIENT_S
        with pytest.raises(errors.Unavailable) as raised:
            await launching
        return raised.value

    async def pod(self, index: int = 0) -> dict[str, Any]:
        path = f"{self.cluster.path('pods')}/{labels.pod_name(key(index))}"
        return await self.cluster.api.get(path, dict[str, Any])

    async def nothing_is_left(self) -> None:
        """End what was made, as the guardian does after a failed launch."""
        await contract.kill_and_see(self, *await contract.seen(self))
        await self.backend.discard(key().job, key().attempt)
        deadline = time.monotonic() + self.PATIENCE_S
        while await self.cluster.api.list(self.cluster.path("pods"), objects.Bare):
            assert time.monotonic() < deadline, "pods are left"
            await asyncio.sleep(0.05)


def is_decided(pod: objects.Pod) -> bool:
    """Return whether the scheduler has bound the pod, or has said why not."""
    return bool(pod.spec.node_name or podstates.unscheduled(pod))


class BindingRig(SteeredRig):
    mode = site.Mode.BIND


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steering, "BOUND_S", PATIENT_S)


@pytest.fixture(scope="module")
def scheduler(api_server: apiserver.ApiServer) -> Iterator[None]:
    api_server.start_scheduler()
    yield
    api_server.stop("kube-scheduler")


@contextlib.asynccontextmanager
async def opened(
    kind: type[SteeredRig], api_server: apiserver.ApiServer, api: client.Client, namespace: str
) -> AsyncIterator[SteeredRig]:
    api_server.check("kube-scheduler")
    pretended = cluster.Cluster(api, namespace)
    for name in ("n1", "n2"):
        await pretended.add(name)
        # The API server adds the taint `not-ready`, and no controller removes it here.
        await api.patch(f"/api/v1/nodes/{pretended.node(name)}", {"spec": {"taints": None}}, objects.Bare)
    pretended.open()
    made = kind(api_server, pretended)
    try:
        yield made
    finally:
        await made.close()
        api_server.check("kube-scheduler")


@pytest.fixture
async def rig(
    api_server: apiserver.ApiServer, api: client.Client, namespace: str, scheduler: None
) -> AsyncIterator[SteeredRig]:
    async with opened(SteeredRig, api_server, api, namespace) as made:
        yield made


@pytest.fixture
async def binding(
    api_server: apiserver.ApiServer, api: client.Client, namespace: str, scheduler: None
) -> AsyncIterator[SteeredRig]:
    async with opened(BindingRig, api_server, api, namespace) as made:
        yield made


class TestSteered(contract.Contract):
    """The same contract as in mode `bind`. The fixture `rig` is this module's."""


async def test_the_stock_scheduler_binds_each_pod_to_the_node_of_the_plan(rig: SteeredRig) -> None:
    await rig.backend.launch(
        [rig.launch_of(key(index), cluster.Play(), node=f"n{1 + index % 2}") for index in range(6)]
    )
    for index in range(6):
        pod = await rig.pod(index)
        assert pod["spec"]["schedulerName"] == "default-scheduler"
        assert pod["spec"]["nodeName"] == rig.cluster.node(f"n{1 + index % 2}")
        assert await rig.starts(key(index)) == 1


async def test_a_gang_that_is_not_bound_as_a_whole_is_removed_with_the_schedulers_reason(rig: SteeredRig) -> None:
    """One of its nodes keeps it away by a rule that only the scheduler knows."""
    away = {
        "labelSelector": {"matchLabels": {labels.MANAGED_BY: "oarlock"}},
        "topologyKey": "example.com/host",
        "namespaces": [rig.cluster.namespace],
    }
    host = {"metadata": {"labels": {"example.com/host": rig.cluster.node("n2")}}}
    await rig.cluster.api.patch(f"/api/v1/nodes/{rig.cluster.node('n2')}", host, objects.Bare)
    foreign = {
        "metadata": {"name": "alone"},
        "spec": {
            "nodeName": rig.cluster.node("n2"),
            "containers": [{"name": "c", "image": "none"}],
            "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [away]}},
        },
    }
    path = rig.cluster.path("pods")
    await rig.cluster.api.create(path, foreign, objects.Pod)
    launches = [rig.launch_of(key(index), cluster.Play(), node=f"n{1 + index}") for index in range(2)]
    said = (await rig.launched_in_vain(launches, when=is_decided)).message
    assert "the scheduler default-scheduler did not bind 1 of 2 pods in time: " in said
    assert "nodes are available" in said
    waiting = (await contract.seen(rig))[key(1)]
    assert waiting.state is observations.State.RUNNING
    assert waiting.detail.startswith("no scheduler has bound its pod yet: ")
    await rig.cluster.api.delete(f"{path}/alone", grace_s=0)
    await rig.nothing_is_left()


async def test_a_launch_that_has_little_time_gives_up_before_its_end(
    rig: SteeredRig, api_server: apiserver.ApiServer
) -> None:
    """So that it can tell why: here the scheduler stands still."""
    launch = rig.launch_of(key(), cluster.Play())
    api_server.pause("kube-scheduler")
    try:
        with pytest.raises(errors.Unavailable, match="it has said nothing about them"):
            await rig.backend.launch([launch], within_s=steering.REASON_S)
    finally:
        api_server.resume("kube-scheduler")
    await rig.nothing_is_left()


async def test_a_pod_with_a_claim_without_a_volume_is_bound_by_the_stock_scheduler(binding: SteeredRig) -> None:
    """Its volume is made once the scheduler has chosen the node: bound by us, the pod would wait for ever."""
    name = f"late-{binding.cluster.namespace}"
    late = {
        "metadata": {"name": name},
        "provisioner": "example.com/disks",
        "volumeBindingMode": "WaitForFirstConsumer",
    }
    await binding.cluster.api.create(STORAGE, late, objects.Bare)
    await binding.cluster.claim("scratch", "Pending", storageClassName=name)
    volumes = (jobfile.Volume(claim="scratch", mount="/scratch"),)
    launching = asyncio.create_task(
        binding.backend.launch([binding.launch_of(key(), cluster.Play(), node="n2", volumes=volumes)])
    )
    assert await provision(binding, "scratch", name) == binding.cluster.node("n2"), "the node of the plan"
    await launching
    pod = await binding.pod()
    assert pod["spec"]["schedulerName"] == "default-scheduler"
    assert pod["spec"]["nodeName"] == binding.cluster.node("n2")
    await binding.reopen()
    await binding.backend.launch([binding.launch_of(key(), cluster.Play(), node="n2", volumes=volumes)])
    second = binding.launch_of(key(1), cluster.Play(), node="n2", volumes=volumes)
    await binding.backend.launch([second])
    assert (await binding.pod(1))["spec"]["schedulerName"] == rendering.SCHEDULER, "its claim has a volume now"


async def provision(rig: SteeredRig, claim: str, kind: str) -> str:
    """Make the claim's volume once the scheduler has chosen a node, and return that node."""
    api, path = rig.cluster.api, f"{rig.cluster.path('persistentvolumeclaims')}/{claim}"
    deadline = time.monotonic() + rig.PATIENCE_S
    while True:
        found = await api.get(path, dict[str, Any])
        node = str(found["metadata"].get("annotations", {}).get("volume.kubernetes.io/selected-node", ""))
        if node:
            break
        assert time.monotonic() < deadline, "no scheduler has chosen a node"
        await asyncio.sleep(0.05)
    volume = f"{rig.cluster.namespace}-{claim}"
    spec = {
        "accessModes": ["ReadWriteMany"],
        "capacity": {"storage": "1Gi"},
        "storageClassName": kind,
        "hostPath": {"path": "/none"},
        "claimRef": {
            "kind": "PersistentVolumeClaim",
            "apiVersion": "v1",
            "namespace": rig.cluster.namespace,
            "name": claim,
            "uid": found["metadata"]["uid"],
        },
    }
    await api.create("/api/v1/persistentvolumes", {"metadata": {"name": volume}, "spec": spec}, objects.Bare)
    done = {"pv.kubernetes.io/bind-completed": "yes", "pv.kubernetes.io/bound-by-controller": "yes"}
    await api.patch(path, {"metadata": {"annotations": done}, "spec": {"volumeName": volume}}, objects.Bare)
    await api.patch(f"{path}/status", {"status": {"phase": "Bound"}}, objects.Bare)
    return node


async def test_a_volume_of_one_node_is_mounted_there_alone(binding: SteeredRig) -> None:
    """A disk of one node or zone: bound by us to another node, the pod would wait for it until its time is over."""
    await disk(binding, "disk", "n1")
    volumes = (jobfile.Volume(claim="disk", mount="/disk"),)
    deadline = time.monotonic() + binding.PATIENCE_S
    while {node.name: node.lacks for node in await binding.backend.nodes() if node.lacks} != {
        binding.cluster.node("n2"): ("disk",)
    }:
        assert time.monotonic() < deadline, "the plan knows of the volume"
        await asyncio.sleep(0.05)
    launches = [binding.launch_of(key(), cluster.Play(), node="n2", volumes=volumes)]
    assert "volume node affinity conflict" in (await binding.launched_in_vain(launches, when=is_decided)).message
    await binding.nothing_is_left()
    await binding.backend.launch([binding.launch_of(key(), cluster.Play(), node="n1", volumes=volumes)])
    assert (await binding.pod())["spec"]["nodeName"] == binding.cluster.node("n1")


async def disk(rig: SteeredRig, claim: str, node: str) -> None:
    """Make a claim that has a volume of this node already."""
    api, path = rig.cluster.api, f"{rig.cluster.path('persistentvolumeclaims')}/{claim}"
    there, volume = {"example.com/host": rig.cluster.node(node)}, f"{rig.cluster.namespace}-{claim}"
    await api.patch(f"/api/v1/nodes/{rig.cluster.node(node)}", {"metadata": {"labels": there}}, objects.Bare)
    await rig.cluster.claim(claim, accessModes=["ReadWriteOnce"], volumeName=volume, storageClassName="disks")
    uid = (await api.get(path, objects.Bare)).metadata.uid
    term = {"key": "example.com/host", "operator": "In", "values": list(there.values())}
    spec = {
        "accessModes": ["ReadWriteOnce"],
        "capacity": {"storage": "1Gi"},
        "storageClassName": "disks",
        "hostPath": {"path": "/none"},
        "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [term]}]}},
        "claimRef": {
            "kind": "PersistentVolumeClaim",
            "apiVersion": "v1",
            "namespace": rig.cluster.namespace,
            "name": claim,
            "uid": uid,
        },
    }
    volumes = "/api/v1/persistentvolumes"
    await api.create(volumes, {"metadata": {"name": volume}, "spec": spec}, objects.Bare)
    await api.patch(f"{volumes}/{volume}/status", {"status": {"phase": "Bound"}}, objects.Bare)  # else by a controller
    done = {"pv.kubernetes.io/bind-completed": "yes", "pv.kubernetes.io/bound-by-controller": "yes"}
    await api.patch(path, {"metadata": {"annotations": done}}, objects.Bare)


async def test_a_claim_that_is_not_there_fails_the_launch_at_once(binding: SteeredRig) -> None:
    volumes = (jobfile.Volume(claim="absent", mount="/data"),)
    with pytest.raises(errors.Unavailable, match=f"no claim absent in the namespace {binding.cluster.namespace}"):
        await binding.backend.launch([binding.launch_of(key(), cluster.Play(), volumes=volumes)])
    assert not await binding.cluster.api.list(binding.cluster.path("pods"), objects.Bare)


async def test_without_a_scheduler_the_reason_says_so(api_server: apiserver.ApiServer, rig: SteeredRig) -> None:
    api_server.stop("kube-scheduler")
    try:
        error = await rig.launched_in_vain([rig.launch_of(key(), cluster.Play())], when=lambda pod: True)
        assert "did not bind 1 of 1 pods in time: it has said nothing" in error.message
    finally:
        api_server.start_scheduler()
    await rig.nothing_is_left()


async def test_extended_resources_of_a_profile_are_counted_by_the_stock_scheduler(binding: SteeredRig) -> None:
    """Each node has one, and the server counts none. A node that gave its one away is closed to such gangs for now."""
    nic = {"example.com/nic": "1"}
    for name in ("n1", "n2"):
        path = f"/api/v1/nodes/{binding.cluster.node(name)}/status"
        await binding.cluster.api.patch(path, {"status": {"capacity": nic, "allocatable": nic}}, objects.Bare)
    one = binding.backend = binding.open(profiles={"fabric": site.Profile(resources={"example.com/nic": 1})})

    async def closed() -> set[str]:
        return {node.name for node in await one.nodes() if node.lacks or node.barred}

    while await closed():  # its watch has yet to tell of the new amounts; the test's time limit bounds it
        await binding.pass_time()
    await one.launch([binding.launch_of(key(0), cluster.Play())])
    assert (await binding.pod(0))["spec"]["schedulerName"] == "default-scheduler"
    error = await binding.launched_in_vain([binding.launch_of(key(1), cluster.Play())], when=is_decided)
    assert "Insufficient example.com/nic" in error.message
    assert await closed() == {binding.cluster.node("n1")}
    await one.launch([binding.launch_of(key(2), cluster.Play(), node="n2")])
    await binding.nothing_is_left()

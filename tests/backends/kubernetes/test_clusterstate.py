"""Nodes as the scheduler reads them, and the part of them that pods of others take."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

import msgspec
import pytest
from tests.backends.kubernetes.testcluster import apiserver, cluster

from oarlock.backends.kubernetes import clusterstate, site
from oarlock.backends.kubernetes.apiserver import client, objects
from oarlock.backends.kubernetes.pods import labels
from oarlock.spec import holdings
from oarlock.spec.cluster import profiles as spec_profiles
from oarlock.spec.cluster.nodes import Device, Node, Taint

GIB = 1 << 30
PRODUCT, MEMORY = "nvidia.com/gpu.product", "nvidia.com/gpu.memory"


def node(
    labelled: dict | None = None,
    taints: list | None = None,
    ready: str = "True",
    cordoned: bool = False,
    there: site.Site | None = None,
    **allocatable: str,
) -> Node | None:
    body = {
        "metadata": {"name": "n", "labels": labelled or {}},
        "spec": {"taints": taints or [], "unschedulable": cordoned},
        "status": {
            "allocatable": {"cpu": "7910m", "memory": "30Gi", **allocatable},
            "conditions": [{"type": "Ready", "status": ready, "message": "disk is full"}],
            "addresses": [{"type": "Hostname", "address": "n"}, {"type": "InternalIP", "address": "10.0.0.7"}],
        },
    }
    return clusterstate.node(msgspec.convert(body, objects.Node), there or site.Site())


def test_capacity_and_address() -> None:
    found = node()
    assert found is not None
    assert found.capacity == holdings.Resources(7910, 30 * GIB, 0)
    assert (found.ready, found.open, found.address, found.ports) == (True, True, "10.0.0.7", None)


def test_gpus_have_the_type_and_memory_of_the_labels() -> None:
    said = {PRODUCT: "NVIDIA-A100-SXM4-80GB", MEMORY: "81920"}
    found = node(said, **{"nvidia.com/gpu": "2"})
    assert found is not None
    assert found.devices == tuple(Device(index=index, type="a100", memory_bytes=80 * GIB) for index in (0, 1))


def test_the_resource_of_another_maker() -> None:
    other = site.Site(gpu_resource="amd.com/gpu", gpu_type="mi300x", gpu_product_label="", gpu_memory_label="")
    found = node(there=other, **{"amd.com/gpu": "1", "nvidia.com/gpu": "8"})
    assert found is not None
    assert [device.type for device in found.devices] == ["mi300x"]


def test_domains_and_class_come_from_labels() -> None:
    said = {
        "topology.kubernetes.io/zone": "z1",
        "nvidia.com/gpu.clique": "c.0",
        "example.com/rack": "r7",
        "node.kubernetes.io/instance-type": "p4d",
    }
    found = node(said, there=site.Site(domains={"rack": "example.com/rack"}))
    assert found is not None
    assert found.domains == {"zone": "z1", "nvlink": "c.0", "rack": "r7"}, "the levels without a setting stay"
    assert found.node_class == "p4d"
    found = node(said, there=site.Site(domains={"zone": "example.com/rack", "nvlink": ""}))
    assert found is not None
    assert found.domains == {"zone": "r7"}, "an empty label switches the level off"


@pytest.mark.parametrize(
    ("ready", "reason"), [("False", "not ready: disk is full"), ("Unknown", clusterstate.NODE_LOST)]
)
def test_a_node_that_is_not_ready_says_why(ready: str, reason: str) -> None:
    found = node(ready=ready, taints=[{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}])
    assert found is not None
    assert (found.ready, found.reason, found.taints) == (False, reason, ())


def test_taints_close_a_node_unless_they_are_tolerated() -> None:
    gpu = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
    other = {"key": "team", "value": "red", "effect": "NoExecute"}
    hint = {"key": "busy", "effect": "PreferNoSchedule"}
    found = node(taints=[gpu, hint])
    assert found is not None
    assert found.open
    closed = node(taints=[gpu, other])
    assert closed is not None
    assert (closed.open, closed.taints) == (False, (Taint(key="team", value="red", effect="NoExecute"),))


def test_a_taint_that_a_profile_tolerates_closes_a_node_to_the_other_gangs_alone() -> None:
    profiles = {
        "research": site.Profile(pools=("research",), tolerate=("team=red",), node_labels={"disk": "ssd"}),
    }
    there = site.Site(profiles=profiles)
    red, blue = ({"key": "team", "value": value, "effect": "NoSchedule"} for value in ("red", "blue"))
    found = node({"disk": "ssd", "os": "linux"}, taints=[red], there=there)
    assert found is not None
    assert found.labels == {"disk": "ssd"}, "only those that a profile names"
    assert found.open
    held = [spec_profiles.constraints(there.planned, pool, "ann") for pool in ("research", "web")]
    assert [found.admits(one) for one in held] == [True, False]
    plain = node(taints=[], there=there)
    assert plain is not None
    assert [plain.admits(one) for one in held] == [False, True]
    assert plain.barriers(held[0]) == ["no label disk=ssd"]
    closed = node({"disk": "ssd"}, taints=[red, blue], there=there)
    assert closed is not None
    assert not closed.open, "no profile tolerates the other taint"
    cordoned = node({"disk": "ssd"}, taints=[red], cordoned=True, there=there)
    assert cordoned is not None
    assert not cordoned.open


def test_a_node_without_an_extended_resource_is_closed_to_the_gangs_that_get_it() -> None:
    """Kubernetes writes 1000 as `1k`. A class says what its new nodes will have."""
    there = site.Site(profiles={"ib": site.Profile(pools=("research",), resources={"rdma/hca": 2})})
    with_it = [node(there=there, **{"rdma/hca": amount}) for amount in ("2", "1k")]
    without = [node(there=there), node(there=there, **{"rdma/hca": "1"})]
    held = spec_profiles.constraints(there.planned, "research", "ann")
    for one in with_it:
        assert one is not None
        assert one.admits(held)
    for one in without:
        assert one is not None
        assert one.barriers(held) == ["no rdma/hca=2"]
        assert one.admits(spec_profiles.constraints(there.planned, "default", "ann"))
    for amount, lacks in ((8, ()), (1, ("resources/rdma/hca=2",))):
        declared = site.NodeClass(cpus=8, memory="8Gi", max=2, resources={"rdma/hca": amount})
        assert declared.declared("big", there).model.lacks == lacks


def test_a_cordon_closes_a_node() -> None:
    found = node(cordoned=True)
    assert found is not None
    assert (found.ready, found.open) == (True, False)


def test_only_the_chosen_nodes_are_used() -> None:
    chosen = site.Site(nodes={"pool": "training"})
    assert node({"pool": "web"}, there=chosen) is None
    assert node({"pool": "training"}, there=chosen) is not None


def test_a_pod_needs_its_containers_or_its_largest_init_container() -> None:
    def container(cpu: str, gpu: str = "0", **more: str) -> dict:
        return {"resources": {"requests": {"cpu": cpu, "nvidia.com/gpu": gpu}}, **more}

    spec = {
        "containers": [container("1", "1"), container("500m")],
        "initContainers": [
            container("250m", restartPolicy="Always"),  # a native sidecar: beside all that follows
            container("2"),
        ],
        "overhead": {"cpu": "100m"},
    }
    found = clusterstate.needs(msgspec.convert(spec, objects.PodSpec), "nvidia.com/gpu")
    assert found == holdings.Resources(2350, 0, 1)


@contextlib.asynccontextmanager
async def followed(pretended: cluster.Cluster) -> AsyncIterator[clusterstate.ClusterState]:
    state = clusterstate.ClusterState(pretended.api, pretended.site, monotonic=time.monotonic)
    task = asyncio.create_task(state.run())
    try:
        await state.synced()
        yield state
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await pretended.close()


@apiserver.needed
async def test_it_follows_nodes_and_the_pods_of_others(api: client.Client, namespace: str) -> None:
    pretended = cluster.Cluster(api, namespace)
    await pretended.add("a", gpus=2)
    early = await pretended.foreign("early", "a", cpu="1500m", memory="1Gi")
    async with followed(pretended) as state:

        def taken(name: str = "a") -> holdings.Resources:
            found = state.node(pretended.node(name))
            return found.taken if found is not None else holdings.Resources()

        assert taken() == holdings.Resources(1500, GIB)
        await pretended.foreign("late", "a", **{"cpu": "1", cluster.GPU: "1"})
        await pretended.until(lambda: taken() == holdings.Resources(2500, GIB, 1), "the late pod counts")
        path = f"/api/v1/namespaces/default/pods/{early.metadata.name}"
        await api.patch(f"{path}/status", {"status": {"phase": "Succeeded"}}, objects.Bare)
        await pretended.until(lambda: taken() == holdings.Resources(1000, 0, 1), "an ended pod takes nothing")
        await pretended.add("b")
        await pretended.until(lambda: len(state.nodes()) == 2, "a new node")
        await pretended.cordon("b")
        await pretended.until(lambda: not state.nodes()[1].open, "the cordon")
        await pretended.lose("b")
        await pretended.until(lambda: state.trouble(pretended.node("b")) == clusterstate.NODE_LOST, "the loss")
        await pretended.remove("b")
        await pretended.until(lambda: len(state.nodes()) == 1, "the removal")
        for name in ("early", "late"):
            await api.delete(f"/api/v1/namespaces/default/pods/{namespace}-{name}", grace_s=0)


@apiserver.needed
async def test_a_pod_with_our_label_in_another_namespace_is_not_ours(api: client.Client, namespace: str) -> None:
    """Everybody may set a label: it must hide nothing from the sums."""
    pretended = cluster.Cluster(api, namespace)
    await pretended.add("a")
    spec = {
        "nodeName": pretended.node("a"),
        "containers": [{"name": "c", "image": "none", "resources": {"requests": {"cpu": "1"}}}],
    }
    for where in (namespace, "default"):
        meta = {"name": f"{namespace}-x", "labels": {labels.INSTALLATION: namespace}}
        await api.create(f"/api/v1/namespaces/{where}/pods", {"metadata": meta, "spec": spec}, objects.Pod)
    async with followed(pretended) as state:
        found = state.node(pretended.node("a"))
        assert found is not None
        assert found.taken == holdings.Resources(1000)
    await api.delete(f"/api/v1/namespaces/default/pods/{namespace}-x", grace_s=0)

"""Volumes that only some nodes can mount: which nodes that are, and what becomes of it in a plan."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.backends.kubernetes import test_races
from tests.backends.kubernetes.testcluster import inmemory

from oarlock.backends.kubernetes import site, steering, volumes
from oarlock.backends.kubernetes.apiserver import objects
from oarlock.spec import errors, jobfile
from oarlock.spec.cluster import nodes

HOST = "kubernetes.io/hostname"
ZONE = site.DOMAINS["zone"]
MIRROR = {"a": {HOST: "a", "zone": "1"}, "b": {HOST: "b", "zone": "1"}, "c": {HOST: "c", "zone": "2", "rank": "7"}}


def volume(claim: str, *terms: dict[str, Any], namespace: str = "ns", phase: str = "Bound") -> dict[str, Any]:
    return {
        "metadata": {"name": f"pv-{claim}", "uid": f"u-{claim}", "resourceVersion": "1"},
        "spec": {
            "claimRef": {"namespace": namespace, "name": claim},
            "nodeAffinity": {"required": {"nodeSelectorTerms": list(terms)}},
        },
        "status": {"phase": phase},
    }


def where(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


@pytest.mark.parametrize(
    ("terms", "selected"),
    [
        ([where(HOST, "In", "b")], "b"),
        ([where("zone", "In", "1", "3")], "ab"),
        ([where("zone", "NotIn", "1")], "c"),
        ([where("rank", "Exists")], "c"),
        ([where("rank", "DoesNotExist")], "ab"),
        ([where("rank", "Gt", "6")], "c"),
        ([where("rank", "Lt", "7")], ""),
        ([where(HOST, "In", "a"), where("zone", "In", "2")], "ac"),
        (
            [
                {
                    "matchExpressions": [
                        *where("zone", "In", "1")["matchExpressions"],
                        *where(HOST, "In", "b", "c")["matchExpressions"],
                    ]
                }
            ],
            "b",
        ),
        ([{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["c"]}]}], "c"),
        ([{}], ""),
    ],
)
def test_the_nodes_of_a_volume(terms: list[dict[str, Any]], selected: str) -> None:
    """Source: the node selectors of Kubernetes. The terms are alternatives, the parts of one hold together."""
    found = msgspec.convert(terms, list[objects.NodeTerm])
    able = [name for name, labels in MIRROR.items() if any(volumes.selects(term, name, labels) for term in found)]
    assert able == list(selected)


class Known:
    """Volumes as a watch told them, at a time of the test's own."""

    def __init__(self, *told: dict[str, Any], site: site.Site = inmemory.SITE, alike: list[str] | None = None) -> None:
        self.now = 0.0
        self.changes = 0
        self.made = volumes.Volumes(
            None,  # type: ignore[arg-type]  # nothing is asked
            site,
            monotonic=lambda: self.now,
            changed=self._count,
            alike=lambda _: [{ZONE: zone} for zone in alike or []],
        )
        for one in told:
            self.made._watch.put(msgspec.convert(one, objects.Volume))

    def _count(self) -> None:
        self.changes += 1

    def lacks(self) -> dict[str, tuple[str, ...]]:
        found = (self.made.marked(nodes.Node(name=name, capacity=inmemory.TWO_CPUS), MIRROR[name]) for name in MIRROR)
        return {node.name: node.lacks for node in found if node.lacks}


def test_a_node_tells_the_claims_that_it_cannot_mount() -> None:
    """Volumes of other namespaces, and volumes that are bound no more, count for no claim of a job."""
    known = Known(
        volume("disk", where(HOST, "In", "a")),
        volume("zonal", where("zone", "In", "1")),
        volume("elsewhere", where(HOST, "In", "a"), namespace="other"),
        volume("gone", where(HOST, "In", "a"), phase="Released"),
    )
    assert known.lacks() == {"b": ("disk",), "c": ("disk", "zonal")}


CLASSES = {
    "local": site.NodeClass(cpus=1, memory="1Gi", max=1),
    "here": site.NodeClass(cpus=1, memory="1Gi", max=1, domains={"zone": "1"}),
    "there": site.NodeClass(cpus=1, memory="1Gi", max=1, labels={site.DOMAINS["zone"]: "2"}),
}


def test_a_class_of_nodes_tells_the_claims_that_no_new_node_can_mount() -> None:
    """A disk of one machine is on no new one. A class that says nothing about zones may have nodes in any of them."""
    known = Known(
        volume("disk", where(HOST, "In", "a")),
        volume("field", {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["a"]}]}),
        volume("zonal", where(site.DOMAINS["zone"], "In", "1")),
        volume("either", where(HOST, "In", "a"), where(site.DOMAINS["zone"], "In", "2")),
        site=msgspec.structs.replace(inmemory.SITE, node_classes=CLASSES),
    )
    found = {name: known.made.lacking(name) for name in CLASSES}
    assert found == {
        "local": ("disk", "field"),
        "here": ("disk", "either", "field"),
        "there": ("disk", "field", "zonal"),
    }
    known.made._watch.items.clear()
    known.made._watch.put(msgspec.convert(volume("disk", where(HOST, "In", "a")), objects.Volume))
    known.made._watch.put(msgspec.convert(volume("zonal", where(site.DOMAINS["zone"], "In", "2")), objects.Volume))
    known.made._forget()
    assert known.made.lacking("there") == ("disk",), "the claim has another volume now"


@pytest.mark.parametrize(
    ("alike", "lacks"), [([], ()), (["1", "1"], ()), (["1", "2"], ("zonal",)), (["2"], ("zonal",)), ([""], ("zonal",))]
)
def test_present_nodes_tell_where_an_autoscaler_without_the_claims_adds_nodes(
    alike: list[str], lacks: tuple[str, ...]
) -> None:
    """It was asked for nodes of a class without a zone, and added them in any, up to the most of the class."""
    told = msgspec.structs.replace(inmemory.SITE, node_classes=CLASSES)
    known = Known(volume("zonal", where(ZONE, "In", "1")), site=told, alike=alike)
    assert known.made.lacking("local", judged=False) == lacks
    assert known.made.lacking("local", judged=True) == (), "it knows the claims"
    assert known.made.lacking("here", judged=False) == (), "the class says its zone"
    assert known.made.lacking("there", judged=False) == ("zonal",)


async def test_without_requests_the_nodes_of_the_class_or_all_nodes_are_looked_at() -> None:
    cluster = inmemory.Cluster("n1", "n2")
    cluster.volumes = [volume("zonal", where(ZONE, "In", "1"))]
    told = msgspec.structs.replace(inmemory.SITE, node_classes={"local": CLASSES["local"], "other": CLASSES["local"]})
    cluster.nodes["n1"]["metadata"]["labels"] = {ZONE: "1", told.class_label: "local"}
    cluster.nodes["n2"]["metadata"]["labels"] = {ZONE: "2"}
    async with test_races.opened(cluster, told) as made:
        requests = made.provisioner()
        while requests.lacking("other") != ("zonal",):  # the test's time limit bounds it
            await made.wait(0.01)
        assert requests.lacking("local") == ()
        assert requests.lacking("unknown") == ()


async def test_the_plan_knows_of_a_volume_and_of_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    """The node was the same in each plan, and each launch failed there, for ever."""
    monkeypatch.setattr(steering, "BOUND_S", 0.2)
    cluster = inmemory.Cluster("n1", "n2")
    cluster.volumes = [volume("disk", where(HOST, "In", "n2"))]
    cluster.nodes["n2"]["metadata"]["labels"] = {HOST: "n2"}
    async with test_races.opened(cluster) as made:
        lacking: dict[str, tuple[str, ...]] = {}

        async def look() -> dict[str, tuple[str, ...]]:
            lacking.clear()
            lacking.update({node.name: (*node.lacks, *node.barred) for node in await made.nodes()})
            return lacking

        while (await look())["n1"] != ("disk",):  # the test's time limit bounds it
            await made.wait(1.0)
        assert lacking["n2"] == ()
        mounted = (jobfile.Volume(claim="late", mount="/late"),)
        condition = {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": "1 Insufficient cpu.",
        }
        add = cluster.add

        def refused(body: dict[str, Any]) -> dict[str, Any]:
            add({**body, "status": {"phase": "Pending", "conditions": [condition]}})
            return cluster.pods[body["metadata"]["name"]]

        cluster.add = refused  # type: ignore[method-assign]
        with pytest.raises(errors.Unavailable, match="Insufficient cpu"):
            await made.launch([inmemory.launch_of("j-crowded", node="n2", volumes=mounted)])
        assert await look() == {"n1": ("disk",), "n2": ()}  # the volume is not the reason
        condition["message"] = "1 node(s) had no available volume zone."
        with pytest.raises(errors.Unavailable, match="no available volume zone"):
            await made.launch([inmemory.launch_of("j-late", node="n2", volumes=mounted)])
        assert made.nodes_changed()
        assert await look() == {"n1": ("disk",), "n2": ("late",)}
        assert {node.name: node.lacks for node in await made.nodes()}["n2"] == ()  # that is for a while


@pytest.mark.parametrize(
    ("holding", "opens"),
    [
        ({"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "theirs"}}]}, True),
        ({"volumes": [{"name": "v", "ephemeral": {"volumeClaimTemplate": {}}}]}, True),
        ({"volumes": [{"name": "v", "csi": {"driver": "d"}}]}, True),
        ({"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "slices"}]}, True),
        ({"volumes": [{"name": "v", "configMap": {"name": "c"}}]}, False),
    ],
)
async def test_a_pod_of_others_that_leaves_with_its_volumes_opens_the_node(
    monkeypatch: pytest.MonkeyPatch, holding: dict[str, Any], opens: bool
) -> None:
    """The node had as many volumes as its driver takes, and stayed closed for minutes after one of them had gone. The
    pods of a CI system, which hold none, come and go each second: they open nothing.
    """
    monkeypatch.setattr(steering, "BOUND_S", 0.2)
    cluster = inmemory.Cluster("n1")
    containers = [{"name": "c", "resources": {"requests": {"cpu": "100m"}}}]
    spec = {"nodeName": "n1", "containers": containers, **holding}
    cluster.add({"metadata": {"name": "theirs", "namespace": "other"}, "spec": spec})
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    condition["message"] = "1 node(s) exceed max volume count"
    add = cluster.add

    def refused(body: dict[str, Any]) -> dict[str, Any]:
        return add({**body, "status": {"phase": "Pending", "conditions": [condition]}})

    told = msgspec.structs.replace(inmemory.SITE, node_classes=CLASSES)  # the only node is not tried again by itself
    async with test_races.opened(cluster, told) as made:

        async def taken() -> int:
            return (await made.nodes())[0].taken.cpus_milli

        async def barred() -> tuple[str, ...]:
            return (await made.nodes())[0].barred

        cluster.add = refused  # type: ignore[method-assign]
        mounted = (jobfile.Volume(claim="late", mount="/late"),)
        with pytest.raises(errors.Unavailable, match="max volume count"):
            await made.launch([inmemory.launch_of("j-late", volumes=mounted)])
        assert (await barred(), await taken()) == (("late",), 100)
        await cluster.delete("pods/theirs")
        while await taken():  # the test's time limit bounds it
            await made.wait(1.0)
        assert await barred() == (() if opens else ("late",))


async def test_the_plan_knows_for_a_while_of_devices_that_the_scheduler_did_not_find(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The devices of claims are counted nowhere: each plan chose the node whose devices were taken."""
    monkeypatch.setattr(steering, "BOUND_S", 0.2)
    cluster = inmemory.Cluster("n1", "n2")
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    told = msgspec.structs.replace(inmemory.SITE, profiles={"p": site.Profile(device_claims={"gpu": "slices"})})
    add = cluster.add

    def refused(body: dict[str, Any]) -> dict[str, Any]:
        add({**body, "status": {"phase": "Pending", "conditions": [condition]}})
        return cluster.pods[body["metadata"]["name"]]

    async def have() -> None: ...

    cluster.add = refused  # type: ignore[method-assign]
    async with test_races.opened(cluster, told) as made:
        monkeypatch.setattr(made._devices, "require", have)
        condition["message"] = "0/2 nodes are available: 1 cannot allocate all claims, 1 didn't match node affinity."
        with pytest.raises(errors.Unavailable, match="cannot allocate all claims"):
            await made.launch([inmemory.launch_of("j-one", node="n2")])
        found = {node.name: (node.lacks, node.barred) for node in await made.nodes()}
        assert found == {"n1": ((), ()), "n2": ((), ("devices/slices",))}
        with monkeypatch.context() as driver:
            driver.setattr(made._slices, "of", lambda name: "another device")
            assert not any(node.barred for node in await made.nodes()), "the driver offers others now"
        with pytest.raises(errors.Unavailable, match="cannot allocate all claims"):
            await made.launch([inmemory.launch_of("j-again", node="n2")])
        with pytest.raises(errors.Unavailable, match="cannot allocate all claims"):
            await made.launch([inmemory.launch_of("j-two", node="n1")])
        assert not any(node.barred for node in await made.nodes()), "no node is left: each gets another try"


async def test_the_plan_knows_for_a_while_of_an_extended_resource_that_is_used_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The server does not count it. A node that never had it is closed anyway, and is not the one that is left."""
    monkeypatch.setattr(steering, "BOUND_S", 0.2)
    cluster = inmemory.Cluster("n1", "n2", "n3")
    for name in ("n1", "n2"):
        cluster.nodes[name]["status"]["allocatable"]["rdma/hca"] = "1"
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    condition["message"] = "0/3 nodes are available: 1 Insufficient rdma/hca, 2 didn't match node affinity."
    told = msgspec.structs.replace(inmemory.SITE, profiles={"p": site.Profile(resources={"rdma/hca": 1})})
    add = cluster.add

    def refused(body: dict[str, Any]) -> dict[str, Any]:
        return add({**body, "status": {"phase": "Pending", "conditions": [condition]}})

    cluster.add = refused  # type: ignore[method-assign]
    none, claim = ("resources/rdma/hca=1",), ("resources/rdma/hca=1",)
    async with test_races.opened(cluster, told) as made:
        with pytest.raises(errors.Unavailable, match="Insufficient rdma/hca"):
            await made.launch([inmemory.launch_of("j-one", node="n2")])
        found = {node.name: (node.lacks, node.barred) for node in await made.nodes()}
        assert found == {"n1": ((), ()), "n2": ((), claim), "n3": (none, ())}
        with pytest.raises(errors.Unavailable, match="Insufficient rdma/hca"):
            await made.launch([inmemory.launch_of("j-two", node="n1")])
        assert not any(node.barred for node in await made.nodes()), "no node is left: each gets another try"


def test_a_resource_is_not_taken_for_another_one() -> None:
    assert steering.Unbound("1 Insufficient rdma/hca.", []).lacks("rdma/hca")
    assert not steering.Unbound("1 Insufficient rdma/hca_shared, 2 x", []).lacks("rdma/hca")
    assert not steering.Unbound("1 Insufficient cpu", []).lacks("rdma/hca")


def test_a_claim_that_no_node_can_mount_now_bars_none() -> None:
    """It is not the node's fault."""
    for message in ("pod has unbound immediate PersistentVolumeClaims", 'persistentvolumeclaim "x" not found'):
        assert not steering.Unbound(message, []).by_volume
    assert steering.Unbound("1 node(s) exceed max volume count", []).by_volume

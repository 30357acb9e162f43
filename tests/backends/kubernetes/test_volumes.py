"""Volumes that only some nodes can mount: which nodes that are, and what becomes of it in a plan."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.backends.kubernetes import test_races
from tests.backends.kubernetes.testcluster import inmemory

from oarlock.backends.kubernetes import steering, volumes
from oarlock.backends.kubernetes.apiserver import objects
from oarlock.spec import errors, jobfile
from oarlock.spec.cluster import nodes

HOST = "kubernetes.io/hostname"
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

    def __init__(self, *told: dict[str, Any]) -> None:
        self.now = 0.0
        self.changes = 0
        self.made = volumes.Volumes(
            None,  # type: ignore[arg-type]  # nothing is asked
            inmemory.SITE,
            monotonic=lambda: self.now,
            changed=self._count,
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


def test_a_refusal_of_the_scheduler_closes_a_node_to_the_claim_for_a_while() -> None:
    """Without the right to read volumes, and for rules that a volume does not tell. Once no node is left, each of them
    gets another try.
    """
    known = Known(volume("zonal", where("zone", "In", "1")))
    known.made.bar(["new"], ["a"], MIRROR)
    assert known.changes == 1
    assert known.lacks() == {"a": ("new",), "c": ("zonal",)}
    known.now += 1.0
    known.made.bar(["new"], ["b"], MIRROR)
    assert known.lacks() == {"a": ("new",), "b": ("new",), "c": ("zonal",)}
    known.now += volumes.BARRED_S - 0.5
    assert known.lacks() == {"b": ("new",), "c": ("zonal",)}
    known.now = 10_000.0
    known.made.bar(["zonal"], ["a"], MIRROR)
    assert known.lacks() == {"a": ("zonal",), "c": ("zonal",)}
    known.made.bar(["zonal"], ["b"], MIRROR)
    assert known.lacks() == {"c": ("zonal",)}


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
            lacking.update({node.name: node.lacks for node in await made.nodes()})
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

"""The examination of a cluster: each fault is made, found, and told with its fix; nothing is left behind."""

from __future__ import annotations

import msgspec
import pytest
from tests.backends.kubernetes import conftest
from tests.backends.kubernetes.test_backend import KubernetesRig, rig  # noqa: F401  (a fixture)
from tests.backends.kubernetes.testcluster import apiserver, cluster, restricted, rights

from oarlock.backends.kubernetes import examining, reaching, site
from oarlock.backends.kubernetes.apiserver import client, objects
from oarlock.spec import holdings
from oarlock.spec.cluster import nodes

SITE = site.Site(namespace="jobs", image="registry.example/oarlock:1", images={"torch": "registry.example/torch:2"})


def test_the_rights_are_those_that_the_installation_grants() -> None:
    asked = {
        (rights.JOBS if one.within else "cluster", one.verb, one.resource)
        for one in (*examining.RIGHTS, *examining.OBJECTS)
    }
    assert asked == {one for one in rights.granted() if one[0] != rights.NAMESPACE}, "its own pod is for a server there"


def test_a_pod_that_pulls_keeps_the_restricted_profile() -> None:
    pod = examining.pod(SITE, "registry.example/torch:2")
    assert restricted.violations(pod) == []
    assert pod["metadata"]["name"] != examining.pod(SITE, "registry.example/torch:3")["metadata"]["name"]


PLAIN, CUDA = "registry.example/torch:2", "registry.example/torch-cuda:2"


@pytest.mark.parametrize(
    ("gpus", "resource", "pulled"),
    [
        (0, "nvidia.com/gpu", {PLAIN: "n1"}),
        (2, "nvidia.com/gpu", {PLAIN: "n1", CUDA: "n2"}),
        (2, "nvidia.com/mig-1g.5gb", {PLAIN: "n1", CUDA: "n2"}),
        (2, "amd.com/gpu", {PLAIN: "n1"}),
    ],
)
def test_the_cuda_image_is_pulled_only_where_jobs_can_get_it(gpus: int, resource: str, pulled: dict[str, str]) -> None:
    """It has 3 GB: a node without GPUs pulled them for nothing, and for minutes."""
    told = site.Site(image="own", images={"torch": PLAIN, "torch-cuda": CUDA}, gpu_resource=resource)
    usable = [
        nodes.Node(name="n1", capacity=holdings.Resources(1000)),
        nodes.Node(name="n2", capacity=holdings.Resources(1000, 0, gpus)),
    ]
    assert examining._pulls(usable, told) == {"own": "n1", **pulled}
    same = msgspec.structs.replace(told, images={"torch": PLAIN, "torch-cuda": PLAIN})
    assert examining._pulls(usable, same) == {"own": "n1", PLAIN: "n1"}, "each image once"


async def examined(
    rig: KubernetesRig,  # noqa: F811  (the fixture)
    token: str = rights.SERVER,
    url: str = "",
    **changes: object,
) -> list[examining.Result]:
    told = msgspec.structs.replace(rig.cluster.site, images=SITE.images, **changes)
    async with client.Client(conftest.access(rig.server, token)) as api:
        return [result async for result in examining.examine(api, told, url)]


@apiserver.needed
async def test_a_good_cluster_has_nothing_to_repair(rig: KubernetesRig, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    monkeypatch.setattr(examining, "LOOK_S", 0.02)
    monkeypatch.setattr(reaching, "LOOK_S", 0.02)
    reach = reaching.pod(rig.cluster.site, "http://server", 1.0)["metadata"]["name"]
    rig.cluster.plays[reach] = cluster.Play(code=0)
    found = await examined(rig, url="http://server")
    assert [one.fix for one in found] == [""] * len(found), found
    assert {one.check for one in found} == {"cluster", "rights", "nodes", "gpus", "images", "server"}
    assert "2 of 2 nodes take tasks" in {one.message for one in found}
    assert await rig.cluster.api.list(rig.cluster.path("pods"), objects.Pod) == []


@apiserver.needed
async def test_an_image_that_cannot_be_pulled_is_named(rig: KubernetesRig, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    monkeypatch.setattr(examining, "LOOK_S", 0.02)
    broken = examining.pod(rig.cluster.site, SITE.images["torch"])["metadata"]["name"]
    rig.cluster.plays[broken] = cluster.Play(pull="no such tag")
    (problem,) = [one for one in await examined(rig) if one.fix]
    assert problem.check == "images"
    assert problem.message.startswith("registry.example/torch:2 cannot be pulled on ")
    assert problem.message.endswith(": no such tag")


@apiserver.needed
async def test_missing_rights_are_listed(rig: KubernetesRig) -> None:  # noqa: F811
    """The rights of the server hold in the namespace of its jobs alone."""
    *_, problem = await examined(rig, namespace="elsewhere")
    assert problem.check == "rights"
    assert "create pods in elsewhere" in problem.message
    assert "in the whole cluster" not in problem.message
    assert "deploy/base/rights.yaml" in problem.fix


@apiserver.needed
async def test_the_rights_in_a_namespace_of_users_are_asked_for(rig: KubernetesRig) -> None:  # noqa: F811
    *_, problem = await examined(rig, namespaces={"team-a": site.Tenant("ann")})
    assert problem.check == "rights"
    assert "patch oarlockjobs/status.oarlock.dev in team-a" in problem.message
    assert f"in {rig.cluster.namespace}" not in problem.message
    assert "oarlock-objects" in problem.fix


@apiserver.needed
async def test_a_cluster_without_a_node_for_tasks(rig: KubernetesRig) -> None:  # noqa: F811
    for name in ("n1", "n2"):
        await rig.cluster.cordon(name)
    (problem,) = [one for one in await examined(rig) if one.fix]
    assert problem.check == "nodes"
    assert problem.message.startswith("no node takes tasks: ")
    assert "node.kubernetes.io/unschedulable:NoSchedule" in problem.message
    (problem,) = [one for one in await examined(rig, nodes={"pool": "none"}) if one.fix]
    assert problem.message == "no node takes tasks: the cluster has none with the labels {'pool': 'none'}"


@apiserver.needed
async def test_a_cluster_that_does_not_answer(rig: KubernetesRig) -> None:  # noqa: F811
    access = msgspec.structs.replace(conftest.access(rig.server), server="https://127.0.0.1:9")
    async with client.Client(access, tries=1) as api:
        (problem,) = [result async for result in examining.examine(api, rig.cluster.site)]
    assert problem.check == "cluster"
    assert problem.fix

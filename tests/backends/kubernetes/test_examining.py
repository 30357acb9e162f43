"""The examination of a cluster: each fault is made, found, and told with its fix; nothing is left behind."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import pytest
from tests.backends.kubernetes import conftest
from tests.backends.kubernetes.test_backend import KubernetesRig, rig  # noqa: F401  (a fixture)
from tests.backends.kubernetes.testcluster import apiserver, cluster, inmemory, restricted, rights

from oarlock.backends.kubernetes import examining, reaching, site
from oarlock.backends.kubernetes.apiserver import client, objects
from oarlock.spec import holdings
from oarlock.spec.cluster import nodes

SITE = site.Site(namespace="jobs", image="registry.example/oarlock:1", images={"torch": "registry.example/torch:2"})


def test_the_rights_are_those_that_the_installation_grants() -> None:
    asked = set()
    for one in (*examining.RIGHTS, *examining.OBJECTS):
        resource = f"{one.resource}[{one.name}]" if one.name else one.resource
        asked.add((rights.JOBS if one.within else "cluster", one.verb, resource))
    assert asked == {one for one in rights.granted() if one[0] != rights.NAMESPACE}, "its own pod is for a server there"


def test_a_pod_that_pulls_keeps_the_restricted_profile() -> None:
    pod = examining.pod(SITE, "registry.example/torch:2")
    assert restricted.violations(pod) == []
    assert pod["metadata"]["name"] != examining.pod(SITE, "registry.example/torch:3")["metadata"]["name"]


def container(**state: object) -> dict[str, object]:
    return {"containerStatuses": [{"name": "pull", "state": state}]}


PULLED, UNKNOWN, FAILED = "can be pulled on n1", "is not known", "cannot be pulled on n1"
PULLS: dict[str, tuple[dict[str, object], str]] = {
    "it runs": ({"phase": "Running", **container(running={})}, PULLED),
    "it has ended": ({"phase": "Succeeded", **container(terminated={"exitCode": 0, "reason": "Completed"})}, PULLED),
    "its command is not there": (
        {"phase": "Failed", **container(terminated={"exitCode": 128, "reason": "StartError"})},
        PULLED,
    ),
    "its container cannot be made": ({**container(waiting={"reason": "CreateContainerConfigError"})}, PULLED),
    "evicted": ({"phase": "Failed", "reason": "Evicted", "message": "The node was low on memory."}, UNKNOWN),
    "refused": ({"phase": "Failed", "reason": "OutOfpods", "message": "Too many pods"}, UNKNOWN),
    "too late": (
        {"phase": "Failed", "reason": "DeadlineExceeded", **container(waiting={"reason": "ContainerCreating"})},
        UNKNOWN,
    ),
    "lost sight of": ({"phase": "Failed", **container(terminated={"reason": "ContainerStatusUnknown"})}, UNKNOWN),
    "no such tag": (container(waiting={"reason": "ErrImagePull", "message": "no such tag"}), FAILED),
}


@pytest.mark.parametrize(("status", "words"), PULLS.values(), ids=list(PULLS))
async def test_an_image_was_pulled_if_its_container_got_so_far(status: dict[str, object], words: str) -> None:
    pretended = inmemory.Cluster("n1")
    pretended.runs["n1"] = status
    found = await examining._pull(pretended, SITE, "n1", PLAIN)  # type: ignore[arg-type]
    assert words in found.message
    assert bool(found.fix) is (words is not PULLED)
    assert not pretended.pods


def test_the_cluster_does_not_end_a_pull_before_the_examination_does() -> None:
    assert examining.pod(SITE, PLAIN)["spec"]["activeDeadlineSeconds"] > examining.PULL_S


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
    environ: Mapping[str, str] | None = None,
    **changes: object,
) -> list[examining.Result]:
    told = msgspec.structs.replace(rig.cluster.site, images=SITE.images, **changes)
    async with client.Client(conftest.access(rig.server, token)) as api:
        return [result async for result in examining.examine(api, told, url, environ or {})]


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
async def test_a_pod_of_the_server_examines_its_own_image(
    rig: KubernetesRig,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """There the settings name none. The pod that tries to reach the server has the image, too."""
    monkeypatch.setattr(examining, "LOOK_S", 0.02)
    monkeypatch.setattr(reaching, "LOOK_S", 0.02)
    namespace, access = rig.cluster.namespace, conftest.access(rig.server)
    inside = msgspec.structs.replace(access, inside=True, namespace=namespace)
    monkeypatch.setattr(conftest, "access", lambda *_: inside)
    spec = {"containers": [{"name": "server", "image": "registry.example/installed:3"}]}
    await rig.cluster.api.create(
        rig.cluster.path("pods"), {"metadata": {"name": "oarlock-1"}, "spec": spec}, objects.Pod
    )
    told = msgspec.structs.replace(rig.cluster.site, image="registry.example/installed:3")
    reach = reaching.pod(told, "http://server", 1.0)["metadata"]["name"]
    rig.cluster.plays[reach] = cluster.Play(code=0)
    found = await examined(rig, url="http://server", environ={"HOSTNAME": "oarlock-1"}, image="")
    assert [one.fix for one in found] == [""] * len(found), found
    assert any("registry.example/installed:3 can be pulled" in one.message for one in found)
    assert any("reach the server" in one.message for one in found)
    found = await examined(rig, url="http://server", environ={"HOSTNAME": "another"}, image="")
    (problem,) = [one for one in found if one.fix]
    assert problem.message.startswith("the server's image is not known: ")
    assert not any(one.check == "server" for one in found)


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

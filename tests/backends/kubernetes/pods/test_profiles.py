"""What the profiles of administrators add to pods: rendered pods, and profiles that are refused."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from tests.backends.kubernetes.pods.test_rendering import GOLDEN, SITE, launch
from tests.backends.kubernetes.testcluster import restricted

from oarlock import configuration
from oarlock.backends import backends
from oarlock.backends.kubernetes import clusterstate, site
from oarlock.backends.kubernetes.apiserver import objects
from oarlock.backends.kubernetes.pods import labels, rendering
from oarlock.spec import errors, jobfile

PROFILES = {
    "all": site.Profile(
        annotations={"example.com/cost": "42"}, env={"PROXY": "p", "HOME": "/root", "USER": "ann"}, groups=(2000,)
    ),
    "research": site.Profile(
        pools=("research",),
        env={"PROXY": "q"},
        volumes=(jobfile.Volume(claim="shared", mount="/shared", read_only=True),),
        runtime_class="nvidia",
        priority_class="training",
        groups=(3000,),
    ),
}


def test_a_profile_adds_to_the_pods_of_its_pools() -> None:
    profiled = msgspec.structs.replace(SITE, profiles=PROFILES)
    own = (jobfile.Volume(claim="mine", mount="/mine"),)
    pod = rendering.pod(launch(container=backends.Container(pool="research", volumes=own)), profiled, "s")
    assert pod["metadata"]["annotations"]["example.com/cost"] == "42"
    spec = pod["spec"]
    assert (spec["runtimeClassName"], spec["priorityClassName"]) == ("nvidia", "training")
    assert spec["securityContext"]["supplementalGroups"] == [2000, 3000]
    assert spec["securityContext"]["runAsUser"] == SITE.user_id, "a profile takes nothing away"
    env = {one["name"]: one.get("value") for one in spec["containers"][0]["env"]}
    assert (env["PROXY"], env["HOME"]) == ("q", rendering.HOME)
    assert (env["USER"], env["LOGNAME"]) == ("ann", rendering.USER)
    claims = [volume["persistentVolumeClaim"]["claimName"] for volume in spec["volumes"] if "volume-" in volume["name"]]
    assert claims == ["mine", "shared"]
    for container in spec["containers"]:
        mounts = {mount["mountPath"]: mount["readOnly"] for mount in container["volumeMounts"] if "readOnly" in mount}
        assert mounts["/shared"] is True
    assert restricted.violations(pod) == []
    other = rendering.pod(launch(container=backends.Container(pool="default")), profiled, "s")
    assert "runtimeClassName" not in other["spec"]
    assert "shared" not in json.dumps(other)
    assert {"name": "PROXY", "value": "p"} in other["spec"]["containers"][0]["env"]
    plain = rendering.pod(launch(container=backends.Container(pool="research")), SITE, "s")
    assert "supplementalGroups" not in plain["spec"]["securityContext"]


DEDICATED = {
    "all": site.Profile(tolerate=("spot", "nvidia.com/gpu")),
    "research": site.Profile(pools=("research",), tolerate=("team=research",), node_labels={"disk": "ssd"}),
}


def test_the_pod_of_a_profile_with_constraints_on_nodes_is_the_golden_file() -> None:
    """Each pod tolerates the taints of its profiles and asks for their labels, and no pod does so twice."""
    told = msgspec.structs.replace(SITE, profiles=DEDICATED)
    mine = launch(container=backends.Container(pool="research", job_name="digits"))
    text = yaml.safe_dump(rendering.pod(mine, told, "j-0abc-2-secret"), sort_keys=False)
    path = GOLDEN / "dedicated.yaml"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text)
    assert path.read_text() == text
    assert restricted.violations(yaml.safe_load(text)) == []
    other = rendering.pod(launch(), told, "s")["spec"]
    assert "nodeSelector" not in other
    assert [one["key"] for one in other["tolerations"]] == ["nvidia.com/gpu", "spot"]


def test_a_profile_gives_each_pod_its_own_claims_of_devices() -> None:
    """The cluster makes the claims from templates. The task alone uses them, and a later profile wins."""
    profiles = {
        "a": site.Profile(device_claims={"gpu": "any-gpu", "nic": "fast-nic"}),
        "b": site.Profile(pools=("research",), device_claims={"gpu": "large-gpu"}),
    }
    told = msgspec.structs.replace(SITE, profiles=profiles)
    pod = rendering.pod(launch(container=backends.Container(pool="research")), told, "s")
    assert pod["spec"]["resourceClaims"] == [
        {"name": "gpu", "resourceClaimTemplateName": "large-gpu"},
        {"name": "nic", "resourceClaimTemplateName": "fast-nic"},
    ]
    of = {
        one["name"]: one["resources"].get("claims") for one in pod["spec"]["initContainers"] + pod["spec"]["containers"]
    }
    assert of.pop(rendering.TASK) == [{"name": "gpu"}, {"name": "nic"}]
    assert set(of.values()) == {None}
    assert restricted.violations(pod) == []
    other = rendering.pod(launch(container=backends.Container(pool="other")), told, "s")
    assert other["spec"]["resourceClaims"][0]["resourceClaimTemplateName"] == "any-gpu"
    assert "resourceClaims" not in rendering.pod(launch(), SITE, "s")["spec"]


def test_the_pods_of_a_profile_share_the_memory_of_their_node() -> None:
    """Its namespace must admit folders of the node, which the restricted profile of pod security forbids."""
    profiles = {
        "all": site.Profile(shared_memory="/dev/shm"),
        "research": site.Profile(pools=("research",), shared_memory="/mnt/shared"),
    }
    told = msgspec.structs.replace(SITE, profiles=profiles)

    def shared(pool: str, told: site.Site = told) -> Any:
        pod = rendering.pod(launch(container=backends.Container(pool=pool)), told, "s")
        assert bool(restricted.violations(pod)) == bool(told.profiles)
        (mount,) = [one for one in pod["spec"]["containers"][0]["volumeMounts"] if one["mountPath"] == "/dev/shm"]
        (volume,) = [one for one in pod["spec"]["volumes"] if one["name"] == mount["name"]]
        return volume

    assert shared("other")["hostPath"] == {"path": "/dev/shm", "type": "Directory"}
    assert shared("research")["hostPath"]["path"] == "/mnt/shared", "a later profile wins"
    assert "emptyDir" in shared("other", SITE)


@pytest.mark.parametrize("folder", ["shm", "/", "/mnt/../dev/shm"])
def test_a_folder_that_no_pods_can_share_is_refused(folder: str) -> None:
    with pytest.raises(errors.InvalidInput) as refused:
        site.Profile(shared_memory=folder).check("all", (), (), "")
    assert refused.value.path == "kubernetes.profiles.all.shared_memory"


INFINIBAND = {
    "fabric": site.Profile(
        pools=("research",),
        labels={"example.com/fabric": "ib0", "sidecar.example.com/inject": "false"},
        resources={"rdma/hca": 1},
        capabilities=("IPC_LOCK",),
        env={"NCCL_IB_HCA": "mlx5"},
    ),
    "mesh": site.Profile(
        containers=(
            site.Sidecar(
                name="proxy",
                image="registry.example/proxy:1",
                command=("/proxy",),
                args=("--outbound",),
                env={"LEVEL": "info"},
                memory="64Mi",
            ),
        ),
    ),
}


def test_the_pod_of_a_profile_with_a_fabric_and_a_sidecar_is_the_golden_file() -> None:
    """The sidecar sees neither the task's files nor its token, and the pod requests what the task requests."""
    told = msgspec.structs.replace(SITE, profiles=INFINIBAND)
    mine = launch(container=backends.Container(pool="research", job_name="digits"))
    pod = rendering.pod(mine, told, "j-0abc-2-secret")
    text, path = yaml.safe_dump(pod, sort_keys=False), GOLDEN / "infiniband.yaml"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text)
    assert path.read_text() == text
    (task, _, proxy) = pod["spec"]["containers"]
    assert "volumeMounts" not in proxy
    assert task["resources"]["requests"]["rdma/hca"] == task["resources"]["limits"]["rdma/hca"] == "1"
    assert clusterstate.needs(msgspec.convert(pod["spec"], objects.PodSpec), SITE.gpu_resource) == mine.holding.amount
    other = rendering.pod(launch(), told, "s")
    assert restricted.violations(other) == []
    assert "rdma/hca" not in json.dumps(other)
    assert [one["name"] for one in other["spec"]["containers"]] == ["task", "helper", "proxy"]


def test_an_object_is_known_by_our_own_labels_alone() -> None:
    """A webhook of a service mesh adds some, and a profile may have had others when the pod was made."""
    told = msgspec.structs.replace(SITE, profiles=INFINIBAND)
    wanted = rendering.pod(launch(container=backends.Container(pool="research")), told, "s")["metadata"]["labels"]
    plain = rendering.pod(launch(), SITE, "s")["metadata"]["labels"]
    assert labels.is_same(objects.Meta(labels=plain | {"service.istio.io/canonical-name": "x"}), wanted)
    for label in (labels.INSTALLATION, labels.JOB, labels.ATTEMPT, labels.INCARNATION, labels.MANAGED_BY):
        assert not labels.is_same(objects.Meta(labels=wanted | {label: "another"}), wanted)


def test_a_profile_is_read_from_the_settings() -> None:
    text = """
    [profiles.research]
    pools = ["research"]
    volumes = [{ claim = "scratch", mount = "/scratch" }]
    groups = [2000]
    resources = { "rdma/hca" = 1 }
    containers = [{ name = "proxy", image = "proxy:1" }]
    """
    told = msgspec.toml.decode(text, type=site.Site)
    assert [one.groups for one in told.profiles_of("research", "ann")] == [(2000,)]
    assert told.profiles_of("default", "ann") == []


def test_a_profile_of_some_users_is_not_had_by_the_choice_of_a_pool() -> None:
    """A user may submit to any pool."""
    profile = site.Profile(pools=("research",), users=("ann",), groups=(2000,), priority_class="training")
    profiled = msgspec.structs.replace(SITE, profiles={"fast": profile})
    for owner, has in (("ann", True), ("bob", False)):
        container = backends.Container(pool="research", owner=owner)
        spec = rendering.pod(launch(container=container), profiled, "s")["spec"]
        assert ("priorityClassName" in spec) == has
        assert ("supplementalGroups" in spec["securityContext"]) == has


def at(mount: str, claim: str = "scratch", **more: Any) -> site.Profile:
    return site.Profile(volumes=(jobfile.Volume(claim=claim, mount=mount),), **more)


UNUSABLE = {
    "a folder of the server's": ({"a": at("/oarlock/runtime")}, "kubernetes.profiles.a.volumes[0].mount"),
    "the folder of all of them": ({"a": at("/oarlock/")}, "kubernetes.profiles.a.volumes[0].mount"),
    "the folder of the checkpoints": ({"a": at("/kept/mine")}, "kubernetes.profiles.a.volumes[0].mount"),
    "a place in the working directory": ({"a": at("scratch")}, "kubernetes.profiles.a.volumes[0].mount"),
    "the claim of the checkpoints": ({"a": at("/x", "kept")}, "kubernetes.profiles.a.volumes[0].claim"),
    "the server's annotation": (
        {"a": site.Profile(annotations={"oarlock.dev/bound-by": "x"})},
        "kubernetes.profiles.a.annotations",
    ),
    "a cordon": (
        {"a": site.Profile(tolerate=("node.kubernetes.io/unschedulable",))},
        "kubernetes.profiles.a.tolerate",
    ),
    "the server's taint": ({"a": site.Profile(tolerate=("oarlock.dev/pods",))}, "kubernetes.profiles.a.tolerate"),
    "a taint without a key": ({"a": site.Profile(tolerate=("=red",))}, "kubernetes.profiles.a.tolerate"),
    "a claim without a template": (
        {"a": site.Profile(device_claims={"gpu": ""})},
        "kubernetes.profiles.a.device_claims",
    ),
    "a claim with a wrong name": (
        {"a": site.Profile(device_claims={"A_B": "t"})},
        "kubernetes.profiles.a.device_claims",
    ),
    "two values of one label": (
        {
            "a": site.Profile(node_labels={"disk": "ssd"}),
            "b": site.Profile(pools=("p",), node_labels={"disk": "hdd"}),
        },
        "kubernetes.profiles.b.node_labels",
    ),
    "a label that no used node has": (
        {"a": site.Profile(node_labels={"pool": "web"})},
        "kubernetes.profiles.a.node_labels",
    ),
    "a label of Oarlock's own": ({"a": site.Profile(labels={"oarlock.dev/job": "x"})}, "kubernetes.profiles.a.labels"),
    "the label of the program that manages it": (
        {"a": site.Profile(labels={"app.kubernetes.io/managed-by": "helm"})},
        "kubernetes.profiles.a.labels",
    ),
    "a wrong name of a label": ({"a": site.Profile(labels={"a b": "x"})}, "kubernetes.profiles.a.labels"),
    "a wrong value of a label": ({"a": site.Profile(labels={"a": "x y"})}, "kubernetes.profiles.a.labels"),
    "CPUs as a resource": ({"a": site.Profile(resources={"cpu": 2})}, "kubernetes.profiles.a.resources"),
    "GPUs as a resource": ({"a": site.Profile(resources={"nvidia.com/gpu": 2})}, "kubernetes.profiles.a.resources"),
    "a resource of Kubernetes": (
        {"a": site.Profile(resources={"kubernetes.io/batch": 2})},
        "kubernetes.profiles.a.resources",
    ),
    "no amount of a resource": ({"a": site.Profile(resources={"rdma/hca": 0})}, "kubernetes.profiles.a.resources"),
    "a capability with its prefix": (
        {"a": site.Profile(capabilities=("CAP_IPC_LOCK",))},
        "kubernetes.profiles.a.capabilities",
    ),
    "all capabilities": ({"a": site.Profile(capabilities=("ALL",))}, "kubernetes.profiles.a.capabilities"),
    **{
        f"a container called {name}": (
            {"a": site.Profile(containers=(site.Sidecar(name=name, image="i"),))},
            "kubernetes.profiles.a.containers[0].name",
        )
        for name in ("task", "helper", "deliver", "A_B", "")
    },
    "a container without an image": (
        {"a": site.Profile(containers=(site.Sidecar(name="proxy", image=""),))},
        "kubernetes.profiles.a.containers[0].image",
    ),
    "a wrong variable of a container": (
        {"a": site.Profile(containers=(site.Sidecar(name="proxy", image="i", env={"A=B": "x"}),))},
        "kubernetes.profiles.a.containers[0].env",
    ),
    "a wrong limit of a container": (
        {"a": site.Profile(containers=(site.Sidecar(name="proxy", image="i", memory="much"),))},
        "kubernetes.profiles.a.containers[0].memory",
    ),
    "two containers of one name": (
        {
            "a": site.Profile(containers=(site.Sidecar(name="proxy", image="i"),)),
            "b": site.Profile(pools=("p",), containers=(site.Sidecar(name="proxy", image="j"),)),
        },
        "kubernetes.profiles.b.containers",
    ),
    "two containers of one profile": (
        {"a": site.Profile(containers=(site.Sidecar(name="proxy", image="i"),) * 2)},
        "kubernetes.profiles.a.containers",
    ),
    "a place that leads to the server's": (
        {"a": at("/x/../oarlock/runtime")},
        "kubernetes.profiles.a.volumes[0].mount",
    ),
    "the claim of the environments": (
        {"a": at("/a", claim="cache")},
        "kubernetes.profiles.a.volumes[0].claim",
    ),
    "a place with two slashes": ({"a": at("//oarlock/runtime")}, "kubernetes.profiles.a.volumes[0].mount"),
    "the root": ({"a": at("/")}, "kubernetes.profiles.a.volumes[0].mount"),
    "the shared memory": ({"a": at("/dev/shm")}, "kubernetes.profiles.a.volumes[0].mount"),
    "a place with a colon": ({"a": at("/a:b")}, "kubernetes.profiles.a.volumes[0].mount"),
    "a wrong name of a claim": (
        {"a": site.Profile(volumes=(jobfile.Volume(claim="C_1", mount="/a"),))},
        "kubernetes.profiles.a.volumes[0].claim",
    ),
    "a wrong name of an annotation": (
        {"a": site.Profile(annotations={"a b": "x"})},
        "kubernetes.profiles.a.annotations",
    ),
    "a wrong name of a variable": ({"a": site.Profile(env={"A=B": "x"})}, "kubernetes.profiles.a.env"),
    "a third profile that meets the second alone": (
        {"a": at("/x", pools=("p",)), "b": at("/x", pools=("q",)), "c": at("/x", pools=("q",))},
        "kubernetes.profiles.c.volumes",
    ),
    "two volumes of one profile": (
        {"a": site.Profile(volumes=tuple(jobfile.Volume(claim=claim, mount="/x") for claim in ("b", "c")))},
        "kubernetes.profiles.a.volumes",
    ),
    "two volumes in one pod": ({"a": at("/x"), "b": at("/x/", pools=("p",))}, "kubernetes.profiles.b.volumes"),
}


@pytest.mark.parametrize(("profiles", "path"), UNUSABLE.values(), ids=list(UNUSABLE))
def test_a_profile_with_which_no_pod_would_start_is_refused_by_the_server(
    tmp_path: Path, profiles: dict[str, site.Profile], path: str
) -> None:
    told = site.Site(
        checkpoint_claim="kept",
        checkpoint_path="/kept",
        environments_claim="cache",
        profiles=profiles,
        nodes={"pool": "gpu"},
    )
    with pytest.raises(errors.InvalidInput) as caught:
        configuration._check(configuration.Settings(home=tmp_path, backend="kubernetes", kubernetes=told))
    assert caught.value.path == path


def test_profiles_of_different_jobs_may_mount_at_one_place() -> None:
    apart = {
        "a": at("/x", pools=("p",)),
        "b": at("/x", pools=("q",)),
        "c": at("/oarlocked"),
        "d": at("/y", users=("ann",)),
        "e": at("/y", users=("bob",)),
        "f": site.Profile(pools=("p",), node_labels={"disk": "ssd"}),
        "g": site.Profile(pools=("q",), node_labels={"disk": "hdd"}),
    }
    site.Site(profiles=apart).check_profiles()

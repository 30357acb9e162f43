"""Rendered manifests are golden files: a change of a pod is a change that a reader sees.

`UPDATE_GOLDEN=1 pytest tests/backends/kubernetes/pods/test_rendering.py` writes them anew.
"""

from __future__ import annotations

import base64
import copy
import json
import os
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from tests.backends.kubernetes.testcluster import apiserver, restricted

from oarlock import configuration
from oarlock.backends import backends
from oarlock.backends.kubernetes import clusterstate, reaching, site
from oarlock.backends.kubernetes.apiserver import client, objects
from oarlock.backends.kubernetes.pods import labels, rendering
from oarlock.data.transfers import authorities
from oarlock.spec import attempts, errors, holdings, jobfile, roles
from oarlock.spec.access import kubernetessecrets
from oarlock.spec.protocol import assignments

GOLDEN = Path(__file__).parent / "golden"
GIB = 1 << 30
SITE = site.Site(
    installation="lab",
    namespace="training",
    image="registry.example/oarlock:1",
    images={"torch": "registry.example/torch:2"},
    pull_secrets=("registry",),
)


def launch(
    index: int = 0,
    *,
    role: str = "worker",
    amount: holdings.Resources = holdings.Resources(4000, 16 * GIB, 2),  # noqa: B008  (frozen)
    limit: holdings.Resources | None = None,
    container: backends.Container = backends.Container(job_name="digits"),  # noqa: B008  (frozen)
    command: str | tuple[str, ...] = "python train.py",
    **assigned: object,
) -> backends.TaskLaunch:
    key = attempts.TaskKey("j-0abc", 2, role, index, 1)
    return backends.TaskLaunch(
        key=key,
        assignment=assignments.Assignment(
            key=str(key), server="https://oarlock.training:7317", token="t0ken", command=command, **assigned
        ),
        holding=holdings.Holding(job="j-0abc", attempt=2, role=role, index=index, node="n1", amount=amount),
        limit=amount if limit is None else limit,
        container=container,
    )


CASES = {
    "worker": launch(nproc=2),
    "plain": launch(
        role="chief",
        amount=holdings.Resources(1000),
        limit=holdings.Resources(),
        container=backends.Container(image="scratch:1", framework=roles.Framework.PLAIN, job_name="tiny"),
        command=("/bin/tool", "--fast"),
        grace_s=5.0,
    ),
    "volumes": launch(
        container=backends.Container(
            volumes=(
                jobfile.Volume(claim="imagenet", mount="/data", read_only=True),
                jobfile.Volume(claim="scratch", mount="/scratch"),
            ),
            job_name="digits",
        )
    ),
    "secrets": launch(
        container=backends.Container(
            secrets=(
                kubernetessecrets.Named("hub-token", kubernetessecrets.Reference("hub", "token")),
                kubernetessecrets.Named("netrc", kubernetessecrets.Reference("logins.of-team", "net.rc")),
            ),
            job_name="digits",
        )
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_pod_is_the_golden_file(name: str) -> None:
    text = yaml.safe_dump(rendering.pod(CASES[name], SITE, "j-0abc-2-secret"), sort_keys=False)
    path = GOLDEN / f"{name}.yaml"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text)
    assert path.read_text() == text


BOTH = msgspec.structs.replace(SITE, images={"torch": "torch-cpu:1", "torch-cuda": "torch-cuda:1"})


@pytest.mark.parametrize(
    ("gpus", "image", "resource", "expected"),
    [
        (False, None, "nvidia.com/gpu", "torch-cpu:1"),
        (True, None, "nvidia.com/gpu", "torch-cuda:1"),
        (True, None, "nvidia.com/mig-1g.5gb", "torch-cuda:1"),
        (True, None, "amd.com/gpu", "torch-cpu:1"),
        (True, "mine:1", "nvidia.com/gpu", "mine:1"),
    ],
)
def test_a_job_with_gpus_of_nvidia_gets_the_image_with_cuda(
    gpus: bool, image: str | None, resource: str, expected: str
) -> None:
    told = msgspec.structs.replace(BOTH, gpu_resource=resource)
    one = launch(container=backends.Container(gpus=gpus, image=image))
    assert rendering.image(one, told) == expected
    alone = msgspec.structs.replace(told, images={"torch": "any:1"})
    assert rendering.image(one, alone) == (image or "any:1"), "the one image of an installation is for both"


def test_the_pod_of_a_job_with_gpus_and_no_image_is_the_golden_file() -> None:
    pod = rendering.pod(launch(container=backends.Container(gpus=True, job_name="digits")), BOTH, "j-0abc-2-secret")
    text, path = yaml.safe_dump(pod, sort_keys=False), GOLDEN / "cuda.yaml"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text)
    assert path.read_text() == text


def test_a_job_sees_its_own_folder_of_the_claim_for_checkpoints_alone() -> None:
    """The claim is one for all jobs of the installation."""
    claimed = msgspec.structs.replace(SITE, checkpoint_claim="checkpoints", checkpoint_path="/ckpt")
    pod = rendering.pod(CASES["volumes"], claimed, "s")
    assert {"name": "checkpoints", "persistentVolumeClaim": {"claimName": "checkpoints"}} in pod["spec"]["volumes"]
    mounts = [
        mount
        for container in pod["spec"]["containers"]
        for mount in container["volumeMounts"]
        if mount["name"] == "checkpoints"
    ]
    assert mounts == [{"name": "checkpoints", "mountPath": "/ckpt/j-0abc", "subPath": "j-0abc"}] * 2
    (init,) = pod["spec"]["initContainers"]
    assert {"name": "checkpoints", "mountPath": "/oarlock/claim"} in init["volumeMounts"]
    assert init["command"][-1].endswith(" && mkdir -p /oarlock/claim/j-0abc"), "the task's user makes the folder"
    assert restricted.violations(pod) == []


@pytest.mark.parametrize(
    ("continues", "others"),
    [
        ("/ckpt/j-0old/attempt-1-round-1-step-50", ["/ckpt/j-0old"]),
        ("/ckpt/j-0abc/attempt-1-round-1-step-50", []),
        ("s3://bucket/j-0old/attempt-1-round-1-step-50", []),
        ("/ckpt/../etc", []),
        ("/data/j-0old/attempt-1-round-1-step-50", []),
        ("", []),
    ],
)
def test_a_job_reads_the_folder_of_the_job_that_it_continues(continues: str, others: list[str]) -> None:
    claimed = msgspec.structs.replace(SITE, checkpoint_claim="checkpoints", checkpoint_path="/ckpt")
    pod = rendering.pod(launch(container=backends.Container(continues=continues)), claimed, "s")
    for container in pod["spec"]["containers"]:
        mounts = [mount for mount in container["volumeMounts"] if mount["name"] == "checkpoints"]
        mine, *rest = mounts
        assert mine == {"name": "checkpoints", "mountPath": "/ckpt/j-0abc", "subPath": "j-0abc"}
        assert [mount["mountPath"] for mount in rest] == others
        assert all(mount["readOnly"] and mount["subPath"] == "j-0old" for mount in rest)


@pytest.mark.parametrize(
    ("owner", "folder"),
    [
        ("ann", "environments/ann"),
        ("ann@example.com", "environments/ann@example.com"),
        ("..", ""),
    ],
)
def test_environments_of_dependencies_are_shared_by_the_jobs_of_one_user_alone(owner: str, folder: str) -> None:
    """An environment is code: a job must not write one that a job of another user runs."""
    claimed = msgspec.structs.replace(SITE, checkpoint_claim="checkpoints")
    one = launch(requirements="requirements.txt", container=backends.Container(owner=owner))
    pod = rendering.pod(one, claimed, "s")
    mounts = {
        container["name"]: [
            mount for mount in container["volumeMounts"] if mount["mountPath"] == "/oarlock/environments"
        ]
        for container in pod["spec"]["containers"]
    }
    (mount,) = mounts["task"]
    assert mounts["helper"] == []
    if owner == "..":
        folder = mount["subPath"]
        assert re.fullmatch("environments/[0-9a-f]{64}", folder)
    assert mount == {"name": "checkpoints", "mountPath": "/oarlock/environments", "subPath": folder}
    (init,) = pod["spec"]["initContainers"]
    assert init["command"][-1].endswith(f" && mkdir -p /oarlock/claim/j-0abc /oarlock/claim/{folder}")
    assert told_to(one, claimed)["environments"] == "/oarlock/environments"


@pytest.mark.parametrize("checkpoints", ["", "checkpoints"])
def test_environments_may_have_a_claim_of_their_own(checkpoints: str) -> None:
    """Only pods with dependencies mount it, each task the folder of its user; the init container makes the folder."""
    told = msgspec.structs.replace(SITE, checkpoint_claim=checkpoints, environments_claim="cache")
    one = launch(requirements="requirements.txt", container=backends.Container(owner="ann"))
    pod = rendering.pod(one, told, "s")
    assert {"name": "environments", "persistentVolumeClaim": {"claimName": "cache"}} in pod["spec"]["volumes"]
    (task, helper) = pod["spec"]["containers"]
    mount = {"name": "environments", "mountPath": "/oarlock/environments", "subPath": "environments/ann"}
    assert mount in task["volumeMounts"]
    assert "environments" not in json.dumps(helper["volumeMounts"])
    (init,) = pod["spec"]["initContainers"]
    own = " /oarlock/claim/j-0abc" if checkpoints else ""
    assert init["command"][-1].endswith(f" && mkdir -p{own} /oarlock/environments-claim/environments/ann")
    assert told_to(one, told)["environments"] == "/oarlock/environments"
    assert restricted.violations(pod) == []
    plain = rendering.pod(launch(), told, "s")
    assert "cache" not in json.dumps(plain)
    mine = launch(container=backends.Container(volumes=(jobfile.Volume(claim="cache", mount="/x"),)))
    with pytest.raises(errors.InvalidInput, match="environments of all jobs"):
        rendering.pod(mine, told, "s")


PROFILES = {
    "all": site.Profile(annotations={"example.com/cost": "42"}, env={"PROXY": "p", "HOME": "/root"}, groups=(2000,)),
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


def test_the_agent_is_told_where_the_platform_puts_the_values_of_secrets() -> None:
    """A profile cannot replace these variables."""
    variables = {"hub-token": "OARLOCK_SECRET_HUB_TOKEN", "netrc": "OARLOCK_SECRET_NETRC"}
    assert told_to(CASES["secrets"], SITE)["secret_variables"] == variables
    theirs = {"all": site.Profile(env={"OARLOCK_SECRET_NETRC": "mine", "OTHER": "x"})}
    pod = rendering.pod(CASES["secrets"], msgspec.structs.replace(SITE, profiles=theirs), "s")
    (task, _) = pod["spec"]["containers"]
    assert [one.get("value") for one in task["env"] if one["name"] == "OARLOCK_SECRET_NETRC"] == [None]
    assert restricted.violations(pod) == []


def test_no_secret_can_refer_to_the_secrets_of_gangs() -> None:
    """They hold the tokens of tasks."""
    names = [manifest["metadata"]["name"] for manifest, _ in rendering.secrets([CASES["worker"]], SITE)]
    for name in [*names, "j-01hf7yat00wzvc04bq-3-tensorboard"]:
        with pytest.raises(errors.InvalidInput, match="one of Oarlock's own"):
            kubernetessecrets.judge(kubernetessecrets.Reference(name, "worker-0-1.json"))


def test_without_a_claim_the_environment_ends_with_the_pod() -> None:
    one = launch(requirements="requirements.txt")
    assert told_to(one, SITE)["environments"] is None
    assert "environments" not in json.dumps(rendering.pod(one, SITE, "s"))


def told_to(one: backends.TaskLaunch, there: site.Site) -> dict[str, object]:
    ((secret, _),) = rendering.secrets([one], there)
    return dict(json.loads(base64.b64decode(secret["data"][rendering.item(one.key)])))


@pytest.mark.parametrize("name", CASES)
def test_a_pod_keeps_the_restricted_profile(name: str) -> None:
    pod = rendering.pod(CASES[name], SITE, "s")
    assert restricted.violations(pod) == []
    assert pod["spec"]["automountServiceAccountToken"] is False


def test_the_checker_finds_what_it_is_for() -> None:
    good = rendering.pod(CASES["worker"], SITE, "s")
    spoiled = {
        "spec.hostPID": lambda pod: pod["spec"].update(hostPID=True),
        "volume bad": lambda pod: pod["spec"]["volumes"].append({"name": "bad", "hostPath": {"path": "/"}}),
        "task: privileged": lambda pod: pod["spec"]["containers"][0]["securityContext"].update(privileged=True),
        "deliver: capabilities are not dropped": lambda pod: pod["spec"]["initContainers"][0]["securityContext"].update(
            capabilities={}
        ),
        "task: runAsUser is 0": lambda pod: pod["spec"]["containers"][0]["securityContext"].update(runAsUser=0),
    }
    for words, spoil in spoiled.items():
        pod = copy.deepcopy(good)
        spoil(pod)
        assert words in restricted.violations(pod)


def test_the_helper_gets_the_authorities_of_object_stores(tmp_path: Path) -> None:
    (tmp_path / "stores.pem").write_text("an authority")
    told = site.completed(msgspec.structs.replace(SITE, store_ca=str(tmp_path / "stores.pem")), b"s", None)
    one = launch()
    ((manifest, _),) = rendering.secrets([one], told)
    assert base64.b64decode(manifest["data"]["stores.pem"]) == b"an authority"
    (assigned,) = (each for each in rendering.pod(one, told, "s")["spec"]["volumes"] if each["name"] == "assignment")
    assert {"key": "stores.pem", "path": authorities.FILE} in assigned["secret"]["items"]


def test_the_pod_that_asks_for_the_server_is_the_golden_file() -> None:
    pod = reaching.pod(msgspec.structs.replace(SITE, ca_pem="an authority"), "https://10.0.0.1", 60.0)
    path = GOLDEN / "reach.yaml"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(yaml.safe_dump(pod, sort_keys=False))
    assert path.read_text() == yaml.safe_dump(pod, sort_keys=False)
    assert restricted.violations(pod) == []
    assert clusterstate.needs(msgspec.convert(pod, objects.Pod).spec, SITE.gpu_resource) == holdings.Resources()


@pytest.mark.parametrize("name", CASES)
def test_a_pod_takes_what_its_task_holds(name: str) -> None:
    """Else the node would be fuller than the store knows."""
    made = msgspec.convert(rendering.pod(CASES[name], SITE, "s"), objects.Pod)
    assert clusterstate.needs(made.spec, SITE.gpu_resource) == CASES[name].holding.amount


def test_each_pod_mounts_its_own_assignment_alone() -> None:
    launches = [launch(0), launch(1)]
    ((secret, keys),) = rendering.secrets(launches, SITE)
    assert keys == [one.key for one in launches]
    for one in launches:
        pod = rendering.pod(one, SITE, secret["metadata"]["name"])
        volume = next(volume for volume in pod["spec"]["volumes"] if volume["name"] == "assignment")["secret"]
        assert volume["secretName"] == secret["metadata"]["name"]
        (entry,) = volume["items"]
        told = json.loads(base64.b64decode(secret["data"][entry["key"]]))
        assert told["key"] == str(one.key)
        assert (told["address"], told["ports"]) == ("", [rendering.PORTS[0]])


def test_a_gang_is_its_secrets_and_a_pod_of_each_task() -> None:
    launches = [launch(index, command="x" * 60_000) for index in range(40)]
    found = rendering.gang(launches, SITE)
    mounted = {
        volume["secret"]["secretName"]
        for pod in found.pods.values()
        for volume in pod["spec"]["volumes"]
        if volume["name"] == "assignment"
    }
    assert mounted == {secret["metadata"]["name"] for secret in found.secrets}
    assert found.pods[launches[7].key] == rendering.pod(launches[7], SITE, found.secrets[0]["metadata"]["name"])


def test_the_token_is_in_no_pod() -> None:
    assert "t0ken" not in json.dumps(rendering.pod(launch(), SITE, "s"))


def test_many_assignments_lie_in_several_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    launches = [launch(index, command="x" * 60_000) for index in range(40)]
    found = rendering.secrets(launches, SITE)
    assert len(found) == 3
    assert [key for _, keys in found for key in keys] == [one.key for one in launches]
    assert all(len(json.dumps(manifest)) < 1.5 * (1 << 20) for manifest, _ in found)
    assert len({manifest["metadata"]["name"] for manifest, _ in found}) == 3


def test_names_follow_from_the_key() -> None:
    names = {
        labels.pod_name(attempts.TaskKey(job, attempt, role, index, incarnation))
        for job in ("j-1", "j-2")
        for attempt in (1, 2)
        for role in ("worker", "ps")
        for index in (0, 1)
        for incarnation in (1, 2)
    }
    assert len(names) == 32
    key = attempts.TaskKey("j-1", 2, "worker", 3, 4)
    meta = objects.Meta(labels=labels.of_task("lab", key))
    assert labels.key(meta) == key
    assert labels.key(objects.Meta(labels={**meta.labels, labels.ATTEMPT: "x"})) is None


def test_without_an_image_the_next_step_is_said() -> None:
    with pytest.raises(errors.InvalidInput, match="no image for jax"):
        rendering.pod(launch(container=backends.Container(framework=roles.Framework.JAX)), SITE, "s")


@apiserver.needed
@pytest.mark.parametrize("name", CASES)
async def test_the_api_server_takes_it_as_it_is(api: client.Client, namespace: str, name: str) -> None:
    """It drops no field, and adds none that would change what the pod takes."""
    there = msgspec.structs.replace(SITE, namespace=namespace)
    manifest = rendering.pod(CASES[name], there, "s")
    made = await api.create(f"/api/v1/namespaces/{namespace}/pods", manifest, dict)
    assert lacking(manifest, made) == []


def lacking(wanted: object, there: object, path: str = "") -> list[str]:
    """Return the paths of what was asked for and is not there."""
    if isinstance(wanted, dict) and isinstance(there, dict):
        return [
            found
            for name, value in wanted.items()
            for found in ([f"{path}.{name}"] if name not in there else lacking(value, there[name], f"{path}.{name}"))
            if value not in (False, {}, "")
        ]
    if isinstance(wanted, list) and isinstance(there, list):
        pairs = zip(wanted, there, strict=False)
        return [found for place, (one, other) in enumerate(pairs) for found in lacking(one, other, f"{path}[{place}]")]
    return [] if str(wanted) == str(there) or path.endswith((".cpu", ".memory", ".sizeLimit")) else [f"{path}: {there}"]

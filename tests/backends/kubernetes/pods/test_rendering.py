"""Rendered manifests are golden files: a change of a pod is a change that a reader sees.

`UPDATE_GOLDEN=1 pytest tests/backends/kubernetes/pods` writes them anew.
"""

from __future__ import annotations

import base64
import getpass
import json
import os
import re
from pathlib import Path

import msgspec
import pytest
import yaml
from tests.backends.kubernetes.testcluster import apiserver, restricted

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


def test_the_user_of_a_task_has_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """No image knows the number of the user. Libraries ask for the name, as torch does for the place of its caches."""
    (task,) = (one for one in rendering.pod(CASES["worker"], SITE, "s")["spec"]["containers"] if one["name"] == "task")
    inherited = {one["name"]: one["value"] for one in task["env"] if "value" in one}
    monkeypatch.setattr(os, "environ", inherited)
    assert getpass.getuser() == "oarlock"


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

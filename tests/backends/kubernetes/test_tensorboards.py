"""The pod of a TensorBoard: its manifest, and its life against a real API server."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path

import msgspec
import pytest
import yaml
from tests.backends.kubernetes import conftest
from tests.backends.kubernetes.pods import test_rendering
from tests.backends.kubernetes.test_backend import KubernetesRig, rig  # noqa: F401  (a fixture)
from tests.backends.kubernetes.testcluster import apiserver, cluster, restricted, rights

from oarlock.backends.kubernetes import clusterstate, tensorboards
from oarlock.backends.kubernetes.apiserver import client, objects
from oarlock.backends.kubernetes.pods import boards
from oarlock.spec import errors, holdings, jobfile, jobs, resources

GOLDEN = Path(test_rendering.__file__).parent / "golden" / "tensorboard.yaml"
SITE = msgspec.structs.replace(
    test_rendering.SITE,
    images={"tensorboard": "registry.example/tensorboard:1"},
    ca_pem="an authority",
    nodes={"example.com/pool": "training"},
)
OWNER = [{"apiVersion": "oarlock.dev/v1alpha1", "kind": "OarlockJob", "name": "digits-0abc", "uid": "u-1"}]
SPEC = jobfile.JobSpec(command="true", tensorboard=True)
JOB = jobs.Job(id="j-0abc", name="digits", owner="ann", spec=SPEC, created_at=0.0)


def test_the_manifests_are_the_golden_file() -> None:
    made = [
        boards.secret("j-0abc", SITE, "https://oarlock.example", "t0ken", OWNER),
        boards.pod("j-0abc", "digits", SITE, OWNER),
    ]
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.write_text(yaml.safe_dump_all(made, sort_keys=False))
    assert made == list(yaml.safe_load_all(GOLDEN.read_text()))
    login = json.loads(base64.b64decode(made[0]["data"][boards.LOGIN]))
    assert login == {"server": "https://oarlock.example", "token": "t0ken", "ca_file": "/oarlock/client/ca.pem"}


def test_the_pod_keeps_the_restricted_profile_and_shows_its_port_to_nobody() -> None:
    pod = boards.pod("j-0abc", "digits", SITE, [])
    assert restricted.violations(pod) == []
    shown = pod["spec"]["containers"][0]["command"]
    assert shown[shown.index("--host") + 1] == "127.0.0.1"
    assert all("ports" not in one for one in pod["spec"]["containers"])


def test_a_node_counts_its_requests_as_taken_by_others() -> None:
    """No job holds them, and the scheduler must know of them."""
    made = {**boards.pod("j-0abc", "digits", SITE, []), "status": {"phase": "Running"}}
    made["spec"]["nodeName"] = "n1"
    pod = msgspec.convert(made, objects.Pod)
    state = clusterstate.ClusterState(None, SITE, monotonic=lambda: 0.0)  # type: ignore[arg-type]  # nothing is asked
    taken = state._pod(pod)
    assert taken is not None
    assert taken.amount == holdings.Resources(cpus_milli=110, memory_bytes=384 << 20)


def way_of(server: apiserver.ApiServer, pretended: cluster.Cluster) -> tuple[client.Client, tensorboards.TensorBoards]:
    api = client.Client(conftest.access(server, rights.SERVER))
    site = msgspec.structs.replace(pretended.site, images={"tensorboard": cluster.IMAGE})

    async def owner(_: jobs.Job) -> resources.Resource | None:
        return None

    return api, tensorboards.TensorBoards(api, site, owner, server="http://10.0.0.1", secret=b"s" * 32)


@apiserver.needed
async def test_the_life_of_a_tensorboard(rig: KubernetesRig, api: client.Client) -> None:  # noqa: F811  (the fixture)
    """Made once, bound by the stock scheduler, replaced after an eviction, removed with its Secret: with the granted
    rights of the server, and beside a task of the same job, which stays.
    """
    opened, way = way_of(rig.server, rig.cluster)
    async with opened:
        assert way.makes
        await way.make(JOB)
        await way.make(JOB)
        assert (await way.there()).keys() == {JOB.id}
        with pytest.raises(errors.Conflict, match="does not run yet"):
            await way.connect(JOB.id)
        pods = rig.cluster.path("pods")
        pod = await api.get(f"{pods}/{boards.name(JOB.id)}", objects.Pod)
        assert pod.spec.scheduler_name == "default-scheduler"
        names = [boards.SHOW, boards.FEED]
        await api.patch(f"{pods}/{pod.metadata.name}/status", {"status": cluster.running(names=names)}, objects.Bare)
        assert await way.there() == {JOB.id: ""}
        evicted = {"phase": "Failed", "reason": "Evicted"}
        await api.patch(f"{pods}/{pod.metadata.name}/status", {"status": evicted}, objects.Bare)
        assert await way.there() == {}
        await way.make(JOB)  # it removes the one that has ended
        await way.make(JOB)
        assert (await api.get(f"{pods}/{pod.metadata.name}", objects.Pod)).metadata.uid != pod.metadata.uid
        await way.remove(JOB.id)
        await way.remove(JOB.id)
        assert not [one for one in await api.list(pods, objects.Pod) if one.metadata.deletion_timestamp is None]
        found = await api.list(rig.cluster.path("secrets"), objects.Bare)
        assert boards.name(JOB.id) not in {one.metadata.name for one in found}
        with pytest.raises(errors.OarlockError):
            await way.connect(JOB.id)

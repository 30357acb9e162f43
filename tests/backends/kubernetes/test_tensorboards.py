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

from oarlock.backends import backends
from oarlock.backends.kubernetes import clusterstate, tensorboards
from oarlock.backends.kubernetes.apiserver import client, objects
from oarlock.backends.kubernetes.pods import boards, labels
from oarlock.spec import attempts, errors, holdings, jobfile, jobs, resources

GOLDEN = Path(test_rendering.__file__).parent / "golden" / "tensorboard.yaml"
SITE = msgspec.structs.replace(
    test_rendering.SITE,
    images={"tensorboard": "registry.example/tensorboard:1"},
    ca_pem="an authority",
    nodes={"example.com/pool": "training"},
)
OWNER = [{"apiVersion": "oarlock.dev/v1alpha1", "kind": "OarlockJob", "name": "digits-0abc", "uid": "u-1"}]
SPEC = jobfile.JobSpec(command="true", tensorboard=True)
JOB = jobs.Job(
    id="j-0abc",
    name="digits",
    owner="ann",
    spec=SPEC,
    created_at=0.0,
    attempts=(attempts.Attempt(number=1, started_at=0.0),),
)
URL = "https://oarlock.example"


def test_the_manifests_are_the_golden_file() -> None:
    login = boards.login(SITE, URL, "t0ken")
    pod = boards.pod("j-0abc", 1, "digits", SITE, login, OWNER)
    made = [pod, boards.secret("j-0abc", 1, SITE, login, objects.Meta(name=pod["metadata"]["name"], uid="u-2"))]
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.write_text(yaml.safe_dump_all(made, sort_keys=False))
    assert made == list(yaml.safe_load_all(GOLDEN.read_text()))
    told = json.loads(base64.b64decode(made[1]["data"][boards.LOGIN]))
    assert told == {"server": URL, "token": "t0ken", "ca_file": "/oarlock/client/ca.pem"}


def test_the_pod_keeps_the_restricted_profile_and_shows_its_port_to_nobody() -> None:
    pod = boards.pod("j-0abc", 1, "digits", SITE, boards.login(SITE, URL, "t0ken"), [])
    assert restricted.violations(pod) == []
    shown = pod["spec"]["containers"][0]["command"]
    assert shown[shown.index("--host") + 1] == "127.0.0.1"
    assert all("ports" not in one for one in pod["spec"]["containers"])


def test_a_node_counts_its_requests_as_taken_by_others() -> None:
    """No job holds them, and the scheduler must know of them."""
    login = boards.login(SITE, URL, "t0ken")
    made = {**boards.pod("j-0abc", 1, "digits", SITE, login, []), "status": {"phase": "Running"}}
    made["spec"]["nodeName"] = "n1"
    pod = msgspec.convert(made, objects.MountingPod)
    state = clusterstate.ClusterState(None, SITE, monotonic=lambda: 0.0)  # type: ignore[arg-type]  # nothing is asked
    taken = state._pod(pod)
    assert taken is not None
    assert taken.amount == holdings.Resources(cpus_milli=110, memory_bytes=384 << 20)


class Cluster:
    """TensorBoards over the real API server with the granted rights of the server, at the address `url`."""

    def __init__(self, rig: KubernetesRig, api: client.Client) -> None:  # noqa: F811  (the fixture)
        self.api = api
        self.rig = rig
        self.pods = rig.cluster.path("pods")
        self.opened = client.Client(conftest.access(rig.server, rights.SERVER))
        self.way = self.at("http://10.0.0.1")

    def at(self, url: str) -> tensorboards.TensorBoards:
        site = msgspec.structs.replace(self.rig.cluster.site, images={"tensorboard": cluster.IMAGE})

        async def owner(_: jobs.Job) -> resources.Resource | None:
            return None

        return tensorboards.TensorBoards(self.opened, site, owner, server=url, secret=b"s" * 32)

    async def pod(self) -> objects.Pod:
        return await self.api.get(f"{self.pods}/{boards.name(JOB.id, 1)}", objects.Pod)

    async def set_status(self, status: dict[str, object]) -> None:
        await self.api.patch(f"{self.pods}/{boards.name(JOB.id, 1)}/status", {"status": status}, objects.Bare)

    async def secrets(self) -> list[objects.Meta]:
        found = await self.api.list(self.rig.cluster.path("secrets"), objects.Bare)
        return [one.metadata for one in found if labels.TENSORBOARD in one.metadata.labels]


@apiserver.needed
async def test_the_life_of_a_tensorboard(rig: KubernetesRig, api: client.Client) -> None:  # noqa: F811  (the fixture)
    """Made once, bound by the stock scheduler, replaced after an eviction, removed: with the granted rights of the
    server. Its Secret belongs to the pod alone, so that the cluster's garbage collector takes it with the pod.
    """
    at = Cluster(rig, api)
    async with at.opened:
        assert at.way.makes
        made = await at.way.make(JOB, backends.always)
        assert await at.way.make(JOB, backends.always) == made
        (board,) = await at.way.there()
        assert (board.key, board.uid, board.good) == ((JOB.id, 1), made, True)
        assert await at.way.of(JOB) == board
        with pytest.raises(errors.Conflict, match="does not run yet"):
            await at.way.connect(JOB)
        assert (await at.pod()).spec.scheduler_name == "default-scheduler"
        (secret,) = await at.secrets()
        assert [(one.kind, one.uid) for one in secret.owner_references] == [("Pod", made)]
        await at.set_status(cluster.running(names=[boards.SHOW, boards.FEED]))
        (board,) = await at.way.there()
        assert board.reason == ""
        await at.set_status({"phase": "Failed", "reason": "Evicted"})
        (board,) = await at.way.there()
        assert not board.good
        assert await at.way.make(JOB, backends.always) == "", "the one that has ended goes first"
        await at.way.remove(board, backends.always)
        again = await at.way.make(JOB, backends.always)
        assert again not in {"", made}
        (secret,) = await at.secrets()
        assert [one.uid for one in secret.owner_references] == [again], "the one of before is about to go"
        await at.way.remove(board, backends.always)
        assert (await at.pod()).metadata.uid == again, "only the one that was meant is removed"
        (board,) = await at.way.there()
        await at.way.remove(board, backends.always)
        await at.way.remove(board, backends.always)
        assert not [one for one in await api.list(at.pods, objects.Pod) if one.metadata.deletion_timestamp is None]


@apiserver.needed
async def test_one_that_is_refused_leaves_no_secret(rig: KubernetesRig, api: client.Client) -> None:  # noqa: F811
    at = Cluster(rig, api)
    await rig.cluster.quota("none", pods="0")
    async with at.opened:
        with pytest.raises(errors.Forbidden, match="exceeded quota"):
            await at.way.make(JOB, backends.always)
        assert await at.secrets() == []


@apiserver.needed
async def test_an_interrupted_one_is_completed(rig: KubernetesRig, api: client.Client) -> None:  # noqa: F811
    """A pod without its Secret gets one at the next try."""
    at = Cluster(rig, api)
    async with at.opened:
        asked = iter([True, False])  # before the pod, before the Secret
        with pytest.raises(errors.StaleEpoch):
            await at.way.make(JOB, lambda: next(asked))
        (board,) = await at.way.there()
        assert await at.secrets() == []
        assert await at.way.make(JOB, backends.always) == board.uid
        assert len(await at.secrets()) == 1
        with pytest.raises(errors.StaleEpoch):
            await at.way.remove(board, lambda: False)
        assert await at.way.there() == [board]


@apiserver.needed
async def test_one_with_an_old_address_is_made_anew(rig: KubernetesRig, api: client.Client) -> None:  # noqa: F811
    at = Cluster(rig, api)
    async with at.opened:
        await at.way.make(JOB, backends.always)
        moved = at.at("http://10.0.0.2")
        (board,) = await moved.there()
        assert not board.good
        assert await moved.make(JOB, backends.always) == ""
        await moved.remove(msgspec.structs.replace(board, reason=tensorboards.HAS_ENDED), backends.always)  # at once
        made = await moved.make(JOB, backends.always)
        assert [(one.uid, one.good) for one in await moved.there()] == [(made, True)]
        found = await api.get(f"{rig.cluster.path('secrets')}/{boards.name(JOB.id, 1)}", Secret)
        assert json.loads(base64.b64decode(found.data[boards.LOGIN]))["server"] == "http://10.0.0.2"


class Secret(msgspec.Struct):
    metadata: objects.Meta
    data: dict[str, str]

"""Claims of devices (DRA). The API server of the tests is too old for them, and drops them from pods.

So the answers of a cluster that has them are pretended, and the refusals are those of a real API server.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from tests.backends import contract
from tests.backends.kubernetes import conftest
from tests.backends.kubernetes.test_backend import KubernetesRig, rig  # noqa: F401  (a fixture)
from tests.backends.kubernetes.testcluster import apiserver, cluster, recording, rights

from oarlock.backends.kubernetes import backend, site, slices, steering
from oarlock.backends.kubernetes.apiserver import client, discovery, objects
from oarlock.backends.kubernetes.pods import rendering
from oarlock.spec import errors, jobfile, jobs

key = contract.key
PROFILES = {"devices": site.Profile(device_claims={"gpu": "one-gpu"})}
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
DEFINED = f"{steering.TEMPLATES}.{steering.DEVICES}"


class Answers:
    """A client of a cluster with these versions of the group, the ones in `kinds` with the templates."""

    def __init__(self, versions: Sequence[str], kinds: Sequence[str]) -> None:
        self.asked = 0
        self._of = {
            f"/apis/{steering.DEVICES}": {"versions": [{"version": one} for one in versions]},
            **{f"/apis/{steering.DEVICES}/{one}": {"resources": [{"name": "deviceclasses"}]} for one in versions},
            **{f"/apis/{steering.DEVICES}/{one}": {"resources": [{"name": steering.TEMPLATES}]} for one in kinds},
        }

    async def get(self, path: str, kind: type[Any]) -> Any:
        self.asked += 1
        if path not in self._of or (path.endswith(steering.DEVICES) and not self._of[path]["versions"]):
            raise errors.NotFound(path, hint="")
        return msgspec.convert(self._of[path], kind)


@pytest.mark.parametrize(
    ("versions", "kinds", "found"),
    [
        (("v1", "v1beta1"), ("v1", "v1beta1"), "v1"),
        (("v1beta1", "v1beta2"), ("v1beta1", "v1beta2"), "v1beta2"),
        (("v1", "v1alpha3"), ("v1alpha3",), "v1alpha3"),
        (("v1alpha2",), ("v1alpha2",), None),
        ((), (), None),
    ],
)
async def test_the_newest_known_version_with_the_templates_is_found(
    versions: tuple[str, ...], kinds: tuple[str, ...], found: str | None
) -> None:
    """Pods of an older version name the template in another field. The answer is kept for a while, then asked anew."""
    now = [0.0]
    api = Answers(versions, kinds)
    told: Any = api
    kind = discovery.Kind(
        told, steering.DEVICES, steering.TEMPLATES, steering.DEVICE_VERSIONS, monotonic=lambda: now[0]
    )
    assert await kind.version() == found
    asked = api.asked
    assert await kind.version() == found
    assert api.asked == asked
    now[0] += discovery.DISCOVERED_S
    assert await kind.version() == found
    assert api.asked == 2 * asked


@apiserver.needed
async def test_a_pod_as_a_cluster_with_device_claims_returns_it_is_accepted(rig: KubernetesRig) -> None:  # noqa: F811
    told = msgspec.structs.replace(rig.cluster.site, profiles=PROFILES)
    one = rig.launch_of(key(), cluster.Play())
    manifest = rendering.pod(one, told, "s", steered=True)
    nothing: Any = None
    claims = steering.DeviceClaims(nothing, told, monotonic=lambda: 0.0)
    claims.check_returned(one, msgspec.convert(manifest, objects.Pod))
    manifest["spec"]["resourceClaims"][0]["resourceClaimTemplateName"] = "another"
    with pytest.raises(errors.Unavailable, match="left the device claim gpu out"):
        claims.check_returned(one, msgspec.convert(manifest, objects.Pod))


def claiming(rig: KubernetesRig) -> None:  # noqa: F811  (the fixture)
    """Let the backend give each pod a claim of devices."""
    told = msgspec.structs.replace(rig.cluster.site, profiles=PROFILES)
    api = client.Client(conftest.access(rig.server, rights.SERVER))
    rig.backend = backend.KubernetesBackend(api, told, clock=time.time, monotonic=time.monotonic)
    rig.backend.open()
    rig.opened.append(rig.backend)


async def planned(rig: KubernetesRig) -> list[rendering.Manifest]:  # noqa: F811  (the fixture)
    spec = jobfile.JobSpec(command="true")
    job = jobs.Job(id="j-planned", name="planned", owner="ann", spec=spec, created_at=0.0)
    return await rig.opened[-1].manifests(job, lambda owner: [rig.launch_of(key(), cluster.Play())])


@apiserver.needed
async def test_the_stock_scheduler_is_asked_for_the_pods(rig: KubernetesRig) -> None:  # noqa: F811
    claiming(rig)
    api: Any = Answers(("v1",), ("v1",))
    rig.opened[-1]._devices._kind = discovery.Kind(
        api, steering.DEVICES, steering.TEMPLATES, steering.DEVICE_VERSIONS, monotonic=time.monotonic
    )
    *_, pod = await planned(rig)
    assert pod["spec"]["schedulerName"] == "default-scheduler"
    assert "nodeAffinity" in pod["spec"]["affinity"]


@apiserver.needed
async def test_a_cluster_without_the_kind_gets_no_pod_without_its_devices(rig: KubernetesRig) -> None:  # noqa: F811
    claiming(rig)
    with pytest.raises(errors.Unavailable, match=r"the cluster has no resourceclaimtemplates\.resource\.k8s\.io"):
        await rig.backend.launch([rig.launch_of(key(), cluster.Play())])
    assert not await rig.cluster.api.list(rig.cluster.path("pods"), objects.Bare)
    with pytest.raises(errors.Unavailable, match=r"the cluster has no resourceclaimtemplates\.resource\.k8s\.io"):
        await planned(rig)


@apiserver.needed
async def test_a_claim_that_the_api_server_drops_fails_the_launch(rig: KubernetesRig) -> None:  # noqa: F811
    """The kind is there, as with a feature that is switched off: this API server knows no such field of pods."""
    await define(rig)
    try:
        claiming(rig)
        with pytest.raises(errors.Unavailable, match="the API server left the device claim gpu out of the pod"):
            await rig.backend.launch([rig.launch_of(key(), cluster.Play())])
    finally:
        await rig.cluster.api.delete(f"{DEFINITIONS}/{DEFINED}")


async def define(
    rig: KubernetesRig,  # noqa: F811  (the fixture)
    plural: str = steering.TEMPLATES,
    kind: str = "ResourceClaimTemplate",
    scope: str = "Namespaced",
) -> None:
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    body = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{plural}.{steering.DEVICES}",
            "annotations": {"api-approved.kubernetes.io": "https://example.com/a-test"},
        },
        "spec": {
            "group": steering.DEVICES,
            "scope": scope,
            "names": {"plural": plural, "singular": kind.lower(), "kind": kind},
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": schema}],
        },
    }
    await rig.cluster.api.create(DEFINITIONS, body, objects.Bare)

    async def served() -> bool:
        api = rig.cluster.api
        found = discovery.Kind(api, steering.DEVICES, plural, ("v1",), monotonic=lambda: 0.0)
        return await found.version() == "v1"

    while not await served():
        await rig.pass_time()


@apiserver.needed
async def test_the_slices_of_a_node_are_followed_with_the_rights_of_the_server(rig: KubernetesRig) -> None:  # noqa: F811
    """A change of the devices on one node says nothing about another; devices that several nodes reach, about all."""
    path = f"/apis/{steering.DEVICES}/v1/{slices.SLICES}"

    async def offer(name: str, **spec: Any) -> None:
        body = {"apiVersion": f"{steering.DEVICES}/v1", "kind": "ResourceSlice", "metadata": {"name": name}}
        await rig.cluster.api.create(path, {**body, "spec": {"driver": "d", **spec}}, objects.Bare)

    async def changes(of: str, before: object) -> None:
        while followed.of(of) == before:  # the test's time limit bounds it
            await rig.pass_time()

    await define(rig, slices.SLICES, "ResourceSlice", "Cluster")
    told = msgspec.structs.replace(rig.cluster.site, profiles=PROFILES)
    try:
        used: recording.Used = set()
        access, note = conftest.access(rig.server, rights.SERVER), recording.into(used, [rig.cluster.namespace])
        async with client.Client(access, around=note) as api:
            calls: list[None] = []
            followed = slices.Slices(api, told, monotonic=time.monotonic, changed=lambda: calls.append(None))
            running = asyncio.create_task(followed.run())
            nothing = followed.of("n1")
            await offer("first", nodeName="n1")
            await changes("n1", nothing)
            one = followed.of("n1")
            assert followed.of("n2") == nothing
            await offer("second", nodeName="n1")
            await changes("n1", one)
            assert followed.of("n2") == nothing
            await offer("shared", allNodes=True)
            await changes("n2", nothing)
            two = followed.of("n1")
            await rig.cluster.api.delete(f"{path}/first")
            await changes("n1", two)
            assert calls
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            plain = slices.Slices(api, rig.cluster.site, monotonic=time.monotonic, changed=lambda: None)
            await plain.run()  # nothing is followed where no profile names claims
            assert used == rights.of_slices()
    finally:
        await rig.cluster.api.delete(f"{DEFINITIONS}/{slices.SLICES}.{steering.DEVICES}")

"""Requests for nodes at a real API server with the definition of ProvisioningRequest, and a pretend autoscaler."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from tests import needs
from tests.backends.kubernetes import conftest
from tests.backends.kubernetes.testcluster import apiserver, cluster, customobjects, restricted, rights
from tests.controllers import test_provisioning as stories

from oarlock.backends import provisioners
from oarlock.backends.kubernetes import noderequests
from oarlock.backends.kubernetes import site as sites
from oarlock.backends.kubernetes.apiserver import client, discovery, objects
from oarlock.spec import errors, events, holdings
from oarlock.spec.cluster import nodes, provisioning

pytestmark = apiserver.needed
Answer = provisioning.Answer

_DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_NAME = f"{noderequests.PLURAL}.{noderequests.GROUP}"
_ANY: dict[str, Any] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
DEFINITION = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {
        "name": _NAME,
        "annotations": {"api-approved.kubernetes.io": "https://github.com/kubernetes/autoscaler/pull/5848"},
    },
    "spec": {
        "group": noderequests.GROUP,
        "scope": "Namespaced",
        "names": {"plural": noderequests.PLURAL, "singular": "provisioningrequest", "kind": "ProvisioningRequest"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "required": ["spec"],
                        "properties": {
                            "spec": {
                                "type": "object",
                                "required": ["podSets", "provisioningClassName"],
                                "properties": {
                                    "provisioningClassName": {"type": "string", "maxLength": 253},
                                    "parameters": {"type": "object", "additionalProperties": {"type": "string"}},
                                    "podSets": {
                                        "type": "array",
                                        "minItems": 1,
                                        "maxItems": 32,
                                        "items": {
                                            "type": "object",
                                            "required": ["count", "podTemplateRef"],
                                            "properties": {
                                                "count": {"type": "integer", "minimum": 1},
                                                "podTemplateRef": {
                                                    "type": "object",
                                                    "properties": {"name": {"type": "string"}},
                                                },
                                            },
                                        },
                                    },
                                },
                            },
                            "status": _ANY,
                        },
                    }
                },
            }
        ],
    },
}
"""The definition as the autoscaler brings it, as far as a request can break it."""


@contextlib.asynccontextmanager
async def definition(api: client.Client) -> AsyncIterator[None]:
    """Install the definition; take it away afterwards."""
    await api.create(_DEFINITIONS, DEFINITION, objects.Bare)
    try:
        await _until(api, there=True)
        yield
    finally:
        await api.delete(f"{_DEFINITIONS}/{_NAME}")
        await _until(api, there=False)


async def _until(api: client.Client, *, there: bool) -> None:
    """Wait until the API server serves the kind, or no longer does, and until discovery tells so: it may lag."""
    deadline = time.monotonic() + apiserver.PATIENCE_S
    while await _is_served(api) != there or (await _discovered(api) is not None) != there:
        assert time.monotonic() < deadline, "the API server and its discovery tell the same"
        await asyncio.sleep(0.1)


async def _is_served(api: client.Client) -> bool:
    try:
        await api.get(f"/apis/{noderequests.GROUP}/v1/namespaces/default/{noderequests.PLURAL}", objects.Bare)
    except errors.NotFound:
        return False
    return True


async def _discovered(api: client.Client) -> str | None:
    """Return the version that discovery tells now."""
    asked = discovery.Kind(api, noderequests.GROUP, noderequests.PLURAL, ("v1",), monotonic=time.monotonic)
    return await asked.version()


def request(number: int = 1) -> provisioning.NodeRequest:
    tasks = (
        provisioning.Tasks(role="ps", amount=holdings.Resources(500, 1 << 30), node_class="", count=1),
        provisioning.Tasks(role="worker", amount=holdings.Resources(2000, 1 << 30, 4), node_class="big", count=2),
    )
    return provisioning.NodeRequest(number=number, need=provisioning.Need(nodes={"big": 2}, tasks=tasks), at=1000.0)


@pytest.fixture(scope="module")
def api_server(mortal_server: apiserver.ApiServer) -> apiserver.ApiServer:
    return mortal_server


@pytest.fixture(scope="module")
def stored(api_server: apiserver.ApiServer) -> customobjects.CustomObjects | None:
    """Where the objects are kept, if the API server cannot keep them itself."""

    async def are_stored() -> bool:
        async with client.Client(conftest.access(api_server), tries=1) as api, definition(api):
            metadata = {"name": "trial", "namespace": "default"}
            body = {
                "apiVersion": f"{noderequests.GROUP}/v1",
                "kind": "ProvisioningRequest",
                "metadata": metadata,
                "spec": {"provisioningClassName": "c", "podSets": [{"count": 1, "podTemplateRef": {"name": "t"}}]},
            }
            path = f"/apis/{noderequests.GROUP}/v1/namespaces/default/{noderequests.PLURAL}"
            return await customobjects.are_stored(api_server, api, path, body)

    return None if asyncio.run(are_stored()) else customobjects.CustomObjects(noderequests.PLURAL)


@pytest.fixture
async def api(
    api_server: apiserver.ApiServer, stored: customobjects.CustomObjects | None
) -> AsyncIterator[client.Client]:
    """An administrator."""
    async with client_of(api_server, stored, "admin-token") as opened:
        yield opened


def client_of(
    api_server: apiserver.ApiServer, stored: customobjects.CustomObjects | None, token: str = rights.SERVER
) -> client.Client:
    """Return a client with the rights of the server."""
    access = conftest.access(api_server, token)
    return client.Client(access) if stored is None else client.Client(access, around=stored.around)


def test_the_api_server_keeps_custom_objects(stored: customobjects.CustomObjects | None) -> None:
    if stored is not None:
        needs.skip("custom objects")


def site_of(api: client.Client, namespace: str) -> sites.Site:
    return cluster.Cluster(api, namespace).site


class ClusterAutoscaled(stories.Autoscaled):
    """The controller over the API server: the autoscaler writes the conditions of the requests, as administrator."""

    def __init__(self, api: client.Client, provisioner: noderequests.NodeRequests, namespace: str) -> None:
        super().__init__(provisioner)
        self.api = api
        self.path = f"/apis/{noderequests.GROUP}/v1/namespaces/{namespace}/{noderequests.PLURAL}"
        self.core = f"/api/v1/namespaces/{namespace}"

    async def requests(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = (await self.api.get(self.path, dict[str, Any]))["items"]
        return found

    async def answer(self, answer: Answer, message: str = "") -> None:
        kind = {
            Answer.ACCEPTED: "Accepted",
            Answer.PROVISIONED: "Provisioned",
            Answer.FAILED: "Failed",
            Answer.EXPIRED: "BookingExpired",
        }[answer]
        (one,) = await self.requests()
        told = [*one.get("status", {}).get("conditions", ()), {"type": kind, "status": "True", "message": message}]
        path = f"{self.path}/{one['metadata']['name']}/status"
        await self.api.patch(path, {"status": {"conditions": told}}, objects.Bare)

    async def open(self) -> dict[tuple[str, int], int]:
        found = await self.requests()
        templates = (await self.api.get(f"{self.core}/podtemplates", dict[str, Any]))["items"]
        assert {one["metadata"]["name"] for one in templates} == {
            part["podTemplateRef"]["name"] for one in found for part in one["spec"]["podSets"]
        }
        return {
            (one["metadata"]["labels"]["oarlock.dev/job"], int(one["metadata"]["labels"][noderequests.NUMBER])): sum(
                part["count"] for part in one["spec"]["podSets"]
            )
            for one in found
        }

    async def told(self) -> list[tuple[str, dict[str, int]]]:
        events = (await self.api.get(f"{self.core}/events", dict[str, Any]))["items"]
        return [
            (
                one["involvedObject"]["name"],
                {
                    name: int(count)
                    for name, _, count in (
                        part.partition("=") for part in one["metadata"]["annotations"][noderequests.MISSING].split(",")
                    )
                },
            )
            for one in sorted(events, key=lambda one: one["metadata"]["creationTimestamp"])
        ]


@pytest.fixture
async def scaled(
    api_server: apiserver.ApiServer, stored: customobjects.CustomObjects | None, api: client.Client, namespace: str
) -> AsyncIterator[ClusterAutoscaled]:
    site = site_of(api, namespace)
    async with definition(api), client_of(api_server, stored) as server:
        yield ClusterAutoscaled(api, noderequests.NodeRequests(server, site), namespace)


async def test_accepted_provisioned_and_withdrawn(scaled: ClusterAutoscaled) -> None:
    await stories.test_nodes_are_requested_and_the_request_is_withdrawn_when_the_gang_starts(scaled)


@pytest.mark.parametrize("answer", [Answer.FAILED, Answer.EXPIRED])
async def test_rejected_or_expired_and_made_again(scaled: ClusterAutoscaled, answer: Answer) -> None:
    await stories.test_a_request_that_came_to_nothing_is_made_again(scaled, answer)


async def test_too_few_nodes(scaled: ClusterAutoscaled) -> None:
    await stories.test_too_few_nodes_are_requested_again_without_those_that_came(scaled)


async def test_canceled(scaled: ClusterAutoscaled) -> None:
    await stories.test_a_job_that_is_taken_back_withdraws_its_request(scaled, "cancel")


async def test_another_size(scaled: ClusterAutoscaled) -> None:
    await stories.test_a_gang_that_changes_its_size_has_one_request_for_the_new_size(scaled)


async def test_the_same_size(scaled: ClusterAutoscaled) -> None:
    await stories.test_a_change_that_needs_no_other_nodes_keeps_the_request(scaled, events.Edited(max=4))


async def test_without_the_definition_the_event_carries_the_numbers(
    api_server: apiserver.ApiServer, stored: customobjects.CustomObjects | None, api: client.Client, namespace: str
) -> None:
    site = site_of(api, namespace)
    async with client_of(api_server, stored) as server:
        scaled = ClusterAutoscaled(api, noderequests.NodeRequests(server, site), namespace)
        job = await scaled.plant.submit(stories.LARGE)
        await scaled.until(lambda one: one.node_request is not None, job)
        assert await scaled.told() == [(job, {"big": 2})]
        scaled.add(1)
        await scaled.until(lambda one: one.node_request is not None and one.node_request.need.nodes == {"big": 1}, job)
        told = await scaled.told()
        assert sorted(told, key=str) == [(job, {"big": 1}), (job, {"big": 2})]


@pytest.fixture(params=["memory", "cluster"])
async def provisioner(
    request: pytest.FixtureRequest,
    api_server: apiserver.ApiServer,
    stored: customobjects.CustomObjects | None,
    api: client.Client,
    namespace: str,
) -> AsyncIterator[provisioners.Provisioner]:
    if request.param == "memory":
        yield provisioners.Memory()
        return
    site = site_of(api, namespace)
    async with definition(api), client_of(api_server, stored) as server:
        yield noderequests.NodeRequests(server, site)


async def test_a_request_is_made_and_withdrawn_once(provisioner: provisioners.Provisioner) -> None:
    """Both ways to request nodes keep to the same contract."""
    assert await provisioner.answered() == []
    for number in (1, 1, 2):
        await provisioner.request("j-1", request(number))
    await provisioner.request("j-2", request(1))
    found = await provisioner.answered()
    assert found is not None
    assert {(one.job, one.number, one.answer) for one in found} == {
        ("j-1", 1, Answer.NONE),
        ("j-1", 2, Answer.NONE),
        ("j-2", 1, Answer.NONE),
    }
    for number in (1, 1):
        await provisioner.withdraw("j-1", number)
    found = await provisioner.answered()
    assert found is not None
    assert {(one.job, one.number) for one in found} == {("j-1", 2), ("j-2", 1)}


async def test_the_definition_may_come_later(
    api_server: apiserver.ApiServer, stored: customobjects.CustomObjects | None, api: client.Client, namespace: str
) -> None:
    now = [time.monotonic()]
    site = site_of(api, namespace)
    async with client_of(api_server, stored) as server:
        looks = noderequests.NodeRequests(server, site, monotonic=lambda: now[0])
        assert await looks.answered() is None
        async with definition(api):
            assert await looks.answered() is None, "discovery is not asked each time"
            now[0] += discovery.DISCOVERED_S
            assert await looks.answered() == []


def test_the_pods_of_a_request_are_those_of_the_gang() -> None:
    site = sites.Site(installation="one", namespace="jobs", image="registry.example/oarlock:1", nodes={"pool": "gpu"})
    servers, workers = (noderequests.template(site, "j-1", request(), index) for index in (0, 1))
    assert servers["template"]["spec"]["nodeSelector"] == {"pool": "gpu"}
    spec = workers["template"]["spec"]
    assert restricted.violations(workers["template"]) == []
    assert spec["nodeSelector"] == {"pool": "gpu", "node.kubernetes.io/instance-type": "big"}
    wanted = {"cpu": "2", "memory": str(1 << 30), "nvidia.com/gpu": "4"}
    assert spec["containers"][0]["resources"] == {"requests": wanted, "limits": wanted}
    assert spec["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists"}]


def test_the_pods_of_a_request_have_the_constraints_of_the_gang() -> None:
    """An autoscaler would add no node, or one that the gang cannot use."""
    site = sites.Site(installation="one", namespace="jobs", image="registry.example/oarlock:1", nodes={"pool": "gpu"})
    held = nodes.Constraints(
        tolerates=("nvidia.com/gpu", "team=a"), labels=(("disk", "ssd"),), claims=("data", "devices/mig")
    )
    one = request()
    tasks = tuple(msgspec.structs.replace(of, constraints=held) for of in one.need.tasks)
    asked = msgspec.structs.replace(one, need=msgspec.structs.replace(one.need, tasks=tasks))
    spec = noderequests.template(site, "j-1", asked, 0)["template"]["spec"]
    assert spec["nodeSelector"] == {"pool": "gpu", "disk": "ssd"}
    assert spec["tolerations"] == [
        {"key": "nvidia.com/gpu", "operator": "Exists"},
        {"key": "team", "operator": "Equal", "value": "a"},
    ]
    assert spec["volumes"] == [{"name": "claim-0", "persistentVolumeClaim": {"claimName": "data"}}]
    assert spec["resourceClaims"] == [{"name": "devices-0", "resourceClaimTemplateName": "mig"}]
    assert spec["containers"][0]["resources"]["claims"] == [{"name": "devices-0"}]


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        ({}, (Answer.NONE, "")),
        ({"Accepted": "True"}, (Answer.ACCEPTED, "said Accepted")),
        ({"Accepted": "False"}, (Answer.NONE, "")),
        ({"Accepted": "True", "Provisioned": "False"}, (Answer.ACCEPTED, "said Provisioned")),
        ({"Accepted": "True", "Provisioned": "True"}, (Answer.PROVISIONED, "")),
        ({"Accepted": "True", "Failed": "True"}, (Answer.FAILED, "said Failed")),
        ({"Provisioned": "True", "BookingExpired": "True"}, (Answer.EXPIRED, "said BookingExpired")),
        ({"Provisioned": "True", "CapacityRevoked": "True"}, (Answer.EXPIRED, "said CapacityRevoked")),
    ],
)
def test_the_answer_is_in_the_conditions(conditions: dict[str, str], expected: tuple[Answer, str]) -> None:
    meta = {"labels": {"oarlock.dev/job": "j-1", noderequests.NUMBER: "3"}}
    told = [{"type": kind, "status": status, "message": f"said {kind}"} for kind, status in conditions.items()]
    found = msgspec.convert({"metadata": meta, "status": {"conditions": told}}, noderequests.ProvisioningRequest)
    answer = noderequests.answer(found)
    assert answer is not None
    assert (answer.job, answer.number, answer.answer, answer.message) == ("j-1", 3, *expected)

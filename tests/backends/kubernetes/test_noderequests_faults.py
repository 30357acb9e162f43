"""Requests for nodes at a cluster in memory that refuses a part of them: nothing is left behind."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from oarlock.backends.kubernetes import noderequests, site
from oarlock.backends.kubernetes.apiserver import client, credentials, transports
from oarlock.spec import errors, holdings, resources
from oarlock.spec.cluster import provisioning

TASKS = provisioning.Tasks(role="worker", amount=holdings.Resources(2000, 1 << 30, 4), node_class="big", count=2)
REQUEST = provisioning.NodeRequest(number=1, need=provisioning.Need(nodes={"big": 2}, tasks=(TASKS,)), at=1000.0)


class Cluster:
    """The objects by kind and name. `refused` has the kinds and methods that it refuses."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str], dict[str, Any]] = {}
        self.paths: list[str] = []
        self.refused: set[tuple[str, str]] = set()

    @contextlib.asynccontextmanager
    async def requests(self) -> AsyncIterator[noderequests.NodeRequests]:
        access = credentials.Access(server="http://memory", identity=credentials.Fixed({}))
        async with client.Client(access, tries=1, around=self._around) as api:
            yield noderequests.NodeRequests(api, site.Site(image="i", namespace="oarlock-jobs"), clock=lambda: 1000.0)

    def _around(self, inner: transports.Transport) -> transports.Transport:
        self._inner = inner
        return self

    async def send(self, request: transports.Request) -> transports.Answer:
        if request.path == f"/apis/{noderequests.GROUP}":
            return _answer({"versions": [{"version": "v1"}]})
        if request.path == f"/apis/{noderequests.GROUP}/v1":
            return _answer({"resources": [{"name": noderequests.PLURAL}]})
        kind, _, name = request.path.partition("/namespaces/")[2].partition("/")[2].partition("/")
        if (request.method, kind) in self.refused:
            return _answer({"message": "a webhook refused it"}, 403)
        self.paths.append(request.path)
        if request.method == "GET":
            return _answer({"items": [one for (of, _), one in self.objects.items() if of == kind]})
        if request.method == "POST":
            body = msgspec.json.decode(request.data or b"")
            self.objects[kind, body["metadata"]["name"]] = body
            return _answer(body, 201)
        for key in [key for key in self.objects if key[0] == kind and name in ("", key[1])]:
            del self.objects[key]
        return _answer({})

    def stream(self, request: transports.Request) -> Any:
        raise NotImplementedError

    async def close(self) -> None:
        await self._inner.close()


def _answer(body: dict[str, Any], status: int = 200) -> transports.Answer:
    return transports.Answer(status=status, body=msgspec.json.encode(body))


async def test_a_withdrawal_that_fails_halfway_is_still_seen() -> None:
    cluster = Cluster()
    async with cluster.requests() as requests:
        await requests.request("j-1", REQUEST)
        for fails in ("podtemplates", noderequests.PLURAL):
            cluster.refused = {("DELETE", fails)}
            with pytest.raises(errors.Forbidden):
                await requests.withdraw("j-1", 1)
            assert [one.job for one in await requests.answered() or ()] == ["j-1"]
        cluster.refused = set()
        await requests.withdraw("j-1", 1)
        assert cluster.objects == {}


async def test_a_refused_request_can_be_withdrawn_with_its_templates() -> None:
    cluster = Cluster()
    async with cluster.requests() as requests:
        cluster.refused = {("POST", noderequests.PLURAL)}
        with pytest.raises(errors.Forbidden):
            await requests.request("j-1", REQUEST)
        assert [kind for kind, _ in cluster.objects] == ["podtemplates"]
        await requests.withdraw("j-1", 1)
        assert cluster.objects == {}


async def test_the_event_is_about_the_object_of_the_job() -> None:
    cluster = Cluster()
    async with cluster.requests() as requests:
        await requests.tell("j-1", REQUEST, resources.Resource("team-a", "train", "u-1"))
    [event] = cluster.objects.values()
    assert cluster.paths == ["/api/v1/namespaces/team-a/events"]
    assert event["metadata"]["namespace"] == "team-a"
    assert event["involvedObject"] == {
        "apiVersion": "oarlock.dev/v1alpha1",
        "kind": "OarlockJob",
        "namespace": "team-a",
        "name": "train",
        "uid": "u-1",
    }
    assert event["message"] == ("2 nodes of big are missing for this job. It starts once the cluster has added them.")


async def test_a_job_without_an_object_has_its_event_beside_the_pods() -> None:
    cluster = Cluster()
    async with cluster.requests() as requests:
        await requests.tell("J-1", REQUEST)
    [event] = cluster.objects.values()
    assert cluster.paths == ["/api/v1/namespaces/oarlock-jobs/events"]
    assert (event["involvedObject"]["namespace"], event["involvedObject"]["name"]) == ("oarlock-jobs", "j-1")

"""Requests to a real API server: what is tried again, what an error says, and that a repeated request does no harm."""

from __future__ import annotations

import asyncio
from email import utils

import pytest
from tests.backends.kubernetes import conftest
from tests.backends.kubernetes.testcluster import apiserver, faults

from oarlock.backends import waits
from oarlock.backends.kubernetes.apiserver import answers, client, objects, transports
from oarlock.spec import errors

pytestmark = apiserver.needed


def pod(name: str, **spec: object) -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"containers": [{"name": "c", "image": "none"}], **spec},
    }


def faulty(server: apiserver.ApiServer, script: faults.Script) -> client.Client:
    return client.Client(conftest.access(server), around=lambda inner: faults.Faulty(inner, script))


def once(method: str, fate: str) -> faults.Script:
    """The first request with this method meets that fate."""
    met: list[transports.Request] = []

    def script(request: transports.Request, _: int) -> str:
        if request.method == method and not met:
            met.append(request)
            return fate
        return ""

    return script


async def test_a_request_that_is_tried_again_says_why_until_it_is_over(
    api_server: apiserver.ApiServer, namespace: str
) -> None:
    """A launch that ends at its bound tells the last failure: it may name the webhook that is slow."""
    path, again = f"/api/v1/namespaces/{namespace}/pods", asyncio.Event()

    def always(request: transports.Request, number: int) -> str:
        if number:
            again.set()
        return "500" if request.method == "POST" else ""

    with waits.noting() as waited:
        async with faulty(api_server, always) as api:
            making = asyncio.create_task(api.create(path, pod("one"), objects.Pod))
            await again.wait()
            making.cancel()
            await asyncio.gather(making, return_exceptions=True)
    assert waits.why(waited) == "a pretended 500 (status 500)", "it was broken off, and is still told"
    with waits.noting() as waited:
        async with faulty(api_server, once("POST", "500")) as api:
            await api.create(path, pod("one"), objects.Pod)
            with pytest.raises(errors.NotFound):
                await api.get(f"{path}/two", objects.Pod)
    assert not waited


def test_a_request_without_an_answer_is_told_where_none_has_failed() -> None:
    with waits.noting() as waited:
        waits.Wait("POST /pods")
        second = waits.Wait("POST /secrets")
    assert waits.why(waited) == "POST /pods has no answer yet"
    second.failure = "refused"
    assert waits.why(waited) == "refused"


async def test_answers_are_dated_also_those_that_refuse(api: client.Client) -> None:
    """By the dates the backend knows how far the cluster's clock is ahead."""
    told: list[str] = []
    api.dated = told.append
    await api.version()
    with pytest.raises(errors.NotFound):
        await api.get("/api/v1/nodes/none", objects.Bare)
    assert len([utils.parsedate_to_datetime(date) for date in told]) == 2


async def test_the_version_is_told(api: client.Client) -> None:
    found = await api.version()
    assert (int(found.major), int(found.minor.rstrip("+"))) >= (1, 20)


async def test_what_was_made_can_be_read_bound_and_deleted(api: client.Client, namespace: str) -> None:
    pods = f"/api/v1/namespaces/{namespace}/pods"
    made = await api.create(pods, pod("one", schedulerName="oarlock"), objects.Pod)
    assert (made.spec.scheduler_name, made.status.phase) == ("oarlock", "Pending")
    await api.bind(namespace, "one", made.metadata.uid, "nowhere")
    bound = await api.get(f"{pods}/one", objects.Pod)
    assert bound.spec.node_name == "nowhere"
    with pytest.raises(errors.Conflict):
        await api.bind(namespace, "one", made.metadata.uid, "elsewhere")
    await api.delete(f"{pods}/one", uid="another", grace_s=0)
    assert [one.metadata.name for one in await api.list(pods, objects.Pod)] == ["one"], "it has another UID"
    await api.delete(f"{pods}/one", uid=made.metadata.uid, grace_s=0)
    assert await api.list(pods, objects.Pod) == []
    await api.delete(f"{pods}/one", uid=made.metadata.uid, grace_s=0)


async def test_a_second_one_of_the_name_is_refused_with_the_reason(api: client.Client, namespace: str) -> None:
    pods = f"/api/v1/namespaces/{namespace}/pods"
    await api.create(pods, pod("one"), objects.Pod)
    with pytest.raises(errors.Conflict) as refused:
        await api.create(pods, pod("one"), objects.Pod)
    assert answers.reason(refused.value) == answers.ALREADY_EXISTS


async def test_an_invalid_object_is_refused_with_the_field(api: client.Client, namespace: str) -> None:
    with pytest.raises(errors.InvalidInput, match=r"spec\.containers"):
        await api.create(f"/api/v1/namespaces/{namespace}/pods", pod("one", containers=[]), objects.Pod)


async def test_a_missing_right_is_said(api_server: apiserver.ApiServer, namespace: str) -> None:
    async with client.Client(conftest.access(api_server, "a-token")) as tenant:
        with pytest.raises(errors.Forbidden, match='User "tenant-a" cannot list resource "pods"'):
            await tenant.list(f"/api/v1/namespaces/{namespace}/pods", objects.Pod)


async def test_a_wrong_token_is_said(api_server: apiserver.ApiServer) -> None:
    async with client.Client(conftest.access(api_server, "no-such-token")) as stranger:
        with pytest.raises(errors.Unauthenticated):
            await stranger.list("/api/v1/nodes", objects.Node)


async def test_a_long_list_comes_in_pages(api: client.Client, namespace: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "PAGE", 2)
    pods = f"/api/v1/namespaces/{namespace}/pods"
    for number in range(5):
        await api.create(pods, pod(f"p{number}"), objects.Pod)
    pages = [page async for page in api.pages(pods, objects.Pod)]
    assert [len(page.items or ()) for page in pages] == [2, 2, 1]
    assert len(await api.list(pods, objects.Pod)) == 5


@pytest.mark.parametrize("fate", ["lose", "429", "500", "503"])
async def test_a_request_that_may_come_later_is_sent_again(
    api_server: apiserver.ApiServer, namespace: str, fate: str
) -> None:
    async with faulty(api_server, once("POST", fate)) as api:
        made = await api.create(f"/api/v1/namespaces/{namespace}/pods", pod("one"), objects.Pod)
    assert made.metadata.name == "one"


async def test_a_lost_answer_to_a_create_shows_as_a_taken_name(api_server: apiserver.ApiServer, namespace: str) -> None:
    async with faulty(api_server, once("POST", "forget")) as api:
        with pytest.raises(errors.Conflict) as taken:
            await api.create(f"/api/v1/namespaces/{namespace}/pods", pod("one"), objects.Pod)
        assert answers.reason(taken.value) == answers.ALREADY_EXISTS


async def test_a_lost_answer_to_a_deletion_does_no_harm(api_server: apiserver.ApiServer, namespace: str) -> None:
    pods = f"/api/v1/namespaces/{namespace}/pods"
    async with faulty(api_server, once("DELETE", "forget")) as api:
        made = await api.create(pods, pod("one"), objects.Pod)
        await api.delete(f"{pods}/one", uid=made.metadata.uid, grace_s=0)
        assert await api.list(pods, objects.Pod) == []


async def test_a_server_that_stays_away_is_unavailable(
    api_server: apiserver.ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "PAUSE_MOST_S", 0.0)
    async with faulty(api_server, lambda request, number: "lose") as api:
        with pytest.raises(errors.Unavailable, match="cannot be reached"):
            await api.version()

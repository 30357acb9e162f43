"""Objects that a server has left beside pods, at a real API server and with the rights of the server."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import msgspec
import pytest
from tests.backends.kubernetes import conftest, test_noderequests
from tests.backends.kubernetes.test_noderequests import api, api_server, stored  # noqa: F401  (fixtures)
from tests.backends.kubernetes.testcluster import apiserver, customobjects, inmemory

from oarlock.backends import backends
from oarlock.backends.kubernetes import noderequests, remains
from oarlock.backends.kubernetes.apiserver import client, objects
from oarlock.backends.kubernetes.pods import labels, rendering
from oarlock.backends.remains import Remain
from oarlock.spec import errors

pytestmark = apiserver.needed

THEIRS = {"app": "vault"}


class Left:
    """A server's way to the objects, and an administrator's."""

    def __init__(self, api: client.Client, server: client.Client, namespace: str) -> None:  # noqa: F811
        self.api = api
        self.site = test_noderequests.site_of(api, namespace)
        self.way = remains.Remains(server, self.site, monotonic=time.monotonic)
        self.requests = noderequests.NodeRequests(server, self.site)
        self.core = f"/api/v1/namespaces/{namespace}"
        self.custom = f"/apis/{noderequests.GROUP}/v1/namespaces/{namespace}/{noderequests.PLURAL}"

    async def put_secret(self, name: str, told: dict[str, str]) -> None:
        body = {"metadata": {"name": name, "labels": told}, "data": {"x": "c2VjcmV0"}}
        await self.api.create(f"{self.core}/secrets", body, objects.Bare)

    async def put_gang(self, job: str) -> str:
        """Make the Secret of a gang as a launch makes it. Return its name."""
        ((secret, _),) = rendering.secrets([inmemory.launch_of(job)], self.site)
        await self.api.create(f"{self.core}/secrets", secret, objects.Bare)
        return str(secret["metadata"]["name"])

    async def named(self, path: str) -> set[str]:
        return {one.metadata.name for one in await self.api.list(path, objects.Bare)}

    async def of(self, job: str) -> list[Remain]:
        return sorted((one for one in await self.way.there() if one.job == job), key=lambda one: one.name)


@pytest.fixture
async def left(
    api_server: apiserver.ApiServer,  # noqa: F811
    stored: customobjects.CustomObjects | None,  # noqa: F811
    api: client.Client,  # noqa: F811
    namespace: str,
) -> AsyncIterator[Left]:
    async with test_noderequests.client_of(api_server, stored) as server:
        yield Left(api, server, namespace)


async def test_the_secrets_of_gangs_are_found_and_no_others(left: Left) -> None:
    """Neither those of users nor those of another installation."""
    name = await left.put_gang("j-1")
    await left.put_secret("vault", THEIRS)
    await left.put_secret("j-2-1-0f", labels.of_attempt("another", "j-2", 1))
    (found,) = await left.way.there()
    assert (found.plural, found.name, found.job, found.number, found.of_attempt) == ("secrets", name, "j-1", 1, True)


async def test_one_is_removed_by_its_uid_alone(left: Left) -> None:
    first, second = await left.put_gang("j-1"), await left.put_gang("j-2")
    (one,), (other,) = await left.of("j-1"), await left.of("j-2")
    await left.api.delete(f"{left.core}/secrets/{first}")
    assert await left.put_gang("j-1") == first, "another object has the name"
    await left.way.remove(one, backends.always)
    assert {first, second} <= await left.named(f"{left.core}/secrets")
    await left.way.remove(other, backends.always)
    await left.way.remove(other, backends.always)  # it is gone
    assert await left.named(f"{left.core}/secrets") & {first, second} == {first}
    with pytest.raises(errors.StaleEpoch):
        await left.way.remove((await left.of("j-1"))[0], lambda: False)
    assert first in await left.named(f"{left.core}/secrets")


async def test_values_are_not_asked_for(left: Left, api_server: apiserver.ApiServer) -> None:  # noqa: F811
    """The answer has the metadata alone."""
    await left.put_gang("j-1")
    async with client.Client(conftest.access(api_server)) as opened:
        whole = await opened.list(f"{left.core}/secrets", dict)  # type: ignore[type-var]
        bare = await opened.call("GET", f"{left.core}/secrets", dict, accept=client.METADATA)
    assert any("data" in one for one in whole)
    assert bare["kind"] == "PartialObjectMetadataList"
    assert not any("data" in one for one in bare["items"])


async def test_a_request_for_nodes_and_its_templates(left: Left) -> None:
    """So are templates without a request."""
    async with test_noderequests.definition(left.api):
        await left.requests.request("j-1", test_noderequests.request(1))
        await left.requests.request("j-1", test_noderequests.request(2))
        await left.api.delete(f"{left.custom}/j-1-nodes-2")
        found = await left.of("j-1")
        assert [(one.plural, one.name, one.number, one.of_attempt) for one in found] == [
            ("provisioningrequests", "j-1-nodes-1", 1, False),
            ("podtemplates", "j-1-nodes-1-0", 1, False),
            ("podtemplates", "j-1-nodes-1-1", 1, False),
            ("podtemplates", "j-1-nodes-2-0", 2, False),
            ("podtemplates", "j-1-nodes-2-1", 2, False),
        ]
        for one in found:
            if one.number == 2:
                await left.way.remove(one, backends.always)
        assert await left.named(f"{left.core}/podtemplates") == {"j-1-nodes-1-0", "j-1-nodes-1-1"}
        await left.way.remove(msgspec.structs.replace(found[0], uid="of-another"), backends.always)
        assert await left.named(left.custom) == {"j-1-nodes-1"}
        for one in await left.of("j-1"):
            await left.way.remove(one, backends.always)
        assert await left.named(left.custom) == set()
        assert await left.named(f"{left.core}/podtemplates") == set()

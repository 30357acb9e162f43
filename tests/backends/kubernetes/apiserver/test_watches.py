"""A watch keeps its items current, whatever becomes of the connection."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable

import pytest
from tests.backends.kubernetes import conftest
from tests.backends.kubernetes.apiserver.test_client import pod
from tests.backends.kubernetes.testcluster import apiserver, faults

from oarlock.backends.kubernetes.apiserver import client, objects, transports, watches

pytestmark = apiserver.needed
PATIENCE_S = 240.0


class Followed:
    """A running watch over the pods of a namespace: their names by UID."""

    def __init__(
        self, api: client.Client, namespace: str, monotonic: Callable[[], float] = time.monotonic, **more: object
    ) -> None:
        self.gone: list[str] = []
        self.path = f"/api/v1/namespaces/{namespace}/pods"
        self.watch: watches.Watch[objects.Pod, str] = watches.Watch(
            api,
            self.path,
            objects.Pod,
            lambda found: found.metadata.name,
            monotonic=monotonic,
            missing=lambda uid, name, last: self.gone.append(name),
            **more,
        )

    @property
    def names(self) -> list[str]:
        return sorted(self.watch.items.values())

    async def until(self, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not holds():
            assert time.monotonic() < deadline, (self.names, self.gone)
            await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def following(api: client.Client, namespace: str, **more: object) -> AsyncIterator[Followed]:
    followed = Followed(api, namespace, **more)
    task = asyncio.create_task(followed.watch.run())
    try:
        await followed.until(followed.watch.synced.is_set)
        yield followed
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_it_knows_what_was_there_and_hears_of_the_rest(api: client.Client, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/pods"
    await api.create(path, pod("before"), objects.Pod)
    async with following(api, namespace) as followed:
        assert followed.names == ["before"]
        made = await api.create(path, pod("after"), objects.Pod)
        await followed.until(lambda: followed.names == ["after", "before"])
        await api.delete(f"{path}/after", uid=made.metadata.uid, grace_s=0)
        await followed.until(lambda: followed.names == ["before"])
        assert followed.gone == ["after"]


async def test_a_cut_connection_loses_no_event(
    api: client.Client, api_server: apiserver.ApiServer, namespace: str
) -> None:
    def script(request: transports.Request, _: int) -> str:
        return "cut" if request.params.get("watch") else ""

    cut = client.Client(conftest.access(api_server), around=lambda inner: faults.Faulty(inner, script))
    async with cut, following(cut, namespace) as followed:
        for number in range(4):
            await api.create(followed.path, pod(f"p{number}"), objects.Pod)
        await followed.until(lambda: len(followed.names) == 4)


async def test_after_410_it_lists_again_and_tells_what_is_missing(
    api: client.Client, api_server: apiserver.ApiServer, namespace: str
) -> None:
    """An object that was deleted while the watch was away is missing in the list."""
    away = asyncio.Event()

    def script(request: transports.Request, _: int) -> str:
        if not request.params.get("watch"):
            expired.clear()
            return ""
        return "lose" if away.is_set() else "410" if expired else "cut"

    expired: dict[str, bool] = {}
    path = f"/api/v1/namespaces/{namespace}/pods"
    doomed = await api.create(path, pod("doomed"), objects.Pod)
    broken = client.Client(conftest.access(api_server), around=lambda inner: faults.Faulty(inner, script))
    async with broken, following(broken, namespace) as followed:
        await api.create(path, pod("seen"), objects.Pod)
        await followed.until(lambda: followed.names == ["doomed", "seen"])
        away.set()
        await api.create(path, pod("last"), objects.Pod)
        await api.delete(f"{path}/doomed", uid=doomed.metadata.uid, grace_s=0)
        expired["until the next list"] = True
        away.clear()
        await followed.until(lambda: followed.names == ["last", "seen"])
        assert followed.gone == ["doomed"]


async def test_a_deletion_that_no_event_tells_of_is_found_by_a_later_list(
    api: client.Client, api_server: apiserver.ApiServer, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The watch itself goes on, and hears of everything else."""
    monkeypatch.setattr(watches, "RELIST_S", (0.2, 0.4))

    def script(request: transports.Request, _: int) -> str:
        return "deaf" if request.params.get("watch") else ""

    deaf = client.Client(conftest.access(api_server), around=lambda inner: faults.Faulty(inner, script))
    async with deaf, following(deaf, namespace) as followed:
        doomed = await api.create(followed.path, pod("doomed"), objects.Pod)
        await followed.until(lambda: followed.names == ["doomed"])
        await api.delete(f"{followed.path}/doomed", uid=doomed.metadata.uid, grace_s=0)
        await api.create(followed.path, pod("last"), objects.Pod)
        await followed.until(lambda: followed.names == ["last"])
        assert followed.gone == ["doomed"]


async def test_a_later_list_that_fails_does_not_end_the_watch(
    api: client.Client, api_server: apiserver.ApiServer, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watches, "RELIST_S", (0.2, 0.4))
    lists: list[str] = []

    def script(request: transports.Request, _: int) -> str:
        if request.params.get("watch"):
            return ""
        lists.append("403" if lists else "")
        return lists[-1]

    broken = client.Client(conftest.access(api_server), around=lambda inner: faults.Faulty(inner, script))
    async with broken, following(broken, namespace) as followed:
        await followed.until(lambda: len(lists) > 2)
        await api.create(followed.path, pod("new"), objects.Pod)
        await followed.until(lambda: followed.names == ["new"])


async def test_each_watch_lists_anew_at_a_time_of_its_own(api: client.Client, namespace: str) -> None:
    stands = lambda: 7.0  # noqa: E731
    async with following(api, namespace, monotonic=stands) as one, following(api, namespace, monotonic=stands) as other:
        first, second = (followed.watch._relist_at - stands() for followed in (one, other))
        least, most = watches.RELIST_S
        assert least <= min(first, second) < max(first, second) <= most


async def test_a_list_tells_only_of_items_that_are_new_or_changed(api: client.Client, namespace: str) -> None:
    """Else each list would be a burst of work for thousands of items that are as they were."""
    path = f"/api/v1/namespaces/{namespace}/pods"
    await api.create(path, pod("same"), objects.Pod)
    entered: list[str] = []
    async with following(api, namespace, entered=entered.append) as followed:
        await followed.watch.renew()
        await api.create(path, pod("new"), objects.Pod)
        await followed.until(lambda: len(entered) > 1)
        await followed.watch.renew()
        assert entered == ["same", "new"]


async def test_a_version_that_is_too_old_is_an_error_in_the_stream(api: client.Client, namespace: str) -> None:
    """The real server tells it so, where its history was compacted: as an event, with the status 200."""
    async with following(api, namespace) as followed:
        followed.watch._version = "1"
        await api.create(followed.path, pod("one"), objects.Pod)
        await followed.until(lambda: followed.names == ["one"])


async def test_what_we_made_is_known_at_once_and_a_list_under_way_keeps_it(api: client.Client, namespace: str) -> None:
    followed = Followed(api, namespace)
    made = await api.create(followed.path, pod("mine"), objects.Pod)
    followed.watch.put(made)
    assert followed.names == ["mine"]
    followed.watch._delete(made)
    followed.watch.put(made)
    assert followed.names == [], "a late answer brings no deleted object back"
    assert followed.gone == ["mine"]


async def test_what_is_not_kept_is_missing(api: client.Client, namespace: str) -> None:
    """An object may stop to count while it is still there."""
    path = f"/api/v1/namespaces/{namespace}/pods"
    made = await api.create(path, pod("one"), objects.Pod)
    gone: list[str] = []
    watch: watches.Watch[objects.Pod, str] = watches.Watch(
        api,
        path,
        objects.Pod,
        lambda found: None if found.spec.node_name else found.metadata.name,
        monotonic=time.monotonic,
        missing=lambda uid, name, last: gone.append(name),
    )
    task = asyncio.create_task(watch.run())
    await watch.synced.wait()
    assert list(watch.items.values()) == ["one"]
    await api.bind(namespace, "one", made.metadata.uid, "nowhere")
    deadline = time.monotonic() + PATIENCE_S
    while not gone:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)
    assert (watch.items, gone) == ({}, ["one"])
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_bookmark_of_pods_is_only_a_version(api: client.Client) -> None:
    """Its object has `containers: null`, which no pod has: Kubernetes 1.20 and later send it once a minute."""
    watch: watches.Watch[objects.Pod, objects.Pod] = watches.Watch(
        api, "/api/v1/pods", objects.Pod, lambda one: one, monotonic=time.monotonic
    )
    line = b'{"type":"BOOKMARK","object":{"kind":"Pod","metadata":{"resourceVersion":"7"},"spec":{"containers":null}}}'
    watch._take(line)
    assert watch._version == "7"

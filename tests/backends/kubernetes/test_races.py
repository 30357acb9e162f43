"""The order of answers and events must not keep a pod that is gone, hide one that is late, or fill a node twice."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
import warnings
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

import msgspec
import pytest
import structlog
from tests.backends.kubernetes.testcluster import inmemory

from oarlock.backends import backends
from oarlock.backends.kubernetes import backend, reaching
from oarlock.backends.kubernetes.apiserver import client
from oarlock.backends.kubernetes.site import Site
from oarlock.spec import errors, holdings, jobfile

PATIENCE_S = 240.0


@contextlib.asynccontextmanager
async def opened(cluster: inmemory.Cluster, site: Site = inmemory.SITE) -> AsyncIterator[backend.KubernetesBackend]:
    made = backend.KubernetesBackend(cast("Any", cluster), site, clock=time.time, monotonic=time.monotonic)
    made.open()
    try:
        yield made
    finally:
        await made.close()


async def until(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.005)


async def test_a_pod_of_a_list_that_failed_half_way_does_not_count() -> None:
    """It was deleted before the list was made again: no event tells that it is gone."""
    cluster = inmemory.Cluster("n1")
    cluster.add(inmemory.bound_pod("j-gone", "n1"))
    cluster.after_first_page = cluster.pods.clear
    async with opened(cluster) as made:
        assert await made.observe() == []
        await made.launch([inmemory.launch_of("j-new", amount=holdings.Resources(cpus_milli=4000))])
        assert len(cluster.bound) == 1, "the whole node is free"


async def test_a_watch_that_hangs_hides_no_pod_from_a_new_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = inmemory.Cluster("n1")
    async with opened(cluster) as made:
        await made.observe()
        await until(lambda: any("namespaces" in path for path, _ in cluster._watches))
        cluster._watches.clear()
        cluster.add(inmemory.bound_pod("j-of-another", "n1"))
        assert await made.observe() == []
        await made.renew()
        assert [seen.key.job for seen in await made.observe()] == ["j-of-another"]

        async def never(*_: object) -> AsyncIterator[None]:
            await asyncio.Event().wait()
            yield

        monkeypatch.setattr(cluster, "pages", never)
        monkeypatch.setattr(backend, "RENEW_S", 0.01)
        with pytest.raises(errors.Unavailable, match="could not be read again"):
            await made.renew()


async def test_a_pod_that_arrives_after_its_attempt_was_discarded_is_observed() -> None:
    cluster = inmemory.Cluster("n1")
    async with opened(cluster) as made:
        await made.observe()
        cluster.creates.clear()
        launch = asyncio.create_task(made.launch([inmemory.launch_of("j-late")]))
        await until(lambda: cluster.asked)
        launch.cancel()
        await asyncio.gather(launch, return_exceptions=True)
        await made.discard("j-late", 1)
        cluster.creates.set()
        await until(lambda: made._own.by_key)
        assert [seen.key.job for seen in await made.observe()] == ["j-late"], "to be killed"
        await made.kill([seen.key for seen in await made.observe()])
        await until(lambda: not made._own.by_key)
        await made.discard("j-late", 1)
        assert await made.observe() == []


async def test_pods_that_could_not_be_removed_are_observed_and_removed_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """An API server that has just started may not know the rights of any account yet."""
    cluster = inmemory.Cluster("n1")
    ended = {"name": "task", "state": {"terminated": {"exitCode": 0}}}
    status = {"phase": "Succeeded", "containerStatuses": [ended]}
    cluster.add({**inmemory.bound_pod("j-ended", "n1"), "status": status})

    async def refused(*_: Any, **__: Any) -> None:
        raise errors.Forbidden("pods is forbidden", hint="")

    async with opened(cluster) as made:
        with monkeypatch.context() as patch:
            patch.setattr(cluster, "delete", refused)
            with pytest.raises(errors.Forbidden):
                await made.discard("j-ended", 1)
        assert [seen.key.job for seen in await made.observe()] == ["j-ended"], "to be discarded again"
        await made.discard("j-ended", 1)
        assert await made.observe() == []
        assert cluster.pods == {}


async def test_two_gangs_that_are_made_at_the_same_time_do_not_share_a_place() -> None:
    """Another pod has taken half of the node since the plan: one of the two no longer fits."""
    cluster = inmemory.Cluster("n1")
    async with opened(cluster) as made:
        await made.observe()
        cluster.add(inmemory.foreign_pod("other", "n1", "2"))
        await until(lambda: made._state.nodes()[0].taken.cpus_milli)
        first, second = await asyncio.gather(
            made.launch([inmemory.launch_of("j-1")]), made.launch([inmemory.launch_of("j-2")]), return_exceptions=True
        )
        assert first is None
        assert isinstance(second, errors.Unavailable)
        assert "has filled up" in second.message
        assert len(cluster.bound) == 1


async def test_a_launch_that_fails_gives_its_place_back() -> None:
    cluster = inmemory.Cluster("n1")
    whole = holdings.Resources(cpus_milli=4000)
    async with opened(cluster) as made:
        await made.observe()
        cluster.creates.clear()
        launch = asyncio.create_task(made.launch([inmemory.launch_of("j-1", amount=whole)]))
        await until(lambda: cluster.asked)
        with pytest.raises(errors.Unavailable, match="has filled up"):
            await made.launch([inmemory.launch_of("j-2", amount=whole)])
        launch.cancel()
        await asyncio.gather(launch, return_exceptions=True)
        cluster.creates.set()
        await made.launch([inmemory.launch_of("j-2", amount=whole)])
        assert [node for _, node in cluster.bound] == ["n1"]


async def test_a_pod_holds_its_place_until_it_is_gone() -> None:
    cluster = inmemory.Cluster("n1")
    whole = holdings.Resources(cpus_milli=4000)
    async with opened(cluster) as made:
        await made.launch([inmemory.launch_of("j-1", amount=whole)])
        with pytest.raises(errors.Unavailable, match="has filled up"):
            await made.launch([inmemory.launch_of("j-2", amount=whole)])
        await made.kill([inmemory.launch_of("j-1").key])
        await until(lambda: not made._own.by_key)
        await made.launch([inmemory.launch_of("j-2", amount=whole)])
        assert len(cluster.bound) == 2


async def test_nothing_is_bound_once_the_server_does_not_lead() -> None:
    cluster = inmemory.Cluster("n1")
    leads = True
    async with opened(cluster) as made:
        await made.observe()
        cluster.creates.clear()
        launch = asyncio.create_task(made.launch([inmemory.launch_of("j-1")], still=lambda: leads))
        await until(lambda: cluster.asked)
        leads = False
        cluster.creates.set()
        with pytest.raises(errors.StaleEpoch):
            await launch
        assert cluster.bound == []


async def test_requests_of_a_launch_that_is_broken_off_leave_no_warning() -> None:
    """More requests than are sent at a time: some have not begun."""
    cluster = inmemory.Cluster("n1")
    async with opened(cluster) as made:
        await made.observe()
        cluster.creates.clear()
        small = holdings.Resources(cpus_milli=1)
        gang = [inmemory.launch_of(f"j-{number}", amount=small) for number in range(2 * backend.AT_ONCE)]
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            launch = asyncio.create_task(made.launch(gang))
            await until(lambda: cluster.asked == backend.AT_ONCE)
            launch.cancel()
            await asyncio.gather(launch, return_exceptions=True)
            del launch
            gc.collect()
        cluster.creates.set()
        assert [str(one.message) for one in told] == []


def test_each_task_of_the_launches_under_way_has_a_connection() -> None:
    """With more, slow answers delay every launch past its bound, and all of them fail together."""
    assert backend.KubernetesBackend.tasks_at_once <= client.CONNECTIONS


EVICTED = {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."}
NO_ANSWER = "TimeoutError: timed out"


def ended(code: int, words: str) -> dict[str, Any]:
    state = {"terminated": {"exitCode": code, "message": words}}
    return {"phase": "Failed", "containerStatuses": [{"name": reaching.CONTAINER, "state": state}]}


@pytest.mark.parametrize(
    ("runs", "reached"),
    [
        ({"a": ended(1, NO_ANSWER), "b": {"phase": "Succeeded"}}, True),
        ({"a": EVICTED, "b": {"phase": "Succeeded"}}, True),
        ({"a": ended(137, ""), "b": ended(1, NO_ANSWER), "c": ended(1, NO_ANSWER)}, True),
        ({"a": ended(127, "python: not found"), "b": ended(1, "Traceback (most recent call last): ...")}, True),
        ({"a": ended(1, NO_ANSWER), "b": ended(1, NO_ANSWER), "c": ended(1, NO_ANSWER)}, False),
        ({"a": ended(1, NO_ANSWER)}, False),
        ({}, True),
    ],
    ids=["one node alone", "evicted", "killed", "not the agent", "three", "the only one", "no node"],
)
async def test_a_server_ends_only_if_no_node_reaches_it(runs: dict[str, Any], reached: bool) -> None:
    cluster = inmemory.Cluster(*runs)
    cluster.runs = runs
    async with opened(cluster) as made:
        if reached:
            with structlog.testing.capture_logs() as told:
                await made.check_reached("https://10.0.0.1")
            knows = any(one.get("phase") == "Succeeded" for one in runs.values())
            assert [one["event"] for one in told] == ([] if knows else ["kubernetes.reach_unknown"])
        else:
            with pytest.raises(errors.Unavailable, match=NO_ANSWER):
                await made.check_reached("https://10.0.0.1")
    assert not cluster.pods, "the pods of the check are removed"


async def test_a_job_from_before_the_claim_was_set_does_not_mount_it_either() -> None:
    cluster = inmemory.Cluster("n1")
    asked = inmemory.launch_of("j-old")
    volume = jobfile.Volume(claim="checkpoints", mount="/all")
    asked = msgspec.structs.replace(asked, container=backends.Container(image="any:1", volumes=(volume,)))
    site = msgspec.structs.replace(inmemory.SITE, checkpoint_claim="checkpoints")
    async with opened(cluster, site) as made:
        with pytest.raises(errors.InvalidInput, match="stores checkpoints or environments of all jobs"):
            await made.launch([asked])
    assert not cluster.pods

"""Single pods that are created bound, once the cluster has returned one of their shape unchanged."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

import msgspec
import pytest
from tests.backends.kubernetes import test_races
from tests.backends.kubernetes.testcluster import inmemory

from oarlock.backends.kubernetes import boundpods
from oarlock.backends.kubernetes.apiserver import answers, objects
from oarlock.spec import errors, holdings

ONE_CPU = holdings.Resources(cpus_milli=1000, memory_bytes=1 << 28)


async def test_the_second_pod_of_a_shape_takes_one_request() -> None:
    cluster = inmemory.Cluster("n1")
    async with test_races.opened(cluster) as made:
        for job in ("j-1", "j-2", "j-3"):
            await made.launch([inmemory.launch_of(job, amount=ONE_CPU)])
        assert (cluster.asked, cluster.binds_asked, len(cluster.bound)) == (3, 1, 3)


async def test_another_shape_and_a_gang_are_created_unbound() -> None:
    cluster = inmemory.Cluster("n1", "n2")
    async with test_races.opened(cluster) as made:
        await made.launch([inmemory.launch_of("j-1", amount=ONE_CPU)])
        await made.launch([inmemory.launch_of("j-2")])
        assert cluster.binds_asked == 2
        first, second = (inmemory.launch_of("j-3", node="n2", amount=ONE_CPU) for _ in range(2))
        second = msgspec.structs.replace(
            second,
            key=msgspec.structs.replace(second.key, index=1),
            holding=msgspec.structs.replace(second.holding, index=1),
        )
        await made.launch([first, second])
        assert cluster.binds_asked == 4, "it is bound as a whole, or not at all"


async def test_the_trust_ends_after_a_while() -> None:
    now = 100.0
    known = boundpods.BoundPods(monotonic=lambda: now)
    one = inmemory.launch_of("j-1")
    assert not known.may([one])
    known.returned(one, unchanged=True)
    assert known.may([inmemory.launch_of("j-2")])
    now += boundpods.TRUSTED_S
    assert not known.may([one])
    known.returned(one, unchanged=True)
    known.returned(inmemory.launch_of("j-3"), unchanged=False)
    assert not known.may([one])


def larger(pod: dict[str, Any]) -> dict[str, Any]:
    """Do as a webhook that asks for more than the job does."""
    pod = copy.deepcopy(pod)
    pod["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "100"
    return pod


async def test_a_pod_that_a_webhook_made_too_large_is_removed_at_once() -> None:
    """The rule came after the shape was trusted: so the pod was bound already. The next one is created unbound."""
    cluster = inmemory.Cluster("n1")
    async with test_races.opened(cluster) as made:
        await made.launch([inmemory.launch_of("j-1", amount=ONE_CPU)])
        cluster.admits = larger
        with pytest.raises(errors.Unavailable, match="has filled up"):
            await made.launch([inmemory.launch_of("j-2", amount=ONE_CPU)])
        assert [pod["metadata"]["labels"]["oarlock.dev/job"] for pod in cluster.pods.values()] == ["j-1"]
        with pytest.raises(errors.Unavailable, match="has filled up"):
            await made.launch([inmemory.launch_of("j-3", amount=ONE_CPU)])
        assert len(cluster.bound) == 2, "the third was never bound"


def denial(code: int, message: str) -> errors.OarlockError:
    return answers.error(objects.Status(code=code, message=message))


@pytest.mark.parametrize("code", [400, 403, 418, 422])
async def test_a_cluster_that_refuses_node_names_gets_pods_without_one(code: int) -> None:
    """A webhook may refuse with any status. Without one of its own, the API server answers 400."""
    cluster = inmemory.Cluster("n1")
    refused: list[str] = []

    def admit(pod: dict[str, Any]) -> dict[str, Any]:
        if "nodeName" in pod["spec"]:
            refused.append(pod["metadata"]["name"])
            raise denial(code, "admission webhook denied the request: nodeName is not allowed")
        return pod

    cluster.admits = admit
    async with test_races.opened(cluster) as made:
        for job in ("j-1", "j-2", "j-3"):
            await made.launch([inmemory.launch_of(job, amount=ONE_CPU)])
        assert len(refused) == 1, "it is not asked again and again"
        assert (cluster.binds_asked, len(cluster.bound)) == (3, 3)


async def test_a_refusal_for_another_reason_is_told_and_does_not_count() -> None:
    cluster = inmemory.Cluster("n1")

    def full(pod: dict[str, Any]) -> dict[str, Any]:
        raise denial(403, "exceeded quota: small")

    async with test_races.opened(cluster) as made:
        await made.launch([inmemory.launch_of("j-1", amount=ONE_CPU)])
        cluster.admits = full
        with pytest.raises(errors.Unavailable, match="exceeded quota: small"):
            await made.launch([inmemory.launch_of("j-2", amount=ONE_CPU)])
        assert cluster.asked == 2, "it is not tried without a node name"
        cluster.admits = lambda pod: pod
        await made.launch([inmemory.launch_of("j-3", amount=ONE_CPU)])
        assert cluster.binds_asked == 1


async def test_nothing_is_created_bound_once_the_server_does_not_lead() -> None:
    cluster = inmemory.Cluster("n1")
    async with test_races.opened(cluster) as made:
        await made.launch([inmemory.launch_of("j-1", amount=ONE_CPU)])
        with pytest.raises(errors.StaleEpoch):
            await made.launch([inmemory.launch_of("j-2", amount=ONE_CPU)], still=lambda: False)
        assert len(cluster.pods) == 1


async def test_a_launch_that_is_cancelled_knows_of_its_bound_pod() -> None:
    """The pod takes its node as soon as it is there, so its devices must not count as free."""
    cluster = inmemory.Cluster("n1")
    async with test_races.opened(cluster) as made:
        await made.launch([inmemory.launch_of("j-1", amount=ONE_CPU)])
        cluster.creates.clear()
        launching = asyncio.create_task(made.launch([inmemory.launch_of("j-2", amount=ONE_CPU)]))
        await test_races.until(lambda: cluster.asked == 2)
        launching.cancel()
        for _ in range(10):
            await asyncio.sleep(0)
        assert not launching.done(), "it waits for the answer"
        cluster.creates.set()
        await asyncio.gather(launching, return_exceptions=True)
        assert launching.cancelled()
        assert {seen.key.job for seen in await made.observe()} == {"j-1", "j-2"}


async def test_a_node_that_filled_up_while_the_secrets_were_made_gets_no_bound_pod() -> None:
    cluster = inmemory.Cluster("n1")
    async with test_races.opened(cluster) as made:
        await made.launch([inmemory.launch_of("j-1", amount=ONE_CPU)])
        checks: list[object] = []
        fits = made._check_fit

        def once(*given: object) -> None:
            checks.append(given)
            if len(checks) > 1:
                raise errors.Unavailable("node n1 has filled up", hint="")
            fits(*given)  # type: ignore[arg-type]  # what the backend gave

        made._check_fit = once  # type: ignore[method-assign]  # the moment cannot be met from outside
        with pytest.raises(errors.Unavailable, match="has filled up"):
            await made.launch([inmemory.launch_of("j-2", amount=ONE_CPU)])
        assert cluster.asked == 1

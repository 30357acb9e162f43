"""The time at which a pod got its place, by a cluster's clock that is ahead of ours or behind, and by ours."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest
from tests.backends.kubernetes import test_races
from tests.backends.kubernetes.testcluster import inmemory

from oarlock.backends.kubernetes import backend
from oarlock.backends.kubernetes.pods import rendering
from oarlock.spec.reconciling import observations

NOON = 1_767_268_800.0  # 2026-01-01T12:00:00Z
AT_NOON, AN_HOUR_LATER, A_MOMENT_BEFORE = (f"2026-01-01T{time}Z" for time in ("12:00:00", "13:00:00", "11:59:58"))
TAKEOVER_S = 12.0


class Following:
    """A server that follows the cluster, as one does that does not lead. Its clock stands still."""

    def __init__(self, cluster: inmemory.Cluster) -> None:
        self.now = NOON
        self.cluster = cluster
        api = cast("Any", cluster)
        self.backend = backend.KubernetesBackend(api, inmemory.SITE, clock=lambda: self.now, monotonic=lambda: self.now)
        self.name = ""

    async def make(self) -> None:
        """Let another server make a pod, and see it."""
        await self.backend.observe()  # the first look at the cluster is over
        made = self.cluster.add(rendering.pod(inmemory.launch_of("j-part"), inmemory.SITE, "secret"))
        self.name = made["metadata"]["name"]
        await test_races.until(lambda: self.backend._own.by_key)

    async def bind(self, stamp: str) -> None:
        """Let another server bind the pod, and see that. `stamp` is the cluster's time."""
        bound = {"type": "PodScheduled", "status": "True", "lastTransitionTime": stamp}
        spec = {**self.cluster.pods[self.name]["spec"], "nodeName": "n1"}
        self.cluster.change(self.name, spec=spec, status={"phase": "Pending", "conditions": [bound]})
        await test_races.until(lambda: self.backend._own.on("n1"))

    async def seen(self) -> observations.Observed:
        (seen,) = await self.backend.observe()
        return seen


@pytest.fixture
async def server() -> AsyncIterator[Following]:
    made = Following(inmemory.Cluster("n1"))
    made.backend.open()
    try:
        await made.make()
        yield made
    finally:
        with contextlib.suppress(Exception):
            await made.backend.close()


@pytest.mark.parametrize(
    ("stamp", "bound_at"),
    [(AN_HOUR_LATER, NOON), (AT_NOON, NOON), (A_MOMENT_BEFORE, NOON - 2.0)],
    ids=["ahead", "equal", "behind"],
)
async def test_a_pod_was_not_bound_later_than_a_server_saw_it(server: Following, stamp: str, bound_at: float) -> None:
    """A gang that is bound in part is removed so long after that time. The server leads some seconds later only."""
    assert (await server.seen()).bound_at is None
    await server.bind(stamp)
    server.now += TAKEOVER_S
    await server.backend.renew()
    assert (await server.seen()).bound_at == bound_at
    server.now += 1.0
    server.cluster.change(server.name, status={**server.cluster.pods[server.name]["status"], "phase": "Running"})
    await test_races.until(lambda: next(iter(server.backend._own.by_key.values())).status.phase == "Running")
    assert (await server.seen()).bound_at == bound_at


async def test_a_pod_that_is_gone_keeps_the_time(server: Following) -> None:
    await server.bind(AN_HOUR_LATER)
    server.now += TAKEOVER_S
    await server.cluster.delete(f"/pods/{server.name}")
    await test_races.until(lambda: not server.backend._own.by_key)
    seen = await server.seen()
    assert (seen.state, seen.bound_at) == (observations.State.GONE, NOON)
    assert server.backend._own._bound_by == {}, "nothing is kept of it"


@pytest.mark.parametrize(
    ("date", "bound_at"),
    [
        ("Thu, 01 Jan 2026 13:00:12 GMT", NOON),
        ("Thu, 01 Jan 2026 12:00:11 GMT", NOON + TAKEOVER_S),  # less a part of a second: not ahead
        ("", NOON + TAKEOVER_S),
        ("noon", NOON + TAKEOVER_S),
    ],
    ids=["ahead", "not ahead", "none", "not a date"],
)
async def test_a_server_that_starts_later_knows_the_time_by_the_date_of_the_answers(
    server: Following, date: str, bound_at: float
) -> None:
    """Only the cluster's time tells it when the pod was bound."""
    await server.bind(AN_HOUR_LATER)
    next_one = Following(server.cluster)
    next_one.now = NOON + TAKEOVER_S
    cast("Any", server.cluster).dated(date)
    next_one.backend.open()
    try:
        assert (await next_one.seen()).bound_at == bound_at
    finally:
        await next_one.backend.close()

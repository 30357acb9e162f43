"""The least number of departures that makes something possible, against trying each number."""

from __future__ import annotations

import pytest

from oarlock.scheduler import amounts
from oarlock.scheduler.placement import departures, freespace
from oarlock.spec import holdings
from oarlock.spec.cluster import nodes

NODE = nodes.Node(name="a", capacity=holdings.Resources(16_000))


@pytest.mark.parametrize("count", [0, 1, 2, 5, 16])
@pytest.mark.parametrize("wanted", [0, 1, 3, 5, 16, 17])
@pytest.mark.parametrize("short", [0, 2])
def test_no_more_gangs_leave_than_have_to(count: int, wanted: int, short: int) -> None:
    claims = [
        holdings.Holding(job=f"j{i}", attempt=1, role="worker", index=0, node="a", amount=holdings.Resources(1000))
        for i in range(count)
    ]
    space = freespace.FreeSpace([NODE], claims)
    free = 16 - count
    leaving = departures.Departures(space, claims, lambda one: (one,), lambda one: amounts.amount(one.amount))
    tried: list[int] = []

    def test(gone: int) -> bool:
        tried.append(gone)
        assert space.free().cpus_milli == 1000 * (free + gone)
        return free + gone >= wanted

    with space.trial():
        found = leaving.first(test, (0, 1000 * short, 0))
        possible = [gone for gone in range(short, count + 1) if free + gone >= wanted]
        assert found == (possible[0] if possible else None)
        assert min(tried, default=short) >= short
        if found is not None:
            assert space.free().cpus_milli == 1000 * (free + found)
    assert space.free().cpus_milli == 1000 * free

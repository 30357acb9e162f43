"""Usage: device-seconds and CPU-seconds."""

from __future__ import annotations

from typing import Any

import msgspec

from oarlock.store import stores


class Usage:
    async def test_usage_is_summed_by_owner_and_pool(self, store: stores.Store) -> None:
        def use(owner: str, pool: str, job: str, end: float, devices: float) -> stores.Usage:
            return stores.Usage(
                owner=owner,
                pool=pool,
                job=job,
                attempt=1,
                started_at=end - 1,
                ended_at=end,
                device_seconds=devices,
                cpu_seconds=2 * devices,
                cost=3 * devices,
            )

        every = [use("bob", "a", "j-1", 1.0, 4.0), use("ann", "b", "j-2", 2.0, 8.0), use("ann", "b", "j-3", 3.0, 16.0)]
        every.append(msgspec.structs.replace(every[0], attempt=2))
        await store.write(lambda t: [t.add_usage(one) for one in [*every, every[0]]])
        summed = await store.read(lambda v: v.usage())
        assert [(one.owner, one.pool, one.device_seconds, one.cpu_seconds, one.cost) for one in summed] == [
            ("ann", "b", 24.0, 48.0, 72.0),
            ("bob", "a", 8.0, 16.0, 24.0),
        ]
        assert (summed[0].started_at, summed[0].ended_at, summed[0].job) == (1.0, 3.0, "")
        late = await store.read(lambda v: v.usage(since=2.0))
        assert [(one.owner, one.device_seconds) for one in late] == [("ann", 16.0)]

    async def test_the_attempts_of_a_time_are_found_with_their_ends_newest_first(self, store: stores.Store) -> None:
        def use(job: str, start: float, end: float, owner: str = "ann", attempt: int = 1) -> stores.Usage:
            more = {"gpu_type": "a100, h100", "useful_seconds": 7.5} if job == "j-1" else {}
            return stores.Usage(owner=owner, pool="p", job=job, attempt=attempt, started_at=start, ended_at=end, **more)

        every = [use("j-1", 0, 10), use("j-2", 10, 20, "bob"), use("j-2", 20, 40, "bob", 2), use("j-3", 25, 30)]
        await store.write(lambda t: [t.add_usage(one) for one in every])

        async def found(since: float, until: float, **more: Any) -> list[tuple[str, int]]:
            used = await store.read(lambda v: v.attempts_used(since=since, until=until, **more))
            assert all(one in every for one in used), "the whole rows"
            return [(one.job, one.attempt) for one in used]

        assert await found(0, 100) == [("j-2", 2), ("j-3", 1), ("j-2", 1), ("j-1", 1)]
        assert await found(10, 25) == [("j-2", 2), ("j-2", 1)], "held at the borders alone is not held between them"
        assert await found(5, 11) == [("j-2", 1), ("j-1", 1)], "a part of the attempt is enough"
        assert await found(0, 100, owner="ann") == [("j-3", 1), ("j-1", 1)]
        assert await found(0, 100, limit=2) == [("j-2", 2), ("j-3", 1)]
        assert await found(26, 29) == [("j-2", 2), ("j-3", 1)]

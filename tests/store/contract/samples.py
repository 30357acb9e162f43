"""Samples of the cluster over time."""

from __future__ import annotations

from oarlock.spec.cluster import samples
from oarlock.store import stores


class Samples:
    async def test_samples_are_found_by_their_time_and_spread_over_it(self, store: stores.Store) -> None:
        def taken(at: float) -> samples.Sample:
            use = samples.PoolUse(used={"gpus": at}, entitled={"gpus": 2.5})
            return samples.Sample(at=at, devices={"h100": samples.Devices(1.5, 0.5, 2.0)}, pools={"p": use})

        every = [taken(float(at)) for at in range(10)]
        await store.write(lambda tx: [tx.add_sample(one) for one in [*every[::-1], taken(3.0)]])

        async def found(since: float, until: float, limit: int = 100) -> list[samples.Sample]:
            return await store.read(lambda view: view.samples(since=since, until=until, limit=limit))

        assert await found(0, 100) == every
        assert await found(2, 5) == every[2:5], "from the first time to before the last one"
        assert [one.at for one in await found(0, 100, 4)] == [0.0, 3.0, 6.0, 9.0]
        assert [one.at for one in await found(0, 100, 3)] == [1.0, 5.0, 9.0], "the newest one is always there"
        assert await found(50, 60) == []
        await store.write(lambda tx: tx.forget_samples(7.0))
        assert await found(0, 100) == every[7:]

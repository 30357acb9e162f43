"""The leader and its epoch."""

from __future__ import annotations

import pytest
from tests.store import nouns

from oarlock.spec import errors
from oarlock.store import stores


class Leadership:
    async def test_one_leads_and_the_next_has_a_greater_epoch(self, store: stores.Store) -> None:
        assert await store.read(lambda v: v.leader()) is None
        assert await store.lead("a", now=100.0, ttl_s=10.0) == 1
        assert await store.lead("b", now=109.9, ttl_s=10.0) is None
        assert await store.lead("a", now=105.0, ttl_s=10.0) == 1
        assert await store.read(lambda v: v.leader()) == stores.Leader("a", 1, 115.0)
        assert await store.lead("b", now=114.9, ttl_s=10.0) is None
        assert await store.lead("b", now=115.0, ttl_s=10.0) == 2
        assert await store.lead("a", now=116.0, ttl_s=10.0) is None
        await store.resign("a", 1)
        assert await store.lead("a", now=116.0, ttl_s=10.0) is None
        await store.resign("b", 1)  # an epoch that it led long ago
        assert await store.lead("a", now=116.0, ttl_s=10.0) is None
        await store.resign("b", 2)
        assert await store.read(lambda v: v.leader()) is None
        assert await store.lead("a", now=116.0, ttl_s=10.0) == 3

    async def test_only_the_present_epoch_writes(self, store: stores.Store) -> None:
        epoch = await store.lead("a", now=0.0, ttl_s=10.0)
        assert await store.write(lambda t: t.add_job(nouns.job("j-1"), at=1.0).version, epoch=epoch) == 1
        for stale in (0, 2, -1):
            with pytest.raises(errors.StaleEpoch):
                await store.write(lambda t: t.add_job(nouns.job("j-2"), at=1.0), epoch=stale)
        await store.lead("b", now=10.0, ttl_s=10.0)
        with pytest.raises(errors.StaleEpoch, match="the present one is 2"):
            await store.write(lambda t: t.add_job(nouns.job("j-2"), at=1.0), epoch=epoch)
        await store.resign("b", 2)
        with pytest.raises(errors.StaleEpoch):
            await store.write(lambda t: t.add_job(nouns.job("j-2"), at=1.0), epoch=2)
        assert await store.read(lambda v: v.job("j-2")) is None

    async def test_a_new_store_has_no_leader(self, store: stores.Store) -> None:
        with pytest.raises(errors.StaleEpoch):
            await store.write(lambda t: None, epoch=0)

"""The store in memory keeps the contract, and never suspends: the simulator steps through it by hand."""

from __future__ import annotations

import pytest
from tests.store import nouns
from tests.store.contract.stores import StoreContract

from oarlock.store import memory, stores


class TestMemory(StoreContract):
    @pytest.fixture
    def store(self, memory_store: memory.MemoryStore) -> stores.Store:
        return memory_store


def test_nothing_suspends() -> None:
    store = memory.MemoryStore()
    for ask in (
        store.write(lambda t: t.add_job(nouns.job(), at=1.0)),
        store.read(lambda v: v.active()),
        store.lead("a", now=0.0, ttl_s=1.0),
        store.resign("a", 1),
        store.wait(0, 60.0),
        store.close(),
    ):
        with pytest.raises(StopIteration):
            ask.send(None)

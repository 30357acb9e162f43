"""Leadership, from the store's row and the server's own clock."""

from __future__ import annotations

import pytest

from oarlock.controllers import leadership
from oarlock.spec import errors
from oarlock.store import memory


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


TAKEOVER_S = 15.0
"""The promise of docs/kubernetes.md: from the last sign of life of the leader until another server leads."""


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store() -> memory.MemoryStore:
    return memory.MemoryStore()


def one(store: memory.MemoryStore, clock: Clock, name: str) -> leadership.Leading:
    return leadership.Leading(store, holder=name, clock=clock, ttl_s=9.0)


async def test_the_second_waits_until_the_first_has_expired(store: memory.MemoryStore, clock: Clock) -> None:
    first, second = one(store, clock, "a"), one(store, clock, "b")
    await first.tick()
    await second.tick()
    assert (first.epoch, second.epoch) == (1, None)
    clock.now += 8.9
    await second.tick()
    assert second.epoch is None
    clock.now += 0.2
    assert first.epoch is None, "it stops believing by its own clock"
    clock.now += 3.0
    await second.tick()
    assert second.epoch == 2
    await first.tick()
    assert first.epoch is None


async def test_another_server_leads_within_15_s_of_the_last_renewal(clock: Clock) -> None:
    """With the defaults, ticked when it asks to be, whenever between two renewals its first question comes."""
    took = []
    for tenths in range(34):
        store, began = memory.MemoryStore(), clock.now
        leader, follower = (leadership.Leading(store, holder=name, clock=clock) for name in ("a", "b"))
        await leader.tick()
        clock.now += tenths / 10
        await follower.tick()
        while follower.epoch is None:
            clock.now = (follower.wake_at() or 0.0) + 0.01  # a loop wakes a moment later
            await follower.tick()
        assert leader.epoch is None
        took.append(clock.now - began)
    assert max(took) <= TAKEOVER_S
    assert max(took) > leadership.TTL_S + 3.0, "the worst time between two renewals was tried"


async def test_it_believes_no_longer_than_the_store_however_slow_the_answer_was(clock: Clock) -> None:
    """Its term counts from the question: while the answer was on its way the store's row was ageing."""

    class Slow(memory.MemoryStore):
        async def lead(self, holder: str, *, now: float, ttl_s: float) -> int | None:
            epoch = await super().lead(holder, now=now, ttl_s=ttl_s)
            clock.now += 5.0
            return epoch

    store = Slow()
    first = one(store, clock, "a")
    await first.tick()
    row = await store.read(lambda view: view.leader())
    assert row is not None
    clock.now = row.expires_at - 0.1
    assert first.epoch == 1
    clock.now = row.expires_at + 0.1
    assert first.epoch is None


async def test_it_renews_at_a_third_of_its_time_and_no_more_often(store: memory.MemoryStore, clock: Clock) -> None:
    first = one(store, clock, "a")
    await first.tick()
    expiry = (await store.read(lambda view: view.leader())).expires_at
    clock.now += 2.9
    await first.tick()
    assert (await store.read(lambda view: view.leader())).expires_at == expiry
    clock.now += 0.2
    await first.tick()
    assert (await store.read(lambda view: view.leader())).expires_at == clock.now + 9.0
    assert first.epoch == 1


async def test_it_asks_at_the_very_time_at_which_it_wants_to_be_woken(store: memory.MemoryStore, clock: Clock) -> None:
    """A loop whose clock stands at that time would wake again and again, and never ask."""
    first = one(store, clock, "a")
    await first.tick()
    clock.now = first.wake_at() or 0.0
    await first.tick()
    row = await store.read(lambda view: view.leader())
    assert row is not None
    assert (row.expires_at, first.wake_at()) == (clock.now + 9.0, clock.now + 3.0)


async def test_a_clock_that_is_set_back_does_not_stop_the_renewal(store: memory.MemoryStore, clock: Clock) -> None:
    first = one(store, clock, "a")
    await first.tick()
    clock.now -= 3600.0
    await first.tick()
    assert first.wake_at() == pytest.approx(clock.now + 3.0)


async def test_a_server_that_was_refused_stops(store: memory.MemoryStore, clock: Clock) -> None:
    first = one(store, clock, "a")
    await first.tick()
    first.lost(7)
    assert first.epoch == 1, "that was said of another epoch"
    first.lost(1)
    assert first.epoch is None


async def test_giving_up_lets_a_successor_begin_at_once(store: memory.MemoryStore, clock: Clock) -> None:
    first, second = one(store, clock, "a"), one(store, clock, "b")
    await first.tick()
    await first.resign()
    await first.resign()
    await second.tick()
    assert (first.epoch, second.epoch) == (None, 2)
    with pytest.raises(errors.StaleEpoch):
        await store.write(lambda tx: None, epoch=1)

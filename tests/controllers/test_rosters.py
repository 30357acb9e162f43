"""A roster follows the log: it knows the store's active jobs, and pays only for changes."""

from __future__ import annotations

from collections.abc import Callable, Collection

import msgspec
import pytest
from tests.controllers.plant import Phase, Plant

from oarlock.controllers import rosters
from oarlock.spec import events, holdings, jobs
from oarlock.store import stores


class Counting:
    """A store that counts the jobs that are read through it."""

    def __init__(self, store: stores.Store) -> None:
        self._store = store
        self.wait = store.wait
        self.reads = 0
        self.read_jobs = 0

    async def read(self, look: Callable[[stores.View], object]) -> object:
        self.reads += 1

        def counted(view: stores.View) -> object:
            jobs_by_id = view.jobs_by_id

            def count(ids: Collection[str]) -> dict[str, jobs.Job]:
                self.read_jobs += len(ids)
                return jobs_by_id(ids)

            view.jobs_by_id = count  # type: ignore[method-assign]
            try:
                return look(view)
            finally:
                del view.jobs_by_id

        return await self._store.read(counted)


@pytest.fixture
def plant() -> Plant:
    return Plant()


async def as_stored(plant: Plant) -> dict[str, jobs.Job]:
    return {job.id: job for job in await plant.store.read(lambda view: view.active()) if rosters.is_active(job)}


async def test_it_follows_a_life(plant: Plant) -> None:
    roster = rosters.Roster(plant.store)
    assert await roster.refresh() == frozenset()
    job_id = await plant.submit()
    assert await roster.refresh() == {job_id}
    assert await roster.refresh() == frozenset()
    while (await plant.job(job_id)).phase is not Phase.COMPLETED:
        await plant.step()
        await roster.refresh()
        assert roster.jobs == await as_stored(plant)
        held = await plant.store.read(lambda view: view.holdings())
        assert [claim for claims in roster.held.values() for claim in claims] == held
    assert roster.jobs == {}


async def test_jobs_at_rest_cost_nothing(plant: Plant) -> None:
    for _ in range(50):
        await plant.submit()
    await plant.until_rest()
    store = Counting(plant.store)
    roster = rosters.Roster(store)  # type: ignore[arg-type]
    await roster.refresh()
    job_id = await plant.submit()
    assert await roster.refresh() == {job_id}
    assert store.read_jobs == 1


async def test_after_a_compaction_it_lists_again(plant: Plant) -> None:
    first = await plant.submit()
    roster = rosters.Roster(plant.store)
    await roster.refresh()
    await plant.until_phase(first, Phase.COMPLETED)
    second = await plant.submit()
    seq = await plant.store.read(lambda view: view.last_seq())
    await plant.store.write(lambda tx: tx.compact(seq + 1))
    assert await roster.refresh() == {first, second}
    assert set(roster.jobs) == {second}
    assert await roster.refresh() == frozenset()


async def test_a_removed_job_is_gone(plant: Plant) -> None:
    job_id = await plant.submit()
    roster = rosters.Roster(plant.store)
    await roster.refresh()
    await plant.intend(job_id, "cancel")
    await plant.store.write(lambda tx: tx.remove_jobs([job_id], at=plant.now))
    assert await roster.refresh() == {job_id}
    assert roster.jobs == {}


async def test_its_own_writes_are_no_news(plant: Plant) -> None:
    job_id = await plant.submit()
    roster = rosters.Roster(plant.store)
    await roster.refresh()
    await plant.intend(job_id, "halt")
    roster.adopt([await plant.job(job_id)])
    assert await roster.refresh() == frozenset()
    assert roster.jobs == {}


async def test_a_look_without_news_reads_nothing(plant: Plant) -> None:
    """Each change of the cluster wakes every controller, and most of them find no news."""
    counting = Counting(plant.store)
    roster = rosters.Roster(counting)  # type: ignore[arg-type]  # as much of a store as a roster uses
    job_id = await plant.submit()
    await roster.refresh()
    before = counting.reads
    for _ in range(3):
        assert await roster.refresh() == frozenset()
    assert counting.reads == before
    await plant.intend(job_id, "cancel")
    assert await roster.refresh() == {job_id}


async def test_the_holdings_of_a_change_by_others_are_read_also_after_a_write_of_one_s_own(plant: Plant) -> None:
    """The guardian writes a job that the scheduler has just given more places to: the log then tells of both."""
    roster, job_id = rosters.Roster(plant.store), await plant.submit()
    await plant.until_phase(job_id, Phase.PROCESSING)
    await roster.refresh()
    assert len(roster.held[job_id]) == 1

    def write(tx: stores.Transaction, note: str) -> jobs.Job:
        job = tx.job(job_id)
        assert job is not None
        job = msgspec.structs.replace(job, sent_from=note)
        return tx.put_job(job, [events.NodesRequested(request=None)], at=plant.now)

    def widen(tx: stores.Transaction) -> None:
        (claim,) = tx.holdings(job_id)
        amount = holdings.Resources(cpus_milli=1)
        tx.hold([msgspec.structs.replace(claim, index=7, ports=(), devices=(), amount=amount)])
        write(tx, "widened")

    await plant.store.write(widen)
    roster.adopt([await plant.store.write(lambda tx: write(tx, "own"))])
    await roster.refresh()
    assert len(roster.held[job_id]) == 2
    await plant.store.write(lambda tx: (tx.release(job_id, 1, ["worker-7"]), write(tx, "back")))
    await roster.reread([job_id])
    await roster.refresh()
    assert len(roster.held[job_id]) == 1

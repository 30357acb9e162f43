"""The event log, and waiting for its next line."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from tests.store import nouns
from tests.store.contract import writing

from oarlock.spec import attempts, errors, events, holdings, phases
from oarlock.store import stores


class EventLog:
    async def test_each_event_is_a_line_and_a_change_of_phase_one_more(self, store: stores.Store) -> None:
        await writing.add(store, "j-1")
        job = await store.read(lambda v: v.job("j-1"))
        happened = [events.Admitted(attempt=1, holdings=(nouns.claim(),)), events.LaunchFailed(attempt=1, reason="no")]
        after = msgspec.structs.replace(job, phase=phases.Phase.DEPLOYING, reason="launched")
        await store.write(lambda t: t.put_job(after, happened, at=2.5))
        records = await store.read(lambda v: v.records(0))
        assert writing.kinds(records) == [
            (1, "j-1", "submitted", 1),
            (2, "j-1", "admitted", 2),
            (3, "j-1", "launch_failed", 2),
            (4, "j-1", "phase", 2),
        ]
        assert records[2].data == {"attempt": 1, "reason": "no"}
        assert records[3].data == {"from": "QUEUED", "to": "DEPLOYING", "reason": "launched"}
        assert records[0].data == {"name": "j-1", "owner": "ann", "pool": "default"}
        assert [record.at for record in records] == [1.0, 2.5, 2.5, 2.5]
        assert msgspec.convert(records[1].data["holdings"], tuple[holdings.Holding, ...]) == (nouns.claim(),)

    async def test_progress_is_no_line_but_a_task_s_new_phase_is(self, store: stores.Store) -> None:
        def seen(phase: phases.TaskPhase):
            return (nouns.attempt(phase=phase),)

        await writing.add(store, "j-1", attempts=seen(phases.TaskPhase.DOWNLOADING))
        progress = attempts.Progress(step=3, at=1.0)
        report = events.TaskReported(
            key=attempts.TaskKey("j-1", 1, "worker", 0, 1), phase="PROCESSING", progress=progress, idle_s=0.5
        )
        for _ in range(2):
            await store.write(
                lambda t: t.put_job(
                    msgspec.structs.replace(t.job("j-1"), attempts=seen(phases.TaskPhase.PROCESSING)), [report], at=2.0
                )
            )
        records = await store.read(lambda v: v.records(1))
        assert writing.kinds(records) == [(2, "j-1", "task_reported", 2)]
        assert records[0].data == {
            "attempt": 1,
            "role": "worker",
            "index": 0,
            "incarnation": 1,
            "phase": "PROCESSING",
            "detail": "",
        }
        late = msgspec.structs.replace(report, key=attempts.TaskKey("j-1", 7, "worker", 0, 1))
        job = await store.write(lambda t: t.put_job(t.job("j-1"), [late], at=3.0))
        assert (job.version, await store.read(lambda v: v.last_seq())) == (4, 2), "a report of no known attempt"

    async def test_the_log_is_read_on_from_a_seq_by_pages(self, store: stores.Store) -> None:
        await writing.add(store, *(f"j-{place}" for place in range(7)))
        seen: list[int] = []
        while page := await store.read(lambda v, last=seen[-1] if seen else 0: v.records(last, limit=3)):
            assert len(page) <= 3
            seen += [record.seq for record in page]
        assert seen == list(range(1, 8))
        assert writing.kinds(await store.read(lambda v: v.records(0, job="j-4"))) == [(5, "j-4", "submitted", 1)]
        assert await store.read(lambda v: (v.records(10**30), v.last_seq())) == ([], 7)
        assert await store.read(lambda v: v.records(0, limit=0)) == []

    async def test_lines_are_chosen_by_kind(self, store: stores.Store) -> None:
        await writing.add(store, "j-1", "j-2")
        job = await store.read(lambda v: v.job("j-1"))
        happened = [events.Admitted(attempt=1, holdings=()), events.LaunchFailed(attempt=1, reason="no")]

        def chosen(view: stores.View) -> list[list[int]]:
            view_of = [
                view.records(0, kinds=("submitted",)),
                view.records(0, job="j-1", kinds=("submitted", "launch_failed")),
                view.records(0, job="j-1", kinds=("submitted", "launch_failed"), limit=1),
                view.records(3, job="j-1", kinds=("admitted", "\0")),
                view.records(0, job="j-2", kinds=("\0",)),
            ]
            return [[record.seq for record in lines] for lines in view_of]

        def write(tx: stores.Transaction) -> list[list[int]]:
            tx.put_job(job, happened, at=2.0)
            return chosen(tx)

        expected = [[1, 2], [1, 4], [1], [], []]
        assert await store.write(write) == expected, "a transaction sees the lines that it writes"
        assert await store.read(chosen) == expected

    async def test_the_jobs_that_the_log_names_with_their_last_versions(self, store: stores.Store) -> None:
        await writing.add(store, "j-1", "j-2")

        def change(t: stores.Transaction) -> dict[str, int]:
            for note in ("one", "two"):
                job = msgspec.structs.replace(t.job("j-1"), reason=note)
                t.put_job(job, [events.LaunchFailed(attempt=1, reason=note)], at=2.0)
            t.tell(events.NODES, ["n1"], at=2.0)
            return t.changed_jobs(2)

        assert await store.write(change) == {"j-1": 3}
        told = await store.read(lambda v: [v.changed_jobs(after) for after in (0, 3, 9)])
        assert told == [{"j-1": 3, "j-2": 1}, {"j-1": 3}, {}]
        await store.write(lambda t: t.compact(3))
        with pytest.raises(errors.Gone):
            await store.read(lambda v: v.changed_jobs(1))
        assert await store.read(lambda v: v.changed_jobs(2)) == {"j-1": 3}

    async def test_compacted_events_are_gone(self, store: stores.Store) -> None:
        await writing.add(store, "j-1", "j-2", "j-3", "j-4")
        await store.write(lambda t: t.compact(3))
        for after in (0, 1, -5):
            with pytest.raises(errors.Gone) as gone:
                await store.read(lambda v, after=after: v.records(after))
            assert gone.value.detail == {"first": 3}
        assert [record.seq for record in await store.read(lambda v: v.records(2))] == [3, 4]
        with pytest.raises(errors.Gone):
            await store.read(lambda v: v.records(0, job="j-1"))
        assert writing.kinds(await store.read(lambda v: v.records(0, job="j-3"))) == [(3, "j-3", "submitted", 1)]
        await store.write(lambda t: t.compact(1))
        with pytest.raises(errors.Gone):
            await store.read(lambda v: v.records(1))
        await store.write(lambda t: t.compact(10**30))
        assert await store.read(lambda v: (v.records(4), v.last_seq())) == ([], 4)
        with pytest.raises(errors.Gone):
            await store.read(lambda v: v.records(3))
        await writing.add(store, "j-5")
        assert writing.kinds(await store.read(lambda v: v.records(4))) == [(5, "j-5", "submitted", 1)]

    async def test_lines_of_nodes_are_dropped_without_those_of_jobs(self, store: stores.Store) -> None:
        """In a busy cluster nodes change twice in a second: their lines took the place of all lines of jobs."""
        for job in ("j-1", "j-2"):
            await writing.add(store, job)
            for place in range(3):
                await store.write(lambda t, place=place: t.tell(events.NODES, [f"n{place}"], at=2.0))
        newest = await store.read(
            lambda v: [v.newest_seq(count, of_jobs=of_jobs) for of_jobs in (True, False) for count in (1, 2, 3, 7)]
        )
        assert newest == [5, 1, 0, 0, 8, 7, 6, 0]
        await store.write(lambda t: t.compact(0, cluster_before=7))
        assert [record.seq for record in await store.read(lambda v: v.records(0))] == [1, 5, 7, 8]
        await store.write(lambda t: t.compact(5, cluster_before=10**30))
        assert [record.seq for record in await store.read(lambda v: v.records(4))] == [5]
        with pytest.raises(errors.Gone):
            await store.read(lambda v: v.records(3))
        assert await store.read(lambda v: v.last_seq()) == 8

    async def test_many_writers_leave_a_log_without_gaps_that_readers_follow(self, store: stores.Store) -> None:
        seen: list[events.Record] = []

        async def follow() -> None:
            while len(seen) < 120:
                after = seen[-1].seq if seen else 0
                await store.wait(after, 5.0)
                seen.extend(await store.read(lambda v, after=after: v.records(after, limit=7)))

        async def write(writer: int) -> None:
            await writing.add(store, *(f"j-{writer}-{place}" for place in range(10)))

        await asyncio.wait_for(asyncio.gather(follow(), *(write(writer) for writer in range(12))), 60)
        assert [record.seq for record in seen] == list(range(1, 121))
        assert len({record.job for record in seen}) == 120

    async def test_wait_returns_when_there_is_more_or_the_time_is_over(self, store: stores.Store) -> None:
        assert await store.wait(0, 0.0) == 0
        assert await store.wait(0, 0.01) == 0
        waiting = asyncio.ensure_future(store.wait(0, 30.0))
        await asyncio.sleep(0.01)
        await writing.add(store, "j-1")
        assert await asyncio.wait_for(waiting, 240) == 1
        assert await store.wait(0, 30.0) == 1

    async def test_wait_ends_when_the_store_closes(self, store: stores.Store) -> None:
        waiting = asyncio.ensure_future(store.wait(0, 60.0))
        await asyncio.sleep(0.01)
        await store.close()
        assert await asyncio.wait_for(waiting, 240) == 0

    async def test_a_change_of_nodes_or_pools_is_a_line_of_no_job(self, store: stores.Store) -> None:
        await writing.add(store, "j-1")
        waiting = asyncio.ensure_future(store.wait(1, 30.0))
        await asyncio.sleep(0.01)
        many = [f"n{place:03d}" for place in range(100)]
        await store.write(lambda t: (t.tell(events.NODES, many, at=2.0), t.tell(events.POOLS, ("p",), at=3.0)))
        assert await asyncio.wait_for(waiting, 240) == 3
        records = await store.read(lambda v: v.records(1))
        assert writing.kinds(records) == [(2, "", "nodes", 0), (3, "", "pools", 0)]
        assert records[0].data == {"names": many[: events.MOST_NAMES], "count": 100}
        assert (records[1].at, records[1].data) == (3.0, {"names": ["p"], "count": 1})
        assert writing.kinds(await store.read(lambda v: v.records(0, job="j-1"))) == [(1, "j-1", "submitted", 1)]

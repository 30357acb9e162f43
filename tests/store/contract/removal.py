"""The removal of jobs and keys."""

from __future__ import annotations

import pytest
from tests.store import nouns
from tests.store.contract import writing

from oarlock.spec import errors, phases
from oarlock.store import stores


class Removal:
    async def test_removal_forgets_all_but_usage_and_says_so(self, store: stores.Store) -> None:
        await store.write(lambda t: t.add_job(nouns.job("j-1"), at=1.0, idempotency_key="k"))
        await writing.add(store, "j-2", name="other")
        usage = stores.Usage(owner="ann", pool="default", job="j-1", attempt=1, ended_at=4.0, device_seconds=7.0)
        await store.write(lambda t: (t.add_checkpoint(nouns.checkpoint()), t.add_usage(usage)))
        with pytest.raises(errors.Conflict, match="QUEUED"):
            await store.write(lambda t: t.remove_jobs(["j-1"], at=2.0))
        await writing.finish(store, "j-1")
        with pytest.raises(errors.Conflict):
            await store.write(lambda t: t.remove_jobs(["j-1", "j-2"], at=2.0))
        await store.write(lambda t: t.remove_jobs(["j-1", "j-1", "j-none"], at=6.0))
        look = await store.read(lambda v: (v.job("j-1"), v.find("j-1"), v.checkpoints("j-1"), v.submitted("ann", "k")))
        assert look == (None, None, [], ("j-1", ""))
        records = await store.read(lambda v: v.records(0))
        assert writing.kinds(records) == [(2, "j-2", "submitted", 1), (4, "j-1", "removed", 2)]
        assert records[-1].data == {"name": "j-1", "owner": "ann", "phase": "COMPLETED"}
        assert records[-1].at == 6.0
        assert [one.device_seconds for one in await store.read(lambda v: v.usage())] == [7.0]

    async def test_a_key_is_remembered_after_its_job_until_it_is_forgotten(self, store: stores.Store) -> None:
        for place, at in ((1, 10.0), (2, 20.0)):
            job = nouns.job(f"j-{place}")
            await store.write(lambda t, job=job: t.add_job(job, at=1.0, idempotency_key=job.id, request_sha256="abc"))
            await writing.finish(store, job.id)
            await store.write(lambda t, job=job, at=at: t.remove_jobs([job.id], at=at))
        with pytest.raises(errors.Conflict, match="idempotency key"):
            await store.write(lambda t: t.add_job(nouns.job("j-3"), at=1.0, idempotency_key="j-1"))
        await store.write(lambda t: t.add_job(nouns.job("j-4"), at=1.0, idempotency_key="kept"))
        await store.write(lambda t: t.forget_keys(20.0))
        keys = ("j-1", "j-2", "kept")
        found = await store.read(lambda v: [v.submitted("ann", key) for key in keys])
        assert found == [None, ("j-2", "abc"), ("j-4", "")]
        await store.write(lambda t: t.add_job(nouns.job("j-1"), at=1.0, idempotency_key="j-1"))

    async def test_a_job_that_holds_something_is_not_removed(self, store: stores.Store) -> None:
        await writing.add(store, "j-1")
        await store.write(lambda t: (t.put_node(nouns.node()), t.hold([nouns.claim()])))
        await writing.finish(store, "j-1")
        with pytest.raises(errors.Conflict, match="holds something"):
            await store.write(lambda t: t.remove_jobs(["j-1"], at=2.0))
        await writing.add(store, "j-2", phase=phases.Phase.FAILED)
        await store.write(lambda t: t.remove_jobs(["j-2"], at=2.0))  # the holdings of others do not matter

    async def test_very_many_are_removed_at_once(self, store: stores.Store) -> None:
        ids = [f"j-{place}" for place in range(1200)]

        def change(t: stores.Transaction) -> None:
            for job_id in ids:
                t.add_job(nouns.job(job_id, phase=phases.Phase.FAILED), at=1.0)
            t.remove_jobs(ids, at=2.0)

        await store.write(change)
        assert await store.read(lambda v: (v.count(), v.last_seq())) == ({}, 2400)
        left = await store.read(lambda v: v.records(0, limit=2400))
        assert {record.kind for record in left} == {"removed"}, "a line of the same change outlives its job"

"""Lists of jobs: pages, filters, the active ones, snapshots in use."""

from __future__ import annotations

import msgspec
import pytest
from tests.store import nouns
from tests.store.contract import writing

from oarlock.spec import errors, intents, jobfile, jobs, phases
from oarlock.store import stores


class Lists:
    async def test_pages_are_newest_first_without_gaps_or_repeats(self, store: stores.Store) -> None:
        order = [(1.0, "j-b"), (1.0, "j-a"), (3.0, "j-c"), (2.0, "j-Z"), (2.0, "j-é"), (2.0, "j-_")]
        for at, job_id in order:
            await store.write(lambda t, i=job_id, at=at: t.add_job(nouns.job(i, at=at), at=at))
        seen: list[str] = []
        after = None
        while page := await store.read(lambda v, after=after: v.jobs(stores.JobFilter(after=after, limit=2))):
            seen += [job.id for job in page]
            after = seen[-1]
        assert seen == [job_id for _, job_id in sorted(order, reverse=True)]
        with pytest.raises(errors.Gone):
            await store.read(lambda v: v.jobs(stores.JobFilter(after="j-x")))

    async def test_filters_join(self, store: stores.Store) -> None:
        for job_id, owner, pool in (("j-1", "ann", "a"), ("j-2", "ann", "b"), ("j-3", "bob", "a"), ("j-4", "ann", "a")):
            await store.write(lambda t, i=job_id, o=owner, p=pool: t.add_job(nouns.job(i, owner=o, pool=p), at=1.0))
        await writing.finish(store, "j-4")
        queued = frozenset({phases.Phase.QUEUED})
        for asked, found in (
            ({}, ["j-4", "j-3", "j-2", "j-1"]),
            ({"owner": "ann", "pool": "a"}, ["j-4", "j-1"]),
            ({"owner": "ann", "pool": "a", "phases": queued}, ["j-1"]),
            ({"phases": frozenset()}, []),
            ({"name": "j-2"}, ["j-2"]),
            ({"limit": 0}, []),
            ({"limit": -1}, []),
            ({"limit": 10**30}, ["j-4", "j-3", "j-2", "j-1"]),
        ):
            page = await store.read(lambda v, asked=asked: v.jobs(stores.JobFilter(**asked)))
            assert [job.id for job in page] == found, asked
        count = await store.read(lambda v: v.count())
        assert count == {phases.Phase.QUEUED: 3, phases.Phase.COMPLETED: 1}

    async def test_which_jobs_continue_one_is_asked_of_them(self, store: stores.Store) -> None:
        """The other one says nothing of it: it may have ended, or been removed."""
        from_1 = jobs.Continued(job="j-1", name="train", step=50, attempt=1, path="/c/j-2/attempt-0-round-1-step-50")
        await store.write(lambda t: t.add_job(nouns.job("j-1", at=1.0), at=1.0))
        for job_id, at, continued in (("j-2", 2.0, from_1), ("j-3", 3.0, from_1), ("j-4", 4.0, None)):
            job = nouns.job(job_id, at=at, continues=continued, owner="bob" if job_id == "j-3" else "ann")
            await store.write(lambda t, job=job: t.add_job(job, at=1.0))
        await writing.finish(store, "j-1")
        await store.write(lambda t: t.remove_jobs(["j-1"], at=9.0))
        for asked, found in (
            ({"continues": "j-1"}, ["j-3", "j-2"]),
            ({"continues": "j-1", "owner": "ann"}, ["j-2"]),
            ({"continues": "j-2"}, []),
            ({"continues": ""}, []),
        ):
            page = await store.read(lambda v, asked=asked: v.jobs(stores.JobFilter(**asked)))
            assert [job.id for job in page] == found, asked
        (record, *_) = await store.read(lambda v: v.records(0, job="j-2"))
        assert (record.data["continues"], record.data["step"]) == ("j-1", 50)

    async def test_active_jobs_are_those_that_a_controller_must_look_at(self, store: stores.Store) -> None:
        halt, halted = intents.Intent.HALT, phases.Phase.HALTED
        for job, expected in (
            (nouns.job("j-queued", at=3.0), True),
            (nouns.job("j-over", phase=phases.Phase.FAILED), False),
            (nouns.job("j-halted", phase=halted, intent=halt), False),
            (nouns.job("j-held", phase=halted, intent=halt, attempts=(nouns.attempt(),), at=2.0), True),
            (nouns.job("j-resumed", phase=halted, intent=intents.Intent.RUN, at=2.0), True),
            (nouns.job("j-canceled", phase=halted, intent=intents.Intent.CANCEL, at=1.0), True),
        ):
            await store.write(lambda t, job=job: t.add_job(job, at=1.0))
            assert (job.id in [one.id for one in await store.read(lambda v: v.active())]) is expected, job.id
        found = [job.id for job in await store.read(lambda v: v.active())]
        assert found == ["j-canceled", "j-held", "j-resumed", "j-queued"]

    async def test_active_jobs_are_those_of_now(self, store: stores.Store) -> None:
        """Whatever was read before: changed, ended, removed and made anew under its id."""

        async def reasons() -> dict[str, tuple[str, int]]:
            return {job.id: (job.reason, job.version) for job in await store.read(lambda v: v.active())}

        ids = [f"j-{number:04}" for number in range(1100)]
        await store.write(lambda t: [t.add_job(nouns.job(one), at=1.0) for one in ids])
        assert await reasons() == dict.fromkeys(ids, ("", 1))
        await store.write(lambda t: t.put_job(msgspec.structs.replace(t.job("j-0007"), reason="new"), at=2.0))
        await writing.finish(store, "j-0008")
        expected = dict.fromkeys(ids, ("", 1)) | {"j-0007": ("new", 2)}
        del expected["j-0008"]
        assert await reasons() == expected
        assert await reasons() == expected

        def anew(t: stores.Transaction) -> None:
            t.put_job(nouns.ended(t.job("j-0009")), at=3.0)
            t.remove_jobs(["j-0008", "j-0009"], at=3.0)
            for job_id in ("j-0008", "j-0009"):
                t.add_job(nouns.job(job_id, reason="another"), at=3.0)

        await store.write(anew)
        assert await reasons() == expected | dict.fromkeys(("j-0008", "j-0009"), ("another", 1))

    async def test_snapshots_of_stored_jobs_are_in_use(self, store: stores.Store) -> None:
        for job_id, snapshot in (("j-1", "sha256:a"), ("j-2", "sha256:b"), ("j-3", "sha256:b"), ("j-4", None)):
            await store.write(lambda t, i=job_id, s=snapshot: t.add_job(nouns.job(i, snapshot=s), at=1.0))
        await writing.finish(store, "j-1")
        assert await store.read(lambda v: v.snapshots_in_use()) == {"sha256:a", "sha256:b"}
        await store.write(lambda t: t.remove_jobs(["j-1"], at=2.0))
        assert await store.read(lambda v: v.snapshots_in_use()) == {"sha256:b"}

    async def test_jobs_are_searched_sorted_and_counted(self, store: stores.Store) -> None:
        for place, (name, owner, command) in enumerate(
            [("b", "ann", "python Train.py"), ("a", "bob", ["bash", "x y"]), ("c", "ann", "É 100%_"), ("d", "ann", "x")]
        ):
            spec = jobfile.JobSpec(command=command)
            job = msgspec.structs.replace(nouns.job(f"j-{place}", name=name, owner=owner, at=float(place)), spec=spec)
            await store.write(lambda t, job=job: t.add_job(job, at=1.0))
        await writing.finish(store, "j-3")

        async def found(**which) -> str:
            return "".join(job.name for job in await store.read(lambda v: v.jobs(stores.JobFilter(**which))))

        names = {"train.PY": "b", "é": "c", "100%": "c", "%": "c", "_": "c", "'x y'": "a", "\0": "", "D": "d", "zz": ""}
        assert {text: await found(text=text) for text in names} == names
        assert await found(since=1.0, until=3.0) == "ca"
        orders = {"created": "dcab", "name": "dcba", "owner": "adcb", "phase": "cabd", "pool": "dcab"}
        for sort, order in orders.items():
            for ascending in (False, True):
                which = {"sort": stores.Sort(sort), "ascending": ascending}
                order = order[::-1] if ascending else order
                assert await found(**which) == order, which
                after = {letter: f"j-{'bacd'.index(letter)}" for letter in order}
                paged = [await found(**which, after=after[letter], limit=1) for letter in order]
                assert "".join(paged) == order[1:], which
        # The first page by phase ended at "a", which has another phase by now: no job is left out.
        await writing.finish(store, "j-1")
        by_phase = {"sort": stores.Sort.PHASE, "after": "j-1"}
        assert await found(**by_phase, after_phase=phases.Phase.QUEUED) == "bda"
        assert await found(**by_phase) == "", "by its present phase it would be the last one"
        count = await store.read(lambda v: v.count(stores.JobFilter(owner="ann", limit=1, phases=frozenset())))
        assert count == {phases.Phase.QUEUED: 2, phases.Phase.COMPLETED: 1}
        assert await store.read(lambda v: v.count(stores.JobFilter(text="\0"))) == {}

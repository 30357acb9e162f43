"""Jobs and their versions."""

from __future__ import annotations

import msgspec
import pytest
from tests.store import nouns
from tests.store.contract import writing

from oarlock.spec import errors, phases
from oarlock.store import stores

replace = msgspec.structs.replace


class Jobs:
    async def test_a_job_comes_back_as_it_was_given(self, store: stores.Store) -> None:
        refused = {"snapshot": "sha256:1", "shell": {"PATH": "/bin"}, "attempts": (nouns.attempt(),), "phase_at": 0.1}
        job = nouns.job(**refused)
        made = await store.write(lambda t: t.add_job(job, at=1.0))
        assert made == replace(job, version=1)
        assert await store.read(lambda v: (v.job("j-1"), v.find("j-1"), v.job("j-2"))) == (made, made, None)

    async def test_a_write_grows_the_version_and_a_stale_one_is_refused(self, store: stores.Store) -> None:
        first = await store.write(lambda t: t.add_job(nouns.job(), at=1.0))
        second = await store.write(lambda t: t.put_job(replace(first, reason="waits"), at=2.0))
        assert (first.version, second.version) == (1, 2)
        with pytest.raises(errors.VersionMismatch, match="version 2, not 1"):
            await store.write(lambda t: t.put_job(replace(first, reason="late"), at=3.0))
        with pytest.raises(errors.VersionMismatch, match="version 2, not 3"):
            await store.write(lambda t: t.put_job(replace(second, version=3), at=3.0))
        assert await store.read(lambda v: v.job("j-1")) == second

    @pytest.mark.parametrize("phase", sorted(phases.TERMINAL))
    async def test_a_terminal_job_never_changes(self, store: stores.Store, phase: phases.Phase) -> None:
        job = await store.write(lambda t: t.add_job(nouns.job(), at=1.0))
        ended = replace(nouns.ended(job, phase), exit_code=0, ended_at=2.0)
        last = await store.write(lambda t: t.put_job(ended, at=2.0))
        for attempt in (last, replace(last, phase=phases.Phase.QUEUED), replace(last, version=1)):
            with pytest.raises(errors.Conflict, match="never changes again"):
                await store.write(lambda t, job=attempt: t.put_job(job, at=3.0))
        assert await store.read(lambda v: v.job("j-1")) == last

    async def test_name_owner_and_time_stay(self, store: stores.Store) -> None:
        job = await store.write(lambda t: t.add_job(nouns.job(), at=1.0))
        for other in ({"name": "b"}, {"owner": "bob"}, {"created_at": 9.0}):
            changed = replace(job, **other)
            with pytest.raises(errors.Conflict, match="keeps its name, owner and time"):
                await store.write(lambda t, job=changed: t.put_job(job, at=2.0))

    async def test_a_job_that_is_not_there_cannot_be_written(self, store: stores.Store) -> None:
        with pytest.raises(errors.NotFound, match="no job j-1"):
            await store.write(lambda t: t.put_job(nouns.job(), at=1.0))

    @pytest.mark.parametrize("bad", [{"name": "a\0b"}, {"owner": "\ud800"}, {"name": ""}, {"pool": "\0"}])
    async def test_a_name_that_no_database_can_keep_is_refused(self, store: stores.Store, bad: dict[str, str]) -> None:
        with pytest.raises(errors.InvalidInput):
            await store.write(lambda t: t.add_job(replace(nouns.job(), **bad), at=1.0))
        assert await store.read(lambda v: v.count()) == {}

    @pytest.mark.parametrize("text", ["\0", "a\0b", "\ud800", "' OR 1=1 --", "x" * 1_000_000, ""])
    async def test_a_job_that_was_not_stored_is_not_found(self, store: stores.Store, text: str) -> None:
        await writing.add(store, "j-1")

        def look(v: stores.View) -> list[object]:
            filters = [stores.JobFilter(owner=text), stores.JobFilter(pool=text), stores.JobFilter(name=text)]
            found = [
                v.job(text),
                v.find(text),
                v.find("j-9", text),
                v.user(text),
                v.token(text),
                v.submitted(text, text),
            ]
            return [*found, v.holdings(text), v.checkpoints(text), v.records(0, job=text), *map(v.jobs, filters)]

        assert not any(await store.read(look))

    async def test_the_newest_of_a_name_is_found(self, store: stores.Store) -> None:
        for job_id, owner, at in (("j-1", "ann", 1.0), ("j-2", "ann", 3.0), ("j-3", "bob", 4.0), ("j-4", "ann", 2.0)):
            await store.write(
                lambda t, i=job_id, o=owner, at=at: t.add_job(nouns.job(i, name="x", owner=o, at=at), at=at)
            )
            await writing.finish(store, job_id)
        found = await store.read(lambda v: [v.find("x"), v.find("x", "ann"), v.find("x", "eve"), v.find("j-1", "bob")])
        assert [job and job.id for job in found] == ["j-3", "j-2", None, "j-1"]

    async def test_the_end_of_an_id_is_enough(self, store: stores.Store) -> None:
        """A name that reads like one comes first."""
        for job_id, name, owner in (
            ("j-0000aaaaaa", "x", "ann"),
            ("j-0000bbbbbb", "aaaaaa", "bob"),
            ("j-0001cccccc", "y", "ann"),
        ):
            await store.write(lambda t, i=job_id, n=name, o=owner: t.add_job(nouns.job(i, name=n, owner=o), at=1.0))
        mine = (("aaaaaa", "ann"), ("aaaaaa", "bob"), ("cccccc", "bob"))
        any_owner = (("cccccc", None), ("ccccc", None), ("%", None))
        found = await store.read(lambda v: [v.find(*one) for one in (*mine, *any_owner)])
        ends = ["j-0000aaaaaa", "j-0000bbbbbb", None, "j-0001cccccc", None, None]
        assert [job and job.id for job in found] == ends

    async def test_an_id_is_given_once(self, store: stores.Store) -> None:
        await writing.add(store, "j-1")
        with pytest.raises(errors.Conflict, match="there is a job j-1"):
            await store.write(lambda t: t.add_job(nouns.job("j-1", name="other"), at=1.0))

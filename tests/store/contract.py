"""Contract of every store (`oarlock.store.stores`). Each implementation inherits it and gives it an empty `store`."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from tests.store import nouns

from oarlock.spec import attempts, clocks, errors, events, holdings, intents, jobs, nodes, phases, pools, users
from oarlock.store import stores

replace = msgspec.structs.replace


def kinds(records: list[events.Record]) -> list[tuple[int, str, str, int]]:
    return [(record.seq, record.job, record.kind, record.version) for record in records]


async def add(store: stores.Store, *ids: str, **more) -> None:
    for place, job_id in enumerate(ids, start=1):
        await store.write(lambda t, i=job_id, at=place: t.add_job(nouns.job(i, at=float(at), **more), at=1.0))


async def finish(store: stores.Store, job_id: str) -> None:
    await store.write(lambda t: t.put_job(nouns.ended(t.job(job_id)), at=5.0))


class StoreContract:
    # -- jobs and versions

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
    async def test_what_no_database_can_keep_is_refused(self, store: stores.Store, bad: dict[str, str]) -> None:
        with pytest.raises(errors.InvalidInput):
            await store.write(lambda t: t.add_job(replace(nouns.job(), **bad), at=1.0))
        assert await store.read(lambda v: v.count()) == {}

    @pytest.mark.parametrize("text", ["\0", "a\0b", "\ud800", "' OR 1=1 --", "x" * 1_000_000, ""])
    async def test_what_nobody_stored_is_not_found(self, store: stores.Store, text: str) -> None:
        await add(store, "j-1")

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
            await finish(store, job_id)
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
        await add(store, "j-1")
        with pytest.raises(errors.Conflict, match="there is a job j-1"):
            await store.write(lambda t: t.add_job(nouns.job("j-1", name="other"), at=1.0))

    # -- names and keys

    async def test_an_active_name_is_taken_until_its_job_has_ended(self, store: stores.Store) -> None:
        await add(store, "j-1", name="digits")
        again = nouns.job("j-2", name="digits")
        with pytest.raises(errors.NameTaken) as refused:
            await store.write(lambda t: t.add_job(again, at=1.0))
        assert refused.value.detail == {"job": "j-1"}
        await store.write(lambda t: t.add_job(nouns.job("j-3", name="digits", owner="bob"), at=1.0))
        await finish(store, "j-1")
        assert (await store.write(lambda t: t.add_job(again, at=2.0))).version == 1

    async def test_a_halted_job_cannot_come_back_to_a_name_that_was_taken(self, store: stores.Store) -> None:
        halted = nouns.job("j-1", name="x", phase=phases.Phase.HALTED, intent=intents.Intent.HALT)
        halted = await store.write(lambda t: t.add_job(halted, at=1.0))
        await add(store, "j-2", name="x")
        with pytest.raises(errors.NameTaken):
            await store.write(
                lambda t: t.put_job(replace(halted, phase=phases.Phase.QUEUED, intent=intents.Intent.RUN), at=2.0)
            )
        await finish(store, "j-2")
        resumed = replace(halted, phase=phases.Phase.QUEUED, intent=intents.Intent.RUN)
        assert (await store.write(lambda t: t.put_job(resumed, at=2.0))).version == 2

    async def test_one_key_makes_one_job(self, store: stores.Store) -> None:
        """Sixty-four clients at once say the same, as the API does: look for the key, else add."""

        def submit(job_id: str):
            def change(t: stores.Transaction) -> str:
                if (made := t.submitted("ann", "key")) is not None:
                    return made[0]
                return t.add_job(nouns.job(job_id), at=1.0, idempotency_key="key", request_sha256="abc").id

            return change

        answers = await asyncio.gather(*(store.write(submit(f"j-{place}")) for place in range(64)))
        assert len(set(answers)) == 1
        assert await store.read(lambda v: v.count()) == {phases.Phase.QUEUED: 1}
        assert await store.read(lambda v: v.submitted("ann", "key")) == (answers[0], "abc")
        assert await store.read(lambda v: v.submitted("bob", "key")) is None

    async def test_a_used_key_is_refused_for_another_job(self, store: stores.Store) -> None:
        await store.write(lambda t: t.add_job(nouns.job(), at=1.0, idempotency_key="key"))
        with pytest.raises(errors.Conflict, match="idempotency key"):
            await store.write(lambda t: t.add_job(nouns.job("j-2"), at=1.0, idempotency_key="key"))
        assert await store.read(lambda v: v.job("j-2")) is None

    # -- lists

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
        await finish(store, "j-4")
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
        await finish(store, "j-1")
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

    async def test_active_is_what_a_controller_must_look_at(self, store: stores.Store) -> None:
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
        await store.write(lambda t: t.put_job(replace(t.job("j-0007"), reason="new"), at=2.0))
        await finish(store, "j-0008")
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
        await finish(store, "j-1")
        assert await store.read(lambda v: v.snapshots_in_use()) == {"sha256:a", "sha256:b"}
        await store.write(lambda t: t.remove_jobs(["j-1"], at=2.0))
        assert await store.read(lambda v: v.snapshots_in_use()) == {"sha256:b"}

    # -- transactions

    async def test_a_failed_change_leaves_nothing(self, store: stores.Store) -> None:
        await add(store, "j-1")
        await store.write(lambda t: (t.put_node(nouns.node()), t.hold([nouns.claim(index=9)])))
        before = await self.everything(store)

        def change(t: stores.Transaction) -> None:
            t.add_job(nouns.job("j-2"), at=1.0, idempotency_key="k")
            t.put_job(nouns.ended(t.job("j-2")), at=1.0)
            t.put_job(replace(t.job("j-1"), reason="x"), [events.Launched(attempt=1)], at=1.0)
            t.put_node(nouns.node("n2"))
            t.hold([nouns.claim("j-1", devices=(0,), ports=(20000,))])
            t.release("j-1", 1)
            t.put_pool(pools.Pool(name="p"))
            t.put_user(users.User(name="u"))
            t.put_token(users.Token(sha256="t", user="u", created_at=1.0))
            t.put_session(users.Session(sha256="s", user="u", token="t", created_at=1.0, used_at=1.0))
            t.add_checkpoint(nouns.checkpoint())
            t.add_usage(stores.Usage(owner="ann", pool="p", job="j-1", attempt=1, ended_at=1.0))
            t.remove_jobs(["j-2"], at=1.0)
            t.compact(2)
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await store.write(change)
        assert await self.everything(store) == before
        await add(store, "j-2")
        assert kinds(await store.read(lambda v: v.records(1))) == [(2, "j-2", "submitted", 1)]

    async def everything(self, store: stores.Store) -> list[object]:
        def look(v: stores.View) -> list[object]:
            every = v.jobs(stores.JobFilter(limit=1000))
            rest = [v.count(), v.active(), v.holdings(), v.records(0), v.last_seq(), v.nodes(), v.pools(), v.users()]
            keys = [v.submitted("ann", "k"), v.token("t"), v.session("s"), v.usage(), v.snapshots_in_use(), v.leader()]
            return [every, *rest, *keys, [v.checkpoints(job.id) for job in every]]

        return await store.read(look)

    async def test_a_transaction_sees_its_own_writes(self, store: stores.Store) -> None:
        def change(t: stores.Transaction) -> list[object]:
            t.add_job(nouns.job("j-1"), at=1.0, idempotency_key="k")
            t.put_job(replace(t.job("j-1"), reason="x"), [events.Launched(attempt=1)], at=1.0)
            t.put_node(nouns.node())
            t.hold([nouns.claim(devices=(1,))])
            seen = [t.find("j-1").version, t.last_seq(), [record.kind for record in t.records(0)], len(t.active())]
            return [*seen, len(t.holdings("j-1")), [n.name for n in t.nodes()], t.submitted("ann", "k")]

        seen = await store.write(change)
        assert seen == [2, 2, ["submitted", "launched"], 1, 1, ["n1"], ("j-1", "")]

    async def test_neighbours_in_a_queue_do_not_undo_each_other(self, store: stores.Store) -> None:
        def change(number: int):
            def inner(t: stores.Transaction) -> int:
                t.add_job(nouns.job(f"j-{number}"), at=1.0)
                if number % 3 == 0:
                    raise ValueError(number)
                if number % 3 == 1:
                    t.add_job(nouns.job(f"j-{number}", name="again"), at=1.0)
                return number

            return inner

        answers = await asyncio.gather(*(store.write(change(number)) for number in range(60)), return_exceptions=True)
        for number, answer in enumerate(answers):
            expected = (ValueError, errors.Conflict, int)[number % 3]
            assert isinstance(answer, expected), (number, answer)
        kept = {f"j-{number}" for number in range(2, 60, 3)}
        assert {job.id for job in await store.read(lambda v: v.active())} == kept
        records = await store.read(lambda v: v.records(0))
        assert [record.seq for record in records] == list(range(1, 21))
        assert {record.job for record in records} == kept

    async def test_a_caught_refusal_leaves_nothing_of_what_was_refused(self, store: stores.Store) -> None:
        await add(store, "j-1")

        def change(t: stores.Transaction) -> bool:
            t.put_node(nouns.node())
            t.hold([nouns.claim(index=0, devices=(0,))])
            with pytest.raises(errors.NameTaken):
                t.add_job(nouns.job("j-2", name="j-1"), at=1.0, idempotency_key="k")
            with pytest.raises(errors.AlreadyHeld):
                t.hold([nouns.claim(index=1, devices=(1,)), nouns.claim(index=2, devices=(0,))])
            return True

        assert await store.write(change)
        assert [claim.index for claim in await store.read(lambda v: v.holdings())] == [0]
        assert await store.read(lambda v: v.submitted("ann", "k")) is None
        await store.write(lambda t: t.compact(2))
        assert await store.read(lambda v: v.records(0, job="j-2")) == []

    async def test_the_last_anchor_of_the_clock_stays(self, store: stores.Store) -> None:
        assert await store.read(lambda v: v.clock_anchor()) is None
        for seen_at in (1.0, 2.0):
            anchor = clocks.Anchor(boot="b", ahead_s=0.1, asleep_s=3.0, seen_at=seen_at)
            await store.write(lambda t, anchor=anchor: t.put_clock_anchor(anchor))
            assert await store.read(lambda v: v.clock_anchor()) == anchor
        with pytest.raises(ZeroDivisionError):
            await store.write(lambda t: (t.put_clock_anchor(replace(anchor, boot="c")), 1 / 0))
        assert await store.read(lambda v: v.clock_anchor()) == anchor

    async def test_a_probe_is_no_record(self, store: stores.Store) -> None:
        await store.write(lambda t: t.add_job(nouns.job(), at=1.0))
        before = await store.read(lambda v: (v.jobs(stores.JobFilter()), v.last_seq(), v.active()))
        await asyncio.gather(*(store.probe(at=float(at)) for at in range(3)))
        assert await store.read(lambda v: (v.jobs(stores.JobFilter()), v.last_seq(), v.active())) == before

    async def test_a_closed_store_says_so(self, store: stores.Store) -> None:
        await store.close()
        await store.close()
        for ask in (store.read(lambda v: v.count()), store.write(lambda t: None), store.wait(0, 1.0)):
            with pytest.raises(errors.Unavailable, match="closed"):
                await ask

    # -- the leader

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

    async def test_nobody_leads_a_new_store(self, store: stores.Store) -> None:
        with pytest.raises(errors.StaleEpoch):
            await store.write(lambda t: None, epoch=0)

    # -- holdings

    async def test_a_device_and_a_port_have_one_holder(self, store: stores.Store) -> None:
        await add(store, "j-1", "j-2")
        await store.write(lambda t: (t.put_node(nouns.node()), t.put_node(nouns.node("n2"))))
        held = nouns.claim("j-1", devices=(2, 0), ports=(20004, 20003))
        await store.write(lambda t: t.hold([held]))
        for wanted in ({"devices": (1, 2)}, {"ports": (20003,)}, {"devices": (3,), "ports": (20005, 20004)}):
            with pytest.raises(errors.AlreadyHeld, match="held by job j-1"):
                await store.write(lambda t, w=wanted: t.hold([nouns.claim("j-2", index=1), nouns.claim("j-2", **w)]))
        assert await store.read(lambda v: v.holdings()) == [held]
        other = [nouns.claim("j-2", node="n2", devices=(0, 2)), nouns.claim("j-2", index=1, devices=(1,))]
        await store.write(lambda t: t.hold(other))
        assert await store.read(lambda v: (v.holdings("j-1"), v.holdings("j-2"))) == (
            [held],
            sorted(other, key=lambda claim: claim.index),
        )

    async def test_twice_the_same_within_one_claim_is_refused_too(self, store: stores.Store) -> None:
        await add(store, "j-1")
        await store.write(lambda t: t.put_node(nouns.node()))
        for claims in (
            [nouns.claim(devices=(1, 1))],
            [nouns.claim(devices=(1,)), nouns.claim(index=1, devices=(1,))],
            [nouns.claim(), nouns.claim()],
        ):
            with pytest.raises(errors.AlreadyHeld):
                await store.write(lambda t, claims=claims: t.hold(claims))
        await store.write(lambda t: t.hold([nouns.claim()]))
        with pytest.raises(errors.AlreadyHeld, match="worker-0 of job j-1"):
            await store.write(lambda t: t.hold([nouns.claim()]))

    async def test_cpus_and_memory_are_held_in_sum(self, store: stores.Store) -> None:
        await add(store, "j-1", "j-2")
        await store.write(lambda t: t.put_node(nouns.node(cpus=8)))
        await store.write(lambda t: t.hold([nouns.claim("j-1", cpus=5), nouns.claim("j-1", index=1, cpus=1)]))
        with pytest.raises(errors.AlreadyHeld, match="2000 cpus_milli left of 8000, 3000 are asked for"):
            await store.write(lambda t: t.hold([nouns.claim("j-2", cpus=2), nouns.claim("j-2", index=1, cpus=1)]))
        with pytest.raises(errors.AlreadyHeld, match="memory_bytes left"):
            await store.write(lambda t: t.hold([nouns.claim("j-2", memory=(62 << 30) + 1)]))
        await store.write(lambda t: t.hold([nouns.claim("j-2", cpus=2, memory=62 << 30)]))
        assert len(await store.read(lambda v: v.holdings())) == 3

    async def test_shares_of_a_device_are_no_more_than_the_device(self, store: stores.Store) -> None:
        await add(store, "j-1", "j-2", "j-3")
        await store.write(lambda t: (t.put_node(nouns.node()), t.put_node(nouns.node("n2"))))
        await store.write(lambda t: t.hold([nouns.share("j-1", milli=600), nouns.share("j-1", index=1, device=1)]))
        with pytest.raises(
            errors.AlreadyHeld, match="400 thousandths of device 0 of node n1 are left, 401 are asked for"
        ):
            await store.write(lambda t: t.hold([nouns.share("j-2", milli=401)]))
        both = [nouns.share("j-2", milli=300), nouns.share("j-2", index=1, milli=101)]
        with pytest.raises(errors.AlreadyHeld, match="100 thousandths"):
            await store.write(lambda t: t.hold(both))
        await store.write(lambda t: t.hold([nouns.share("j-2", milli=400), nouns.share("j-2", index=1, node="n2")]))
        with pytest.raises(errors.AlreadyHeld):
            await store.write(lambda t: t.hold([nouns.share("j-3", milli=1)]))
        assert len(await store.read(lambda v: v.holdings())) == 4

        await store.write(lambda t: t.release("j-1", 1))
        await store.write(lambda t: t.hold([nouns.share("j-3", milli=600)]))
        assert [claim.amount.gpu_milli for claim in await store.read(lambda v: v.holdings("j-3"))] == [600]

    async def test_a_device_is_whole_or_shared(self, store: stores.Store) -> None:
        await add(store, "j-1", "j-2")
        await store.write(lambda t: t.put_node(nouns.node()))
        await store.write(lambda t: t.hold([nouns.share("j-1", milli=1), nouns.claim("j-1", index=1, devices=(1,))]))
        with pytest.raises(errors.AlreadyHeld, match="999 thousandths of device 0 of node n1 are left, 1000 are"):
            await store.write(lambda t: t.hold([nouns.claim("j-2", devices=(2, 0))]))
        with pytest.raises(errors.AlreadyHeld, match="device 1 of node n1 is held by job j-1"):
            await store.write(lambda t: t.hold([nouns.share("j-2", device=1, milli=1)]))
        for claims in (
            [nouns.share("j-2", device=3, milli=1), nouns.claim("j-2", index=1, devices=(3,))],
            [nouns.claim("j-2", devices=(3,)), nouns.share("j-2", index=1, device=3, milli=1)],
        ):
            with pytest.raises(errors.AlreadyHeld):
                await store.write(lambda t, claims=claims: t.hold(claims))
        await store.write(lambda t: t.release("j-1", 1))
        await store.write(lambda t: t.hold([nouns.claim("j-2", devices=(0, 1))]))

    async def test_what_is_no_share_is_refused(self, store: stores.Store) -> None:
        await add(store, "j-1")
        await store.write(lambda t: t.put_node(nouns.node()))
        for wrong in (
            nouns.share(milli=1000),
            nouns.share(milli=-1),
            nouns.share(device=9),
            replace(nouns.share(), devices=()),
            replace(nouns.share(), devices=(0, 1)),
            replace(nouns.share(), amount=holdings.Resources(gpus=1, gpu_milli=500)),
        ):
            with pytest.raises(errors.Conflict):
                await store.write(lambda t, wrong=wrong: t.hold([wrong]))
        assert await store.read(lambda v: v.holdings()) == []

    async def test_what_is_not_there_cannot_be_held(self, store: stores.Store) -> None:
        await add(store, "j-1")
        await store.write(lambda t: (t.put_node(nouns.node(devices=2)), t.put_node(nouns.node("n2", ports=None))))
        for claim in (
            nouns.claim(node="n9"),
            nouns.claim(devices=(2,)),
            nouns.claim(devices=(-1,)),
            nouns.claim(ports=(19999,)),
            nouns.claim(ports=(21000,)),
            nouns.claim(node="n2", ports=(20000,)),
        ):
            with pytest.raises(errors.Conflict, match=r"there is no|has no"):
                await store.write(lambda t, claim=claim: t.hold([claim]))
        with pytest.raises(errors.NotFound):
            await store.write(lambda t: t.hold([nouns.claim("j-9")]))
        await store.write(lambda t: t.hold([]))
        assert await store.read(lambda v: v.holdings()) == []

    async def test_release_frees_one_attempt_once(self, store: stores.Store) -> None:
        await add(store, "j-1", "j-2")
        first = [nouns.claim(index=index, devices=(index,), ports=(20000 + index,)) for index in range(2)]
        second = nouns.claim(attempt=2, devices=(2,))
        await store.write(lambda t: (t.put_node(nouns.node()), t.hold([*first, second])))
        assert await store.write(lambda t: t.release("j-1", 1)) == first
        assert await store.write(lambda t: t.release("j-1", 1)) == []
        assert await store.read(lambda v: v.holdings()) == [second]
        await store.write(lambda t: t.hold([replace(claim, job="j-2") for claim in first]))

    async def test_a_node_leaves_when_nothing_is_held_on_it(self, store: stores.Store) -> None:
        await add(store, "j-1")
        await store.write(lambda t: (t.put_node(nouns.node()), t.hold([nouns.claim()])))
        with pytest.raises(errors.Conflict, match="job j-1 holds"):
            await store.write(lambda t: t.remove_node("n1"))
        await store.write(lambda t: t.release("j-1", 1))
        await store.write(lambda t: (t.remove_node("n1"), t.remove_node("n1")))
        assert await store.read(lambda v: v.nodes()) == []

    # -- the event log

    async def test_each_event_is_a_line_and_a_change_of_phase_one_more(self, store: stores.Store) -> None:
        await add(store, "j-1")
        job = await store.read(lambda v: v.job("j-1"))
        happened = [events.Admitted(attempt=1, holdings=(nouns.claim(),)), events.LaunchFailed(attempt=1, reason="no")]
        after = replace(job, phase=phases.Phase.DEPLOYING, reason="launched")
        await store.write(lambda t: t.put_job(after, happened, at=2.5))
        records = await store.read(lambda v: v.records(0))
        assert kinds(records) == [
            (1, "j-1", "submitted", 1),
            (2, "j-1", "admitted", 2),
            (3, "j-1", "launch_failed", 2),
            (4, "j-1", "phase", 2),
        ]
        assert records[2].data == {"attempt": 1, "reason": "no"}
        assert records[3].data == {"from": "QUEUED", "to": "DEPLOYING", "reason": "launched"}
        assert records[3].at == 2.5
        assert msgspec.convert(records[1].data["holdings"], tuple[holdings.Holding, ...]) == (nouns.claim(),)

    async def test_progress_is_no_line_but_a_task_s_new_phase_is(self, store: stores.Store) -> None:
        def seen(phase: phases.TaskPhase):
            return (nouns.attempt(phase=phase),)

        await add(store, "j-1", attempts=seen(phases.TaskPhase.DOWNLOADING))
        progress = attempts.Progress(step=3, at=1.0)
        report = events.TaskReported(
            key=attempts.TaskKey("j-1", 1, "worker", 0, 1), phase="PROCESSING", progress=progress, idle_s=0.5
        )
        for _ in range(2):
            await store.write(
                lambda t: t.put_job(replace(t.job("j-1"), attempts=seen(phases.TaskPhase.PROCESSING)), [report], at=2.0)
            )
        records = await store.read(lambda v: v.records(1))
        assert kinds(records) == [(2, "j-1", "task_reported", 2)]
        assert records[0].data == {
            "attempt": 1,
            "role": "worker",
            "index": 0,
            "incarnation": 1,
            "phase": "PROCESSING",
            "detail": "",
        }
        assert (await store.read(lambda v: v.job("j-1"))).version == 3

    async def test_the_log_is_read_on_from_a_seq_by_pages(self, store: stores.Store) -> None:
        await add(store, *(f"j-{place}" for place in range(7)))
        seen: list[int] = []
        while page := await store.read(lambda v, last=seen[-1] if seen else 0: v.records(last, limit=3)):
            assert len(page) <= 3
            seen += [record.seq for record in page]
        assert seen == list(range(1, 8))
        assert kinds(await store.read(lambda v: v.records(0, job="j-4"))) == [(5, "j-4", "submitted", 1)]
        assert await store.read(lambda v: (v.records(10**30), v.last_seq())) == ([], 7)
        assert await store.read(lambda v: v.records(0, limit=0)) == []

    async def test_what_was_compacted_is_gone(self, store: stores.Store) -> None:
        await add(store, "j-1", "j-2", "j-3", "j-4")
        await store.write(lambda t: t.compact(3))
        for after in (0, 1, -5):
            with pytest.raises(errors.Gone) as gone:
                await store.read(lambda v, after=after: v.records(after))
            assert gone.value.detail == {"first": 3}
        assert [record.seq for record in await store.read(lambda v: v.records(2))] == [3, 4]
        with pytest.raises(errors.Gone):
            await store.read(lambda v: v.records(0, job="j-1"))
        assert kinds(await store.read(lambda v: v.records(0, job="j-3"))) == [(3, "j-3", "submitted", 1)]
        await store.write(lambda t: t.compact(1))
        with pytest.raises(errors.Gone):
            await store.read(lambda v: v.records(1))
        await store.write(lambda t: t.compact(10**30))
        assert await store.read(lambda v: (v.records(4), v.last_seq())) == ([], 4)
        await add(store, "j-5")
        assert kinds(await store.read(lambda v: v.records(4))) == [(5, "j-5", "submitted", 1)]

    async def test_many_writers_leave_a_log_without_gaps_that_readers_follow(self, store: stores.Store) -> None:
        seen: list[events.Record] = []

        async def follow() -> None:
            while len(seen) < 120:
                after = seen[-1].seq if seen else 0
                await store.wait(after, 5.0)
                seen.extend(await store.read(lambda v, after=after: v.records(after, limit=7)))

        async def write(writer: int) -> None:
            await add(store, *(f"j-{writer}-{place}" for place in range(10)))

        await asyncio.wait_for(asyncio.gather(follow(), *(write(writer) for writer in range(12))), 60)
        assert [record.seq for record in seen] == list(range(1, 121))
        assert len({record.job for record in seen}) == 120

    async def test_wait_returns_when_there_is_more_or_the_time_is_over(self, store: stores.Store) -> None:
        assert await store.wait(0, 0.0) == 0
        assert await store.wait(0, 0.01) == 0
        waiting = asyncio.ensure_future(store.wait(0, 30.0))
        await asyncio.sleep(0.01)
        await add(store, "j-1")
        assert await asyncio.wait_for(waiting, 10) == 1
        assert await store.wait(0, 30.0) == 1

    async def test_wait_ends_when_the_store_closes(self, store: stores.Store) -> None:
        waiting = asyncio.ensure_future(store.wait(0, 60.0))
        await asyncio.sleep(0.01)
        await store.close()
        assert await asyncio.wait_for(waiting, 10) == 0

    # -- removal

    async def test_removal_forgets_all_but_usage_and_says_so(self, store: stores.Store) -> None:
        await store.write(lambda t: t.add_job(nouns.job("j-1"), at=1.0, idempotency_key="k"))
        await add(store, "j-2", name="other")
        usage = stores.Usage(owner="ann", pool="default", job="j-1", attempt=1, ended_at=4.0, device_seconds=7.0)
        await store.write(lambda t: (t.add_checkpoint(nouns.checkpoint()), t.add_usage(usage)))
        with pytest.raises(errors.Conflict, match="QUEUED"):
            await store.write(lambda t: t.remove_jobs(["j-1"], at=2.0))
        await finish(store, "j-1")
        with pytest.raises(errors.Conflict):
            await store.write(lambda t: t.remove_jobs(["j-1", "j-2"], at=2.0))
        await store.write(lambda t: t.remove_jobs(["j-1", "j-1", "j-none"], at=6.0))
        look = await store.read(lambda v: (v.job("j-1"), v.find("j-1"), v.checkpoints("j-1"), v.submitted("ann", "k")))
        assert look == (None, None, [], ("j-1", ""))
        records = await store.read(lambda v: v.records(0))
        assert kinds(records) == [(2, "j-2", "submitted", 1), (4, "j-1", "removed", 2)]
        assert records[-1].data == {"name": "j-1", "owner": "ann", "phase": "COMPLETED"}
        assert records[-1].at == 6.0
        assert [one.device_seconds for one in await store.read(lambda v: v.usage())] == [7.0]

    async def test_a_key_is_remembered_after_its_job_until_it_is_forgotten(self, store: stores.Store) -> None:
        for place, at in ((1, 10.0), (2, 20.0)):
            job = nouns.job(f"j-{place}")
            await store.write(lambda t, job=job: t.add_job(job, at=1.0, idempotency_key=job.id, request_sha256="abc"))
            await finish(store, job.id)
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
        await add(store, "j-1")
        await store.write(lambda t: (t.put_node(nouns.node()), t.hold([nouns.claim()])))
        await finish(store, "j-1")
        with pytest.raises(errors.Conflict, match="holds something"):
            await store.write(lambda t: t.remove_jobs(["j-1"], at=2.0))

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

    # -- the rest

    async def test_checkpoints_are_best_first_and_added_once(self, store: stores.Store) -> None:
        await add(store, "j-1", "j-2")
        made = [nouns.checkpoint(attempt=a, step=s) for a, s in ((1, 10), (2, 30), (1, 200), (2, 40), (10, 1))]
        await store.write(lambda t: [t.add_checkpoint(one) for one in [*made, made[0]]])
        found = await store.read(lambda v: v.checkpoints("j-1"))
        assert found == [made[4], made[3], made[1], made[2], made[0]]
        await store.write(
            lambda t: (t.remove_checkpoint("j-1", made[4].path), t.remove_checkpoint("j-2", made[3].path))
        )
        assert await store.read(lambda v: v.checkpoints("j-1")) == found[1:]
        with pytest.raises(errors.NotFound):
            await store.write(lambda t: t.add_checkpoint(nouns.checkpoint("j-9")))

    async def test_nodes_pools_and_users_are_written_by_compare_and_swap(self, store: stores.Store) -> None:
        for put, item, other in (
            ("put_node", nouns.node("b"), {"ready": False}),
            ("put_pool", pools.Pool(name="b", limit={"gpus": 8.0}), {"share": {"gpus": 2.0}}),
            ("put_user", users.User(name="b"), {"right": users.Right.ADMIN}),
        ):
            first = await store.write(lambda t, put=put, item=item: getattr(t, put)(item))
            assert first == replace(item, version=1)
            for stale in (item, replace(item, version=2), replace(item, name="c", version=1)):
                with pytest.raises(errors.VersionMismatch):
                    await store.write(lambda t, put=put, item=stale: getattr(t, put)(item))
            newer, another = replace(first, **other), replace(item, name="a")
            second = await store.write(lambda t, put=put, item=newer: getattr(t, put)(item))
            await store.write(lambda t, put=put, item=another: getattr(t, put)(item))
            listed = await store.read(lambda v, kind=put: getattr(v, kind.removeprefix("put_") + "s")())
            assert listed == [replace(item, name="a", version=1), second]
        assert (await store.read(lambda v: v.user("b"))).right is users.Right.ADMIN

    async def test_a_pool_is_removed_once_its_jobs_are_over(self, store: stores.Store) -> None:
        await store.write(lambda t: (t.put_pool(pools.Pool(name="a")), t.put_pool(pools.Pool(name="b"))))
        await add(store, "j-1", pool="a")
        await add(store, "j-2", pool="b", phase=phases.Phase.HALTED)
        for name, holder in (("a", "j-1"), ("b", "j-2")):
            with pytest.raises(errors.Conflict, match=f"{holder} is in pool {name}"):
                await store.write(lambda t, name=name: t.remove_pool(name))
        await finish(store, "j-1")
        await store.write(lambda t: (t.remove_pool("a"), t.remove_pool("a"), t.remove_pool("\ud800")))
        assert [pool.name for pool in await store.read(lambda v: v.pools())] == ["b"]
        assert (await store.write(lambda t: t.put_pool(pools.Pool(name="a")))).version == 1

    async def test_a_node_comes_back_with_all_it_has(self, store: stores.Store) -> None:
        node = nodes.Node(
            name="n",
            capacity=holdings.Resources(cpus_milli=1, memory_bytes=1 << 60, gpus=1),
            devices=(nodes.Device(index=3, type="a100", memory_bytes=80 << 30, uuid="GPU-1", virtual=True),),
            labels={"a": "b"},
            domains={"rack": "r1"},
            ports=(1, 65535),
        )
        await store.write(lambda t: t.put_node(node))
        assert await store.read(lambda v: v.nodes()) == [replace(node, version=1)]

    async def test_tokens_belong_to_users(self, store: stores.Store) -> None:
        token = users.Token(sha256="f" * 64, user="ann", created_at=1.0, note="laptop")
        with pytest.raises(errors.NotFound, match="no user ann"):
            await store.write(lambda t: t.put_token(token))
        await store.write(lambda t: (t.put_user(users.User(name="ann")), t.put_token(token)))
        await store.write(lambda t: t.put_token(replace(token, note="desk")))
        assert (await store.read(lambda v: v.token("f" * 64))).note == "desk"
        await store.write(lambda t: (t.remove_token("f" * 64), t.remove_token("f" * 64)))
        assert await store.read(lambda v: v.token("f" * 64)) is None

    async def test_sessions_end_with_their_token_and_with_time(self, store: stores.Store) -> None:
        def made(sha256: str, user: str = "ann", used: float = 2.0, **more) -> users.Session:
            return users.Session(sha256=sha256, user=user, token="t", created_at=used, used_at=used, **more)

        with pytest.raises(errors.NotFound, match="no such token"):
            await store.write(lambda t: t.put_session(made("a")))
        for user in ("ann", "bob"):
            await store.write(lambda t, user=user: t.put_user(users.User(name=user)))
        await store.write(lambda t: t.put_token(users.Token(sha256="t", user="ann", created_at=1.0)))
        with pytest.raises(errors.NotFound, match="bob has no such token"):
            await store.write(lambda t: t.put_session(made("a", user="bob")))
        code, session = made("c", once=True), made("a", used=3.0, note="Firefox")
        await store.write(lambda t: (t.put_session(session), t.put_session(code), t.put_session(replace(session))))
        assert await store.read(lambda v: (v.session("a"), v.sessions("ann"))) == (session, [code, session])
        assert await store.read(lambda v: (v.session("x"), v.sessions("bob"))) == (None, [])
        await store.write(lambda t: t.forget_sessions(2.0 + users.CODE_S))
        assert await store.read(lambda v: v.session("c")) == code, "it expires only after that moment"
        await store.write(lambda t: t.forget_sessions(2.1 + users.CODE_S))
        assert await store.read(lambda v: v.sessions("ann")) == [session]
        await store.write(lambda t: (t.put_session(code), t.remove_session("c"), t.remove_session("c")))
        assert await store.read(lambda v: v.sessions("ann")) == [session]
        await store.write(lambda t: t.remove_token("t"))
        assert await store.read(lambda v: v.sessions("ann")) == []

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
            )

        every = [use("bob", "a", "j-1", 1.0, 4.0), use("ann", "b", "j-2", 2.0, 8.0), use("ann", "b", "j-3", 3.0, 16.0)]
        await store.write(lambda t: [t.add_usage(one) for one in [*every, every[0]]])
        summed = await store.read(lambda v: v.usage())
        assert [(one.owner, one.pool, one.device_seconds, one.cpu_seconds) for one in summed] == [
            ("ann", "b", 24.0, 48.0),
            ("bob", "a", 4.0, 8.0),
        ]
        assert (summed[0].started_at, summed[0].ended_at, summed[0].job) == (1.0, 3.0, "")
        late = await store.read(lambda v: v.usage(since=2.0))
        assert [(one.owner, one.device_seconds) for one in late] == [("ann", 16.0)]

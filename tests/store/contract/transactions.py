"""Transactions: whole or nothing."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from tests.store import nouns
from tests.store.contract import writing

from oarlock.spec import errors, events
from oarlock.spec.access import users
from oarlock.spec.cluster import pools
from oarlock.spec.process import clocks
from oarlock.store import stores


class Transactions:
    async def test_a_failed_change_leaves_nothing(self, store: stores.Store) -> None:
        await writing.add(store, "j-1")
        await store.write(lambda t: (t.put_node(nouns.node()), t.hold([nouns.claim(index=9)])))
        before = await self.everything(store)

        def change(t: stores.Transaction) -> None:
            t.add_job(nouns.job("j-2"), at=1.0, idempotency_key="k")
            t.put_job(nouns.ended(t.job("j-2")), at=1.0)
            t.put_job(msgspec.structs.replace(t.job("j-1"), reason="x"), [events.Launched(attempt=1)], at=1.0)
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
        await writing.add(store, "j-2")
        assert writing.kinds(await store.read(lambda v: v.records(1))) == [(2, "j-2", "submitted", 1)]

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
            t.put_job(msgspec.structs.replace(t.job("j-1"), reason="x"), [events.Launched(attempt=1)], at=1.0)
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

    async def test_a_caught_refusal_leaves_nothing_of_the_refused_change(self, store: stores.Store) -> None:
        await writing.add(store, "j-1")

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
            await store.write(lambda t: (t.put_clock_anchor(msgspec.structs.replace(anchor, boot="c")), 1 / 0))
        assert await store.read(lambda v: v.clock_anchor()) == anchor

    async def test_a_cursor_never_goes_back(self, store: stores.Store) -> None:
        assert await store.read(lambda v: v.cursor("reader")) is None
        for seq, expected in ((0, 0), (7, 7), (3, 7), (9, 9)):
            await store.write(lambda t, seq=seq: t.put_cursor("reader", seq))
            assert await store.read(lambda v: v.cursor("reader")) == expected
        with pytest.raises(ZeroDivisionError):
            await store.write(lambda t: (t.put_cursor("reader", 12), 1 / 0))
        assert await store.read(lambda v: (v.cursor("reader"), v.cursor("another"), v.last_seq())) == (9, None, 0)

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
